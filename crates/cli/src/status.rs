//! `duewheel status`, `audit`, `health`, `quotas`, `clock advance`, `histogram [QUEUE]` and `backup DEST`: a server as a whole.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use duewheel_client::segment;
use duewheel_core::QueueName;
use jiff::{Timestamp, Zoned};
use serde_json::{Value, json};

use super::failure::CommandFailure;
use super::failure::exit_code;
use super::queue::{path, queue_name};
use super::remote::Remote;
use super::session::{ClientArgs, ClientCommand, ClientSession, RunCommand};
use super::table::{self, cell, cell_counted, counted, elements, member, plain, texts};
use super::when::{self, Millis};

/// How long the events on the way may take when the clock is moved.
const EVENTS: Duration = Duration::from_secs(600);
/// The time limit of a copy: practically none, because the connection shows when the server is gone.
const LONG: Duration = Duration::from_secs(7 * 86_400);
const OWNER_ONLY: u32 = 0o700;
/// Characters of the longest bar.
const WIDTH: u64 = 50;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

#[derive(Args, Debug)]
pub(super) struct HealthArgs {}

impl ClientCommand for HealthArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let (healthy, health) = session.remote.get_any("/healthz")?;
        session.print(&health, |out| {
            for (name, value) in health.as_object().into_iter().flatten() {
                let text = value.as_str().map_or_else(|| value.to_string(), plain);
                writeln!(out, "{name:<22}{text}")?;
            }
            Ok(())
        })?;
        if healthy { Ok(()) } else { Err(CommandFailure::Said(exit_code::FAILED)) }
    }
}

#[derive(Args, Debug)]
pub(super) struct StatusArgs {}

impl ClientCommand for StatusArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let status = session.remote.get("/v1/status")?;
        session.print(&status, |out| {
            for (name, value) in status.as_object().into_iter().flatten() {
                let text = match value {
                    Value::Object(members) => {
                        let member = |(name, _): (&String, &Value)| format!("{name} {}", cell(value, name));
                        members.iter().map(member).collect::<Vec<_>>().join(", ")
                    }
                    Value::Array(all) => {
                        let one = |of: &Value| of.as_str().map_or_else(|| of.to_string(), plain);
                        all.iter().map(one).collect::<Vec<_>>().join("\n            ")
                    }
                    _ => cell(&status, name),
                };
                writeln!(out, "{name:<12}{text}")?;
            }
            Ok(())
        })
    }
}

#[derive(Args, Debug)]
pub(super) struct AuditArgs {
    /// Largest number of acts
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
    /// The `next` of the page before
    #[arg(long, value_name = "NEXT")]
    after: Option<String>,
}

impl ClientCommand for AuditArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let after = self.after.map(|after| format!("&after={}", segment(&after))).unwrap_or_default();
        let answer = session.remote.get(&format!("/v1/audit?limit={}{after}", self.limit))?;
        let count = |act: &Value| match (&act["job"], &act["count"]) {
            (Value::String(_), Value::Null) => "running".to_owned(),
            _ => cell(act, "count"),
        };
        let columns: [table::Column<'_>; 7] = [
            ("AT", &member("at")),
            ("ACT", &member("act")),
            ("OBJECT", &member("object")),
            ("COUNT", &count),
            ("TOKEN", &member("token")),
            ("ADDRESS", &member("address")),
            ("REQUEST", &member("request_id")),
        ];
        session.print(&answer, |out| table::print_rows(out, elements(&answer, "acts"), &columns))
    }
}

#[derive(Args, Debug)]
pub(super) struct QuotasArgs {}

impl ClientCommand for QuotasArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let answer = session.remote.get("/v1/quotas")?;
        let mut rows = Vec::new();
        for quota in elements(&answer, "quotas") {
            for resource in ["messages", "bytes", "leases", "enqueues_per_second"] {
                let of = &quota[resource];
                if !of["limit"].is_null() {
                    let [limit, used, refused] = ["limit", "used", "refused"].map(|name| cell(of, name));
                    rows.push(vec![cell(quota, "prefix"), resource.replace('_', " "), limit, used, refused]);
                }
            }
        }
        session.print(&answer, |out| {
            table::print(out, &["PREFIX", "RESOURCE", "LIMIT", "USED", "REFUSED"], &rows)
        })
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum ClockCommand {
    /// Let time pass at once
    Advance(ClientArgs<AdvanceArgs>),
}

#[derive(Args, Debug)]
pub(super) struct AdvanceArgs {
    /// How much
    #[arg(value_name = "TIME")]
    by: Millis,
}

