//! Calls that are not completely answered yet, with the answers that have arrived, and the state that a failed run leaves
//! to the next one.

use std::collections::{BTreeSet, VecDeque};

use duewheel_core::engine::{Answered, Named, Op, RecordedCounts, Reply, Settled};
use duewheel_core::id::{Lsn, ReplyTo};
use duewheel_core::record::Created;
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::inbox::Answers;

/// Submissions of which at least one answer has not been sent.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Option<OpenCall>>,
    free: Vec<u32>,
    arrivals: u64,
}

/// The number of a call, in the order in which calls arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallNumber(pub(super) u64);

impl CallNumber {
    pub(super) const FIRST: CallNumber = CallNumber(0);
}

#[derive(Debug)]
struct OpenCall {
    arrival: CallNumber,
    /// The number of times that the store has fetched what it needs.
    fetches: u8,
    answers: Vec<Option<Result<Reply, CallError>>>,
    missing: usize,
    to: Option<oneshot::Sender<Answers>>,
}

/// An answer's address: the call in the upper half, the operation in the lower.
const CALL_SHIFT: u32 = 32;

impl Calls {
    /// Makes room for a call; returns the address of its first answer.
    pub(super) fn insert(&mut self, ops: usize, to: Option<oneshot::Sender<Answers>>) -> u64 {
        if ops == 0 {
            if let Some(to) = to {
                let _ = to.send(Vec::new());
            }
            return 0;
        }
        self.arrivals += 1;
        let arrival = CallNumber(self.arrivals);
        let answers = (0..ops).map(|_| None).collect();
        let call = OpenCall { arrival, fetches: 0, answers, missing: ops, to };
        let index = match self.free.pop() {
            Some(index) => {
                self.calls[index as usize] = Some(call);
                index
            }
            None => {
                self.calls.push(Some(call));
                u32::try_from(self.calls.len() - 1).unwrap_or(u32::MAX)
            }
        };
        u64::from(index) << CALL_SHIFT
    }

    /// When the call of an operation arrived.
    pub(super) fn arrival(&self, to: ReplyTo) -> CallNumber {
        self.call(to).map_or(CallNumber::FIRST, |call| call.arrival)
    }

    /// The number of times that the store has fetched what the call of an operation needs.
    pub(super) fn fetches(&self, to: ReplyTo) -> u8 {
        self.call(to).map_or(0, |call| call.fetches)
    }

    /// Counts a fetch for the call of an operation.
    pub(super) fn fetch(&mut self, to: ReplyTo) {
        if let Some((index, _)) = places(to)
            && let Some(Some(call)) = self.calls.get_mut(index)
        {
            call.fetches = call.fetches.saturating_add(1);
        }
    }

    fn call(&self, to: ReplyTo) -> Option<&OpenCall> {
        let (index, _) = places(to)?;
        self.calls.get(index)?.as_ref()
    }

    /// Puts an error in the place of one answer; the call is sent with the others.
    pub(super) fn refuse(&mut self, to: ReplyTo, error: &CallError) {
        let Some((index, part)) = places(to) else { return };
        if let Some(Some(call)) = self.calls.get_mut(index)
            && let Some(answer) = call.answers.get_mut(part)
            && answer.is_none()
        {
            *answer = Some(Err(error.clone()));
        }
    }

    /// Sends all calls, with this error for each missing answer. A call with an operation that is decided again stays,
    /// and waits for the answer to that operation.
    pub(super) fn fail(&mut self, error: &CallError, again: &VecDeque<(ReplyTo, Op)>) {
        let again: BTreeSet<(usize, usize)> = again.iter().filter_map(|(to, _)| places(*to)).collect();
        for (index, slot) in self.calls.iter_mut().enumerate() {
            let Some(call) = slot else { continue };
            call.missing = 0;
            for (part, answer) in call.answers.iter_mut().enumerate() {
                if again.contains(&(index, part)) {
                    call.missing += 1;
                } else {
                    answer.get_or_insert_with(|| Err(error.clone()));
                }
            }
            if call.missing == 0
                && let Some(OpenCall { answers, to: Some(to), .. }) = slot.take()
            {
                // The caller is gone: there is nothing to send.
                let _ = to.send(answers.into_iter().flatten().collect());
            }
        }
        self.free =
            (0..).zip(&self.calls).filter(|(_, call)| call.is_none()).map(|(index, _)| index).collect();
    }

