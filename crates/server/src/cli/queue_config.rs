//! `duewheel config QUEUE`: shows the settings of a queue, or changes those that are named.

use std::io::{self, Write};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use duewheel::core::QueueName;
use serde_json::{Map, Value, json};

use super::queue::{path, queue_name, settings};
use super::remote::Remote;
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::span::TimeSpan;

#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    change: ChangeArgs,
    /// Set everything that is not named to the server's default
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// What is to be changed.
#[derive(Args, Debug)]
#[group(id = "change", multiple = true)]
struct ChangeArgs {
    /// Length of a lease
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    lease: Option<TimeSpan>,
    /// Number of attempts after which a message is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Priority; lower goes first
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// Shortest and longest time until the next attempt, such as 1s..1h
    #[arg(long, value_name = "TIME..TIME")]
    backoff: Option<BackoffArg>,
    /// How long a dedupe id is remembered
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    dedupe_window: Option<TimeSpan>,
    /// How long a dead message is kept
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    dead_ttl: Option<TimeSpan>,
    /// Order of ready messages of equal priority
    #[arg(long, value_name = "ORDER")]
    order: Option<OrderArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderArg {
    /// By due time
    Due,
    /// As they were accepted
    Arrival,
}

/// `MIN..MAX`, or one time for both.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackoffArg {
    min: TimeSpan,
    max: TimeSpan,
}

impl FromStr for BackoffArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        Ok(BackoffArg { min: when::span(min)?, max: when::span(max)? })
    }
}

impl BackoffArg {
    pub(super) fn json(self) -> Value {
        json!({"min_ms": self.min.0, "max_ms": self.max.0})
    }
}

impl ChangeArgs {
    fn json(&self) -> Map<String, Value> {
        let mut named = Map::new();
        let mut put = |name: &str, value: Option<Value>| value.map(|value| named.insert(name.into(), value));
        put("lease_ms", self.lease.map(|time| time.0.into()));
        put("max_attempts", self.max_attempts.map(Value::from));
        put("priority", self.priority.map(Value::from));
        put("backoff", self.backoff.map(BackoffArg::json));
        put("dedupe_window_ms", self.dedupe_window.map(|time| time.0.into()));
        put("dead_ttl_ms", self.dead_ttl.map(|time| time.0.into()));
        let order = self.order.map(|order| match order {
            OrderArg::Due => "due",
            OrderArg::Arrival => "arrival",
        });
        put("order", order.map(Value::from));
        named
    }
}

impl ClientCommand for ConfigArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(&self.server)?;
        let path = path(&self.queue);
        let named = self.change.json();
        let config = if named.is_empty() && !self.reset {
            remote.get(&path)?["config"].take()
        } else {
            // The call replaces all settings.
            let mut all = if self.reset { Map::new() } else { current(&remote, &path)? };
            all.extend(named);
            remote.put(&format!("{path}/config"), &Value::Object(all))?["config"].take()
        };
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{config}")?;
            return Ok(());
        }
        for (name, text) in settings(&config) {
            writeln!(out, "--{name:<16}{text}")?;
        }
        Ok(())
    }
}

fn current(remote: &Remote, path: &str) -> Result<Map<String, Value>, CommandFailure> {
    match remote.get(path)?["config"].take() {
        Value::Object(config) => Ok(config.into_iter().filter(|(_, value)| !value.is_null()).collect()),
        _ => Err(CommandFailure::failed("the server does not tell the settings of the queue")),
    }
}
