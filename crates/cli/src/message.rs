//! `duewheel get|cancel|postpone|fire (ID | QUEUE --key K)`, `replay ID` and `list QUEUE`; `reserve QUEUE`, and
//! `ack|nack|extend ID TOKEN` for what it gives.

use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use duewheel_client::segment;
use duewheel_core::QueueName;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::enqueue::{ALLOW_EMPTY, DueArgs, header, headers, put_body, read_body};
use super::existing::note_missing;
use super::failure::CommandFailure;
use super::queue::{QueuesArgs, path, queue_name};
use super::session::{ClientCommand, ClientSession, fields};
use super::table::{self, body, body_cell, cell, elements, member, plain};
use super::when::{self, GivenInstant, Millis};

/// Number of messages of one request.
const PAGE: usize = 1_000;
/// The longest wait for a message that a server takes.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// Largest number of characters of a body that is shown.
const BODY_CHARS: usize = 2_000;

/// Identifies one message.
#[derive(Args, Debug)]
pub(super) struct MessageArgs {
    /// The message's id; with --key, its queue
    #[arg(value_name = "ID|QUEUE")]
    name: String,
    /// The message's key
    #[arg(long, value_name = "K")]
    key: Option<String>,
}

impl MessageArgs {
    fn path(&self) -> Result<String, CommandFailure> {
        match &self.key {
            Some(key) => Ok(format!("/v1/queues/{}/keys/{}", segment(&self.name), segment(key))),
            None if !self.name.is_empty() && self.name.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(format!("/v1/messages/{}", self.name))
            }
            None => Err(CommandFailure::Usage(format!(
                "{:?} is not an id; for a message by its key use: {} --key K",
                self.name, self.name
            ))),
        }
    }
}

#[derive(Args, Debug)]
pub(super) struct GetArgs {
    #[command(flatten)]
    target: MessageArgs,
}

impl ClientCommand for GetArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let message = session.remote.get(&self.target.path()?)?;
        session.print(&message, |out| show(out, &message))
    }
}

#[derive(Args, Debug)]
pub(super) struct CancelArgs {
    #[command(flatten)]
    target: MessageArgs,
    /// Also forget the answer to its dedupe id, so that the next enqueue with it is a new one
    #[arg(long)]
    forget_dedupe: bool,
}

impl ClientCommand for CancelArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let path = self.target.path()?;
        let answer = match self.forget_dedupe {
            true => session.remote.delete_with(&path, &json!({"forget_dedupe": true}))?,
            false => session.remote.delete(&path)?,
        };
        session.say(&answer, format_args!("{}  cancelled", cell(&answer, "id")))
    }
}

#[derive(Args, Debug)]
pub(super) struct PostponeArgs {
    #[command(flatten)]
    target: MessageArgs,
    #[command(flatten)]
    when: DueArgs,
    /// A new body; `-` reads standard input
    #[arg(long, value_name = "BODY", allow_hyphen_values = true)]
    body: Option<String>,
    /// Accept an empty body
    #[arg(long)]
    allow_empty: bool,
    /// A header, in place of all that the message has; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Remove all headers
    #[arg(long, conflicts_with = "header")]
    no_headers: bool,
    #[command(flatten)]
    change: MessageChange,
    /// Only if the message has this generation
    #[arg(long, value_name = "N")]
    if_generation: Option<u32>,
}

/// The settings of a message that can be changed, as in a request.
#[derive(Args, Debug, Serialize)]
struct MessageChange {
    /// Send the message to this URL instead of to the target of its queue; a token needs the scope push-any
    #[arg(long, value_name = "URL")]
    target_url: Option<String>,
    /// Send the message to the target of its queue
    #[arg(long, conflicts_with = "target_url")]
    #[serde(skip)]
    no_target_url: bool,
    /// A new priority; lower goes first
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// Number of attempts after which the message is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// A new length of a lease
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
}

impl ClientCommand for PostponeArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let mut request = fields(&self.change)?;
        self.when.write(&mut request, None)?;
        if let Some(body) = self.body {
            put_body(&mut request, read_body("--body", Some(&body), self.allow_empty, ALLOW_EMPTY)?);
        }
        if self.no_headers || !self.header.is_empty() {
            request.insert("headers".into(), headers(&self.header)?);
        }
        if self.change.no_target_url {
            request.insert("target_url".into(), Value::Null);
        }
        if request.is_empty() {
            let what = "nothing to change: give --delay, --at, --body, --header, --no-headers, --target-url, --no-target-url, \
                        --priority, --max-attempts or --lease; what is left out stays as it is";
            return Err(CommandFailure::Usage(what.into()));
        }
        if let Some(generation) = self.if_generation {
            request.insert("if_generation".into(), generation.into());
        }
        let answer = session.remote.patch(&self.target.path()?, &Value::Object(request))?;
        changed(session, &answer, "changed")
    }
}

