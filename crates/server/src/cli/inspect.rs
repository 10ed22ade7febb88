//! `duewheel inspect`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use duewheel::core::message::{Kind, Row, Stage, State};
use duewheel::core::record::{ClockPair, Pause};
use duewheel::core::store::QueueRow;
use duewheel::core::time::{Now, WallMs};
use duewheel::core::{QueueName, ShardId};
use duewheel_store_log::{Inspected, inspect_on};
use serde_json::{Value, json};

use super::invocation::print_json;
use super::queue::queue_name;
use super::table::{self, body, cell};
use super::{CommandEnd, CommandFailure, when};
use crate::config::Options;
use crate::stored::{self, StoredShards};

/// While a server has a shard its files change under the reader.
const ATTEMPTS: usize = 5;
const BODY_CHARS: usize = 40;

/// The options of `serve` for the place of the store; the others are not used.
#[derive(Args, Debug)]
pub(super) struct InspectArgs {
    /// Show messages of this queue, in any state, instead of the queues
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    queue: Option<QueueName>,
    /// Show this shard alone
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
    /// Largest number of messages
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    /// The TOML file of `serve`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl InspectArgs {
    pub(super) fn run(self) -> CommandEnd {
        CommandEnd { json: self.json, result: self.inspect() }
    }

    fn inspect(self) -> Result<(), CommandFailure> {
        let file = self.config.as_deref().map(Options::from_file).transpose()?;
        let shards = stored::open(&self.options.over(file.unwrap_or_default()).settings()?)?;
        let chosen = match self.shard {
            Some(shard) if shard >= shards.count() => {
                let what =
                    format!("--shard {shard}: there are shards 0 to {}", shards.count().saturating_sub(1));
                return Err(CommandFailure::Usage(what));
            }
            Some(shard) => vec![ShardId(shard)],
            None => (0..shards.count()).map(ShardId).collect(),
        };
        let inspected = chosen.into_iter().map(|shard| Ok((shard, inspected(&shards, shard)?)));
        let inspected = inspected.collect::<Result<Vec<_>, CommandFailure>>()?;
        match &self.queue {
            Some(queue) => show_messages(&inspected, queue, self.limit, self.json),
            None => show_queues(&inspected, self.json),
        }
    }
}

/// Reads a shard; again if a file was gone when it was read.
fn inspected(shards: &StoredShards, shard: ShardId) -> Result<Inspected, CommandFailure> {
    let disk = shards.disk(shard).map_err(CommandFailure::failed)?;
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match inspect_on(&*disk) {
            Ok(inspected) => return Ok(inspected),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(String::new, |error| error.to_string());
    Err(CommandFailure::Failed(format!("shard {shard} cannot be read: {why}")))
}

fn show_queues(shards: &[(ShardId, Inspected)], json: bool) -> Result<(), CommandFailure> {
    let mut out = io::stdout().lock();
    let rows: Vec<Value> =
        shards.iter().flat_map(|(shard, inspected)| queues(*shard, &inspected.queues)).collect();
    if json {
        let of_shard = |(shard, inspected): &(ShardId, Inspected)| json!({ "shard": shard.0, "epoch": inspected.epoch.0, "records": inspected.last.0 });
        let shards: Vec<Value> = shards.iter().map(of_shard).collect();
        print_json(&mut out, &json!({ "shards": shards, "queues": rows }))?;
        return Ok(());
    }
    let columns = ["shard", "queue", "messages", "dead", "done", "paused"];
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|name| cell(row, name)).collect()).collect();
    table::print(&mut out, &["SHARD", "QUEUE", "MESSAGES", "DEAD", "DONE", "PAUSED"], &rows)?;
    for (shard, inspected) in shards {
        writeln!(out, "shard {shard}: epoch {}, {} records so far", inspected.epoch.0, inspected.last.0)?;
    }
    Ok(())
}

