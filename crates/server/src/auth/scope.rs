//! Scopes of tokens, and the permission that a call needs: a scope, and the queues and messages that it concerns.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of calls. No scope implies another; a token may have several.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// New messages. Shows no body
    Enqueue,
    /// Reserve, ack, nack, extend; lists of messages
    Consume,
    /// A message by id or key: get, cancel, postpone, fire
    Cancel,
    /// Lists of messages, settings, pause, purge, redrive, backup
    Admin,
    /// Figures: /metrics, queues, histograms, the wheel. Shows no body
    Metrics,
    /// In addition to enqueue or cancel: messages with a `target_url` of their own
    PushAny,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 6] =
        [Scope::Enqueue, Scope::Consume, Scope::Cancel, Scope::Admin, Scope::Metrics, Scope::PushAny];

    /// The permission of calls that this scope alone allows.
    pub(crate) const fn alone(self) -> &'static [Scope] {
        match self {
            Scope::Enqueue => &[Scope::Enqueue],
            Scope::Consume => &[Scope::Consume],
            Scope::Cancel => &[Scope::Cancel],
            Scope::Admin => &[Scope::Admin],
            Scope::Metrics => &[Scope::Metrics],
            Scope::PushAny => &[Scope::PushAny],
        }
    }

    /// The names of scopes, one of which is needed.
    pub(crate) fn either(scopes: &[Scope]) -> String {
        scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" or ")
    }

    /// The name in files and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Enqueue => "enqueue",
            Scope::Consume => "consume",
            Scope::Cancel => "cancel",
            Scope::Admin => "admin",
            Scope::Metrics => "metrics",
            Scope::PushAny => "push-any",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Scope::ALL.into_iter().find(|scope| scope.as_str() == s);
        found.ok_or_else(|| format!("{s:?} is none of enqueue, consume, cancel, admin, metrics, push-any"))
    }
}

/// The permission that a call needs where tokens are required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRule {
    /// No access is needed: the call shows nothing of queues and messages.
    Open,
    /// A valid token with any scopes.
    Identified,
    /// A token with one of these scopes that covers what the call concerns.
    Needs(&'static [Scope], About),
}

/// Whether the calls of a route are acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audit {
    /// No act.
    No,
    /// Acts: the operations that such a call submits are recorded as parts of the act.
    Operations,
    /// Acts without operations: the act is recorded behind its effect.
    Alone,
}

/// The subject of a call, which determines whether a token that is limited to queues may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The queue in the path: the token must cover it.
    Queue,
    /// The message whose id is in the path: if the token does not cover its queue, the message is not found.
    Message,
    /// The message whose id is in the path, also one that is done: the handler checks its queue, and if the token does not
    /// cover it, the message is not found.
    Recalled,
    /// The lease of the message whose id is in the path. The message may have been acked already, so the handler checks
    /// its queue once the request has been validated.
    Lease,
    /// Several queues or messages: the handler leaves out those that the token does not cover.
    Several,
    /// The whole server: limited tokens may not make the call.
    Server,
}
