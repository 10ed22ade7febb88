//! The program `duewheel`: the command line with the commands that need the server or its store in the process.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use duewheel_cli::{CommandFailure, RunCommand, command, commands};

mod cluster;
mod offline;
mod options;
mod serve;
mod token;

/// Messages are allocated on one thread and freed on another, for which glibc's arenas are slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    duewheel_cli::main::<ServerCommand>(serve::log_error)
}

commands! {
    enum ServerCommand {
        /// Run the server
        #[command(display_order = 0)]
        Serve(serve::ServeArgs),
        /// Check every byte of a data folder, or of a shared store, without writing
        Verify(offline::VerifyArgs),
        /// Show what a data folder or a shared store holds, without a server and without writing
        Inspect(offline::InspectArgs),
        /// Make a data folder, or a shared store, from a copy
        Restore(offline::RestoreArgs),
        /// Make a data folder from a damaged one, and list what is lost
        Salvage(offline::SalvageArgs),
        /// Show or manage a cluster of nodes on Redis or PostgreSQL
        #[command(subcommand)]
        Cluster(cluster::ClusterCommand),
        /// Prepare the store that nodes share
        #[command(subcommand)]
        Store(cluster::StoreCommand),
        /// Make, list and revoke tokens of a server that requires them
        #[command(subcommand)]
        Token(token::TokenCommand),
        /// Write the manual pages
        Man(ManArgs),
        /// Print name and version, as --version does
        Version(VersionArgs),
    }
}

#[derive(Args, Debug)]
struct VersionArgs {}

impl RunCommand for VersionArgs {
    fn run(self) -> Result<(), CommandFailure> {
        writeln!(io::stdout(), "duewheel {}", env!("CARGO_PKG_VERSION"))?;
        Ok(())
    }
}

#[derive(Args, Debug)]
struct ManArgs {
    /// The folder for the pages, which exists
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

impl RunCommand for ManArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let failed =
            |error: io::Error| CommandFailure::Failed(format!("DIR {}: {error}", self.folder.display()));
        // A page for each command, with a name such as duewheel-enqueue.1.
        clap_mangen::generate_to(command::<ServerCommand>(), &self.folder).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        command::<ServerCommand>().debug_assert();
    }

    /// Story: the contract gave every option a variable, and only those of `serve` and of the server's address had one:
    /// `DUEWHEEL_DELAY=1h duewheel enqueue q x` was due at once.
    #[test]
    fn every_option_has_its_variable() {
        fn walk(command: &clap::Command, seen: &mut usize) {
            for arg in command.get_arguments() {
                let Some(long) = arg.get_long() else { continue };
                let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
                let name = command.get_name();
                // The variable of `serve --beanstalk` names an address to listen on.
                let expected = ((name, long) != ("import", "beanstalk"))
                    .then(|| format!("DUEWHEEL_{}", long.to_ascii_uppercase().replace('-', "_")));
                assert_eq!(variable, expected, "{name} --{long}");
                *seen += 1;
            }
            command.get_subcommands().for_each(|command| walk(command, seen));
        }
        let mut seen = 0;
        walk(&command::<ServerCommand>(), &mut seen);
        assert!(seen > 300, "{seen}");
    }
}
