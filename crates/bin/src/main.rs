//! The program `duewheel`: the command line with the commands that need the server or its store in the process.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use duewheel_cli::system_words::of_file;
use duewheel_cli::{CommandFailure, RunCommand, command, commands};

mod cluster;
mod offline;
mod options;
mod pg;
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
        /// Install and show the outbox in a database of PostgreSQL
        #[command(subcommand)]
        Pg(pg::PgCommand),
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
            |error: io::Error| CommandFailure::Failed(format!("DIR {}", of_file(&self.folder, &error)));
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

    /// Each visible command with its name, such as `queue set`.
    fn commands() -> Vec<(String, clap::Command)> {
        fn walk(path: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
            for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
                let path = format!("{path} {}", inner.get_name());
                walk(&path, inner, found);
                found.push((path.trim_start().to_owned(), inner.clone()));
            }
        }
        let mut found = Vec::new();
        walk("", &command::<ServerCommand>(), &mut found);
        found
    }

    #[test]
    fn help_has_every_command_in_a_group() {
        let help = command::<ServerCommand>().render_long_help().to_string();
        for (path, _) in commands().iter().filter(|(path, _)| !path.contains(' ')) {
            let lines = help.lines().filter(|line| line.split_whitespace().next() == Some(path));
            assert_eq!(lines.count(), 1, "{path} in\n{help}");
        }
    }

    /// Story: the options of most commands had two headings `Options`, because `--json` brought its own.
    #[test]
    fn each_heading_of_help_is_there_once() {
        for (path, mut command) in commands() {
            let help = command.render_long_help().to_string();
            let mut seen = std::collections::BTreeSet::new();
            for heading in help.lines().filter(|line| !line.starts_with(' ') && line.ends_with(':')) {
                assert!(seen.insert(heading), "{path}: {heading} twice in\n{help}");
            }
        }
    }

    /// The words of a line up to a redirection, without quotes.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for c in line.chars() {
            match (c, quote) {
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(open)) if c == open => quote = None,
                ('<' | '>', None) => break,
                (' ', None) => words.push(String::new()),
                (c, _) => words.last_mut().expect("a word").push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn examples_of_help_can_be_typed() {
        let mut seen = 0;
        for (path, command) in commands() {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in after.lines().filter_map(|line| line.strip_prefix("  duewheel ")) {
                let args = words(&format!("duewheel {line}"));
                let read = self::command::<ServerCommand>().try_get_matches_from(args);
                assert!(read.is_ok(), "{path}: {line}: {}", read.expect_err("an error"));
                assert!(line.len() < 96, "{path}: {line} does not fit");
                seen += 1;
            }
        }
        assert!(seen > 40, "{seen}");
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
                // The variable of `serve --beanstalk` names an address to listen on, that of `--wait` is for the server,
                // those of `--reason` and `--note` are for a nack and a schedule.
                let is_without = match long {
                    "beanstalk" => name == "import",
                    "wait" => ["import", "bulk", "reserve"].contains(&name),
                    "reason" | "note" => ["list", "dead", "redrive", "bulk"].contains(&name),
                    _ => false,
                };
                let expected = (!is_without)
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
