//! `duewheel import FILE`: takes in what `duewheel export` has written.
//!
//! Each message gets a `dedupe_id` made of its id and its time of enqueue in the source, so that the same message, of the
//! same file or of a later one, is taken once, as long as the queue remembers dedupe ids. So a request whose answer was
//! lost can be sent again, and a file can be imported again. The time for which a queue remembers dedupe ids is set
//! last, because the import may take longer.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use duewheel_client::{Error, ErrorCode, segment};
use duewheel_core::QueueName;
use indexmap::IndexMap;
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::export::settings_of;
use super::export_file::{
    ExportEnd, ExportLine, ExportReader, ExportedMessage, ExportedQueue, ExportedSchedule, ExportedState,
    OwnFields,
};
use super::failure::CommandFailure;
use super::failure::{none_of, refused_line, with_words};
use super::line_batch::LineBatch;
use super::queue::{path, queue_name};
use super::remote::{Remote, may_pass};
use super::session::{ClientSession, progress};
use super::system_words::{of_file, on_stderr};
use super::table::{are, counted, print_counts, were};

/// How long an import goes on without any progress, because the server is unreachable or full.
const PATIENCE: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_millis(500);

/// Options of an import from a file.
#[derive(Args, Debug)]
#[command(next_help_heading = "From a file")]
pub(super) struct FileOptions {
    /// Only this queue of the file; may be given several times
    #[arg(long = "queue", value_name = "QUEUE", value_parser = queue_name, conflicts_with = "beanstalk")]
    queues: Vec<QueueName>,
    /// What to do with a message whose key is taken here: refuse it, keep the one that is here, or replace that
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "reject",
        value_parser = ["reject", "keep", "replace", "supersede"],
        conflicts_with = "beanstalk"
    )]
    if_exists: String,
    /// Leave settings and pauses of queues as they are here
    #[arg(long, conflicts_with = "beanstalk")]
    no_settings: bool,
    /// Leave schedules out; messages that they have put come as any others
    #[arg(long, conflicts_with = "beanstalk")]
    no_schedules: bool,
    /// Take messages even if they were imported within the last day. An import that was interrupted goes on with the word
    /// that it told: --again=WORD
    #[arg(
        long,
        value_name = "WORD",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with = "beanstalk"
    )]
    again: Option<String>,
    /// Only check the file, without a server
    #[arg(long, conflicts_with = "beanstalk")]
    check: bool,
}

/// Imports a file, or standard input.
pub(super) fn run(
    file: &Path,
    prefix: &str,
    options: &FileOptions,
    session: &ClientSession,
) -> Result<(), CommandFailure> {
    let usage = |error: &dyn fmt::Display| CommandFailure::Usage(format!("FILE {}: {error}", file.display()));
    let mut importer = FileImporter::new(&session.remote, prefix, options);
    let result = if file.as_os_str() == "-" {
        let input = BufReader::with_capacity(256 * 1024, io::stdin().lock());
        importer.take(ExportReader::new(input), !options.check, &usage)
    } else {
        let unread = |error| CommandFailure::Usage(format!("FILE {}", of_file(file, &error)));
        let mut opened = File::open(file).map_err(unread)?;
        importer.take(ExportReader::new(BufReader::new(&opened)), false, &usage)?;
        importer.named_queues()?;
        opened.rewind()?;
        let input = BufReader::with_capacity(256 * 1024, opened);
        if options.check { Ok(()) } else { importer.take(ExportReader::new(input), true, &usage) }
    };
    importer.progress.finish_and_clear();
    result?;
    importer.named_queues()?;
    importer.tell(options.check, session)
}

/// A message as it is enqueued.
#[derive(Debug, Serialize)]
struct ImportedLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<&'a str>,
    due_at: &'a str,
    past: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    if_exists: Option<&'a str>,
    dedupe_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    headers: &'a IndexMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_url: Option<&'a str>,
    #[serde(flatten)]
    own: OwnFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
}

