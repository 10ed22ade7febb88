//! Details of operations and answers that are beside them, because the version before does not have them.
//!
//! | beside | bytes |
//! |---|---|
//! | a reserve | its `max_of` in postcard: a list of names and numbers |
//! | an accepted enqueue | its `answered` in postcard |
//!
//! A node of an earlier version gets a reserve without `max_of`: it asks for no more messages than the smallest of
//! these numbers, so no queue gives more than it may, and the next reserve gets the others. An enqueue that such a node
//! has answered before counts as decided now, because nothing more is known. Records of the server have ids as any
//! message for such a node.

use std::borrow::Cow;

use duewheel_core::engine::{Enqueued, Op, Reply, Reserve, Target};

use super::dialect::{DetailsOnWire, Dialect};
use super::part::{WireError, push, take};

/// Adds an operation to a frame.
pub(super) fn push_op(frame: Vec<u8>, op: &Op, dialect: &Dialect) -> Result<Vec<u8>, WireError> {
    let at = frame.len();
    let op = in_dialect(op, dialect);
    let frame = push(frame, &*op)?;
    if !dialect.knows(&frame[at..]) {
        return Err(WireError::NotKnown);
    }
    match (&*op, dialect.details) {
        (Op::Reserve(reserve), DetailsOnWire::Beside) => push(frame, &reserve.max_of),
        _ => Ok(frame),
    }
}

/// Reads an operation.
pub(super) fn take_op<'a>(bytes: &'a [u8], dialect: &Dialect) -> Result<(Op, &'a [u8]), WireError> {
    let (mut op, mut rest) = take::<Op>(bytes)?;
    if let (Op::Reserve(reserve), DetailsOnWire::Beside) = (&mut op, dialect.details) {
        (reserve.max_of, rest) = take(rest)?;
    }
    Ok((op, rest))
}

/// The operation in the form of `dialect`.
fn in_dialect<'a>(op: &'a Op, dialect: &Dialect) -> Cow<'a, Op> {
    match (op, dialect.details) {
        (Op::Reserve(reserve), DetailsOnWire::Nothing) => {
            let Some(smallest) = reserve.max_of.iter().map(|(_, max)| *max).min() else {
                return Cow::Borrowed(op);
            };
            let max = reserve.max.min(smallest);
            Cow::Owned(Op::Reserve(Reserve { max, max_of: Vec::new(), ..reserve.clone() }))
        }
        (op, DetailsOnWire::Nothing) => match by_id(op) {
            Some(op) => Cow::Owned(op),
            None => Cow::Borrowed(op),
        },
        (op, DetailsOnWire::Beside) => Cow::Borrowed(op),
    }
}

/// An operation on one of the server's own records, in the form of a version that finds those by their ids as it finds
/// any message; `None` for another operation.
fn by_id(op: &Op) -> Option<Op> {
    let (Op::Get { target } | Op::Cancel { target } | Op::Postpone { target, .. } | Op::Fire { target }) = op
    else {
        return None;
    };
    let Target::Own(id) = *target else { return None };
    let mut op = op.clone();
    if let Op::Get { target } | Op::Cancel { target } | Op::Postpone { target, .. } | Op::Fire { target } =
        &mut op
    {
        *target = Target::Id(id);
    }
    Some(op)
}

/// Adds the details of an answer behind it.
pub(super) fn push_reply(frame: Vec<u8>, reply: &Reply, dialect: &Dialect) -> Result<Vec<u8>, WireError> {
    match (reply, dialect.details) {
        (Reply::Enqueue(Ok(Enqueued { answered, .. })), DetailsOnWire::Beside) => push(frame, answered),
        _ => Ok(frame),
    }
}

/// Reads the details of an answer behind it; returns the rest.
pub(super) fn take_reply<'a>(
    reply: &mut Reply,
    rest: &'a [u8],
    dialect: &Dialect,
) -> Result<&'a [u8], WireError> {
    let (Reply::Enqueue(Ok(Enqueued { answered, .. })), DetailsOnWire::Beside) = (reply, dialect.details)
    else {
        return Ok(rest);
    };
    let (read, rest) = take(rest)?;
    *answered = read;
    Ok(rest)
}
