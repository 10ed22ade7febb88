//! Rows of an outbox: the operation of each is applied once ([`Op::Once`]).
//!
//! An application writes rows in the transactions of its own database. A drain reads some of them, submits their operations,
//! and deletes them. If it ends before the delete is confirmed, the same rows come again: *enqueue k, cancel k, enqueue k*,
//! applied again, would cancel the message of the third row. So each row is recorded in the group of its effect, also if it
//! has none, and a recorded row is not applied again. The record is an answer that is remembered under the id of the row
//! in the system queue of its source: it is in no limit, and stays until the delete is confirmed ([`Op::Confirm`]).
//!
//! The removal of a dead message that moves into another queue is recorded in the same way, for as long as the `dedupe_id`
//! of its copy: nobody confirms it.

use crate::id::MessageId;
use crate::mutant::{self, Mutant};
use crate::name::QueueName;
use crate::policy::OWN_DEDUPE_WINDOW_MS;
use crate::record::{Created, DedupeRow};
use crate::time::{EngineMs, WallMs};

use super::Engine;
use super::operation::Op;
use super::reply::{Applied, ChangeRefusal, EnqueueRefusal, RefusedPart, Reply};
use super::row::{RowOutcome, RowRefusal, SourceRow};

/// The end of the record of a row whose delete is not confirmed.
const UNCONFIRMED: EngineMs = EngineMs(u64::MAX);
/// How long a row is recorded after its delete was confirmed, in ms: for an operation that a former drain has sent, and
/// that is still under way.
const CONFIRMED_MS: u64 = 300_000;

impl RowOutcome {
    /// The outcome that this answer gives; `None` if it refuses the operation for now.
    fn of(reply: &Reply) -> Option<RowOutcome> {
        let refusal = match reply {
            Reply::Enqueue(Err(refusal)) => match refusal {
                EnqueueRefusal::KeyExists(_) => RowRefusal::KeyExists,
                EnqueueRefusal::Leased(_) => RowRefusal::Leased,
                EnqueueRefusal::InThePast | EnqueueRefusal::Expired => RowRefusal::InThePast,
                EnqueueRefusal::DedupeMismatch(_) => RowRefusal::DedupeMismatch,
                EnqueueRefusal::TooLarge(RefusedPart::Body, _) => RowRefusal::BodyTooLarge,
                EnqueueRefusal::TooFar(_) | EnqueueRefusal::TooLarge(..) | EnqueueRefusal::OutOfRange(_) => {
                    RowRefusal::BadRequest
                }
                EnqueueRefusal::Overloaded(_)
                | EnqueueRefusal::Busy
                | EnqueueRefusal::DiskFull
                | EnqueueRefusal::OverQuota(_) => return None,
            },
            Reply::Change(Err(refusal)) => match refusal {
                ChangeRefusal::NotFound => return Some(RowOutcome::Applied),
                ChangeRefusal::Leased => RowRefusal::Leased,
                ChangeRefusal::Dead => RowRefusal::Dead,
                ChangeRefusal::NotDead => RowRefusal::NotDead,
                ChangeRefusal::KeyExists(_) => RowRefusal::KeyExists,
                ChangeRefusal::GenerationMismatch(_) => RowRefusal::GenerationMismatch,
                ChangeRefusal::InThePast => RowRefusal::InThePast,
                ChangeRefusal::Paused => RowRefusal::Paused,
                ChangeRefusal::TooLarge(RefusedPart::Body, _) => RowRefusal::BodyTooLarge,
                ChangeRefusal::TooFar(_)
                | ChangeRefusal::TooLarge(..)
                | ChangeRefusal::OutOfRange(_)
                | ChangeRefusal::NothingToChange
                | ChangeRefusal::LeaseTooLong(_) => RowRefusal::BadRequest,
                ChangeRefusal::DiskFull
                | ChangeRefusal::Overloaded(_)
                | ChangeRefusal::Busy
                | ChangeRefusal::OverQuota(_) => return None,
            },
            _ => return Some(RowOutcome::Applied),
        };
        Some(RowOutcome::Refused(refusal))
    }

