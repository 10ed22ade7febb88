//! The driver's inbox: submissions in order, limited by count and bytes, and the answers in progress.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, mem};

use duewheel_core::engine::{Op, Reply};
use duewheel_core::policy::Policy;
use tokio::sync::oneshot;

use crate::error::CallError;

/// Operations submitted together, and where to send their answers, in order.
///
/// The answers are sent together, when the last of them may be sent.
#[derive(Debug)]
pub struct Submission {
    /// The operations.
    pub ops: Vec<Op>,
    /// Where the answers go. A closed channel is noticed: grants that nobody receives are taken back.
    pub answer: oneshot::Sender<Answers>,
    /// The treatment of new messages if the store is behind.
    pub patience: WhenBusy,
    /// Set when it has waited for the store for the longest allowed time.
    pub has_waited: bool,
}

/// Treatment of new messages while the store is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum WhenBusy {
    /// The operations are refused, so that the caller can slow down.
    #[default]
    Refuse,
    /// The operations wait for a while, which slows down a caller that sends nothing else before the answer.
    Wait,
    /// The operations wait, and messages above the rate limit of their tenant's quota also wait.
    Paced,
}

impl Submission {
    /// Bytes it counts against limits, if it is one that may wait for the store: it brings messages, and nothing in it frees
    /// room or has a deadline.
    pub(crate) fn may_wait(&self) -> Option<usize> {
        let mut ops = self.ops.iter().map(Op::inner);
        let brings = ops.clone().any(|op| matches!(op, Op::Enqueue(_)));
        let only = ops.all(|op| matches!(op, Op::Enqueue(_) | Op::Hold { .. } | Op::LetGo { .. }));
        (self.patience != WhenBusy::Refuse && !self.has_waited && brings && only)
            .then(|| self.ops.iter().map(Op::weight).sum())
    }
}

/// The answers to the operations of a submission, in order.
pub type Answers = Vec<Result<Reply, CallError>>;

/// The input of a driver. Many threads put submissions in, one takes them out.
pub struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
    /// Where callers take turns of a driver that sleeps.
    seat: OnceLock<Weak<dyn TakeTurn>>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// Takes turns of a driver in the place of its thread.
pub(crate) trait TakeTurn: Send + Sync {
    /// Takes the turn that was lent, unless the thread has woken since.
    fn take_turn(&self);
}

#[derive(Debug)]
struct InboxState {
    waiting: Vec<Submission>,
    budget: OpBudget,
    woken: Woken,
    sleep: Sleep,
    door: Admission,
}

/// The event that the driver's thread is waiting for, so that it is not woken without need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sleep {
    #[default]
    Awake,
    /// For anything.
    Waiting,
    /// For anything; a caller may take the turn for what it brings.
    Lending,
    /// For anything, but a caller takes the turn for what has arrived.
    Lent,
    /// For a call of [`Inbox::wake`].
    Gathering,
    /// For this many submissions.
    Crowd(usize),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Woken {
    #[default]
    No,
    Yes,
}

/// Whether submissions are accepted.
#[derive(Clone, Debug, Default)]
pub enum Admission {
    /// All are accepted.
    #[default]
    Open,
    /// Only operations that settle messages are accepted: the wheel is shutting down.
    Draining,
    /// No operation is accepted, for this reason.
    Closed(CallError),
}

impl Admission {
    fn admits(&self, ops: &[Op]) -> Result<(), CallError> {
        match self {
            Admission::Open => Ok(()),
            Admission::Draining if ops.iter().all(|op| op.operation().settles) => Ok(()),
            Admission::Draining => Err(CallError::Draining),
            Admission::Closed(why) => Err(why.clone()),
        }
    }
}

