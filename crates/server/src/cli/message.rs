//! `duewheel get|cancel|postpone|fire (ID | QUEUE --key K)`, and `duewheel replay ID`.

use std::io::{self, Write};

use clap::Args;
use serde_json::{Map, Value, json};

use super::enqueue::{DueArgs, header, headers, put_body};
use super::invocation::print_json;
use super::remote::{Remote, segment};
use super::table::{body, cell, plain};
use super::{ClientCommand, CommandFailure, ServerArgs, when};

/// Identifies one message.
#[derive(Args, Debug)]
struct MessageArgs {
    /// The message's id; with --key, its queue
    #[arg(value_name = "ID|QUEUE")]
    name: String,
    /// The message's key
    #[arg(long, value_name = "K")]
    key: Option<String>,
}

impl MessageArgs {
    fn path(&self) -> Result<String, CommandFailure> {
        match &self.key {
            Some(key) => Ok(format!("/v1/queues/{}/keys/{}", segment(&self.name), segment(key))),
            None if !self.name.is_empty() && self.name.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(format!("/v1/messages/{}", self.name))
            }
            None => Err(CommandFailure::Usage(format!(
                "{:?} is not an id; for a message by its key use: {} --key K",
                self.name, self.name
            ))),
        }
    }
}

#[derive(Args, Debug)]
pub(super) struct GetArgs {
    #[command(flatten)]
    target: MessageArgs,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for GetArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let message = Remote::new(&self.server)?.get(&self.target.path()?)?;
        show(&message, self.server.json)
    }
}

#[derive(Args, Debug)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    target: MessageArgs,
    /// Also forget the answer to its dedupe id, so that the next enqueue with it is a new one
    #[arg(long)]
    forget_dedupe: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for CancelArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let (remote, path) = (Remote::new(&self.server)?, self.target.path()?);
        let answer = match self.forget_dedupe {
            true => remote.delete_with(&path, &json!({"forget_dedupe": true}))?,
            false => remote.delete(&path)?,
        };
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{answer}")?;
        } else {
            writeln!(out, "{}  cancelled", cell(&answer, "id"))?;
        }
        Ok(())
    }
}

#[derive(Args, Debug)]
pub(super) struct PostponeArgs {
    #[command(flatten)]
    target: MessageArgs,
    #[command(flatten)]
    when: DueArgs,
    /// A new body
    #[arg(long, value_name = "BODY", allow_hyphen_values = true)]
    body: Option<String>,
    /// A header, in place of all that the message has; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Remove all headers
    #[arg(long, conflicts_with = "header")]
    no_headers: bool,
    /// Send the message to this URL instead of to the target of its queue; a token needs the scope push-any
    #[arg(long, value_name = "URL")]
    target_url: Option<String>,
    /// Send the message to the target of its queue
    #[arg(long, conflicts_with = "target_url")]
    no_target_url: bool,
    /// A new priority; lower goes first
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// Number of attempts after which the message is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// A new length of a lease
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    lease: Option<crate::span::TimeSpan>,
    /// Only if the message has this generation
    #[arg(long, value_name = "N")]
    if_generation: Option<u32>,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for PostponeArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let mut request = Map::new();
        self.when.write(&mut request, None)?;
        if let Some(body) = self.body {
            put_body(&mut request, body.into_bytes());
        }
        if self.no_headers || !self.header.is_empty() {
            request.insert("headers".into(), headers(&self.header)?);
        }
        let mut put =
            |name: &str, value: Option<Value>| value.map(|value| request.insert(name.into(), value));
        put("target_url", self.target_url.map(Value::from).or(self.no_target_url.then_some(Value::Null)));
        put("priority", self.priority.map(Value::from));
        put("max_attempts", self.max_attempts.map(Value::from));
        put("lease_ms", self.lease.map(|span| span.0.into()));
        if request.is_empty() {
            let what = "nothing to change: give --delay, --at, --body, --header, --no-headers, --target-url, --no-target-url, \
                        --priority, --max-attempts or --lease; what is left out stays as it is";
            return Err(CommandFailure::Usage(what.into()));
        }
        if let Some(generation) = self.if_generation {
            request.insert("if_generation".into(), generation.into());
        }
        let answer = Remote::new(&self.server)?.patch(&self.target.path()?, &Value::Object(request))?;
        changed(&answer, "changed", self.server.json)
    }
}

