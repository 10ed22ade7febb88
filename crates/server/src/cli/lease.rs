//! `duewheel reserve QUEUE`, and `ack|nack|extend ID TOKEN` for what it gives.

use std::time::Duration;

use clap::Args;
use duewheel::core::QueueName;
use serde::Serialize;
use serde_json::{Map, Value};

use super::CommandFailure;
use super::message::LISTED_BODY;
use super::queue::{path, queue_name};
use super::remote::segment;
use super::session::{ClientCommand, Session, fields};
use super::table::{self, body, cell, elements, member};
use super::when::{self, Millis};

#[derive(Args, Debug, Serialize)]
pub(super) struct ReserveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    #[serde(skip)]
    queue: QueueName,
    /// Largest number of messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: u32,
    /// How long to wait until a message is due
    #[arg(long = "wait", value_name = "TIME", default_value = "0s")]
    wait_ms: Millis,
    /// Length of the lease [default: as message and queue say]
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
}

impl ClientCommand for ReserveArgs {
    fn run(self, session: &Session) -> Result<(), CommandFailure> {
        let wait = Duration::from_millis(self.wait_ms.0);
        let path = format!("{}/reserve", path(&self.queue));
        let answer = session.remote.post_waiting(&path, &Value::Object(fields(&self)?), wait)?;
        session.print(&answer, |out| {
            if elements(&answer, "messages").next().is_none() {
                let is_held = answer.get("held_back").is_some();
                return writeln!(
                    out,
                    "no message{}",
                    if is_held { ": too many messages are leased" } else { "" }
                );
            }
            let columns: [table::Column<'_>; 5] = [
                ("ID", &member("id")),
                ("TOKEN", &member("lease_token")),
                ("ATTEMPT", &member("attempt")),
                ("KEY", &member("key")),
                ("BODY", &|message| body(message, LISTED_BODY)),
            ];
            table::print_rows(out, elements(&answer, "messages"), &columns)
        })
    }
}

/// Identifies a lease.
#[derive(Args, Debug)]
struct LeaseArgs {
    /// The message's id
    id: String,
    /// The lease's token, which `duewheel reserve` prints
    #[arg(value_name = "TOKEN")]
    lease: String,
}

impl LeaseArgs {
    fn settle(
        &self,
        verb: &str,
        mut request: Map<String, Value>,
        session: &Session,
        words: fn(&Value) -> String,
    ) -> Result<(), CommandFailure> {
        request.insert("lease_token".into(), self.lease.as_str().into());
        let path = format!("/v1/messages/{}/{verb}", segment(&self.id));
        let answer = session.remote.post(&path, &Value::Object(request))?;
        session.say(&answer, format_args!("{}  {}", self.id, words(&answer)))
    }
}

/// How a message was settled, in words.
pub(super) fn settled_words(answer: &Value) -> String {
    match cell(answer, "result").as_str() {
        "already" => "was acked already".to_owned(),
        "superseded" => "superseded: another message has its key, and it is gone".to_owned(),
        "again" => format!("again, due {}", when::due(answer)),
        "dead" => format!("dead: {}", cell(answer, "dead_reason")),
        result => result.to_owned(),
    }
}

#[derive(Args, Debug)]
pub(super) struct AckArgs {
    #[command(flatten)]
    target: LeaseArgs,
}

impl ClientCommand for AckArgs {
    fn run(self, session: &Session) -> Result<(), CommandFailure> {
        self.target.settle("ack", Map::new(), session, settled_words)
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct NackArgs {
    #[command(flatten)]
    #[serde(skip)]
    target: LeaseArgs,
    /// Time until the next attempt [default: the backoff of message and queue]
    #[arg(long = "delay", value_name = "TIME", conflicts_with = "dead")]
    delay_ms: Option<Millis>,
    /// Why; it is kept in the message's history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Make the message dead at once
    #[arg(long)]
    dead: bool,
    /// Not yet: this attempt does not count
    #[arg(long, conflicts_with = "dead")]
    #[serde(skip)]
    not_yet: bool,
}

impl ClientCommand for NackArgs {
    fn run(self, session: &Session) -> Result<(), CommandFailure> {
        let mut request = fields(&self)?;
        if self.not_yet {
            request.insert("attempt".into(), false.into());
        }
        self.target.settle("nack", request, session, settled_words)
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct ExtendArgs {
    #[command(flatten)]
    #[serde(skip)]
    target: LeaseArgs,
    /// The lease's length from now on [default: its length so far]
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
}

impl ClientCommand for ExtendArgs {
    fn run(self, session: &Session) -> Result<(), CommandFailure> {
        self.target.settle("extend", fields(&self)?, session, |answer| {
            format!("leased until {}", when::instant_told(answer, "lease_until"))
        })
    }
}
