//! Failures of commands and their exit codes, and refusals of the server.

use std::{fmt, io};

use duewheel_client::{Code, Error, ErrorCode};
use serde_json::{Map, Value, json};

use super::invocation::{self, Invocation};
use super::system_words::{on_stderr, plain_words};
use super::table::plain;
use duewheel_api::span::TimeSpan;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum CommandFailure {
    /// The command failed.
    Failed(String),
    /// Wrong usage.
    Usage(String),
    /// The server refused; [`exit_code_of`] tells the exit code.
    Refused(Error),
    /// Something that was named does not exist.
    NotFound(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// The command has printed everything; the exit code.
    Said(u8),
}

/// The exit codes besides 0.
pub mod exit_code {
    /// The command failed.
    pub const FAILED: u8 = 1;
    /// Wrong usage: an option or argument is missing, unknown or has a bad value.
    pub const USAGE: u8 = 2;
    /// There is no such message, queue or path.
    pub const NOT_FOUND: u8 = 3;
    /// The message or its key is in another state than the command needs.
    pub const CONFLICT: u8 = 4;
    /// No server can be reached, or it is about to stop.
    pub const UNREACHABLE: u8 = 5;
    /// A limit, a quota, or missing permission.
    pub const REFUSED: u8 = 6;
}

/// The exit code for an error of the server.
fn exit_code_of(code: &Code) -> u8 {
    use ErrorCode as E;
    let Code::Server(known) = code else { return exit_code::FAILED };
    match known {
        E::BadRequest | E::MethodNotAllowed | E::UnsupportedMediaType | E::InThePast => exit_code::USAGE,
        E::NotFound | E::MessageNotFound => exit_code::NOT_FOUND,
        E::KeyExists
        | E::Leased
        | E::Dead
        | E::NotDead
        | E::NotDone
        | E::LeaseLost
        | E::GenerationMismatch
        | E::Changed
        | E::DedupeMismatch
        | E::Paused
        | E::InUse => exit_code::CONFLICT,
        E::Draining => exit_code::UNREACHABLE,
        E::Unauthorized
        | E::Forbidden
        | E::CrossOrigin
        | E::BodyTooLarge
        | E::HeadersTooLarge
        | E::Overloaded
        | E::OverQuota
        | E::DiskFull => exit_code::REFUSED,
        E::RequestTimeout | E::Internal | E::StorageUnavailable | E::Unknown => exit_code::FAILED,
    }
}

/// Whether the server has refused a request for what it is, before it has done anything of it.
pub(super) fn is_of_the_request(trouble: &Error) -> bool {
    matches!(trouble.code, Code::Server(code) if code.status().is_client_error())
}

/// Whether the server has refused, in place of none that answers.
pub(super) fn is_refusal(trouble: &Error) -> bool {
    matches!(trouble.code, Code::Server(_) | Code::Other(_))
}

/// The refusal of a line of a batch.
pub(super) fn refusal_in(line: &Value) -> Error {
    let strange = || Error::new(Code::BadAnswer, "no answer of a duewheel server");
    Error::of_problem(line).unwrap_or_else(strange)
}

/// A failure with `before` and `behind` around its text.
pub(super) fn with_words(mut trouble: Error, before: &str, behind: &str) -> Error {
    trouble.detail = format!("{before}{}{behind}", trouble.detail);
    trouble
}

/// The options and arguments that are not named as the field of a request that they give.
const SPELLINGS: [(&str, &str); 16] = [
    ("body", "BODY"),
    ("body_base64", "BODY"),
    ("by", "TIME"),
    ("ca_pem", "--ca"),
    ("client_pem", "--client-cert"),
    ("dead_reason", "--reason"),
    ("due_at", "--at"),
    ("headers", "--header"),
    ("id", "ID"),
    ("ids", "--id"),
    ("last-event-id", "--since"),
    ("lease_token", "TOKEN"),
    ("queue", "QUEUE"),
    ("rate.burst", "--burst"),
    ("retry", "--delays"),
    ("url", "URL"),
];

/// Fields whose value is not repeated: it may be long, or have a secret, such as a token in the query of a URL.
const NOT_REPEATED: [&str; 8] =
    ["body", "body_base64", "ca_pem", "client_pem", "headers", "secrets", "target_url", "url"];

/// Options that are sent as the field of another one.
const INSTEAD: [(&str, &str); 2] = [("--at", "--delay"), ("--reason", "--dead-reason")];

/// How the command line calls a field of a request: `--dead-ttl` for `dead_ttl_ms`, if the command has that option.
fn flag_of(field: &str, request: Option<&Value>, typed: &Invocation) -> Option<String> {
    // Most commands have it as an argument, and the path of the request has it.
    if field == "queue" && request.is_some_and(|request| request.get("queue").is_some()) {
        return Some("--queue".to_owned());
    }
    let field = bare(field);
    let outer = outer(field);
    if outer == "headers" && field != outer {
        return None; // the server names the header
    }
    let name = outer.strip_suffix("_ms").unwrap_or(outer);
    let spelling = SPELLINGS.iter().find(|(known, _)| [field, name].contains(known));
    let flag = match spelling {
        Some((_, flag)) => (*flag).to_owned(),
        None => {
            let option = name.replace('_', "-");
            typed.has_option(&option).then(|| format!("--{option}"))?
        }
    };
    let instead = INSTEAD.iter().find(|(sent, _)| *sent == flag).map(|(_, instead)| *instead);
    Some(instead.filter(|instead| typed.text(instead).is_some()).map_or(flag, str::to_owned))
}

/// A field without the filter that it is in.
fn bare(field: &str) -> &str {
    field.strip_prefix("filter.").unwrap_or(field)
}

/// The field of a request that a field is in.
fn outer(field: &str) -> &str {
    field.split('.').next().unwrap_or(field)
}

/// A typed text with a space before it: as it is if it is a number or a length of time, otherwise in quotes.
fn quoted(text: &str) -> String {
    if !text.contains(' ') && (text.parse::<f64>().is_ok() || text.parse::<TimeSpan>().is_ok()) {
        format!(" {text}")
    } else {
        format!(" {text:?}")
    }
}

/// The value of a field as it was sent, with a space before it; nothing where that is not known.
fn sent(field: &str, request: &Value) -> String {
    let field = bare(field);
    let inner = |value: &Value| field.split('.').try_fold(value, |value, name| value.get(name)).cloned();
    let value = inner(request).or_else(|| request.get("filter").and_then(inner));
    let is_time = field.ends_with("_ms");
    match value {
        Some(Value::String(text)) => format!(" {text:?}"),
        Some(Value::Number(number)) => match number.as_i64().filter(|_| is_time) {
            Some(ms) => format!(" {}{}", if ms < 0 { "-" } else { "" }, TimeSpan(ms.unsigned_abs())),
            None => format!(" {number}"),
        },
        // The refusal does not say which element is wrong: all are shown.
        Some(Value::Array(all)) => {
            let words = all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned));
            format!(" {:?}", words.collect::<Vec<_>>().join(","))
        }
        Some(Value::Null | Value::Bool(_) | Value::Object(_)) | None => String::new(),
    }
}

