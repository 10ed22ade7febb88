//! Waiting reserves: their order, when they end, and the queues that have messages for them, by the reason why these
//! are not matched yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{ReplyTo, SessionId};
use crate::message::MaxAttempts;
use crate::time::{EngineMs, Now};

use super::input::WaiterId;
use super::rows::QueueIdx;

/// Terms of the leases that a consumer requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerms {
    /// The session that they are bound to.
    pub(super) session: SessionId,
    /// The length of the leases; `None`: the setting of message or queue.
    pub(super) lease_ms: Option<u64>,
    /// The consumer's limit of attempts.
    pub(super) max_attempts: Option<MaxAttempts>,
}

/// A reserve that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) to: ReplyTo,
    pub(super) name: WaiterId,
    /// The order of arrival, over all queues.
    pub(super) arrival: u64,
    pub(super) queues: Vec<QueueIdx>,
    /// The largest number of messages of those queues that have a number of their own.
    pub(super) max_of: Vec<(QueueIdx, usize)>,
    pub(super) max: usize,
    pub(super) max_bytes: usize,
    pub(super) terms: LeaseTerms,
    pub(super) deadline: EngineMs,
    /// How long the reserve waits for due messages that are being loaded from the store, if that is longer.
    pub(super) load_deadline: EngineMs,
    /// When its own wait was over; `None` while it runs.
    pub(super) over: Option<Now>,
    /// When a lease of its session is about to run out.
    pub(super) soon: Option<EngineMs>,
}

impl Waiter {
    fn wakeup(&self) -> EngineMs {
        self.soon.map_or(self.deadline, |soon| soon.min(self.deadline))
    }
}

/// All waiting reserves.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    by_arrival: BTreeMap<u64, Waiter>,
    by_name: BTreeMap<WaiterId, u64>,
    by_time: BTreeSet<(EngineMs, u64)>,
    by_session: BTreeSet<(SessionId, u64)>,
    arrivals: u64,
}

impl Waiters {
    pub(super) fn len(&self) -> usize {
        self.by_arrival.len()
    }

    pub(super) fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    pub(super) fn insert(&mut self, waiter: Waiter) {
        let arrival = waiter.arrival;
        self.by_name.insert(waiter.name, arrival);
        self.by_time.insert((waiter.wakeup(), arrival));
        if waiter.terms.session != SessionId::NONE {
            self.by_session.insert((waiter.terms.session, arrival));
        }
        self.by_arrival.insert(arrival, waiter);
    }

    pub(super) fn remove(&mut self, arrival: u64) -> Option<Waiter> {
        let waiter = self.by_arrival.remove(&arrival)?;
        self.by_time.remove(&(waiter.wakeup(), arrival));
        self.by_session.remove(&(waiter.terms.session, arrival));
        // A name that was given twice belongs to the later waiter.
        if self.by_name.get(&waiter.name) == Some(&arrival) {
            self.by_name.remove(&waiter.name);
        }
        Some(waiter)
    }

    pub(super) fn remove_named(&mut self, name: WaiterId) -> Option<Waiter> {
        let arrival = *self.by_name.get(&name)?;
        self.remove(arrival)
    }

    pub(super) fn get(&self, arrival: u64) -> Option<&Waiter> {
        self.by_arrival.get(&arrival)
    }

    /// Removes and returns a waiter that is due.
    pub(super) fn pop_due(&mut self, now: EngineMs) -> Option<Waiter> {
        let &(time, arrival) = self.by_time.first()?;
        if time > now { None } else { self.remove(arrival) }
    }

    pub(super) fn first_of(&self, session: SessionId) -> Option<u64> {
        let &(of, arrival) = self.by_session.range((session, 0)..).next()?;
        (of == session).then_some(arrival)
    }

    pub(super) fn pop_any(&mut self) -> Option<Waiter> {
        let arrival = *self.by_arrival.keys().next()?;
        self.remove(arrival)
    }

    pub(super) fn next_wakeup(&self) -> Option<EngineMs> {
        self.by_time.first().map(|(t, _)| *t)
    }
}

/// Queues with ready messages and waiting consumers.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Queues to be matched: nothing is in the way.
    pub(super) dirty: BTreeSet<QueueIdx>,
    /// Queues that the limit of leases holds back: by the exhausted limit and the queue's own use of it.
    pub(super) starved: [BTreeSet<(u64, QueueIdx)>; 2],
    /// Queues that wait until the store accepts more than removals.
    pub(super) barred: BTreeSet<QueueIdx>,
    /// When the rates of queues allow grants again.
    pub(super) rate_wakes: BTreeSet<(EngineMs, QueueIdx)>,
}
