//! `duewheel schedule …`: messages that come again and again.

use std::io::{self, Read, Write};

use clap::{Args, Subcommand, ValueEnum};
use jiff::Zoned;
use serde_json::{Map, Value, json};

use super::enqueue::{header, headers, put_body};
use super::invocation::print_json;
use super::remote::{ApiError, Remote, segment};
use super::table::{cell, cell_counted, print};
use super::when::GivenInstant;
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::rfc3339;
use crate::span::TimeSpan;

#[derive(Args, Debug)]
pub(super) struct ScheduleArgs {
    #[command(subcommand)]
    command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Create a schedule, or change what is named of one that exists
    Put(Box<SchedulePut>),
    /// Show a schedule
    Get(ScheduleNamed),
    /// List all schedules
    List(ScheduleList),
    /// See when a schedule would occur, without saving it
    Preview(Box<SchedulePreview>),
    /// Enter one message of a schedule now
    Trigger(ScheduleTrigger),
    /// Let nothing occur until it is resumed
    Pause(SchedulePause),
    /// Let a paused schedule occur again
    Resume(ScheduleNamed),
    /// Enter the occurrences of a time past
    Backfill(ScheduleBackfill),
    /// Remove a schedule, and its occurrence that is not due
    Rm(ScheduleNamed),
}

/// When a schedule occurs.
#[derive(Args, Debug)]
struct TimingArgs {
    /// A cron expression, such as "0 9 * * MON-FRI"
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// An interval of elapsed time, such as 90s or 6h
    #[arg(long, value_name = "TIME", conflicts_with = "at", value_parser = when::span)]
    every: Option<TimeSpan>,
    /// An instant, such as 2027-01-31T08:00:00Z or "tomorrow 9:00"; may be given several times. What has no offset is
    /// in the zone of --zone, or in this machine's
    #[arg(long, value_name = "INSTANT")]
    at: Vec<String>,
    /// Time zone of the expression, such as Europe/Berlin [default: UTC], and of times that are given without an offset
    #[arg(long)]
    zone: Option<String>,
    /// Nothing occurs before this instant
    #[arg(long, value_name = "INSTANT")]
    start: Option<String>,
    /// Nothing occurs after this instant
    #[arg(long, value_name = "INSTANT")]
    end: Option<String>,
    /// By how much messages may be due later
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    jitter: Option<TimeSpan>,
    /// A fixed hour that is missing: shift (default) or skip
    #[arg(long, value_name = "WORD")]
    dst_gap: Option<String>,
    /// A fixed hour that comes twice: first (default) or both
    #[arg(long, value_name = "WORD")]
    dst_fold: Option<String>,
}

#[derive(Args, Debug)]
struct SchedulePut {
    /// The name of the schedule
    name: String,
    /// The queue that its messages enter; a new schedule needs it
    #[arg(long)]
    queue: Option<String>,
    #[command(flatten)]
    timing: TimingArgs,
    /// The body of each message; - reads standard input [default: empty]
    body: Option<String>,
    /// A header of each message; may be given several times. Those that are given replace all that the schedule has
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Missed occurrences that enter: none, last (default) or all
    #[arg(long, value_name = "WORD")]
    missed: Option<String>,
    /// How late a missed occurrence still enters [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    catchup: Option<TimeSpan>,
    /// While the previous message is not settled: allow (default), skip or buffer_one
    #[arg(long, value_name = "WORD")]
    overlap: Option<String>,
    /// How many occurrences enter
    #[arg(long, value_name = "N")]
    remaining: Option<u64>,
    /// If nothing is to come any more: refuse (default) or keep
    #[arg(long, value_name = "WORD")]
    past: Option<String>,
    /// Words for people
    #[arg(long)]
    note: Option<String>,
    /// Create it paused, or pause it. Without this a paused schedule stays paused: see schedule resume
    #[arg(long)]
    paused: bool,
    /// Set this one to its default; may be given several times
    #[arg(long, value_name = "SETTING")]
    unset: Vec<ScheduleSettingArg>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A setting that has a default, by the name of its option.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScheduleSettingArg {
    Zone,
    Start,
    End,
    Jitter,
    DstGap,
    DstFold,
    #[value(name = "header", alias = "headers")]
    Headers,
    Missed,
    Catchup,
    Overlap,
    Remaining,
    Note,
}

impl ScheduleSettingArg {
    /// The name of the setting in a request.
    fn field(self) -> &'static str {
        match self {
            ScheduleSettingArg::Zone => "zone",
            ScheduleSettingArg::Start => "start",
            ScheduleSettingArg::End => "end",
            ScheduleSettingArg::Jitter => "jitter",
            ScheduleSettingArg::DstGap => "dst_gap",
            ScheduleSettingArg::DstFold => "dst_fold",
            ScheduleSettingArg::Headers => "headers",
            ScheduleSettingArg::Missed => "missed",
            ScheduleSettingArg::Catchup => "catchup",
            ScheduleSettingArg::Overlap => "overlap",
            ScheduleSettingArg::Remaining => "remaining",
            ScheduleSettingArg::Note => "note",
        }
    }
}

