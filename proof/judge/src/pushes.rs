//! What a receiver of pushes sees: the system sends the messages of a queue to it, instead of granting them to clients.
//!
//! The receiver of a run has three obligations beside those of [`crate::history`]:
//!
//! 1. [`What::PushSeen`](crate::history::What::PushSeen) is recorded *after* the request was read,
//!    [`What::PushAnswered`](crate::history::What::PushAnswered) *before* the first byte of its answer can be sent.
//! 2. What a killed process has sent is recorded before the next start of the system is: the receiver has read all of
//!    its connections to their ends by then.
//! 3. It is always there. It reads a request within a third of the time-out of its target, and sends an answer within a
//!    third after it was recorded.
//! 4. Its answers never open the breaker of the target, so that a grant is forgiven only when an answer says so.

use serde::{Deserialize, Serialize};

use crate::history::Seen;

/// The number of a push of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PushId(pub u64);

/// A queue whose messages the system sends to the receiver; nobody reserves from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedQueue {
    /// The queue.
    pub queue: String,
    /// The number of attempts after which a message is dead, if it has no setting of its own.
    pub max_attempts: u64,
    /// How long a request may take from its beginning to the end of its answer.
    pub timeout_ms: u64,
}

/// A request that the receiver has read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushSeen {
    /// Its number, which is the receiver's.
    pub push: PushId,
    /// The header `webhook-id`.
    pub webhook_id: String,
    /// The header `duewheel-queue`.
    pub queue: String,
    /// The header `duewheel-key`.
    pub key: Option<String>,
    /// The header `duewheel-attempt`.
    pub attempt: u64,
    /// Its body.
    pub body: Seen,
}

/// What the receiver is about to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushAnswer {
    /// A success: the message is done.
    Accepted,
    /// A failure that uses up an attempt.
    Failed,
    /// Nothing until the time-out: it uses up an attempt, or none if the target answers nothing else.
    Nothing,
    /// Not before this time from now, and no attempt is used up.
    NotBefore {
        /// The time in ms.
        ms: u64,
    },
}

/// The parts of `webhook-id`: the store's id, the message's, and its generation.
pub(crate) fn parts_of(webhook_id: &str) -> Option<(&str, u64, u64)> {
    let mut parts = webhook_id.rsplitn(3, '_');
    let (generation, message, store) = (parts.next()?, parts.next()?, parts.next()?);
    store.starts_with("dw_").then_some(())?;
    Some((store, message.parse().ok()?, generation.parse().ok()?))
}
