//! `duewheel enqueue`: one message, or one for each line of standard input.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use duewheel_client::ErrorCode;
use duewheel_core::QueueName;
use indicatif::ProgressBar;
use jiff::Zoned;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::failure::CommandFailure;
use super::failure::{is_of_the_request, refused_line, with_flags, with_words};
use super::invocation::{self, print_json};
use super::line_batch::LineBatch;
use super::queue::{BackoffArg, path, queue_name};
use super::remote::{Remote, is_full};
use super::session::{ClientCommand, ClientSession, fields, print_answer, progress};
use super::system_words::on_stderr;
use super::table::{cell, were};
use super::when::{self, GivenTime, Millis};

#[derive(Args, Debug)]
pub(super) struct EnqueueArgs {
    /// The queue
    #[arg(value_parser = queue_name)]
    queue: QueueName,
    /// The body; `-` or no body reads standard input
    #[arg(allow_hyphen_values = true)]
    body: Option<String>,
    #[command(flatten)]
    when: DueArgs,
    #[command(flatten)]
    message: MessageOptions,
    /// Accept an empty body
    #[arg(long)]
    allow_empty: bool,
    /// Make each line of standard input a message, and print the id of each
    #[arg(long, conflicts_with_all = ["key", "dedupe_id"])]
    lines: bool,
    /// Print nothing; with --lines how many were enqueued, without their ids
    #[arg(long, short)]
    quiet: bool,
}

/// The properties of a message, as a request has them.
#[derive(Args, Debug, Serialize)]
struct MessageOptions {
    /// Your own name for the message, unique among the pending ones of its queue
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// What to do if the key is taken
    #[arg(long, value_name = "WHAT", requires = "key")]
    if_exists: Option<IfExistsArg>,
    /// Makes a repeated enqueue return the first answer
    #[arg(long, value_name = "ID")]
    dedupe_id: Option<String>,
    /// How long the answer is remembered; at most the queue's dedupe window
    #[arg(long = "dedupe-window", value_name = "TIME", requires = "dedupe_id")]
    dedupe_window_ms: Option<Millis>,
    /// A header that is stored with the message; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    #[serde(skip)]
    headers: Vec<(String, String)>,
    /// Send the message to this URL instead of to the target of its queue; a token needs the scope push-any
    #[arg(long, value_name = "URL")]
    target_url: Option<String>,
    /// Priority; lower goes first
    #[arg(long, value_name = "N")]
    priority: Option<u32>,
    /// Number of attempts after which the message is dead
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Shortest and longest time until the next attempt, such as 1s..1h
    #[arg(long, value_name = "TIME..TIME")]
    backoff: Option<BackoffArg>,
    /// Length of a lease
    #[arg(long = "lease", value_name = "TIME")]
    lease_ms: Option<Millis>,
    /// Due at an instant of its own within this time from the due time on
    #[arg(long = "spread", value_name = "TIME")]
    spread_ms: Option<Millis>,
    /// The message expires this time after its due time
    #[arg(long = "expires-in", value_name = "TIME", conflicts_with = "expires_at")]
    expires_in_ms: Option<Millis>,
    /// The message expires at this instant, such as 2027-01-31T08:00:00Z or "tomorrow 9:00"
    #[arg(long, value_name = "INSTANT")]
    #[serde(skip)]
    expires_at: Option<String>,
}

/// When a message is due.
#[derive(Args, Clone, Debug)]
pub(super) struct DueArgs {
    /// After this time, such as 250ms, 10s, 48h, 15d, "2 days", PT48H; a number alone is seconds
    #[arg(long, value_name = "TIME", conflicts_with = "at")]
    delay: Option<String>,
    /// At this instant, such as 2027-01-31T08:00:00Z, "tomorrow 9:00" or 2027-01-31, the last two in this machine's time zone
    #[arg(long, value_name = "INSTANT")]
    at: Option<String>,
    /// What to do if the instant has passed
    #[arg(long, value_name = "WHAT", requires = "at")]
    past: Option<PastArg>,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum PastArg {
    Refuse,
    Fire,
    Keep,
}

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum IfExistsArg {
    Reject,
    Keep,
    Replace,
    /// Replace it; a leased message runs on without its key, and ends with its lease
    Supersede,
}

impl DueArgs {
    /// The words of a time that counts from now, such as `1 month` of `--delay "1 month"` and `--at "in 1 month"`.
    fn relative_words(&self) -> Option<&str> {
        match (&self.delay, &self.at) {
            (Some(text), _) => Some(when::strip_in(text).unwrap_or(text.trim())),
            (None, Some(text)) => when::strip_in(text),
            (None, None) => None,
        }
    }

