//! Files in TOML: what is wrong with one names its line and its key.

use serde::de::DeserializeOwned;

/// A fault in a file, with its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadToml {
    pub(crate) line: usize,
    /// The fault, with its key.
    pub(crate) what: String,
}

/// Reads a file.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, BadToml> {
    let bad = |path: Option<String>, error: &toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).map_or(0, |before| before.matches('\n').count()) + 1;
        let what = error.message().replace('\n', " ");
        // Errors of a key itself quote it.
        let is_said =
            |path: &str| path.rsplit('.').next().is_some_and(|key| what.contains(&format!("`{key}`")));
        let path = path.filter(|path| path != "." && !is_said(path));
        BadToml { line, what: path.map_or(what.clone(), |path| format!("{path}: {what}")) }
    };
    let toml = toml::Deserializer::parse(text).map_err(|error| bad(None, &error))?;
    serde_path_to_error::deserialize(toml).map_err(|error| bad(Some(error.path().to_string()), error.inner()))
}