#[derive(Args, Debug)]
pub(super) struct FireArgs {
    #[command(flatten)]
    target: MessageArgs,
}

impl ClientCommand for FireArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let answer = session.remote.post(&format!("{}/fire", self.target.path()?), &json!({}))?;
        changed(session, &answer, "fired")
    }
}

fn changed(session: &ClientSession, answer: &Value, how: &str) -> Result<(), CommandFailure> {
    let (id, state) = (cell(answer, "id"), cell(answer, "state"));
    session.say(answer, format_args!("{id}  {how}, {state}, due {}", when::due(answer)))
}

#[derive(Args, Debug)]
pub(super) struct ReplayArgs {
    /// The id of a done or dead message
    id: String,
    /// The key of the new message; without it, it has none
    #[arg(long, value_name = "K")]
    key: Option<String>,
}

impl ClientCommand for ReplayArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let path = MessageArgs { name: self.id.clone(), key: None }.path()?;
        let request = self.key.map_or_else(|| json!({}), |key| json!({ "key": key }));
        let answer = session.remote.post(&format!("{path}/replay"), &request)?;
        let id = cell(&answer, "id");
        session.say(&answer, format_args!("{id}  enqueued with the content of {}", self.id))
    }
}

/// The members of a message that are shown, each with whether it is an instant.
const SHOWN: [(&str, bool); 21] = [
    ("id", false),
    ("queue", false),
    ("key", false),
    ("state", false),
    ("outcome", false),
    ("result", false),
    ("ended_at", true),
    ("due_at", true),
    ("attempt", false),
    ("forgiven", false),
    ("max_attempts", false),
    ("generation", false),
    ("priority", false),
    ("lease_ms", false),
    ("expires_at", true),
    ("enqueued_at", true),
    ("lease_until", true),
    ("superseded_by", false),
    ("dead_reason", false),
    ("dead_at", true),
    ("target_url", false),
];

fn show(out: &mut dyn Write, message: &Value) -> io::Result<()> {
    for (name, is_instant) in SHOWN.into_iter().filter(|(name, _)| !message[*name].is_null()) {
        let told = is_instant.then(|| format!("  {}", when::instant_told(message, name)));
        writeln!(out, "{name:12} {}{}", cell(message, name), told.unwrap_or_default())?;
    }
    for (name, value) in message["headers"].as_object().into_iter().flatten() {
        writeln!(out, "{:13}{}: {}", "header", plain(name), plain(value.as_str().unwrap_or_default()))?;
    }
    for past in elements(message, "history") {
        let (how, ended) = (cell(past, "how"), cell(past, "ended_at"));
        let note = plain(past["note"].as_str().unwrap_or_default());
        writeln!(out, "{:13}attempt {} {how} at {ended} {note}", "history", past["attempt"])?;
    }
    for tried in elements(message, "deliveries") {
        let [at, ms, class] = ["at", "ms", "class"].map(|name| cell(tried, name));
        let answer = plain(tried["answer"].as_str().unwrap_or_default());
        let line = format!("{at} in {ms} ms {class} {answer}");
        writeln!(out, "{:13}{}", "delivery", line.trim_end())?;
    }
    writeln!(out, "{:13}{}", "body", body(message, BODY_CHARS))
}

