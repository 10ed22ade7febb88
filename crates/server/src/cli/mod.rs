//! The command line: one binary, `duewheel`.
//!
//! Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 done in part (`import`).

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

use crate::config::{ConfigError, Insecure, Options};

mod backup;
mod cluster;
mod enqueue;
mod import;
mod list;
mod message;
mod queues;
mod remote;
mod restore;
mod salvage;
mod serve;
mod table;
mod token;
mod verify;
mod work;

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
    Serve(Box<Serve>),
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

/// Options of `serve`: the flags, and the file below them.
#[derive(Args, Debug)]
struct Serve {
    /// A TOML file with these options, `-` written as `_`; flags and environment take precedence
    #[arg(long, env = "DUEWHEEL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective settings, as TOML, and exit
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    options: Options,
}

/// The server that a client command talks to, and the credentials.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
struct Server {
    /// The server's address
    #[arg(long, env = "DUEWHEEL_SERVER", value_name = "URL", default_value = "http://127.0.0.1:7788")]
    server: String,
    /// The token, if the server requires one. Other users of this machine can see options, so prefer DUEWHEEL_TOKEN or
    /// a file
    #[arg(long, env = "DUEWHEEL_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<Secret>,
    /// A file that contains the token
    #[arg(long, env = "DUEWHEEL_TOKEN_FILE", value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Certificates of authorities (PEM) for https, in place of those that browsers trust
    #[arg(long, env = "DUEWHEEL_CA_CERT", value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Send the token to another machine even without https
    #[arg(long, env = "DUEWHEEL_INSECURE", value_name = "YES", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_parser = insecure)]
    insecure: Option<bool>,
}

/// The variable may be the server's, which names listeners with it: that permits nothing for tokens.
fn insecure(text: &str) -> Result<bool, String> {
    text.parse()
        .or_else(|_| text.parse::<Insecure>().map(|_| false))
        .map_err(|_| "must be true or false".to_owned())
}

/// Text that is never shown, not even when it is invalid.
#[derive(Clone)]
struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(s: &str) -> Result<Self, Infallible> {
        Ok(Secret(s.to_owned()))
    }
}

/// Why a command did not succeed.
#[derive(Debug)]
enum Failure {
    /// It was refused, or failed: exit code 1.
    Failed(String),
    /// Wrong usage: exit code 2.
    Usage(String),
    /// It is done in part, and something is left: exit code 3.
    Left(String),
    /// It failed and has printed everything: exit code 1.
    Said,
}

impl Failure {
    fn failed(what: impl fmt::Display) -> Self {
        Failure::Failed(what.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        // `duewheel list q | head` is no failure that needs words.
        if error.kind() == std::io::ErrorKind::BrokenPipe { Failure::Said } else { Failure::failed(error) }
    }
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

    /// A container may have the server's variable, and its client commands must continue to work.
    #[test]
    fn what_opens_a_listener_lets_no_token_out() {
        for (text, means) in
            [("true", Ok(true)), ("false", Ok(false)), ("http,peer", Ok(false)), ("none", Ok(false))]
        {
            assert_eq!(insecure(text), means, "{text}");
        }
        assert!(insecure("yes").is_err() && insecure("").is_err());
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
