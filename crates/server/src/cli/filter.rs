//! The options that say which messages of a queue are meant.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::CommandFailure;
use super::dead::{self, DeadReasonArg};
use super::enqueue::{header, headers};
use super::remote::segment;
use super::when::GivenInstant;

/// Which messages are meant: those for which everything holds that is given.
#[derive(Args, Debug)]
pub(super) struct FilterArgs {
    /// Only messages in this state
    #[arg(long, value_name = "S")]
    state: Option<StateArg>,
    /// Only messages whose key begins with this
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only messages with this header; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Only messages that are due at this time or later, such as "tomorrow 9:00"
    #[arg(long, value_name = "INSTANT")]
    due_from: Option<GivenInstant>,
    /// Only messages that are due before this time
    #[arg(long, value_name = "INSTANT")]
    due_to: Option<GivenInstant>,
    /// Only dead messages with this reason
    #[arg(long, value_name = "R")]
    dead_reason: Option<DeadReasonArg>,
    /// Only dead messages whose last attempt has this note; `duewheel dead` shows them
    #[arg(long, value_name = "TEXT")]
    dead_note: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StateArg {
    Scheduled,
    Ready,
    Leased,
    Dead,
    /// Ended, and kept for a while by the queue; for `list`
    Done,
}

impl FilterArgs {
    /// The fields of a request.
    pub(super) fn json(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut fields = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        put("state", self.state.map(|state| state.word().into()));
        put("key_prefix", self.key_prefix.as_deref().map(Value::from));
        put("due_from", self.due_from.as_ref().map(|at| at.instant.as_str().into()));
        put("due_to", self.due_to.as_ref().map(|at| at.instant.as_str().into()));
        let headers = (!self.headers.is_empty()).then(|| headers(&self.headers));
        put("headers", headers.transpose()?);
        fields.extend(dead::filter(self.dead_reason, self.dead_note.as_deref()));
        Ok(fields)
    }

    /// The parameters of a query, each with a `&` before it.
    pub(super) fn query(&self) -> Result<String, CommandFailure> {
        let mut query = String::new();
        for (name, value) in self.json()? {
            match value {
                Value::Object(headers) => {
                    for (name, value) in headers {
                        let value = segment(value.as_str().unwrap_or_default());
                        query.push_str(&format!("&header.{}={value}", segment(&name)));
                    }
                }
                value => query.push_str(&format!("&{name}={}", segment(value.as_str().unwrap_or_default()))),
            }
        }
        Ok(query)
    }
}

impl StateArg {
    fn word(self) -> &'static str {
        match self {
            StateArg::Scheduled => "scheduled",
            StateArg::Ready => "ready",
            StateArg::Leased => "leased",
            StateArg::Dead => "dead",
            StateArg::Done => "done",
        }
    }
}