impl Inbox {
    /// An empty inbox with the limits of `policy`.
    pub fn new(policy: &Policy) -> Self {
        Inbox {
            state: Mutex::new(InboxState {
                waiting: Vec::new(),
                budget: OpBudget::new(policy),
                woken: Woken::No,
                sleep: Sleep::Awake,
                door: Admission::Open,
            }),
            changed: Condvar::new(),
            seat: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a submission in.
    ///
    /// # Errors
    /// [`CallError::Overloaded`] when too much is waiting, [`CallError::Draining`] or the closing reason. Nothing of it
    /// was or will be applied.
    pub fn put(&self, submission: Submission) -> Result<(), CallError> {
        self.offer(submission).map_err(|(error, _)| error)
    }

    /// Puts a submission in like [`Inbox::put`], and returns it if it is not taken.
    ///
    /// # Errors
    /// See [`Inbox::put`].
    pub fn offer(&self, submission: Submission) -> Result<(), (CallError, Submission)> {
        self.push(submission, false).map(drop)
    }

    /// Puts a submission in like [`Inbox::offer`]. If the driver's thread sleeps, the caller takes the turn, and waits
    /// for its sync: that saves two thread switches.
    ///
    /// # Errors
    /// See [`Inbox::put`].
    pub(crate) fn offer_here(&self, submission: Submission) -> Result<(), (CallError, Submission)> {
        if self.push(submission, true)?
            && let Some(seat) = self.seat.get().and_then(Weak::upgrade)
        {
            seat.take_turn();
        }
        Ok(())
    }

    /// Puts a submission in; returns whether the turn is lent to its caller.
    fn push(&self, submission: Submission, here: bool) -> Result<bool, (CallError, Submission)> {
        let load = OpLoad::of(&submission.ops);
        let mut state = self.state();
        if let Err(error) = state.door.admits(&submission.ops) {
            return Err((error, submission));
        }
        if !state.budget.admit(&submission.ops, load) {
            return Err((CallError::Overloaded, submission));
        }
        state.waiting.push(submission);
        if here && state.sleep == Sleep::Lending {
            state.sleep = Sleep::Lent;
            return Ok(true);
        }
        // The first submission wakes the driver; it is awake for the others.
        let asleep = match state.sleep {
            Sleep::Awake | Sleep::Gathering | Sleep::Lent => false,
            Sleep::Waiting | Sleep::Lending => true,
            Sleep::Crowd(n) => state.waiting.len() >= n,
        };
        if asleep {
            state.sleep = Sleep::Awake;
        }
        drop(state);
        if asleep {
            self.changed.notify_one();
        }
        Ok(false)
    }

    /// Lets callers take turns here while the driver's thread sleeps and lends them.
    pub(crate) fn lend(&self, seat: Weak<dyn TakeTurn>) {
        let _ = self.seat.set(seat); // one runner has an inbox
    }

    /// Whether a turn is lent, and the driver's thread sleeps on.
    pub(crate) fn is_lent(&self) -> bool {
        self.state().sleep == Sleep::Lent
    }

    /// Ends a lent turn; `next` is how the thread sleeps on, unless something has arrived since.
    pub(crate) fn take_back(&self, next: Sleep) {
        let mut state = self.state();
        if state.sleep != Sleep::Lent {
            return;
        }
        if next != Sleep::Awake && state.waiting.is_empty() && state.woken == Woken::No {
            state.sleep = next;
            return;
        }
        state.sleep = Sleep::Awake;
        drop(state);
        self.changed.notify_one();
    }

    /// Whether the door admits these operations, regardless of the budget.
    ///
    /// # Errors
    /// [`CallError::Draining`] or the closing reason.
    pub fn admits(&self, ops: &[Op]) -> Result<(), CallError> {
        self.state().door.admits(ops)
    }

    /// Makes the driver's loop run another round.
    pub fn wake(&self) {
        let mut state = self.state();
        state.woken = Woken::Yes;
        let asleep = std::mem::take(&mut state.sleep) != Sleep::Awake;
        drop(state);
        if asleep {
            self.changed.notify_one();
        }
    }

    /// Closes the door, completely or partly. A closed door does not open again.
    pub fn close_door(&self, door: Admission) {
        let mut state = self.state();
        if !matches!(state.door, Admission::Closed(_)) {
            state.door = door;
        }
        drop(state);
        self.wake();
    }

    /// Moves everything waiting to `into`, which must be empty.
    pub fn take(&self, into: &mut Vec<Submission>) {
        let mut state = self.state();
        state.budget.clear();
        state.woken = Woken::No;
        mem::swap(&mut state.waiting, into);
    }

    /// Whether [`Inbox::wake`] was called since the last sleep or take.
    pub fn is_woken(&self) -> bool {
        self.state().woken == Woken::Yes
    }

    /// Whether the inbox is empty.
    pub fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Waits until [`Inbox::wake`] is called, regardless of submissions, or the time is over.
    pub fn wait_for_wake(&self, at_most: Duration) {
        let mut state = self.state();
        if state.woken == Woken::No {
            state.sleep = Sleep::Gathering;
            let waited = self.changed.wait_timeout_while(state, at_most, |s| s.woken == Woken::No);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.sleep = Sleep::Awake;
        state.woken = Woken::No;
    }

    /// Waits until this many submissions are there, [`Inbox::wake`] is called, or the time is over.
    pub(crate) fn wait_for_crowd(&self, n: usize, at_most: Duration) {
        let mut state = self.state();
        let fewer = |s: &mut InboxState| s.woken == Woken::No && s.waiting.len() < n;
        if fewer(&mut state) {
            state.sleep = Sleep::Crowd(n);
            let waited = self.changed.wait_timeout_while(state, at_most, fewer);
            waited.unwrap_or_else(PoisonError::into_inner).0.sleep = Sleep::Awake;
        }
    }

    /// Waits in this kind of sleep until a submission arrives, [`Inbox::wake`] is called, or the time is over.
    pub(crate) fn wait(&self, sleep: Sleep, at_most: Duration) {
        let mut state = self.state();
        let has_work =
            |s: &InboxState| s.woken == Woken::Yes || (!s.waiting.is_empty() && s.sleep != Sleep::Lent);
        if !has_work(&state) {
            state.sleep = sleep;
            // A lent turn may leave the thread something else to do.
            let sleeps = |s: &mut InboxState| s.sleep != Sleep::Awake && !has_work(s);
            let waited = self.changed.wait_timeout_while(state, at_most, sleeps);
            waited.unwrap_or_else(PoisonError::into_inner).0.sleep = Sleep::Awake;
        }
    }
}

/// Answers in progress. Dropping it does not cancel the operations.
#[derive(Debug)]
pub struct Pending {
    answers: Receiver,
    ops: usize,
    /// The share of the budget, which is returned when the answers have arrived.
    room: Option<CallBudgetShare>,
}

impl Pending {
    /// The answers to `ops` operations, which arrive through this channel.
    pub fn new(answers: oneshot::Receiver<Answers>, ops: usize) -> Self {
        Pending { answers: Receiver { answers, undo: None }, ops, room: None }
    }

    /// Sets what to do with answers that have arrived but were not received when this is dropped.
    pub fn or_undo(mut self, undo: impl FnOnce(Answers) + Send + 'static) -> Self {
        self.answers.undo = Some(Undo(Box::new(undo)));
        self
    }

    /// Closes the channel, so that the sender knows that nobody receives the answers; returns those that arrived
    /// before.
    pub(crate) fn last(&mut self) -> Option<Answers> {
        self.answers.last()
    }

    /// Holds this share of the budget until the answers arrive.
    pub fn holding(self, room: Option<CallBudgetShare>) -> Self {
        Pending { room, ..self }
    }
}

/// The receiving end of a channel that delivers answers once.
#[derive(Debug)]
struct Receiver {
    answers: oneshot::Receiver<Answers>,
    undo: Option<Undo>,
}

/// The function that undoes answers which arrived but were not received: their sender does not know of it.
struct Undo(Box<dyn FnOnce(Answers) + Send>);

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Undo")
    }
}

impl Receiver {
    /// Closes the channel, so that the sender knows that nobody receives the answers; returns those that arrived
    /// before.
    fn last(&mut self) -> Option<Answers> {
        self.undo = None;
        self.answers.close();
        self.answers.try_recv().ok()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(Undo(undo)) = self.undo.take()
            && let Some(answers) = self.last()
        {
            undo(answers);
        }
    }
}

impl Future for Pending {
    type Output = Answers;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answers> {
        let ops = self.ops;
        let polled = Pin::new(&mut self.answers.answers).poll(cx);
        if polled.is_ready() {
            self.room = None;
            self.answers.undo = None;
        }
        polled.map(|answers| {
            answers.unwrap_or_else(|_| {
                (0..ops).map(|_| Err(CallError::Lost("the driver ended before it answered"))).collect()
            })
        })
    }
}

/// A load: a number of operations, and their weight in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpLoad {
    /// The number of operations.
    pub requests: usize,
    /// The weight of the operations in bytes.
    pub bytes: usize,
}