/// The detail of a refusal with the names of the command line: `--priority 1e3: must be …` for `priority: must be …`.
/// The value is what was typed, or else what `request` has.
pub(super) fn with_flags(refusal: Error, request: Option<&Value>) -> Error {
    named(refusal, request, invocation::current())
}

fn named(mut refusal: Error, request: Option<&Value>, typed: &Invocation) -> Error {
    let Some(field) = refusal.text("field") else { return refusal };
    let Some(flag) = flag_of(field, request, typed) else { return refusal };
    let prefix = format!("{field}: ");
    let Some(rest) = refusal.detail.strip_prefix(&prefix) else { return refusal };
    let value = match (NOT_REPEATED.contains(&outer(bare(field))), typed.text(&flag)) {
        (true, _) => String::new(),
        (false, Some(text)) => quoted(&text),
        (false, None) => request.map(|request| sent(field, request)).unwrap_or_default(),
    };
    let rest = rest.replace("min_ms", "the shortest time").replace("max_ms", "the longest time");
    refusal.detail = format!("{flag}{value}: {rest}");
    refusal
}

fn coded(code: &str, detail: &str) -> Map<String, Value> {
    [("code".to_owned(), code.into()), ("detail".to_owned(), detail.into())].into_iter().collect()
}

/// A refusal as a member of JSON for programs.
fn refusal_json(refusal: &Error) -> Map<String, Value> {
    let mut fields = coded(refusal.code.as_str(), &refusal.detail);
    for name in ["field", "existing_id", "state"] {
        if let Some(value) = refusal.text(name) {
            fields.insert(name.into(), value.into());
        }
    }
    fields
}

