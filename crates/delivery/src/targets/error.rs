//! Errors of operations on targets.

use duewheel::CallError;
use duewheel::core::engine::{ChangeRefusal, EnqueueRefusal};
use duewheel::core::name::QueueName;

use crate::shelf::NotWritten;
use crate::target::BadTarget;

/// Why something was not done with a target. No text repeats a secret.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The settings are not valid.
    #[error(transparent)]
    Bad(#[from] BadTarget),
    /// There is no target of this name.
    #[error("there is no target of this name")]
    NotFound,
    /// There are too many targets, or too many queues that have one.
    #[error("there are {0} {1}, and no more are accepted")]
    TooMany(u64, &'static str),
    /// The target cannot be read, or no key opens it: it can be put anew, or removed.
    #[error("the target cannot be used until it is put anew: {0}")]
    Unreadable(String),
    /// Queues are delivered to the target. Give them another one, or none, first.
    #[error("queues are delivered to the target, and need another one or none first: {}", names(.0))]
    InUse(Vec<QueueName>),
    /// The target is not for this queue.
    #[error("the target is not for the queue {0}: see its queues")]
    NotForQueue(QueueName),
    /// This field tells a secret, and the store is elsewhere and keeps none in the clear.
    #[error("{0}: needs --secrets-key, because the store is on another server")]
    NeedsKey(&'static str),
    /// The system has no random source to seal with. Nothing was changed.
    #[error("the secrets could not be sealed")]
    NotSealed,
    /// Others edit the target. Nothing was changed; try again.
    #[error("the target is being edited; try again")]
    Busy,
    /// The store refused a new record.
    #[error("the record was refused: {0}")]
    Refused(EnqueueRefusal),
    /// The store refused a change of the record.
    #[error("the record was refused: {0}")]
    RecordRefused(ChangeRefusal),
    /// The store gave no answer; the edit may be made.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The first names, as a text.
fn names(queues: &[QueueName]) -> String {
    let first: Vec<&str> = queues.iter().take(5).map(QueueName::as_str).collect();
    let more = if queues.len() > first.len() { ", …" } else { "" };
    format!("{}{more}", first.join(", "))
}

impl From<NotWritten> for TargetError {
    fn from(why: NotWritten) -> Self {
        match why {
            NotWritten::Lost => TargetError::Busy,
            NotWritten::Refused(refusal) => TargetError::RecordRefused(refusal),
            NotWritten::NewRefused(refusal) => TargetError::Refused(refusal),
            NotWritten::Unknown(error) => TargetError::Call(error),
        }
    }
}
