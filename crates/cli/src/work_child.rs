//! The command that handles one message: a process group of its own, with a time limit.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;

use super::system_words::on_stderr;

/// Time between two checks of a running command.
const LOOK: Duration = Duration::from_millis(10);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long SIGKILL may take; processes that nobody waits for stay in their group for ever.
const KILL_TIME: Duration = Duration::from_secs(1);
/// How much of the end of standard error is kept, in bytes.
const TAIL: usize = 1_024;
/// The longest reason in bytes; the server would cut the end of a longer one, which says most.
const REASON: usize = 256;
/// How long the end of standard error is awaited when the command has ended; what it has started may keep it open.
const DRAIN: Duration = Duration::from_millis(200);

/// How a command ended.
#[derive(Debug)]
pub(super) struct CommandEnded {
    /// The exit code of the command; none if a signal or the time limit ended it.
    pub(super) code: Option<i32>,
    /// How the command ended, in words, with the last lines of its standard error.
    pub(super) reason: String,
}

/// The process groups of all running commands.
#[derive(Debug, Default)]
pub(super) struct Children {
    running: Mutex<BTreeSet<i32>>,
    ending: AtomicBool,
}

impl Children {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all commands, politely the first time.
    pub(super) fn end_all(&self) {
        let signal = if self.ending.swap(true, Ordering::SeqCst) { Signal::KILL } else { Signal::TERM };
        for group in self.lock().iter() {
            signal_group(*group, signal);
        }
    }

    /// The number of running commands.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Whether the end of all commands was requested.
    pub(super) fn were_killed(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }
}

fn signal_group(group: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(group) {
        // The group may have ended already.
        let _ = kill_process_group(pid, signal);
    }
}

/// Whether a process of the group is left.
fn has_processes(group: i32) -> bool {
    Pid::from_raw(group).is_some_and(|pid| test_kill_process_group(pid) != Err(Errno::SRCH))
}

/// A running command.
pub(super) struct WorkChild<'a> {
    child: Child,
    group: i32,
    all: &'a Children,
    /// The end of what was read of standard error so far.
    tail: Arc<StderrTail>,
    /// Is closed when all of it was read.
    is_read: Receiver<()>,
    begun: Instant,
    limit: Option<Duration>,
    /// The beginning of standard error if the process could not become the command.
    cannot_run: String,
    /// How the first process of the group ended.
    status: Option<ExitStatus>,
    /// When [`WorkChild::look`] sent SIGTERM to the group, and why.
    told: Option<(Instant, String)>,
    killed: Option<Instant>,
}

/// The first argument of a process of this program that becomes the command of a worker.
const BECOME: &str = "--become-command";

/// Becomes the command of a worker, if the arguments say so; returns if it cannot. The system kills the command when the
/// thread of the worker that has started it ends, which waits for it: so a worker that was killed leaves no command
/// behind that runs while its message is delivered again.
pub(super) fn become_command(args: &[OsString]) -> Option<ExitCode> {
    let [_, word, worker, command, rest @ ..] = args else { return None };
    if word != BECOME {
        return None;
    }
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if parent.is_none() || parent.as_deref() != worker.to_str() {
        return Some(ExitCode::FAILURE); // the worker has ended before it could be watched
    }
    let error = Command::new(command).args(rest).exec();
    let command = command.to_string_lossy();
    let is_there = error.kind() == io::ErrorKind::NotFound && find(&command).is_ok();
    let why = if is_there { "its interpreter is not there".to_owned() } else { error.to_string() };
    on_stderr(format_args!("{}{why}", cannot_run(&command)));
    Some(ExitCode::from(CANNOT_RUN))
}

/// The exit code of a process that could not become the command; a command may have it as well.
const CANNOT_RUN: u8 = 126;

/// The words before the reason why a command cannot run.
pub(super) fn cannot_run(command: &str) -> String {
    format!("cannot run {command}: ")
}

