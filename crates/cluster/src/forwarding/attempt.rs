//! A submission on its way to a shard, and the decision whether its answer is final or it is sent again.

use std::time::Duration;

use duewheel_core::engine::{ChangeRefusal, EnqueueRefusal, Op, RefusedPart, Reply, WaiterId};
use duewheel_core::id::ShardId;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_shard::driver::take_back;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, WhenBusy};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::transport::wire::FrameLimits;

/// The largest number of bytes of a frame in addition to the body and the headers of one operation.
const OF_FRAME: usize = 4_096;

/// The usual number of bytes of an operation in a frame in addition to its weight.
const OF_OPERATION: usize = 64;

/// The part of a submission that fits into the frames of the node that owns the shard, if that node accepts smaller
/// frames than this one.
#[derive(Debug)]
pub(crate) enum FrameFit {
    /// The operations that fit into a frame; the others are answered.
    Rest(PendingSubmission),
    /// No operation fits; all are answered.
    Nothing,
    /// All operations fit, but not in one frame.
    Pieces(PendingSubmission),
}

/// Operations of one submission, kept until their answer is final, because they may have to be sent again.
#[derive(Debug)]
pub(crate) struct PendingSubmission {
    pub(crate) shard: ShardId,
    /// The position among all submissions for this shard at this node.
    pub(crate) seq: u64,
    pub(crate) ops: Vec<Op>,
    pub(crate) patience: WhenBusy,
    pub(crate) weight: usize,
    /// The reserves in it that may wait.
    pub(crate) waiters: Vec<WaiterId>,
    pub(crate) to: oneshot::Sender<Answers>,
    /// When it was made, by [`Clock::running`](duewheel_shard::clock::Clock::running), as all instants here.
    made: Duration,
    /// How long it has waited for a route in all, without the present wait.
    waited: Duration,
    /// When the present wait for a route began.
    since: Duration,
    /// The instant up to which the waits of its reserves have been reduced.
    counted: Duration,
    /// The error for which it was sent back last.
    pub(crate) why: Option<StoreError>,
}

impl PendingSubmission {
    pub(crate) fn new(
        shard: ShardId,
        ops: Vec<Op>,
        patience: WhenBusy,
        to: oneshot::Sender<Answers>,
        now: Duration,
    ) -> Self {
        PendingSubmission {
            shard,
            seq: 0,
            weight: ops.iter().map(Op::weight).sum(),
            waiters: waiters(&ops),
            ops,
            patience,
            to,
            made: now,
            waited: Duration::ZERO,
            since: now,
            counted: now,
            why: None,
        }
    }

    /// Begins to wait for a route.
    pub(crate) fn begin_wait(&mut self, now: Duration) {
        self.since = now;
    }

    /// Ends the wait for a route: the submission is sent again.
    pub(crate) fn end_wait(&mut self, now: Duration) {
        self.waited += now.saturating_sub(self.since);
    }

    /// Reduces the waits of its reserves by the time that has passed since the submission was sent.
    pub(crate) fn reduce_waits(&mut self, now: Duration) {
        let passed = now.saturating_sub(std::mem::replace(&mut self.counted, now));
        let passed = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        for op in &mut self.ops {
            match op {
                // At least 1 ms is left, because a reserve that waits 0 ms is another kind of reserve.
                Op::Reserve(reserve) if reserve.wait_ms > 0 => {
                    reserve.wait_ms = reserve.wait_ms.saturating_sub(passed).max(1);
                }
                _ => {}
            }
        }
    }

    /// Whether the submission has looked for an owner for `timeout`. For reserves that may wait at a shard for long,
    /// only the time without a route counts.
    pub(crate) fn has_timed_out(&self, patience: Duration, now: Duration) -> bool {
        if self.waiters.is_empty() {
            now.saturating_sub(self.made) >= patience
        } else {
            self.waited + now.saturating_sub(self.since) >= patience
        }
    }

    /// Whether it holds nothing but reserves whose caller has gone: such a submission is not sent again.
    pub(crate) fn is_given_up(&self) -> bool {
        self.to.is_closed() && self.ops.iter().all(|op| matches!(op, Op::Reserve(_)))
    }