    /// Adds one answer; sends all answers of a call when it was the last. Returns grants that no caller receives.
    pub(super) fn answer(&mut self, to: ReplyTo, reply: Result<Reply, CallError>, own: &mut Vec<Op>) {
        let Some((index, part)) = places(to) else { return };
        let Some(slot) = self.calls.get_mut(index) else { return };
        let Some(call) = slot else { return };
        if let Some(answer) = call.answers.get_mut(part)
            && answer.is_none()
        {
            *answer = Some(reply);
            call.missing -= 1;
        }
        if call.missing > 0 {
            return;
        }
        let Some(call) = slot.take() else { return };
        self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
        let answers = call.answers.into_iter().flatten().collect();
        let unsent = match call.to {
            Some(to) => to.send(answers).err(),
            None => None,
        };
        for answer in unsent.into_iter().flatten() {
            if let Some(op) = take_back(&answer) {
                own.push(op);
            }
        }
    }
}

/// The index of the call of an answer's address, and that of its operation in it.
pub(super) fn call_of(to: ReplyTo) -> (u64, u64) {
    (to.0 >> CALL_SHIFT, to.0 & u64::from(u32::MAX))
}

/// The place of a call, and that of an answer in it.
fn places(to: ReplyTo) -> Option<(usize, usize)> {
    let index = usize::try_from(to.0 >> CALL_SHIFT).ok()?;
    Some((index, usize::try_from(to.0 & u64::from(u32::MAX)).ok()?))
}

/// The operation that undoes an answer which reached no caller.
pub fn take_back(answer: &Result<Reply, CallError>) -> Option<Op> {
    let leases = answer.as_ref().ok()?.leases();
    (!leases.is_empty()).then_some(Op::Undelivered { leases })
}

/// Whether an operation with this answer was certainly not applied if no record from some position up to that of the
/// answer was, because all its records are in one group. Other operations continue over several steps, and a part of
/// them may be applied. An answer to an enqueue, a settlement or a row may report what was done before, perhaps by an
/// earlier attempt.
pub(super) fn is_of_one_group(reply: &Reply) -> bool {
    match reply {
        Reply::Enqueue(Ok(done)) => done.answered == Answered::Now && done.created != Created::Kept,
        Reply::Settle(Ok(done)) => !matches!(done.what, Settled::Already { .. }),
        Reply::Recorded(_)
        | Reply::Count(_)
        | Reply::Done
        | Reply::Queues(_)
        | Reply::Configure(_)
        | Reply::Configured(_) => false,
        Reply::Enqueue(Err(_))
        | Reply::Reserve(_)
        | Reply::ReserveOne(_)
        | Reply::Settle(Err(_))
        | Reply::Extend(_)
        | Reply::Change(_)
        | Reply::View(_)
        | Reply::Page(_)
        | Reply::Histogram(_)
        | Reply::Wheel(_)
        | Reply::Stats(_)
        | Reply::Deadline(_)
        | Reply::NextDue(_)
        | Reply::Quotas(_)
        | Reply::History(_)
        | Reply::Events(_) => true,
    }
}

/// The state that a driver leaves when its store has failed.
#[derive(Debug, Default)]
pub struct Leftover {
    /// Counts of groups that the store has reported with its failure.
    pub(crate) confirmed: RecordedCounts,
    /// Counts of groups whose outcome is not known yet.
    pub(crate) doubtful: Doubtful,
    pub(super) calls: Calls,
    /// Operations that were certainly not applied, in order: the next driver decides them again.
    pub(super) again: VecDeque<(ReplyTo, Op)>,
    /// The operations that the failure concerns.
    pub(super) scope: RefusalScope,
}