/// A refusal after which the command goes on, as a line for standard error: `duewheel: line 3: …`, or with `--json` an
/// object with that `line`. `about` names the subject of the refusal, where that is not the line itself.
pub(super) fn refused_line(line: Option<u64>, about: &str, trouble: &Error) -> String {
    if !invocation::current().is_json() {
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let about = if about.is_empty() { String::new() } else { format!("{about}: ") };
        return format!("duewheel: {line}{about}{}", plain_words(&plain(&trouble.to_string())));
    }
    let mut fields = match is_refusal(trouble) {
        true => refusal_json(trouble),
        false => coded("unreachable", &trouble.detail),
    };
    for (name, value) in [("line", line.map(Value::from)), ("about", Some(about.into()))] {
        if let Some(value) = value.filter(|value| *value != "") {
            fields.insert(name.into(), value);
        }
    }
    Value::Object(fields).to_string()
}

impl CommandFailure {
    /// A failure with this text.
    pub fn failed(what: impl fmt::Display) -> Self {
        CommandFailure::Failed(what.to_string())
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            CommandFailure::Said(code) => *code,
            CommandFailure::Failed(_) => exit_code::FAILED,
            CommandFailure::Usage(_) => exit_code::USAGE,
            CommandFailure::Refused(refusal) => exit_code_of(&refusal.code),
            CommandFailure::NotFound(_) => exit_code::NOT_FOUND,
            CommandFailure::Unreachable(_) => exit_code::UNREACHABLE,
        }
    }

    /// Tells people on standard error; with `json` as one JSON object with the `code` of the server, or `failed`,
    /// `usage`, `not_found` or `unreachable`.
    pub(super) fn tell(&self, json: bool) {
        let (code, detail) = match self {
            CommandFailure::Said(_) => return,
            CommandFailure::Failed(what) => ("failed", what),
            CommandFailure::Usage(what) => ("usage", what),
            CommandFailure::NotFound(what) => ("not_found", what),
            CommandFailure::Unreachable(what) => ("unreachable", what),
            CommandFailure::Refused(refusal) => (refusal.code.as_str(), &refusal.detail),
        };
        let line = if json {
            let mut fields = match self {
                CommandFailure::Refused(refusal) => refusal_json(refusal),
                _ => coded(code, &plain_words(detail)),
            };
            fields.insert("exit_code".into(), json!(self.exit_code()));
            invocation::add_notes(&mut fields);
            Value::Object(fields).to_string()
        } else if let CommandFailure::Refused(refusal) = self {
            format!("duewheel: {}", plain(&refusal.to_string()))
        } else {
            format!("duewheel: {}", plain_words(detail))
        };
        on_stderr(line);
    }
}

impl From<Error> for CommandFailure {
    fn from(trouble: Error) -> Self {
        match is_refusal(&trouble) {
            true => CommandFailure::Refused(trouble),
            false => CommandFailure::Unreachable(trouble.detail),
        }
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        // A closed pipe, as in `duewheel list q | head`, is not reported.
        if error.kind() == io::ErrorKind::BrokenPipe {
            CommandFailure::Said(exit_code::FAILED)
        } else {
            CommandFailure::failed(error)
        }
    }
}

/// Fails with the words for each count that is not 0.
pub(super) fn none_of(counts: impl IntoIterator<Item = (u64, String)>) -> Result<(), CommandFailure> {
    let words: Vec<String> = counts.into_iter().filter(|(n, _)| *n > 0).map(|(_, words)| words).collect();
    if words.is_empty() { Ok(()) } else { Err(CommandFailure::Failed(words.join("; "))) }
}

