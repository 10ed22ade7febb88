//! Due messages that are not granted. A message that has expired: this is checked before each grant, and at no other
//! time. An occurrence of a schedule that became due while the shard was closed ([`super::schedule`]): for a few
//! seconds no consumer gets it, so that the scheduler decides first which of them were missed. A message of a queue that
//! has reached a limit of its grants ([`super::limits`]): the queue keeps it ready, and its waiting consumers are served
//! when a lease ends, or at the time when the rate allows the next grant.

use crate::message::{DeadReason, Expiry, Life, MessageContent, Stage};
use crate::mutant::{self, Mutant};
use crate::policy::OnExpiry;
use crate::record::Gone;
use crate::time::{Due, EngineMs};

use super::Engine;
use super::limits::{AtLimit, GrantLimiter};
use super::reply::ExpiredCounts;
use super::rows::{QueueIdx, RowIdx};

/// Whether a message that would be granted has expired, and what follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantVerdict {
    /// The message has not expired.
    InTime,
    /// The message has expired, and is granted all the same.
    Late,
    /// The message is dead or gone instead.
    Ended,
}

impl Engine {
    /// When a message expires, by the clock that its due time follows or by that of its own instant.
    ///
    /// A retry does not move it. An instant that was over when the message was last made due, by a redrive or a fire,
    /// does not count any more: then that time was kept by the wall clock ([`Engine::past_expiry`]).
    pub(super) fn expires(&self, idx: QueueIdx, message: &MessageContent, life: &Life) -> Option<Due> {
        let mut asked = life.marks.asked.unwrap_or(life.due);
        if mutant::is(Mutant::RetryMovesExpiry) {
            asked = life.due;
        }
        if mutant::is(Mutant::ExpiryFromEnqueue) {
            asked = Due::At(message.enqueued_at);
        }
        let of_queue = || self.queues.get(idx).settings.expires_in_ms.map(Expiry::In);
        match message.options.expiry.or_else(of_queue)? {
            Expiry::In(ms) => Some(asked.plus(ms)),
            // A due time of elapsed time was not behind the instant when it was set; how far apart the two are changes
            // with each step of the wall clock.
            Expiry::At(at) => match asked {
                Due::At(wall) => (wall <= at).then_some(Due::At(at)),
                Due::After(_) => Some(Due::At(at)),
            },
        }
    }

    /// Whether a message has expired.
    pub(super) fn has_expired(&self, slot: RowIdx) -> bool {
        let entry = self.rows.get(slot);
        let expires = self.expires(entry.queue, &entry.message, &entry.life);
        // At the instant itself it may still be granted.
        expires.is_some_and(|expires| self.now.since(expires) > 0)
    }

    /// Ends a message that is about to be granted, if it has expired and its queue wants that.
    pub(super) fn judge_expiry(&mut self, slot: RowIdx) -> GrantVerdict {
        if !self.has_expired(slot) {
            return GrantVerdict::InTime;
        }
        match self.queues.get(self.rows.get(slot).queue).settings.on_expiry.unwrap_or_default() {
            OnExpiry::DeliverLate => return GrantVerdict::Late,
            OnExpiry::Drop if mutant::is(Mutant::ExpiredGranted) => return GrantVerdict::Late,
            OnExpiry::Dead => {
                let at = self.dies();
                let stage = Stage::Dead { reason: DeadReason::Expired, at, token: None };
                self.change_life(slot, |life| life.stage = stage);
                self.count_expired(self.rows.get(slot).queue, ExpiredCounts { dead: 1, late: 0 });
                self.notice_death(slot);
            }
            OnExpiry::Drop => {
                let before = self.decided;
                self.remove_from(slot, Gone::Expired, 0);
                // The record that is kept of it takes a share of a step, in proportion to its bytes.
                let bytes = usize::try_from(self.decided - before).unwrap_or(usize::MAX);
                let step_bytes = self.policy.max_step_bytes.max(1);
                self.granted += bytes.saturating_mul(self.policy.max_step) / step_bytes;
            }
        }
        GrantVerdict::Ended
    }

    /// Counts an expired message.
    pub(super) fn count_expired(&mut self, idx: QueueIdx, what: ExpiredCounts) {
        self.figures.expired.add(what);
        self.queues.get_mut(idx).expired.add(what);
    }

    /// Counts of expired messages that were not dropped, of all queues.
    pub fn expired_counts(&self) -> ExpiredCounts {
        self.figures.expired
    }

    /// The new due time by the wall clock, which is kept if it is behind the instant at which the message would have
    /// expired.
    pub(super) fn past_expiry(&self, slot: RowIdx, due: Due) -> Option<Due> {
        match self.rows.get(slot).message.options.expiry {
            Some(Expiry::At(at)) => Some(self.now.wall_of(due)).filter(|wall| *wall > at).map(Due::At),
            Some(Expiry::In(_)) | None => None,
        }
    }

    /// The due time that the producer asked for, to be kept while a retry moves it; `None` if no expiry depends on it.
    pub(super) fn asked_due(&self, slot: RowIdx) -> Option<Due> {
        let entry = self.rows.get(slot);
        let expires = entry.message.options.expiry.is_some()
            || self.queues.get(entry.queue).settings.expires_in_ms.is_some();
        entry.life.marks.asked.or(expires.then_some(entry.life.due))
    }
}

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
