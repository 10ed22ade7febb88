//! What nodes say to each other, as bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | how many follow, little-endian; more than the limit is refused before anything is allocated |
//! | … | a [`PeerFrameHead`] in postcard |
//! | … | as many operations, or answers, as the head says, one after the other in postcard |
//!
//! From version 4 on the level of an applied change follows each answer that has one ([`Reply::level`]), but that of
//! an enqueue, which has always had it. An answer of version 3 without it counts as [`Level::Memory`]: nothing more is known.
//! The answer to a change of a queue's settings is new in version 4; [`version_3`] converts it.
//!
//! Nothing of this is ever stored. What differs between two versions is in [`dialect`]. The parts of a greeting, which
//! come first, are the same in all versions from 3 on; a later one may append to them.

use duewheel_core::engine::{Op, Reply};
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{ErrorKind, Level, StoreError};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, WhenBusy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use dialect::{Dialect, LevelsOnWire};

/// Raised with every change of these bytes, those of operations and answers included, and of the assignment of shards: a row of
/// [`dialect::DIALECTS`].
pub(crate) const PROTOCOL: u32 = 4;

/// Bytes of the length before each frame.
pub(crate) const LENGTH: usize = 4;

/// Largest size of a message of the handshake.
pub(crate) const MAX_GREETING: usize = 1_024;

/// The limits of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLimits {
    /// Bytes behind the length.
    pub(crate) bytes: usize,
    /// Operations, or answers.
    pub(crate) parts: usize,
    /// Bytes of a message's body: for those who are told that theirs is too large.
    pub(crate) body: usize,
}

impl FrameLimits {
    /// What the largest request or answer needs that the policy allows.
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

    /// What one node may send and the other takes.
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
    /// Operations for a shard follow.
    Request {
        /// Chosen by the asker, to know the answer by.
        id: u64,
        /// Whose.
        shard: ShardId,
        /// What if the store is behind.
        patience: WhenBusy,
        /// How many.
        ops: u32,
    },
    /// Answers follow.
    Answers {
        /// To which request.
        id: u64,
        /// How many.
        answers: u32,
    },
    /// The shard is not here, or not yet, or not any more: nothing was applied.
    NotMine {
        /// Which request.
        id: u64,
        /// For people.
        why: Box<str>,
    },
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// Who owns what may have changed.
    Nudge,
    /// Everything that was heard is answered, and nothing more is applied.
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
    /// To be answered with [`PeerFrameHead::Pong`].
    Ping,
    /// The answer.
    Pong,
    /// Who owns what may have changed.
    Nudge,
    /// What has no answer by now was not applied.
    Bye,
}

/// Why bytes are no frame, or a frame cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// Longer than the limit, or with more parts.
    #[error("a frame is larger than the limit")]
    TooLarge,
    /// No frame of ours.
    #[error("a frame is damaged")]
    Damaged,
    /// The version that the other node speaks does not have this kind of operation.
    #[error("the other node's version does not know this kind of request")]
    NotKnown,
}

/// An error in its wire format.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum WireFailure {
    Overloaded,
    Draining,
    Store { kind: Kind, outcome: WireOutcome, detail: Box<str> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
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
            CallError::Closed(why) => store(Kind::Unavailable, WireOutcome::NotApplied, why),
            CallError::Lost(why) | CallError::Bug(why) => store(Kind::Unavailable, WireOutcome::Unknown, why),
            CallError::Store { error, outcome } => {
                let kind = match error.kind() {
                    ErrorKind::Fenced => Kind::Fenced,
                    ErrorKind::Unavailable => Kind::Unavailable,
                    ErrorKind::Full => Kind::Full,
                    ErrorKind::Corrupt => Kind::Corrupt,
                    ErrorKind::Closed => Kind::Closed,
                };
                let outcome = match outcome {
                    Outcome::NotApplied => WireOutcome::NotApplied,
                    Outcome::Unknown => WireOutcome::Unknown,
                };
                store(kind, outcome, &error.to_string())
            }
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
                    Kind::Fenced => ErrorKind::Fenced,
                    Kind::Unavailable => ErrorKind::Unavailable,
                    Kind::Full => ErrorKind::Full,
                    Kind::Corrupt => ErrorKind::Corrupt,
                    Kind::Closed => ErrorKind::Closed,
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

/// A head alone, with its length.
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
        let at = frame.len();
        frame = push(frame, op)?;
        if !dialect.knows(&frame[at..]) {
            return Err(WireError::NotKnown);
        }
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
        let part = answer.as_ref().map(|reply| version_3::sent(reply, dialect)).map_err(WireFailure::from);
        frame = push(frame, &part)?;
        if dialect.levels == LevelsOnWire::Beside
            && let Ok(reply) = answer
            && let Some(level) = level_beside(reply)
        {
            frame = push(frame, &level)?;
        }
    }
    finish(dialect.close(frame), limits.bytes)
}

/// What a frame says; `bytes` are those behind its length.
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
            let (ops, rest) = parts(rest, ops, limits, take::<Op>)?;
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

/// What a part of a greeting says; `bytes` are those behind its length. What a later version has appended is left out.
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

fn push(frame: Vec<u8>, part: &impl Serialize) -> Result<Vec<u8>, WireError> {
    // Writing to a Vec does not fail; a value that has no bytes (an unknown name of a field) does.
    postcard::to_extend(part, frame).map_err(|_| WireError::Damaged)
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

fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), WireError> {
    postcard::take_from_bytes(bytes).map_err(|_| WireError::Damaged)
}

/// An answer, and its level where the version has it beside the answer.
fn take_answer<'a>(
    bytes: &'a [u8],
    dialect: &Dialect,
) -> Result<(Result<Reply, CallError>, &'a [u8]), WireError> {
    let (answer, mut rest) = take::<Result<Reply, WireFailure>>(bytes)?;
    let mut answer = answer.map_err(CallError::from);
    if dialect.levels == LevelsOnWire::Beside
        && let Ok(reply) = &mut answer
        && level_beside(reply).is_some()
    {
        let (level, behind) = take(rest)?;
        reply.reached(level);
        rest = behind;
    }
    Ok((answer, rest))
}

/// The level of an answer that does not carry it in its own bytes.
fn level_beside(reply: &Reply) -> Option<Level> {
    if matches!(reply, Reply::Enqueue(_)) { None } else { reply.level() }
}

/// So many parts. Each takes a byte at least, so a number that lies makes no room for nothing.
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

pub(crate) mod dialect;
#[cfg(feature = "testing")]
pub(crate) mod fuzzing;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
pub(crate) mod version_3;
