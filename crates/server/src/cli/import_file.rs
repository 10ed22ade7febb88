//! `duewheel import FILE`: takes in what `duewheel export` has written.
//!
//! Each message gets a `dedupe_id` made of its id and its time of enqueue in the source, so that the same message, of the
//! same file or of a later one, is taken once, as long as the queue remembers dedupe ids. So a request whose answer was
//! lost can be sent again, and a file can be imported again. The time for which a queue remembers dedupe ids is set
//! last, because the import may take longer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use duewheel::core::QueueName;
use indexmap::IndexMap;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::export_file::{
    ExportEnd, ExportLine, ExportReader, ExportedMessage, ExportedQueue, ExportedSchedule, ExportedState,
    OwnFields,
};
use super::failure::refused_line;
use super::import_schedules::{ImportedSchedules, ScheduleSet};
use super::invocation::print_json;
use super::queue::{path, queue_name};
use super::remote::{ApiError, Remote, ServerRefusal, may_pass};
use super::table::{are, counted, print_counts, were};
use super::{CommandFailure, ServerArgs};

/// Lines and bytes of one request.
const BATCH_LINES: usize = 1_000;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
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
    remote: Remote,
    prefix: &str,
    options: &FileOptions,
    server: &ServerArgs,
) -> Result<(), CommandFailure> {
    let usage = |error: &dyn fmt::Display| CommandFailure::Usage(format!("FILE {}: {error}", file.display()));
    let mut importer = FileImporter::new(remote, prefix, options);
    let result = if file.as_os_str() == "-" {
        let input = BufReader::with_capacity(256 * 1024, io::stdin().lock());
        importer.take(ExportReader::new(input), !options.check, &usage)
    } else {
        let mut opened = File::open(file).map_err(|error| usage(&error))?;
        importer.take(ExportReader::new(BufReader::new(&opened)), false, &usage)?;
        importer.named_queues()?;
        opened.rewind()?;
        let input = BufReader::with_capacity(256 * 1024, opened);
        if options.check { Ok(()) } else { importer.take(ExportReader::new(input), true, &usage) }
    };
    importer.progress.finish_and_clear();
    result?;
    importer.named_queues()?;
    importer.tell(options.check, server)
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

/// Lines that wait to be sent, all of one queue.
#[derive(Debug, Default)]
struct ImportBatch {
    queue: Option<QueueName>,
    /// The number of each line in the file, and its request.
    lines: Vec<(u64, String)>,
    bytes: usize,
}

/// An import under way.
struct FileImporter<'a> {
    remote: Remote,
    prefix: &'a str,
    options: &'a FileOptions,
    salt: Option<String>,
    batch: ImportBatch,
    in_file: ExportEnd,
    /// Queues that were named, and of which no line was there yet.
    not_found: Vec<QueueName>,
    accepted: u64,
    refused: u64,
    kept: u64,
    leased: u64,
    /// Messages that an earlier import had brought.
    repeated: u64,
    schedules: ImportedSchedules,
    /// Schedules that are set, and were here already.
    schedules_here: u64,
    /// Schedules that stay as they are here.
    schedules_left: Vec<String>,
    schedules_failed: u64,
    /// Messages that a schedule here puts itself.
    occurrences: u64,
    /// How long queues are to remember dedupe ids, which is set last.
    windows: Vec<(QueueName, Value)>,
    /// The durability levels in the answers.
    levels: BTreeSet<String>,
    /// Queues whose settings stay as they are here, with the reason.
    settings_left: BTreeMap<String, String>,
    settings_failed: u64,
    progress: ProgressBar,
}

