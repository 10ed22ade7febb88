//! The bytes of messages between nodes.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | the number of bytes that follow, little-endian; a number above the limit is refused before anything is allocated |
//! | … | a [`PeerFrameHead`] in postcard |
//! | … | as many *parts* as the head says, each an operation or an answer |
//!
//! A part is its length (a varint), the operation or the answer in postcard, and a section of tagged fields, as
//! records have it ([`find_bytes`]). An operation has the fields 1, optional: the [`Act`] that it is part of; 2,
//! required: the row of an outbox that it is of ([`SourceRow`]), both in postcard; an ack 3, optional: its result; a
//! settlement 4, optional: its detail, as the answer that shows a message has it; and a redrive 5, required: the time
//! of the only death that it is for. A later addition to an operation or an answer is a field here, or one of the
//! message's options or the queue's settings, which are sections themselves. New kinds go behind the existing ones. So
//! a part of a later build can be one that this build cannot read: nothing of a request with such an operation is
//! applied, and such an answer is lost for its call alone.
//!
//! None of these bytes is ever stored. The parts of a greeting, which come first, are the same in all versions; later
//! versions may append to them.
//!
//! Two nodes speak the highest version that both know; without a common one they refuse each other, and both log it. A
//! new version is needed where a change cannot be a tagged field or a further kind of operation or answer, and where
//! nodes must place messages or assign shards in another way. A build that has one also speaks the version before, so
//! that a cluster can be upgraded node by node.

use std::fmt;
use std::sync::Arc;

use duewheel_core::act::Act;
use duewheel_core::engine::{Op, Reply, SourceRow};
use duewheel_core::id::ShardId;
use duewheel_core::message::Detail;
use duewheel_core::policy::Policy;
use duewheel_core::record::{Writer, find_bytes, varint};
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::WhenBusy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Why bytes are not a valid frame, or why a frame cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The frame is longer than the limit, or has more parts.
    #[error("a frame is larger than the limit")]
    TooLarge,
    /// The bytes are not a frame.
    #[error("a frame is damaged")]
    Damaged,
}

/// The number of bytes of the length before each frame.
pub(crate) const LENGTH: usize = 4;

/// The largest size of a message of the handshake, in bytes.
pub(crate) const MAX_GREETING: usize = 1_024;

/// The limits of a frame. Each node tells the other its own in the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
        let one = policy
            .max_body
            .saturating_add(policy.max_headers + policy.max_result + policy.max_detail + 4_096);
        // Views and grants carry some hundred bytes besides the body.
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

/// A frame, after the handshake, with operations and answers in this form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PeerFrame<Ops, Replies> {
    /// A request: operations for a shard.
    Request {
        /// Chosen by the node that asks; the answer also carries it.
        id: u64,
        /// The shard that decides them.
        shard: ShardId,
        /// Treatment of new messages while the store is behind.
        patience: WhenBusy,
        /// The operations.
        ops: Ops,
    },
    /// Answers to a request.
    Answers {
        /// The request.
        id: u64,
        /// The answers.
        answers: Replies,
    },
    /// The shard is not owned here, not yet, or not any more: nothing was applied.
    NotMine {
        /// The request.
        id: u64,
        /// The reason, for people.
        why: Box<str>,
    },
    /// The request has an operation or a field that this node does not know: nothing was applied.
    NotKnown {
        /// The request.
        id: u64,
        /// The reason, for people.
        why: Box<str>,
    },
    /// Asks for a sign of life.
    Ping,
    /// Answers [`PeerFrame::Ping`].
    Pong,
    /// Owners of shards may have changed.
    Nudge,
    /// All requests that were received are answered, and nothing more is applied.
    Bye,
}

/// The head of a frame: as many operations or answers follow.
pub(crate) type PeerFrameHead = PeerFrame<u32, u32>;

/// A frame that was read: `None` for a request of which this build cannot read an operation, and for each answer that it
/// cannot read.
pub(crate) type ReceivedFrame = PeerFrame<Option<Vec<Op>>, Vec<Option<Result<Reply, CallError>>>>;