impl<'a> WorkChild<'a> {
    /// Starts a command for a message. `own` is this program, if the command is to end with it.
    pub(super) fn start(
        command: &[String],
        own: Option<&Path>,
        message: &Value,
        body: Vec<u8>,
        limit: Option<Duration>,
        all: &'a Children,
    ) -> io::Result<Self> {
        find(&command[0])?;
        let mut starts = match own {
            None => Command::new(&command[0]),
            Some(own) => {
                let mut starts = Command::new(own);
                starts.arg(BECOME).arg(std::process::id().to_string()).arg(&command[0]);
                starts
            }
        };
        let mut child = starts
            .args(&command[1..])
            .envs(environment(message))
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C is for us: the command may finish.
            .process_group(0)
            .spawn()?;
        let group = i32::try_from(child.id()).map_err(io::Error::other)?;
        all.lock().insert(group);
        if let Some(mut stdin) = child.stdin.take() {
            // A command that does not read its input is none of our business.
            thread::spawn(move || stdin.write_all(&body));
        }
        let (reading, is_read) = channel();
        let tail = Arc::new(StderrTail::default());
        if let Some(stderr) = child.stderr.take() {
            let tail = tail.clone();
            thread::spawn(move || {
                pass_on(stderr, &tail);
                drop(reading);
            });
        }
        Ok(WorkChild {
            child,
            group,
            all,
            tail,
            is_read,
            begun: Instant::now(),
            limit,
            cannot_run: cannot_run(&command[0]),
            status: None,
            told: None,
            killed: None,
        })
    }

    /// Looks whether it has ended, and ends it when its time is over, or its message `is_lost`. Takes [`LOOK`] otherwise.
    ///
    /// A command that got SIGTERM has ended when its whole group has: the message comes again, and processes that are
    /// left would run at the same time. A command that ends by itself may leave processes in the background.
    pub(super) fn look(&mut self, is_lost: bool) -> io::Result<Option<CommandEnded>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        let over = self.limit.filter(|limit| self.status.is_none() && self.begun.elapsed() >= *limit);
        if self.told.is_none() && (over.is_some() || is_lost || self.all.were_killed()) {
            let why = match over {
                Some(limit) => format!("ran longer than {limit:?}"),
                None if is_lost => "its lease was lost".to_owned(),
                None => "the worker was stopped".to_owned(),
            };
            signal_group(self.group, Signal::TERM);
            self.told = Some((Instant::now(), why));
        }
        if let Some(status) = self.status
            && self.is_over()
        {
            return self.ended(status).map(Some);
        }
        if self.killed.is_none() && self.told.as_ref().is_some_and(|(told, _)| told.elapsed() >= GRACE) {
            signal_group(self.group, Signal::KILL);
            self.killed = Some(Instant::now());
        }
        thread::sleep(LOOK);
        Ok(None)
    }

    /// Whether nothing is left to wait for, its first process having ended.
    fn is_over(&self) -> bool {
        self.told.is_none()
            || !has_processes(self.group)
            || self.killed.is_some_and(|killed| killed.elapsed() >= KILL_TIME)
    }

    /// How it ended; an error if it never began.
    fn ended(&self, status: ExitStatus) -> io::Result<CommandEnded> {
        let how = match (&self.told, status.code(), status.signal()) {
            (Some((_, why)), _, _) => why.clone(),
            (None, Some(code), _) => format!("exit status {code}"),
            (None, None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None, None) => "ended without a status".to_owned(),
        };
        let code = if self.told.is_some() { None } else { status.code() };
        let may_not_have_begun = code == Some(CANNOT_RUN.into());
        // Processes in the background may keep standard error open for ever: then the end so far counts.
        let _ = self.is_read.recv_timeout(if may_not_have_begun { GRACE } else { DRAIN });
        let written = self.tail.text();
        match written.strip_prefix(&self.cannot_run).filter(|_| may_not_have_begun) {
            Some(why) => Err(io::Error::other(why.trim_end())),
            None => Ok(CommandEnded { code, reason: reason(&how, &written) }),
        }
    }
}

impl Drop for WorkChild<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.group);
    }
}