/// The queues of users. What has ended and is kept is `done` of its queue, as over HTTP; the server's own are not
/// shown.
fn queues(shard: ShardId, rows: &[QueueRow]) -> Vec<Value> {
    let mut shown: BTreeMap<&str, (Option<&QueueRow>, u64)> = BTreeMap::new();
    for row in rows {
        match row.name.done_of() {
            Some(queue) => shown.entry(queue).or_default().1 = row.tally.count(),
            None if row.name.is_system() => {}
            None => shown.entry(row.name.as_str()).or_default().0 = Some(row),
        }
    }
    let as_queue = |(name, (row, done)): (&str, (Option<&QueueRow>, u64))| {
        json!({
            "shard": shard.0, "queue": name, "messages": row.map_or(0, |row| row.tally.count()),
            "dead": row.map_or(0, |row| row.tally.part(Kind::Dead).count), "done": done,
            "paused": row.is_some_and(|row| row.pause != Pause::Running),
        })
    };
    shown.into_iter().map(as_queue).collect()
}

fn show_messages(
    shards: &[(ShardId, Inspected)],
    queue: &QueueName,
    limit: usize,
    json: bool,
) -> Result<(), CommandFailure> {
    let mut messages: BTreeMap<(u64, u64), Value> = BTreeMap::new();
    for (shard, inspected) in shards {
        let rows = inspected.rows(Some(queue), limit).map_err(CommandFailure::failed)?;
        let now = now(inspected);
        messages.extend(rows.iter().map(|row| {
            let due = now.wall_of(row.life.due);
            ((due.0, row.message.id.0), as_message(*shard, row, due, now))
        }));
    }
    let messages: Vec<Value> = messages.into_values().take(limit).collect();
    let mut out = io::stdout().lock();
    if json {
        print_json(&mut out, &json!({ "messages": messages }))?;
        return Ok(());
    }
    let row = |message: &Value| {
        vec![
            cell(message, "shard"),
            cell(message, "id"),
            cell(message, "state"),
            when::due(message),
            cell(message, "key"),
            cell(message, "attempt"),
            body(message, BODY_CHARS),
        ]
    };
    let rows: Vec<Vec<String>> = messages.iter().map(row).collect();
    table::print(&mut out, &["SHARD", "ID", "STATE", "DUE", "KEY", "ATTEMPT", "BODY"], &rows)?;
    Ok(())
}

/// The present time by both clocks, from the pair that the shard has recorded last. This pair has the wall clock
/// rounded up, of readings that are never whole milliseconds; the server shows instants by the reading rounded down.
fn now(inspected: &Inspected) -> Now {
    let wall = WallMs(WallMs::from_system_time_up(SystemTime::now()).0.saturating_sub(1));
    let Some(clock) = inspected.clock else { return Now { wall, ..Now::default() } };
    let recorded = ClockPair { wall: WallMs(clock.wall.0.saturating_sub(1)), ..clock };
    // A wall clock that went back does not count, and the distance of the clocks is what was recorded.
    let engine = recorded.engine_at(wall);
    let wall = recorded.wall.0.saturating_add(engine.0.saturating_sub(recorded.engine.0));
    Now::whole(engine.0, wall)
}

fn as_message(shard: ShardId, row: &Row, due: WallMs, now: Now) -> Value {
    let state = match &row.life.stage {
        Stage::Waiting { .. } if now.is_due(row.life.due) => State::Ready,
        Stage::Waiting { .. } => State::Scheduled,
        Stage::Leased(_) => State::Leased,
        Stage::Dead { .. } => State::Dead,
    };
    let key = row.life.key_of(&row.message);
    json!({
        "shard": shard.0, "id": row.message.id.0.to_string(), "state": state.as_str(),
        "due_at": crate::rfc3339::string(due), "key": key.map(|key| key.as_str()),
        "attempt": row.life.attempt, "body": String::from_utf8_lossy(&row.message.body),
    })
}