/// The failure to print an answer. It says that the work is done: a caller that learns of an error alone does it again.
pub(super) fn unprinted(error: io::Error) -> CommandFailure {
    match CommandFailure::from(error) {
        CommandFailure::Failed(why) => {
            CommandFailure::Failed(format!("it is done, but standard output cannot take the answer: {why}"))
        }
        closed => closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(texts: &[(&str, &str)]) -> Invocation {
        Invocation::with(&crate::client_commands(), texts)
    }

    fn refusal(code: &str, field: &str, detail: &str) -> Error {
        refusal_in(&json!({"code": code, "field": field, "detail": detail}))
    }

    #[test]
    fn refusal_names_flag_and_value() {
        let request = json!({"priority": -1, "delay": "1 fortnight", "body": "secret"});
        let told = |field: &str, detail: &str| {
            named(refusal("bad_request", field, detail), Some(&request), &typed(&[])).detail
        };
        assert_eq!(
            told("priority", "priority: must be a whole number"),
            "--priority -1: must be a whole number"
        );
        assert_eq!(told("delay", "delay: no"), "--delay \"1 fortnight\": no");
        assert_eq!(told("body", "body: is too large"), "BODY: is too large");
        assert_eq!(told("max_attempts", "max_attempts: must not be 0"), "--max-attempts: must not be 0");
        assert_eq!(told("strange", "strange: unknown field"), "strange: unknown field");
        assert_eq!(told("queue", "queue: no"), "QUEUE: no");
    }

    #[test]
    fn refusals_quote_values_without_secrets() {
        let request = json!({
            "queue": "no queue", "cron": "never", "timeout_ms": 90_000, "shift_ms": -3_600_000, "networks": ["a", "b"],
            "dead_on": [700], "secrets": ["whsec_x"], "url": "http://a/?token=x", "headers": {"a": "b"},
            "retry": {"delays": ["soon"]}, "filter": {"due_to": "soon"},
        });
        for (field, told) in [
            ("queue", "--queue \"no queue\": no"),
            ("cron", "--cron \"never\": no"),
            ("timeout_ms", "--timeout 1m30s: no"),
            ("shift_ms", "--shift -1h: no"),
            ("networks", "--networks \"a,b\": no"),
            ("dead_on", "--dead-on \"700\": no"),
            ("retry.delays", "--delays \"soon\": no"),
            ("due_to", "--due-to \"soon\": no"),
            ("filter.due_to", "--due-to \"soon\": no"),
            ("secrets", "--secrets: no"),
            ("url", "URL: no"),
            ("headers", "--header: no"),
        ] {
            let refusal = refusal("bad_request", field, &format!("{field}: no"));
            assert_eq!(named(refusal, Some(&request), &typed(&[])).detail, told);
        }
    }

    /// Story: an error of `--delay "200 years"` blamed `--at`, and those of instants had quoted what they had become.
    #[test]
    fn errors_quote_what_was_typed() {
        let request = json!({"due_at": "2019-12-31T23:00:00.000Z", "backoff": {"min_ms": 2, "max_ms": 1}});
        let told = |field: &str, detail: &str, typed: &[(&str, &str)]| {
            let refusal = refusal("bad_request", field, &format!("{field}: {detail}"));
            named(refusal, Some(&request), &self::typed(typed)).detail
        };
        assert_eq!(told("due_at", "is past", &[("--at", "2020-01-01")]), "--at \"2020-01-01\": is past");
        assert_eq!(told("due_at", "is far", &[("--delay", "200 years")]), "--delay \"200 years\": is far");
        assert_eq!(
            told("headers.authorization", "is bad", &[("--header", "authorization: s3cret,x: y")]),
            "headers.authorization: is bad"
        );
        assert_eq!(
            told("buckets", "must be 1 to 1000", &[("--buckets", "0")]),
            "--buckets 0: must be 1 to 1000"
        );
        assert_eq!(told("last-event-id", "is none", &[("--since", "abc")]), "--since \"abc\": is none");
        assert_eq!(
            told("backoff", "min_ms must not be above max_ms", &[("--backoff", "1m..1s")]),
            "--backoff \"1m..1s\": the shortest time must not be above the longest time"
        );
        assert_eq!(told("url", "is no URL", &[("URL", "http://a/?token=x")]), "URL: is no URL");
    }

    #[test]
    fn exit_codes_classify_failures() {
        for (code, exit) in [
            ("bad_request", 2),
            ("message_not_found", 3),
            ("key_exists", 4),
            ("lease_lost", 4),
            ("draining", 5),
            ("over_quota", 6),
            ("disk_full", 6),
            ("forbidden", 6),
            ("unknown", 1),
            ("storage_unavailable", 1),
            ("a code of a later version", 1),
        ] {
            assert_eq!(CommandFailure::Refused(refusal(code, "", "")).exit_code(), exit, "{code}");
        }
        assert_eq!(CommandFailure::Unreachable(String::new()).exit_code(), 5);
    }

    /// Story: a wrong `--cron` was told as `cron`, and a wrong `--networks` as `networks`.
    #[test]
    fn errors_name_options_of_all_commands() {
        for (field, told) in [
            ("dead_ttl_ms", "--dead-ttl"),
            ("backoff.max_ms", "--backoff"),
            ("rate.per_second", "--rate"),
            ("rate.burst", "--burst"),
            ("filter.key_prefix", "--key-prefix"),
            ("expires_in", "--expires-in"),
            ("due_at", "--at"),
            ("for_ms", "--for"),
            ("by_ms", "TIME"),
            ("ids", "--id"),
        ] {
            assert_eq!(flag_of(field, None, &typed(&[])).as_deref(), Some(told), "{field}");
        }
        assert_eq!(
            flag_of("dead_ttl_ms", None, &Invocation::default()),
            None,
            "the command has no such option"
        );
    }
}
