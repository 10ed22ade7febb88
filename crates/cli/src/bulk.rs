//! `duewheel dead QUEUE`, `duewheel redrive QUEUE`, `duewheel bulk …` and `duewheel job …`: many messages at once.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use duewheel_client::segment;
use duewheel_core::QueueName;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::existing::{must_exist, note_missing};
use super::failure::CommandFailure;
use super::failure::{none_of, refusal_in};
use super::message::{DeadFilter, FilterArgs, query};
use super::queue::{operate, path, queue_name, tell_undo};
use super::remote::{Remote, will_pass};
use super::session::{ClientArgs, ClientCommand, ClientSession, NoArgs, RunCommand, confirm, fields};
use super::system_words::on_stderr;
use super::table::{self, are, cell, cell_counted, counted, elements, member, plain, texts, were};
use super::when::{self, Millis};
use duewheel_api::span::TimeSpan;

/// How often `--wait` looks at the job.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
pub(super) struct DeadArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    #[command(flatten)]
    filter: DeadFilter,
}

impl ClientCommand for DeadArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        note_missing(&session.remote, &self.queue, "");
        let (mut counts, mut counted) = (BTreeMap::<(String, String), u64>::new(), 0);
        let filter = query(fields(&self.filter)?).replacen('&', "?", 1);
        for one in session.remote.list(&format!("{}/dead{filter}", path(&self.queue)), "reasons")? {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let messages = one["messages"].as_u64().unwrap_or(0);
            *counts.entry((text("dead_reason"), text("dead_note"))).or_default() += messages;
            counted += messages;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, messages)| std::cmp::Reverse(*messages));
        let reason = |((reason, note), messages): &((String, String), u64)| json!({"dead_reason": reason, "dead_note": note, "messages": messages});
        let reasons: Vec<Value> = counts.iter().map(reason).collect();
        let answer = json!({"reasons": reasons, "counted": counted});
        session.print(&answer, |out| {
            let columns: [table::Column<'_>; 3] = [
                ("MESSAGES", &member("messages")),
                ("REASON", &member("dead_reason")),
                ("NOTE OF THE LAST ATTEMPT", &member("dead_note")),
            ];
            table::print_rows(out, &reasons, &columns)
        })
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct RedriveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    #[serde(skip)]
    queue: QueueName,
    /// Only this message; may be given several times
    #[arg(long = "id", value_name = "ID", conflicts_with_all = ["max", "reason", "note", "dead_reason", "dead_note"])]
    ids: Vec<String>,
    /// At most this number of messages, in the order in which they died
    #[arg(long, value_name = "N", conflicts_with_all = ["reason", "note", "dead_reason", "dead_note"])]
    max: Option<u64>,
    /// With --id: the messages become new ones of this queue
    #[arg(long, value_name = "QUEUE", requires = "ids", value_parser = queue_text)]
    to_queue: Option<String>,
    /// Do nothing if more messages match than this number
    #[arg(long, value_name = "N", conflicts_with = "ids")]
    expect: Option<u64>,
    #[command(flatten)]
    #[serde(skip)]
    filter: DeadFilter,
    /// With --reason and --note: do not ask
    #[arg(long)]
    #[serde(skip)]
    yes: bool,
}

/// Reads the name of a queue, for a request.
fn queue_text(text: &str) -> Result<String, String> {
    queue_name(text).map(|name| name.to_string())
}

impl ClientCommand for RedriveArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let filter = fields(&self.filter)?;
        must_exist(&session.remote, &self.queue, "")?;
        if !filter.is_empty() {
            return redrive(session, &self.queue, filter, self.expect, self.yes);
        }
        let (mut refused, mut stay) = (Vec::new(), Vec::new());
        operate(session, &self.queue, "redrive", fields(&self)?, |answer| {
            for result in elements(answer, "results").filter(|result| result.get("code").is_some()) {
                refused.push((cell(result, "id"), refusal_in(result)));
            }
            for of_code in elements(answer, "refused") {
                let messages = counted(of_code["messages"].as_u64().unwrap_or(0), "message");
                let ids: Vec<&str> = texts(&of_code["ids"]).collect();
                stay.push(format!("{}: {messages} ({})", cell(of_code, "code"), ids.join(", ")));
            }
            format!("{} ready again", are(answer["redriven"].as_u64().unwrap_or(0), "message"))
        })?;
        match refused.len() {
            0 if !stay.is_empty() => {
                Err(CommandFailure::Failed(format!("some stay dead: {}", stay.join("; "))))
            }
            0 => Ok(()),
            1 => refused.pop().map_or(Ok(()), |(_, refusal)| Err(CommandFailure::Refused(refusal))),
            many => {
                // With --json the answer has them.
                for (id, refusal) in refused.iter().filter(|_| !session.is_json) {
                    on_stderr(format_args!("duewheel: {id}: {}", plain(&refusal.to_string())));
                }
                Err(CommandFailure::Failed(format!("{many} messages were refused")))
            }
        }
    }
}

