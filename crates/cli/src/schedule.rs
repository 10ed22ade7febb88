//! `duewheel schedule …`: messages that come again and again.

use std::io::{self, Write};

use clap::{Args, Subcommand};
use duewheel_client::{ErrorCode, segment};
use jiff::Zoned;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::enqueue::{header, headers, put_body, read_body};
use super::failure::CommandFailure;
use super::queue::{field_of, settings_of};
use super::remote::Remote;
use super::session::{ClientArgs, ClientSession, NoArgs, RunCommand, fields};
use super::table::{self, cell, cell_counted, elements};
use super::when::{self, GivenInstant};
use duewheel_api::rfc3339;
use duewheel_api::span::TimeSpan;

#[derive(Debug, Subcommand)]
pub(super) enum ScheduleCommand {
    /// Create a schedule, or change what is named of one that exists
    Put(Box<ClientArgs<SchedulePut>>),
    /// Show a schedule
    Get(ClientArgs<ScheduleNamed>),
    /// List all schedules
    List(ClientArgs<NoArgs>),
    /// See when a schedule would occur, without saving it
    Preview(Box<ClientArgs<SchedulePreview>>),
    /// Enter one message of a schedule now
    Trigger(ClientArgs<ScheduleTrigger>),
    /// Let nothing occur until it is resumed
    Pause(ClientArgs<SchedulePause>),
    /// Let a paused schedule occur again
    Resume(ClientArgs<ScheduleNamed>),
    /// Enter the occurrences of a time past
    Backfill(ClientArgs<ScheduleBackfill>),
    /// Remove a schedule, and its occurrence that is not due
    Rm(ClientArgs<ScheduleNamed>),
}

/// When a schedule occurs, as a request has it.
#[derive(Args, Debug, Serialize)]
pub(super) struct TimingArgs {
    /// A cron expression, such as "0 9 * * MON-FRI"
    #[arg(long, value_name = "EXPRESSION", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// An interval of elapsed time, such as 90s or 6h
    #[arg(long, value_name = "TIME", conflicts_with = "at", value_parser = when::span)]
    every: Option<TimeSpan>,
    /// An instant, such as 2027-01-31T08:00:00Z or "tomorrow 9:00"; may be given several times. What has no offset is
    /// in the zone of --zone, or in this machine's
    #[arg(long, value_name = "INSTANT")]
    #[serde(skip)]
    at: Vec<String>,
    /// Time zone of the expression, such as Europe/Berlin [default: UTC], and of times that are given without an offset
    #[arg(long)]
    zone: Option<String>,
    /// Nothing occurs before this instant
    #[arg(long, value_name = "INSTANT")]
    #[serde(skip)]
    start: Option<String>,
    /// Nothing occurs after this instant
    #[arg(long, value_name = "INSTANT")]
    #[serde(skip)]
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

/// Options of [`ScheduleChange`] that have no default.
const NO_DEFAULT: [&str; 5] = ["cron", "every", "at", "past", "paused"];

#[derive(Args, Debug)]
pub(super) struct SchedulePut {
    /// The name of the schedule
    name: String,
    /// The queue that its messages enter; a new schedule needs it
    #[arg(long)]
    queue: Option<String>,
    /// The body of each message; - reads standard input [default: empty]
    body: Option<String>,
    #[command(flatten)]
    change: ScheduleChange,
    /// Set this one to its default; may be given several times
    #[arg(long, value_name = "SETTING", value_parser = settings_of::<ScheduleChange>(&NO_DEFAULT))]
    unset: Vec<String>,
}

/// The settings of a schedule, as a request has them.
#[derive(Args, Debug, Serialize)]
struct ScheduleChange {
    #[command(flatten)]
    #[serde(skip)]
    timing: TimingArgs,
    /// A header of each message; may be given several times. Those that are given replace all that the schedule has
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    #[serde(skip)]
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
}

#[derive(Args, Debug)]
pub(super) struct SchedulePreview {
    #[command(flatten)]
    timing: TimingArgs,
    /// The number of occurrences
    #[arg(long, default_value_t = 10)]
    count: u64,
    /// Occurrences after this instant [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct ScheduleNamed {
    /// The name of the schedule
    name: String,
}

#[derive(Args, Debug, Serialize)]
pub(super) struct SchedulePause {
    /// The name of the schedule
    #[serde(skip)]
    name: String,
    /// Why it is paused
    #[arg(long)]
    note: Option<String>,
}

#[derive(Args, Debug, Serialize)]
pub(super) struct ScheduleTrigger {
    /// The name of the schedule
    #[serde(skip)]
    name: String,
    /// With the same id it enters once within a week
    #[arg(long, value_name = "ID")]
    dedupe_id: Option<String>,
}

#[derive(Args, Debug, Serialize)]
pub(super) struct ScheduleBackfill {
    /// The name of the schedule
    #[serde(skip)]
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
        let mut timing = fields(self)?;
        if self.zone_is_of_times() {
            timing.remove("zone");
        }
        for (name, text) in [("start", &self.start), ("end", &self.end)] {
            if let Some(text) = text {
                timing.insert(name.into(), self.instant(&format!("--{name}"), text)?.into());
            }
        }
        if !self.at.is_empty() {
            let at: Result<Vec<String>, _> = self.at.iter().map(|text| self.instant("--at", text)).collect();
            timing.insert("at".into(), json!(at?));
        }
        Ok(timing)
    }

