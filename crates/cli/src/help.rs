//! Help: the groups of the commands, examples, and hints for words of other systems.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// The commands under their headings, in the order of the help.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Start", &["demo", "serve"]),
    ("Messages", &["enqueue", "get", "list", "cancel", "postpone", "fire", "replay"]),
    ("Queues", &["queues", "queue", "config", "pause", "resume", "purge", "dead", "redrive", "bulk", "job"]),
    ("Workers", &["work", "reserve", "ack", "nack", "extend"]),
    ("Schedules, targets, bridges", &["schedule", "target", "bridge"]),
    (
        "Operate",
        &[
            "status",
            "health",
            "top",
            "tail",
            "histogram",
            "audit",
            "quotas",
            "token",
            "cluster",
            "clock",
            "completions",
            "man",
            "version",
            "help",
        ],
    ),
    ("Data", &["export", "import", "backup", "restore", "verify", "inspect", "salvage", "store", "pg"]),
];

/// Lines that can be typed, by command.
const EXAMPLES: [(&str, &[&str]); 29] = [
    (
        "enqueue",
        &[
            "duewheel enqueue orders \"close order 42\" --delay 48h --key order-42",
            "duewheel enqueue mail \"good morning\" --at \"tomorrow 9:00\"",
            "duewheel enqueue sms --lines --at \"monday 9:00\" <sms.txt",
        ],
    ),
    ("get", &["duewheel get 17", "duewheel get orders --key order-42"]),
    (
        "list",
        &["duewheel list orders --state dead --limit 100", "duewheel list orders --due-to \"today 18:00\""],
    ),
    ("cancel", &["duewheel cancel orders --key order-42", "duewheel cancel 17"]),
    (
        "postpone",
        &["duewheel postpone orders --key order-42 --delay 24h", "duewheel postpone 17 --at \"monday 9:00\""],
    ),
    ("fire", &["duewheel fire orders --key order-42"]),
    ("queue", &["duewheel queue orders", "duewheel queue set orders --max-attempts 5"]),
    (
        "queue set",
        &[
            "duewheel queue set sms --rate 100 --concurrency 20",
            "duewheel queue set orders --backoff 1s..1h --dead-ttl 30d",
            "duewheel queue set orders --unset rate",
        ],
    ),
    ("pause", &["duewheel pause sms", "duewheel pause sms --for 10m"]),
    ("purge", &["duewheel purge sms --keep 1h"]),
    ("redrive", &["duewheel redrive orders", "duewheel redrive orders --reason max_attempts --yes"]),
    (
        "bulk",
        &[
            "duewheel bulk cancel sms --header campaign=7 --dry-run",
            "duewheel bulk postpone sms --all --shift 1h --yes",
            "duewheel bulk redrive orders --all --rate 50 --wait",
        ],
    ),
    (
        "work",
        &[
            "duewheel work orders -- ./close-order.sh",
            "duewheel work orders sms --jobs 8 --timeout 1m -- ./handle.sh",
        ],
    ),
    (
        "reserve",
        &["duewheel reserve orders --max 10 --lease 1m", "duewheel reserve orders --wait 30s --json"],
    ),
    ("nack", &["duewheel nack 17 17-1 --delay 10m --reason \"the shop is closed\""]),
    ("tail", &["duewheel tail", "duewheel tail orders --json"]),
    ("histogram", &["duewheel histogram sms --from 2030-01-01 --to 2030-01-31 --buckets 30"]),
    (
        "schedule put",
        &[
            "duewheel schedule put report --queue reports --cron \"0 9 * * MON-FRI\" --zone Europe/Berlin",
            "duewheel schedule put sweep --queue jobs --every 6h \"sweep carts\"",
        ],
    ),
    ("schedule preview", &["duewheel schedule preview --cron \"0 9 * * MON-FRI\" --zone Europe/Berlin"]),
    (
        "target put",
        &[
            "duewheel target put shop https://shop.example/hooks --secrets secrets.txt",
            "duewheel queue set orders --target shop",
        ],
    ),
    ("bridge plan", &["duewheel bridge plan shop", "duewheel bridge plan shop --definitions >shop.json"]),
    ("export", &["duewheel export all.ndjson", "duewheel export - --queue orders >orders.ndjson"]),
    ("import", &["duewheel import all.ndjson", "duewheel import --beanstalk localhost:11301 --wait 10m"]),
    ("backup", &["duewheel backup /backups/monday"]),
    ("restore", &["duewheel restore /backups/monday /var/lib/duewheel"]),
    ("verify", &["duewheel verify /backups/monday"]),
    ("clock advance", &["duewheel clock advance 48h"]),
    (
        "token new",
        &[
            "duewheel token new --name shop --scope enqueue,cancel --queue orders --tokens tokens.toml",
            "duewheel token new --name ops --scope admin --expires 90d",
        ],
    ),
    (
        "serve",
        &[
            "duewheel serve",
            "duewheel serve --data /var/lib/duewheel --http 127.0.0.1:7788 --beanstalk off",
            "duewheel serve --config duewheel.toml --print-config",
        ],
    ),
];