impl OpLoad {
    /// The load of these operations.
    pub fn of(ops: &[Op]) -> Self {
        OpLoad { requests: ops.len(), bytes: ops.iter().map(Op::weight).sum() }
    }
}

/// A budget of operations: the present load and the largest one that is accepted.
#[derive(Clone, Debug)]
pub struct OpBudget {
    used: OpLoad,
    max: OpLoad,
}

impl OpBudget {
    /// The budget of an inbox: [`Policy::max_inbox_requests`] and [`Policy::max_inbox_bytes`].
    pub fn new(policy: &Policy) -> Self {
        let max = OpLoad { requests: policy.max_inbox_requests, bytes: policy.max_inbox_bytes };
        OpBudget { used: OpLoad::default(), max }
    }

    /// Adds these operations, whose load is `load`; returns whether they fit. One submission always fits, and so do
    /// operations that settle or return messages: they free room, and losing one costs a redelivery.
    pub fn admit(&mut self, ops: &[Op], load: OpLoad) -> bool {
        let after =
            OpLoad { requests: self.used.requests + load.requests, bytes: self.used.bytes + load.bytes };
        let full = after.requests > self.max.requests || after.bytes > self.max.bytes;
        if full && self.used.requests > 0 && !ops.iter().all(|op| op.operation().settles) {
            return false;
        }
        self.used = after;
        true
    }

