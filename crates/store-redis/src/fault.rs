//! Errors of Redis and of connections, as errors of a store.

use duewheel_core::store::{ErrorKind, StoreError};
use redis::{RedisError, ServerError, Value};

/// The error of a connection that failed, or did not answer in time.
pub(crate) fn of_connection(error: &RedisError) -> StoreError {
    match error.code() {
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            StoreError::new(ErrorKind::Unavailable, LOGIN_REFUSED)
        }
        Some(code) => of_code(code, error.detail().unwrap_or_default()),
        None => StoreError::new(ErrorKind::Unavailable, format_args!("Redis: {error}")),
    }
}

/// The error of a refused command.
pub(crate) fn of_server(error: &ServerError) -> StoreError {
    of_code(error.code(), error.details().unwrap_or_default())
}

fn of_code(code: &str, detail: &str) -> StoreError {
    let text = format_args!("Redis: {code} {detail}").to_string();
    // A script's failure begins with the command's own.
    let is = |word: &str| code == word || detail.starts_with(word);
    if is("OOM") {
        return StoreError::new(ErrorKind::Full, text);
    }
    if is("WRONGTYPE") {
        return StoreError::new(ErrorKind::Corrupt, text);
    }
    if matches!(code, "WRONGPASS" | "NOAUTH") {
        return StoreError::new(ErrorKind::Unavailable, format_args!("{LOGIN_REFUSED}: {text}"));
    }
    if matches!(code, "ASK" | "TRYAGAIN") {
        let what = format_args!("a slot is moving to another master; {text}");
        return StoreError::new(ErrorKind::Unavailable, what);
    }
    StoreError::new(ErrorKind::Unavailable, text)
}

const LOGIN_REFUSED: &str = "Redis refuses the login; check --redis-user and --redis-password";

/// The error of a start: a login that was refused will not be accepted a little later. While a shard is served it may
/// be, when an operator has taken back a change.
pub(crate) fn at_start(error: StoreError) -> StoreError {
    let is_refused = error.to_string().contains(LOGIN_REFUSED);
    if is_refused { StoreError::new(ErrorKind::Corrupt, error) } else { error }
}

/// The error of a key whose slot is moving to another master.
pub(crate) fn moving(key: &str, why: &str) -> StoreError {
    let what =
        format_args!("the slot of {key} is moving to another master, or its keys cannot be touched: {why}");
    StoreError::new(ErrorKind::Unavailable, what)
}

/// Whether the server has refused a command before it began. An error inside a script names the script.
pub(crate) fn is_before(error: &ServerError) -> bool {
    const BEFORE: [&str; 13] = [
        "ASK",
        "TRYAGAIN",
        "MOVED",
        "CLUSTERDOWN",
        "OOM",
        "READONLY",
        "LOADING",
        "MISCONF",
        "NOREPLICAS",
        "MASTERDOWN",
        "BUSY",
        "NOPERM",
        "NOAUTH",
    ];
    BEFORE.contains(&error.code()) && !error.details().unwrap_or_default().contains("@user_script")
}

/// The error that a script returned.
pub(crate) fn of_script(text: &str) -> StoreError {
    let (word, why) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "FENCED" => StoreError::new(ErrorKind::Fenced, why),
        "MOVING" => StoreError::new(ErrorKind::Unavailable, why),
        // The missing writes were lost by a failover.
        "LOST" => StoreError::new(
            ErrorKind::Corrupt,
            format_args!("Redis has lost a part of the file {why}: a slot was moving when a master was lost"),
        ),
        "GAP" => StoreError::new(ErrorKind::Fenced, format_args!("{LOST_CHANGES}: {why}")),
        _ => StoreError::new(ErrorKind::Corrupt, format_args!("a script answers {text:?}")),
    }
}

/// Why ownership of a shard has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FenceReason {
    /// Another owner has the shard.
    Owner,
    /// The lease ran out.
    Lease,
    /// The master was promoted, restarted or got its first replica.
    Master,
    /// Earlier records are missing.
    Gap,
}

impl FenceReason {
    /// The reason of an error; `None`: ownership has not ended, or the reason is unknown.
    pub(crate) fn of(error: &StoreError) -> Option<Self> {
        if error.kind() != ErrorKind::Fenced {
            return None;
        }
        let text = error.to_string();
        let words = [
            (OTHER_OWNER, FenceReason::Owner),
            (LEASE_OVER, FenceReason::Lease),
            (OTHER_MASTER, FenceReason::Master),
            (LOST_CHANGES, FenceReason::Gap),
        ];
        words.into_iter().find(|(words, _)| text.starts_with(words)).map(|(_, reason)| reason)
    }
}