/// Words that other systems have for commands, and the commands.
const WORDS: [(&str, &str); 52] = [
    ("add", "enqueue"),
    ("bury", "nack --dead"),
    ("clear", "purge"),
    ("create", "enqueue"),
    ("cron", "schedule put"),
    ("del", "cancel"),
    ("delay", "enqueue --delay"),
    ("delete", "cancel"),
    ("dlq", "dead"),
    ("drop", "queue rm"),
    ("dump", "export"),
    ("empty", "purge"),
    ("events", "tail"),
    ("find", "list"),
    ("flush", "purge"),
    ("info", "status"),
    ("jobs", "job list"),
    ("kick", "redrive"),
    ("listen", "work"),
    ("load", "import"),
    ("logs", "tail"),
    ("metrics", "status"),
    ("monitor", "top"),
    ("move", "postpone"),
    ("peek", "list"),
    ("ping", "health"),
    ("pop", "reserve"),
    ("produce", "enqueue"),
    ("publish", "enqueue"),
    ("pull", "reserve"),
    ("push", "enqueue"),
    ("put", "enqueue"),
    ("receive", "reserve"),
    ("release", "nack"),
    ("remove", "cancel"),
    ("requeue", "redrive"),
    ("reschedule", "postpone"),
    ("retry", "redrive"),
    ("run", "serve"),
    ("schedules", "schedule list"),
    ("send", "enqueue"),
    ("server", "serve"),
    ("set", "queue set"),
    ("settings", "queue set"),
    ("start", "serve"),
    ("sub", "work"),
    ("subscribe", "work"),
    ("targets", "target list"),
    ("tokens", "token list"),
    ("touch", "extend"),
    ("watch", "tail"),
    ("worker", "work"),
];

/// Words that other systems have for options, and the options.
const OPTIONS: [(&str, &str); 10] = [
    ("--after", "--delay"),
    ("--concurrency", "--jobs"),
    ("--count", "--limit"),
    ("--dedupe", "--dedupe-id"),
    ("--force", "--yes"),
    ("--host", "--server"),
    ("--in", "--delay"),
    ("--port", "--server"),
    ("--unique", "--key"),
    ("--url", "--server"),
];

/// The command line with its commands in groups, and with examples.
pub(super) fn with_help(mut command: Command) -> Command {
    for (path, lines) in EXAMPLES {
        let path: Vec<&str> = path.split(' ').collect();
        command = with_examples(command, &path, lines);
    }
    let header = *command.get_styles().get_header();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(groups, "{header}{heading}:{header:#}");
        for name in names {
            let found = command.find_subcommand(name);
            let about = found.map(|command| (summary(command), aliases(command)));
            let about = about.or_else(|| (*name == "help").then(|| (HELP.to_owned(), String::new())));
            if let Some((about, aliases)) = about {
                let _ = writeln!(groups, "  {name:<13}{about}{aliases}");
            }
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{header}Options:{header:#}\n{{options}}\
         {{after-help}}"
    );
    command.help_template(StyledStr::from(template))
}

/// The line of the command that clap adds.
const HELP: &str = "Describe a command, as its --help does";

fn summary(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn aliases(command: &Command) -> String {
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if aliases.is_empty() { String::new() } else { format!(" [or {}]", aliases.join(", ")) }
}

/// The command with examples below its options, and with what stands there already behind them.
fn with_examples(command: Command, path: &[&str], lines: &[&str]) -> Command {
    let Some((name, rest)) = path.split_first() else {
        let header = *command.get_styles().get_header();
        let mut text = format!("{header}Examples:{header:#}");
        lines.iter().for_each(|line| text.extend(["\n  ", line]));
        if let Some(after) = command.get_after_help() {
            let _ = write!(text, "\n\n{}", after.ansi());
        }
        return command.after_help(StyledStr::from(text));
    };
    // Without the commands of the program there are fewer.
    match command.find_subcommand(name) {
        Some(_) => command.mut_subcommand(*name, |inner| with_examples(inner, rest, lines)),
        None => command,
    }
}

/// An error with a hint, if it names a command or an option as other systems do.
pub(super) fn with_hint(mut error: clap::Error, command: &Command, args: &[OsString]) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let meant = |words: &[(&str, &'static str)], text: &str| {
        words.iter().find(|(word, _)| *word == text).map(|(_, meant)| *meant)
    };
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            meant(&WORDS, &word.to_ascii_lowercase()).map(|meant| format!("try 'duewheel {meant}'"))
        }
        ErrorKind::UnknownArgument => {
            let option = text(ContextKind::InvalidArg).unwrap_or_default();
            let has = |command: &Command, option: &str| {
                command.get_arguments().filter_map(Arg::get_long).any(|long| option == format!("--{long}"))
            };
            let meant = meant(&OPTIONS, &option).filter(|meant| has(innermost(command, args), meant));
            meant.map(|meant| format!("the option is called '{meant}'"))
        }
        _ => None,
    };
    if let Some(hint) = hint {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

/// The command that the arguments name.
fn innermost<'a>(mut command: &'a Command, args: &[OsString]) -> &'a Command {
    for arg in args.iter().skip(1) {
        command = arg.to_str().and_then(|name| command.find_subcommand(name)).unwrap_or(command);
    }
    command
}