    /// Writes it to a request; without `--delay` and `--at`, `default` is used, if there is one. Says how it was read where
    /// people should know.
    pub(super) fn write(
        &self,
        request: &mut Map<String, Value>,
        default: Option<u64>,
    ) -> Result<(), CommandFailure> {
        let now = Zoned::now();
        let read = match (&self.delay, &self.at) {
            (Some(text), _) => Some(("--delay", text, when::delay(text, &now))),
            (None, Some(text)) => Some(("--at", text, when::at(text, &now))),
            (None, None) => None,
        };
        match read {
            Some((option, text, read)) => match when::time_of(option, text, read)? {
                // A time that counts from now has not passed.
                GivenTime::After(ms) => drop(request.insert("delay_ms".into(), ms.into())),
                GivenTime::At(instant) => {
                    request.insert("due_at".into(), instant.into());
                    if let Some(past) = self.past {
                        request.insert("past".into(), json!(past));
                    }
                }
            },
            None => {
                if let Some(ms) = default {
                    request.insert("delay_ms".into(), ms.into());
                }
            }
        }
        Ok(())
    }
}

impl ClientCommand for EnqueueArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let path = format!("{}/messages", path(&self.queue));
        let mut request = self.request()?;
        if self.lines {
            if self.body.as_deref().is_some_and(|body| body != "-") {
                return Err(CommandFailure::Usage("--lines reads standard input; leave the body out".into()));
            }
            let printed = match (session.is_json, self.quiet) {
                (json, true) => PrintedLines::Summary { json },
                (true, false) => PrintedLines::Answers,
                (false, false) => PrintedLines::Ids,
            };
            say_that_it_reads("a message a line");
            let bar = ProgressBar::new_spinner();
            let sender = LineSender {
                remote: &session.remote,
                path,
                common: request,
                printed,
                allow_empty: self.allow_empty,
                waiting: LineBatch::default(),
                read: 0,
                accepted: 0,
                failed: 0,
                progress: progress(bar, "{spinner} {human_pos} accepted, {per_sec}, {elapsed}"),
            };
            return sender.run();
        }
        let body = read_body("BODY", self.body.as_deref(), self.allow_empty, ALLOW_EMPTY)?;
        put_body(&mut request, body);
        let answer = session.remote.post(&path, &Value::Object(request))?;
        if self.quiet {
            return Ok(());
        }
        let of = |name: &str| answer[name].as_str();
        let what = match (answer["created"].as_bool(), of("replaced"), of("superseded")) {
            _ if answer["replayed"] == true && !session.is_json => {
                return session.say(&answer, enqueued_before(&session.remote, &answer));
            }
            (Some(false), ..) => format!("kept ({})", cell(&answer, "state")),
            (_, Some(old), _) => format!("enqueued in place of {old}"),
            (_, _, Some(old)) => format!("enqueued; supersedes {old}, which is leased"),
            _ => "enqueued".to_owned(),
        };
        session.say(&answer, format_args!("{}  {what}, due {}", cell(&answer, "id"), when::due(&answer)))
    }
}

impl EnqueueArgs {
    fn request(&self) -> Result<Map<String, Value>, CommandFailure> {
        let message = &self.message;
        let mut request = fields(message)?;
        self.when.write(&mut request, Some(0))?;
        // A retry computes another instant from the same words.
        if let (Some(_), true, Some(words)) =
            (&message.dedupe_id, request.contains_key("due_at"), self.when.relative_words())
        {
            request.insert("due_words".into(), words.into());
        }
        if !message.headers.is_empty() {
            request.insert("headers".into(), headers(&message.headers)?);
        }
        if let Some(text) = &message.expires_at {
            request.insert("expires_at".into(), expires_at(text)?);
        }
        Ok(request)
    }
}

