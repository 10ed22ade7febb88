//! An operation, and the points of the history between which it took effect.

use crate::history::{Answer, Call, Proof, Refusal, Stamp, Token};

pub(super) const NS: u64 = 1_000_000;

/// A point of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// The position in the list. Of two points the one with the smaller position was really before.
    pub(super) idx: usize,
    pub(super) ns: u64,
    pub(super) wall: u64,
}

impl Point {
    pub(super) const NEVER: Point = Point { idx: usize::MAX, ns: u64::MAX, wall: u64::MAX };

    pub(super) fn new(idx: usize, at: Stamp) -> Self {
        Point { idx, ns: at.mono_ns, wall: at.wall_ms }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End<'h> {
    Ok(Point, &'h Answer),
    Fail(Point, &'h Refusal),
    Unknown,
}

#[derive(Debug)]
pub(super) struct Op<'h> {
    pub(super) call: &'h Call,
    pub(super) inv: Point,
    pub(super) end: End<'h>,
    /// The operation takes no effect after this point: its end, or the kill that followed.
    pub(super) latest: Point,
    pub(super) info_idx: Option<usize>,
}

impl Op<'_> {
    /// Whether it may have changed anything.
    pub(super) fn possible(&self) -> bool {
        !matches!(self.end, End::Fail(..))
    }

    /// When it was answered positively.
    pub(super) fn done(&self) -> Option<Point> {
        match self.end {
            End::Ok(at, _) => Some(at),
            End::Fail(..) | End::Unknown => None,
        }
    }

    pub(super) fn unknown(&self) -> bool {
        matches!(self.end, End::Unknown)
    }
}

/// The token in a settle.
pub(super) fn proof(call: &Call) -> Option<&Proof> {
    match call {
        Call::Ack(proof) | Call::Bury(proof) => Some(proof),
        Call::Nack { proof, .. } | Call::Extend { proof, .. } => Some(proof),
        Call::Enqueue(_)
        | Call::Cancel(_)
        | Call::Postpone { .. }
        | Call::Fire(_)
        | Call::Get(_)
        | Call::Reserve { .. }
        | Call::Redrive(_)
        | Call::Purge { .. }
        | Call::Limit { .. } => None,
    }
}

/// The token of a settle that returns the message.
pub(super) fn gives_back(call: &Call) -> Option<&Token> {
    match call {
        Call::Nack { proof, .. } | Call::Bury(proof) => Some(&proof.token),
        _ => None,
    }
}
