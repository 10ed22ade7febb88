//! `duewheel work QUEUE... -- COMMAND`: leases messages one by one and runs a command for each.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use duewheel_client::{Error, segment};
use duewheel_core::QueueName;
use serde_json::{Value, json};

use super::existing::note_missing;
use super::failure::CommandFailure;
use super::failure::refused_line;
use super::message::settled_words;
use super::queue::queue_name;
use super::remote::will_pass;
use super::session::{ClientCommand, ClientSession, on_signals};
use super::table::{cell, plain};
use super::when;
use super::work_child::{self, Children, CommandEnded, WorkChild};
use duewheel_api::span::TimeSpan;

/// How long one request waits for a message.
const WAIT: Duration = Duration::from_secs(20);
/// Time until `--until-empty` asks again while ready messages are held back.
const HELD_BACK: Duration = Duration::from_millis(250);
/// The exit code of a command whose message is to be buried.
const DEAD: i32 = 100;
/// The exit code of a command that cannot handle the message yet (`EX_TEMPFAIL` of sysexits.h).
const NOT_YET: i32 = 75;
/// Time until a retry when the server is unreachable.
const REST: Duration = Duration::from_secs(1);

#[derive(Args, Debug)]
#[command(
    after_help = "When this process is killed (SIGKILL), so is the command. What the command has started itself may run \
on, beside the next run of its message."
)]
pub(super) struct WorkArgs {
    /// The queues; the best message of all is taken, by priority, then by due time
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
    /// The command: gets the body on standard input, and DUEWHEEL_ID, _QUEUE, _KEY, _ATTEMPT, _PRIORITY, _DUE_AT,
    /// _GENERATION, _LATENESS_MS and DUEWHEEL_HEADER_NAME for each header in its environment. Exit code 0 acks, 75 gives
    /// the message back without using up an attempt, 100 makes it dead, every other code nacks it; the reason is the end
    /// of what the command wrote to standard error
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ClientCommand for WorkArgs {
    fn run(self, session: &ClientSession) -> Result<(), CommandFailure> {
        // Each message that a worker leases for nothing has used up an attempt.
        let cannot = |error| CommandFailure::Failed(format!("cannot run {}: {error}", self.command[0]));
        work_child::find(&self.command[0]).map_err(cannot)?;
        let slots = Arc::new(JobSlots { is_json: session.is_json, ..JobSlots::default() });
        let signalled = slots.clone();
        on_signals(move || signalled.signalled())?;
        let worker = WorkJobs {
            left: self.count.map(AtomicU64::new),
            args: &self,
            session,
            slots,
            waits: Mutex::default(),
            own: env::current_exe().ok().filter(|own| own.exists()),
        };
        let otherwise = if self.until_empty { "" } else { "waiting for it" };
        self.queues.iter().for_each(|queue| note_missing(&session.remote, queue, otherwise));
        if !self.until_empty {
            let names: Vec<&str> = self.queues.iter().map(QueueName::as_str).collect();
            worker.say(&format!("waiting for messages of {}; Ctrl-C ends", names.join(", ")));
        }
        let ended: Vec<thread::Result<()>> = thread::scope(|scope| {
            let jobs: Vec<_> = (0..usize::from(self.jobs)).map(|_| scope.spawn(|| worker.job())).collect();
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
    session: &'a ClientSession,
    slots: Arc<JobSlots>,
    /// How many messages may still be begun.
    left: Option<AtomicU64>,
    /// The code of the reported reason for waiting; empty if the server cannot be reached.
    waits: Mutex<Option<String>>,
    /// The file of this program.
    own: Option<PathBuf>,
}

impl WorkJobs<'_> {
    /// Handles one message after the other until a stop is requested or a call fails.
    fn job(&self) {
        if let Err(failure) = self.messages() {
            self.slots.fail(failure);
        }
    }

    fn messages(&self) -> Result<(), CommandFailure> {
        while self.claim() {
            let Some(message) = self.next()? else { return Ok(()) };
            if !self.slots.begin() {
                // The message arrived after a stop was requested.
                return WorkLease::new(self, &message).map(|lease| lease.not_yet("the worker stops"));
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
    fn next(&self) -> Result<Option<Value>, CommandFailure> {
        let wait = if self.args.until_empty { Duration::ZERO } else { WAIT };
        let queues: Vec<Value> =
            self.args.queues.iter().map(|queue| json!({"queue": queue.as_str()})).collect();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(0);
        let mut request = json!({"queues": queues, "max": 1, "wait_ms": wait_ms});
        if let Some(lease) = self.args.lease {
            request["lease_ms"] = lease.0.into();
        }
        while !self.slots.is_stopping() {
            match self.session.remote.post_waiting("/v1/reserve", &request, wait) {
                Ok(mut answer) => {
                    *self.lock_wait() = None;
                    if let Some(message) = answer["messages"].get_mut(0) {
                        return Ok(Some(message.take()));
                    }
                    if self.args.until_empty {
                        if answer.get("held_back").is_none() {
                            return Ok(None);
                        }
                        thread::sleep(HELD_BACK);
                    }
                }
                // Most likely it is being started, or started again.
                Err(trouble) if will_pass(&trouble) => self.wait_for_server(&trouble),
                Err(trouble) => return Err(trouble.into()),
            }
        }
        Ok(None)
    }

    fn lock_wait(&self) -> MutexGuard<'_, Option<String>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a little for a server that is away. Prints the reason once for all jobs, and again when it is another one.
    fn wait_for_server(&self, trouble: &Error) {
        let code = trouble.code.as_str().to_owned();
        let mut last = self.lock_wait();
        if last.as_ref() != Some(&code) {
            let _ = writeln!(io::stderr(), "{}", refused_line(None, "waiting for the server", trouble));
            *last = Some(code);
        }
        drop(last);
        thread::sleep(REST);
    }

    /// Prints a line for people who watch.
    fn say(&self, what: &str) {
        if !self.session.is_json && io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "{what}");
        }
    }

    fn handle(&self, message: &Value) -> Result<(), CommandFailure> {
        let lease = WorkLease::new(self, message)?;
        let body = match (&message["body"], &message["body_base64"]) {
            (Value::String(text), _) => text.clone().into_bytes(),
            (_, Value::String(text)) => STANDARD.decode(text).map_err(CommandFailure::failed)?,
            _ => Vec::new(),
        };
        let limit = self.args.timeout.map(Duration::from);
        let child = match WorkChild::start(
            &self.args.command,
            self.own.as_deref(),
            message,
            body,
            limit,
            &self.slots.children,
        ) {
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
    jobs: &'a WorkJobs<'a>,
    id: String,
    queue: String,
    token: Value,
    length: Duration,
}

impl<'a> WorkLease<'a> {
    fn new(jobs: &'a WorkJobs<'a>, message: &Value) -> Result<Self, CommandFailure> {
        let id = message["id"]
            .as_str()
            .ok_or_else(|| CommandFailure::failed("the server gave a message without an id"))?;
        Ok(WorkLease {
            jobs,
            id: id.to_owned(),
            queue: cell(message, "queue"),
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
                // A server that is away for a moment is asked again at the next third.
                held = match self.post("extend", json!({"lease_ms": length})) {
                    Err(trouble) => self.complain("extend", &trouble),
                    Ok(_) => true,
                };
            }
        }
    }

    fn ack(&self) {
        self.settle("ack", &json!({}));
    }

    fn nack(&self, reason: &str) {
        self.settle("nack", &json!({"reason": reason}));
    }

    fn dead_letter(&self, reason: &str) {
        self.settle("nack", &json!({"dead": true, "reason": reason}));
    }

    /// For another attempt, without counting this one.
    fn not_yet(&self, reason: &str) {
        self.settle("nack", &json!({"attempt": false, "reason": reason}));
    }

    /// Settles the message. The command has run, so the request is repeated until the server has answered it, or the
    /// second signal has come.
    fn settle(&self, what: &str, request: &Value) {
        loop {
            match self.post(what, request.clone()) {
                Ok(answer) => {
                    *self.jobs.lock_wait() = None;
                    let words = settled_words(&answer);
                    return match request["reason"].as_str() {
                        Some(reason) => {
                            self.jobs.say(&format!(
                                "{}  {}  {words} ({})",
                                self.queue,
                                self.id,
                                plain(reason)
                            ));
                        }
                        None => self.jobs.say(&format!("{}  {}  {words}", self.queue, self.id)),
                    };
                }
                Err(trouble) if will_pass(&trouble) && !self.jobs.slots.children.were_killed() => {
                    self.jobs.wait_for_server(&trouble);
                }
                Err(trouble) => {
                    self.complain(what, &trouble);
                    return;
                }
            }
        }
    }

    /// Sends a request about the lease.
    fn post(&self, what: &str, mut request: Value) -> Result<Value, Error> {
        request["lease_token"] = self.token.clone();
        self.jobs.session.remote.post(&format!("/v1/messages/{}/{what}", segment(&self.id)), &request)
    }

    /// Prints why a request about the lease has failed; returns whether the lease may still hold.
    fn complain(&self, what: &str, trouble: &Error) -> bool {
        let _ = writeln!(io::stderr(), "duewheel: {what} of {}: {trouble}", self.id);
        will_pass(trouble)
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

    /// A signal has arrived: ends the process at the first one when no message is in progress, otherwise after the messages
    /// in progress; at the second one their commands are ended. A reserve that is cut off takes no message with it: the
    /// server detects that.
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
            let _ = writeln!(
                io::stderr(),
                "finishing {busy} message{}; once more to end the commands",
                if busy == 1 { "" } else { "s" }
            );
        }
    }
}