impl<Ops, Replies> PeerFrame<Ops, Replies> {
    /// Converts operations and answers into another form.
    pub(super) fn with<O, R>(
        self,
        ops: impl FnOnce(Ops) -> Result<O, WireError>,
        answers: impl FnOnce(Replies) -> Result<R, WireError>,
    ) -> Result<PeerFrame<O, R>, WireError> {
        Ok(match self {
            PeerFrame::Request { id, shard, patience, ops: each } => {
                PeerFrame::Request { id, shard, patience, ops: ops(each)? }
            }
            PeerFrame::Answers { id, answers: each } => PeerFrame::Answers { id, answers: answers(each)? },
            PeerFrame::NotMine { id, why } => PeerFrame::NotMine { id, why },
            PeerFrame::NotKnown { id, why } => PeerFrame::NotKnown { id, why },
            PeerFrame::Ping => PeerFrame::Ping,
            PeerFrame::Pong => PeerFrame::Pong,
            PeerFrame::Nudge => PeerFrame::Nudge,
            PeerFrame::Bye => PeerFrame::Bye,
        })
    }
}

/// An error in its wire format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WireFailure {
    Overloaded,
    Draining,
    Store { kind: ErrorKind, outcome: Outcome, detail: Box<str> },
}

impl From<&CallError> for WireFailure {
    fn from(error: &CallError) -> Self {
        let (kind, detail) = match error {
            CallError::Overloaded => return WireFailure::Overloaded,
            CallError::Draining => return WireFailure::Draining,
            CallError::Closed(why) | CallError::Lost(why) | CallError::Bug(why) => {
                (ErrorKind::Unavailable, (*why).into())
            }
            CallError::Store { error, .. } => (error.kind(), error.to_string().into()),
            // An error without a form of its own keeps its text and its outcome.
            other => (ErrorKind::Unavailable, other.to_string().into()),
        };
        WireFailure::Store { kind, outcome: error.outcome(), detail }
    }
}

impl From<WireFailure> for CallError {
    fn from(failure: WireFailure) -> Self {
        match failure {
            WireFailure::Overloaded => CallError::Overloaded,
            WireFailure::Draining => CallError::Draining,
            WireFailure::Store { kind, outcome, detail } => {
                CallError::Store { error: StoreError::new(kind, detail), outcome }
            }
        }
    }
}

/// A frame that consists of a head alone, with its length.
pub(crate) fn plain(head: &PeerFrameHead) -> Result<Vec<u8>, WireError> {
    finish(begin(head)?, MAX_GREETING)
}

/// A request, with its length.
///
/// # Errors
/// [`WireError::TooLarge`].
pub(crate) fn request(
    id: u64,
    shard: ShardId,
    patience: WhenBusy,
    ops: &[Op],
    limits: FrameLimits,
) -> Result<Vec<u8>, WireError> {
    let parts = count(ops.len(), limits)?;
    let mut frame = begin(&PeerFrameHead::Request { id, shard, patience, ops: parts })?;
    for op in ops {
        push_part(&mut frame, op.inner(), &fields_of(op)?)?;
    }
    finish(frame, limits.bytes)
}

/// Answers, with their length.
///
/// # Errors
/// [`WireError::TooLarge`].
pub(crate) fn answers(
    id: u64,
    answers: &[Result<Reply, CallError>],
    limits: FrameLimits,
) -> Result<Vec<u8>, WireError> {
    let parts = count(answers.len(), limits)?;
    let mut frame = begin(&PeerFrameHead::Answers { id, answers: parts })?;
    for answer in answers {
        let field = match answer {
            Ok(Reply::View(Some(view))) => view.detail.as_ref(),
            _ => None,
        };
        let field = field.map(|detail| (DETAIL, false, detail.to_vec()));
        push_part(&mut frame, &answer.as_ref().map_err(WireFailure::from), field.as_slice())?;
    }
    finish(frame, limits.bytes)
}

/// Reads a frame; `bytes` are those behind its length.
///
/// # Errors
/// See [`WireError`].
pub(crate) fn read(bytes: &[u8], limits: FrameLimits) -> Result<ReceivedFrame, WireError> {
    if bytes.len() > limits.bytes {
        return Err(WireError::TooLarge);
    }
    let (head, rest) = take::<PeerFrameHead>(bytes)?;
    let has_parts = matches!(head, PeerFrame::Request { .. } | PeerFrame::Answers { .. });
    if !has_parts && !rest.is_empty() {
        return Err(WireError::Damaged);
    }
    let answer = |mut answer: Result<Reply, WireFailure>, section: &[u8]| {
        if let Ok(Reply::View(Some(view))) = &mut answer {
            view.detail = field(section, DETAIL).map(Detail::from);
        }
        answer.map_err(CallError::from)
    };
    head.with(
        |ops| Ok(parts(rest, ops, limits, with_fields)?.into_iter().collect()),
        |answers| parts(rest, answers, limits, |failure, section| Some(answer(failure, section))),
    )
}