/// A command that waits for what is typed would look as if it hung.
fn say_that_it_reads(what: &str) {
    if !invocation::current().is_json() && io::stdin().is_terminal() {
        on_stderr(format_args!("reading {what} from standard input; end with Ctrl-D"));
    }
}

/// The option for bodies that are empty on purpose.
pub(super) const ALLOW_EMPTY: &str = "--allow-empty";

/// The body that the argument `name` gives: standard input for `-`, or without a text. An empty one is refused unless it
/// `is_meant`, which `otherwise` says.
pub(super) fn read_body(
    name: &str,
    text: Option<&str>,
    is_meant: bool,
    otherwise: &str,
) -> Result<Vec<u8>, CommandFailure> {
    let body = match text {
        Some(text) if text != "-" => text.as_bytes().to_vec(),
        Some(_) | None => {
            say_that_it_reads("the body");
            let mut bytes = Vec::new();
            let read = io::stdin().read_to_end(&mut bytes);
            read.map_err(|error| CommandFailure::Failed(format!("standard input: {error}")))?;
            bytes
        }
    };
    if body.is_empty() && !is_meant {
        return Err(CommandFailure::Usage(format!("{name}: is empty; use {otherwise} to send it")));
    }
    Ok(body)
}

/// The words for an answer to an earlier enqueue: with the present state of its message, if it can be read.
fn enqueued_before(remote: &Remote, answer: &Value) -> String {
    let id = cell(answer, "id");
    let before = format!("{id}  was enqueued before as {id}");
    match remote.get(&format!("/v1/messages/{id}")) {
        Ok(message) => match message["state"].as_str() {
            Some("scheduled") => format!("{before}, due {}", when::due(&message)),
            Some(state @ ("ready" | "leased" | "dead")) => format!("{before}; it is {state}"),
            _ => format!("{before}; it is not pending any more"),
        },
        Err(refusal) if refusal.code == ErrorCode::MessageNotFound => {
            format!("{before}; it is not pending any more")
        }
        Err(_) => before,
    }
}

/// Reads an instant as people write it.
fn expires_at(text: &str) -> Result<Value, CommandFailure> {
    if when::strip_in(text).is_some() {
        let why = "must be an instant; for a time after the due time say --expires-in";
        return Err(CommandFailure::Usage(format!("--expires-at {text:?}: {why}")));
    }
    Ok(when::instant_of("--expires-at", text, &Zoned::now())?.into())
}

/// Reads `NAME=VALUE`.
pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The headers of a request. Of two values for one name, one would be lost.
pub(super) fn headers(given: &[(String, String)]) -> Result<Value, CommandFailure> {
    let mut headers = Map::new();
    for (name, value) in given {
        if headers.insert(name.clone(), value.as_str().into()).is_some() {
            return Err(header_twice(name));
        }
    }
    Ok(Value::Object(headers))
}

/// The refusal of a header that was given twice.
pub(super) fn header_twice(name: &str) -> CommandFailure {
    CommandFailure::Usage(format!("--header {name}: occurs twice"))
}

/// Puts a body into a request: as text where it is text, otherwise in base64.
pub(super) fn put_body(request: &mut Map<String, Value>, body: Vec<u8>) {
    match String::from_utf8(body) {
        Ok(text) => request.insert("body".into(), text.into()),
        Err(error) => request.insert("body_base64".into(), STANDARD.encode(error.as_bytes()).into()),
    };
}

/// The content of standard output with `--lines`.
#[derive(Clone, Copy)]
enum PrintedLines {
    /// The id of each message, in the order of the lines.
    Ids,
    /// The answer to each line as JSON, with its `line`.
    Answers,
    /// Only how many were accepted. Otherwise that goes to standard error.
    Summary { json: bool },
}

