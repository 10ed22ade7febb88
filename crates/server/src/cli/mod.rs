//! The command line: one binary, `duewheel`.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 no server can be reached, 6 refused (a limit, a
//! quota, missing permission).

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write};
use std::num::{IntErrorKind, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

mod api_error;
mod backup;
pub(crate) mod beanstalk_source;
mod bulk;
mod clock;
mod cluster;
mod command;
mod confirm;
mod dead;
mod demo;
mod demo_server;
mod enqueue;
mod export;
mod export_file;
mod failure;
mod filter;
mod health;
mod histogram;
mod import;
mod import_file;
mod import_jobs;
mod import_marker;
mod import_schedules;
mod inspect;
mod interrupt;
mod invocation;
mod lease;
mod list;
mod manual;
mod message;
mod operate;
mod queue;
mod queue_config;
mod queues;
mod remote;
mod restore;
mod salvage;
mod schedule;
mod serve;
mod server;
mod store;
mod table;
mod tail;
mod target;
mod tls_words;
mod token;
mod top;
mod top_view;
mod variables;
mod verify;
mod when;
mod work;
mod work_child;

pub(crate) use command::{ClientCommand, CommandEnd, client};
pub(crate) use failure::CommandFailure;
use invocation::Invocation;
pub(crate) use server::ServerArgs;

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
struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Show in 30 seconds what duewheel does, on a server of its own
    Demo(demo::DemoArgs),
    /// Run the server
    Serve(Box<serve::ServeArgs>),
    /// Schedule a message, or one for each line
    Enqueue(enqueue::EnqueueArgs),
    /// Show a message
    Get(message::GetArgs),
    /// Cancel a message before it is delivered
    Cancel(message::CancelArgs),
    /// Give a message another due time
    Postpone(message::PostponeArgs),
    /// Make a message due now
    Fire(message::FireArgs),
    /// Enqueue the content of a done or dead message again
    Replay(message::ReplayArgs),
    /// List the messages of a queue in due order
    List(list::ListArgs),
    /// List all queues
    Queues(queues::QueuesArgs),
    /// Show a queue: counts, rates, settings
    Queue(queue::QueueArgs),
    /// Show or change the settings of a queue
    Config(queue_config::ConfigArgs),
    /// Stop granting messages of a queue; they still become ready
    Pause(operate::PauseArgs),
    /// Grant messages of a paused queue again
    Resume(operate::ResumeArgs),
    /// Remove all messages of a queue but the leased ones
    Purge(operate::PurgeArgs),
    /// Count the dead messages of a queue by reason
    Dead(dead::DeadArgs),
    /// Make dead messages of a queue ready again
    Redrive(operate::RedriveArgs),
    /// Cancel, postpone, fire or redrive many messages of a queue at once
    Bulk(bulk::BulkArgs),
    /// List, show and cancel the jobs of such changes
    Job(bulk::JobArgs),
    /// Draw how many messages are due when
    Histogram(histogram::HistogramArgs),
    /// Watch the ring, the queues and the lateness, live
    Top(top::TopArgs),
    /// Print what happens to messages, live
    Tail(tail::TailArgs),
    /// Lease messages that are due
    Reserve(lease::ReserveArgs),
    /// Settle a leased message: it is done
    Ack(lease::AckArgs),
    /// Give a leased message back, for another attempt or as dead
    Nack(lease::NackArgs),
    /// Extend the lease of a message
    Extend(lease::ExtendArgs),
    /// Run a command for each message of a queue
    Work(work::WorkArgs),
    /// Check every byte of a data folder, or of a shared store, without writing
    Verify(Box<verify::VerifyArgs>),
    /// Show what a data folder or a shared store holds, without a server and without writing
    Inspect(Box<inspect::InspectArgs>),
    /// Write all queues, schedules and messages to a file, for another server or as a copy
    Export(export::ExportArgs),
    /// Take in the messages of such a file, or the jobs of a running beanstalkd
    Import(import::ImportArgs),
    /// Copy the data folder of a running server, without interrupting it
    Backup(backup::BackupArgs),
    /// Make a data folder, or a shared store, from a copy
    Restore(Box<restore::RestoreArgs>),
    /// Put, list and remove schedules: messages that come again and again
    Schedule(schedule::ScheduleArgs),
    /// Put, list, test and remove targets: where messages are delivered
    Target(target::TargetArgs),
    /// Show limits and use of tenants
    Quotas(health::QuotasArgs),
    /// Tell whether the server is well
    Health(health::HealthArgs),
    /// Move the clock of a server that was started for tests
    Clock(clock::ClockArgs),
    /// Show or manage a cluster of nodes on Redis or PostgreSQL
    Cluster(cluster::ClusterArgs),
    /// Prepare the store that nodes share
    Store(store::StoreArgs),
    /// Make a data folder from a damaged one, and list what is lost
    Salvage(Box<salvage::SalvageArgs>),
    /// Make, list and revoke tokens of a server that requires them
    Token(token::TokenArgs),
    /// Print the completions of a shell
    Completions(manual::CompletionsArgs),
    /// Write the manual pages
    Man(manual::ManArgs),
    /// Print name and version, as --version does
    Version,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(failed) = work_child::become_command(&args) {
        return failed;
    }
    let command = variables::without_beaten(command(), &args);
    let read = command.clone().try_get_matches_from(&args).and_then(|mut matches| {
        let given = matches.clone();
        Cli::from_arg_matches_mut(&mut matches)
            .map(|cli| (cli, given))
            .map_err(|error| error.format(&mut Cli::command()))
    });
    let read = read.map_err(in_words);
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
        Err(error) if error.use_stderr() && serve::wants_json_lines(std::env::args_os().skip(1)) => {
            serve::error_line(&in_one_line(&error));
            return ExitCode::from(failure::exit_code::USAGE);
        }
        Err(error) => error.exit(),
    };
    let end: CommandEnd = match cli.command {
        None => first_steps().into(),
        Some(CliCommand::Demo(args)) => args.run().into(),
        Some(CliCommand::Serve(args)) => serve::run(*args).into(),
        Some(CliCommand::Enqueue(args)) => client(args),
        Some(CliCommand::Get(args)) => client(args),
        Some(CliCommand::Cancel(args)) => client(args),
        Some(CliCommand::Postpone(args)) => client(args),
        Some(CliCommand::Fire(args)) => client(args),
        Some(CliCommand::Replay(args)) => client(args),
        Some(CliCommand::List(args)) => client(args),
        Some(CliCommand::Queues(args)) => client(args),
        Some(CliCommand::Queue(args)) => client(args),
        Some(CliCommand::Config(args)) => client(args),
        Some(CliCommand::Pause(args)) => client(args),
        Some(CliCommand::Resume(args)) => client(args),
        Some(CliCommand::Purge(args)) => client(args),
        Some(CliCommand::Dead(args)) => client(args),
        Some(CliCommand::Redrive(args)) => client(args),
        Some(CliCommand::Bulk(args)) => client(args),
        Some(CliCommand::Job(args)) => client(args),
        Some(CliCommand::Histogram(args)) => client(args),
        Some(CliCommand::Top(args)) => client(args),
        Some(CliCommand::Tail(args)) => client(args),
        Some(CliCommand::Reserve(args)) => client(args),
        Some(CliCommand::Ack(args)) => client(args),
        Some(CliCommand::Nack(args)) => client(args),
        Some(CliCommand::Extend(args)) => client(args),
        Some(CliCommand::Work(args)) => client(args),
        Some(CliCommand::Quotas(args)) => client(args),
        Some(CliCommand::Health(args)) => client(args),
        Some(CliCommand::Clock(args)) => client(args),
        Some(CliCommand::Export(args)) => client(args),
        Some(CliCommand::Import(args)) => client(args),
        Some(CliCommand::Backup(args)) => client(args),
        Some(CliCommand::Schedule(args)) => client(args),
        Some(CliCommand::Target(args)) => client(args),
        Some(CliCommand::Cluster(args)) => args.run(),
        Some(CliCommand::Store(args)) => args.run(),
        Some(CliCommand::Token(args)) => args.run(),
        Some(CliCommand::Verify(args)) => CommandEnd { json: args.json, result: args.run() },
        Some(CliCommand::Inspect(args)) => args.run(),
        Some(CliCommand::Restore(args)) => CommandEnd { json: args.json, result: args.run() },
        Some(CliCommand::Salvage(args)) => CommandEnd { json: args.json, result: args.run() },
        Some(CliCommand::Completions(args)) => args.run(command).into(),
        Some(CliCommand::Man(args)) => args.run(command).into(),
        Some(CliCommand::Version) => version().into(),
    };
    match end.result {
        Ok(()) => {
            invocation::tell_rest();
            ExitCode::SUCCESS
        }
        Err(failure) => {
            failure.tell(end.json);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The description of the command line. A value may begin with a minus, so that it is refused by its option and not as an
/// unknown one. Each option has its variable.
fn command() -> Command {
    fn with_signs(command: Command) -> Command {
        command.mut_args(sign_allowed).mut_subcommands(with_signs)
    }
    variables::named(with_signs(Cli::command()))
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
    args.take_while(|arg| *arg != "--").any(|arg| arg == "--json") || variables::is_set("json")
}

/// The first paragraph of clap's message about wrong usage, without the hints below it.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
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

fn version() -> Result<(), CommandFailure> {
    writeln!(io::stdout(), "duewheel {}", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// Story: a wrong `--cron` was told as `cron`, and a wrong `--networks` as `networks`.
    #[test]
    fn errors_name_options_of_all_commands() {
        /// What stays here, or cannot be wrong for the server.
        const OURS: [&str; 11] = [
            "json",
            "server",
            "token",
            "token-file",
            "ca-cert",
            "insecure",
            "help",
            "version",
            "yes",
            "wait",
            "dry-run",
        ];
        let cli = Cli::command();
        let mut checked = 0;
        for command in ["schedule", "target", "bulk"] {
            let command = cli.find_subcommand(command).unwrap();
            let options = command.get_subcommands().chain([command]).flat_map(clap::Command::get_arguments);
            for long in options.filter_map(clap::Arg::get_long) {
                // A word of its list, which this command has read.
                if OURS.contains(&long) || long == "unset" {
                    continue;
                }
                checked += 1;
                assert!(failure::is_known(&format!("--{long}")), "--{long}");
            }
        }
        assert!(checked > 40, "{checked}");
    }
}
