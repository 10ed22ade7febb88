//! The bytes of messages between nodes.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the number of bytes that follow, little-endian; a number above the limit is refused before anything is allocated |
//! | … | a [`PeerFrameHead`] in postcard |
//! | … | as many operations or answers as the head says, one after the other in postcard |
//!
//! The level of an applied change follows each answer that has one ([`Reply::level`]), except for an enqueue, whose
//! answer contains it. From version 5 on some details follow operations and answers, too: see [`details`].
//!
//! None of these bytes is ever stored. The differences between versions are in [`dialect`]. The parts of a greeting,
//! which come first, are the same in all versions from 3 on; later versions may append to them.

use duewheel_core::engine::{Op, Reply};
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, WhenBusy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use dialect::Dialect;
pub(crate) use part::WireError;
use part::{push, take};

/// The newest version: raised with every change of these bytes, including those of operations and answers, and of the
/// assignment of shards. Each version is a row of [`dialect::DIALECTS`].
pub(crate) const PROTOCOL: u32 = 6;

/// The number of bytes of the length before each frame.
pub(crate) const LENGTH: usize = 4;

/// The largest size of a message of the handshake, in bytes.
pub(crate) const MAX_GREETING: usize = 1_024;

/// The limits of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLimits {
    /// The largest number of bytes behind the length.
    pub(crate) bytes: usize,
    /// The largest number of operations or answers.
    pub(crate) parts: usize,
    /// The largest body of a message in bytes, for the refusal of one that is too large.
    pub(crate) body: usize,
}

impl FrameLimits {
    /// The limits that hold the largest request and the largest answer that the policy allows.
    pub(crate) fn of(policy: &Policy) -> Self {
        let batch = policy.max_batch_bytes.max(policy.max_reserve_bytes).max(policy.load_bytes);
        let one = policy.max_body.saturating_add(policy.max_headers).saturating_add(4_096);
        // Views and grants carry some hundred bytes beside the body.
        let beside =
            policy.max_batch_messages.max(policy.max_reserve).max(policy.max_page).saturating_mul(1_024);
        let bytes = batch.saturating_add(one).saturating_add(beside).clamp(1 << 20, 1 << 30);
        let parts = policy.max_batch_messages.saturating_mul(2).clamp(1_024, 1 << 20);
        FrameLimits { bytes, parts, body: policy.max_body }
    }

    /// The smaller of each limit: what one node may send and the other accepts.
    pub(crate) fn and(self, other: FrameLimits) -> Self {
        FrameLimits {
            bytes: self.bytes.min(other.bytes),
            parts: self.parts.min(other.parts),
            body: self.body.min(other.body),
        }
    }
}

/// The head of a frame, after the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerFrameHead {
    /// A request: operations for a shard follow.
    Request {
        /// Chosen by the node that asks; the answer carries it, too.
        id: u64,
        /// The shard that decides them.
        shard: ShardId,
        /// What happens if the store is behind.
        patience: WhenBusy,
        /// The number of operations.
        ops: u32,
    },
    /// Answers to a request follow.
    Answers {
        /// The request.
        id: u64,
        /// The number of answers.
        answers: u32,
    },
    /// The shard is not owned here, not yet, or not any more: nothing was applied.
    NotMine {
        /// The request.
        id: u64,
        /// The reason, for people.
        why: Box<str>,
    },
    /// Asks for a sign of life.
    Ping,
    /// Answers [`PeerFrameHead::Ping`].
    Pong,
    /// Owners of shards may have changed.
    Nudge,
    /// All requests that were received are answered, and nothing more is applied.
    Bye,
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) enum PeerFrame {
    /// Operations for a shard.
    Request { id: u64, shard: ShardId, patience: WhenBusy, ops: Vec<Op> },
    /// Answers to a request.
    Answers { id: u64, answers: Answers },
    /// The request was not applied, and belongs elsewhere.
    NotMine { id: u64, why: Box<str> },
    /// A ping, which [`PeerFrameHead::Pong`] answers.
    Ping,
    /// The answer to a ping.
    Pong,
    /// Owners of shards may have changed.
    Nudge,
    /// The end: requests without an answer by now were not applied.
    Bye,
}

