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
        let what = in_words(&error.message().replace('\n', " "));
        // Errors of a key itself quote it.
        let is_said =
            |path: &str| path.rsplit('.').next().is_some_and(|key| what.contains(&format!("`{key}`")));
        let path = path.filter(|path| path != "." && !is_said(path));
        BadToml { line, what: path.map_or(what.clone(), |path| format!("{path}: {what}")) }
    };
    let toml = toml::Deserializer::parse(text).map_err(|error| bad(None, &error))?;
    serde_path_to_error::deserialize(toml).map_err(|error| bad(Some(error.path().to_string()), error.inner()))
}

/// The fault of an unknown key with the key that was probably meant: a list of all is too long to be read.
fn in_words(what: &str) -> String {
    let unknown = what.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "));
    let Some((unknown, known)) = unknown else { return what.to_owned() };
    let known = known.split('`').skip(1).step_by(2);
    let closest = known.clone().map(|known| (edits(unknown, known), known)).min();
    match closest.filter(|(edits, _)| *edits <= 1 + unknown.len() / 4) {
        Some((_, known)) => format!("there is no key `{unknown}` here; did you mean `{known}`?"),
        None if known.clone().count() < 10 => {
            format!("there is no key `{unknown}` here, but {}", known.collect::<Vec<_>>().join(", "))
        }
        None => format!("there is no key `{unknown}` here; keys are named as the options are, with _ for -"),
    }
}

/// The number of characters to insert, remove or replace for one text to become the other.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (n, mine) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], n + 1);
        for (m, theirs) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(mine != *theirs);
            diagonal = row[m + 1];
            row[m + 1] = replaced.min(diagonal + 1).min(row[m] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_name_similar_ones() {
        let all = "expected one of `data`, `http`, `drain_delay`";
        for (unknown, told) in [
            ("htpp", "did you mean `http`?"),
            ("drain-delay", "did you mean `drain_delay`?"),
            ("sausage", "`sausage` here, but data, http, drain_delay"),
        ] {
            let what = in_words(&format!("unknown field `{unknown}`, {all}"));
            assert!(what.starts_with("there is no key `") && what.ends_with(told), "{what}");
        }
        let many = "`a`, ".repeat(12);
        assert!(
            in_words(&format!("unknown field `sausage`, expected one of {many}")).ends_with("with _ for -")
        );
        assert_eq!(in_words("missing field `name`"), "missing field `name`");
    }
}
