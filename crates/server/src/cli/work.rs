//! `duewheel work QUEUE -- COMMAND`: leases messages one by one and runs a command for each.

use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use serde_json::{Value, json};

use super::remote::{ApiError, Remote, segment};
use super::{CommandFailure, ServerArgs};

/// How long one request waits for a message.
const WAIT: Duration = Duration::from_secs(20);
/// Time between two checks of a running command.
const LOOK: Duration = Duration::from_millis(10);
/// The exit code of a command whose message is to be buried.
const DEAD: i32 = 100;
/// Time until a retry when the server is unreachable.
const REST: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(super) struct WorkArgs {
    /// The queue
    queue: String,
    /// Stop after this number of messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Length of a lease; it is extended while the command runs [default: as message and queue say]
    #[arg(long, value_name = "TIME")]
    lease: Option<crate::span::TimeSpan>,
    #[command(flatten)]
    server: ServerArgs,
    /// The command: gets the body on standard input, and DUEWHEEL_ID, DUEWHEEL_KEY, DUEWHEEL_QUEUE and DUEWHEEL_ATTEMPT
    /// in its environment; exit code 0 acks, 100 makes the message dead, every other code nacks it
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The phases in which a signal may arrive.
mod phase {
    pub(super) const IDLE: u8 = 0;
    pub(super) const BUSY: u8 = 1;
    pub(super) const STOPPING: u8 = 2;
}

impl WorkArgs {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        let remote = Remote::new(&self.server)?;
        let phase = Arc::new(AtomicU8::new(phase::IDLE));
        watch_signals(phase.clone())?;
        let path = format!("/v1/queues/{}/reserve", segment(&self.queue));
        let mut request = json!({"max": 1, "wait_ms": u64::try_from(WAIT.as_millis()).unwrap_or(0)});
        if let Some(lease) = self.lease {
            request["lease_ms"] = lease.0.into();
        }
        let mut done = 0;
        while self.count.is_none_or(|count| done < count) {
            let answer = match remote.post_waiting(&path, &request, WAIT) {
                Ok(answer) => answer,
                // Most likely the server is being started or restarted.
                Err(trouble) if will_pass(&trouble) => {
                    eprintln!("{trouble}; trying again");
                    std::thread::sleep(REST);
                    continue;
                }
                Err(trouble) => return Err(trouble.into()),
            };
            let Some(message) = answer["messages"].get(0) else { continue };
            if phase.compare_exchange(phase::IDLE, phase::BUSY, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                return Ok(());
            }
            self.handle(&remote, message)?;
            done += 1;
            if phase.compare_exchange(phase::BUSY, phase::IDLE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn handle(&self, remote: &Remote, message: &Value) -> Result<(), CommandFailure> {
        let lease = WorkLease::new(remote, message)?;
        let body = match (&message["body"], &message["body_base64"]) {
            (Value::String(text), _) => text.clone().into_bytes(),
            (_, Value::String(text)) => STANDARD.decode(text).map_err(CommandFailure::failed)?,
            _ => Vec::new(),
        };
        let child = match self.start(message, body) {
            Ok(child) => child,
            Err(error) => {
                // Every other message would fail like this one.
                let what = format!("cannot run {}: {error}", self.command[0]);
                lease.nack(&what);
                return Err(CommandFailure::Failed(what));
            }
        };
        let status = lease.hold_while(child)?;
        if status.success() {
            lease.ack();
        } else if status.code() == Some(DEAD) {
            lease.dead_letter(&describe(status));
        } else {
            lease.nack(&describe(status));
        }
        Ok(())
    }

    fn start(&self, message: &Value, body: Vec<u8>) -> io::Result<Child> {
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .env("DUEWHEEL_ID", text("id"))
            .env("DUEWHEEL_KEY", text("key"))
            .env("DUEWHEEL_QUEUE", text("queue"))
            .env("DUEWHEEL_ATTEMPT", message["attempt"].to_string())
            .stdin(Stdio::piped())
            // Ctrl-C is meant for this process: the command may finish.
            .process_group(0)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // It is not an error if a command does not read its input.
            std::thread::spawn(move || stdin.write_all(&body));
        }
        Ok(child)
    }
}

fn will_pass(trouble: &ApiError) -> bool {
    match trouble {
        ApiError::Unreachable(_) => true,
        ApiError::Refused(refusal) => refusal.is_passing() || refusal.code == "storage_unavailable",
    }
}

/// The lease of one message.
struct WorkLease<'a> {
    remote: &'a Remote,
    path: String,
    token: Value,
    length: Duration,
}

impl<'a> WorkLease<'a> {
    fn new(remote: &'a Remote, message: &Value) -> Result<Self, CommandFailure> {
        let id = message["id"]
            .as_str()
            .ok_or_else(|| CommandFailure::failed("the server gave a message without an id"))?;
        Ok(WorkLease {
            remote,
            path: format!("/v1/messages/{id}"),
            token: message["lease_token"].clone(),
            length: Duration::from_millis(message["lease_ms"].as_u64().unwrap_or(30_000)),
        })
    }

    /// Waits for the command, and extends the lease at each third of it.
    fn hold_while(&self, mut child: Child) -> Result<ExitStatus, CommandFailure> {
        let mut extended = Instant::now();
        let mut held = true;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if held && extended.elapsed() >= self.length / 3 {
                extended = Instant::now();
                let length = u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX);
                held = self.tell("extend", json!({"lease_token": self.token, "lease_ms": length}));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn ack(&self) {
        self.tell("ack", json!({"lease_token": self.token}));
    }

    fn nack(&self, reason: &str) {
        self.tell("nack", json!({"lease_token": self.token, "reason": reason}));
    }

    fn dead_letter(&self, reason: &str) {
        self.tell("nack", json!({"lease_token": self.token, "dead": true, "reason": reason}));
    }

    /// Sends a request about the lease; returns whether the lease still holds, as far as known.
    fn tell(&self, what: &str, request: Value) -> bool {
        match self.remote.post(&format!("{}/{what}", self.path), &request) {
            Ok(_) => true,
            Err(trouble) => {
                eprintln!("{what} of {}: {trouble}", self.path.trim_start_matches("/v1/messages/"));
                will_pass(&trouble)
            }
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended without a status".to_owned(),
    }
}

/// Ends the process at the first signal when no message is in progress, otherwise after the current message; at the
/// second signal at once. A reserve that is cut off takes no message with it: the server detects that.
fn watch_signals(phase: Arc<AtomicU8>) -> Result<(), CommandFailure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async {
        io::Result::Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    });
    let (mut terminate, mut interrupt) = signals?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                match phase.swap(phase::STOPPING, Ordering::SeqCst) {
                    phase::BUSY => eprintln!("finishing the current message; once more to leave it"),
                    phase::IDLE => std::process::exit(0),
                    _ => std::process::exit(1),
                }
            }
        });
    });
    Ok(())
}