/// The operations that a failure of the store concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RefusalScope {
    /// Only operations that need room.
    NeedsRoom,
    #[default]
    Everything,
}

impl Leftover {
    /// Whether waiting requests are also left to the next driver, instead of being refused.
    pub(crate) fn goes_on(&self) -> bool {
        self.scope == RefusalScope::NeedsRoom
    }

    /// Answers with this error all operations that were to be decided again, because there is no next driver yet. The
    /// counts stay.
    #[must_use]
    pub(crate) fn refuse(mut self, error: &CallError) -> Leftover {
        self.calls.fail(error, &VecDeque::new());
        Leftover { doubtful: self.doubtful, ..Leftover::default() }
    }
}

/// Operations that end leases or cancel, in groups that the store has not confirmed. A store without memory refuses a
/// whole group, and operations that free memory must be repeated.
#[derive(Debug, Default)]
pub(super) struct Settling(VecDeque<(Lsn, ReplyTo, Op)>);

impl Settling {
    /// A copy of an operation that is kept until its group is confirmed; `None`: the operation is of another kind.
    pub(super) fn copy(op: &Op) -> Option<Op> {
        (op.operation().settles && op.names() != Named::Nothing).then(|| op.clone())
    }

    /// Keeps an operation whose records end at this position.
    pub(super) fn decided(&mut self, last: Lsn, to: ReplyTo, op: Op) {
        self.0.push_back((last, to, op));
    }

    /// Notes that the store has confirmed everything up to this position.
    pub(super) fn report(&mut self, upto: Lsn) {
        while self.0.front().is_some_and(|(last, ..)| *last <= upto) {
            self.0.pop_front();
        }
    }

    /// The operations that are to be decided again, in order.
    pub(super) fn into_again(self, mut is_refused: impl FnMut(ReplyTo) -> bool) -> VecDeque<(ReplyTo, Op)> {
        self.0.into_iter().filter(|(_, to, _)| is_refused(*to)).map(|(_, to, op)| (to, op)).collect()
    }
}

/// The counts up to the last group that the store has confirmed, and those of the later groups.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    counts: RecordedCounts,
    /// The last position of each group that was appended since, and the counts up to there.
    open: VecDeque<(Lsn, RecordedCounts)>,
}

impl Confirmed {
    /// Notes a group that ends at this position.
    pub(super) fn append(&mut self, last: Lsn, counts: RecordedCounts) {
        self.open.push_back((last, counts));
    }

    /// Notes that the store has confirmed everything up to this position.
    pub(super) fn report(&mut self, upto: Lsn) {
        while let Some((last, counts)) = self.open.front()
            && *last <= upto
        {
            self.counts = *counts;
            self.open.pop_front();
        }
    }

    pub(super) fn counts(&self) -> RecordedCounts {
        self.counts
    }

    /// The groups that the store has not confirmed when it failed; it has certainly applied nothing from `nothing_from`
    /// on.
    pub(super) fn into_doubtful(self, nothing_from: Option<Lsn>) -> Doubtful {
        let mut groups = self.open;
        if let Some(first) = nothing_from {
            groups.retain(|(last, _)| *last < first);
        }
        Doubtful { since: self.counts, groups }
    }
}

/// The groups of a failed run that the store may have applied or not.
#[derive(Debug, Default)]
pub(crate) struct Doubtful {
    since: RecordedCounts,
    groups: VecDeque<(Lsn, RecordedCounts)>,
}

impl Doubtful {
    /// The counts of the groups that the store had applied. The position of the next record shows which, once the store
    /// is open again.
    pub(crate) fn applied(&self, next: Lsn) -> RecordedCounts {
        let applied = self.groups.iter().rev().find(|(last, _)| *last < next);
        applied.map_or_else(RecordedCounts::default, |(_, counts)| counts.since(&self.since))
    }
}
