//! `duewheel work QUEUE... -- COMMAND`: leases messages one by one and runs a command for each.

use std::env;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use duewheel_api::span::TimeSpan;
use duewheel_client::{Cancellation, LeasedMessage, MessageWorker, Nack, WorkerEvent};
use duewheel_core::QueueName;

use super::existing::note_missing;
use super::failure::{CommandFailure, exit_code, with_flags};
use super::invocation;
use super::message::settled_words;
use super::queue::queue_name;
use super::session::{ClientCommand, ClientSession, on_signals};
use super::system_words::on_stderr;
use super::table::plain;
use super::when;
use super::work_child::{self, Children, CommandEnded, WorkChild, cannot_run};

/// The exit code of a command whose message is to be buried.
const DEAD: i32 = 100;
/// The exit code of a command that cannot handle the message yet (`EX_TEMPFAIL` of sysexits.h).
const NOT_YET: i32 = 75;

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
        let cannot = |error| CommandFailure::Failed(format!("{}{error}", cannot_run(&self.command[0])));
        work_child::find(&self.command[0]).map_err(cannot)?;
        let run = Arc::new(WorkRun {
            stop: Cancellation::default(),
            children: Children::default(),
            has_begun: AtomicBool::new(false),
            leased: AtomicUsize::new(0),
            failure: Mutex::default(),
            command: self.command.clone(),
            limit: self.timeout.map(Duration::from),
            own: env::current_exe().ok().filter(|own| own.exists()),
        });
        let signalled = run.clone();
        on_signals(move || signalled.signalled())?;
        let otherwise = if self.until_empty { "" } else { "waiting for it" };
        self.queues.iter().for_each(|queue| note_missing(&session.remote, queue, otherwise));
        let is_watched = !session.is_json && io::stderr().is_terminal();
        let names: Vec<&str> = self.queues.iter().map(QueueName::as_str).collect();
        if is_watched && !self.until_empty {
            on_stderr(format_args!("waiting for messages of {}; Ctrl-C ends", names.join(", ")));
        }
        let client = session.remote.client();
        run.has_begun.store(true, Ordering::SeqCst);
        let ended = client.work(&self.worker(session, &names, is_watched, run.clone()), &run.stop, {
            let run = run.clone();
            move |message, token| run.handle(message, token)
        });
        if let Some(failure) = run.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(failure);
        }
        ended.map_err(|error| with_flags(session.remote.worded(error), None))?;
        if run.children.were_killed() { Err(CommandFailure::Said(exit_code::FAILED)) } else { Ok(()) }
    }
}

impl WorkArgs {
    fn worker(
        &self,
        session: &ClientSession,
        queues: &[&str],
        is_watched: bool,
        run: Arc<WorkRun>,
    ) -> MessageWorker {
        let remote = session.remote.clone();
        let worker = remote.client().worker(queues).concurrency(self.jobs.into());
        let worker = self.lease.map_or(worker.clone(), |lease| worker.lease(lease.into()));
        let worker = self.count.map_or(worker.clone(), |count| worker.limit(count));
        let worker = if self.until_empty { worker.until_empty() } else { worker };
        worker.observe(move |event| match event {
            WorkerEvent::Settled(message, nack, answer) if is_watched => {
                let words = settled_words(&serde_json::to_value(answer).unwrap_or_default());
                let reason =
                    nack.and_then(|nack| nack.reason.as_deref()).map(|why| format!(" ({})", plain(why)));
                let reason = reason.unwrap_or_default();
                on_stderr(format_args!("{}  {}  {words}{reason}", message.queue, message.id));
            }
            WorkerEvent::Failed(message, error) => {
                let error = with_flags(remote.worded(error.clone()), None);
                on_stderr(format_args!("duewheel: message {}: {error}", message.id));
            }
            WorkerEvent::Waits(error) => remote.note_wait(&remote.worded(error.clone())),
            WorkerEvent::Leased(_) => {
                run.leased.fetch_add(1, Ordering::SeqCst);
            }
            WorkerEvent::Ended(_) => {
                run.leased.fetch_sub(1, Ordering::SeqCst);
            }
            _ => {}
        })
    }
}

/// The state that all jobs share.
struct WorkRun {
    stop: Cancellation,
    children: Children,
    /// Whether the worker runs: then it ends by itself at a stop.
    has_begun: AtomicBool,
    /// The number of messages that are leased, also those whose outcomes are being sent.
    leased: AtomicUsize,
    /// The first failure after which no message is begun.
    failure: Mutex<Option<CommandFailure>>,
    command: Vec<String>,
    /// How long a command may run.
    limit: Option<Duration>,
    /// The file of this program.
    own: Option<PathBuf>,
}

impl WorkRun {
    fn handle(&self, message: &LeasedMessage, token: &Cancellation) -> Result<(), Nack> {
        let ended = self.run(message, token).map_err(|error| {
            // Every other message would fail like this one.
            let what = format!("{}{error}", cannot_run(&self.command[0]));
            let failure = CommandFailure::Failed(what.clone());
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            self.stop.cancel();
            Nack::default().reason(what)
        })?;
        let nack = match ended.code {
            Some(0) => return Ok(()),
            Some(DEAD) => Nack::dead_because(ended.reason),
            Some(NOT_YET) => Nack::default().attempt(false).reason(ended.reason),
            Some(_) | None => Nack::default().reason(ended.reason),
        };
        Err(nack)
    }

    /// Runs the command for a message.
    fn run(&self, message: &LeasedMessage, token: &Cancellation) -> io::Result<CommandEnded> {
        let (own, fields) = (self.own.as_deref(), serde_json::to_value(message)?);
        let mut child =
            WorkChild::start(&self.command, own, &fields, message.bytes(), self.limit, &self.children)?;
        loop {
            if let Some(ended) = child.look(token.is_cancelled())? {
                return Ok(ended);
            }
        }
    }

    /// A signal has come: at the first one no message is begun any more, at the second one the commands are ended, or the
    /// process if none runs. A reserve that is cut off takes no message with it: the server detects that.
    fn signalled(&self) {
        if self.stop.is_cancelled() {
            if self.children.count() == 0 {
                // At most outcomes wait, for a server that does not answer.
                let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                let failure = failure.unwrap_or(CommandFailure::Said(exit_code::FAILED));
                failure.tell(invocation::current().is_json());
                std::process::exit(i32::from(failure.exit_code()));
            }
            self.children.end_all();
            return;
        }
        self.stop.cancel();
        let busy = self.leased.load(Ordering::SeqCst);
        if busy > 0 {
            on_stderr(finishing(busy, self.children.count()));
        } else if !self.has_begun.load(Ordering::SeqCst) {
            std::process::exit(0);
        }
    }
}

/// Says what a worker still does, and what another signal would end.
fn finishing(messages: usize, commands: usize) -> String {
    let s = if messages == 1 { "" } else { "s" };
    // Without commands only outcomes wait, for the server.
    let end = if commands > 0 { "the commands" } else { "at once" };
    format!("finishing {messages} message{s}; once more to end {end}")
}

#[cfg(test)]
mod tests {
    use super::finishing;

    /// Story: all commands had ended, an outcome waited for the server, and the worker offered to end the commands.
    #[test]
    fn waiting_outcomes_are_no_commands() {
        assert_eq!(finishing(1, 1), "finishing 1 message; once more to end the commands");
        assert_eq!(finishing(2, 0), "finishing 2 messages; once more to end at once");
    }
}
