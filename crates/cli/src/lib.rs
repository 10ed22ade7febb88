//! The command line of duewheel: the commands that talk to a server over HTTP. The package `duewheel-server` adds those
//! that need the server or its store in the process, and makes the program of both.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 no server can be reached, 6 refused (a limit, a
//! quota, missing permission).

// Each public function that can fail lists its errors.
#![warn(clippy::missing_errors_doc)]

use std::error::Error as _;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

mod beanstalk_source;
mod bridge;
mod bulk;
mod complete;
mod demo;
mod enqueue;
mod existing;
mod export;
mod export_file;
mod failure;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod help;
mod import;
mod import_file;
mod import_jobs;
mod import_marker;
mod invocation;
mod line_batch;
mod message;
mod queue;
mod remote;
mod schedule;
mod session;
mod status;
pub mod system_words;
pub mod table;
mod tail;
mod target;
mod top;
mod top_past;
mod top_view;
mod wait;
pub mod when;
mod work;
mod work_child;

pub use failure::{CommandFailure, exit_code};
use invocation::Invocation;
pub use invocation::{note, print_json};
pub use queue::queue_name;
pub use session::{ClientArgs, RunCommand, print_answer};
pub use status::{ListTokensArgs, ShowClusterArgs};
use wait::{NoWait, ReserveWait, WaitOfVariable};

/// Durable delayed messages: said once, done when due, cancellable by your own key.
#[derive(Debug, Parser)]
#[command(
    name = "duewheel",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Each option of a command has an environment variable: --if-exists has DUEWHEEL_IF_EXISTS. What is \
                  on the command line takes precedence."
)]
struct Cli<P: Subcommand + fmt::Debug> {
    #[command(subcommand)]
    command: Option<AnyCommand<P>>,
}

#[derive(Debug, Subcommand)]
enum AnyCommand<P: Subcommand + fmt::Debug> {
    #[command(flatten)]
    Client(CliCommand),
    #[command(flatten)]
    Program(P),
}

