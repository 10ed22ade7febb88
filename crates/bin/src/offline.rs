//! `duewheel verify`, `inspect`, `restore` and `salvage`: data folders and shared stores, without a server.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use duewheel::core::message::{Kind, Row, Stage, State};
use duewheel::core::record::{ClockPair, Pause};
use duewheel::core::store::{QueueRow, StoreError};
use duewheel::core::time::{Now, WallMs};
use duewheel::core::{QueueName, ShardId};
use duewheel::{Restored, Salvaged, restore, salvage, salvage_shards};
use duewheel_api::rfc3339;
use duewheel_cli::table::{self, body_cell, counted, member};
use duewheel_cli::{CommandFailure, RunCommand, print_answer, queue_name, when};
use duewheel_server::config::StoreChoice;
use duewheel_server::restoring::{restore_to, target_of};
use duewheel_server::stored::{self, StoredShards};
use duewheel_store_log::{Damage, Inspected, VerifyReport, inspect_on, verify, verify_on};
use serde_json::{Value, json};

use crate::options::{StoreOptions, failure, for_its_store};

/// While a server has a shard its files change under the reader.
const ATTEMPTS: usize = 5;

#[derive(Args, Debug)]
#[command(mut_args = for_its_store)]
pub(crate) struct VerifyArgs {
    /// The data folder; no server may have it open. With --store redis://… or postgres://… all shards there are checked, which
    /// no node may own
    #[arg(value_name = "DATA-DIR", required_unless_present_any = ["store", "config"], conflicts_with_all = ["store", "config"])]
    folder: Option<PathBuf>,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for VerifyArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let failed =
            |data: &str, error: StoreError| CommandFailure::Failed(format!("cannot check {data}: {error}"));
        let (data, report) = match &self.folder {
            Some(folder) => {
                let data = folder.display().to_string();
                let report = verify(folder).map_err(|error| failed(&data, error))?;
                (data, report)
            }
            None => {
                let shards = stored::open(&self.store.settings()?).map_err(failure)?;
                let report = verify_shards(&shards).map_err(|error| failed("the store", error))?;
                ("the store".to_owned(), report)
            }
        };
        print_answer(self.json, &as_json(&report), |out| {
            report.problems.iter().try_for_each(|problem| writeln!(out, "{problem}"))?;
            let VerifyReport { files, bytes, records, messages, pending, unproven_groups, .. } = report;
            let files = counted(files, "file");
            write!(out, "{files}, {bytes} bytes with the unused space of journal segments, ")?;
            write!(out, "{} in the journal", counted(records, "record"))?;
            if report.problems.is_empty() {
                write!(out, ", {} pending", counted(pending, "message"))?;
                if messages > pending {
                    write!(out, ", {} kept beside them", counted(messages - pending, "record"))?;
                }
            }
            writeln!(out)?;
            if unproven_groups > 0 {
                writeln!(
                    out,
                    "{unproven_groups} groups at the end may not be on the disk; the next start writes them again"
                )?;
            }
            Ok(())
        })?;
        match report.problems.len() {
            0 => Ok(()),
            1 => Err(CommandFailure::Failed(format!("{data} is damaged: 1 problem"))),
            n => Err(CommandFailure::Failed(format!("{data} is damaged: {n} problems"))),
        }
    }
}

/// Checks all shards of a store.
fn verify_shards(shards: &StoredShards) -> Result<VerifyReport, StoreError> {
    shards.unowned()?;
    let mut all = VerifyReport::default();
    for shard in (0..shards.count()).map(ShardId) {
        let disk = shards.disk(shard)?;
        if disk.list("").is_ok_and(|names| names.is_empty()) {
            if shards.has_lost_all(shard)? {
                let what = "the shard has had files, and has none: all that it held is lost";
                let (file, what) = (format!("shard {shard}"), what.to_owned());
                all.problems.push(Damage { file, offset: 0, what });
            }
            continue;
        }
        let VerifyReport { files, bytes, records, messages, pending, unproven_groups, problems } =
            verify_on(&*disk)?;
        all.files += files;
        all.bytes += bytes;
        all.records += records;
        all.messages += messages;
        all.pending += pending;
        all.unproven_groups += unproven_groups;
        all.problems.extend(
            problems
                .into_iter()
                .map(|damage| Damage { file: format!("shard {shard}: {}", damage.file), ..damage }),
        );
    }
    Ok(all)
}