/// An error in its wire format.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum WireFailure {
    Overloaded,
    Draining,
    Store { kind: WireErrorKind, outcome: WireOutcome, detail: Box<str> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum WireErrorKind {
    Fenced,
    Unavailable,
    Full,
    Corrupt,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum WireOutcome {
    NotApplied,
    Unknown,
}

impl From<&CallError> for WireFailure {
    fn from(error: &CallError) -> Self {
        let store = |kind, outcome, detail: &str| WireFailure::Store { kind, outcome, detail: detail.into() };
        match error {
            CallError::Overloaded => WireFailure::Overloaded,
            CallError::Draining => WireFailure::Draining,
            CallError::Closed(why) => store(WireErrorKind::Unavailable, WireOutcome::NotApplied, why),
            CallError::Lost(why) | CallError::Bug(why) => {
                store(WireErrorKind::Unavailable, WireOutcome::Unknown, why)
            }
            CallError::Store { error, outcome } => {
                let kind = match error.kind() {
                    ErrorKind::Fenced => WireErrorKind::Fenced,
                    ErrorKind::Unavailable => WireErrorKind::Unavailable,
                    ErrorKind::Full => WireErrorKind::Full,
                    ErrorKind::Corrupt => WireErrorKind::Corrupt,
                    ErrorKind::Closed => WireErrorKind::Closed,
                };
                store(kind, (*outcome).into(), &error.to_string())
            }
            // An error without a form of its own keeps its text and its outcome.
            other => store(WireErrorKind::Unavailable, other.outcome().into(), &other.to_string()),
        }
    }
}

impl From<Outcome> for WireOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::NotApplied => WireOutcome::NotApplied,
            Outcome::Unknown => WireOutcome::Unknown,
        }
    }
}

impl From<WireFailure> for CallError {
    fn from(failure: WireFailure) -> Self {
        match failure {
            WireFailure::Overloaded => CallError::Overloaded,
            WireFailure::Draining => CallError::Draining,
            WireFailure::Store { kind, outcome, detail } => {
                let kind = match kind {
                    WireErrorKind::Fenced => ErrorKind::Fenced,
                    WireErrorKind::Unavailable => ErrorKind::Unavailable,
                    WireErrorKind::Full => ErrorKind::Full,
                    WireErrorKind::Corrupt => ErrorKind::Corrupt,
                    WireErrorKind::Closed => ErrorKind::Closed,
                };
                let outcome = match outcome {
                    WireOutcome::NotApplied => Outcome::NotApplied,
                    WireOutcome::Unknown => Outcome::Unknown,
                };
                CallError::Store { error: StoreError::new(kind, detail), outcome }
            }
        }
    }
}

/// A frame that consists of a head alone, with its length.
pub(crate) fn plain(head: &PeerFrameHead, dialect: &Dialect) -> Result<Vec<u8>, WireError> {
    finish(dialect.close(begin(head)?), MAX_GREETING)
}

/// A request, with its length.
///
/// # Errors
/// [`WireError::TooLarge`], [`WireError::NotKnown`].
pub(crate) fn request(
    id: u64,
    shard: ShardId,
    patience: WhenBusy,
    ops: &[Op],
    limits: FrameLimits,
    dialect: &Dialect,
) -> Result<Vec<u8>, WireError> {
    let parts = count(ops.len(), limits)?;
    let mut frame = begin(&PeerFrameHead::Request { id, shard, patience, ops: parts })?;
    for op in ops {
        frame = details::push_op(frame, op, dialect)?;
    }
    finish(dialect.close(frame), limits.bytes)
}

/// Answers, with their length.
///
/// # Errors
/// [`WireError::TooLarge`].
pub(crate) fn answers(
    id: u64,
    answers: &[Result<Reply, CallError>],
    limits: FrameLimits,
    dialect: &Dialect,
) -> Result<Vec<u8>, WireError> {
    let parts = count(answers.len(), limits)?;
    let mut frame = begin(&PeerFrameHead::Answers { id, answers: parts })?;
    for answer in answers {
        let answer = answer.as_ref().map(|reply| details::in_dialect(reply, dialect));
        frame = push(frame, &answer.as_deref().map_err(|error| WireFailure::from(*error)))?;
        let Ok(reply) = answer.as_deref() else { continue };
        if let Some(level) = level_beside(reply) {
            frame = push(frame, &level)?;
        }
        frame = details::push_reply(frame, reply, dialect)?;
    }
    finish(dialect.close(frame), limits.bytes)
}

