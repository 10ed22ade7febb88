//! `duewheel queue QUEUE`: one queue in full; `duewheel queue rm QUEUE`: removes it.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use duewheel::core::QueueName;
use jiff::Zoned;
use serde::Deserialize as _;
use serde_json::Value;

use super::confirm::confirm;
use super::remote::{ApiError, Remote, segment};
use super::table::{cell, cell_counted, counted};
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::hourly::HourlyRate;
use crate::span::TimeSpan;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct QueueArgs {
    #[command(subcommand)]
    act: Option<QueueCommand>,
    #[command(flatten)]
    shown: ShownArgs,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Remove a queue, with its messages, settings and pause
    Rm(RemoveArgs),
}

#[derive(Args, Debug)]
struct ShownArgs {
    /// The queue; one that is called `rm` goes behind `--`
    #[arg(value_parser = queue_name, required = true)]
    queue: Option<QueueName>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for QueueArgs {
    fn server(&self) -> &ServerArgs {
        match &self.act {
            Some(QueueCommand::Rm(remove)) => &remove.server,
            None => &self.shown.server,
        }
    }

    fn run(self) -> Result<(), CommandFailure> {
        match (self.act, self.shown.queue) {
            (Some(QueueCommand::Rm(remove)), _) => remove.run(),
            (None, Some(queue)) => show(&queue, &self.shown.server),
            (None, None) => Err(CommandFailure::Usage("name a queue".to_owned())),
        }
    }
}

impl RemoveArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let (remote, path) = (Remote::new(&self.server)?, path(&self.queue));
        if !self.yes {
            let counts = remote.get(&path)?["counts"].take();
            let count = |state: &str| counts[state].as_u64().unwrap_or(0);
            let doomed = count("scheduled") + count("ready") + count("dead");
            confirm(&format!(
                "remove the queue {} and its {} for ever",
                self.queue,
                counted(doomed, "message")
            ))?;
        }
        let answer = remote.delete(&path)?;
        let mut out = io::stdout().lock();
        if self.server.json {
            writeln!(out, "{answer}")?;
        } else {
            let purged = cell_counted(&answer, "purged", "message");
            writeln!(out, "{}  removed, with {purged}", self.queue)?;
        }
        Ok(())
    }
}

fn show(name: &QueueName, server: &ServerArgs) -> Result<(), CommandFailure> {
    let remote = Remote::new(server)?;
    let queue = remote.get(&path(name))?;
    let mut out = io::stdout().lock();
    if server.json {
        writeln!(out, "{queue}")?;
        return Ok(());
    }
    let mut line = |name: &str, text: &dyn std::fmt::Display| writeln!(out, "{name:<18}{text}");
    line("queue", &cell(&queue, "queue"))?;
    for state in ["scheduled", "ready", "leased", "dead"] {
        line(state, &cell(&queue["counts"], state))?;
    }
    if queue["counts"]["estimated"] == true {
        line("", &"scheduled and ready are exact together; how they are split is an estimate")?;
    }
    let overdue = queue["oldest_overdue"].as_str().map(|at| when::told(at, &Zoned::now()));
    line("oldest overdue", &overdue.as_deref().unwrap_or("-"))?;
    let paused = match (queue["paused"].as_bool(), queue["pause_left_ms"].as_u64()) {
        (Some(true), Some(ms)) => format!("yes, for {} more", TimeSpan(ms)),
        (Some(true), None) => "yes, until it is resumed".to_owned(),
        _ => "no".to_owned(),
    };
    line("paused", &paused)?;
    let attended = if queue["attended"] == true { "yes" } else { "no consumer has reserved since the start" };
    line("attended", &attended)?;
    line("waiting reserves", &cell(&queue, "waiters"))?;
    for (name, rate) in [("enqueued/s", "enqueued"), ("granted/s", "granted"), ("acked/s", "acked")] {
        line(name, &cell(&queue["rates"], rate))?;
    }
    for (name, total) in queue["totals"].as_object().into_iter().flatten() {
        line(&format!("total {}", name.replace('_', " ")), total)?;
    }
    drop(out);
    // The values in effect need the scope `admin`.
    match remote.get(&format!("{}/config", path(name))) {
        Ok(shown) => show_settings(&shown["config"], Some(&shown["effective"])),
        Err(ApiError::Refused(refusal)) if refusal.code == "forbidden" => {
            show_settings(&queue["config"], None)
        }
        Err(trouble) => Err(trouble.into()),
    }
}

/// Reads the name of a queue.
pub(super) fn queue_name(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(|what| what.to_string())
}

/// The path of a queue.
pub(super) fn path(queue: &QueueName) -> String {
    format!("/v1/queues/{}", segment(queue.as_str()))
}

/// The text for a setting that the queue does not have.
const DEFAULT: &str = "default";

/// The text for a setting that is in effect without a value.
fn without(name: &str) -> &'static str {
    match name {
        "dead-ttl" | "expires-in" => "never",
        "keep-done" => "not kept",
        _ => "no limit",
    }
}

/// Prints the settings of a queue, and those that are in effect without it, where they are known.
pub(super) fn show_settings(config: &Value, effective: Option<&Value>) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    let set = settings(config);
    let Some(effective) = effective else {
        return Ok(set.iter().try_for_each(|(name, text)| writeln!(out, "--{name:<16}{text}"))?);
    };
    for ((name, effective), (_, set)) in settings(effective).into_iter().zip(set) {
        let origin = if set == DEFAULT { "  (default)" } else { "" };
        let effective = if effective == DEFAULT { without(name) } else { &*effective };
        writeln!(out, "--{name:<16}{effective}{origin}")?;
    }
    if !config["target"].is_null() {
        writeln!(out, "--{:<16}{}", "target", cell(config, "target"))?;
    }
    Ok(())
}

/// The settings of a queue, each named as the option of `duewheel config` that sets it.
fn settings(config: &Value) -> Vec<(&'static str, String)> {
    // Settings that the queue does not have are the server's defaults.
    let default = || DEFAULT.to_owned();
    let time = |value: &Value| value.as_u64().map_or_else(default, |ms| TimeSpan(ms).to_string());
    let plain = |name: &str| if config[name].is_null() { default() } else { cell(config, name) };
    let number = |value: &Value| value.as_u64().map_or_else(default, |n| n.to_string());
    let rate =
        |value: &Value| HourlyRate::deserialize(value).map_or_else(|_| default(), |rate| rate.to_string());
    let backoff = match &config["backoff"] {
        Value::Null => default(),
        times => format!("{}..{}", time(&times["min_ms"]), time(&times["max_ms"])),
    };
    vec![
        ("lease", time(&config["lease_ms"])),
        ("max-attempts", plain("max_attempts")),
        ("priority", plain("priority")),
        ("backoff", backoff),
        ("dedupe-window", time(&config["dedupe_window_ms"])),
        ("dead-ttl", time(&config["dead_ttl_ms"])),
        ("order", plain("order")),
        ("rate", rate(&config["rate"]["per_second"])),
        ("burst", number(&config["rate"]["burst"])),
        ("catchup-rate", rate(&config["catchup_rate"])),
        ("concurrency", plain("concurrency")),
        ("expires-in", time(&config["expires_in_ms"])),
        ("on-expiry", plain("on_expiry")),
        ("keep-done", time(&config["keep_done_ms"])),
        ("trace", plain("trace")),
    ]
}