fn as_json(report: &VerifyReport) -> Value {
    let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    json!({
        "files": report.files, "bytes": report.bytes, "records": report.records, "messages": report.pending,
        "kept": report.messages.saturating_sub(report.pending), "unproven_groups": report.unproven_groups,
        "problems": problems,
    })
}

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
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
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for InspectArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let shards = stored::open(&self.store.settings()?).map_err(failure)?;
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
    let rows: Vec<Value> =
        shards.iter().flat_map(|(shard, inspected)| queues(*shard, &inspected.queues)).collect();
    let of_shard = |(shard, inspected): &(ShardId, Inspected)| json!({ "shard": shard.0, "epoch": inspected.epoch.0, "records": inspected.last.0 });
    let of_shards: Vec<Value> = shards.iter().map(of_shard).collect();
    print_answer(json, &json!({ "shards": of_shards, "queues": rows }), |out| {
        let columns: [table::Column<'_>; 6] = [
            ("SHARD", &member("shard")),
            ("QUEUE", &member("queue")),
            ("MESSAGES", &member("messages")),
            ("DEAD", &member("dead")),
            ("DONE", &member("done")),
            ("PAUSED", &member("paused")),
        ];
        table::print_rows(out, &rows, &columns)?;
        shards.iter().try_for_each(|(shard, inspected)| {
            writeln!(out, "shard {shard}: epoch {}, {} records so far", inspected.epoch.0, inspected.last.0)
        })
    })
}

/// The queues of users. What has ended and is kept is `done` of its queue, as over HTTP; the server's own are not
/// shown.
fn queues(shard: ShardId, rows: &[QueueRow]) -> Vec<Value> {
    let mut shown: BTreeMap<&str, (Option<&QueueRow>, u64)> = BTreeMap::new();
    for row in rows {
        match row.name.done_of() {
            Some(_) if row.name.is_of_act() => {}
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
    print_answer(json, &json!({ "messages": messages }), |out| {
        let columns: [table::Column<'_>; 7] = [
            ("SHARD", &member("shard")),
            ("ID", &member("id")),
            ("STATE", &member("state")),
            ("DUE", &when::due),
            ("KEY", &member("key")),
            ("ATTEMPT", &member("attempt")),
            ("BODY", &body_cell),
        ];
        table::print_rows(out, &messages, &columns)
    })
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
        "due_at": rfc3339::string(due), "key": key.map(|key| key.as_str()),
        "attempt": row.life.attempt, "body": String::from_utf8_lossy(&row.message.body),
    })
}

#[derive(Args, Debug)]
#[command(mut_args = for_its_store)]
pub(crate) struct RestoreArgs {
    /// The copy, made by `duewheel backup`
    #[arg(value_name = "SRC")]
    src: PathBuf,
    /// The new data folder: empty, or missing. Without it --store redis://… or postgres://… names the store to restore
    /// to, which must be empty: it gets as many shards as the copy has
    #[arg(value_name = "DATA-DIR", conflicts_with_all = ["store", "config"])]
    folder: Option<PathBuf>,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for RestoreArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let json = self.json;
        let (restored, place) = self.restored()?;
        let Restored { messages, tokens_ended, files, bytes, records } = restored;
        let (name, value) = place;
        let result = json!({
            "messages": messages, "tokens_ended": tokens_ended, "files": files, "bytes": bytes, "records": records,
            name: value,
        });
        print_answer(json, &result, |out| {
            let (messages, files) = (counted(messages, "message"), counted(files, "file"));
            writeln!(out, "{messages} pending, restored from {files}, {bytes} bytes")?;
            tell_ended(out, tokens_ended)
        })
    }
}

/// Tells how many leases of the original have ended.
fn tell_ended(out: &mut dyn Write, tokens: u64) -> io::Result<()> {
    match tokens {
        0 => Ok(()),
        n => writeln!(out, "{} of the original no longer accepted", counted(n, "lease token")),
    }
}

