//! Checks that settings of targets and schedules have in common.

use duewheel::core::name::QueueName;

/// Why settings do not check: the field, and what is wrong with it. Secrets are not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct BadSettings {
    /// The name of the field, with the place in it, such as `secrets[1]`.
    pub field: String,
    /// The problem of the field.
    pub what: String,
}

pub(crate) fn bad(field: impl Into<String>, what: impl ToString) -> BadSettings {
    BadSettings { field: field.into(), what: what.to_string() }
}

/// Checks the name of a target or a schedule: 1 to `most` bytes, of the characters of queue names.
pub(crate) fn check_name(name: &str, most: usize) -> Result<(), BadSettings> {
    if name.len() > most {
        return Err(bad("name", format_args!("must have at most {most} bytes")));
    }
    QueueName::new(name).map(drop).map_err(|e| bad("name", e))
}

/// The value that a word stands for; without a word, the default.
pub(crate) fn choice<T: Copy + Default, const N: usize>(
    field: &str,
    word: Option<&str>,
    values: [(&str, T); N],
) -> Result<T, BadSettings> {
    let Some(word) = word else { return Ok(T::default()) };
    let known = values.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    known.ok_or_else(|| {
        let words = values.map(|(name, _)| name).join(", ");
        let (first, last) = words.rsplit_once(", ").unwrap_or_default();
        bad(field, format_args!("must be {first} or {last}"))
    })
}
