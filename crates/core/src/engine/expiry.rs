//! Due messages that are not granted. A message that has expired: this is checked before each grant, and at no other
//! time. An occurrence of a schedule that became due while the shard was closed: for a few seconds no consumer gets it,
//! so that the scheduler decides first which of them were missed.

use std::collections::BTreeMap;

use crate::id::MessageId;
use crate::message::{DeadReason, Expiry, Life, MessageContent, Stage};
use crate::mutant::{self, Mutant};
use crate::policy::{ON_TIME_MS, OWN_OCCURRENCE, OnExpiry, WITHHELD_MS};
use crate::record::Gone;
use crate::time::{Due, EngineMs, Now, WallMs};

use super::Engine;
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

/// Which occurrences are withheld, and those of them in memory.
#[derive(Debug)]
pub(super) struct Withheld {
    /// The last instant at which the shard is known to have been open before.
    closed: WallMs,
    opened: WallMs,
    /// Messages from this id on are new.
    first_new: MessageId,
    /// When they are granted; the end of time until the shard is open.
    pub(super) until: EngineMs,
    pub(super) rows: BTreeMap<MessageId, RowIdx>,
    /// The weight of these.
    pub(super) weight: u64,
}

impl Withheld {
    /// The state for a shard that is being opened and was last open at `closed`; a new one withholds nothing.
    pub(super) fn new(closed: Option<WallMs>, now: Now, first_new: u64) -> Self {
        let (closed, first_new) = (closed.unwrap_or(now.wall), MessageId(first_new));
        let (until, rows) = (EngineMs(u64::MAX), BTreeMap::new());
        Withheld { closed, opened: now.wall, first_new, until, rows, weight: 0 }
    }

    /// The shard is open: its occurrences are withheld for a while from now on.
    pub(super) fn open(&mut self, now: Now) {
        self.until = now.after(WITHHELD_MS).unwrap_or(now.engine);
    }

    /// Whether no consumer may get this message yet, which is due.
    pub(super) fn holds(&self, now: Now, message: &MessageContent, life: &Life) -> bool {
        let is_old = |due: WallMs| due > self.closed && due.0.saturating_add(ON_TIME_MS) < self.opened.0;
        now.engine < self.until
            && message.id < self.first_new
            && life.attempt == 0
            && matches!(life.due, Due::At(due) if is_old(due))
            && message.dedupe_id.as_deref().is_some_and(|id| id.starts_with(OWN_OCCURRENCE))
    }

    pub(super) fn next_wakeup(&self) -> Option<EngineMs> {
        (!self.rows.is_empty()).then_some(self.until)
    }
}