impl RunCommand for ClockCommand {
    fn run(self) -> Result<(), CommandFailure> {
        let ClockCommand::Advance(args) = self;
        args.with(|AdvanceArgs { by }, session| {
            let answer = session.remote.post_waiting("/v1/clock/advance", &json!({"by_ms": by}), EVENTS)?;
            let now = cell(&answer, "now");
            let here = when::calendar(&now).map(|here| format!("{here} ")).unwrap_or_default();
            session.say(&answer, format_args!("it is {here}for the server ({now})"))
        })
    }
}

#[derive(Args, Debug)]
pub(super) struct HistogramArgs {
    /// The queue [default: all queues]
    #[arg(value_parser = queue_name)]
    queue: Option<QueueName>,
    /// Where the first bar begins [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// Where the last bar ends [default: a day later]
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// Number of bars
    #[arg(long, value_name = "N", default_value_t = 24)]
    buckets: u32,
}

impl ClientCommand for HistogramArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let of = self.queue.as_ref().map_or_else(|| "/v1".to_owned(), path);
        let mut path = format!("{of}/histogram?buckets={}", self.buckets);
        let now = Zoned::now();
        for (name, text) in [("from", &self.from), ("to", &self.to)] {
            if let Some(text) = text {
                let instant = when::instant_of(&format!("--{name}"), text, &now)?;
                path.push_str(&format!("&{name}={}", segment(&instant)));
            }
        }
        let answer = session.remote.get(&path)?;
        session.print(&answer, |out| draw(out, &answer, &now))
    }
}

/// Draws a bar for each bucket, all to one scale; the ends are counted without a bar.
fn draw(out: &mut dyn Write, answer: &Value, now: &Zoned) -> io::Result<()> {
    let width_ms = answer["width_ms"].as_u64().unwrap_or(0);
    let format = match width_ms {
        0..60_000 => "%a %H:%M:%S",
        60_000..86_400_000 => "%a %-d %b %H:%M",
        _ => "%Y-%m-%d",
    };
    let none = Vec::new();
    let buckets = answer["buckets"].as_array().unwrap_or(&none);
    let count = |bucket: &Value| bucket["count"].as_u64().unwrap_or(0);
    let most = buckets.iter().map(count).max().unwrap_or(0).max(1);
    let digits = most.to_string().len().max(5);
    let total: u64 = buckets.iter().map(count).sum();
    for bucket in buckets {
        let from = bucket["from"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let from = from.map(|at| at.to_zoned(now.time_zone().clone()).strftime(format).to_string());
        let count = count(bucket);
        writeln!(out, "{:<18} {count:>digits$}  {}", from.unwrap_or_default(), bar(count, most))?;
    }
    let outside = |name: &str| answer[name].as_u64().unwrap_or(0);
    writeln!(
        out,
        "{}; {} due before, {} after; times of {}",
        counted(total, "message"),
        outside("before"),
        outside("after"),
        when::zone_name(now)
    )
}

/// A bar of eighths of characters; whatever is not nothing is seen.
fn bar(count: u64, most: u64) -> String {
    let eighths = (u128::from(count) * u128::from(WIDTH) * 8).div_ceil(u128::from(most));
    let (whole, part) =
        (usize::try_from(eighths / 8).unwrap_or(0), usize::try_from(eighths % 8).unwrap_or(0));
    format!("{}{}", "█".repeat(whole), EIGHTHS[part])
}

#[derive(Args, Debug)]
pub(super) struct BackupArgs {
    /// The destination folder, on the server's machine: empty, with mode 0700 and of the server's user, or missing;
    /// then it is created
    #[arg(value_name = "DEST")]
    dest: PathBuf,
}

impl ClientCommand for BackupArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let usage = |what: &str| CommandFailure::Usage(format!("DEST {}: {what}", self.dest.display()));
        let dest = std::path::absolute(&self.dest).map_err(|error| usage(&error.to_string()))?;
        let dest = dest.to_str().ok_or_else(|| usage("is not UTF-8"))?;
        let copied = ask(&session.remote, dest)?;
        session.print(&copied, |out| {
            let (files, bytes, linked) =
                (cell_counted(&copied, "files", "file"), cell(&copied, "bytes"), cell(&copied, "linked"));
            write!(out, "{files}, {bytes} bytes without the unused space of journal segments")?;
            if linked != "0" {
                write!(out, "; {linked} of the files are linked, not copied")?;
            }
            writeln!(out, "\nthey are in {} on the machine of {}", cell(&copied, "dest"), session.server)
        })
    }
}

