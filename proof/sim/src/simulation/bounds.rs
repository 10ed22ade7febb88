//! What messages of a run have of expiry and spread, and its queues of limits.

use duewheel_judge::history::{Expiry, OnExpiry, QueueLimits, When};
use duewheel_judge::rng::Rng;

/// The percentages of one run; all 0 in runs without limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Messages with an expiry of their own.
    expiring: u64,
    /// Messages with a spread.
    spread: u64,
    /// Changes of mind that change the limits of a queue.
    changing: u64,
    /// Queues that have limits of each kind.
    limited: u64,
    /// The longest expiry, in ms.
    expiry_ms: u64,
}

impl Bounds {
    /// Those of a run. Where queues are to be full, grants have no limits.
    pub(super) fn of(rng: &mut Rng, full: bool) -> Self {
        if !rng.percent(50) {
            return Bounds::default();
        }
        Bounds {
            expiring: rng.range(10, 80),
            spread: if rng.percent(50) { rng.range(5, 60) } else { 0 },
            changing: if full { 0 } else { rng.range(3, 25) },
            limited: if full { 0 } else { rng.range(20, 70) },
            expiry_ms: rng.range(60, 900),
        }
    }

    /// Whether queues have limits of their grants.
    pub(super) fn limit_grants(&self) -> bool {
        self.limited > 0
    }

    /// Whether a change of mind changes limits.
    pub(super) fn changes(&self, rng: &mut Rng) -> bool {
        self.changing > 0 && rng.percent(self.changing)
    }

    /// The limits of a queue.
    pub(super) fn limits(&self, rng: &mut Rng) -> QueueLimits {
        if *self == Bounds::default() {
            return QueueLimits::default();
        }
        let limited = |rng: &mut Rng| rng.percent(self.limited);
        QueueLimits {
            rate: limited(rng).then(|| rng.range(30, 400)),
            burst: rng.percent(50).then(|| rng.range(1, 8)),
            catchup_rate: limited(rng).then(|| rng.range(25, 80)),
            concurrency: limited(rng).then(|| rng.range(1, 9)),
            expires_in_ms: rng.percent(25).then(|| rng.range(20, self.expiry_ms)),
            on_expiry: match rng.below(3) {
                0 => OnExpiry::DeliverLate,
                1 => OnExpiry::Dead,
                _ => OnExpiry::Drop,
            },
        }
    }

    /// The spread of a message, in ms.
    pub(super) fn spread_ms(&self, rng: &mut Rng) -> u64 {
        if self.spread > 0 && rng.percent(self.spread) { rng.range(1, 700) } else { 0 }
    }

    /// The expiry of a message; now and then one that is refused, because it is before the due time.
    pub(super) fn expiry(&self, when: &When, spread_ms: u64, wall: u64, rng: &mut Rng) -> Option<Expiry> {
        if self.expiring == 0 || !rng.percent(self.expiring) {
            return None;
        }
        let after = rng.range(1, self.expiry_ms);
        if rng.percent(70) {
            return Some(Expiry::InMs(after));
        }
        let due = match *when {
            When::AtMs(ms) => ms.max(wall),
            When::DelayMs(ms) => wall.saturating_add(ms),
        };
        Some(Expiry::AtMs(due.saturating_add(spread_ms).saturating_add(after)))
    }
}
