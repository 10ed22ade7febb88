//! `duewheel queues`, `duewheel queue QUEUE`, `queue set` (`duewheel config`) and `queue rm`, and `duewheel
//! pause|resume|purge QUEUE`.

use std::io::{self, Write};
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, Args, Command, Subcommand, ValueEnum};
use duewheel_client::{ErrorCode, segment};
use duewheel_core::QueueName;
use jiff::Zoned;
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value, json};

use super::existing::{must_exist, note_missing, note_unknown};
use super::failure::CommandFailure;
use super::session::{ClientArgs, ClientCommand, ClientSession, RunCommand, confirm, fields};
use super::system_words::on_stderr;
use super::table::{self, cell, cell_counted, counted, member, plain, rate};
use super::when::{self, Millis};
use duewheel_api::hourly::HourlyRate;
use duewheel_api::span::TimeSpan;

/// Reads the name of a queue.
///
/// # Errors
/// The text is no name of a queue; a phrase that fits after it.
pub fn queue_name(text: &str) -> Result<QueueName, String> {
    QueueName::new(text).map_err(|what| what.to_string())
}

/// The path of a queue.
pub(super) fn path(queue: &QueueName) -> String {
    format!("/v1/queues/{}", segment(queue.as_str()))
}

#[derive(Args, Debug)]
pub(super) struct QueuesArgs {}

impl ClientCommand for QueuesArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let queues = session.remote.list("/v1/queues", "queues")?;
        let overdue = |queue: &Value| match queue["oldest_overdue"].is_null() {
            true => "-".to_owned(),
            false => TimeSpan(queue["oldest_overdue_ms"].as_u64().unwrap_or(0) / 1_000 * 1_000).to_string(),
        };
        let paused = |queue: &Value| if queue["paused"] == true { "paused".into() } else { String::new() };
        session.print(&json!({ "queues": queues }), |out| {
            let columns: [table::Column<'_>; 9] = [
                ("QUEUE", &member("queue")),
                ("SCHEDULED", &|queue| cell(&queue["counts"], "scheduled")),
                ("READY", &|queue| cell(&queue["counts"], "ready")),
                ("LEASED", &|queue| cell(&queue["counts"], "leased")),
                ("DEAD", &|queue| cell(&queue["counts"], "dead")),
                ("OVERDUE", &overdue),
                ("IN", &|queue| rate(&queue["rates"], "enqueued")),
                ("OUT", &|queue| rate(&queue["rates"], "acked")),
                ("", &paused),
            ];
            table::print_rows(out, &queues, &columns)
        })
    }
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct QueueArgs {
    #[command(subcommand)]
    act: Option<QueueCommand>,
    #[command(flatten)]
    shown: ClientArgs<ShownArgs>,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Show or change the settings of a queue
    Set(Box<ClientArgs<ConfigArgs>>),
    /// Remove a queue, with its messages, settings and pause
    Rm(ClientArgs<RemoveArgs>),
}

impl RunCommand for QueueArgs {
    fn run(self) -> Result<(), CommandFailure> {
        match self.act {
            Some(QueueCommand::Set(set)) => set.run(),
            Some(QueueCommand::Rm(remove)) => remove.run(),
            None => self.shown.run(),
        }
    }
}

#[derive(Args, Debug)]
struct ShownArgs {
    /// The queue; one that is called `set` or `rm` goes behind `--`
    #[arg(value_parser = queue_name, required = true)]
    queue: Option<QueueName>,
}

impl ClientCommand for ShownArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let name = self.queue.ok_or_else(|| CommandFailure::Usage("name a queue".to_owned()))?;
        let queue = session.remote.get(&path(&name))?;
        note_unknown(&session.remote, &name, &queue);
        session.print(&queue, |out| show(out, &queue))?;
        if session.is_json {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        // The values in effect need the scope `admin`.
        Ok(match session.remote.get(&format!("{}/config", path(&name))) {
            Ok(shown) => show_settings(&mut out, &shown["config"], Some(&shown["effective"])),
            Err(refusal) if refusal.code == ErrorCode::Forbidden => {
                show_settings(&mut out, &queue["config"], None)
            }
            Err(trouble) => return Err(trouble.into()),
        }?)
    }
}

