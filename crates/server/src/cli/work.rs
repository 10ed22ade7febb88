//! `duewheel work QUEUE... -- COMMAND`: leases messages one by one and runs a command for each.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use duewheel::core::QueueName;
use serde_json::{Value, json};

use super::failure::refused_line;
use super::queue::{path, queue_name};
use super::remote::{ApiError, Remote, will_pass};
use super::work_child::{self, Children, CommandEnded, WorkChild};
use super::{ClientCommand, CommandFailure, ServerArgs, when};
use crate::span::TimeSpan;

/// How long one request waits for a message when there is one queue.
const WAIT: Duration = Duration::from_secs(20);
/// How long one of several queues is waited for, which are asked in turn.
const TURN: Duration = Duration::from_millis(250);
/// The exit code of a command whose message is to be buried.
const DEAD: i32 = 100;
/// The exit code of a command that cannot handle the message yet (`EX_TEMPFAIL` of sysexits.h).
const NOT_YET: i32 = 75;
/// Time until a retry when the server is unreachable.
const REST: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
pub(super) struct WorkArgs {
    /// The queues; several are asked in turn
    #[arg(required = true, value_name = "QUEUE", value_parser = queue_name)]
    queues: Vec<QueueName>,
    /// Stop after this number of messages
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Number of commands that run at the same time
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    /// Length of a lease; it is extended while the command runs [default: as message and queue say]
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    lease: Option<TimeSpan>,
    /// End a command that runs longer: SIGTERM to its process group, five seconds later SIGKILL; the message is nacked
    #[arg(long, value_name = "TIME", value_parser = when::span)]
    timeout: Option<TimeSpan>,
    /// Stop when no message is ready, instead of waiting for the next
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// The command: gets the body on standard input, and DUEWHEEL_ID, _QUEUE, _KEY, _ATTEMPT, _PRIORITY, _DUE_AT,
    /// _GENERATION, _LATENESS_MS and DUEWHEEL_HEADER_NAME for each header in its environment. Exit code 0 acks, 75 gives
    /// the message back without using up an attempt, 100 makes it dead, every other code nacks it; the reason is the end
    /// of what the command wrote to standard error
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ClientCommand for WorkArgs {
    fn server(&self) -> &ServerArgs {
        &self.server
    }

    fn run(self) -> Result<(), CommandFailure> {
        // Each message that a worker leases for nothing has used up an attempt.
        let cannot = |error| CommandFailure::Failed(format!("cannot run {}: {error}", self.command[0]));
        work_child::find(&self.command[0]).map_err(cannot)?;
        let remote = Remote::new(&self.server)?;
        let slots = Arc::new(JobSlots { is_json: self.server.json, ..JobSlots::default() });
        watch_signals(slots.clone())?;
        let worker = WorkJobs {
            left: self.count.map(AtomicU64::new),
            args: &self,
            remote,
            slots,
            waits: Mutex::default(),
        };
        let ended: Vec<thread::Result<()>> = thread::scope(|scope| {
            let jobs: Vec<_> = (0..usize::from(self.jobs))
                .map(|job| {
                    scope.spawn({
                        let worker = &worker;
                        move || worker.job(job)
                    })
                })
                .collect();
            jobs.into_iter().map(|job| job.join()).collect()
        });
        if ended.iter().any(Result::is_err) {
            return Err(CommandFailure::failed("a thread of this command panicked"));
        }
        worker.slots.failure().map_or(Ok(()), Err)
    }
}

/// The state that all jobs share.
struct WorkJobs<'a> {
    args: &'a WorkArgs,
    remote: Remote,
    slots: Arc<JobSlots>,
    /// How many messages may still be begun.
    left: Option<AtomicU64>,
    /// The code of the reported reason for waiting; empty if the server cannot be reached.
    waits: Mutex<Option<String>>,
}

/// How a job goes on after it has looked for a message.
enum NextMessage {
    Message(Value),
    /// No message was ready.
    Nothing,
    /// Messages are ready, but the limit of leases is reached.
    HeldBack,
}

