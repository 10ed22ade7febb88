//! Errors of a call that was not answered by the engine.

use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, StoreError};

/// Why a call was not answered.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Too many operations wait for the driver; nothing was applied. Try again a little later.
    #[error("too many requests are waiting; try again shortly")]
    Overloaded,
    /// The wheel is shutting down; nothing was applied.
    #[error("the shard is shutting down and accepts no new operations")]
    Draining,
    /// The store failed. See [`CallError::outcome`].
    #[error("the store is unavailable: {error}")]
    Store {
        /// The error of the store.
        error: StoreError,
        /// Whether the call may have been applied.
        outcome: Outcome,
    },
    /// The driver ended before the call, because its store is permanently unavailable or because of a bug in duewheel;
    /// or the call can never succeed. Nothing was applied.
    #[error("closed: {0}")]
    Closed(&'static str),
    /// The driver ended before it answered; the call may have been applied.
    #[error("no answer: {0}")]
    Lost(&'static str),
    /// The answer belongs to another operation, which is a bug in duewheel; the call may have been applied.
    #[error("a bug in duewheel: {0}")]
    Bug(&'static str),
}

/// Whether a failed call may have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// The call was not applied: retrying is safe.
    NotApplied,
    /// The call may have been applied: retry with the same key or `dedupe_id`.
    Unknown,
}

impl CallError {
    /// The driver answered with another operation's answer, which is a bug.
    pub(crate) const WRONG_ANSWER: CallError = CallError::Bug("the driver answered another operation");

    /// The channel of the answer is closed and empty.
    pub const NO_ANSWER: CallError = CallError::Lost("the driver gave no answer");

    /// The cursor of a listing was made with another number of shards.
    pub const WRONG_POSITIONS: CallError =
        CallError::Closed("the position is not one of a listing over this number of shards");

    /// Whether the call may have been applied.
    pub fn outcome(&self) -> Outcome {
        match self {
            CallError::Overloaded | CallError::Draining | CallError::Closed(_) => Outcome::NotApplied,
            CallError::Store { outcome, .. } => *outcome,
            CallError::Lost(_) | CallError::Bug(_) => Outcome::Unknown,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            CallError::Overloaded | CallError::Draining => true,
            CallError::Store { error, .. } => match error.kind() {
                ErrorKind::Unavailable | ErrorKind::Full | ErrorKind::Fenced => true,
                ErrorKind::Corrupt | ErrorKind::Closed => false,
            },
            CallError::Closed(_) | CallError::Lost(_) | CallError::Bug(_) => false,
        }
    }

    /// Whether a call that may be repeated, though it is unknown whether it was applied, may be answered later.
    pub fn may_pass(&self) -> bool {
        self.is_retryable() || matches!(self, CallError::Lost(_))
    }

    /// This error with the shard in its text, for a caller that has asked several shards.
    #[must_use]
    pub fn of_shard(self, shard: ShardId) -> CallError {
        match self {
            CallError::Overloaded => CallError::Overloaded,
            CallError::Store { error, outcome } => CallError::Store {
                error: StoreError::new(error.kind(), format!("shard {shard}: {error}")),
                outcome,
            },
            CallError::Draining | CallError::Closed(_) | CallError::Lost(_) | CallError::Bug(_) => {
                CallError::Store {
                    error: StoreError::new(ErrorKind::Unavailable, format!("shard {shard}: {self}")),
                    outcome: self.outcome(),
                }
            }
        }
    }

    /// The error of a change of several parts, over shards or one after the other, when one of them has failed with this
    /// error: the others may be applied.
    #[must_use]
    pub fn of_one_of_several(self) -> CallError {
        match self {
            CallError::Store { error, .. } => CallError::Store { error, outcome: Outcome::Unknown },
            CallError::Bug(_) => self,
            CallError::Overloaded | CallError::Draining | CallError::Closed(_) | CallError::Lost(_) => {
                CallError::Lost("a part of the operation has failed, and others may have been applied")
            }
        }
    }
}
