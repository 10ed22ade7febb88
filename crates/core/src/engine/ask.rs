//! Typed operations: an operation with the type of its answer.
//!
//! Batches carry [`Op`] and [`Reply`]. A caller that waits for the answer to one operation uses an [`Ask`] and receives
//! its [`Ask::Reply`], so that it needs no arm for the answers to other operations.

use std::marker::PhantomData;

use crate::id::{LeaseToken, Lsn, MessageId, SessionId, ShardId};
use crate::message::State;
use crate::name::QueueName;
use crate::policy::QueueSettings;
use crate::time::WallMs;

use super::input::{Attempt, DedupeId, Edit, Enqueue, Hold, ListCursor, Op, Proof, Reserve, Target};
use super::quota::QuotaUse;
use super::reply::{
    Applied, ChangeRefusal, EnqueueRefusal, Enqueued, Grant, Histogram, Outline, Page, QueueView, Reply,
    Reserved, SettingsRefusal, SettleRefusal, Settled, ShardEvents, Stats, View, WheelView,
};

/// An operation whose answer has a type.
pub trait Ask {
    /// The type of its answer.
    type Reply;

    /// The operation.
    fn into_op(self) -> Op;

    /// The typed answer; `None` if `reply` answers another operation.
    fn reply(reply: Reply) -> Option<Self::Reply>;
}

impl Ask for Enqueue {
    type Reply = Result<Enqueued, EnqueueRefusal>;

    fn into_op(self) -> Op {
        Op::Enqueue(Box::new(self))
    }

    fn reply(reply: Reply) -> Option<Self::Reply> {
        let Reply::Enqueue(done) = reply else { return None };
        Some(done)
    }
}

impl Ask for Reserve {
    type Reply = Reserved;

    fn into_op(self) -> Op {
        Op::Reserve(self)
    }

    fn reply(reply: Reply) -> Option<Self::Reply> {
        let Reply::Reserve(reserved) = reply else { return None };
        Some(reserved)
    }
}

/// An operation whose answer is an `R`; the functions of [`Op`] create it.
#[derive(Debug)]
pub struct Typed<R> {
    op: Op,
    answer: PhantomData<fn() -> R>,
}

impl<R> Typed<R> {
    fn new(op: Op) -> Self {
        Typed { op, answer: PhantomData }
    }

    /// The operation.
    pub fn op(&self) -> &Op {
        &self.op
    }
}

impl<R> Clone for Typed<R> {
    fn clone(&self) -> Self {
        Typed::new(self.op.clone())
    }
}

impl<R: FromReply> Ask for Typed<R> {
    type Reply = R;

    fn into_op(self) -> Op {
        self.op
    }

    fn reply(reply: Reply) -> Option<R> {
        R::from_reply(reply)
    }
}

/// An answer's type, converted from the [`Reply`] that batches carry.
pub trait FromReply: Sized {
    /// The answer; `None` if `reply` has another type.
    fn from_reply(reply: Reply) -> Option<Self>;
}

/// Each function has the name of its variant, whose documentation describes the arguments.
impl Op {
    /// [`Op::ReserveOne`]
    pub fn reserve_one(
        id: MessageId,
        session: SessionId,
        lease_ms: Option<u64>,
    ) -> Typed<Result<Box<Grant>, ChangeRefusal>> {
        Typed::new(Op::ReserveOne { id, session, lease_ms })
    }

    /// [`Op::Undelivered`]
    pub fn undelivered(leases: Vec<(MessageId, LeaseToken)>) -> Typed<()> {
        Typed::new(Op::Undelivered { leases })
    }

    /// [`Op::Ack`]
    pub fn ack(id: MessageId, proof: impl Into<Proof>) -> Typed<Result<Applied<Settled>, SettleRefusal>> {
        Typed::new(Op::Ack { id, proof: proof.into() })
    }

    /// [`Op::Nack`], with the priority that the message has.
    pub fn nack(
        id: MessageId,
        proof: impl Into<Proof>,
        attempt: Attempt,
        delay_ms: Option<u64>,
        note: &str,
    ) -> Typed<Result<Applied<Settled>, SettleRefusal>> {
        let (proof, note) = (proof.into(), note.into());
        Typed::new(Op::Nack { id, proof, attempt, delay_ms, priority: None, note })
    }

    /// [`Op::Bury`], with the priority that the message has.
    pub fn bury(
        id: MessageId,
        proof: impl Into<Proof>,
        note: &str,
    ) -> Typed<Result<Applied<Settled>, SettleRefusal>> {
        Typed::new(Op::Bury { id, proof: proof.into(), priority: None, note: note.into() })
    }

