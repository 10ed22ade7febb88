//! `duewheel export FILE|-`: all queues, schedules and messages of a running server as lines of JSON.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use duewheel_client::{ErrorCode, segment};
use duewheel_core::QueueName;
use duewheel_core::policy::Defaults;
use indicatif::ProgressBar;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Map, Value, json};

use super::export_file::{
    ExportEnd, ExportHead, ExportLine, ExportedMessage, ExportedQueue, ExportedSchedule, ListedPage,
};
use super::failure::CommandFailure;
use super::invocation::{self, print_json};
use super::queue::{path, queue_name};
use super::remote::Remote;
use super::session::{ClientCommand, ClientSession, progress};
use super::system_words::{of_file, on_stderr};
use super::table::{counted, plain};

/// Messages of one page.
const PAGE: usize = 1_000;
const OWNER_ONLY: u32 = 0o600;

#[derive(Args, Debug)]
#[command(
    after_help = "The file has a line of JSON for each queue, each schedule and each message, and a last line that counts them. \
`duewheel import FILE` reads it. Bodies and headers are in it as they are: keep it like the data folder.\n\n\
The export changes nothing. Messages that are enqueued, moved or settled while it runs may be in the file or not; \
docs/import.md tells what travels and what does not."
)]
pub(super) struct ExportArgs {
    /// The file, which must not exist; `-` writes to standard output
    #[arg(value_name = "FILE|-")]
    file: PathBuf,
    /// Only this queue; may be given several times
    #[arg(long = "queue", value_name = "QUEUE", value_parser = queue_name)]
    queues: Vec<QueueName>,
}

impl ClientCommand for ExportArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        let remote = &session.remote;
        if self.file.as_os_str() == "-" {
            let end = Exporter::new(remote, BufWriter::new(io::stdout().lock())).run(&self.queues)?;
            match session.is_json {
                true => print_json(&mut io::stderr(), &counts(end))?,
                false => on_stderr(words(end)),
            }
            return Ok(());
        }
        let part = PartFile::create(&self.file)?;
        let end = Exporter::new(remote, BufWriter::new(&part.file)).run(&self.queues)?;
        part.finish()?;
        let file = self.file.display().to_string();
        let are = if end.messages == 1 && end.schedules == 0 { "is" } else { "are" };
        let mut answer = counts(end);
        answer["file"] = file.as_str().into();
        session.say(&answer, format_args!("{} {are} in {file}", words(end)))
    }
}

fn counts(end: ExportEnd) -> Value {
    json!({"queues": end.queues, "schedules": end.schedules, "messages": end.messages})
}

fn words(end: ExportEnd) -> String {
    let schedules = match end.schedules {
        0 => String::new(),
        n => format!(" and {}", counted(n, "schedule")),
    };
    format!("{} of {}{schedules}", counted(end.messages, "message"), counted(end.queues, "queue"))
}

/// The fields of an answer about a schedule that are not settings.
const NO_SETTINGS: [&str; 8] = ["name", "queue", "created_at", "next", "latest", "counts", "waits", "error"];

