//! The command that handles one message: a process group of its own, with a time limit.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;

/// Time between two checks of a running command.
const LOOK: Duration = Duration::from_millis(10);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long SIGKILL may take; processes that nobody waits for stay in their group for ever.
const KILL_TIME: Duration = Duration::from_secs(1);
/// How much of the end of standard error becomes the reason, in bytes.
const TAIL: usize = 512;
/// How long the end of standard error is waited for when the command has ended; what it has started may keep it open.
const DRAIN: Duration = Duration::from_millis(200);

/// How a command ended.
#[derive(Debug)]
pub(super) struct CommandEnded {
    /// Its exit code; none if a signal or the time limit ended it.
    pub(super) code: Option<i32>,
    /// That in words, and the last that it wrote to standard error.
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

    /// Whether commands were told to end.
    pub(super) fn were_killed(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }
}

fn signal_group(group: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(group) {
        // It may have ended meanwhile.
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
    /// The end of standard error, when all of it was read.
    tail: Receiver<Vec<u8>>,
    begun: Instant,
    limit: Option<Duration>,
    /// How the first process of the group ended.
    status: Option<ExitStatus>,
    /// When it was told to end, and why.
    told: Option<(Instant, String)>,
    killed: Option<Instant>,
}

impl<'a> WorkChild<'a> {
    pub(super) fn start(
        command: &[String],
        message: &Value,
        body: Vec<u8>,
        limit: Option<Duration>,
        all: &'a Children,
    ) -> io::Result<Self> {
        let mut child = Command::new(&command[0])
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
        let (send, tail) = channel();
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || send.send(pass_on(stderr)));
        }
        Ok(WorkChild {
            child,
            group,
            all,
            tail,
            begun: Instant::now(),
            limit,
            status: None,
            told: None,
            killed: None,
        })
    }

    /// Looks whether it has ended, and ends it when its time is over. Takes [`LOOK`] otherwise.
    ///
    /// A command that was told to end has ended when its whole group has: the message comes again, and what the first
    /// process has left behind would run beside it. One that ends by itself may leave processes in the background.
    pub(super) fn look(&mut self) -> io::Result<Option<CommandEnded>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        let over = self.limit.filter(|limit| self.status.is_none() && self.begun.elapsed() >= *limit);
        if self.told.is_none() && (over.is_some() || self.all.were_killed()) {
            let why = match over {
                Some(limit) => format!("ran longer than {limit:?}"),
                None => "the worker was stopped".to_owned(),
            };
            signal_group(self.group, Signal::TERM);
            self.told = Some((Instant::now(), why));
        }
        if let Some(status) = self.status
            && self.is_over()
        {
            return Ok(Some(self.ended(status)));
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

    fn ended(&self, status: ExitStatus) -> CommandEnded {
        let how = match (&self.told, status.code(), status.signal()) {
            (Some((_, why)), _, _) => why.clone(),
            (None, Some(code), _) => format!("exit status {code}"),
            (None, None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None, None) => "ended without a status".to_owned(),
        };
        let tail = match self.tail.recv_timeout(DRAIN) {
            Ok(tail) => String::from_utf8_lossy(&tail).trim().to_owned(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => String::new(),
        };
        let code = if self.told.is_some() { None } else { status.code() };
        CommandEnded { code, reason: if tail.is_empty() { how } else { format!("{how}: {tail}") } }
    }
}

impl Drop for WorkChild<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.group);
    }
}

/// Copies a command's standard error to ours, and gives the last lines of it.
fn pass_on(mut stderr: impl Read) -> Vec<u8> {
    let mut tail = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stderr.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                let _ = io::stderr().write_all(&piece[..read]);
                tail.extend_from_slice(&piece[..read]);
                let most = tail.len().saturating_sub(TAIL);
                tail.drain(..most);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    tail
}

/// What a command is told of its message. Values with a NUL cannot be in an environment, and are left out.
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
    for field in ["id", "queue", "attempt", "priority", "due_at", "generation", "lateness_ms"] {
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

    #[test]
    fn the_end_of_what_was_written_is_kept() {
        let text = format!("{}last line\n", "x".repeat(10_000));
        let tail = pass_on(text.as_bytes());
        assert_eq!(tail.len(), TAIL);
        assert!(tail.ends_with(b"xlast line\n"));
    }
}