#[derive(Args, Debug)]
pub(super) struct ListArgs {
    /// The queue; without it, the queues are listed
    #[arg(value_parser = queue_name)]
    queue: Option<QueueName>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Largest number of messages
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

impl ClientCommand for ListArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let (mut messages, mut next) = (Vec::new(), None::<String>);
        let filter = self.filter.query()?;
        let Some(queue) = &self.queue else {
            return match filter.is_empty() {
                true => QueuesArgs {}.run(session),
                false => Err(CommandFailure::Usage("name the QUEUE of the messages".to_owned())),
            };
        };
        while messages.len() < self.limit {
            let limit = PAGE.min(self.limit - messages.len());
            let mut path = format!("{}/messages?limit={limit}{filter}", path(queue));
            if let Some(after) = &next {
                path.push_str(&format!("&after={}", segment(after)));
            }
            let mut page = session.remote.get(&path)?;
            if let Some(Value::Array(more)) = page.get_mut("messages").map(Value::take) {
                messages.extend(more);
            }
            next = page["next"].as_str().map(str::to_owned);
            if next.is_none() {
                break;
            }
        }
        if messages.is_empty() && filter.is_empty() {
            note_missing(&session.remote, queue, "");
        }
        let answer = json!({"messages": messages, "next": next});
        let state = |message: &Value| match message["outcome"].as_str() {
            Some(outcome) => format!("done, {outcome}"),
            None => cell(message, "state"),
        };
        session.print(&answer, |out| {
            let columns: [table::Column<'_>; 6] = [
                ("ID", &member("id")),
                ("STATE", &state),
                ("DUE", &when::due),
                ("KEY", &member("key")),
                ("ATTEMPT", &member("attempt")),
                ("BODY", &body_cell),
            ];
            table::print_rows(out, &messages, &columns)?;
            if next.is_some() { writeln!(out, "there may be more; see --limit") } else { Ok(()) }
        })
    }
}

/// Which messages are meant: those for which everything holds that is given.
#[derive(Args, Debug, Serialize)]
pub(super) struct FilterArgs {
    /// Only messages in this state
    #[arg(long, value_name = "S")]
    state: Option<StateArg>,
    /// Only messages whose key begins with this
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only messages with this header; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    #[serde(skip)]
    headers: Vec<(String, String)>,
    /// Only messages that are due at this time or later, such as "tomorrow 9:00"
    #[arg(long, value_name = "INSTANT")]
    due_from: Option<GivenInstant>,
    /// Only messages that are due before this time
    #[arg(long, value_name = "INSTANT")]
    due_to: Option<GivenInstant>,
    #[command(flatten)]
    #[serde(flatten)]
    dead: DeadFilter,
}

/// The dead messages that are meant, as a filter has them.
#[derive(Args, Debug, Serialize)]
pub(super) struct DeadFilter {
    /// Only dead messages with this reason
    #[arg(long, value_name = "R")]
    reason: Option<DeadReasonArg>,
    /// Only dead messages with this reason, by the former name, which has a variable
    #[arg(long, value_name = "R", hide = true, conflicts_with = "reason")]
    dead_reason: Option<DeadReasonArg>,
    /// Only dead messages whose last attempt has this text in its note (what a nack gave as its reason), in capitals or
    /// not; `duewheel dead` shows the notes
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Only dead messages whose last attempt has exactly this note
    #[arg(long, value_name = "TEXT", hide = true, conflicts_with = "note")]
    dead_note: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum StateArg {
    Scheduled,
    Ready,
    Leased,
    Dead,
    /// Ended, and kept for a while by the queue; for `list`
    Done,
}

/// Why a message is dead.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum DeadReasonArg {
    /// All its attempts failed
    MaxAttempts,
    /// A consumer, or the delivery to a target, gave it up
    Buried,
    /// The message had expired
    Expired,
}

impl FilterArgs {
    /// The fields of a request.
    pub(super) fn json(&self) -> Result<Map<String, Value>, CommandFailure> {
        let mut filter = fields(self)?;
        if !self.headers.is_empty() {
            filter.insert("headers".into(), headers(&self.headers)?);
        }
        Ok(filter)
    }

    /// The parameters of a query, each with a `&` before it.
    fn query(&self) -> Result<String, CommandFailure> {
        Ok(query(self.json()?))
    }
}

/// The fields of a filter as parameters of a query, each with a `&` before it.
pub(super) fn query(filter: Map<String, Value>) -> String {
    let mut query = String::new();
    for (name, value) in filter {
        match value {
            Value::Object(headers) => {
                for (name, value) in headers {
                    let value = segment(value.as_str().unwrap_or_default());
                    query.push_str(&format!("&header.{}={value}", segment(&name)));
                }
            }
            value => query.push_str(&format!("&{name}={}", segment(value.as_str().unwrap_or_default()))),
        }
    }
    query
}

#[derive(Args, Debug, Serialize)]
pub(super) struct ReserveArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    #[serde(skip)]
    queue: QueueName,
    /// Largest number of messages
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: u32,
    /// Length of the lease [default: as message and queue say]
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
}

