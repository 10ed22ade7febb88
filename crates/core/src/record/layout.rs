//! Definitions that both readers of records share: some tags, and errors of decoding.

use std::fmt;

/// The first byte of a record that puts a message.
pub(super) const PUT: u8 = 1;
/// Added to a stage: the message's marks follow.
pub(super) const MARKED: u8 = 4;

/// Added to the last presence byte of options, to a queue's "how long settings last", and to the presence byte of the
/// delay in the marks: fields of format 7 follow. In the marks it is shifted by the clock class.
pub(super) const MORE: u8 = 2;

/// Added to the presence byte of the delay in the marks: the limit of a consumer follows.
pub(super) const LIMITED: u8 = 8;

/// The bit of the first option that may follow: the spread.
pub(super) const SPREAD: u8 = 1;
/// The bit of the second one: how long after its due time a message expires.
pub(super) const EXPIRES_IN: u8 = 2;
/// The bit of the third one: when it expires.
pub(super) const EXPIRES_AT: u8 = 4;

/// How many numbers follow these bits of options; `None` if this version does not know them.
pub(super) fn numbers_of(more: u8) -> Option<usize> {
    let expiry = match more & !SPREAD {
        0 => 0,
        EXPIRES_IN | EXPIRES_AT => 1,
        _ => return None,
    };
    Some(usize::from(more & SPREAD != 0) + expiry)
}

/// Largest number of kept ids that a purge's record lists one by one, as every version of the format reads them.
pub(super) const LISTED: usize = 4_096;

/// The decoded value, or why the bytes cannot be decoded.
pub(super) type Decoded<T> = Result<T, DecodeError>;

/// Why bytes are no record: damage that a checksum did not detect, or a format of another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end in the middle of a field.
    Short,
    /// A field has a value that this version does not know; the name of the field.
    Unknown(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Short => f.write_str("the bytes end in the middle of a field"),
            DecodeError::Unknown(what) => write!(f, "unknown value of {what}"),
        }
    }
}

impl std::error::Error for DecodeError {}
