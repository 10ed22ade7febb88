//! `duewheel bulk …`, `duewheel job …`: many messages at once.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use duewheel::core::QueueName;
use serde_json::{Map, Value, json};

use super::confirm::confirm;
use super::filter::FilterArgs;
use super::invocation::print_json;
use super::queue::{path, queue_name};
use super::remote::{Remote, segment};
use super::table::{are, cell, cell_counted, print};
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::span::TimeSpan;

/// How often `--wait` looks at the job.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
pub(super) struct BulkArgs {
    /// What to do with each message
    #[arg(value_enum)]
    action: BulkVerb,
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    filter: FilterArgs,
    /// All messages of the queue
    #[arg(long)]
    all: bool,
    /// For postpone and redrive: due after this time from now
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    delay: Option<TimeSpan>,
    /// For postpone: due this much later than it was; earlier with a - before it
    #[arg(long, value_name = "TIME", value_parser = shift, allow_hyphen_values = true, conflicts_with = "delay")]
    shift: Option<i64>,
    /// For redrive: as new messages of this queue
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    to_queue: Option<QueueName>,
    /// At most this number of messages a second
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Count the messages, and change none
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Wait until the job has ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BulkVerb {
    /// Cancel scheduled and ready messages; dead ones with --state dead
    Cancel,
    /// Give scheduled and ready messages another due time
    Postpone,
    /// Make scheduled messages due now
    Fire,
    /// Make dead messages ready again
    Redrive,
}

fn shift(text: &str) -> Result<i64, String> {
    let (sign, span) = text.strip_prefix('-').map_or((1, text), |span| (-1, span));
    let TimeSpan(ms) = when::span(span).map_err(|what| what.to_string())?;
    i64::try_from(ms).map(|ms| sign * ms).map_err(|_| "is too long".to_owned())
}

impl BulkVerb {
    fn word(self) -> &'static str {
        match self {
            BulkVerb::Cancel => "cancel",
            BulkVerb::Postpone => "postpone",
            BulkVerb::Fire => "fire",
            BulkVerb::Redrive => "redrive",
        }
    }
}

impl BulkArgs {
    fn json(&self) -> Result<Map<String, Value>, CommandFailure> {
        let filter = self.filter.json()?;
        match (filter.is_empty(), self.all) {
            (true, false) => {
                let what = "say which messages: --key-prefix, --header, --due-from, --due-to, --state, --dead-reason, \
                     --dead-note, or --all";
                return Err(CommandFailure::Usage(what.to_owned()));
            }
            (false, true) => {
                return Err(CommandFailure::Usage(
                    "--all leaves no message out; give no filter with it".to_owned(),
                ));
            }
            (true, true) | (false, false) => {}
        }
        let mut fields = Map::new();
        fields.insert("action".into(), self.action.word().into());
        if self.all {
            fields.insert("all".into(), true.into());
        } else {
            fields.insert("filter".into(), Value::Object(filter));
        }
        let more = [
            ("delay_ms", self.delay.map(|TimeSpan(ms)| json!(ms))),
            ("shift_ms", self.shift.map(Value::from)),
            ("to_queue", self.to_queue.as_ref().map(|queue| json!(queue.as_str()))),
            ("rate", self.rate.map(Value::from)),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                fields.insert(name.into(), value);
            }
        }
        Ok(fields)
    }
}

impl ClientCommand for BulkArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        let fields = self.json()?;
        let remote = Remote::new(&self.server)?;
        let path = format!("{}/bulk", path(&self.queue));
        let mut dry = fields.clone();
        dry.insert("dry_run".into(), true.into());
        let (word, queue) = (self.action.word(), &self.queue);
        if self.dry_run {
            let count = remote.post(&path, &Value::Object(dry))?;
            return tell(self.server.json, &count, |count| {
                let (matched, leased) = (cell_counted(count, "matched", "message"), cell(count, "leased"));
                let are = if leased == "1" { "is" } else { "are" };
                writeln!(io::stdout(), "{queue}  would {word} {matched}; {leased} {are} leased")
            });
        }
        if !self.yes {
            let count = remote.post(&path, &Value::Object(dry))?;
            confirm(&format!("{word} {} of {queue}", cell_counted(&count, "matched", "message")))?;
        }
        let job = remote.post(&path, &Value::Object(fields))?;
        let job = if self.wait { ended(&remote, job)? } else { job };
        tell(self.server.json, &job, tell_job)
    }
}

