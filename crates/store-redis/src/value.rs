//! Reads the values of replies.

use duewheel_core::store::StoreError;
use redis::Value;

use crate::fault;

type Taken<T> = Result<T, StoreError>;

/// Converts the refusal of a command to an error.
pub(crate) fn accepted(value: Value) -> Taken<Value> {
    match value {
        Value::ServerError(error) => Err(fault::of_server(&error)),
        value => Ok(value),
    }
}

/// Reads a list.
pub(crate) fn list(value: Value, of: &str) -> Taken<Vec<Value>> {
    match value {
        Value::Array(list) | Value::Set(list) => Ok(list),
        Value::Nil => Ok(Vec::new()),
        _ => Err(fault::odd(of)),
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
        _ => Err(fault::odd(of)),
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
    bytes(value, of)?.map(|bytes| String::from_utf8(bytes).map_err(|_| fault::odd(of))).transpose()
}

/// Reads a number, or nothing.
pub(crate) fn number(value: Value, of: &str) -> Taken<Option<u64>> {
    text(value, of)?.map(|text| text.parse().map_err(|_| fault::odd(of))).transpose()
}

/// Requires a value.
pub(crate) fn some<T>(value: Option<T>, of: &str) -> Taken<T> {
    value.ok_or_else(|| fault::odd(of))
}

/// A field of a reply of `INFO`.
pub(crate) fn info<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'))
}