/// Redrives dead messages that a filter names, and waits for the job. It says how many and asks first, unless `yes`.
fn redrive(
    session: &ClientSession,
    queue: &QueueName,
    filter: Map<String, Value>,
    expect: Option<u64>,
    yes: bool,
) -> Result<(), CommandFailure> {
    let (remote, path) = (&session.remote, format!("{}/bulk", path(queue)));
    let mut request = json!({"action": "redrive", "filter": filter, "dry_run": true});
    if !yes {
        let count = remote.post(&path, &request)?;
        confirm(&format!("redrive {} of {queue}", cell_counted(&count, "matched", "message")))?;
        request["expect"] = count["matched"].clone();
    }
    if let Some(expect) = expect {
        request["expect"] = expect.into();
    }
    request["dry_run"] = false.into();
    let job = ended(remote, remote.post(&path, &request)?)?;
    session.print(&job, |out| {
        writeln!(out, "{queue}  {} ready again", are(job["done"].as_u64().unwrap_or(0), "message"))?;
        for (name, why) in [
            ("changed", "changed meanwhile"),
            ("refused", "could not be, such as because their key is taken"),
        ] {
            if job[name] != 0 {
                writeln!(out, "{queue}  {} {why}", cell(&job, name))?;
            }
        }
        Ok(())
    })?;
    all_done(&job)
}

#[derive(Args, Debug, Serialize)]
pub(super) struct BulkArgs {
    /// What to do with each message
    #[arg(value_enum)]
    action: BulkVerb,
    /// The queue
    #[arg(value_parser = queue_name)]
    #[serde(skip)]
    queue: QueueName,
    /// For restore: the act that is undone
    #[arg(long, value_name = "ID", required_if_eq("action", "restore"))]
    act: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    filter: FilterArgs,
    /// All messages of the queue
    #[arg(long)]
    all: bool,
    /// For postpone and redrive: due after this time from now
    #[arg(long = "delay", value_name = "TIME")]
    delay_ms: Option<Millis>,
    /// For postpone: due this much later than it was; earlier with a - before it
    #[arg(long = "shift", value_name = "TIME", value_parser = shift, allow_hyphen_values = true, conflicts_with = "delay_ms")]
    shift_ms: Option<i64>,
    /// For redrive: as new messages of this queue
    #[arg(long, value_name = "QUEUE", value_parser = queue_text)]
    to_queue: Option<String>,
    /// At most this number of messages a second
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Do nothing if more messages match than this number; the number that was confirmed counts without it
    #[arg(long, value_name = "N")]
    expect: Option<u64>,
    /// For cancel: keep the messages for this time, for `duewheel bulk restore`
    #[arg(long = "keep", value_name = "TIME")]
    keep_ms: Option<Millis>,
    /// Count the messages, and change none
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    #[serde(skip)]
    yes: bool,
    /// Wait until the job has ended
    #[arg(long)]
    #[serde(skip)]
    wait: bool,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum BulkVerb {
    /// Cancel scheduled and ready messages; dead ones with --state dead
    Cancel,
    /// Give scheduled and ready messages another due time
    Postpone,
    /// Make scheduled messages due now
    Fire,
    /// Make dead messages ready again
    Redrive,
    /// Put back the messages that an act has cancelled with --keep
    Restore,
}

fn shift(text: &str) -> Result<i64, String> {
    let (sign, span) = text.strip_prefix('-').map_or((1, text), |span| (-1, span));
    let TimeSpan(ms) = when::span(span).map_err(|what| what.to_string())?;
    i64::try_from(ms).map(|ms| sign * ms).map_err(|_| "is too long".to_owned())
}

impl BulkArgs {
    fn request(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut request = fields(self)?;
        let filter = self.filter.json()?;
        match (filter.is_empty(), self.all) {
            (true, false) if self.act.is_some() => {}
            (true, false) => {
                let what = "say which messages: --key-prefix, --header, --due-from, --due-to, --state, --reason, --note, \
                     or --all";
                return Err(CommandFailure::Usage(what.to_owned()));
            }
            (false, true) => {
                return Err(CommandFailure::Usage(
                    "--all leaves no message out; give no filter with it".to_owned(),
                ));
            }
            (true, true) => {}
            (false, false) => drop(request.insert("filter".into(), Value::Object(filter))),
        }
        Ok(request)
    }
}

impl ClientCommand for BulkArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let mut request = self.request()?;
        let (remote, queue, path) = (&session.remote, &self.queue, format!("{}/bulk", path(&self.queue)));
        // A queue that a purge has left without messages is gone until they are restored.
        if self.act.is_none() {
            note_missing(remote, queue, "");
        }
        let verb = cell(&json!(request), "action");
        if self.dry_run || !self.yes || self.act.is_some() {
            request.insert("dry_run".into(), true.into());
            let count = remote.post(&path, &json!(request))?;
            if let Some(act) = self.act.as_ref().filter(|_| count["matched"] == 0) {
                let what = format!("--act {act:?}: no message of {queue} is kept that this act has removed");
                return Err(CommandFailure::NotFound(what));
            }
            let (matched, leased) = (cell_counted(&count, "matched", "message"), cell(&count, "leased"));
            if self.dry_run {
                let are = if leased == "1" { "is" } else { "are" };
                let words = format_args!("{queue}  would {verb} {matched}; {leased} {are} leased");
                return session.say(&count, words);
            }
            if !self.yes {
                confirm(&format!("{verb} {matched} of {queue}"))?;
                request.entry("expect").or_insert_with(|| count["matched"].clone());
            }
            request.remove("dry_run");
        }
        let job = remote.post(&path, &Value::Object(request))?;
        // Whatever becomes of the wait and of the output, the caller has the job.
        if self.keep_ms.is_some() {
            tell_undo(queue, &job["id"]);
        }
        let job = if self.wait {
            let id = cell(&job, "id");
            on_stderr(if session.is_json { json!({"job": id}).to_string() } else { format!("job {id}") });
            ended(remote, job)?
        } else {
            job
        };
        session.print(&job, |out| tell_job(out, &job))?;
        all_done(&job)
    }
}