/// Redrives dead messages that a filter names, and waits for the job. It says how many and asks first, unless `yes`.
pub(super) fn redrive(
    queue: &QueueName,
    filter: Map<String, Value>,
    yes: bool,
    server: &ServerArgs,
) -> Result<(), CommandFailure> {
    let remote = Remote::new(server)?;
    let path = format!("{}/bulk", path(queue));
    let mut fields = json!({"action": "redrive", "filter": filter, "dry_run": true});
    if !yes {
        let count = remote.post(&path, &fields)?;
        confirm(&format!("redrive {} of {queue}", cell_counted(&count, "matched", "message")))?;
    }
    fields["dry_run"] = false.into();
    let job = ended(&remote, remote.post(&path, &fields)?)?;
    tell(server.json, &job, |job| {
        let mut out = io::stdout().lock();
        writeln!(out, "{queue}  {} ready again", are(job["done"].as_u64().unwrap_or(0), "message"))?;
        for (name, why) in [
            ("changed", "changed meanwhile"),
            ("refused", "could not be, such as because their key is taken"),
        ] {
            if job[name] != 0 {
                writeln!(out, "{queue}  {} {why}", cell(job, name))?;
            }
        }
        Ok(())
    })
}

/// Waits until a job has ended.
fn ended(remote: &Remote, mut job: Value) -> Result<Value, CommandFailure> {
    while job["ended_at"].is_null() {
        thread::sleep(LOOK);
        job = remote.get(&job_path(&cell(&job, "id")))?;
    }
    Ok(job)
}

#[derive(Args, Debug)]
pub(super) struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// List jobs, the newest first; those that have ended are kept for a week
    List(JobList),
    /// Show how far a job has come
    Get(JobNamed),
    /// End a job; what it has changed stays
    Cancel(JobNamed),
}

#[derive(Args, Debug)]
struct JobList {
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Args, Debug)]
struct JobNamed {
    /// The id of the job
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

impl ClientCommand for JobArgs {
    fn server(&self) -> &ServerArgs {
        match &self.command {
            JobCommand::List(args) => &args.server,
            JobCommand::Get(args) | JobCommand::Cancel(args) => &args.server,
        }
    }

    fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(self.server())?;
        let is_json = self.server().json;
        match &self.command {
            JobCommand::List(_) => tell(is_json, &remote.get("/v1/jobs")?, tell_jobs),
            JobCommand::Get(args) => tell(is_json, &remote.get(&job_path(&args.id))?, tell_job),
            JobCommand::Cancel(args) => tell(is_json, &remote.delete(&job_path(&args.id))?, tell_job),
        }
    }
}

fn job_path(id: &str) -> String {
    format!("/v1/jobs/{}", segment(id))
}

fn tell(
    is_json: bool,
    answer: &Value,
    words: impl FnOnce(&Value) -> io::Result<()>,
) -> Result<(), CommandFailure> {
    if is_json {
        print_json(&mut io::stdout(), answer)?
    } else {
        words(answer)?
    }
    Ok(())
}

fn tell_job(job: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let fields = [
        "id", "queue", "action", "state", "matched", "done", "leased", "changed", "refused", "rate",
        "to_queue",
    ];
    for name in fields {
        if !job[name].is_null() {
            writeln!(out, "{name:<10}{}", cell(job, name))?;
        }
    }
    writeln!(out, "{:<10}{}", "created", when::instant_told(job, "created_at"))?;
    if !job["ended_at"].is_null() {
        writeln!(out, "{:<10}{}", "ended", when::instant_told(job, "ended_at"))?;
    }
    Ok(())
}

fn tell_jobs(answer: &Value) -> io::Result<()> {
    let row = |job: &Value| {
        let mut row =
            ["id", "queue", "action", "state", "matched", "done"].map(|name| cell(job, name)).to_vec();
        row.push(when::instant_told(job, "created_at"));
        row
    };
    let rows: Vec<_> = answer["jobs"].as_array().into_iter().flatten().map(row).collect();
    print(&mut io::stdout().lock(), &["ID", "QUEUE", "ACTION", "STATE", "MATCHED", "DONE", "CREATED"], &rows)
}