    /// The number in a record: 0 for what was applied, and from 1 on the refusals.
    fn number(self) -> u128 {
        match self {
            RowOutcome::Applied => 0,
            RowOutcome::Refused(refusal) => 1 + refusal as u128,
        }
    }

    /// The outcome with a number. A refusal that only a later build knows is one without more.
    fn numbered(number: u128) -> RowOutcome {
        let Some(nth) = number.checked_sub(1) else { return RowOutcome::Applied };
        let known = usize::try_from(nth).ok().and_then(|nth| RowRefusal::ALL.get(nth).copied());
        RowOutcome::Refused(known.unwrap_or(RowRefusal::BadRequest))
    }
}

impl Engine {
    /// Decides upon an operation on one message that a row may have.
    pub(super) fn decide_on_one(&mut self, op: Op) -> Reply {
        match op {
            Op::Enqueue(e) => Reply::Enqueue(self.enqueue(*e)),
            Op::Cancel { target, dedupe_id, keep } => {
                Reply::Change(self.cancel(&target, dedupe_id, keep).map(Applied::from))
            }
            Op::Postpone { target, edit, if_generation } => {
                Reply::Change(self.postpone(&target, *edit, if_generation).map(Applied::from))
            }
            Op::RemoveDead { id, died, keep } => {
                Reply::Change(self.remove_dead(id, died, keep).map(Applied::from))
            }
            _ => Reply::Change(Err(ChangeRefusal::NothingToChange)), // `Op::once` wraps no other
        }
    }

    /// Applies the operation of a row, unless the row is recorded, and records it with the outcome.
    pub(super) fn once(&mut self, row: SourceRow, op: Op) -> Reply {
        if let Some(first) = self.dedupe.find(&row.source, &row.id, self.now.engine) {
            return Reply::Recorded(RowOutcome::numbered(first.content));
        }
        let is_enqueue = matches!(op, Op::Enqueue(_));
        let is_move = matches!(op, Op::RemoveDead { .. });
        // The record needs room, whatever the operation frees.
        let reply = match self.takes_puts() {
            true => self.decide_on_one(op),
            false if is_enqueue => Reply::Enqueue(Err(EnqueueRefusal::DiskFull)),
            false => Reply::Change(Err(ChangeRefusal::DiskFull)),
        };
        if is_move && !matches!(reply, Reply::Change(Ok(_))) {
            return reply;
        }
        let moved = is_move.then(|| self.now.after(OWN_DEDUPE_WINDOW_MS)).flatten();
        if let Some(outcome) = RowOutcome::of(&reply)
            && (is_enqueue || !mutant::is(Mutant::OnlyEnqueuesRecorded))
        {
            self.append_answer(DedupeRow {
                queue: row.source,
                dedupe_id: row.id,
                content: outcome.number(),
                defaults: None,
                until: moved.unwrap_or(UNCONFIRMED),
                id: MessageId(0),
                key: None,
                due_at: WallMs(0),
                generation: 0,
                created: Created::Kept,
                kept: None,
                position: None,
            });
        }
        reply
    }

    /// Ends the records of rows whose delete is confirmed, each a while after now. Returns their number.
    pub(super) fn confirm(&mut self, source: &QueueName, rows: &[Box<str>]) -> u64 {
        let until = self.now.after(CONFIRMED_MS).unwrap_or(UNCONFIRMED);
        let mut confirmed = 0;
        for id in rows.iter().take(self.policy.max_step) {
            let found = self.dedupe.find(source, id, self.now.engine);
            if let Some(row) = found.filter(|row| row.until == UNCONFIRMED) {
                self.append_answer(DedupeRow { until, ..row.clone() });
                confirmed += 1;
            }
        }
        confirmed
    }
}
