//! The place of a shard's runner: its thread takes turns here, and lends one to a lone caller while it sleeps.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::inbox::{Inbox, Sleep, TakeTurn};
use crate::runner::{AfterTurn, Runner, SleepLimit, WakeOn};
use crate::shared::{DriverEnd, DriverShared, bug};

/// A runner between two turns, for the thread that takes the next one. Nobody waits under the lock but for a sync.
pub(crate) struct Seat {
    state: Mutex<SeatState>,
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
}

struct SeatState {
    /// `None` when the shard has ended.
    runner: Option<Runner>,
    /// What a lent turn has left to the thread.
    left: Option<AfterTurn>,
    /// When the thread wakes by itself, by [`Clock::running`](crate::clock::Clock::running).
    sleeps_until: Duration,
}

impl SeatState {
    /// The thread lends turns while callers come one by one. More of them are cheaper in one turn of the thread's own,
    /// and would wait for the sync of the caller that has it.
    fn next_sleep(&self) -> Sleep {
        match &self.runner {
            Some(runner) if runner.is_lone() => Sleep::Lending,
            _ => Sleep::Waiting,
        }
    }
}

impl Seat {
    pub(crate) fn new(runner: Runner) -> Arc<Seat> {
        let (inbox, shared) = (runner.inbox.clone(), runner.shared.clone());
        let state = SeatState { runner: Some(runner), left: None, sleeps_until: Duration::ZERO };
        let seat = Arc::new(Seat { state: Mutex::new(state), inbox: inbox.clone(), shared });
        let weak = Arc::downgrade(&seat);
        inbox.lend(weak);
        seat
    }

    fn state(&self) -> MutexGuard<'_, SeatState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of the shard's thread.
    pub(crate) fn drive(&self) -> DriverEnd {
        loop {
            let (nap, at_most) = match self.own_turn() {
                AfterTurn::Again => continue,
                AfterTurn::Sleep(nap) => (nap, self.sleep(nap)),
                AfterTurn::Ended(end) => return end,
            };
            if nap.ends_with_any() {
                let sleep = self.state().next_sleep();
                self.inbox.wait(sleep, at_most);
            } else {
                self.inbox.wait_for_wake(at_most);
            }
            if let Some(runner) = &mut self.state().runner {
                runner.woke(nap);
            }
        }
    }

    fn own_turn(&self) -> AfterTurn {
        let crowd = self.state().runner.as_ref().and_then(Runner::crowd);
        if let Some((n, at_most)) = crowd {
            self.inbox.wait_for_crowd(n, at_most);
        }
        let mut state = self.state();
        let left = state.left.take();
        let turn = || state.runner.as_mut().map(Runner::turn);
        left.or_else(turn).unwrap_or(AfterTurn::Ended(DriverEnd::Stopped))
    }

    /// Notes when the thread will wake; returns how long it sleeps at most.
    fn sleep(&self, nap: SleepLimit) -> Duration {
        let at_most = match nap.until {
            WakeOn::Wake | WakeOn::Anything => self.shared.clock().nap(nap.at_most),
            WakeOn::Gathering | WakeOn::Soon => nap.at_most,
        };
        self.state().sleeps_until = self.shared.clock().running().saturating_add(at_most);
        at_most
    }

    /// Reports a panic in a turn, on any thread. It is logged apart from the end: an owner of several shards ends all
    /// of them for a bug, and none for a store that is gone.
    pub(crate) fn panicked(&self, panic: &(dyn Any + Send)) -> DriverEnd {
        let bug = bug("the driver", panic_text(panic));
        self.shared.end(bug.clone(), &self.inbox);
        DriverEnd::Failed(bug)
    }

    /// Ends the shard.
    pub(crate) fn end(&self, end: DriverEnd) {
        let runner = self.state().runner.take();
        if let Some(runner) = runner {
            runner.end(end);
        }
    }
}

impl TakeTurn for Seat {
    fn take_turn(&self) {
        let mut state = self.state();
        if !self.inbox.is_lent() {
            return; // the thread has woken, and takes the turn itself
        }
        let left = state.sleeps_until.saturating_sub(self.shared.clock().running());
        let Some(runner) = &mut state.runner else { return };
        state.left = catch_unwind(AssertUnwindSafe(|| runner.lent_turn(left)))
            .unwrap_or_else(|panic| Some(AfterTurn::Ended(self.panicked(&*panic))));
        let next = if state.left.is_none() { state.next_sleep() } else { Sleep::Awake };
        self.inbox.take_back(next);
    }
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