    /// [`Op::Extend`]
    pub fn extend(
        id: MessageId,
        proof: impl Into<Proof>,
        lease_ms: Option<u64>,
    ) -> Typed<Result<Applied<WallMs>, SettleRefusal>> {
        Typed::new(Op::Extend { id, proof: proof.into(), lease_ms })
    }

    /// [`Op::Cancel`]
    pub fn cancel(target: Target) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Op::cancel_with(target, DedupeId::Stays)
    }

    /// [`Op::Cancel`], with the fate of the message's `dedupe_id`.
    pub fn cancel_with(
        target: Target,
        dedupe_id: DedupeId,
    ) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Typed::new(Op::Cancel { target, dedupe_id })
    }

    /// [`Op::RemoveDead`]
    pub fn remove_dead(id: MessageId, died: WallMs) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Typed::new(Op::RemoveDead { id, died })
    }

    /// [`Op::Postpone`]
    pub fn postpone(
        target: Target,
        edit: Box<Edit>,
        if_generation: Option<u32>,
    ) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Typed::new(Op::Postpone { target, edit, if_generation })
    }

    /// [`Op::Fire`]
    pub fn fire(target: Target) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Typed::new(Op::Fire { target })
    }

    /// [`Op::FireMany`]
    pub fn fire_many(queue: QueueName, max: usize) -> Typed<Applied<u64>> {
        Typed::new(Op::FireMany { queue, max })
    }

    /// [`Op::Redrive`]
    pub fn redrive(id: MessageId) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Op::redrive_in(id, None)
    }

    /// [`Op::Redrive`], due after a delay.
    pub fn redrive_in(
        id: MessageId,
        delay_ms: Option<u64>,
    ) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Typed::new(Op::Redrive { id, delay_ms })
    }

    /// [`Op::RedriveMany`]
    pub fn redrive_many(queue: QueueName, max: usize) -> Typed<Applied<u64>> {
        Typed::new(Op::RedriveMany { queue, max })
    }

    /// [`Op::Get`]
    pub fn get(target: Target) -> Typed<Option<Box<View>>> {
        Typed::new(Op::Get { target })
    }

    /// [`Op::Recall`]
    pub fn recall(target: Target) -> Typed<Option<Box<View>>> {
        Typed::new(Op::Recall { target })
    }

    /// [`Op::Outline`]
    pub fn outline(id: MessageId) -> Typed<Result<Applied<Box<Outline>>, ChangeRefusal>> {
        Typed::new(Op::Outline { id })
    }

    /// [`Op::Peek`]
    pub fn peek(queue: QueueName, state: State) -> Typed<Option<Box<View>>> {
        Typed::new(Op::Peek { queue, state })
    }

    /// [`Op::List`]
    pub fn list(
        queue: QueueName,
        state: Option<State>,
        after: Option<ListCursor>,
        limit: usize,
        from: Option<WallMs>,
    ) -> Typed<Page> {
        Typed::new(Op::List { queue, state, after, limit, from })
    }

    /// [`Op::Queue`]: `None` when there is nothing of it.
    pub fn queue(queue: QueueName) -> Typed<Option<QueueView>> {
        Typed::new(Op::Queue { queue })
    }

    /// [`Op::Queues`]
    pub fn queues(after: Option<QueueName>, limit: usize) -> Typed<Vec<QueueView>> {
        Typed::new(Op::Queues { after, limit })
    }

    /// [`Op::Histogram`]
    pub fn histogram(queue: Option<QueueName>, from: WallMs, to: WallMs, columns: usize) -> Typed<Histogram> {
        Typed::new(Op::Histogram { queue, from, to, columns })
    }

    /// [`Op::Wheel`]
    pub fn wheel() -> Typed<WheelView> {
        Typed::new(Op::Wheel)
    }

    /// [`Op::Stats`]
    pub fn stats() -> Typed<Stats> {
        Typed::new(Op::Stats)
    }

    /// [`Op::Configure`]: the queue as it is now.
    pub fn configure(
        queue: QueueName,
        settings: QueueSettings,
    ) -> Typed<Result<Applied<Box<QueueView>>, SettingsRefusal>> {
        Typed::new(Op::Configure { queue, settings })
    }

    /// [`Op::Pause`]
    pub fn pause(queue: QueueName, for_ms: Option<u64>) -> Typed<Result<Applied<()>, SettingsRefusal>> {
        Typed::new(Op::Pause { queue, for_ms })
    }

    /// [`Op::Resume`]
    pub fn resume(queue: QueueName) -> Typed<Applied<()>> {
        Typed::new(Op::Resume { queue })
    }

    /// [`Op::Purge`]
    pub fn purge(queue: QueueName) -> Typed<Applied<u64>> {
        Typed::new(Op::Purge { queue })
    }

    /// [`Op::Hold`]
    pub fn hold(queue: QueueName, how: Hold) -> Typed<Result<(), SettingsRefusal>> {
        Typed::new(Op::Hold { queue, how })
    }

    /// [`Op::SessionClosed`]
    pub fn session_closed(session: SessionId) -> Typed<()> {
        Typed::new(Op::SessionClosed { session })
    }

    /// [`Op::SessionDeadline`]
    pub fn session_deadline(session: SessionId) -> Typed<Option<u64>> {
        Typed::new(Op::SessionDeadline { session })
    }

    /// [`Op::NextDue`]
    pub fn next_due() -> Typed<Option<WallMs>> {
        Typed::new(Op::NextDue)
    }

    /// [`Op::Quotas`]
    pub fn quotas() -> Typed<Vec<QuotaUse>> {
        Typed::new(Op::Quotas)
    }

    /// [`Op::Events`]
    pub fn events(
        shard: ShardId,
        after: Option<Lsn>,
        limit: usize,
        fired_after: Option<u64>,
    ) -> Typed<Box<ShardEvents>> {
        Typed::new(Op::Events { shard, after, limit, fired_after })
    }
}

