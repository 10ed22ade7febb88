//! The command line of this process: the values of its options, how notes on them reach the caller, and the environment
//! variables of options.
//!
//! Errors of the server name fields of a request. Only this process knows what the user has typed: the server gets an
//! instant in place of `in 2 days`.
//!
//! Each long option of each command has `DUEWHEEL_<OPTION>`. The options of `serve` name theirs themselves, as do those that
//! clients have had from the start. All others get theirs here. The command line wins: a variable whose option conflicts
//! with it is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use serde_json::{Map, Value, json};

use super::system_words::on_stderr;
use super::work_child;

static CURRENT: OnceLock<Invocation> = OnceLock::new();
/// Notes that wait for the answer they belong to.
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The options and arguments of a command, as they were typed.
#[derive(Debug, Default)]
pub(super) struct Invocation {
    /// By option, such as `--delay`, or by the name of a positional argument, such as `QUEUE`.
    texts: BTreeMap<String, Vec<String>>,
    /// The names of all options that the command has, such as `delay`.
    options: BTreeSet<String>,
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
        let options = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect();
        let (is_json, is_quiet) = (is_set("json"), is_set("quiet"));
        let mut given = Invocation { is_json, is_quiet, options, texts: BTreeMap::new() };
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

    /// An invocation with these texts that has all options of a command and of its subcommands.
    #[cfg(test)]
    pub(super) fn with(command: &Command, texts: &[(&str, &str)]) -> Invocation {
        fn options(command: &Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(Arg::get_long).map(str::to_owned);
            own.chain(command.get_subcommands().flat_map(options)).collect()
        }
        let texts = texts.iter().map(|(name, text)| ((*name).to_owned(), vec![(*text).to_owned()]));
        let options = options(command).into_iter().collect();
        Invocation { texts: texts.collect(), options, ..Invocation::default() }
    }

    /// The values of an option as they were typed, joined with commas.
    pub(super) fn text(&self, option: &str) -> Option<String> {
        self.texts.get(option).map(|texts| texts.join(","))
    }

    /// Whether the command has the option of this name, such as `delay`.
    pub(super) fn has_option(&self, name: &str) -> bool {
        self.options.contains(name)
    }

    /// Whether answers and errors are JSON.
    pub(super) fn is_json(&self) -> bool {
        self.is_json
    }
}