impl<'a> ImportedLine<'a> {
    fn of(message: &'a ExportedMessage, if_exists: &'a str, salt: Option<&str>) -> ImportedLine<'a> {
        let is_dead = message.state == ExportedState::Dead;
        let mut own = message.own.clone().unwrap_or_default();
        let used = message.attempt.saturating_sub(message.forgiven);
        // A message without end of attempts has no attempts left that could be counted.
        if !is_dead && used > 0 && message.max_attempts != u32::MAX {
            own.max_attempts = Some(message.max_attempts.saturating_sub(used).max(1));
        }
        own.spread_ms = None;
        let expires = own.expires_in_ms.is_some() || own.expires_at.is_some();
        // A retry has moved the due time and not the expiry. The instant stays, unless it is before the due time: that would
        // be refused.
        if expires && message.attempt > 0 {
            own.expires_in_ms = None;
            own.expires_at = message.expires_at.clone().map(|at| at.max(message.due_at.clone()));
        }
        let salt = salt.map(|salt| format!(":{salt}")).unwrap_or_default();
        ImportedLine {
            body: message.body.as_deref(),
            body_base64: message.body_base64.as_deref(),
            due_at: &message.due_at,
            past: "keep",
            key: message.key.as_deref(),
            // The dead hold no keys.
            if_exists: message.key.as_ref().filter(|_| !is_dead).map(|_| if_exists),
            dedupe_id: format!("import:{}:{}{salt}", message.enqueued_at, message.id),
            priority: message.priority,
            headers: &message.headers,
            target_url: message.target_url.as_deref(),
            own,
            state: is_dead.then_some("dead"),
        }
    }
}

/// The result of an import, as --json prints it.
#[derive(Debug, Default, Serialize)]
struct ImportReport {
    in_file: ExportEnd,
    imported: u64,
    /// Messages whose keys were taken.
    kept: u64,
    /// Messages that an earlier import had brought.
    repeated: u64,
    refused: u64,
    leased: u64,
    /// Schedules that are set, and were here already.
    schedules: u64,
    /// Schedules that stay as they are here.
    schedules_left: Vec<String>,
    schedules_failed: u64,
    /// Messages that a schedule here puts itself.
    occurrences: u64,
    /// The durability levels in the answers.
    durability: BTreeSet<String>,
    /// Queues whose settings stay as they are here, with the reason.
    #[serde(serialize_with = "names")]
    settings_left: BTreeMap<String, String>,
    settings_failed: u64,
}

fn names<S: Serializer>(all: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.keys())
}

impl ImportReport {
    /// Counts a message that is here. `is_first` says that its line was not sent before by this import.
    fn count(&mut self, answer: &Value, is_first: bool) {
        self.imported += 1;
        self.kept += u64::from(answer["created"] == false);
        self.repeated += u64::from(is_first && answer["replayed"] == true);
        self.durability.extend(answer["durability"].as_str().map(str::to_owned));
    }
}

/// An import under way.
struct FileImporter<'a> {
    remote: &'a Remote,
    prefix: &'a str,
    options: &'a FileOptions,
    salt: Option<String>,
    /// Lines that wait to be sent, all of one queue.
    batch: LineBatch,
    batch_queue: Option<QueueName>,
    /// Queues that were named, and of which no line was there yet.
    not_found: Vec<QueueName>,
    /// The schedules that put their occurrences here, by their names in the file: since when they do.
    schedules_since: HashMap<String, Timestamp>,
    /// How long queues are to remember dedupe ids, which is set last.
    windows: Vec<(QueueName, Value)>,
    report: ImportReport,
    progress: ProgressBar,
}

impl<'a> FileImporter<'a> {
    fn new(remote: &'a Remote, prefix: &'a str, options: &'a FileOptions) -> Self {
        let progress = progress(ProgressBar::new(0), "{spinner} {human_pos} imported, {per_sec}, {elapsed}");
        let salt = options.again.as_ref().map(|word| match word.is_empty() {
            true => format!("{:.0}", Timestamp::now()),
            false => word.clone(),
        });
        FileImporter {
            remote,
            prefix,
            options,
            salt,
            batch: LineBatch::default(),
            batch_queue: None,
            not_found: options.queues.clone(),
            schedules_since: HashMap::new(),
            windows: Vec::new(),
            report: ImportReport::default(),
            progress,
        }
    }

