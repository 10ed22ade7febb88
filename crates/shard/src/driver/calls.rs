//! Calls that are not completely answered yet, with the answers that have arrived.

use std::collections::{BTreeSet, VecDeque};

use duewheel_core::engine::{Op, Reply};
use duewheel_core::id::ReplyTo;
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
/// them may be applied. Without a record of its own, an answer to an enqueue or a settlement reports what was done
/// before, perhaps by an earlier attempt.
pub(super) fn is_of_one_group(reply: &Reply, recorded: bool) -> bool {
    match reply {
        Reply::Enqueue(Ok(_)) | Reply::Settle(Ok(_)) => recorded,
        Reply::Count(_) | Reply::Done | Reply::Queues(_) | Reply::Configure(_) | Reply::Configured(_) => {
            false
        }
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
        | Reply::Events(_) => true,
    }
}