#[derive(Args, Debug)]
pub(super) struct FireArgs {
    #[command(flatten)]
    target: MessageArgs,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for FireArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let path = format!("{}/fire", self.target.path()?);
        let answer = Remote::new(&self.server)?.post(&path, &json!({}))?;
        changed(&answer, "fired", self.server.json)
    }
}

#[derive(Args, Debug)]
pub(super) struct ReplayArgs {
    /// The id of a done or dead message
    id: String,
    /// The key of the new message; without it, it has none
    #[arg(long, value_name = "K")]
    key: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for ReplayArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let path = MessageArgs { name: self.id.clone(), key: None }.path()?;
        let request = self.key.map_or_else(|| json!({}), |key| json!({ "key": key }));
        let answer = Remote::new(&self.server)?.post(&format!("{path}/replay"), &request)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{answer}")?;
        } else {
            writeln!(out, "{}  enqueued with the content of {}", cell(&answer, "id"), self.id)?;
        }
        Ok(())
    }
}

fn changed(answer: &Value, what: &str, json: bool) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    if json {
        print_json(&mut out, answer)?;
    } else {
        writeln!(
            out,
            "{}  {what}, {}, due {}",
            cell(answer, "id"),
            cell(answer, "state"),
            when::due(answer)
        )?;
    }
    Ok(())
}

/// An attempt to deliver a message to a target: when, how long, how it ended, and what was answered.
fn delivery(tried: &Value) -> String {
    let answer = plain(tried["answer"].as_str().unwrap_or_default());
    let line = format!("{} in {} ms {} {answer}", cell(tried, "at"), cell(tried, "ms"), cell(tried, "class"));
    line.trim_end().to_owned()
}

/// Largest number of characters of a body that is shown.
const BODY_CHARS: usize = 2_000;

fn show(message: &Value, json: bool) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{message}")?;
        return Ok(());
    }
    for name in [
        "id",
        "queue",
        "key",
        "state",
        "outcome",
        "ended_at",
        "due_at",
        "attempt",
        "forgiven",
        "max_attempts",
        "generation",
        "priority",
        "lease_ms",
        "expires_at",
        "enqueued_at",
        "lease_until",
        "superseded_by",
        "dead_reason",
        "dead_at",
        "target_url",
    ] {
        if message.get(name).is_some_and(|value| !value.is_null()) {
            let text = cell(message, name);
            let note = match name {
                "due_at" | "ended_at" | "expires_at" | "enqueued_at" | "lease_until" | "dead_at" => {
                    format!("  {}", when::instant_told(message, name))
                }
                _ => String::new(),
            };
            writeln!(out, "{name:12} {text}{note}")?;
        }
    }
    for (name, value) in message["headers"].as_object().into_iter().flatten() {
        writeln!(out, "{:13}{}: {}", "header", plain(name), plain(value.as_str().unwrap_or_default()))?;
    }
    for past in message["history"].as_array().into_iter().flatten() {
        let note = past["note"].as_str().unwrap_or_default();
        writeln!(
            out,
            "{:13}attempt {} {} at {} {}",
            "history",
            past["attempt"],
            cell(past, "how"),
            cell(past, "ended_at"),
            plain(note)
        )?;
    }
    for tried in message["deliveries"].as_array().into_iter().flatten() {
        writeln!(out, "{:13}{}", "delivery", delivery(tried))?;
    }
    writeln!(out, "{:13}{}", "body", body(message, BODY_CHARS))?;
    Ok(())
}