/// The fields of an operation, by ascending number, and whether each is required.
fn fields_of(op: &Op) -> Result<Vec<(u64, bool, Vec<u8>)>, WireError> {
    let mut fields = Vec::new();
    if let Op::Audited(act, _) = op {
        fields.push((ACT, false, postcard::to_allocvec(&**act).map_err(|_| WireError::Damaged)?));
    }
    if let Some(row) = op.row() {
        fields.push((ROW, true, postcard::to_allocvec(&row).map_err(|_| WireError::Damaged)?));
    }
    if let Op::Ack { result: Some(result), .. } = op.inner() {
        fields.push((RESULT, false, result.as_bytes().to_vec()));
    }
    fields.extend(op.detail().map(|detail| (DETAIL, false, detail.to_vec())));
    if let Op::Redrive { died: Some(died), .. } = op.inner() {
        fields.push((DIED, true, postcard::to_allocvec(died).map_err(|_| WireError::Damaged)?));
    }
    Ok(fields)
}

/// The value of a field, if it is in the section.
fn field(mut section: &[u8], wanted: u64) -> Option<&[u8]> {
    find_bytes(&mut section, DIED, wanted).flatten()
}

/// An operation with its fields; without an act or a result that cannot be read. `None` if it cannot have its row or its
/// time of death.
fn with_fields(mut op: Op, section: &[u8]) -> Option<Op> {
    let field = |wanted| field(section, wanted);
    if let Op::Ack { result, .. } = &mut op {
        *result = field(RESULT).and_then(|bytes| std::str::from_utf8(bytes).ok()).map(Box::from);
    }
    if let Some(bytes) = field(DIED) {
        let Op::Redrive { died, .. } = &mut op else { return None };
        *died = Some(postcard::from_bytes(bytes).ok()?);
    }
    if let Some(row) = field(ROW) {
        op = op.once(postcard::from_bytes::<SourceRow>(row).ok()?);
        op.row()?;
    }
    if let Some(detail) = field(DETAIL) {
        op = Op::Detailed(detail.into(), Box::new(op));
    }
    Some(match field(ACT).and_then(|act| postcard::from_bytes::<Act>(act).ok()) {
        Some(act) => Op::Audited(Arc::new(act), Box::new(op)),
        None => op,
    })
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
pub(super) fn begin(head: &impl Serialize) -> Result<Writer, WireError> {
    let mut frame = Writer { bytes: vec![0; LENGTH] };
    push(&mut frame, head)?;
    Ok(frame)
}

pub(super) fn finish(frame: Writer, limit: usize) -> Result<Vec<u8>, WireError> {
    let mut frame = frame.bytes;
    let length = frame.len() - LENGTH;
    if length > limit {
        return Err(WireError::TooLarge);
    }
    let length = u32::try_from(length).map_err(|_| WireError::TooLarge)?;
    frame[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

fn push(to: &mut Writer, value: &impl Serialize) -> Result<(), WireError> {
    // Writing to a Vec does not fail; a value without a form in postcard (an unknown name of a field) does.
    let bytes = postcard::to_extend(value, std::mem::take(&mut to.bytes));
    to.bytes = bytes.map_err(|_| WireError::Damaged)?;
    Ok(())
}

/// The numbers of the fields that have the act and the row of an operation.
const ACT: u64 = 1;
const ROW: u64 = 2;
/// The number of the field that has the result of an ack.
const RESULT: u64 = 3;
/// The number of the field that has the detail of a settlement, or of a message that an answer shows.
const DETAIL: u64 = 4;
/// The number of the field that has the time of death of a redrive. Required: without it another death would be redriven.
const DIED: u64 = 5;

fn push_part(
    frame: &mut Writer,
    value: &impl Serialize,
    fields: &[(u64, bool, Vec<u8>)],
) -> Result<(), WireError> {
    frame.with_length(|part| {
        push(part, value)?;
        #[cfg(debug_assertions)]
        if is_next() && fields.is_empty() {
            part.bytes.extend(FIELD_OF_NEXT);
            return Ok(());
        }
        part.bytes_fields(fields);
        Ok(())
    })
}

/// A section with one optional field, the number 0 under 1000.
#[cfg(any(test, debug_assertions))]
const FIELD_OF_NEXT: [u8; 4] = [1, 0xa0, 0x1f, 0];

fn take<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8]), WireError> {
    postcard::take_from_bytes(bytes).map_err(|_| WireError::Damaged)
}

/// Reads this number of parts, up to the end; `None` for each that this build cannot read. A part takes at least one
/// byte, so a false number allocates no more than the frame holds.
fn parts<W: DeserializeOwned, T>(
    mut bytes: &[u8],
    n: u32,
    limits: FrameLimits,
    convert: impl Fn(W, &[u8]) -> Option<T>,
) -> Result<Vec<Option<T>>, WireError> {
    let n = usize::try_from(n).map_err(|_| WireError::TooLarge)?;
    if n > limits.parts {
        return Err(WireError::TooLarge);
    }
    if n > bytes.len() {
        return Err(WireError::Damaged);
    }
    let mut parts = Vec::with_capacity(n);
    for _ in 0..n {
        let length = varint(&mut bytes).map_err(|_| WireError::Damaged)?;
        let length = usize::try_from(length).map_err(|_| WireError::Damaged)?;
        let (part, rest) = bytes.split_at_checked(length).ok_or(WireError::Damaged)?;
        parts.push(read_part(part).and_then(|(value, section)| convert(value, section)));
        bytes = rest;
    }
    if bytes.is_empty() { Ok(parts) } else { Err(WireError::Damaged) }
}

/// Reads the bytes of a part, with its section of fields; `None` if this build does not know its kind or a required field
/// of it.
fn read_part<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (value, section) = postcard::take_from_bytes(bytes).ok()?;
    let mut rest = section;
    find_bytes(&mut rest, DIED, 0)?;
    rest.is_empty().then_some((value, section))
}

