//! `duewheel reserve QUEUE`, and `ack|nack|extend ID TOKEN` for what it gives.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use duewheel::core::QueueName;
use serde_json::{Map, Value, json};

use super::invocation::print_json;
use super::queue::{path, queue_name};
use super::remote::{Remote, segment};
use super::table::{self, body, cell};
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::span::TimeSpan;

const BODY_CHARS: usize = 40;

#[derive(Args, Debug)]
pub(super) struct ReserveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Largest number of messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: u32,
    /// How long to wait until a message is due
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = when::span)]
    wait: TimeSpan,
    /// Length of the lease [default: as message and queue say]
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    lease: Option<TimeSpan>,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ReserveArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let mut request = json!({"max": self.max, "wait_ms": self.wait.0});
        if let Some(lease) = self.lease {
            request["lease_ms"] = lease.0.into();
        }
        let remote = Remote::new(&self.server)?;
        let wait = Duration::from_millis(self.wait.0);
        let answer = remote.post_waiting(&format!("{}/reserve", path(&self.queue)), &request, wait)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            print_json(&mut out, &answer)?;
            return Ok(());
        }
        let none = Vec::new();
        let messages = answer["messages"].as_array().unwrap_or(&none);
        if messages.is_empty() {
            let why = if answer.get("held_back").is_some() { ": too many messages are leased" } else { "" };
            writeln!(out, "no message{why}")?;
            return Ok(());
        }
        let row = |message: &Value| {
            let mut row: Vec<String> =
                ["id", "lease_token", "attempt", "key"].into_iter().map(|name| cell(message, name)).collect();
            row.push(body(message, BODY_CHARS));
            row
        };
        let rows: Vec<Vec<String>> = messages.iter().map(row).collect();
        table::print(&mut out, &["ID", "TOKEN", "ATTEMPT", "KEY", "BODY"], &rows)?;
        Ok(())
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
        self,
        verb: &str,
        mut request: Map<String, Value>,
        server: &ServerArgs,
        words: fn(&Value) -> String,
    ) -> Result<(), CommandFailure> {
        request.insert("lease_token".into(), self.lease.into());
        let path = format!("/v1/messages/{}/{verb}", segment(&self.id));
        let answer = Remote::new(server)?.post(&path, &Value::Object(request))?;
        let words = words(&answer);
        let mut out = io::stdout().lock();
        if server.json {
            print_json(&mut out, &answer)?;
        } else {
            writeln!(out, "{}  {words}", self.id)?;
        }
        Ok(())
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
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for AckArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        self.target.settle("ack", Map::new(), &self.server, settled_words)
    }
}

#[derive(Args, Debug)]
pub(super) struct NackArgs {
    #[command(flatten)]
    target: LeaseArgs,
    /// Time until the next attempt [default: the backoff of message and queue]
    #[arg(long, value_name = "TIME", value_parser = when::span, conflicts_with = "dead")]
    delay: Option<TimeSpan>,
    /// Why; it is kept in the message's history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Make the message dead at once
    #[arg(long)]
    dead: bool,
    /// Not yet: this attempt does not count
    #[arg(long, conflicts_with = "dead")]
    not_yet: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for NackArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let mut request = Map::new();
        if let Some(TimeSpan(ms)) = self.delay {
            request.insert("delay_ms".into(), ms.into());
        }
        if let Some(reason) = self.reason {
            request.insert("reason".into(), reason.into());
        }
        if self.dead {
            request.insert("dead".into(), true.into());
        }
        if self.not_yet {
            request.insert("attempt".into(), false.into());
        }
        self.target.settle("nack", request, &self.server, settled_words)
    }
}

#[derive(Args, Debug)]
pub(super) struct ExtendArgs {
    #[command(flatten)]
    target: LeaseArgs,
    /// The lease's length from now on [default: its length so far]
    #[arg(long = "lease", value_name = "TIME", value_parser = when::span)]
    lease_time: Option<TimeSpan>,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ExtendArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let mut request = Map::new();
        if let Some(TimeSpan(ms)) = self.lease_time {
            request.insert("lease_ms".into(), ms.into());
        }
        self.target.settle("extend", request, &self.server, |answer| {
            format!("leased until {}", when::instant_told(answer, "lease_until"))
        })
    }
}
