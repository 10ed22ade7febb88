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

pub(crate) use failure::CommandFailure;
pub(crate) use server::ServerArgs;

/// Durable delayed messages: said once, done when due, cancellable by your own key.
#[derive(Debug, Parser)]
#[command(name = "duewheel", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
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
    /// List the messages of a queue in due order
    List(list::ListArgs),
    /// List all queues
    Queues(queues::QueuesArgs),
    /// Run a command for each message of a queue
    Work(work::WorkArgs),
    /// Check every byte of a data folder, without writing
    Verify(verify::VerifyArgs),
    /// Move the jobs of a running beanstalkd here
    Import(import::ImportArgs),
    /// Copy the data folder of a running server, without interrupting it
    Backup(backup::BackupArgs),
    /// Make a data folder from a copy
    Restore(restore::RestoreArgs),
    /// Manage a cluster of nodes on Redis
    Cluster(cluster::ClusterArgs),
    /// Make a data folder from a damaged one, and list what is lost
    Salvage(salvage::SalvageArgs),
    /// Make tokens for a server that requires them
    Token(token::TokenArgs),
    /// Print name and version, as --version does
    Version,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        CliCommand::Serve(args) => serve::run(*args),
        CliCommand::Enqueue(args) => args.run(),
        CliCommand::Get(args) => args.run(),
        CliCommand::Cancel(args) => args.run(),
        CliCommand::Postpone(args) => args.run(),
        CliCommand::Fire(args) => args.run(),
        CliCommand::List(args) => args.run(),
        CliCommand::Queues(args) => args.run(),
        CliCommand::Work(args) => args.run(),
        CliCommand::Verify(args) => args.run(),
        CliCommand::Import(args) => args.run(),
        CliCommand::Backup(args) => args.run(),
        CliCommand::Restore(args) => args.run(),
        CliCommand::Cluster(args) => args.run(),
        CliCommand::Salvage(args) => args.run(),
        CliCommand::Token(args) => args.run(),
        CliCommand::Version => version(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandFailure::Said) => ExitCode::from(1),
        Err(CommandFailure::Failed(what)) => {
            eprintln!("duewheel: {what}");
            ExitCode::from(1)
        }
        Err(CommandFailure::Left(what)) => {
            eprintln!("duewheel: {what}");
            ExitCode::from(3)
        }
        Err(CommandFailure::Usage(what)) => {
            eprintln!("duewheel: {what}");
            ExitCode::from(2)
        }
    }
}

fn version() -> Result<(), CommandFailure> {
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