const OTHER_OWNER: &str = "the shard has another owner";
const LEASE_OVER: &str = "the lease has run out";
const OTHER_MASTER: &str = "this master has been promoted";
const LOST_CHANGES: &str = "Redis has lost changes";

/// The error for a reply of an unexpected shape.
pub(crate) fn odd(command: &str) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format_args!("Redis: an odd reply to {command}"))
}

/// Whether the server has refused a command, or a script has failed, because a key has another type.
pub(crate) fn is_wrong_type(error: &ServerError) -> bool {
    error.code() == "WRONGTYPE" || error.details().unwrap_or_default().starts_with("WRONGTYPE")
}

/// The error of a key with a value that this version does not know.
pub(crate) fn damaged(key: &str, field: impl std::fmt::Display, what: &str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, format_args!("{key} {field} cannot be read: {what}"))
}

/// The error of a bug in this crate.
pub(crate) fn bug(what: &str) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format_args!("a bug: {what}"))
}

// Reads the values of replies.

type Taken<T> = Result<T, StoreError>;

/// Converts the refusal of a command to an error.
pub(crate) fn accepted(value: Value) -> Taken<Value> {
    match value {
        Value::ServerError(error) => Err(of_server(&error)),
        value => Ok(value),
    }
}

/// Reads a list.
pub(crate) fn list(value: Value, of: &str) -> Taken<Vec<Value>> {
    match value {
        Value::Array(list) | Value::Set(list) => Ok(list),
        Value::Nil => Ok(Vec::new()),
        _ => Err(odd(of)),
    }
}

/// Reads bytes, or nothing.
pub(crate) fn bytes(value: Value, of: &str) -> Taken<Option<Vec<u8>>> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        Value::VerbatimString { text, .. } => Ok(Some(text.into_bytes())),
        Value::Okay => Ok(Some(b"OK".to_vec())),
        Value::Int(n) => Ok(Some(n.to_string().into_bytes())),
        Value::Nil => Ok(None),
        _ => Err(odd(of)),
    }
}

/// Reads a list of bytes, each of which may be absent.
pub(crate) fn bytes_list(value: Value, of: &str) -> Taken<Vec<Option<Vec<u8>>>> {
    list(value, of)?.into_iter().map(|value| bytes(value, of)).collect()
}

/// Reads a list of names and values in turn.
pub(crate) fn pairs(value: Value, of: &str) -> Taken<Vec<(Vec<u8>, Vec<u8>)>> {
    if let Value::Map(map) = value {
        let both = |(name, value)| Ok((some(bytes(name, of)?, of)?, some(bytes(value, of)?, of)?));
        return map.into_iter().map(both).collect();
    }
    let mut words = list(value, of)?.into_iter();
    let mut pairs = Vec::with_capacity(words.len() / 2);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        pairs.push((some(bytes(name, of)?, of)?, some(bytes(value, of)?, of)?));
    }
    Ok(pairs)
}

/// Reads text, or nothing.
pub(crate) fn text(value: Value, of: &str) -> Taken<Option<String>> {
    bytes(value, of)?.map(|bytes| String::from_utf8(bytes).map_err(|_| odd(of))).transpose()
}

/// Reads a number, or nothing.
pub(crate) fn number(value: Value, of: &str) -> Taken<Option<u64>> {
    text(value, of)?.map(|text| text.parse().map_err(|_| odd(of))).transpose()
}

/// Requires a value.
pub(crate) fn some<T>(value: Option<T>, of: &str) -> Taken<T> {
    value.ok_or_else(|| odd(of))
}

/// A field of a reply of `INFO`.
pub(crate) fn info<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fence_has_a_reason() {
        for (script, words) in [
            (include_str!("scripts/fence.lua"), [OTHER_OWNER, LEASE_OVER, OTHER_MASTER]),
            (include_str!("scripts/renew.lua"), [OTHER_OWNER, LEASE_OVER, OTHER_MASTER]),
        ] {
            for words in words {
                assert!(script.contains(&format!("'FENCED {words}")), "{words}");
            }
            let text = script.lines().filter_map(|line| line.trim().strip_prefix("return 'FENCED "));
            for text in text {
                let text = format!("FENCED {}", text.trim_end_matches('\''));
                assert!(FenceReason::of(&of_script(&text)).is_some(), "{text}");
            }
        }
        assert_eq!(FenceReason::of(&of_script("GAP the shard is at 3, not at 4")), Some(FenceReason::Gap));
    }
}