/// The settings in an answer about a schedule.
pub(super) fn settings_of(schedule: &Value) -> Map<String, Value> {
    let fields = schedule.as_object().into_iter().flatten();
    fields
        .filter(|(name, value)| !NO_SETTINGS.contains(&name.as_str()) && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Writes what a server has.
struct Exporter<'a, W> {
    remote: &'a Remote,
    out: W,
    seen: ExportEnd,
    progress: ProgressBar,
}

impl<'a, W: Write> Exporter<'a, W> {
    fn new(remote: &'a Remote, out: W) -> Self {
        let template = "{spinner} {human_pos} exported, {per_sec}, {elapsed}";
        let progress = progress(ProgressBar::new_spinner(), template);
        Exporter { remote, out, seen: ExportEnd::default(), progress }
    }

    /// Writes all queues, or only these.
    fn run(&mut self, only: &[QueueName]) -> Result<ExportEnd, CommandFailure> {
        let names = self.names(only)?;
        self.line(&ExportLine::Export(ExportHead::now()))?;
        // Settings and schedules come before all messages, so that an import knows which of these a schedule will put
        // itself.
        let mut priorities = Vec::with_capacity(names.len());
        for queue in &names {
            priorities.push(self.queue(queue)?);
        }
        self.schedules(only)?;
        for (queue, priority) in names.iter().zip(priorities) {
            self.messages(queue, priority)?;
        }
        let end = self.seen;
        self.line(&ExportLine::End(end))?;
        self.out.flush()?;
        self.progress.finish_and_clear();
        Ok(end)
    }

    fn names(&self, only: &[QueueName]) -> Result<Vec<QueueName>, CommandFailure> {
        if !only.is_empty() {
            only.iter().try_for_each(|queue| self.check(queue))?;
            return Ok(only.to_vec());
        }
        let name = |queue: &Value| QueueName::new(queue["queue"].as_str().unwrap_or_default());
        let names: Result<_, _> = self.remote.list("/v1/queues", "queues")?.iter().map(name).collect();
        names.map_err(CommandFailure::failed)
    }

    /// A queue that was named must be there. Every name is answered, with a queue of which nothing is known.
    fn check(&self, name: &QueueName) -> Result<(), CommandFailure> {
        let seen = self.remote.get(&path(name))?;
        let has_any = |field: &str| {
            seen[field].as_object().is_some_and(|all| all.values().any(|n| n.as_u64().is_some_and(|n| n > 0)))
        };
        let is_set = seen["config"].as_object().is_some_and(|all| all.values().any(|value| !value.is_null()));
        if has_any("counts") || has_any("totals") || is_set || seen["paused"] == true {
            return Ok(());
        }
        let schedules = self.remote.list("/v1/schedules?limit=1000", "schedules")?;
        match schedules.iter().any(|schedule| schedule["queue"] == name.as_str()) {
            true => Ok(()),
            false => Err(CommandFailure::NotFound(format!("--queue {name}: there is no such queue"))),
        }
    }

    /// Writes the settings of one queue. Returns its priority.
    fn queue(&mut self, name: &QueueName) -> Result<u32, CommandFailure> {
        let seen = self.remote.get(&path(name))?;
        // That of the queue itself is without its target.
        let mut settings = self.remote.get(&format!("{}/config", path(name)))?;
        let mut config = settings["config"].as_object_mut().map(std::mem::take).unwrap_or_default();
        config.retain(|_, value| !value.is_null());
        let line = ExportedQueue {
            queue: name.to_string(),
            config,
            paused: seen["paused"] == true,
            pause_left_ms: seen["pause_left_ms"].as_u64(),
        };
        let priority = line.config.get("priority").and_then(Value::as_u64);
        let priority = priority.and_then(|n| u32::try_from(n).ok()).unwrap_or(Defaults::default().priority);
        self.seen.queues += 1;
        self.line(&ExportLine::Queue(line))?;
        Ok(priority)
    }

    /// Writes the schedules of all queues, or only of these. One that will not occur again is left out.
    fn schedules(&mut self, only: &[QueueName]) -> Result<(), CommandFailure> {
        for listed in self.remote.list("/v1/schedules?limit=1000", "schedules")? {
            if !only.is_empty() && !only.iter().any(|queue| listed["queue"] == queue.as_str()) {
                continue;
            }
            let name = listed["name"].as_str().unwrap_or_default();
            match self.remote.get(&format!("/v1/schedules/{}", segment(name))) {
                // The schedule was removed after the page was listed.
                Err(refusal) if refusal.code == ErrorCode::NotFound => {}
                schedule => self.schedule(name, &schedule?)?,
            }
        }
        Ok(())
    }

    fn schedule(&mut self, name: &str, schedule: &Value) -> Result<(), CommandFailure> {
        if let Some(error) = schedule["error"].as_str() {
            let what = plain(error);
            let note = format!("schedule {} is left out, because it does not run: {what}", plain(name));
            self.progress.suspend(|| invocation::note(note));
            return Ok(());
        }
        let has_next = schedule["next"].as_array().is_some_and(|next| !next.is_empty());
        if !has_next && schedule["paused"] != true {
            return Ok(());
        }
        let mut settings = settings_of(schedule);
        // Intervals count from the creation, unless there is a start.
        if settings.contains_key("every") && !settings.contains_key("start") {
            settings.insert("start".to_owned(), schedule["created_at"].clone());
        }
        let queue = schedule["queue"].as_str().unwrap_or_default().to_owned();
        let mut line = ExportedSchedule { name: name.to_owned(), queue, settings, ahead: Vec::new() };
        if let Some(remaining) = line.settings.get("remaining").and_then(Value::as_u64) {
            let next = schedule["next"].as_array().into_iter().flatten();
            let ahead = next.filter(|one| one["message"].is_string());
            line.ahead = ahead.filter_map(|one| one["at"].as_str().map(str::to_owned)).collect();
            let left = remaining.saturating_sub(line.ahead.len() as u64);
            line.settings.insert("remaining".to_owned(), left.into());
        }
        self.seen.schedules += 1;
        self.line(&ExportLine::Schedule(line))
    }

    /// Writes the messages of one queue. Dead ones come first, in the order in which they died, because a listing of all
    /// states is in due order.
    fn messages(&mut self, name: &QueueName, priority: u32) -> Result<(), CommandFailure> {
        let mut dead = HashSet::new();
        self.pages(name, Some("dead"), |exporter, message| {
            dead.insert(message.id.clone());
            exporter.message(message, priority)
        })?;
        self.pages(name, None, |exporter, message| {
            // A dead message that was redriven since is in the file already, as it was. A superseded one is not granted
            // again, so no copy of it is either.
            if dead.contains(&message.id) || message.superseded_by.is_some() {
                return Ok(());
            }
            exporter.message(message, priority)
        })
    }

    fn pages(
        &mut self,
        name: &QueueName,
        state: Option<&str>,
        mut each: impl FnMut(&mut Self, ExportedMessage) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        let mut base = format!("{}/messages?limit={PAGE}", path(name));
        if let Some(state) = state {
            base.push_str(&format!("&state={state}"));
        }
        let mut at = base.clone();
        loop {
            let bytes = self.remote.get_bytes(&at)?;
            let page: ListedPage = serde_json::from_slice(&bytes).map_err(|error| {
                CommandFailure::Failed(format!(
                    "the server lists the messages of {name} in a strange form: {error}"
                ))
            })?;
            for message in page.messages {
                each(self, message)?;
            }
            self.progress.set_position(self.seen.messages);
            match page.next {
                Some(next) => at = format!("{base}&after={}", segment(&next)),
                None => return Ok(()),
            }
        }
    }

    fn message(&mut self, mut message: ExportedMessage, priority: u32) -> Result<(), CommandFailure> {
        self.seen.messages += 1;
        // The priority of the queue itself is not the message's own.
        message.priority = message.priority.filter(|own| *own != priority);
        self.line(&ExportLine::Message(Box::new(message)))
    }

    fn line(&mut self, line: &ExportLine) -> Result<(), CommandFailure> {
        serde_json::to_writer(&mut self.out, line).map_err(io::Error::from)?;
        self.out.write_all(b"\n")?;
        Ok(())
    }
}

/// A file that has its name only once it is whole.
struct PartFile {
    file: File,
    part: PathBuf,
    whole: PathBuf,
    is_finished: bool,
}

impl PartFile {
    fn create(whole: &Path) -> Result<PartFile, CommandFailure> {
        let usage = |path: &Path, what: &dyn std::fmt::Display| {
            CommandFailure::Usage(format!("FILE {}: {what}", path.display()))
        };
        if whole.symlink_metadata().is_ok() {
            return Err(usage(whole, &"exists already; an export replaces no file"));
        }
        let mut part = whole.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(&part);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                usage(&part, &"exists: another export is writing it, or was interrupted; then remove it")
            }
            _ => CommandFailure::Usage(format!("FILE {}", of_file(whole, &error))),
        })?;
        Ok(PartFile { file, part, whole: whole.to_owned(), is_finished: false })
    }

    /// Gives the file its name when it is on the disk.
    fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        renameat_with(CWD, &self.part, CWD, &self.whole, RenameFlags::NOREPLACE)?;
        self.is_finished = true;
        let folder = self.whole.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}