    /// The queues that were named must be in the file.
    fn named_queues(&self) -> Result<(), CommandFailure> {
        match self.not_found.first() {
            Some(queue) => Err(CommandFailure::NotFound(format!("--queue {queue}: is not in the file"))),
            None => Ok(()),
        }
    }

    /// Reads all lines, and sends them if `sends`.
    fn take<R: BufRead>(
        &mut self,
        mut reader: ExportReader<R>,
        sends: bool,
        usage: &dyn Fn(&dyn fmt::Display) -> CommandFailure,
    ) -> Result<(), CommandFailure> {
        loop {
            let line = match reader.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) => {
                    // The lines before a wrong line are right, and the same when the file is imported again.
                    self.send()?;
                    return Err(usage(&format!("{error}{}", self.already_here())));
                }
            };
            let queue = match &line {
                ExportLine::Export(_) | ExportLine::End(_) => continue,
                ExportLine::Queue(queue) => &queue.queue,
                ExportLine::Schedule(schedule) => &schedule.queue,
                ExportLine::Message(message) => &message.queue,
            };
            self.not_found.retain(|named| named.as_str() != queue);
            let only = &self.options.queues;
            if !sends || !(only.is_empty() || only.iter().any(|named| named.as_str() == queue)) {
                continue;
            }
            let name = self.name(reader.line(), queue)?;
            match line {
                ExportLine::Queue(queue) if !self.options.no_settings => {
                    self.send()?;
                    self.settings(reader.line(), &name, &queue)?;
                }
                ExportLine::Schedule(schedule) if !self.options.no_schedules => {
                    self.send()?;
                    self.schedule(reader.line(), &schedule)?;
                }
                ExportLine::Message(message) if self.puts(&message) => self.report.occurrences += 1,
                ExportLine::Message(message) => self.add(reader.line(), name, &message)?,
                ExportLine::Queue(_)
                | ExportLine::Schedule(_)
                | ExportLine::Export(_)
                | ExportLine::End(_) => {}
            }
        }
        self.send()?;
        self.set_windows()?;
        self.report.in_file = reader.seen();
        Ok(())
    }

    /// Where the input ended too early: the messages in front of that place are here.
    fn already_here(&self) -> String {
        match self.report.imported {
            0 => String::new(),
            n => format!(
                "; {} in front of it here. Import the whole input again{}: nothing doubles",
                counted(n, "message"),
                self.same_again()
            ),
        }
    }

    /// The name of a queue here.
    fn name(&self, line: u64, queue: &str) -> Result<QueueName, CommandFailure> {
        let name = format!("{}{queue}", self.prefix);
        QueueName::new(&name).map_err(|what| {
            CommandFailure::Usage(format!("--prefix {:?}: line {line}: queue {name}: {what}", self.prefix))
        })
    }

    fn add(&mut self, line: u64, queue: QueueName, message: &ExportedMessage) -> Result<(), CommandFailure> {
        if self.batch.is_full() || self.batch_queue.as_ref() != Some(&queue) {
            self.send()?;
        }
        self.report.leased += u64::from(message.state == ExportedState::Leased);
        let request = ImportedLine::of(message, &self.options.if_exists, self.salt.as_deref());
        let request = serde_json::to_string(&request).map_err(CommandFailure::failed)?;
        self.batch_queue = Some(queue);
        self.batch.add(line, request);
        Ok(())
    }

    /// Sends what waits until every line has its answer. A request without an answer is sent again, because dedupe ids
    /// make that the same as once.
    fn send(&mut self) -> Result<(), CommandFailure> {
        let Some(queue) = self.batch_queue.take() else { return Ok(()) };
        let path = format!("{}/messages", path(&queue));
        let (mut since, mut is_first) = (Instant::now(), true);
        loop {
            let left = self.batch.len();
            let sent = self.batch.send(self.remote, &path, may_pass, |number, result| match result {
                Ok(answer) => self.report.count(&answer, is_first),
                Err(refusal) => {
                    self.report.refused += 1;
                    // The refusal names the field, as the file does.
                    self.progress.suspend(|| on_stderr(refused_line(Some(number), "", &refusal)));
                }
            });
            let trouble = sent.map_err(|trouble| self.unfinished(trouble))?;
            self.progress.set_position(self.report.imported);
            let Some(trouble) = trouble else { return Ok(()) };
            if self.batch.len() < left {
                since = Instant::now();
            } else if since.elapsed() >= PATIENCE {
                return Err(self.unfinished(trouble));
            }
            is_first = false;
            self.progress.set_message(trouble.to_string());
            thread::sleep(REST);
        }
    }

    /// Asks until there is an answer that will not be another one a little later.
    fn patiently<T>(&self, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let since = Instant::now();
        loop {
            match ask() {
                Err(trouble) if may_pass(&trouble) && since.elapsed() < PATIENCE => {
                    self.progress.set_message(trouble.to_string());
                    thread::sleep(REST);
                }
                other => return other,
            }
        }
    }

    /// The settings, the pause and the target of a queue, before its messages. Settings that the queue has here stay.
    fn settings(&mut self, line: u64, name: &QueueName, queue: &ExportedQueue) -> Result<(), CommandFailure> {
        if queue.config.is_empty() && !queue.paused {
            return Ok(());
        }
        let mut config = queue.config.clone();
        let target = config.remove("target");
        self.own_settings(line, name, queue, &config)?;
        target.map_or(Ok(()), |target| self.target(line, name, &target))
    }

    /// The target that a queue has in the file, where it has none here. Targets themselves are in no file.
    fn target(&mut self, line: u64, name: &QueueName, target: &Value) -> Result<(), CommandFailure> {
        let path = format!("{}/config", path(name));
        let set = self.patiently(|| {
            let here = self.remote.get(&path)?.pointer("/config/target").cloned().unwrap_or_default();
            if here.is_null() {
                self.remote.patch(&path, &json!({"target": target}))?;
            }
            Ok(here)
        });
        match set {
            Ok(here) if here.is_null() || here == *target => Ok(()),
            Ok(_) => {
                let entry = self.report.settings_left.entry(name.to_string());
                entry.or_insert_with(|| "has another target here, which stays".to_owned());
                Ok(())
            }
            Err(trouble) => {
                self.report.settings_failed += 1;
                self.complain(Some(line), &format!("the target of {name}"), trouble)
            }
        }
    }

    fn own_settings(
        &mut self,
        line: u64,
        name: &QueueName,
        queue: &ExportedQueue,
        of_file: &Map<String, Value>,
    ) -> Result<(), CommandFailure> {
        let path = path(name);
        let here = match self.patiently(|| self.remote.get(&path)) {
            Ok(here) => here,
            Err(trouble) => return self.not_set(line, name, queue.paused, trouble),
        };
        let mut wanted = of_file.clone();
        let window = wanted.remove("dedupe_window_ms");
        let mut config: Map<String, Value> = here["config"].as_object().cloned().unwrap_or_default();
        config.retain(|name, value| !value.is_null() && name != "target");
        let has_all = config == *of_file;
        if !config.is_empty() && !has_all && config != wanted {
            let what = "has settings of its own here, which stay";
            let pause = if queue.paused && here["paused"] != true { ", and was not paused" } else { "" };
            self.report.settings_left.insert(name.to_string(), format!("{what}{pause}"));
            return Ok(());
        }
        if queue.paused && here["paused"] != true {
            let length = queue.pause_left_ms.map(|ms| ("for_ms".to_owned(), Value::from(ms.max(1))));
            let length = Value::Object(length.into_iter().collect());
            let paused = self.patiently(|| self.remote.post(&format!("{path}/pause"), &length));
            if let Err(trouble) = paused {
                return self.not_set(line, name, true, trouble);
            }
        }
        if has_all {
            return Ok(());
        }
        self.windows.extend(window.map(|window| (name.clone(), window)));
        let wanted = Value::Object(wanted);
        if config.is_empty()
            && wanted != json!({})
            && let Err(trouble) = self.patiently(|| self.remote.patch(&format!("{path}/config"), &wanted))
        {
            return self.not_set(line, name, false, trouble);
        }
        Ok(())
    }

    /// Reports and counts settings that could not be set. A pause ends the import: the messages would be delivered.
    fn not_set(
        &mut self,
        line: u64,
        name: &QueueName,
        is_pause: bool,
        trouble: Error,
    ) -> Result<(), CommandFailure> {
        if is_pause {
            let what = format!("line {line}: {name} is paused in the file, and could not be paused here: ");
            return Err(self.ended(trouble, &what, "; --no-settings imports it without a pause"));
        }
        self.report.settings_failed += 1;
        self.complain(Some(line), &format!("the settings of {name}"), trouble)
    }

    /// Sets a schedule before any message is sent, unless there is one of its name. From then on it enqueues its own
    /// occurrences, also if it was here already with the same settings.
    fn schedule(&mut self, line: u64, schedule: &ExportedSchedule) -> Result<(), CommandFailure> {
        let name = format!("{}{}", self.prefix, schedule.name);
        let queue = format!("{}{}", self.prefix, schedule.queue);
        let path = format!("/v1/schedules/{}", segment(&name));
        let set = self.patiently(|| match self.remote.get(&path) {
            Ok(here) => {
                let has_same =
                    here["queue"] == queue.as_str() && same(&settings_of(&here), &schedule.settings);
                Ok((has_same, here))
            }
            Err(refusal) if refusal.code == ErrorCode::NotFound => {
                let settings = new_settings(schedule, &queue);
                Ok((true, self.remote.put(&path, &Value::Object(settings))?))
            }
            Err(trouble) => Err(trouble),
        });
        match set {
            Ok((true, here)) => {
                self.report.schedules += 1;
                let since = here["created_at"].as_str().and_then(|at| at.parse().ok());
                self.schedules_since.extend(since.map(|since| (schedule.name.clone(), since)));
            }
            Ok((false, _)) => self.report.schedules_left.push(name),
            Err(trouble) => {
                self.report.schedules_failed += 1;
                self.complain(Some(line), &format!("schedule {}", schedule.name), trouble)?;
            }
        }
        Ok(())
    }

    /// Whether a schedule here puts the message of this occurrence itself. Those that were due before it was set are sent.
    fn puts(&self, message: &ExportedMessage) -> bool {
        let header = |name| message.headers.get(name).map(String::as_str);
        let (Some(name), Some(occurrence)) = (header("duewheel-schedule"), header("duewheel-occurrence"))
        else {
            return false;
        };
        let Some(since) = self.schedules_since.get(name) else { return false };
        // That of a trigger or a backfill has another key.
        let has_own_key = message.key.as_ref().is_none_or(|key| *key == format!("{name}@{occurrence}"));
        message.state == ExportedState::Scheduled
            && has_own_key
            && occurrence.parse::<Timestamp>().is_ok_and(|at| at > *since)
    }

    /// Reports a refusal after which the import goes on. One that may pass has not passed in time, and ends it.
    fn complain(&self, line: Option<u64>, about: &str, trouble: Error) -> Result<(), CommandFailure> {
        if may_pass(&trouble) {
            return Err(self.unfinished(trouble));
        }
        self.progress.suspend(|| on_stderr(refused_line(line, about, &trouble)));
        Ok(())
    }

    /// From now on queues remember dedupe ids for as long as the file says.
    fn set_windows(&mut self) -> Result<(), CommandFailure> {
        for (name, window) in std::mem::take(&mut self.windows) {
            let wanted = json!({"dedupe_window_ms": window});
            let path = format!("{}/config", path(&name));
            if let Err(trouble) = self.patiently(|| self.remote.patch(&path, &wanted)) {
                self.report.settings_failed += 1;
                self.complain(None, &format!("the settings of {name}"), trouble)?;
            }
        }
        Ok(())
    }

    /// How the same messages are imported once more.
    fn same_again(&self) -> String {
        self.salt.as_ref().map(|word| format!(" with --again={word}")).unwrap_or_default()
    }

    /// The failure of an import that ends early.
    fn unfinished(&self, trouble: Error) -> CommandFailure {
        self.ended(trouble, "", "")
    }

    fn ended(&self, trouble: Error, what: &str, more: &str) -> CommandFailure {
        let (here, again) = (are(self.report.imported, "message"), self.same_again());
        let so_far =
            format!("; {here} here. Import the file again{again}: within a day nothing doubles{more}");
        with_words(trouble, what, &so_far).into()
    }

    fn tell(&self, is_check: bool, session: &ClientSession) -> Result<(), CommandFailure> {
        let answer = serde_json::to_value(&self.report).map_err(CommandFailure::failed)?;
        session.print(&answer, |out| {
            let of_file = self.report.in_file;
            if is_check {
                let (messages, queues) =
                    (counted(of_file.messages, "message"), counted(of_file.queues, "queue"));
                return writeln!(out, "the file is whole: {messages} of {queues}");
            }
            let levels: Vec<&str> = self.report.durability.iter().map(String::as_str).collect();
            let durability =
                if levels.is_empty() { String::new() } else { format!(" ({})", levels.join(", ")) };
            let (accepted, all, to) = (self.report.imported, are(of_file.messages, "message"), &session.server);
            writeln!(out, "{accepted} of {all} imported to {to}{durability}")?;
            print_counts(
                out,
                &[
                    (self.report.kept, "of them have keys that were taken; the messages that were here stay"),
                    (
                        self.report.repeated,
                        "of them an earlier import had brought; what was done since does not come again without --again",
                    ),
                    (
                        self.report.leased,
                        "of them had a consumer in the source, which may finish them there; here they are ready",
                    ),
                ],
            )?;
            if self.report.schedules > 0 {
                let (here, put) = (are(self.report.schedules, "schedule"), are(self.report.occurrences, "message"));
                writeln!(out, "{here} here; of the file, {put} put by schedules")?;
            }
            for name in &self.report.schedules_left {
                writeln!(out, "there is another schedule {name} here, which stays")?;
            }
            self.report.settings_left.iter().try_for_each(|(queue, why)| writeln!(out, "{queue} {why}"))
        })?;
        none_of([
            (self.report.refused, format!("{} refused", were(self.report.refused, "message"))),
            (
                self.report.settings_failed,
                format!("the settings of {} were refused", counted(self.report.settings_failed, "queue")),
            ),
            (
                self.report.schedules_failed,
                format!("{} refused", were(self.report.schedules_failed, "schedule")),
            ),
        ])
    }
}

/// The settings of a schedule that is not here yet.
fn new_settings(schedule: &ExportedSchedule, queue: &str) -> Map<String, Value> {
    let mut settings = schedule.settings.clone();
    settings.insert("queue".to_owned(), queue.into());
    settings.insert("past".to_owned(), "keep".into());
    if let Some(remaining) = settings.get("remaining").and_then(Value::as_u64) {
        // Occurrences that the source has put ahead are put again from here, and counted then.
        let now = Timestamp::now();
        let is_ahead = |at: &&String| at.parse::<Timestamp>().is_ok_and(|at| at > now);
        let ahead = u64::try_from(schedule.ahead.iter().filter(is_ahead).count()).unwrap_or(0);
        settings.insert("remaining".to_owned(), remaining.saturating_add(ahead).into());
    }
    settings
}

/// Whether two schedules have the same settings. How many occurrences remain changes by itself.
fn same(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let fixed = |all: &Map<String, Value>| {
        let mut all = all.clone();
        all.remove("remaining");
        all
    };
    fixed(one) == fixed(other)
}