/// The last bytes that a command has written to standard error.
#[derive(Debug, Default)]
struct StderrTail(Mutex<TailBytes>);

#[derive(Debug, Default)]
struct TailBytes {
    bytes: Vec<u8>,
    /// Whether there were more in front of them.
    is_cut: bool,
}

impl StderrTail {
    fn lock(&self) -> MutexGuard<'_, TailBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, piece: &[u8]) {
        let mut tail = self.lock();
        tail.bytes.extend_from_slice(piece);
        let most = tail.bytes.len().saturating_sub(TAIL);
        tail.is_cut |= most > 0;
        tail.bytes.drain(..most);
    }

    /// The text so far, without the rest of a character that was cut.
    fn text(&self) -> String {
        let tail = self.lock();
        let is_rest = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        let rest = if tail.is_cut { tail.bytes.iter().take(3).take_while(is_rest).count() } else { 0 };
        String::from_utf8_lossy(&tail.bytes[rest..]).into_owned()
    }
}

/// How a command ended, and as many of its last lines as a reason may have; of a line that is too long, its end.
fn reason(how: &str, stderr: &str) -> String {
    let written = stderr.trim();
    if written.is_empty() {
        return how.to_owned();
    }
    let room = REASON.saturating_sub(how.len() + 2);
    let mut from = written.len().saturating_sub(room);
    while !written.is_char_boundary(from) {
        from += 1;
    }
    let mut end = &written[from..];
    if from > 0
        && !written[..from].ends_with('\n')
        && let Some((_, lines)) = end.split_once('\n')
    {
        end = lines;
    }
    format!("{how}: {}", end.trim_start())
}