commands! {
    enum CliCommand {
        /// Show in 30 seconds what duewheel does, on a server of its own
        Demo(demo::DemoArgs),
        /// Schedule a message, or one for each line
        Enqueue(ClientArgs<enqueue::EnqueueArgs>),
        /// Show a message
        Get(ClientArgs<message::GetArgs>),
        /// Cancel a message before it is delivered
        #[command(visible_alias = "rm")]
        Cancel(ClientArgs<message::CancelArgs>),
        /// Give a message another due time
        Postpone(ClientArgs<message::PostponeArgs>),
        /// Make a message due now
        Fire(ClientArgs<message::FireArgs>),
        /// Enqueue the content of a done or dead message again
        Replay(ClientArgs<message::ReplayArgs>),
        /// List the messages of a queue in due order; without a queue, all queues
        #[command(visible_alias = "ls")]
        List(ClientArgs<message::ListArgs>),
        /// List all queues
        Queues(ClientArgs<queue::QueuesArgs>),
        /// Show a queue: counts, rates, settings; `queue set` changes these, `queue rm` removes it
        Queue(queue::QueueArgs),
        /// Show or change the settings of a queue, as `queue set` does
        Config(ClientArgs<queue::ConfigArgs>),
        /// Stop granting messages of a queue; they still become ready
        Pause(ClientArgs<queue::PauseArgs>),
        /// Grant messages of a paused queue again
        Resume(ClientArgs<queue::ResumeArgs>),
        /// Remove all messages of a queue but the leased ones
        Purge(ClientArgs<queue::PurgeArgs>),
        /// Count the dead messages of a queue by reason
        Dead(ClientArgs<bulk::DeadArgs>),
        /// Make dead messages of a queue ready again
        Redrive(ClientArgs<bulk::RedriveArgs>),
        /// Cancel, postpone, fire or redrive many messages of a queue at once
        Bulk(ClientArgs<bulk::BulkArgs, WaitOfVariable>),
        /// List, show and cancel the jobs of such changes
        #[command(subcommand)]
        Job(bulk::JobCommand),
        /// Draw how many messages are due when
        Histogram(ClientArgs<status::HistogramArgs>),
        /// Watch the ring, the queues and the lateness, live
        Top(ClientArgs<top::TopArgs, NoWait>),
        /// Print what happens to messages, live
        Tail(ClientArgs<tail::TailArgs>),
        /// Lease messages that are due
        Reserve(ClientArgs<message::ReserveArgs, ReserveWait>),
        /// Settle a leased message: it is done
        Ack(ClientArgs<message::AckArgs>),
        /// Give a leased message back, for another attempt or as dead
        Nack(ClientArgs<message::NackArgs>),
        /// Extend the lease of a message
        Extend(ClientArgs<message::ExtendArgs>),
        /// Run a command for each message of a queue
        #[command(visible_alias = "consume")]
        Work(ClientArgs<work::WorkArgs, NoWait>),
        /// Write all queues, schedules and messages to a file, for another server or as a copy
        Export(ClientArgs<export::ExportArgs>),
        /// Take in the messages of such a file, or the jobs of a running beanstalkd
        Import(ClientArgs<import::ImportArgs, WaitOfVariable>),
        /// Copy the data folder of a running server, without interrupting it
        Backup(ClientArgs<status::BackupArgs>),
        /// Put, list and remove schedules: messages that come again and again
        #[command(subcommand)]
        Schedule(schedule::ScheduleCommand),
        /// Put, list, test and remove targets: where messages are delivered
        #[command(subcommand)]
        Target(target::TargetCommand),
        /// List, plan, test, pause and resume bridges: other systems that messages come from and go to
        #[command(subcommand)]
        Bridge(bridge::BridgeCommand),
        /// Show limits and use of tenants
        Quotas(ClientArgs<status::QuotasArgs>),
        /// Show version, store, disk, memory, shards and breakers of the server
        #[command(visible_alias = "stats")]
        Status(ClientArgs<status::StatusArgs, NoWait>),
        /// List changes of many messages or of settings, and their callers
        Audit(ClientArgs<status::AuditArgs>),
        /// Tell whether the server is well
        Health(ClientArgs<status::HealthArgs, NoWait>),
        /// Move the clock of a server that was started for tests
        #[command(subcommand)]
        Clock(status::ClockCommand),
        /// Print the completions of a shell, also of the names that the server has
        Completions(complete::CompletionsArgs),
    }
}