    /// Whether it may be sent again when it may have been applied already, because applying it twice changes nothing.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.ops.iter().all(Op::is_repeatable)
    }

    /// Answers each operation that is too large for the node that owns the shard. The others stay, and their answers go
    /// to the same caller.
    pub(crate) fn without_large(self, limits: FrameLimits, runtime: &Handle) -> FrameFit {
        // A single operation in a frame that is too large is too large, whatever its weight.
        let alone = self.ops.len() == 1;
        let too_large = |op: &Op| alone || op.weight() > limits.bytes.saturating_sub(OF_FRAME);
        let refusals: Vec<_> =
            self.ops.iter().map(|op| too_large(op).then(|| refuse_large(op, limits))).collect();
        if refusals.iter().all(Option::is_none) {
            // Only the sum is too large: this node accepts larger submissions than the other one.
            return FrameFit::Pieces(self);
        }
        if refusals.iter().all(Option::is_some) {
            // The caller may have gone.
            let _ = self.to.send(refusals.into_iter().flatten().collect());
            return FrameFit::Nothing;
        }
        let mut refused = refusals.iter().map(Option::is_some);
        let mut ops = self.ops;
        ops.retain(|_| !refused.next().unwrap_or(false));
        let (to, rest) = oneshot::channel::<Answers>();
        let caller = self.to;
        runtime.spawn(async move {
            let lost = || Err(CallError::Lost("the shard gave no answer"));
            let mut rest = rest.await.unwrap_or_default().into_iter();
            let all = refusals
                .into_iter()
                .map(|refusal| refusal.unwrap_or_else(|| rest.next().unwrap_or_else(lost)));
            // Grants are asked for in requests of their own, so nothing has to be given back here.
            let _ = caller.send(all.collect());
        });
        FrameFit::Rest(PendingSubmission {
            weight: ops.iter().map(Op::weight).sum(),
            waiters: waiters(&ops),
            ops,
            to,
            ..self
        })
    }

    /// Splits the operations, in order, into pieces that the node that owns the shard accepts, and returns the sender
    /// for all their answers. There are at least two pieces, so that splitting ends even when a piece turns out to be
    /// too large.
    pub(crate) fn split(self, limits: FrameLimits) -> (Vec<Vec<Op>>, oneshot::Sender<Answers>) {
        let half = self.ops.len().div_ceil(2).max(1);
        let most = limits.bytes.saturating_sub(OF_FRAME);
        let (mut pieces, mut piece, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        for op in self.ops {
            let more = op.weight().saturating_add(OF_OPERATION);
            let is_full = bytes.saturating_add(more) > most || piece.len() >= limits.parts.min(half);
            if is_full && !piece.is_empty() {
                pieces.push(std::mem::take(&mut piece));
                bytes = 0;
            }
            bytes = bytes.saturating_add(more);
            piece.push(op);
        }
        pieces.push(piece);
        (pieces, self.to)
    }

    /// Answers each operation with the same error.
    pub(crate) fn refuse(self, error: &CallError) {
        // The caller may have gone.
        let _ = self.to.send(self.ops.iter().map(|_| Err(error.clone())).collect());
    }

    /// Answers that no owner was found in time.
    pub(crate) fn refuse_without_owner(self) {
        let shard = self.shard;
        let why = self.why.as_ref().map_or_else(|| "it has no owner".to_owned(), ToString::to_string);
        let what = format_args!("shard {shard} is not available: {why}");
        let error = StoreError::new(ErrorKind::Unavailable, what);
        self.refuse(&CallError::Store { error, outcome: Outcome::NotApplied });
    }

    /// Answers that the outcome is unknown, because the answer was lost.
    pub(crate) fn refuse_unknown(self, why: &str) {
        let shard = self.shard;
        let error = StoreError::new(ErrorKind::Unavailable, format_args!("shard {shard}: {why}"));
        self.refuse(&CallError::Store { error, outcome: Outcome::Unknown });
    }
}

/// The answer to an operation that is too large for any frame to the node of its shard.
fn refuse_large(op: &Op, limits: FrameLimits) -> Result<Reply, CallError> {
    match op.inner() {
        Op::Enqueue(_) => Ok(Reply::Enqueue(Err(EnqueueRefusal::TooLarge(RefusedPart::Body, limits.body)))),
        Op::Postpone { .. } => {
            Ok(Reply::Change(Err(ChangeRefusal::TooLarge(RefusedPart::Body, limits.body))))
        }
        _ => {
            let bytes = limits.bytes;
            let what =
                format!("the request is larger than the {bytes} bytes that the owner of the shard accepts");
            let error = StoreError::new(ErrorKind::Unavailable, what);
            Err(CallError::Store { error, outcome: Outcome::NotApplied })
        }
    }
}

/// Why a whole submission was certainly not applied, because its shard moves or its owner cannot serve; `None`
/// otherwise.
pub(crate) fn moved(answers: &Answers) -> Option<StoreError> {
    let mut why = None;
    for answer in answers {
        let error = match answer {
            Err(CallError::Draining) => {
                StoreError::new(ErrorKind::Unavailable, "the owner is closing the shard")
            }
            Err(CallError::Closed(said)) => StoreError::new(ErrorKind::Unavailable, said),
            Err(CallError::Store { error, outcome: Outcome::NotApplied }) => match error.kind() {
                ErrorKind::Fenced | ErrorKind::Unavailable | ErrorKind::Corrupt | ErrorKind::Closed => {
                    error.clone()
                }
                ErrorKind::Full => return None,
            },
            // Overloaded, lost, a bug, or a store that may have applied it: that is not certain.
            Ok(_) | Err(_) => return None,
        };
        why = Some(error);
    }
    why
}

/// Why the outcome of a whole submission is unknown; `None` if it is known.
pub(crate) fn unknown(answers: &Answers) -> Option<StoreError> {
    let mut why = None;
    for answer in answers {
        let error = match answer {
            Err(CallError::Lost(said)) => StoreError::new(ErrorKind::Unavailable, said),
            Err(CallError::Store { error, outcome: Outcome::Unknown }) => error.clone(),
            Ok(_) | Err(_) => return None,
        };
        why = Some(error);
    }
    why
}

