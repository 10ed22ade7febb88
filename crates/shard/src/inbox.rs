//! The driver's inbox: submissions in order, limited by count and bytes.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel_core::engine::{Op, Reply};
use duewheel_core::policy::Policy;
use tokio::sync::oneshot;

use crate::budget::{OpBudget, OpLoad};
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
        let brings = self.ops.iter().any(|op| matches!(op, Op::Enqueue(_)));
        let only =
            self.ops.iter().all(|op| matches!(op, Op::Enqueue(_) | Op::Hold { .. } | Op::LetGo { .. }));
        (self.patience != WhenBusy::Refuse && !self.has_waited && brings && only)
            .then(|| self.ops.iter().map(Op::weight).sum())
    }
}

/// The answers to the operations of a submission, in order.
pub type Answers = Vec<Result<Reply, CallError>>;

/// The input of a driver. Many threads put submissions in, one takes them out.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
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
enum Sleep {
    #[default]
    Awake,
    /// For anything.
    Waiting,
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
        let load = OpLoad::of(&submission.ops);
        let mut state = self.state();
        if let Err(error) = state.door.admits(&submission.ops) {
            return Err((error, submission));
        }
        if !state.budget.admit(&submission.ops, load) {
            return Err((CallError::Overloaded, submission));
        }
        state.waiting.push(submission);
        // The first submission wakes the driver; it is awake for the others.
        let asleep = match state.sleep {
            Sleep::Awake | Sleep::Gathering => false,
            Sleep::Waiting => true,
            Sleep::Crowd(n) => state.waiting.len() >= n,
        };
        if asleep {
            state.sleep = Sleep::Awake;
        }
        drop(state);
        if asleep {
            self.changed.notify_one();
        }
        Ok(())
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

    /// Waits until a submission arrives, [`Inbox::wake`] is called, or the time is over.
    pub fn wait(&self, at_most: Duration) {
        let mut state = self.state();
        let nothing = |s: &mut InboxState| s.woken == Woken::No && s.waiting.is_empty();
        if nothing(&mut state) {
            state.sleep = Sleep::Waiting;
            let waited = self.changed.wait_timeout_while(state, at_most, nothing);
            waited.unwrap_or_else(PoisonError::into_inner).0.sleep = Sleep::Awake;
        }
    }
}