/// Asks for the copy. A server without `--backup-root` creates no folder for a remote caller, so the folder is created
/// here, with the rights of the user.
fn ask(remote: &Remote, dest: &str) -> Result<Value, CommandFailure> {
    let backup = || remote.post_waiting("/v1/backup", &json!({ "dest": dest }), LONG);
    let refused = match backup() {
        Err(refused) if refused.text("field") == Some("dest") => refused,
        answer => return Ok(answer?),
    };
    let Ok(made) = CreatedFolders::folder(Path::new(dest)) else {
        return Err(refused.into());
    };
    let copied = backup()?;
    made.keep();
    Ok(copied)
}

/// Folders that are removed again unless they are kept.
struct CreatedFolders(Vec<PathBuf>);

impl CreatedFolders {
    /// Creates a folder for its owner alone, and the missing folders around it.
    ///
    /// # Errors
    /// The folder exists, or cannot be created.
    fn folder(path: &Path) -> io::Result<CreatedFolders> {
        let is_missing = |path: &&Path| path.symlink_metadata().is_err();
        let mut missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        if missing.is_empty() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        missing.reverse();
        let mut made = CreatedFolders(Vec::new());
        for folder in missing {
            DirBuilder::new().mode(OWNER_ONLY).create(folder)?;
            made.0.push(folder.to_owned());
        }
        Ok(made)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            // A folder that is no longer empty stays, with its files.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// The arguments of `duewheel cluster show`.
#[derive(Args, Debug)]
pub struct ShowClusterArgs {}

impl ClientCommand for ShowClusterArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let cluster = session.remote.get("/v1/cluster")?;
        session.print(&cluster, |out| {
            let nodes: [table::Column<'_>; 3] =
                [("NODE", &member("name")), ("ADDRESS", &member("advertise")), ("SHARDS", &member("shards"))];
            table::print_rows(out, elements(&cluster, "nodes"), &nodes)?;
            writeln!(out)?;
            let shards: [table::Column<'_>; 5] = [
                ("SHARD", &member("shard")),
                ("OWNER", &member("owner")),
                ("WANTED", &member("wanted")),
                ("EPOCH", &member("epoch")),
                ("UNKNOWN", &member("unknown")),
            ];
            table::print_rows(out, elements(&cluster, "shards"), &shards)?;
            let [node, age, without] =
                ["node", "age_ms", "shards_without_owner"].map(|name| cell(&cluster, name));
            writeln!(out, "\nas {node} saw it {age} ms ago; shards without an owner: {without}")
        })
    }
}

/// The arguments of `duewheel token list`.
#[derive(Args, Debug)]
pub struct ListTokensArgs {}

impl ClientCommand for ListTokensArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let answer = session.remote.get("/v1/tokens")?;
        let words = |list: &Value| texts(list).map(plain).collect::<Vec<_>>().join(",");
        let queues = |token: &Value| match &token["queues"] {
            Value::Null => "all".to_owned(),
            queues => words(queues),
        };
        session.print(&answer, |out| {
            let columns: [table::Column<'_>; 4] = [
                ("NAME", &member("name")),
                ("SCOPES", &|token| words(&token["scopes"])),
                ("QUEUES", &queues),
                ("EXPIRES", &|token| when::instant_told(token, "expires")),
            ];
            table::print_rows(out, elements(&answer, "tokens"), &columns)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bars_are_to_scale() {
        let now: Zoned = "2026-11-22T19:30:00[Europe/Berlin]".parse().unwrap();
        let answer = serde_json::json!({
            "from": "2026-11-22T18:30:00.000Z", "width_ms": 3_600_000, "before": 1, "after": 2,
            "buckets": [
                {"from": "2026-11-22T18:30:00.000Z", "count": 1_000},
                {"from": "2026-11-22T19:30:00.000Z", "count": 500},
                {"from": "2026-11-22T20:30:00.000Z", "count": 1},
                {"from": "2026-11-22T21:30:00.000Z", "count": 0},
            ],
        });
        let mut out = Vec::new();
        draw(&mut out, &answer, &now).unwrap();
        let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(lines[0], format!("Sun 22 Nov 19:30    1000  {}", "█".repeat(50)));
        assert_eq!(lines[1], format!("Sun 22 Nov 20:30     500  {}", "█".repeat(25)));
        assert_eq!(lines[2], "Sun 22 Nov 21:30       1  ▏");
        assert_eq!(lines[3], "Sun 22 Nov 22:30       0  ");
        assert_eq!(lines[4], "1501 messages; 1 due before, 2 after; times of Europe/Berlin");
    }
}