fn show(out: &mut dyn Write, queue: &Value) -> io::Result<()> {
    let mut line = |name: &str, text: &dyn std::fmt::Display| writeln!(out, "{name:<18}{text}");
    line("queue", &cell(queue, "queue"))?;
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
    line("waiting reserves", &cell(queue, "waiters"))?;
    for name in ["enqueued", "granted", "acked"] {
        line(name, &rate(&queue["rates"], name))?;
    }
    for (name, total) in queue["totals"].as_object().into_iter().flatten() {
        line(&format!("total {}", name.replace('_', " ")), total)?;
    }
    Ok(())
}

#[derive(Args, Debug)]
struct RemoveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// Do nothing if there are more messages than this number; the number that was confirmed counts without it
    #[arg(long, value_name = "N")]
    expect: Option<u64>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl ClientCommand for RemoveArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let Self { queue, expect, yes } = self;
        let mut expect = expect;
        must_exist(&session.remote, &queue, "")?;
        if !yes {
            let doomed = doomed(session, &queue)?;
            let messages = counted(doomed, "message");
            confirm(&format!("remove the queue {queue} and its {messages} for ever"))?;
            expect = expect.or(Some(doomed));
        }
        let expect = expect.map_or(String::new(), |expect| format!("?expect={expect}"));
        let answer = session.remote.delete(&format!("{}{expect}", path(&queue)))?;
        let purged = cell_counted(&answer, "purged", "message");
        session.say(&answer, format_args!("{queue}  removed, with {purged}"))
    }
}

/// The number of messages that a purge removes.
fn doomed(session: &ClientSession, queue: &QueueName) -> Result<u64, CommandFailure> {
    let counts = session.remote.get(&path(queue))?["counts"].take();
    Ok(["scheduled", "ready", "dead"].iter().map(|state| counts[state].as_u64().unwrap_or(0)).sum())
}

#[derive(Args, Debug, Serialize)]
pub(super) struct PauseArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    #[serde(skip)]
    queue: QueueName,
    /// For this time [default: until `duewheel resume`]
    #[arg(long = "for", value_name = "TIME")]
    for_ms: Option<Millis>,
    /// Also pause a queue that does not exist, before its first message
    #[arg(long)]
    #[serde(skip)]
    create: bool,
}

impl ClientCommand for PauseArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let how = match self.for_ms {
            Some(Millis(ms)) => format!("paused for {}", TimeSpan(ms)),
            None => "paused until it is resumed".to_owned(),
        };
        if !self.create {
            must_exist(&session.remote, &self.queue, "--create pauses it all the same")?;
        }
        operate(session, &self.queue, "pause", fields(&self)?, |_| how)
    }
}

#[derive(Args, Debug)]
pub(super) struct ResumeArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
}

impl ClientCommand for ResumeArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        note_missing(&session.remote, &self.queue, "");
        operate(session, &self.queue, "resume", Map::new(), |_| "resumed".to_owned())
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct PurgeArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    #[serde(skip)]
    queue: QueueName,
    /// Do nothing if there are more messages than this number; the number that was confirmed counts without it
    #[arg(long, value_name = "N")]
    expect: Option<u64>,
    /// Keep the messages for this time, for `duewheel bulk restore`
    #[arg(long = "keep", value_name = "TIME")]
    keep_ms: Option<Millis>,
    /// Do not ask
    #[arg(long)]
    #[serde(skip)]
    yes: bool,
}

impl ClientCommand for PurgeArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let mut request = fields(&self)?;
        must_exist(&session.remote, &self.queue, "")?;
        if !self.yes {
            let doomed = doomed(session, &self.queue)?;
            let end = if self.keep_ms.is_some() { "" } else { " for ever" };
            confirm(&format!("remove {} of {}{end}", counted(doomed, "message"), self.queue))?;
            request.entry("expect").or_insert_with(|| doomed.into());
        }
        let mut is_cancelled = false;
        operate(session, &self.queue, "purge", request, |answer| {
            let removed = format!("{} removed", cell_counted(answer, "purged", "message"));
            answer.get("act").iter().for_each(|act| tell_undo(&self.queue, act));
            is_cancelled = answer["state"] == "cancelled";
            // Its job goes on, unless it says that it has ended.
            match answer["state"].as_str() {
                Some(state) if state != "done" => {
                    format!("{removed} so far ({}); `duewheel job get {}`", plain(state), cell(answer, "act"))
                }
                _ => removed,
            }
        })?;
        if is_cancelled { Err(CommandFailure::failed("the purge was cancelled")) } else { Ok(()) }
    }
}

