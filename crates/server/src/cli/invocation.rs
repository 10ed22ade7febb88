//! The command line of this process: the values of its options, and how notes on them reach the caller.
//!
//! Errors of the server name fields of a request. Only this process knows what the user has typed: the server gets an
//! instant in place of `in 2 days`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use serde_json::{Map, Value, json};

static CURRENT: OnceLock<Invocation> = OnceLock::new();
/// Notes that wait for the answer they belong to.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The options and arguments of a command, as they were typed.
#[derive(Debug, Default)]
pub(super) struct Invocation {
    /// By option, such as `--delay`, or by the name of a positional argument, such as `QUEUE`.
    texts: BTreeMap<String, Vec<String>>,
    is_json: bool,
    is_quiet: bool,
}

impl Invocation {
    /// The values in `matches` of `command`, or of its subcommand, that the command line or a variable gave.
    pub(super) fn of(command: &Command, matches: &ArgMatches) -> Invocation {
        if let Some((name, inner)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            return Invocation::of(command, inner);
        }
        let is_set = |id: &str| matches.try_get_one::<bool>(id).ok().flatten() == Some(&true);
        let mut given =
            Invocation { is_json: is_set("json"), is_quiet: is_set("quiet"), texts: BTreeMap::new() };
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            if !matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
            {
                continue;
            }
            let texts = matches.get_raw(id).into_iter().flatten();
            let texts: Vec<String> = texts.map(|raw| raw.to_string_lossy().into_owned()).collect();
            given.texts.insert(name_of(arg), texts);
        }
        given
    }

    #[cfg(test)]
    pub(super) fn with(texts: &[(&str, &str)]) -> Invocation {
        let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), vec![(*text).to_owned()]));
        Invocation { texts: texts.collect(), ..Invocation::default() }
    }

    /// The values of an option as they were typed, joined with commas.
    pub(super) fn text(&self, option: &str) -> Option<String> {
        self.texts.get(option).map(|texts| texts.join(","))
    }

    /// Whether answers and errors are JSON.
    pub(super) fn is_json(&self) -> bool {
        self.is_json
    }
}

/// `--delay`, or `TIME` of an argument without a name.
pub(super) fn name_of(arg: &clap::Arg) -> String {
    match (arg.get_long(), arg.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => arg.get_id().as_str().to_uppercase(),
    }
}

/// Keeps what this process was given, once.
pub(super) fn remember(given: Invocation) {
    let _ = CURRENT.set(given);
}

/// The invocation of this process; an empty one before [`remember`].
pub(super) fn current() -> &'static Invocation {
    CURRENT.get_or_init(Invocation::default)
}

/// Prints a note in addition to the answer; with `--json` the note is put into the answer or the error.
pub(super) fn note(text: String) {
    let given = current();
    if given.is_quiet {
        return;
    }
    if given.is_json {
        NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    } else {
        eprintln!("{text}");
    }
}

/// Adds the notes that wait as `notes`, if there are any.
pub(super) fn add_notes(answer: &mut Map<String, Value>) {
    let notes = std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner));
    if !notes.is_empty() {
        answer.insert("notes".to_owned(), json!(notes));
    }
}

/// Prints an answer as one line of JSON, with the notes that belong to it.
pub(super) fn print_json(out: &mut impl Write, answer: &Value) -> io::Result<()> {
    let Value::Object(answer) = answer else { return writeln!(out, "{answer}") };
    let mut answer = answer.clone();
    add_notes(&mut answer);
    writeln!(out, "{}", Value::Object(answer))
}

/// Tells notes that no answer has taken, as an object of their own on standard error.
pub(super) fn tell_rest() {
    let mut rest = Map::new();
    add_notes(&mut rest);
    if !rest.is_empty() {
        eprintln!("{}", Value::Object(rest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_values_are_found_by_option() {
        let command = Command::new("duewheel").subcommand(
            Command::new("put")
                .arg(clap::Arg::new("queue").required(true))
                .arg(clap::Arg::new("by").value_name("TIME"))
                .arg(clap::Arg::new("at").long("at").action(clap::ArgAction::Append))
                .arg(clap::Arg::new("count").long("count").default_value("10"))
                .arg(clap::Arg::new("json").long("json").action(clap::ArgAction::SetTrue)),
        );
        let args = ["duewheel", "put", "q", "90", "--at", "today 9:00", "--at", "2027-01-01", "--json"];
        let matches = command.clone().get_matches_from(args);
        let given = Invocation::of(&command, &matches);
        assert_eq!(given.text("--at").as_deref(), Some("today 9:00,2027-01-01"));
        assert_eq!((given.text("QUEUE").as_deref(), given.text("TIME").as_deref()), (Some("q"), Some("90")));
        assert_eq!(given.text("--count"), None, "its default");
        assert!(given.is_json() && !given.is_quiet);
    }
}