/// Runs the command line of this process, with the commands of the program beyond those of this crate. Where standard
/// error is a log of JSON lines, `log_error` writes an error of usage as one of them and returns true.
pub fn main<P>(log_error: impl FnOnce(&[OsString], &str) -> bool) -> ExitCode
where
    P: Subcommand + RunCommand + fmt::Debug,
{
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(failed) = work_child::become_command(&args) {
        return failed;
    }
    complete::answer(command::<P>);
    let command = invocation::without_beaten(command::<P>(), &args);
    let read = command.clone().try_get_matches_from(&args).and_then(|mut matches| {
        let given = matches.clone();
        Cli::<P>::from_arg_matches_mut(&mut matches)
            .map(|cli| (cli, given))
            .map_err(|error| error.format(&mut Cli::<P>::command()))
    });
    let read = read.map_err(|error| in_words(help::with_hint(error, &command, &args)));
    let cli = match read {
        Ok((cli, given)) => {
            invocation::remember(Invocation::of(&command, &given));
            when::say_all(&command, &given);
            cli
        }
        // Help and the version are no errors.
        Err(error) if error.use_stderr() && wants_json(args.iter().skip(1)) => {
            let failure = CommandFailure::Usage(in_one_line(&error));
            failure.tell(true);
            return ExitCode::from(failure.exit_code());
        }
        Err(error) if error.use_stderr() && log_error(&args, &in_one_line(&error)) => {
            return ExitCode::from(failure::exit_code::USAGE);
        }
        // Help, also of a command that needs another one.
        Err(error) if !error.use_stderr() || error.kind() == MISSING => error.exit(),
        Err(error) => {
            let failure = CommandFailure::Usage(in_one_line(&error));
            failure.tell(false);
            return ExitCode::from(failure.exit_code());
        }
    };
    let result = match cli.command {
        None => first_steps(),
        Some(AnyCommand::Client(command)) => command.run(),
        Some(AnyCommand::Program(command)) => command.run(),
    };
    match result {
        Ok(()) => {
            invocation::tell_rest();
            ExitCode::SUCCESS
        }
        Err(failure) => {
            failure.tell(invocation::current().is_json());
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The description of the command line with the commands of the program. A value may begin with a minus, so that it is refused by its option and not as an
/// unknown one. Each option has its variable.
pub fn command<P: Subcommand + fmt::Debug>() -> Command {
    fn with_signs(command: Command) -> Command {
        command.mut_args(sign_allowed).mut_subcommands(with_signs)
    }
    help::with_help(invocation::with_variables(with_signs(Cli::<P>::command())))
}

fn sign_allowed(arg: Arg) -> Arg {
    // An option whose value may be left out would take the next option for its value.
    if arg.get_num_args().is_some_and(|number| number.min_values() == 0) {
        return arg;
    }
    let first = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    match first.as_deref() {
        Some("N" | "COUNT") => arg.allow_negative_numbers(true),
        Some("INSTANT") => arg.allow_hyphen_values(true),
        Some(name) if name.starts_with("TIME") => arg.allow_hyphen_values(true),
        Some(_) | None => arg,
    }
}

/// Rewords an error: without a programmer's words for numbers that are none.
fn in_words(error: clap::Error) -> clap::Error {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let why = error.source().and_then(|why| why.downcast_ref::<ParseIntError>());
    let Some(why) = why.filter(|_| error.kind() == ErrorKind::ValueValidation) else { return error };
    let (value, arg) = (text(ContextKind::InvalidValue), text(ContextKind::InvalidArg));
    let why = match why.kind() {
        IntErrorKind::PosOverflow => "is too large",
        _ if value.parse::<i128>().is_ok_and(|number| number < 0) => "must not be negative",
        _ => "must be a whole number",
    };
    let what = format!("invalid value '{value}' for '{arg}': {why}\n\nFor more information, try '--help'.\n");
    clap::Error::raw(ErrorKind::ValueValidation, what)
}

/// Whether `--json` is among arguments that cannot be parsed, or its variable is set. Behind `--` it is another
/// command's.
fn wants_json<'a>(args: impl Iterator<Item = &'a OsString>) -> bool {
    args.take_while(|arg| *arg != "--").any(|arg| arg == "--json") || invocation::is_set("json")
}

/// The kind of error that is a help text.
const MISSING: ErrorKind = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;

/// Clap's message about wrong usage on one line: with its tips, or else, where arguments are wrong, with how they go.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let mut parts = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut line = parts.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let (tips, others): (Vec<String>, Vec<String>) = parts.partition(|part| part.starts_with("tip: "));
    let usage = others.iter().filter(|part| tips.is_empty() && part.starts_with("Usage: "));
    let tips = tips.iter().map(|tip| tip.replace("tip: ", ""));
    for more in tips.chain(usage.map(|usage| usage.replacen("Usage:", "usage:", 1))) {
        line.push_str(&format!("; {more}"));
    }
    line
}

/// Prints the text of `duewheel` without a command.
fn first_steps() -> Result<(), CommandFailure> {
    io::stdout().write_all(FIRST_STEPS.as_bytes())?;
    Ok(())
}

const FIRST_STEPS: &str = "\
duewheel: durable delayed messages, said once, done when due, cancellable by your own key

See in 30 seconds what it does, on a server of its own:
  duewheel demo

Start a server. Its data is in ./duewheel-data; http://localhost:7788 in a browser shows it:
  duewheel serve

Schedule a message, look at it, cancel it:
  duewheel enqueue orders \"close order 42\" --delay 48h --key order-42
  duewheel get orders --key order-42
  duewheel cancel orders --key order-42

Run a command for each message that is due, with the body on its standard input:
  duewheel work orders -- ./close-order.sh

All commands: duewheel --help. One of them: duewheel enqueue --help.
";

/// The description of the commands of this crate alone.
#[cfg(test)]
fn client_commands() -> Command {
    command::<std::convert::Infallible>()
}