/// Sends lines of standard input.
struct LineSender<'a> {
    remote: &'a Remote,
    path: String,
    /// The common fields of all messages.
    common: Map<String, Value>,
    printed: PrintedLines,
    allow_empty: bool,
    /// Lines that were read and not sent.
    waiting: LineBatch,
    read: u64,
    accepted: u64,
    failed: u64,
    progress: ProgressBar,
}

impl LineSender<'_> {
    fn run(mut self) -> Result<(), CommandFailure> {
        let mut input = BufReader::with_capacity(256 * 1024, io::stdin().lock());
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = input.read_until(b'\n', &mut line);
            if read.map_err(|error| self.stopped("standard input", &error))? == 0 {
                break;
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            self.add(&line);
            // The input may be typed: complete lines are sent before more input is awaited.
            if self.waiting.is_full() || !input.buffer().contains(&b'\n') {
                self.send()?;
            }
        }
        while self.waiting.first().is_some() {
            self.send()?;
        }
        self.progress.finish_and_clear();
        let summary = json!({"accepted": self.accepted, "failed": self.failed});
        match self.printed {
            PrintedLines::Ids => on_stderr(format_args!("{} enqueued", self.accepted)),
            PrintedLines::Answers => print_json(&mut io::stderr(), &summary)?,
            PrintedLines::Summary { json } => {
                print_answer(json, &summary, |out| writeln!(out, "{} enqueued", self.accepted))?
            }
        }
        if self.failed == 0 {
            Ok(())
        } else {
            Err(CommandFailure::Failed(format!("{} refused", were(self.failed, "line"))))
        }
    }

    fn add(&mut self, line: &[u8]) {
        self.read += 1;
        if line.is_empty() && !self.allow_empty {
            self.failed += 1;
            let text = if invocation::current().is_json() {
                let detail = "BODY: is empty; use --allow-empty to send it";
                json!({"line": self.read, "code": "usage", "detail": detail}).to_string()
            } else {
                format!("duewheel: line {}: is empty; use --allow-empty to send it", self.read)
            };
            self.progress.suspend(|| on_stderr(text));
            return;
        }
        let mut request = self.common.clone();
        put_body(&mut request, line.to_vec());
        self.waiting.add(self.read, Value::Object(request).to_string());
    }

    /// Sends the waiting lines. Lines for which the server has no room at the moment keep waiting.
    fn send(&mut self) -> Result<(), CommandFailure> {
        let Some(first) = self.waiting.first() else { return Ok(()) };
        let mut out = String::new();
        let sent = self.waiting.send(self.remote, &self.path, is_full, |number, result| match result {
            Ok(mut answer) => {
                self.accepted += 1;
                match self.printed {
                    PrintedLines::Ids => out += &format!("{}\n", cell(&answer, "id")),
                    PrintedLines::Answers => {
                        answer["line"] = number.into();
                        out += &format!("{answer}\n");
                    }
                    PrintedLines::Summary { .. } => {}
                }
            }
            Err(refusal) => {
                self.failed += 1;
                let text = refused_line(Some(number), "", &with_flags(refusal, None));
                self.progress.suspend(|| on_stderr(text));
            }
        });
        let no_room = sent.map_err(|trouble| {
            self.progress.finish_and_clear();
            // The request was refused before its first line was read.
            let rest = if is_of_the_request(&trouble) { "nothing was accepted" } else { "it is not known" };
            let so_far = format!("; {} accepted; {rest} from line {first} on", self.accepted);
            with_words(trouble, "", &so_far)
        })?;
        if !out.is_empty() {
            let printed = self.progress.suspend(|| io::stdout().write_all(out.as_bytes()));
            printed.map_err(|error| self.stopped("standard output", &error))?;
        }
        self.progress.set_position(self.accepted);
        if no_room.is_some() {
            self.progress.tick();
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// The failure of the input or of the output: lines that were accepted must not be sent again.
    fn stopped(&self, stream: &str, error: &io::Error) -> CommandFailure {
        let (accepted, read) = (self.accepted, self.read);
        let so_far = format!("{accepted} of the first {read} lines were accepted, and no other is sent");
        CommandFailure::Failed(format!("{stream}: {error}; {so_far}"))
    }
}
