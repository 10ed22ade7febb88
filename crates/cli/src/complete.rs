//! Completions of shells. The script of `duewheel completions` asks this program at each Tab, so names of queues,
//! targets and schedules of the server complete as well.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Arg, Args, Command, FromArgMatches as _};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate};

use super::failure::CommandFailure;
use super::invocation;
use super::remote::{Remote, ServerArgs};
use super::session::RunCommand;
use super::table::elements;

/// The variable by which a script asks.
const VARIABLE: &str = "DUEWHEEL_COMPLETE";
/// The time after which nothing is completed.
const LIMIT: Duration = Duration::from_secs(1);
/// Where zsh loads the script as the function `_duewheel`, already its first call completes.
const AT_FIRST_CALL: &[u8] =
    b"if [[ $funcstack[1] == _duewheel ]]; then _clap_dynamic_completer_duewheel; fi\n";

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl RunCommand for CompletionsArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let mut script = Vec::new();
        let shells = Shells::builtins();
        let shell = shells.completer(&self.shell.to_string());
        let shell =
            shell.ok_or_else(|| CommandFailure::Usage(format!("no completions of {}", self.shell)))?;
        shell.write_registration(VARIABLE, "duewheel", "duewheel", "duewheel", &mut script)?;
        if self.shell == Shell::Zsh {
            script.extend_from_slice(AT_FIRST_CALL);
        }
        Ok(io::stdout().write_all(&script)?)
    }
}

/// Answers the script of a shell and ends the process, if one asks.
pub(super) fn answer(command: impl Fn() -> Command) {
    CompleteEnv::with_factory(|| with_names(command())).var(VARIABLE).complete();
}

/// The command line whose names of queues, targets and schedules are completed.
fn with_names(command: Command) -> Command {
    fn walk(command: Command, of: Option<fn() -> Vec<CompletionCandidate>>) -> Command {
        // Others know no server.
        let is_client = command.get_arguments().any(|arg| arg.get_id() == "server");
        let command = command.mut_args(|arg| match candidates(&arg, of).filter(|_| is_client) {
            Some(candidates) => arg.add(ArgValueCandidates::new(candidates)),
            None => arg,
        });
        command.mut_subcommands(|inner| {
            let of = match inner.get_name() {
                "schedule" => Some(schedules as fn() -> _),
                "target" => Some(targets as fn() -> _),
                _ => of,
            };
            walk(inner, of)
        })
    }
    walk(command, None)
}

/// What an argument is completed by; `of` lists the names of the things that the command is about.
fn candidates(
    arg: &Arg,
    of: Option<fn() -> Vec<CompletionCandidate>>,
) -> Option<fn() -> Vec<CompletionCandidate>> {
    match (arg.get_id().as_str(), of) {
        ("name", Some(of)) => Some(of),
        ("queue" | "queues" | "to_queue", _) | ("name", None) => Some(queues),
        ("target", _) => Some(targets),
        _ => None,
    }
}

fn queues() -> Vec<CompletionCandidate> {
    names("/v1/queues?limit=1000", "queues", "queue")
}

fn targets() -> Vec<CompletionCandidate> {
    names("/v1/targets", "targets", "name")
}

fn schedules() -> Vec<CompletionCandidate> {
    names("/v1/schedules", "schedules", "name")
}

/// The names in a list of the server; none if there is no server, or it does not tell them in time.
fn names(path: &str, list: &str, name: &str) -> Vec<CompletionCandidate> {
    let server =
        server_of(std::env::args_os()).and_then(|server| Remote::new(&server, Some(Duration::ZERO)).ok());
    let Some(answer) = server.and_then(|server| server.get_within(path, LIMIT).ok()) else {
        return Vec::new();
    };
    elements(&answer, list).filter_map(|one| one[name].as_str()).map(CompletionCandidate::new).collect()
}

/// The server of a command line that is not finished.
fn server_of(args: impl Iterator<Item = OsString>) -> Option<ServerArgs> {
    let command = ServerArgs::augment_args(Command::new("duewheel").no_binary_name(true).ignore_errors(true));
    let command = invocation::with_variables(command);
    let (mut ours, mut is_value) = (Vec::new(), false);
    for arg in args {
        let text = arg.to_string_lossy();
        let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
        let is_option = ["--server", "--token", "--token-file", "--ca-cert", "--insecure"].contains(&name);
        if is_option || is_value {
            ours.push(arg.clone());
        }
        // The value of --insecure stands behind a `=`.
        is_value = is_option && value.is_none() && name != "--insecure";
    }
    let matches = command.try_get_matches_from(ours).ok()?;
    ServerArgs::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_of_unfinished_line_is_found() {
        let server = |line: &str| {
            let args = line.split(' ').map(OsString::from);
            server_of(args).map(|server| server.server).unwrap_or_default()
        };
        assert_eq!(server("duewheel pause --server http://127.0.0.1:1 "), "http://127.0.0.1:1");
        assert_eq!(
            server("duewheel list --state dead --server=http://127.0.0.1:2 --insecure s"),
            "http://127.0.0.1:2"
        );
    }

    #[test]
    fn names_complete_where_they_belong() {
        let command = with_names(crate::client_commands());
        let has = |path: &[&str], id: &str| {
            let inner = path.iter().try_fold(&command, |command, name| command.find_subcommand(name));
            let arg = inner.and_then(|command| command.get_arguments().find(|arg| arg.get_id() == id));
            arg.expect("an argument").get::<ArgValueCandidates>().is_some()
        };
        for (path, id) in [
            (&["pause"][..], "queue"),
            (&["work"], "queues"),
            (&["cancel"], "name"),
            (&["queue", "set"], "target"),
            (&["target", "test"], "name"),
            (&["schedule", "rm"], "name"),
            (&["schedule", "put"], "queue"),
        ] {
            assert!(has(path, id), "{path:?} {id}");
        }
        assert!(!has(&["enqueue"], "body"));
    }
}