/// The operations that undo answers that reached no caller.
pub(crate) fn undo(answers: &Answers) -> Vec<Op> {
    answers.iter().filter_map(take_back).collect()
}

/// The reserves that may wait.
pub(crate) fn waiters(ops: &[Op]) -> Vec<WaiterId> {
    let waiter = |op: &Op| match op {
        Op::Reserve(reserve) if reserve.wait_ms > 0 => Some(reserve.waiter),
        _ => None,
    };
    ops.iter().filter_map(waiter).collect()
}

/// Gives waiting reserves names that no other node uses: front ends count from 1.
pub(crate) fn name_waiters(ops: &mut [Op], node: u32) {
    for op in ops {
        match op {
            Op::Reserve(reserve) => reserve.waiter = named(reserve.waiter, node),
            Op::CancelReserve { waiter } => *waiter = named(*waiter, node),
            _ => {}
        }
    }
}

fn named(waiter: WaiterId, node: u32) -> WaiterId {
    // A larger number already contains the number of a node.
    let fresh = waiter.0 <= u64::from(u32::MAX);
    WaiterId(if fresh { waiter.0 | u64::from(node) << 32 } else { waiter.0 })
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::{Reply, Reserve};
    use duewheel_core::id::SessionId;

    use super::*;

    fn store(kind: ErrorKind, outcome: Outcome) -> CallError {
        CallError::Store { error: StoreError::new(kind, "x"), outcome }
    }

    #[test]
    fn only_unapplied_submissions_are_resent() {
        let again = [
            CallError::Draining,
            CallError::Closed("x"),
            store(ErrorKind::Fenced, Outcome::NotApplied),
            store(ErrorKind::Unavailable, Outcome::NotApplied),
        ];
        let never = [
            CallError::Overloaded,
            CallError::Lost("x"),
            store(ErrorKind::Fenced, Outcome::Unknown),
            store(ErrorKind::Unavailable, Outcome::Unknown),
            store(ErrorKind::Full, Outcome::NotApplied),
        ];
        for error in &again {
            assert!(moved(&vec![Err(error.clone()), Err(error.clone())]).is_some(), "{error:?}");
            assert!(moved(&vec![Ok(Reply::Done), Err(error.clone())]).is_none(), "a part was applied");
            for other in &never {
                assert!(moved(&vec![Err(error.clone()), Err(other.clone())]).is_none(), "{other:?}");
            }
        }
        assert!(moved(&vec![Ok(Reply::Done)]).is_none() && moved(&Vec::new()).is_none());
        assert!(unknown(&vec![Err(CallError::Lost("x"))]).is_some());
        assert!(unknown(&vec![Err(CallError::Lost("x")), Ok(Reply::Done)]).is_none());
        assert!(unknown(&vec![Err(CallError::Draining)]).is_none());
    }

    #[test]
    fn resent_reserve_waits_remaining_time() {
        // Story: a reserve whose shard moved was sent to the next owner with all of its time, however much of it was
        // over.
        let reserve = |wait_ms| {
            Op::Reserve(Reserve {
                waiter: WaiterId(1),
                queues: Vec::new(),
                max: 1,
                max_bytes: 1,
                wait_ms,
                lease_ms: None,
                session: SessionId::NONE,
                max_of: Vec::new(),
                max_attempts: None,
                deadline_margin_ms: None,
            })
        };
        let ops = [3_600_000, 5_000, 0].map(reserve).to_vec();
        let (made, now) = (Duration::from_secs(5), Duration::from_secs(65));
        let mut submission =
            PendingSubmission::new(ShardId(0), ops, WhenBusy::Refuse, oneshot::channel().0, made);
        submission.reduce_waits(now);
        submission.reduce_waits(now);
        let left: Vec<u64> = submission
            .ops
            .iter()
            .map(|op| match op {
                Op::Reserve(reserve) => reserve.wait_ms,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(left, [3_540_000, 1, 0]);
    }

    #[test]
    fn waiter_names_differ_between_nodes() {
        let reserve = |waiter| {
            Op::Reserve(Reserve {
                waiter: WaiterId(waiter),
                queues: Vec::new(),
                max: 1,
                max_bytes: 1,
                wait_ms: 5,
                lease_ms: None,
                session: SessionId::NONE,
                max_of: Vec::new(),
                max_attempts: None,
                deadline_margin_ms: None,
            })
        };
        let of = |node| {
            let mut ops = vec![reserve(1), Op::CancelReserve { waiter: WaiterId(1) }];
            name_waiters(&mut ops, node);
            let Op::CancelReserve { waiter } = ops[1] else { panic!("{ops:?}") };
            assert_eq!(waiters(&ops), [waiter], "a reserve and its end have the same name");
            name_waiters(&mut ops, node);
            assert_eq!(waiters(&ops), [waiter], "named once");
            waiter
        };
        assert_ne!(of(1), of(2));
    }
}
