//! The command line: one binary, `duewheel`.
//!
//! Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 done in part (`import`).

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod backup;
mod cluster;
mod enqueue;
mod failure;
mod import;
mod list;
mod message;
mod queues;
mod remote;
mod restore;
mod salvage;
mod serve;
mod server;
mod table;
mod token;
mod verify;
mod work;

pub(crate) use failure::Failure;
pub(crate) use server::Server;

/// Durable delayed messages: said once, done when due, cancellable by your own key.
#[derive(Debug, Parser)]
#[command(name = "duewheel", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(Box<serve::Serve>),
    /// Schedule a message, or one for each line
    Enqueue(enqueue::Enqueue),
    /// Show a message
    Get(message::Get),
    /// Cancel a message before it is delivered
    Cancel(message::Cancel),
    /// Give a message another due time
    Postpone(message::Postpone),
    /// Make a message due now
    Fire(message::Fire),
    /// List the messages of a queue in due order
    List(list::List),
    /// List all queues
    Queues(queues::Queues),
    /// Run a command for each message of a queue
    Work(work::Work),
    /// Check every byte of a data folder, without writing
    Verify(verify::Verify),
    /// Move the jobs of a running beanstalkd here
    Import(import::Import),
    /// Copy the data folder of a running server, without interrupting it
    Backup(backup::Backup),
    /// Make a data folder from a copy
    Restore(restore::Restore),
    /// Manage a cluster of nodes on Redis
    Cluster(cluster::Cluster),
    /// Make a data folder from a damaged one, and list what is lost
    Salvage(salvage::Salvage),
    /// Make tokens for a server that requires them
    Token(token::TokenArgs),
    /// Print name and version, as --version does
    Version,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Enqueue(args) => args.run(),
        Command::Get(args) => args.run(),
        Command::Cancel(args) => args.run(),
        Command::Postpone(args) => args.run(),
        Command::Fire(args) => args.run(),
        Command::List(args) => args.run(),
        Command::Queues(args) => args.run(),
        Command::Work(args) => args.run(),
        Command::Verify(args) => args.run(),
        Command::Import(args) => args.run(),
        Command::Backup(args) => args.run(),
        Command::Restore(args) => args.run(),
        Command::Cluster(args) => args.run(),
        Command::Salvage(args) => args.run(),
        Command::Token(args) => args.run(),
        Command::Version => version(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Said) => ExitCode::from(1),
        Err(Failure::Failed(what)) => {
            eprintln!("duewheel: {what}");
            ExitCode::from(1)
        }
        Err(Failure::Left(what)) => {
            eprintln!("duewheel: {what}");
            ExitCode::from(3)
        }
        Err(Failure::Usage(what)) => {
            eprintln!("duewheel: {what}");
            ExitCode::from(2)
        }
    }
}

fn version() -> Result<(), Failure> {
    writeln!(io::stdout(), "duewheel {}", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_of_serve_has_its_variable() {
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        for arg in serve.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            if ["help", "version", "print-config"].contains(&long) {
                continue;
            }
            let variable = format!("DUEWHEEL_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|e| e.to_str()), Some(&*variable), "--{long}");
        }
    }
}