/// Fails if a job was ended early, or has left messages as they were.
fn all_done(job: &Value) -> Result<(), CommandFailure> {
    let (done, matched) = (cell(job, "done"), cell(job, "matched"));
    let refused = job["refused"].as_u64().unwrap_or(0);
    none_of([
        ((job["state"] == "cancelled").into(), format!("the job was cancelled: {done} of {matched} done")),
        (refused, format!("{} refused", were(refused, "message"))),
    ])
}

/// Waits until a job has ended, also while its server is away. One that more messages match than it expects is refused,
/// as when it begins.
fn ended(remote: &Remote, mut job: Value) -> Result<Value, CommandFailure> {
    while job["ended_at"].is_null() {
        thread::sleep(LOOK);
        match remote.get(&job_path(&cell(&job, "id"))) {
            Ok(now) => job = now,
            Err(trouble) if will_pass(&trouble) => remote.note_wait(&trouble),
            Err(trouble) => return Err(trouble.into()),
        }
    }
    match (job["matched"].as_u64(), job["expect"].as_u64()) {
        (Some(matched), Some(expect)) if job["state"] == "cancelled" && matched > expect => {
            let detail = format!("{matched} messages match, and {expect} were expected; nothing was done");
            let problem = json!({"code": "changed", "detail": detail});
            Err(CommandFailure::Refused(refusal_in(&problem)))
        }
        _ => Ok(job),
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// List jobs, the newest first; those that have ended are kept for a week
    List(ClientArgs<NoArgs>),
    /// Show how far a job has come
    Get(ClientArgs<JobArgs>),
    /// End a job; what it has changed stays
    Cancel(ClientArgs<JobArgs>),
}

#[derive(Args, Debug)]
pub(super) struct JobArgs {
    /// The id of the job
    id: String,
}

impl RunCommand for JobCommand {
    fn run(self) -> Result<(), CommandFailure> {
        match self {
            JobCommand::List(args) => args.with(|_, session| list_jobs(session)),
            JobCommand::Get(args) => args.with(|JobArgs { id }, session| {
                let job = session.remote.get(&job_path(&id))?;
                session.print(&job, |out| tell_job(out, &job))
            }),
            JobCommand::Cancel(args) => args.with(|JobArgs { id }, session| {
                let job = session.remote.delete(&job_path(&id))?;
                session.print(&job, |out| tell_job(out, &job))
            }),
        }
    }
}

fn list_jobs(session: &ClientSession) -> Result<(), CommandFailure> {
    let answer = session.remote.get("/v1/jobs")?;
    session.print(&answer, |out| {
        let columns: [table::Column<'_>; 7] = [
            ("ID", &member("id")),
            ("QUEUE", &member("queue")),
            ("ACTION", &member("action")),
            ("STATE", &member("state")),
            ("MATCHED", &member("matched")),
            ("DONE", &member("done")),
            ("CREATED", &|job| when::instant_told(job, "created_at")),
        ];
        table::print_rows(out, elements(&answer, "jobs"), &columns)
    })
}

fn job_path(id: &str) -> String {
    format!("/v1/jobs/{}", segment(id))
}

fn tell_job(out: &mut dyn Write, job: &Value) -> io::Result<()> {
    let names = [
        "id", "queue", "action", "state", "matched", "done", "leased", "changed", "refused", "rate",
        "to_queue", "act", "expect",
    ];
    table::print_members(out, 10, job, &names)?;
    writeln!(out, "{:<10}{}", "created", when::instant_told(job, "created_at"))?;
    if !job["ended_at"].is_null() {
        writeln!(out, "{:<10}{}", "ended", when::instant_told(job, "ended_at"))?;
    }
    Ok(())
}