    /// Whether the zone is that of times given here alone: the server takes one for cron expressions only.
    fn zone_is_of_times(&self) -> bool {
        !self.at.is_empty() || self.every.is_some() && (self.start.is_some() || self.end.is_some())
    }

    /// An instant as people write it. What is said without an offset is a time of the schedule's zone.
    fn instant(&self, option: &str, text: &str) -> Result<String, CommandFailure> {
        let mut now = Zoned::now();
        // The server knows whether a zone exists; one that is not known here matters for what depends on it.
        if let Some(zone) = &self.zone
            && rfc3339::parse(text.trim()).is_err()
        {
            now = now.in_tz(zone).map_err(|_| {
                let what = "its zone is not known here: give it with an offset";
                CommandFailure::Usage(format!("{option} {text:?}: {what}"))
            })?;
        }
        when::instant_of(option, text, &now)
    }
}

impl SchedulePut {
    /// Changes what is named, or creates the schedule: a pause and headers that others have given it stay.
    fn put(&self, remote: &Remote) -> Result<Value, CommandFailure> {
        let (path, fields) = (path(&self.name), self.json()?);
        let mut change = fields.clone();
        for name in &self.unset {
            let field = field_of::<ScheduleChange>(name);
            if fields.contains_key(&field) {
                return Err(CommandFailure::Usage(format!("--unset {name}: is given a value, too")));
            }
            change.insert(field, Value::Null);
        }
        match remote.patch(&path, &Value::Object(change)) {
            Err(refusal) if refusal.code == ErrorCode::NotFound => {
                self.change.timing.check()?;
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
        let mut schedule = fields(&self.change)?;
        schedule.extend(self.change.timing.json()?);
        if let Some(queue) = &self.queue {
            schedule.insert("queue".into(), queue.as_str().into());
        }
        if !self.change.headers.is_empty() {
            schedule.insert("headers".into(), headers(&self.change.headers)?);
        }
        if let Some(body) = &self.body {
            put_body(&mut schedule, read_body("BODY", Some(body), body != "-", "\"\"")?);
        }
        Ok(schedule)
    }
}

fn path(name: &str) -> String {
    format!("/v1/schedules/{}", segment(name))
}

impl RunCommand for ScheduleCommand {
    fn run(self) -> Result<(), CommandFailure> {
        match self {
            ScheduleCommand::Put(args) => {
                args.with(|args, session| show(session, &args.put(&session.remote)?))
            }
            ScheduleCommand::Get(args) => {
                args.with(|args, session| show(session, &session.remote.get(&path(&args.name))?))
            }
            ScheduleCommand::List(args) => args.with(|_, session| list(session)),
            ScheduleCommand::Preview(args) => args.with(|args, session| preview(&args, session)),
            ScheduleCommand::Trigger(args) => args.with(|args, session| {
                let path = format!("{}/trigger", path(&args.name));
                let answer = session.remote.post(&path, &Value::Object(fields(&args)?))?;
                let before = if answer["replayed"] == true { " before" } else { "" };
                session.say(&answer, format_args!("entered{before} as {}", cell(&answer, "id")))
            }),
            ScheduleCommand::Pause(args) => args.with(|args, session| {
                let mut change = fields(&args)?;
                change.insert("paused".into(), true.into());
                show(session, &session.remote.patch(&path(&args.name), &Value::Object(change))?)
            }),
            ScheduleCommand::Resume(args) => args.with(|args, session| {
                show(session, &session.remote.patch(&path(&args.name), &json!({"paused": false}))?)
            }),
            ScheduleCommand::Backfill(args) => args.with(|args, session| {
                let path = format!("{}/backfill", path(&args.name));
                let answer = session.remote.post(&path, &Value::Object(fields(&args)?))?;
                let entered = cell_counted(&answer, "occurrences", "occurrence");
                let id = cell(&answer, "id");
                session.say(&answer, format_args!("{entered} entered; to repeat it: --id {id}"))
            }),
            ScheduleCommand::Rm(args) => args.with(|args, session| {
                let answer = session.remote.delete(&path(&args.name))?;
                session.say(&answer, format_args!("removed {}", cell(&answer, "name")))
            }),
        }
    }
}

fn preview(args: &SchedulePreview, session: &ClientSession) -> Result<(), CommandFailure> {
    args.timing.check()?;
    let mut request = args.timing.json()?;
    request.insert("count".into(), args.count.into());
    if let Some(from) = &args.from {
        request.insert("from".into(), args.timing.instant("--from", from)?.into());
        if args.timing.every.is_some() {
            // The zone was needed for this time only: `every` has none.
            request.remove("zone");
        }
    }
    let answer = session.remote.post("/v1/schedules/preview", &Value::Object(request))?;
    session.print(&answer, |out| {
        tell_next(out, &answer)?;
        writeln!(out, "{:<12}{}", "zone data", cell(&answer, "zone_data"))
    })
}

fn list(session: &ClientSession) -> Result<(), CommandFailure> {
    let schedules = session.remote.list("/v1/schedules?limit=1000", "schedules")?;
    let now = Zoned::now();
    let state = |schedule: &Value| match (schedule["error"].as_str(), schedule["paused"] == true) {
        (Some(error), _) => error.to_owned(),
        (None, true) => "paused".to_owned(),
        (None, false) => "runs".to_owned(),
    };
    let columns: [table::Column<'_>; 7] = [
        ("NAME", &table::member("name")),
        ("QUEUE", &table::member("queue")),
        ("NEXT", &|one| one["next"].as_str().map_or_else(|| "-".to_owned(), |at| when::told(at, &now))),
        ("ENTERED", &|schedule| cell(&schedule["counts"], "entered")),
        ("MISSED", &|schedule| cell(&schedule["counts"], "missed")),
        ("SKIPPED", &|schedule| cell(&schedule["counts"], "skipped")),
        ("STATE", &state),
    ];
    session.print(&json!({ "schedules": schedules }), |out| table::print_rows(out, &schedules, &columns))
}

/// The members of a schedule that are shown.
const SHOWN: [&str; 15] = [
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
];

fn show(session: &ClientSession, schedule: &Value) -> Result<(), CommandFailure> {
    session.print(schedule, |out| {
        table::print_members(out, 12, schedule, &SHOWN)?;
        if let Some(why) = schedule["waits"]["why"].as_str() {
            writeln!(out, "{:<12}{why}", "waits")?;
        }
        for (name, count) in schedule["counts"].as_object().into_iter().flatten() {
            writeln!(out, "{name:<12}{count}")?;
        }
        for past in elements(schedule, "latest") {
            writeln!(out, "{:<12}{} {}", "latest", cell(past, "at"), cell(past, "outcome"))?;
        }
        tell_next(out, schedule)
    })
}

fn tell_next(out: &mut dyn Write, answer: &Value) -> io::Result<()> {
    for next in elements(answer, "next") {
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