impl ClientCommand for ReserveArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let wait = session.wait_for_message.min(LONGEST_WAIT);
        if !wait.is_zero() {
            note_missing(&session.remote, &self.queue, "waiting for it");
        }
        let mut request = fields(&self)?;
        request.insert("wait_ms".into(), u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into());
        let path = format!("{}/reserve", path(&self.queue));
        let answer = session.remote.post_waiting(&path, &Value::Object(request), wait)?;
        let is_empty = elements(&answer, "messages").next().is_none();
        session.print(&answer, |out| {
            if is_empty {
                let is_held = answer.get("held_back").is_some();
                return writeln!(
                    out,
                    "no message{}",
                    if is_held { ": too many messages are leased" } else { "" }
                );
            }
            let columns: [table::Column<'_>; 5] = [
                ("ID", &member("id")),
                ("TOKEN", &member("lease_token")),
                ("ATTEMPT", &member("attempt")),
                ("KEY", &member("key")),
                ("BODY", &body_cell),
            ];
            table::print_rows(out, elements(&answer, "messages"), &columns)
        })
    }
}

/// Identifies a lease.
#[derive(Args, Debug)]
struct LeaseArgs {
    /// The message's id
    id: String,
    /// The lease's token, which `duewheel reserve` prints
    #[arg(value_name = "TOKEN")]
    lease: String,
}

/// The request that settles a lease.
#[derive(Serialize)]
struct LeaseRequest<'a, O> {
    lease_token: &'a str,
    #[serde(flatten)]
    options: O,
}

impl LeaseArgs {
    fn settle(
        &self,
        verb: &str,
        options: impl Serialize,
        session: &ClientSession,
        words: fn(&Value) -> String,
    ) -> Result<(), CommandFailure> {
        let path = format!("/v1/messages/{}/{verb}", segment(&self.id));
        let answer = session.remote.post(&path, &LeaseRequest { lease_token: &self.lease, options })?;
        session.say(&answer, format_args!("{}  {}", self.id, words(&answer)))
    }
}

/// How a message was settled, in words.
pub(super) fn settled_words(answer: &Value) -> String {
    match cell(answer, "result").as_str() {
        "already" => "was acked already".to_owned(),
        "superseded" => "superseded: another message has its key, and it is gone".to_owned(),
        "again" => format!("again, due {}", when::due(answer)),
        "dead" => format!("dead: {}", cell(answer, "dead_reason")),
        result => result.to_owned(),
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct AckArgs {
    #[command(flatten)]
    #[serde(skip)]
    target: LeaseArgs,
    /// A result, which is kept with the done message if its queue keeps those
    #[arg(long, value_name = "JSON", value_parser = json_text)]
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
}

/// Reads JSON, which keeps its digits.
fn json_text(text: &str) -> Result<Box<RawValue>, String> {
    serde_json::from_str(text).map_err(|error| format!("must be JSON, a text in quotes of its own: {error}"))
}

impl ClientCommand for AckArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        self.target.settle("ack", &self, session, settled_words)
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct NackArgs {
    #[command(flatten)]
    #[serde(skip)]
    target: LeaseArgs,
    /// Time until the next attempt [default: the backoff of message and queue]
    #[arg(long = "delay", value_name = "TIME", conflicts_with = "dead")]
    delay_ms: Option<Millis>,
    /// Why; it is kept as the note of this attempt, by which `redrive --note` finds the message
    #[arg(long, alias = "note", value_name = "TEXT")]
    reason: Option<String>,
    /// Make the message dead at once
    #[arg(long)]
    dead: bool,
    /// Not yet: this attempt does not count
    #[arg(long, conflicts_with = "dead")]
    #[serde(skip)]
    not_yet: bool,
}

impl ClientCommand for NackArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let mut request = fields(&self)?;
        if self.not_yet {
            request.insert("attempt".into(), false.into());
        }
        self.target.settle("nack", request, session, settled_words)
    }
}

#[derive(Args, Debug, Serialize)]
pub(super) struct ExtendArgs {
    #[command(flatten)]
    #[serde(skip)]
    target: LeaseArgs,
    /// The lease's length from now on; it never ends earlier than before [default: as message and queue say]
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
}

impl ClientCommand for ExtendArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        self.target.settle("extend", fields(&self)?, session, |answer| {
            format!("leased until {}", when::instant_told(answer, "lease_until"))
        })
    }
}
