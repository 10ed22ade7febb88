//! Rows of outboxes: their names, and the outcomes of their operations.

use crate::name::{QueueName, named_enum};

/// A row of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SourceRow {
    /// The system queue of the outbox, under which its rows are recorded.
    pub source: QueueName,
    /// The id of the row, which no other row of the outbox ever has.
    pub id: Box<str>,
}

/// The outcome of the operation of a row that was recorded before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum RowOutcome {
    /// The operation was applied, or there was nothing to be changed.
    Applied,
    /// The operation was refused for good.
    Refused(RowRefusal),
}

named_enum! {
    /// Why the operation of a row was refused for good. The names are codes of errors.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum RowRefusal {
        /// A value is not as documented.
        BadRequest => "bad_request",
        /// Another message has the key.
        KeyExists => "key_exists",
        /// A consumer has leased the message.
        Leased => "leased",
        /// The message is dead.
        Dead => "dead",
        /// The message is not dead.
        NotDead => "not_dead",
        /// The message has another generation.
        GenerationMismatch => "generation_mismatch",
        /// The `dedupe_id` was used for another content.
        DedupeMismatch => "dedupe_mismatch",
        /// The queue is paused.
        Paused => "paused",
        /// The body is too large.
        BodyTooLarge => "body_too_large",
        /// The due time has passed.
        InThePast => "in_the_past",
    }
}
