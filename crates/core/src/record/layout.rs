//! Definitions that both readers of records share: some tags, and errors of decoding.

use std::fmt;

/// The first byte of a record that puts a message.
pub(super) const PUT: u8 = 1;
/// Added to a stage: the message's marks follow.
pub(super) const MARKED: u8 = 4;

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
