//! Limits of a queue's grants: a rate, a lower rate while it catches up, and leases at a time.
//!
//! Each shard keeps its part of a limit ([`super::bucket`]), as for quotas. A queue whose limit is reached keeps its
//! messages ready, in their order; its waiting consumers are served when a lease ends, or at the time when the rate
//! allows the next grant.

use crate::mutant::{self, Mutant};
use crate::time::EngineMs;

use super::Engine;
use super::index::QueueIdx;
use super::limiter::{AtLimit, GrantLimiter};

impl Engine {
    /// Makes the limiter of a queue anew, after its settings have changed.
    pub(super) fn renew_limiter(&mut self, idx: QueueIdx) {
        // Its consumers are served at the end of the step, and wait again if they must.
        self.end_rate_wait(idx);
        let queue = self.queues.get_mut(idx);
        let old = queue.limiter.take();
        queue.limiter = GrantLimiter::new(queue.settings.limits, self.ids, self.now, old.as_deref());
        if !queue.waiters.is_empty() {
            self.matching.dirty.insert(idx);
        }
    }

    /// The limit of its own that keeps a queue from granting its next message now.
    pub(super) fn at_limit(&self, idx: QueueIdx) -> Option<AtLimit> {
        let queue = self.queues.get(idx);
        let limiter = queue.limiter.as_deref()?;
        let more = u64::from(mutant::is(Mutant::OneLeaseMore) && self.epoch.0 > 1);
        if limiter.leases.is_some_and(|leases| queue.leased.len() as u64 >= leases + more) {
            return Some(AtLimit::Leases);
        }
        let wait = limiter.wait_ms(self.now, self.next_late_ms(idx));
        (wait > 0).then_some(AtLimit::Rate(wait))
    }

    /// How long the next message of a queue has been due, in ms.
    fn next_late_ms(&self, idx: QueueIdx) -> u64 {
        let next = self.queues.get(idx).ready.first_key_value();
        next.map_or(0, |(_, slot)| self.now.since(self.rows.get(*slot).life.due))
    }

    /// Counts the grant of a message that was due `late_ms` ago.
    pub(super) fn use_rate(&mut self, idx: QueueIdx, late_ms: u64) {
        if let Some(limiter) = self.queues.get_mut(idx).limiter.as_deref_mut() {
            limiter.take(self.now, late_ms);
        }
    }

    /// Notes that a consumer waits on a queue: if a rate is the reason, it is served when the rate allows it.
    pub(super) fn note_limited(&mut self, idx: QueueIdx) {
        let Some(AtLimit::Rate(_)) = self.at_limit(idx) else { return };
        let (now, late_ms) = (self.now, self.next_late_ms(idx));
        if let Some(limiter) = self.queues.get_mut(idx).limiter.as_deref_mut()
            && let at = EngineMs(now.engine.0.saturating_add(limiter.pause_ms(now, late_ms)))
            && limiter.wakes.is_none_or(|wakes| at < wakes)
        {
            if let Some(wakes) = limiter.wakes.replace(at) {
                self.matching.rate_wakes.remove(&(wakes, idx));
            }
            self.matching.rate_wakes.insert((at, idx));
        }
    }

    /// Has the consumers of queues served whose rates allow grants again.
    pub(super) fn end_rate_waits(&mut self) {
        let mut budget = self.budget();
        while let Some(&(_, idx)) = self.matching.rate_wakes.first().filter(|(at, _)| *at <= self.now.engine)
            && self.spend(&mut budget, 1)
        {
            self.end_rate_wait(idx);
            if !self.queues.get(idx).waiters.is_empty() {
                self.matching.dirty.insert(idx);
            }
        }
    }

    /// Forgets when the consumers of a queue are to be served.
    pub(super) fn end_rate_wait(&mut self, idx: QueueIdx) {
        let limiter = self.queues.get_mut(idx).limiter.as_deref_mut();
        if let Some(wakes) = limiter.and_then(|limiter| limiter.wakes.take()) {
            self.matching.rate_wakes.remove(&(wakes, idx));
        }
    }

    /// Has the consumers of a queue served that had reached its limit of leases, because one has ended.
    pub(super) fn end_lease_wait(&mut self, idx: QueueIdx) {
        let queue = self.queues.get(idx);
        if queue.limiter.as_deref().is_some_and(|limiter| limiter.leases.is_some())
            && !queue.waiters.is_empty()
        {
            self.matching.dirty.insert(idx);
        }
    }
}
