//! Messages that expire: the expiry is checked before each grant, and at no other time.

use crate::message::{DeadReason, Expiry, Life, MessageContent, Stage};
use crate::mutant::{self, Mutant};
use crate::policy::OnExpiry;
use crate::record::Gone;
use crate::time::Due;

use super::Engine;
use super::index::QueueIdx;
use super::reply::ExpiredCounts;
use super::rows::RowIdx;

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