/// Reads a frame; `bytes` are those behind its length.
///
/// # Errors
/// See [`WireError`].
pub(crate) fn read(bytes: &[u8], limits: FrameLimits, dialect: &Dialect) -> Result<PeerFrame, WireError> {
    if bytes.len() > limits.bytes {
        return Err(WireError::TooLarge);
    }
    let (head, rest) = take::<PeerFrameHead>(bytes)?;
    let (frame, rest) = match head {
        PeerFrameHead::Request { id, shard, patience, ops } => {
            let (ops, rest) = parts(rest, ops, limits, |bytes| details::take_op(bytes, dialect))?;
            (PeerFrame::Request { id, shard, patience, ops }, rest)
        }
        PeerFrameHead::Answers { id, answers } => {
            let (answers, rest) = parts(rest, answers, limits, |bytes| take_answer(bytes, dialect))?;
            (PeerFrame::Answers { id, answers }, rest)
        }
        PeerFrameHead::NotMine { id, why } => (PeerFrame::NotMine { id, why }, rest),
        PeerFrameHead::Ping => (PeerFrame::Ping, rest),
        PeerFrameHead::Pong => (PeerFrame::Pong, rest),
        PeerFrameHead::Nudge => (PeerFrame::Nudge, rest),
        PeerFrameHead::Bye => (PeerFrame::Bye, rest),
    };
    if dialect.ends(rest) { Ok(frame) } else { Err(WireError::Damaged) }
}

/// A part of a greeting, with its length.
pub(crate) fn greeting(part: &impl Serialize) -> Result<Vec<u8>, WireError> {
    finish(begin(part)?, MAX_GREETING)
}

/// Reads a part of a greeting; `bytes` are those behind its length. What a later version has appended is ignored.
///
/// # Errors
/// See [`WireError`].
pub(crate) fn read_greeting<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > MAX_GREETING {
        return Err(WireError::TooLarge);
    }
    take(bytes).map(|(part, _)| part)
}

fn count(n: usize, limits: FrameLimits) -> Result<u32, WireError> {
    if n > limits.parts {
        return Err(WireError::TooLarge);
    }
    u32::try_from(n).map_err(|_| WireError::TooLarge)
}

/// Begins a frame; the length is filled in at the end.
fn begin(part: &impl Serialize) -> Result<Vec<u8>, WireError> {
    push(vec![0; LENGTH], part)
}

fn finish(mut frame: Vec<u8>, limit: usize) -> Result<Vec<u8>, WireError> {
    let length = frame.len() - LENGTH;
    if length > limit {
        return Err(WireError::TooLarge);
    }
    let length = u32::try_from(length).map_err(|_| WireError::TooLarge)?;
    frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Reads an answer, and what is beside it.
fn take_answer<'a>(
    bytes: &'a [u8],
    dialect: &Dialect,
) -> Result<(Result<Reply, CallError>, &'a [u8]), WireError> {
    let (answer, mut rest) = take::<Result<Reply, WireFailure>>(bytes)?;
    let mut answer = answer.map_err(CallError::from);
    if let Ok(reply) = &mut answer {
        if level_beside(reply).is_some() {
            let (level, behind) = take(rest)?;
            reply.reached(level);
            rest = behind;
        }
        rest = details::take_reply(reply, rest, dialect)?;
    }
    Ok((answer, rest))
}

/// The level of an answer that does not contain it in its own bytes.
fn level_beside(reply: &Reply) -> Option<Level> {
    if matches!(reply, Reply::Enqueue(_)) { None } else { reply.level() }
}

/// Reads this number of parts. Each takes at least one byte, so a false number allocates no more than the frame holds.
fn parts<'a, T>(
    bytes: &'a [u8],
    n: u32,
    limits: FrameLimits,
    take: impl Fn(&'a [u8]) -> Result<(T, &'a [u8]), WireError>,
) -> Result<(Vec<T>, &'a [u8]), WireError> {
    let n = usize::try_from(n).map_err(|_| WireError::TooLarge)?;
    if n > limits.parts {
        return Err(WireError::TooLarge);
    }
    if n > bytes.len() {
        return Err(WireError::Damaged);
    }
    let mut parts = Vec::with_capacity(n);
    let mut rest = bytes;
    for _ in 0..n {
        let (part, behind) = take(rest)?;
        parts.push(part);
        rest = behind;
    }
    Ok((parts, rest))
}

mod details;
pub(crate) mod dialect;
#[cfg(feature = "testing")]
pub(crate) mod fuzzing;
mod part;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