/// Says on standard error how an act is undone whose messages are kept.
pub(super) fn tell_undo(queue: &QueueName, act: &Value) {
    let (queue, act) = (plain(queue.as_str()), act.as_str().unwrap_or_default());
    on_stderr(format_args!("undo: duewheel bulk restore {queue} --act {act}"));
}

/// Posts to a path below a queue, and prints the answer.
pub(super) fn operate(
    session: &ClientSession,
    queue: &QueueName,
    verb: &str,
    request: Map<String, Value>,
    words: impl FnOnce(&Value) -> String,
) -> Result<(), CommandFailure> {
    let answer = session.remote.post(&format!("{}/{verb}", path(queue)), &Value::Object(request))?;
    let words = words(&answer);
    session.say(&answer, format_args!("{queue}  {words}"))
}

#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    change: ChangeArgs,
    /// Set this one to the server's default; may be given several times
    #[arg(long, value_name = "SETTING", value_parser = settings_of::<ChangeArgs>(&["burst"]))]
    unset: Vec<String>,
    /// Set everything that is not named to the server's default
    #[arg(long, conflicts_with = "unset")]
    reset: bool,
    /// Say nothing if the queue does not exist: the settings are those of its first message
    #[arg(long)]
    create: bool,
}

/// The settings to change, as a request has them.
#[derive(Args, Debug, Serialize)]
#[group(id = "change", multiple = true)]
struct ChangeArgs {
    /// Length of a lease
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
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
    #[arg(long = "dedupe-window", value_name = "TIME")]
    dedupe_window_ms: Option<Millis>,
    /// How long a dead message is kept
    #[arg(long = "dead-ttl", value_name = "TIME")]
    dead_ttl_ms: Option<Millis>,
    /// Order of ready messages of equal priority
    #[arg(long, value_name = "ORDER")]
    order: Option<OrderArg>,
    /// Messages granted a second, to all consumers together; 10/m is ten a minute, 7/h seven an hour
    #[arg(long, value_name = "N", value_parser = HourlyRate::written)]
    rate: Option<HourlyRate>,
    /// Messages that may be granted at once after a pause
    #[arg(long, value_name = "N", requires = "rate")]
    #[serde(skip)]
    burst: Option<u32>,
    /// Messages granted a second while the next one has been due for more than 10 s
    #[arg(long, value_name = "N", value_parser = HourlyRate::written)]
    catchup_rate: Option<HourlyRate>,
    /// Leases at a time
    #[arg(long, value_name = "N")]
    concurrency: Option<u32>,
    /// How long after its due time a message expires
    #[arg(long = "expires-in", value_name = "TIME")]
    expires_in_ms: Option<Millis>,
    /// What happens with an expired message
    #[arg(long, value_name = "WHAT")]
    on_expiry: Option<OnExpiryArg>,
    /// How long messages that have ended can still be read and replayed
    #[arg(long = "keep-done", value_name = "TIME")]
    keep_done_ms: Option<Millis>,
    /// How the trace of a delivery belongs to that of its message's creation
    #[arg(long, value_name = "HOW")]
    trace: Option<TraceArg>,
    /// The target that messages are delivered to
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum OrderArg {
    /// By due time
    Due,
    /// As they were accepted
    Arrival,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum OnExpiryArg {
    /// An expired message is granted, and the grant says that it is late
    DeliverLate,
    /// An expired message is dead
    Dead,
    /// An expired message is removed
    Drop,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum TraceArg {
    /// A trace of its own, with a link
    Link,
    /// A span of the same trace
    Child,
}

/// `MIN..MAX`, or one time for both.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct BackoffArg {
    min_ms: Millis,
    max_ms: Millis,
}

impl FromStr for BackoffArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let span = |text: &str| text.parse::<Millis>().map_err(|what| what.to_string());
        Ok(BackoffArg { min_ms: span(min)?, max_ms: span(max)? })
    }
}