impl FromReply for Result<Box<Grant>, ChangeRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::ReserveOne(granted) = reply else { return None };
        Some(granted)
    }
}

impl FromReply for Result<Applied<Settled>, SettleRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Settle(settled) = reply else { return None };
        Some(settled)
    }
}

impl FromReply for Result<Applied<WallMs>, SettleRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Extend(until) = reply else { return None };
        Some(until)
    }
}

impl FromReply for Result<Applied<Box<Outline>>, ChangeRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Change(outline) = reply else { return None };
        Some(outline)
    }
}

impl FromReply for Option<Box<View>> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::View(view) = reply else { return None };
        Some(view)
    }
}

impl FromReply for Page {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Page(page) = reply else { return None };
        Some(page)
    }
}

impl FromReply for Vec<QueueView> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Queues(views) = reply else { return None };
        Some(views)
    }
}

impl FromReply for Option<QueueView> {
    fn from_reply(reply: Reply) -> Option<Self> {
        Vec::<QueueView>::from_reply(reply).map(|mut views| views.pop())
    }
}

impl FromReply for Result<Applied<Box<QueueView>>, SettingsRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Configure(refusal) => Some(Err(refusal)),
            Reply::Configured(Applied { what: Some(view), level }) => Some(Ok(Applied { what: view, level })),
            _ => None,
        }
    }
}

impl FromReply for Result<Applied<()>, SettingsRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Configure(refusal) => Some(Err(refusal)),
            other => Applied::<()>::from_reply(other).map(Ok),
        }
    }
}

impl FromReply for Applied<()> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Configured(Applied { what: None, level }) = reply else { return None };
        Some(Applied { what: (), level })
    }
}

impl FromReply for Result<(), SettingsRefusal> {
    fn from_reply(reply: Reply) -> Option<Self> {
        match reply {
            Reply::Configure(refusal) => Some(Err(refusal)),
            other => <()>::from_reply(other).map(Ok),
        }
    }
}

impl FromReply for () {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Done = reply else { return None };
        Some(())
    }
}

impl FromReply for Applied<u64> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Count(n) = reply else { return None };
        Some(n)
    }
}

impl FromReply for Histogram {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Histogram(histogram) = reply else { return None };
        Some(histogram)
    }
}

impl FromReply for WheelView {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Wheel(wheel) = reply else { return None };
        Some(*wheel)
    }
}

impl FromReply for Stats {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Stats(stats) = reply else { return None };
        Some(*stats)
    }
}

impl FromReply for Option<u64> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Deadline(left_ms) = reply else { return None };
        Some(left_ms)
    }
}

impl FromReply for Option<WallMs> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::NextDue(due) = reply else { return None };
        Some(due)
    }
}

impl FromReply for Vec<QuotaUse> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Quotas(uses) = reply else { return None };
        Some(uses)
    }
}

impl FromReply for Box<ShardEvents> {
    fn from_reply(reply: Reply) -> Option<Self> {
        let Reply::Events(events) = reply else { return None };
        Some(events)
    }
}
