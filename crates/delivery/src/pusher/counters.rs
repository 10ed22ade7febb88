//! Counters of how attempts have ended.

use std::sync::atomic::AtomicU64;

use duewheel::core::engine::Settled;

use super::PushEnd;

#[derive(Debug, Default)]
pub(super) struct PushCounters {
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) forgiven: AtomicU64,
    pub(super) dead: AtomicU64,
}

impl PushCounters {
    /// The counter of an end: what the engine has made of it decides.
    pub(super) fn of(&self, end: PushEnd, settled: &Settled) -> &AtomicU64 {
        match (settled, end) {
            (Settled::Acked | Settled::Already { .. }, _) => &self.delivered,
            (Settled::Dead(_), _) => &self.dead,
            (Settled::Again(_) | Settled::Superseded, PushEnd::NotYet(_)) => &self.forgiven,
            (Settled::Again(_) | Settled::Superseded, PushEnd::Done | PushEnd::Again(..) | PushEnd::Dead) => {
                &self.failed
            }
        }
    }
}
