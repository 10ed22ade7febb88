//! How deliveries end, and counters of it.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use duewheel::core::engine::Settled;
use duewheel::core::message::MaxAttempts;

/// How a delivered message is settled.
#[derive(Clone, Copy, Debug)]
pub(super) enum PushEnd {
    Done,
    /// The message comes again, after its own backoff if there is no delay; no attempt is used up.
    NotYet(Option<Duration>),
    /// The message comes again, after its own backoff if there is no delay, unless this was the last attempt that it
    /// has, or that the target allows.
    Again(Option<Duration>, MaxAttempts),
    Dead,
}

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