#[derive(Args, Debug)]
struct SchedulePreview {
    #[command(flatten)]
    timing: TimingArgs,
    /// The number of occurrences
    #[arg(long, default_value_t = 10)]
    count: u64,
    /// Occurrences after this instant [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct ScheduleNamed {
    /// The name of the schedule
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct SchedulePause {
    /// The name of the schedule
    name: String,
    /// Why it is paused
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct ScheduleTrigger {
    /// The name of the schedule
    name: String,
    /// With the same id it enters once within a week
    #[arg(long, value_name = "ID")]
    dedupe_id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct ScheduleBackfill {
    /// The name of the schedule
    name: String,
    /// The first instant, such as 2027-01-31T08:00:00Z or "2027-01-31 9:00" in this machine's time zone
    #[arg(long, value_name = "INSTANT")]
    from: GivenInstant,
    /// The last instant
    #[arg(long, value_name = "INSTANT")]
    to: GivenInstant,
    /// With the same id each occurrence enters once within a week
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct ScheduleList {
    #[command(flatten)]
    server: ServerArgs,
}

impl TimingArgs {
    /// Whether there is anything that says when it occurs.
    fn check(&self) -> Result<(), CommandFailure> {
        if self.cron.is_none() && self.every.is_none() && self.at.is_empty() {
            return Err(CommandFailure::Usage("say when it occurs: --cron, --every or --at".to_owned()));
        }
        Ok(())
    }

    fn json(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut fields = Map::new();
        let instant = |option: &str, text: &Option<String>| {
            text.as_deref().map(|text| self.instant(option, text)).transpose()
        };
        let zone = if self.zone_is_of_times() { None } else { self.zone.clone() };
        let texts = [
            ("cron", &self.cron),
            ("every", &self.every.map(|time| time.to_string())),
            ("zone", &zone),
            ("start", &instant("--start", &self.start)?),
            ("end", &instant("--end", &self.end)?),
            ("jitter", &self.jitter.map(|time| time.to_string())),
            ("dst_gap", &self.dst_gap),
            ("dst_fold", &self.dst_fold),
        ];
        insert(&mut fields, &texts);
        if !self.at.is_empty() {
            let at: Result<Vec<String>, _> = self.at.iter().map(|text| self.instant("--at", text)).collect();
            fields.insert("at".into(), json!(at?));
        }
        Ok(fields)
    }

    /// Whether the zone is that of times given here alone: the server takes one for cron expressions only.
    fn zone_is_of_times(&self) -> bool {
        !self.at.is_empty() || self.every.is_some() && (self.start.is_some() || self.end.is_some())
    }

    /// An instant as people write it. What is said without an offset is a time of the schedule's zone.
    fn instant(&self, option: &str, text: &str) -> Result<String, CommandFailure> {
        let bad = |what: String| CommandFailure::Usage(format!("{option} {text:?}: {what}"));
        let mut now = Zoned::now();
        // The server knows whether a zone exists; one that is not known here matters for what depends on it.
        if let Some(zone) = &self.zone
            && rfc3339::parse(text.trim()).is_err()
        {
            let zone = now.in_tz(zone);
            now = zone.map_err(|_| bad("its zone is not known here: give it with an offset".to_owned()))?;
        }
        let GivenInstant { instant, note } = GivenInstant::read(text, &now).map_err(bad)?;
        when::say(option, text, note.as_deref());
        Ok(instant)
    }
}

fn insert(fields: &mut Map<String, Value>, texts: &[(&str, &Option<String>)]) {
    for (name, text) in texts {
        if let Some(text) = text {
            fields.insert((*name).into(), json!(text));
        }
    }
}

impl SchedulePut {
    /// Changes what is named, or creates the schedule: a pause and headers that others have given it stay.
    fn put(&self, remote: &Remote) -> Result<Value, CommandFailure> {
        let (path, fields) = (path(&self.name), self.json()?);
        let mut change = fields.clone();
        for setting in &self.unset {
            let field = setting.field();
            if fields.contains_key(field) {
                let name = setting.to_possible_value().map(|value| value.get_name().to_owned());
                let name = name.unwrap_or_default();
                return Err(CommandFailure::Usage(format!("--unset {name}: is given a value, too")));
            }
            change.insert(field.into(), Value::Null);
        }
        match remote.patch(&path, &Value::Object(change)) {
            Err(ApiError::Refused(refusal)) if refusal.code == "not_found" => {
                self.timing.check()?;
                if self.queue.is_none() {
                    let what = "say which queue its messages enter: --queue";
                    return Err(CommandFailure::Usage(what.to_owned()));
                }
                Ok(remote.put(&path, &Value::Object(fields))?)
            }
            answer => Ok(answer?),
        }
    }

    fn json(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut fields = self.timing.json()?;
        let texts = [
            ("queue", &self.queue),
            ("missed", &self.missed),
            ("catchup", &self.catchup.map(|time| time.to_string())),
            ("overlap", &self.overlap),
            ("past", &self.past),
            ("note", &self.note),
        ];
        insert(&mut fields, &texts);
        if let Some(remaining) = self.remaining {
            fields.insert("remaining".into(), json!(remaining));
        }
        if self.paused {
            fields.insert("paused".into(), json!(true));
        }
        if !self.headers.is_empty() {
            fields.insert("headers".into(), headers(&self.headers)?);
        }
        match self.body.as_deref() {
            Some("-") => {
                let mut body = Vec::new();
                io::stdin().read_to_end(&mut body)?;
                put_body(&mut fields, body);
            }
            Some(body) => drop(fields.insert("body".into(), body.into())),
            None => {}
        }
        Ok(fields)
    }
}

fn path(name: &str) -> String {
    format!("/v1/schedules/{}", segment(name))
}

impl ClientCommand for ScheduleArgs {
    fn server(&self) -> &ServerArgs {
        match &self.command {
            ScheduleCommand::Put(args) => &args.server,
            ScheduleCommand::Get(args) | ScheduleCommand::Resume(args) | ScheduleCommand::Rm(args) => {
                &args.server
            }
            ScheduleCommand::List(args) => &args.server,
            ScheduleCommand::Preview(args) => &args.server,
            ScheduleCommand::Trigger(args) => &args.server,
            ScheduleCommand::Pause(args) => &args.server,
            ScheduleCommand::Backfill(args) => &args.server,
        }
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(self.server())?;
        let is_json = self.server().json;
        let show = |answer: Value, tell: fn(&Value) -> io::Result<()>| -> Result<(), CommandFailure> {
            if is_json {
                print_json(&mut io::stdout(), &answer)?
            } else {
                tell(&answer)?
            }
            Ok(())
        };
        match &self.command {
            ScheduleCommand::Put(args) => show(args.put(&remote)?, tell_schedule),
            ScheduleCommand::Get(args) => show(remote.get(&path(&args.name))?, tell_schedule),
            ScheduleCommand::List(_) => list(&remote, is_json),
            ScheduleCommand::Preview(args) => {
                args.timing.check()?;
                let mut fields = args.timing.json()?;
                fields.insert("count".into(), json!(args.count));
                let from = args.from.as_deref().map(|text| args.timing.instant("--from", text));
                let from = from.transpose()?;
                if from.is_some() && args.timing.every.is_some() {
                    // The zone was needed for this time only: `every` has none.
                    fields.remove("zone");
                }
                insert(&mut fields, &[("from", &from)]);
                show(remote.post("/v1/schedules/preview", &Value::Object(fields))?, tell_preview)
            }
            ScheduleCommand::Trigger(args) => {
                let mut fields = Map::new();
                insert(&mut fields, &[("dedupe_id", &args.dedupe_id)]);
                let path = format!("{}/trigger", path(&args.name));
                show(remote.post(&path, &Value::Object(fields))?, |answer| {
                    let before = if answer["replayed"] == true { " before" } else { "" };
                    writeln!(io::stdout(), "entered{before} as {}", cell(answer, "id"))
                })
            }
            ScheduleCommand::Pause(args) => {
                let mut fields = Map::new();
                fields.insert("paused".into(), json!(true));
                insert(&mut fields, &[("note", &args.note)]);
                show(remote.patch(&path(&args.name), &Value::Object(fields))?, tell_schedule)
            }
            ScheduleCommand::Resume(args) => {
                show(remote.patch(&path(&args.name), &json!({"paused": false}))?, tell_schedule)
            }
            ScheduleCommand::Backfill(args) => {
                let mut fields = Map::new();
                insert(&mut fields, &[("id", &args.id)]);
                fields.insert("from".into(), json!(args.from.instant));
                fields.insert("to".into(), json!(args.to.instant));
                let path = format!("{}/backfill", path(&args.name));
                show(remote.post(&path, &Value::Object(fields))?, |answer| {
                    let entered = cell_counted(answer, "occurrences", "occurrence");
                    writeln!(io::stdout(), "{entered} entered; to repeat it: --id {}", cell(answer, "id"))
                })
            }
            ScheduleCommand::Rm(args) => show(remote.delete(&path(&args.name))?, |answer| {
                writeln!(io::stdout(), "removed {}", cell(answer, "name"))
            }),
        }
    }
}

fn list(remote: &Remote, is_json: bool) -> Result<(), CommandFailure> {
    let mut rows = Vec::new();
    let mut after = String::new();
    loop {
        let page = remote.get(&format!("/v1/schedules?limit=1000{after}"))?;
        for schedule in page["schedules"].as_array().into_iter().flatten() {
            if is_json {
                writeln!(io::stdout(), "{schedule}")?;
                continue;
            }
            let paused = schedule["paused"] == true;
            let next =
                schedule["next"].as_str().map_or_else(|| "-".to_owned(), |at| when::told(at, &Zoned::now()));
            let state = match (schedule["error"].as_str(), paused) {
                (Some(error), _) => error.to_owned(),
                (None, true) => "paused".to_owned(),
                (None, false) => "runs".to_owned(),
            };
            let counts = &schedule["counts"];
            let counted = ["entered", "missed", "skipped"].map(|name| cell(counts, name));
            let mut row = vec![cell(schedule, "name"), cell(schedule, "queue"), next];
            row.extend(counted);
            row.push(state);
            rows.push(row);
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", segment(next)),
            None => break,
        }
    }
    if !is_json {
        let head = ["NAME", "QUEUE", "NEXT", "ENTERED", "MISSED", "SKIPPED", "STATE"];
        print(&mut io::stdout().lock(), &head, &rows)?;
    }
    Ok(())
}

fn tell_schedule(schedule: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for name in [
        "name",
        "queue",
        "cron",
        "every",
        "zone",
        "start",
        "end",
        "jitter",
        "missed",
        "catchup",
        "overlap",
        "remaining",
        "paused",
        "note",
        "error",
    ] {
        if !schedule[name].is_null() {
            writeln!(out, "{name:<12}{}", cell(schedule, name))?;
        }
    }
    if let Some(why) = schedule["waits"]["why"].as_str() {
        writeln!(out, "{:<12}{why}", "waits")?;
    }
    for (name, count) in schedule["counts"].as_object().into_iter().flatten() {
        writeln!(out, "{name:<12}{count}")?;
    }
    for past in schedule["latest"].as_array().into_iter().flatten() {
        writeln!(out, "{:<12}{} {}", "latest", cell(past, "at"), cell(past, "outcome"))?;
    }
    tell_next(&mut out, schedule)
}

fn tell_preview(preview: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    tell_next(&mut out, preview)?;
    writeln!(out, "{:<12}{}", "zone data", cell(preview, "zone_data"))
}

fn tell_next(out: &mut impl Write, answer: &Value) -> io::Result<()> {
    for next in answer["next"].as_array().into_iter().flatten() {
        let offset = next["offset"].as_i64().unwrap_or(0);
        let local = next["at"].as_str().and_then(|at| in_offset(at, offset));
        let note = next["note"].as_str().map(|note| format!(" ({note})")).unwrap_or_default();
        writeln!(out, "{:<12}{}{note}", "next", local.unwrap_or_else(|| cell(next, "at")))?;
    }
    Ok(())
}

/// An instant as a clock shows it that is ahead of UTC by so many seconds.
fn in_offset(at: &str, offset: i64) -> Option<String> {
    let at: jiff::Timestamp = at.parse().ok()?;
    let offset = jiff::tz::Offset::from_seconds(i32::try_from(offset).ok()?).ok()?;
    Some(at.to_zoned(offset.to_time_zone()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string())
}