    /// Removes the load of operations that were admitted.
    pub fn release(&mut self, load: OpLoad) {
        self.used.requests -= load.requests;
        self.used.bytes -= load.bytes;
    }

    /// Removes the load of all operations.
    pub fn clear(&mut self) {
        self.used = OpLoad::default();
    }
}

/// The budget of a router, for operations that are in progress on many tasks.
#[derive(Debug)]
pub struct CallBudget(Mutex<OpBudget>);

/// The share of the budget that operations in progress use; dropped when they are answered.
#[derive(Debug)]
pub struct CallBudgetShare {
    of: Arc<CallBudget>,
    load: OpLoad,
}

impl CallBudget {
    /// A budget as large as that of an inbox.
    pub fn new(policy: &Policy) -> Arc<Self> {
        Arc::new(CallBudget(Mutex::new(OpBudget::new(policy))))
    }

    /// Reserves a share for these operations; `None` when too much is in progress, under the rules of
    /// [`OpBudget::admit`].
    pub fn take(self: &Arc<Self>, ops: &[Op]) -> Option<CallBudgetShare> {
        let load = OpLoad::of(ops);
        self.budget().admit(ops, load).then(|| CallBudgetShare { of: self.clone(), load })
    }

    fn budget(&self) -> MutexGuard<'_, OpBudget> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CallBudgetShare {
    fn drop(&mut self) {
        self.of.budget().release(self.load);
    }
}

#[cfg(test)]
mod tests {
    use duewheel_core::engine::Enqueue;
    use duewheel_core::{MessageId, QueueName, SessionId};

    use super::*;

    #[test]
    fn call_budget_refuses_enqueues_not_settlements() {
        let budget = CallBudget::new(&Policy { max_inbox_requests: 3, ..Policy::default() });
        let put = || Op::Enqueue(Box::new(Enqueue::new(QueueName::new("q").unwrap(), "")));
        let first = budget.take(&[put(), put()]).unwrap();
        let second = budget.take(&[put()]).unwrap();
        assert!(budget.take(&[put()]).is_none());
        let settling = Op::Delete { id: MessageId(1), session: SessionId(1) };
        let third = budget.take(&[settling.clone(), settling]).unwrap();
        drop((first, second));
        assert!(budget.take(&[put(), put()]).is_none());
        drop(third);
        let large: Vec<Op> = (0..10).map(|_| put()).collect();
        let alone = budget.take(&large).unwrap();
        assert!(budget.take(&[put()]).is_none());
        drop(alone);
        assert_eq!(budget.budget().used, OpLoad::default());
    }

    /// The limit of bytes is enforced like that of requests.
    #[test]
    fn byte_limit_is_enforced_and_returned() {
        let put = |bytes: usize| {
            Op::Enqueue(Box::new(Enqueue::new(QueueName::new("q").unwrap(), vec![b'x'; bytes])))
        };
        let mut budget = OpBudget::new(&Policy { max_inbox_bytes: 10_000, ..Policy::default() });
        let mut admit = |ops: &[Op]| {
            let load = OpLoad::of(ops);
            budget.admit(ops, load).then_some(load)
        };
        let small = admit(&[put(4_000), put(4_000)]).expect("8 kB fit");
        assert!(admit(&[put(4_000)]).is_none());
        let settling = Op::Delete { id: MessageId(1), session: SessionId(1) };
        let settled = admit(&[settling]).expect("it makes room");
        budget.release(small);
        budget.release(settled);
        let large = [put(20_000)];
        assert!(budget.admit(&large, OpLoad::of(&large)), "one submission always fits");
        assert!(!budget.admit(&large, OpLoad::of(&large)));
        budget.clear();
        assert_eq!(budget.used, OpLoad::default());
    }
}