impl RestoreArgs {
    /// The result, and what the JSON says of the place: the folder, or the number of shards of the store.
    fn restored(self) -> Result<(Restored, (&'static str, Value)), CommandFailure> {
        if let Some(data) = self.folder {
            let restored = restore(&self.src, &data).map_err(CommandFailure::failed)?;
            return Ok((restored, ("data", json!(data.to_string_lossy()))));
        }
        let Some(store) = target_of(&self.store.settings()?).map_err(failure)? else {
            let what = "give DATA-DIR, the new data folder; or --store redis://… or postgres://…";
            return Err(CommandFailure::Usage(what.to_owned()));
        };
        let (restored, shards) = restore_to(&*store, &self.src)
            .map_err(|error| CommandFailure::Failed(format!("cannot restore to the store: {error}")))?;
        Ok((restored, ("shards", json!(shards))))
    }
}

#[derive(Args, Debug)]
#[command(mut_args = for_its_store)]
pub(crate) struct SalvageArgs {
    /// The damaged data folder, which no server may have open and which is never written to. With --store redis://… or
    /// postgres://… it is left out: all shards there are read, which no node may own
    #[arg(value_name = "[SRC] DEST")]
    first: PathBuf,
    /// The new data folder, which must not exist
    #[arg(value_name = "DEST", conflicts_with_all = ["store", "config"], hide = true)]
    second: Option<PathBuf>,
    /// Print the result as JSON, and an error as one JSON object on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOptions,
}

impl RunCommand for SalvageArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let json = self.json;
        let (src, dest, salvaged) = self.salvaged()?;
        let report = salvaged.report;
        let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
        let losses = report.losses.iter();
        let losses: Vec<Value> =
            losses.map(|loss| json!({ "kind": loss.as_str(), "what": loss.to_string() })).collect();
        let kept = report.messages.saturating_sub(report.pending);
        let result = json!({
            "data": dest.to_string_lossy(), "messages": report.pending, "kept": kept, "answers": report.answers,
            "tokens_ended": salvaged.tokens_ended, "damage": damage, "losses": losses,
        });
        print_answer(json, &result, |out| {
            damage.iter().try_for_each(|problem| writeln!(out, "damaged: {problem}"))?;
            report.losses.iter().try_for_each(|loss| writeln!(out, "lost: {loss}"))?;
            write!(out, "{} salvaged", counted(report.pending, "message"))?;
            match kept {
                0 => writeln!(out)?,
                kept => writeln!(out, ", and {} kept beside them", counted(kept, "record"))?,
            }
            tell_ended(out, salvaged.tokens_ended)
        })?;
        match report.losses.len() {
            0 => Ok(()),
            n => {
                let dest = dest.display();
                Err(CommandFailure::Failed(format!("{dest} is complete, but for {n} losses of {src}")))
            }
        }
    }
}

impl SalvageArgs {
    /// Salvages the source; returns its name, the folder that was made, and the result.
    fn salvaged(self) -> Result<(String, PathBuf, Salvaged), CommandFailure> {
        match (self.first, self.second) {
            (src, Some(dest)) => {
                let salvaged = salvage(&src, &dest).map_err(CommandFailure::failed)?;
                Ok((src.display().to_string(), dest, salvaged))
            }
            (dest, None) => {
                let settings = self.store.settings()?;
                if matches!(settings.store, StoreChoice::Log { .. }) {
                    let what =
                        "give SRC, the damaged data folder, and DEST, the new one; or --store URL and DEST";
                    return Err(CommandFailure::Usage(what.to_owned()));
                }
                let shards = stored::open(&settings).map_err(failure)?;
                let salvaged = salvage_stored(&shards, &dest)
                    .map_err(|error| CommandFailure::Failed(format!("cannot salvage the store: {error}")))?;
                Ok(("the store".to_owned(), dest, salvaged))
            }
        }
    }
}

/// Salvages all shards of a store on a server.
fn salvage_stored(shards: &StoredShards, dest: &Path) -> Result<Salvaged, StoreError> {
    shards.unowned()?;
    let disks =
        (0..shards.count()).map(|shard| shards.disk(ShardId(shard))).collect::<Result<Vec<_>, _>>()?;
    salvage_shards(&disks, dest)
}