/// The newest version.
pub(crate) const PROTOCOL: u32 = 1;

/// The versions that a node speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupportedVersions {
    pub(crate) lowest: u32,
    pub(crate) highest: u32,
}

/// The versions of a later build, for tests.
#[cfg(any(test, debug_assertions))]
pub(crate) const NEXT: SupportedVersions = SupportedVersions { lowest: PROTOCOL, highest: PROTOCOL + 1 };

impl Default for SupportedVersions {
    fn default() -> Self {
        SupportedVersions { lowest: PROTOCOL, highest: PROTOCOL }
    }
}

impl fmt::Display for SupportedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the versions {} to {}", self.lowest, self.highest)
    }
}

impl SupportedVersions {
    /// The versions of this process.
    pub(crate) fn of_this_process() -> Self {
        #[cfg(debug_assertions)]
        if is_next() {
            tracing::warn!("this process pretends to be of the next version, for a test");
            return NEXT;
        }
        SupportedVersions::default()
    }

    /// The highest version that `other` also has.
    pub(crate) fn common(self, other: SupportedVersions) -> Option<u32> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

/// Whether this process pretends to be a later build, for tests of an upgrade with real processes: it speaks one more
/// version, and sends a field that this build does not know with each operation and answer. A release build never does.
#[cfg(debug_assertions)]
pub(crate) fn is_next() -> bool {
    static IS_NEXT: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("DUEWHEEL_TEST_NEXT_VERSION").is_some());
    *IS_NEXT
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

#[cfg(test)]
mod versions_tests {
    use super::*;

    #[test]
    fn highest_common_version_is_spoken() {
        let this = SupportedVersions::default();
        let later = SupportedVersions { lowest: PROTOCOL + 1, highest: PROTOCOL + 2 };
        let turned = SupportedVersions { lowest: PROTOCOL + 1, highest: 0 };
        for (a, b, common) in [
            (this, this, Some(PROTOCOL)),
            (this, NEXT, Some(PROTOCOL)),
            (NEXT, NEXT, Some(PROTOCOL + 1)),
            (NEXT, later, Some(PROTOCOL + 1)),
            (this, later, None),
            (NEXT, turned, None),
        ] {
            assert_eq!((a.common(b), b.common(a)), (common, common), "{a}, {b}");
        }
    }
}
