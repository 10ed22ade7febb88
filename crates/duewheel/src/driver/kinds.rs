//! What the driver must know of the kinds of operations, answers and records.

use duewheel_core::engine::{Op, Reply};

/// Whether an operation writes records that take room until a flush has written them, and gives none back.
pub(super) fn grows(op: &Op) -> bool {
    match op {
        Op::Reserve(_)
        | Op::ReserveOne { .. }
        | Op::Nack { .. }
        | Op::Bury { .. }
        | Op::Extend { .. }
        | Op::Postpone { .. }
        | Op::Fire { .. }
        | Op::FireMany { .. }
        | Op::Redrive { .. }
        | Op::RedriveMany { .. }
        | Op::Configure { .. }
        | Op::Pause { .. }
        | Op::Resume { .. } => true,
        // An enqueue has a refusal of its own.
        Op::Enqueue(_)
        | Op::CancelReserve { .. }
        | Op::Undelivered { .. }
        | Op::Ack { .. }
        | Op::Delete { .. }
        | Op::Cancel { .. }
        | Op::Get { .. }
        | Op::Outline { .. }
        | Op::Quotas
        | Op::Peek { .. }
        | Op::List { .. }
        | Op::Queue { .. }
        | Op::Queues { .. }
        | Op::Histogram { .. }
        | Op::Wheel
        | Op::Stats
        | Op::Purge { .. }
        | Op::Hold { .. }
        | Op::LetGo { .. }
        | Op::SessionClosed { .. }
        | Op::SessionDeadline { .. }
        | Op::NextDue => false,
    }
}

/// Whether all records of an operation with this answer are in one group. The others go on over several steps, and a
/// part may be applied.
pub(super) fn is_in_one_group(reply: &Reply) -> bool {
    match reply {
        Reply::Count(_) | Reply::Done => false,
        Reply::Enqueue(_)
        | Reply::Reserve(_)
        | Reply::ReserveOne(_)
        | Reply::Settle(_)
        | Reply::Extend(_)
        | Reply::Change(_)
        | Reply::View(_)
        | Reply::Page(_)
        | Reply::Queues(_)
        | Reply::Configure(_)
        | Reply::Histogram(_)
        | Reply::Wheel(_)
        | Reply::Stats(_)
        | Reply::Deadline(_)
        | Reply::NextDue(_)
        | Reply::Quotas(_) => true,
    }
}
