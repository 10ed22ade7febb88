//! The clocks of a machine of the simulated cluster.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use duewheel::{BootId, Clock, ClockSample};

use super::network::lock;
use super::{BEGIN_MS, MS};

/// The clocks of a machine. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct MachineClock(Arc<Mutex<Times>>);

#[derive(Clone, Copy, Debug)]
struct Times {
    now_ns: u64,
    /// The error of its wall clock.
    skew_ms: i64,
    /// The elapsed time when the run began: each machine was started at another time.
    up_ns: u64,
    boot: BootId,
}

impl MachineClock {
    pub(super) fn new(place: usize, skew_ms: i64) -> Self {
        let n = place as u64 + 1;
        let up_ns = n * n * 10_000_000 * MS + n;
        let boot = BootId(u128::from(n));
        MachineClock(Arc::new(Mutex::new(Times { now_ns: 0, skew_ms, up_ns, boot })))
    }

    pub(super) fn set(&self, now_ns: u64) {
        lock(&self.0).now_ns = now_ns;
    }

    /// Whether its wall clock is wrong.
    pub(super) fn is_skewed(&self) -> bool {
        lock(&self.0).skew_ms != 0
    }

    /// Steps the wall clock.
    pub(super) fn step(&self, by_ms: i64) {
        lock(&self.0).skew_ms += by_ms;
    }
}

impl Clock for MachineClock {
    fn read(&self) -> ClockSample {
        let times = *lock(&self.0);
        let wall_ms = BEGIN_MS.saturating_add_signed(times.skew_ms);
        ClockSample { elapsed_ns: times.up_ns + times.now_ns, wall_ns: wall_ms * MS + times.now_ns }
    }

    fn boot(&self) -> Option<BootId> {
        Some(lock(&self.0).boot)
    }

    fn running(&self) -> Duration {
        let times = *lock(&self.0);
        Duration::from_nanos(times.up_ns + times.now_ns)
    }
}