/// The options of a set that can be unset: all but these. `--header` is also known as `headers`.
pub(super) fn settings_of<A: Args>(others: &[&str]) -> PossibleValuesParser {
    let options = A::augment_args(Command::new(""));
    let settings = options.get_arguments().filter_map(|arg| {
        let name = arg.get_long().filter(|name| !others.contains(name))?;
        let value = PossibleValue::new(name.to_owned());
        Some(if arg.get_id() == "headers" { value.alias("headers") } else { value })
    });
    settings.collect::<Vec<_>>().into()
}

/// The field of a request that the option of this name gives.
pub(super) fn field_of<A: Args>(option: &str) -> String {
    let options = A::augment_args(Command::new(""));
    let arg = options.get_arguments().find(|arg| arg.get_long() == Some(option));
    arg.map_or_else(|| option.to_owned(), |arg| arg.get_id().to_string())
}

impl ClientCommand for ConfigArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let path = format!("{}/config", path(&self.queue));
        let mut change = fields(&self.change)?;
        if let Some(per_second) = self.change.rate {
            change.insert("rate".into(), json!({"per_second": per_second, "burst": self.change.burst}));
        }
        for name in &self.unset {
            if change.insert(field_of::<ChangeArgs>(name), Value::Null).is_some() {
                return Err(CommandFailure::Usage(format!("--unset {name}: --{name} is given, too")));
            }
        }
        if !self.create {
            let is_shown = change.is_empty() && !self.reset;
            let otherwise = if is_shown { "" } else { "the settings are for its first message" };
            note_missing(&session.remote, &self.queue, otherwise);
        }
        if self.reset {
            session.remote.put(&path, &Value::Object(change))?;
        } else if !change.is_empty() {
            session.remote.patch(&path, &Value::Object(change))?;
        }
        let shown = session.remote.get(&path)?;
        let Value::Object(mut config) = shown["config"].clone() else {
            return Err(CommandFailure::failed("the server does not tell the settings of the queue"));
        };
        config.insert("effective".into(), shown["effective"].clone());
        session.print(&Value::Object(config), |out| {
            show_settings(out, &shown["config"], Some(&shown["effective"]))
        })
    }
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
fn show_settings(out: &mut dyn Write, config: &Value, effective: Option<&Value>) -> io::Result<()> {
    let set = settings(config);
    let Some(effective) = effective else {
        return set.iter().try_for_each(|(name, text)| writeln!(out, "--{name:<16}{text}"));
    };
    for ((name, effective), (_, set)) in settings(effective).into_iter().zip(set) {
        let origin = if set == DEFAULT { "  (default)" } else { "" };
        let effective = if effective == DEFAULT { without(&name) } else { &*effective };
        writeln!(out, "--{name:<16}{effective}{origin}")?;
    }
    if !config["target"].is_null() {
        writeln!(out, "--{:<16}{}", "target", cell(config, "target"))?;
    }
    Ok(())
}

/// The settings of a queue, each named as the option of `duewheel queue set` that sets it. Those that the queue does not
/// have are the server's defaults.
fn settings(config: &Value) -> Vec<(String, String)> {
    let time = |value: &Value| TimeSpan(value.as_u64().unwrap_or(0)).to_string();
    let options = ChangeArgs::augment_args(Command::new(""));
    let setting = |arg: &Arg| {
        let (field, form) = (arg.get_id().as_str(), arg.get_value_names().and_then(|names| names.first()));
        let value = match field {
            "rate" => &config["rate"]["per_second"],
            "burst" => &config["rate"]["burst"],
            field => &config[field],
        };
        let text = match (value, field, form.map_or("", |form| form.as_str())) {
            (Value::Null, ..) => DEFAULT.to_owned(),
            (_, "rate" | "catchup_rate", _) => {
                HourlyRate::deserialize(value).map_or_else(|_| DEFAULT.to_owned(), |rate| rate.to_string())
            }
            (_, _, "TIME") => time(value),
            (_, _, "TIME..TIME") => format!("{}..{}", time(&value["min_ms"]), time(&value["max_ms"])),
            (_, field, _) => cell(&json!({ field: value }), field),
        };
        Some((arg.get_long()?.to_owned(), text))
    };
    options.get_arguments().filter(|arg| arg.get_id() != "target").filter_map(setting).collect()
}
