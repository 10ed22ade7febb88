//! Completions of shells. The script of `duewheel completions` asks this program at each Tab, so names of queues,
//! targets and schedules of the server complete as well.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Arg, Args, Command, FromArgMatches as _};
use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate};

use super::failure::CommandFailure;
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
        if let Some(shell) = Shells::builtins().completer(&self.shell.to_string()) {
            shell.write_registration(VARIABLE, "duewheel", "duewheel", "duewheel", &mut script)?;
        }
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
    let server = server_of_environment().and_then(|server| Remote::new(&server, Some(Duration::ZERO)).ok());
    let Some(answer) = server.and_then(|server| server.get_within(path, LIMIT).ok()) else {
        return Vec::new();
    };
    let names = elements(&answer, list).filter_map(|one| one[name].as_str());
    names.filter(|name| is_harmless(name)).map(CompletionCandidate::new).collect()
}

/// Whether a name means the same to a shell without quotes: bash inserts it as it is.
fn is_harmless(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+/._".contains(&b))
}

/// The server that the environment names. A shell may have split an address on the line into words.
fn server_of_environment() -> Option<ServerArgs> {
    let command = ServerArgs::augment_args(Command::new("duewheel"));
    ServerArgs::from_arg_matches(&command.try_get_matches_from(["duewheel"]).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_shells_would_run_are_dropped() {
        assert!(["orders/close", "a-b+c.d_e", "7"].into_iter().all(is_harmless));
        assert!(!["orders$(id)", "a;b", "a:b", "a b", "ä", "`x`"].into_iter().any(is_harmless));
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