/// `--delay`, or `TIME` of an argument without a name.
pub(super) fn name_of(arg: &Arg) -> String {
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
pub fn note(text: String) {
    let given = current();
    if given.is_quiet {
        return;
    }
    if given.is_json {
        NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    } else {
        on_stderr(text);
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
///
/// # Errors
/// The output is closed.
pub fn print_json(out: &mut impl Write, answer: &Value) -> io::Result<()> {
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
        on_stderr(Value::Object(rest));
    }
}

/// Options whose variable is another command's: that of `serve` names the address where it listens, and an import would
/// move the jobs of the server to itself. `--wait` of all others is for the server, `--reason` and `--note` are those of
/// a nack and of a schedule.
const WITHOUT: [(&str, &[&str]); 6] = [
    ("import", &["beanstalk", "wait"]),
    ("reserve", &["wait"]),
    ("bulk", &["wait", "reason", "note"]),
    ("redrive", &["reason", "note"]),
    ("dead", &["reason", "note"]),
    ("list", &["reason", "note"]),
];

/// Options that are of use with another argument only. A variable alone is not read: it would make each command wrong that
/// has no use for it.
const REQUIRES: [(&str, &str); 5] =
    [("if-exists", "key"), ("past", "at"), ("to-queue", "ids"), ("burst", "rate"), ("role", "print")];

/// Gives each long option that has none its variable.
pub(super) fn with_variables(command: Command) -> Command {
    // The commands that `work` runs find the message there, which says nothing of other messages.
    let is_in_work = env::var_os(work_child::MARK).is_some();
    with_names(command, &|variable| !(is_in_work && work_child::tells_of_message(variable)))
}

fn with_names(command: Command, is_ours: &impl Fn(&str) -> bool) -> Command {
    let name = command.get_name().to_owned();
    let without = WITHOUT.iter().filter(|(command, _)| *command == name).flat_map(|(_, options)| *options);
    let without: Vec<&str> = without.copied().collect();
    let is_without = |arg: &Arg| arg.get_long().is_some_and(|long| without.contains(&long));
    let command = command.mut_args(|arg| if is_without(&arg) { arg } else { with_name(arg, is_ours) });
    command.mut_subcommands(|command| with_names(command, is_ours))
}

fn with_name(arg: Arg, is_ours: &impl Fn(&str) -> bool) -> Arg {
    let Some(variable) = arg.get_long().map(of_option) else { return arg };
    let arg = if is_flag(&arg) { arg.value_parser(BoolishValueParser::new()) } else { arg };
    if arg.get_env().is_some() || !is_ours(&variable) {
        return arg;
    }
    arg.env(OsString::from(variable)).hide_env(true)
}

/// `DUEWHEEL_IF_EXISTS` of `if-exists`.
fn of_option(long: &str) -> String {
    format!("DUEWHEEL_{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// Whether an option stands without a value on the command line; its variable is true or false.
fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// The command line without the variables that `args` make void: of options that conflict with one of them, and of
/// flags that are false, which are as good as not given.
pub(super) fn without_beaten(command: Command, args: &[OsString]) -> Command {
    // Wrong arguments are reported by the second reading, with what could be read until there. Help reads no variables.
    let read = command.clone().ignore_errors(true).try_get_matches_from(args);
    match read {
        Ok(given) => without(command, &given),
        Err(_) => command,
    }
}

fn without(command: Command, given: &ArgMatches) -> Command {
    if let Some((name, inner)) = given.subcommand() {
        return command.mut_subcommand(name, |command| without(command, inner));
    }
    let is_typed =
        |arg: &Arg| matches!(given.value_source(arg.get_id().as_str()), Some(ValueSource::CommandLine));
    let typed: Vec<&Arg> = command.get_arguments().filter(|arg| is_typed(arg)).collect();
    let conflict = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let is_beaten = |arg: &Arg| typed.iter().any(|typed| conflict(typed, arg) || conflict(arg, typed));
    let mut void: Vec<Id> = command
        .get_arguments()
        .filter(|arg| arg.get_env().is_some() && !is_typed(arg))
        .filter(|arg| {
            is_beaten(arg) || is_flag(arg) && arg.get_env().and_then(env::var_os).is_some_and(is_false)
        })
        .map(|arg| arg.get_id().clone())
        .collect();
    let is_given = |id: &str, void: &[Id]| {
        command.get_arguments().filter(|arg| arg.get_id() == id).any(|arg| {
            let in_variable = || arg.get_env().is_some_and(|name| env::var_os(name).is_some());
            is_typed(arg) || (!void.contains(arg.get_id()) && in_variable())
        })
    };
    for arg in command.get_arguments().filter(|arg| arg.get_env().is_some() && !is_typed(arg)) {
        let required = REQUIRES.iter().find(|(long, _)| arg.get_long() == Some(long));
        let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
        if required.is_some_and(|(_, id)| has(id) && !is_given(id, &void)) {
            void.push(arg.get_id().clone());
        }
    }
    command.mut_args(|arg| if void.contains(arg.get_id()) { arg.env(None::<&str>) } else { arg })
}

fn is_false(value: OsString) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    ["false", "f", "no", "n", "off", "0"].contains(&&*value)
}

/// Whether the variable of a flag is set, for errors of arguments that could not be read.
pub(super) fn is_set(long: &str) -> bool {
    env::var_os(of_option(long)).is_some_and(|value| !value.is_empty() && !is_false(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_values_are_found_by_option() {
        let command = Command::new("duewheel").subcommand(
            Command::new("put")
                .arg(Arg::new("queue").required(true))
                .arg(Arg::new("by").value_name("TIME"))
                .arg(Arg::new("at").long("at").action(ArgAction::Append))
                .arg(Arg::new("count").long("count").default_value("10"))
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue)),
        );
        let args = ["duewheel", "put", "q", "90", "--at", "today 9:00", "--at", "2027-01-01", "--json"];
        let matches = command.clone().get_matches_from(args);
        let given = Invocation::of(&command, &matches);
        assert_eq!(given.text("--at").as_deref(), Some("today 9:00,2027-01-01"));
        assert_eq!((given.text("QUEUE").as_deref(), given.text("TIME").as_deref()), (Some("q"), Some("90")));
        assert_eq!(given.text("--count"), None, "its default");
        assert!(given.is_json() && !given.is_quiet);
    }

    #[test]
    fn typed_option_disables_conflicting_variables() {
        let left = |args: &[&str]| -> Vec<String> {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let command = without_beaten(crate::client_commands(), &args);
            let name = args[1].to_string_lossy().into_owned();
            let command = command.find_subcommand(&name).expect("a command");
            let named = command.get_arguments().filter(|arg| arg.get_env().is_some());
            named.filter_map(|arg| arg.get_long().map(str::to_owned)).collect()
        };
        let has = |names: &[String], name: &str| names.iter().any(|known| known == name);
        let plain = left(&["duewheel", "enqueue", "q", "x"]);
        assert!(has(&plain, "delay") && has(&plain, "at") && has(&plain, "key"), "{plain:?}");
        let at = left(&["duewheel", "enqueue", "q", "x", "--at", "2099-01-01"]);
        assert!(!has(&at, "delay") && has(&at, "at"), "{at:?}");
        // The conflict is declared by the other option.
        let key = left(&["duewheel", "enqueue", "q", "x", "--key", "k"]);
        assert!(!has(&key, "lines") && has(&key, "delay"), "{key:?}");
        // What is of use with another argument only is not read without it.
        assert!(!has(&plain, "if-exists") && !has(&plain, "past"), "{plain:?}");
        assert!(has(&key, "if-exists") && has(&at, "past"), "{key:?} {at:?}");
        let lines = left(&["duewheel", "enqueue", "q", "--lines", "--token-file", "f"]);
        assert!(!has(&lines, "key") && !has(&lines, "token"), "{lines:?}");
    }

    #[test]
    fn work_message_variables_are_no_options() {
        let arg = || Arg::new("key").long("key").value_name("K");
        assert_eq!(with_name(arg(), &|variable| variable != "DUEWHEEL_KEY").get_env(), None);
        assert_eq!(
            with_name(arg(), &|_| true).get_env().and_then(|name| name.to_str()),
            Some("DUEWHEEL_KEY")
        );
        for (variable, is_told) in [
            ("DUEWHEEL_KEY", true),
            ("DUEWHEEL_PRIORITY", true),
            ("DUEWHEEL_QUEUE", true),
            ("DUEWHEEL_TARGET_URL", true),
            ("DUEWHEEL_HEADER_TIMEOUT", true),
            ("DUEWHEEL_HEADER", false),
            ("DUEWHEEL_DELAY", false),
            ("DUEWHEEL_SERVER", false),
        ] {
            assert_eq!(work_child::tells_of_message(variable), is_told, "{variable}");
        }
    }
}