impl<'a> FileImporter<'a> {
    fn new(remote: Remote, prefix: &'a str, options: &'a FileOptions) -> Self {
        let progress = ProgressBar::new(0);
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {human_pos} imported, {per_sec}, {elapsed}")
        {
            progress.set_style(style);
        }
        let salt = options.again.as_ref().map(|word| match word.is_empty() {
            true => format!("{:.0}", jiff::Timestamp::now()),
            false => word.clone(),
        });
        FileImporter {
            remote,
            prefix,
            options,
            salt,
            batch: ImportBatch::default(),
            in_file: ExportEnd::default(),
            not_found: options.queues.clone(),
            accepted: 0,
            refused: 0,
            kept: 0,
            leased: 0,
            repeated: 0,
            schedules: ImportedSchedules::default(),
            schedules_here: 0,
            schedules_left: Vec::new(),
            schedules_failed: 0,
            occurrences: 0,
            windows: Vec::new(),
            levels: BTreeSet::new(),
            settings_left: BTreeMap::new(),
            settings_failed: 0,
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
                ExportLine::Message(message) if self.schedules.puts(&message) => self.occurrences += 1,
                ExportLine::Message(message) => self.add(reader.line(), name, &message)?,
                ExportLine::Queue(_)
                | ExportLine::Schedule(_)
                | ExportLine::Export(_)
                | ExportLine::End(_) => {}
            }
        }
        self.send()?;
        self.set_windows()?;
        self.in_file = reader.seen();
        Ok(())
    }

    /// Where the input ended too early: the messages in front of that place are here.
    fn already_here(&self) -> String {
        match self.accepted {
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
        let is_full = self.batch.lines.len() >= BATCH_LINES || self.batch.bytes >= BATCH_BYTES;
        if is_full || self.batch.queue.as_ref() != Some(&queue) {
            self.send()?;
        }
        self.leased += u64::from(message.state == ExportedState::Leased);
        let request = ImportedLine::of(message, &self.options.if_exists, self.salt.as_deref());
        let request = serde_json::to_string(&request).map_err(CommandFailure::failed)?;
        self.batch.queue = Some(queue);
        self.batch.bytes += request.len() + 1;
        self.batch.lines.push((line, request));
        Ok(())
    }

    /// Sends what waits until every line has its answer. A request without an answer is sent again, because dedupe ids
    /// make that the same as once.
    fn send(&mut self) -> Result<(), CommandFailure> {
        let ImportBatch { queue, mut lines, .. } = std::mem::take(&mut self.batch);
        let Some(queue) = queue else { return Ok(()) };
        let path = format!("{}/messages", path(&queue));
        let mut since = Instant::now();
        let mut is_first = true;
        while !lines.is_empty() {
            let mut bytes = Vec::new();
            for (_, request) in &lines {
                bytes.extend_from_slice(request.as_bytes());
                bytes.push(b'\n');
            }
            let (left, trouble) = match self.remote.post_lines(&path, bytes) {
                Ok(results) => {
                    let before = lines.len();
                    let (left, trouble) = self.judge(lines, results, is_first)?;
                    if left.len() < before {
                        since = Instant::now();
                    }
                    (left, trouble)
                }
                Err(trouble) if may_pass(&trouble) => (lines, Some(trouble)),
                Err(trouble) => return Err(self.unfinished(trouble)),
            };
            lines = left;
            is_first = false;
            self.progress.set_position(self.accepted);
            if let Some(trouble) = trouble.filter(|_| !lines.is_empty()) {
                if since.elapsed() >= PATIENCE {
                    return Err(self.unfinished(trouble));
                }
                self.progress.set_message(trouble.to_string());
                thread::sleep(REST);
            }
        }
        Ok(())
    }

    /// Counts the results. Returns the lines to be sent again, and why. `is_first` says that the lines were not sent
    /// before by this import.
    #[allow(clippy::type_complexity, reason = "a pair that one caller takes apart")]
    fn judge(
        &mut self,
        lines: Vec<(u64, String)>,
        results: Vec<Value>,
        is_first: bool,
    ) -> Result<(Vec<(u64, String)>, Option<ApiError>), CommandFailure> {
        let mut left = Vec::new();
        let mut trouble = None;
        let mut results = results.into_iter();
        for (number, request) in lines {
            let Some(result) = results.next() else {
                trouble = Some(ApiError::Unreachable("the connection ended before all answers".to_owned()));
                left.push((number, request));
                continue;
            };
            if result.get("id").is_some() {
                self.accepted += 1;
                self.kept += u64::from(result["created"] == false);
                self.repeated += u64::from(is_first && result["replayed"] == true);
                if let Some(level) = result["durability"].as_str()
                    && !self.levels.contains(level)
                {
                    self.levels.insert(level.to_owned());
                }
                continue;
            }
            let refusal = ApiError::Refused(ServerRefusal::from_json(&result));
            if may_pass(&refusal) {
                trouble = Some(refusal);
                left.push((number, request));
                continue;
            }
            self.refused += 1;
            // The refusal names the field, as the file does.
            self.report(Some(number), "", refusal)?;
        }
        Ok((left, trouble))
    }

    /// Asks until there is an answer that will not be another one a little later.
    fn patiently<T>(&self, mut ask: impl FnMut() -> Result<T, ApiError>) -> Result<T, ApiError> {
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
                let entry = self.settings_left.entry(name.to_string());
                entry.or_insert_with(|| "has another target here, which stays".to_owned());
                Ok(())
            }
            Err(trouble) => {
                self.settings_failed += 1;
                self.report(Some(line), &format!("the target of {name}"), trouble)
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
            self.settings_left.insert(name.to_string(), format!("{what}{pause}"));
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
        trouble: ApiError,
    ) -> Result<(), CommandFailure> {
        if is_pause {
            let what = format!("line {line}: {name} is paused in the file, and could not be paused here: ");
            return Err(self.ended(trouble, &what, "; --no-settings imports it without a pause"));
        }
        self.settings_failed += 1;
        self.report(Some(line), &format!("the settings of {name}"), trouble)
    }

    fn schedule(&mut self, line: u64, schedule: &ExportedSchedule) -> Result<(), CommandFailure> {
        let mut schedules = std::mem::take(&mut self.schedules);
        let set = self.patiently(|| schedules.set(&self.remote, self.prefix, schedule));
        self.schedules = schedules;
        let name = &schedule.name;
        match set {
            Ok(ScheduleSet::New | ScheduleSet::Same) => self.schedules_here += 1,
            Ok(ScheduleSet::Other) => self.schedules_left.push(format!("{}{name}", self.prefix)),
            Err(trouble) => {
                self.schedules_failed += 1;
                self.report(Some(line), &format!("schedule {name}"), trouble)?;
            }
        }
        Ok(())
    }

    /// Reports a refusal after which the import goes on. One that may pass has not passed in time, and ends it.
    fn report(&self, line: Option<u64>, about: &str, trouble: ApiError) -> Result<(), CommandFailure> {
        if may_pass(&trouble) {
            return Err(self.unfinished(trouble));
        }
        let text = refused_line(line, about, &trouble);
        self.progress.suspend(|| writeln!(io::stderr(), "{text}"))?;
        Ok(())
    }

    /// From now on queues remember dedupe ids for as long as the file says.
    fn set_windows(&mut self) -> Result<(), CommandFailure> {
        for (name, window) in std::mem::take(&mut self.windows) {
            let wanted = json!({"dedupe_window_ms": window});
            let path = format!("{}/config", path(&name));
            if let Err(trouble) = self.patiently(|| self.remote.patch(&path, &wanted)) {
                self.settings_failed += 1;
                self.report(None, &format!("the settings of {name}"), trouble)?;
            }
        }
        Ok(())
    }

    /// How the same messages are imported once more.
    fn same_again(&self) -> String {
        self.salt.as_ref().map(|word| format!(" with --again={word}")).unwrap_or_default()
    }

    /// The failure of an import that ends early.
    fn unfinished(&self, trouble: ApiError) -> CommandFailure {
        self.ended(trouble, "", "")
    }

    fn ended(&self, trouble: ApiError, what: &str, more: &str) -> CommandFailure {
        let (here, again) = (are(self.accepted, "message"), self.same_again());
        let so_far =
            format!("; {here} here. Import the file again{again}: within a day nothing doubles{more}");
        trouble.with_words(what, &so_far).into()
    }

    fn tell(&self, is_check: bool, server: &ServerArgs) -> Result<(), CommandFailure> {
        let mut out = io::stdout().lock();
        let levels: Vec<&str> = self.levels.iter().map(String::as_str).collect();
        if server.json {
            let json = json!({
                "in_file": {
                    "queues": self.in_file.queues, "schedules": self.in_file.schedules,
                    "messages": self.in_file.messages,
                },
                "imported": self.accepted, "kept": self.kept, "repeated": self.repeated,
                "refused": self.refused, "leased": self.leased,
                "schedules": self.schedules_here, "schedules_left": self.schedules_left,
                "schedules_failed": self.schedules_failed, "occurrences": self.occurrences,
                "durability": levels, "settings_left": self.settings_left.keys().collect::<Vec<_>>(),
                "settings_failed": self.settings_failed,
            });
            print_json(&mut out, &json)?;
        } else if is_check {
            writeln!(
                out,
                "the file is whole: {} of {}",
                counted(self.in_file.messages, "message"),
                counted(self.in_file.queues, "queue")
            )?;
        } else {
            let durability =
                if levels.is_empty() { String::new() } else { format!(" ({})", levels.join(", ")) };
            writeln!(
                out,
                "{} of {} imported to {}{durability}",
                self.accepted,
                are(self.in_file.messages, "message"),
                server.server
            )?;
            print_counts(
                &mut out,
                &[
                    (self.kept, "of them have keys that were taken; the messages that were here stay"),
                    (
                        self.repeated,
                        "of them an earlier import had brought; what was done since does not come again without --again",
                    ),
                    (
                        self.leased,
                        "of them had a consumer in the source, which may finish them there; here they are ready",
                    ),
                ],
            )?;
            if self.schedules_here > 0 {
                let (here, put) = (are(self.schedules_here, "schedule"), are(self.occurrences, "message"));
                writeln!(out, "{here} here; of the file, {put} put by schedules")?;
            }
            for name in &self.schedules_left {
                writeln!(out, "there is another schedule {name} here, which stays")?;
            }
            for (queue, why) in &self.settings_left {
                writeln!(out, "{queue} {why}")?;
            }
        }
        let bad: Vec<String> = [
            (self.refused, format!("{} refused", were(self.refused, "message"))),
            (
                self.settings_failed,
                format!("the settings of {} were refused", counted(self.settings_failed, "queue")),
            ),
            (self.schedules_failed, format!("{} refused", were(self.schedules_failed, "schedule"))),
        ]
        .into_iter()
        .filter_map(|(n, what)| (n > 0).then_some(what))
        .collect();
        if bad.is_empty() { Ok(()) } else { Err(CommandFailure::Failed(bad.join("; "))) }
    }
}
