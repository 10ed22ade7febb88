//! Limits of a queue's grants, and what becomes of messages that are too late.

use serde::{Deserialize, Serialize};

/// When a message expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expiry {
    /// This number of ms after its due time, which a retry does not move.
    InMs(u64),
    /// At an instant of the wall clock, in ms since 1970.
    AtMs(u64),
}

/// What becomes of an expired message that would be granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// It is granted, and the grant says that it is late.
    #[default]
    DeliverLate,
    /// It is dead.
    Dead,
    /// It is removed.
    Drop,
}

/// The limits of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLimits {
    /// Grants a second.
    pub rate: Option<u64>,
    /// Grants that may come at once after a pause; `None`: those of 10 ms.
    pub burst: Option<u64>,
    /// Grants a second of messages that have been due for more than 10 s.
    pub catchup_rate: Option<u64>,
    /// Leases at a time.
    pub concurrency: Option<u64>,
    /// Messages without an expiry of their own expire this many ms after they are due.
    pub expires_in_ms: Option<u64>,
    /// What becomes of expired messages.
    pub on_expiry: OnExpiry,
}

/// A message that has been due for longer than this is granted at the catch-up rate, in ms.
pub(crate) const BEHIND_MS: u64 = 10_000;

/// What a rate gives in this time may come later, at a quarter of the rate more, if its consumers or the server were
/// late, in ms.
pub(crate) const ARREARS_MS: u64 = 90;

/// A rate, and what it allows at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) per_second: u64,
    /// Thousandths of a grant.
    pub(crate) burst: u64,
}

impl QueueLimits {
    /// Whether they may hold messages back that are ready.
    pub(crate) fn holds_back(&self) -> bool {
        self.rate.is_some() || self.catchup_rate.is_some() || self.concurrency.is_some()
    }

    /// The pace of all grants.
    pub(crate) fn pace(&self) -> Option<Pace> {
        self.rate.map(|per_second| Pace::new(per_second, self.burst))
    }

    /// The pace of grants of messages that have been due for long.
    pub(crate) fn catchup_pace(&self) -> Option<Pace> {
        self.catchup_rate.map(|per_second| Pace::new(per_second, None))
    }
}

impl Pace {
    /// A burst is at least one grant, and at least those of one millisecond, the finest step of time.
    fn new(per_second: u64, burst: Option<u64>) -> Self {
        let burst = burst.unwrap_or(per_second / 100).max(1);
        Pace { per_second, burst: (burst * 1_000).max(1_000 + per_second.saturating_sub(1)) }
    }
}
