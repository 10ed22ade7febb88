//! The settings of a bridge: a table `[[bridge]]` of the configuration.

use std::fmt;
use std::path::PathBuf;

use duewheel::core::message::MaxAttempts;
use duewheel::core::name::QueueName;
use serde::{Deserialize, Serialize};

/// Attempts after which a message is dead that has no place on the other side.
const MAX_ATTEMPTS: u32 = 10;
/// Longest name of a bridge, in bytes.
const MAX_BRIDGE_NAME: usize = 64;
/// Longest name of an exchange or a queue of RabbitMQ, in bytes, so that what is added to it fits.
const MAX_BROKER_NAME: usize = 200;

/// The kind of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BridgeKind {
    /// RabbitMQ, or what speaks AMQP 0.9.1 as it does.
    Rabbitmq,
}

/// A bridge, as the configuration describes it.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSettings {
    /// The name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The kind of the other side.
    pub kind: BridgeKind,
    /// The address of the broker, with user and password: `amqp://` or `amqps://`.
    pub url: String,
    /// The queue of duewheel that messages wait in.
    pub queue: String,
    /// The exchange that publishers know. Due messages go to one with this name and `.due`.
    pub exchange: String,
    /// The kind of that exchange, as `x-delayed-type` named it.
    #[serde(default = "direct")]
    pub exchange_type: String,
    /// The queue of the broker that the bridge takes messages from; `None`: `duewheel.` and the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether that queue is a quorum queue, where the broker has such queues.
    #[serde(default = "yes")]
    pub quorum: bool,
    /// Attempts after which a message is dead that no queue of the broker is bound for.
    #[serde(default = "max_attempts")]
    pub max_attempts: u32,
    /// The authority of the broker's certificate, in PEM; `None`: those of the web.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

fn direct() -> String {
    "direct".to_owned()
}

fn yes() -> bool {
    true
}

fn max_attempts() -> u32 {
    MAX_ATTEMPTS
}

/// The URL has a password.
impl fmt::Debug for BridgeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BridgeSettings { name, kind, queue, exchange, .. } = self;
        f.debug_struct("BridgeSettings")
            .field("name", name)
            .field("kind", kind)
            .field("queue", queue)
            .field("exchange", exchange)
            .finish_non_exhaustive()
    }
}

/// Why a bridge cannot be run as it is described.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bridge {name:?}: {field}: {what}")]
pub struct BadBridge {
    /// The name of the bridge.
    pub name: String,
    /// The field.
    pub field: &'static str,
    /// The problem.
    pub what: String,
}

impl BridgeSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// The field that is wrong, or the feature that this build lacks.
    pub fn check(&self) -> Result<(), BadBridge> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if self.name.is_empty() || self.name.len() > MAX_BRIDGE_NAME || !self.name.chars().all(plain) {
            let what = format!("must be 1 to {MAX_BRIDGE_NAME} letters, digits, '-', '_' and '.'");
            return Err(self.bad("name", what));
        }
        self.queue_name()?;
        for (field, text) in [("exchange", &*self.exchange), ("source", &self.source())] {
            if text.is_empty() || text.len() > MAX_BROKER_NAME {
                return Err(self.bad(field, format!("must be 1 to {MAX_BROKER_NAME} bytes")));
            }
        }
        let types = ["direct", "fanout", "topic", "headers"];
        if !types.contains(&&*self.exchange_type) {
            return Err(self.bad("exchange_type", format!("must be one of {}", types.join(", "))));
        }
        self.attempts()?;
        if cfg!(not(feature = "rabbitmq")) {
            let what = "this build has no bridges to RabbitMQ; build it with --features rabbitmq, or take a released one";
            return Err(self.bad("kind", what.to_owned()));
        }
        Ok(())
    }

    pub(crate) fn bad(&self, field: &'static str, what: String) -> BadBridge {
        BadBridge { name: self.name.clone(), field, what }
    }

    /// The settings without the password of the URL.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        if let Some((scheme, rest)) = self.url.split_once("://")
            && let Some((who, host)) = rest.rsplit_once('@')
        {
            let user = who.split_once(':').map_or(who, |(user, _)| user);
            self.url = format!("{scheme}://{user}@{host}");
        }
        self
    }

    /// The queue of duewheel.
    ///
    /// # Errors
    /// The name is not valid.
    pub fn queue_name(&self) -> Result<QueueName, BadBridge> {
        QueueName::new(&self.queue).map_err(|bad| self.bad("queue", bad.to_string()))
    }

    /// The queue of the broker that the bridge takes messages from.
    pub fn source(&self) -> String {
        self.source.clone().unwrap_or_else(|| format!("duewheel.{}", self.name))
    }

    /// The queue of the broker for messages that can never be taken.
    pub fn rejected(&self) -> String {
        format!("{}.rejected", self.source())
    }

    /// The exchange that due messages go to.
    pub fn due_exchange(&self) -> String {
        format!("{}.due", self.exchange)
    }

    pub(crate) fn attempts(&self) -> Result<MaxAttempts, BadBridge> {
        let none = || self.bad("max_attempts", "must be at least 1".to_owned());
        MaxAttempts::new(self.max_attempts).ok_or_else(none)
    }
}
