//! One part of a frame in postcard, and why it cannot be read or written.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes are not a valid frame, or why a frame cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The frame is longer than the limit, or has more parts.
    #[error("a frame is larger than the limit")]
    TooLarge,
    /// The bytes are not a frame.
    #[error("a frame is damaged")]
    Damaged,
    /// The version that the other node speaks does not have this kind of operation.
    #[error("the other node's version does not know this kind of request")]
    NotKnown,
}

/// Adds a part to a frame.
pub(super) fn push(frame: Vec<u8>, part: &impl Serialize) -> Result<Vec<u8>, WireError> {
    // Writing to a Vec does not fail; a value without a form in postcard (an unknown name of a field) does.
    postcard::to_extend(part, frame).map_err(|_| WireError::Damaged)
}

/// Reads a part; returns the rest, too.
pub(super) fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), WireError> {
    postcard::take_from_bytes(bytes).map_err(|_| WireError::Damaged)
}
