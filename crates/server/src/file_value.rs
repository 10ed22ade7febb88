//! A value of a configuration file, for options that are lists or switches.

use std::str::FromStr;

use serde::Deserialize;

/// A value in the form of its flag, which separates the elements of a list by commas, or in that of TOML.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a text, a list of texts, or true or false")]
pub(crate) enum FileValue {
    Text(String),
    List(Vec<String>),
    Switch(bool),
}

impl FileValue {
    /// Reads a list, of which no element has a comma.
    pub(crate) fn list<T: FromStr<Err: ToString>>(self) -> Result<T, String> {
        match self {
            FileValue::Switch(_) => Err("must be a list, or a text with commas".to_owned()),
            other => other.flag(),
        }
    }

    /// Reads the value as its flag does.
    pub(crate) fn flag<T: FromStr<Err: ToString>>(self) -> Result<T, String> {
        let text = match self {
            FileValue::Text(text) => text,
            FileValue::List(all) => all.join(","),
            FileValue::Switch(on) => on.to_string(),
        };
        text.parse().map_err(|what: T::Err| what.to_string())
    }
}