/// Copies a command's standard error to ours, and keeps the end of it.
fn pass_on(mut stderr: impl Read, tail: &StderrTail) {
    let mut piece = [0; 4096];
    loop {
        match stderr.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                tail.add(&piece[..read]);
                let _ = io::stderr().write_all(&piece[..read]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
}

/// Whether a command is there and may be run, as far as that is known before it runs.
pub(super) fn find(command: &str) -> io::Result<()> {
    let may_run = |file: &Path| -> io::Result<()> {
        if fs::metadata(file)?.is_dir() {
            return Err(Errno::ACCESS.into());
        }
        Ok(access(file, Access::EXEC_OK)?)
    };
    if command.contains('/') {
        return may_run(Path::new(command));
    }
    // Without this variable the system looks in folders of its own.
    let Some(path) = env::var_os("PATH") else { return Ok(()) };
    let mut why = io::Error::from(Errno::NOENT);
    for folder in env::split_paths(&path) {
        match may_run(&folder.join(command)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => why = error,
            Err(_) => {}
        }
    }
    Err(why)
}

/// The fields of its message that a command gets, besides the key, the headers and the URL.
const FIELDS: [&str; 7] = ["id", "queue", "attempt", "priority", "due_at", "generation", "lateness_ms"];
/// The variable that each command has, and nothing else sets.
pub(super) const MARK: &str = "DUEWHEEL_LATENESS_MS";

/// Whether a command that `work` runs may find something of its message in this variable.
pub(super) fn tells_of_message(variable: &str) -> bool {
    let Some(name) = variable.strip_prefix("DUEWHEEL_") else { return false };
    name.starts_with("HEADER_")
        || FIELDS.iter().chain(&["key", "target_url"]).any(|field| name.eq_ignore_ascii_case(field))
}

/// The variables that describe a message to its command. Values with a NUL cannot be in an environment, and are left
/// out.
fn environment(message: &Value) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    let mut put = |name: String, value: &Value| {
        let text = match value {
            Value::Null => return,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if !text.contains('\0') {
            variables.push((name, text));
        }
    };
    for field in FIELDS {
        put(format!("DUEWHEEL_{}", field.to_ascii_uppercase()), &message[field]);
    }
    if message["target_url"].is_string() {
        put("DUEWHEEL_TARGET_URL".to_owned(), &message["target_url"]);
    }
    put("DUEWHEEL_KEY".to_owned(), &Value::from(message["key"].as_str().unwrap_or_default()));
    for (name, value) in message["headers"].as_object().into_iter().flatten() {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        put(format!("DUEWHEEL_HEADER_{}", name.chars().map(letter).collect::<String>()), value);
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_the_message() {
        let message = serde_json::json!({
            "id": "7", "queue": "q", "key": null, "attempt": 2, "priority": 1024, "due_at": "2026-01-01T00:00:00.000Z",
            "generation": 1, "lateness_ms": 3, "target_url": "https://a.example/", "headers": {"trace-id": "abc", "bad": "a\0b"},
        });
        let found: std::collections::BTreeMap<_, _> = environment(&message).into_iter().collect();
        assert_eq!(found["DUEWHEEL_ID"], "7");
        assert_eq!(found["DUEWHEEL_KEY"], "");
        assert_eq!(found["DUEWHEEL_ATTEMPT"], "2");
        assert_eq!(found["DUEWHEEL_LATENESS_MS"], "3");
        assert_eq!(found["DUEWHEEL_HEADER_TRACE_ID"], "abc");
        assert_eq!(found["DUEWHEEL_TARGET_URL"], "https://a.example/");
        assert!(!found.contains_key("DUEWHEEL_HEADER_BAD"));
    }

    /// The second signal to a worker asks its commands to end, the third ends them. Nobody looks at the command here, so
    /// that it is not killed because [`GRACE`] has passed.
    #[test]
    fn second_signal_kills_ignoring_commands() {
        use std::os::unix::process::ExitStatusExt;
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        let script = format!(
            "all=$(seq 9000); trap 'touch {}' TERM; touch {}; for i in $all; do sleep 0.02; done",
            file("asked").display(),
            file("begun").display()
        );
        let until = |what: &str, so: &mut dyn FnMut() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !so() {
                assert!(Instant::now() < deadline, "waited in vain until {what}");
                thread::sleep(LOOK);
            }
        };
        let children = Children::default();
        let command = ["sh".to_owned(), "-c".to_owned(), script];
        let message = serde_json::json!({"id": "1", "queue": "q"});
        let mut child = WorkChild::start(&command, None, &message, Vec::new(), None, &children).unwrap();
        until("it has begun", &mut || file("begun").exists());
        children.end_all();
        until("it was asked", &mut || file("asked").exists());
        assert!(child.child.try_wait().unwrap().is_none(), "it goes on");
        children.end_all();
        let mut status = None;
        until("it is gone", &mut || {
            status = child.child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn stderr_tail_is_kept() {
        let tail = StderrTail::default();
        pass_on(format!("{}last line\n", "x".repeat(10_000)).as_bytes(), &tail);
        let told = tail.text();
        assert_eq!(told.len(), TAIL);
        assert!(told.ends_with("xlast line\n"), "{told}");
        pass_on("错误".repeat(200).as_bytes(), &tail);
        assert!(!tail.text().contains(char::REPLACEMENT_CHARACTER));
    }

    /// Story: 512 bytes were sent, the server kept the first 256 of them, and the last line was never in the reason.
    #[test]
    fn failure_reason_keeps_last_whole_lines() {
        assert_eq!(REASON, duewheel_core::policy::Policy::default().max_note);
        let lines: String = (1..=100).map(|n| format!("line number {n}\n")).collect();
        let told = reason("exit status 3", &lines);
        assert!(told.starts_with("exit status 3: line number "), "{told}");
        assert!(told.ends_with("line number 99\nline number 100") && told.len() <= REASON, "{told}");
        let told = reason("exit status 3", &"错误".repeat(200));
        assert!(told.ends_with("错误") && told.len() <= REASON && told.len() > REASON - 3, "{told}");
        assert_eq!(reason("exit status 1", " \n"), "exit status 1");
        assert_eq!(reason("exit status 1", "one\ntwo\n"), "exit status 1: one\ntwo");
        let told = reason("exit status 1", &format!("Trace:\n{}", "x".repeat(900)));
        assert_eq!(told, format!("exit status 1: {}", "x".repeat(REASON - 15)));
    }
}