impl WorkJobs<'_> {
    /// Handles one message after the other until a stop is requested or a call fails.
    fn job(&self, job: usize) {
        if let Err(failure) = self.messages(job) {
            self.slots.fail(failure);
        }
    }

    fn messages(&self, job: usize) -> Result<(), CommandFailure> {
        let mut turn = job;
        while self.claim() {
            let message = match self.next(&mut turn)? {
                Some(message) => message,
                None => return Ok(()),
            };
            if !self.slots.begin() {
                // The message arrived after a stop was requested.
                return WorkLease::new(&self.remote, &message).map(|lease| lease.not_yet("the worker stops"));
            }
            self.slots.end(self.handle(&message));
        }
        Ok(())
    }

    /// Takes one of the messages of `--count`.
    fn claim(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        self.left
            .as_ref()
            .is_none_or(|left| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok())
    }

    /// The next message; `None` when there is to be none.
    fn next(&self, turn: &mut usize) -> Result<Option<Value>, CommandFailure> {
        loop {
            if self.slots.is_stopping() {
                return Ok(None);
            }
            let mut nothing = true;
            for _ in &self.args.queues {
                let queue = &self.args.queues[*turn % self.args.queues.len()];
                *turn += 1;
                let wait = match (self.args.until_empty, self.args.queues.len()) {
                    (true, _) => Duration::ZERO,
                    (false, 1) => WAIT,
                    (false, _) => TURN,
                };
                match self.reserve(queue, wait)? {
                    NextMessage::Message(message) => return Ok(Some(message)),
                    NextMessage::HeldBack => nothing = false,
                    NextMessage::Nothing => {}
                }
            }
            if self.args.until_empty {
                if nothing {
                    return Ok(None);
                }
                thread::sleep(TURN);
            }
        }
    }

    fn reserve(&self, queue: &QueueName, wait: Duration) -> Result<NextMessage, CommandFailure> {
        let mut request = json!({"max": 1, "wait_ms": u64::try_from(wait.as_millis()).unwrap_or(0)});
        if let Some(lease) = self.args.lease {
            request["lease_ms"] = lease.0.into();
        }
        loop {
            match self.remote.post_waiting(&format!("{}/reserve", path(queue)), &request, wait) {
                Ok(mut answer) => {
                    *self.lock_wait() = None;
                    let message = answer["messages"].get_mut(0).map(Value::take);
                    let held_back = answer.get("held_back").is_some();
                    let nothing = if held_back { NextMessage::HeldBack } else { NextMessage::Nothing };
                    return Ok(message.map_or(nothing, NextMessage::Message));
                }
                // Most likely it is being started, or started again.
                Err(trouble) if will_pass(&trouble) => {
                    self.tell_wait(&trouble);
                    thread::sleep(REST);
                    if self.slots.is_stopping() {
                        return Ok(NextMessage::Nothing);
                    }
                }
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    fn lock_wait(&self) -> MutexGuard<'_, Option<String>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells why the server is waited for: once for all jobs, and again when it is for another reason.
    fn tell_wait(&self, trouble: &ApiError) {
        let code = match trouble {
            ApiError::Refused(refusal) => refusal.code.clone(),
            ApiError::Unreachable(_) | ApiError::Mistaken(_) => String::new(),
        };
        let mut last = self.lock_wait();
        if last.as_ref() != Some(&code) {
            eprintln!("{}", refused_line(None, "waiting for the server", trouble));
            *last = Some(code);
        }
    }

    fn handle(&self, message: &Value) -> Result<(), CommandFailure> {
        let lease = WorkLease::new(&self.remote, message)?;
        let body = match (&message["body"], &message["body_base64"]) {
            (Value::String(text), _) => text.clone().into_bytes(),
            (_, Value::String(text)) => STANDARD.decode(text).map_err(CommandFailure::failed)?,
            _ => Vec::new(),
        };
        let limit = self.args.timeout.map(Duration::from);
        let child = match WorkChild::start(&self.args.command, message, body, limit, &self.slots.children) {
            Ok(child) => child,
            Err(error) => {
                let what = format!("cannot run {}: {error}", self.args.command[0]);
                lease.nack(&what);
                return Err(CommandFailure::Failed(what));
            }
        };
        match lease.hold_while(child)? {
            CommandEnded { code: Some(0), .. } => lease.ack(),
            CommandEnded { code: Some(DEAD), reason } => lease.dead_letter(&reason),
            CommandEnded { code: Some(NOT_YET), reason } => lease.not_yet(&reason),
            CommandEnded { reason, .. } => lease.nack(&reason),
        }
        Ok(())
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
    fn hold_while(&self, mut child: WorkChild<'_>) -> Result<CommandEnded, CommandFailure> {
        let mut extended = Instant::now();
        let mut held = true;
        loop {
            if let Some(ended) = child.look()? {
                return Ok(ended);
            }
            if held && extended.elapsed() >= self.length / 3 {
                extended = Instant::now();
                let length = u64::try_from(self.length.as_millis()).unwrap_or(u64::MAX);
                held = self.tell("extend", json!({"lease_token": self.token, "lease_ms": length}));
            }
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

    /// For another attempt, without counting this one.
    fn not_yet(&self, reason: &str) {
        self.tell("nack", json!({"lease_token": self.token, "attempt": false, "reason": reason}));
    }

    /// Sends a request about the lease; returns whether the lease still holds, as far as known.
    fn tell(&self, what: &str, request: Value) -> bool {
        match self.remote.post(&format!("{}/{what}", self.path), &request) {
            Ok(_) => true,
            Err(trouble) => {
                let _ = writeln!(
                    io::stderr(),
                    "{what} of {}: {trouble}",
                    self.path.trim_start_matches("/v1/messages/")
                );
                will_pass(&trouble)
            }
        }
    }
}

/// Which jobs have a message, and whether they are to go on.
#[derive(Debug, Default)]
struct JobSlots {
    state: Mutex<WorkState>,
    children: Children,
    /// Whether a failure is printed as JSON.
    is_json: bool,
}

#[derive(Debug, Default)]
struct WorkState {
    busy: usize,
    stopping: bool,
    /// The first failure of a job.
    failure: Option<CommandFailure>,
}

impl WorkState {
    /// Every other message would fail like this one.
    fn fail(&mut self, failure: CommandFailure) {
        self.stopping = true;
        self.failure.get_or_insert(failure);
    }
}

impl JobSlots {
    fn lock(&self) -> MutexGuard<'_, WorkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message was received; false: the process is about to end.
    fn begin(&self) -> bool {
        let mut state = self.lock();
        if !state.stopping {
            state.busy += 1;
        }
        !state.stopping
    }

    /// A message is settled, or could not be handled. The last one ends a process that is to stop.
    fn end(&self, result: Result<(), CommandFailure>) {
        let mut state = self.lock();
        if let Err(failure) = result {
            state.fail(failure);
        }
        state.busy -= 1;
        self.leave_if_idle(&mut state);
    }

    /// A job has failed without a message.
    fn fail(&self, failure: CommandFailure) {
        let mut state = self.lock();
        state.fail(failure);
        self.leave_if_idle(&mut state);
    }

    /// The first failure, once all jobs have ended.
    fn failure(&self) -> Option<CommandFailure> {
        self.lock().failure.take()
    }

    /// Ends a process that is to stop and has no message: reserves that still wait are cut off, and the server detects
    /// that. A failure is printed, as it would be at the end of the command.
    fn leave_if_idle(&self, state: &mut WorkState) {
        if !state.stopping || state.busy > 0 {
            return;
        }
        let Some(failure) = state.failure.take() else {
            std::process::exit(i32::from(self.children.were_killed()));
        };
        failure.tell(self.is_json);
        std::process::exit(i32::from(failure.exit_code()));
    }

    fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// A signal has arrived.
    fn signalled(&self) {
        let mut state = self.lock();
        if state.busy == 0 {
            std::process::exit(0);
        }
        if state.stopping {
            drop(state);
            self.children.end_all();
        } else {
            state.stopping = true;
            let busy = state.busy;
            eprintln!(
                "finishing {busy} message{}; once more to end the commands",
                if busy == 1 { "" } else { "s" }
            );
        }
    }
}

/// Ends the process at the first signal when no message is in progress, otherwise after the messages in progress; at the
/// second signal their commands are ended. A reserve that is cut off takes no message with it: the server detects that.
fn watch_signals(slots: Arc<JobSlots>) -> Result<(), CommandFailure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let [terminate, interrupt, hang_up] = kinds.map(signal);
        io::Result::Ok((terminate?, interrupt?, hang_up?))
    });
    let (mut terminate, mut interrupt, mut hang_up) = signals?;
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    // Its terminal is gone.
                    _ = hang_up.recv() => {}
                }
                slots.signalled();
            }
        });
    });
    Ok(())
}
