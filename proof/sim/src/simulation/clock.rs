//! The clocks of the simulated machine.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duewheel::{BootId, Clock, ClockSample};

/// When the simulation begins, by the wall clock: 2026-01-01T00:00:00Z, in ms.
const BEGIN_MS: u64 = 1_767_225_600_000;
const MS: u64 = 1_000_000;

/// The clocks of a machine. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct SimClock(Arc<Mutex<Times>>);

#[derive(Clone, Copy, Debug)]
struct Times {
    /// True time since the simulation began.
    now_ns: u64,
    /// The difference of the wall clock to `BEGIN_MS + now` when its rate changed last, in ns.
    wall_ahead_ns: i128,
    /// The ns that it has gained since then in each ms of true time.
    slew_ppm: i64,
    slew_since_ns: u64,
    /// The elapsed time when the machine was started, less the true time of that moment.
    boot_ns: i128,
    /// The number of starts.
    boots: u128,
    source: Source,
}

/// The source of elapsed time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A clock of its own, as it should be.
    Elapsed,
    /// The wall clock, which is a bug.
    Wall,
}

impl SimClock {
    pub(super) fn new(source: Source) -> Self {
        SimClock(Arc::new(Mutex::new(Times {
            now_ns: 0,
            wall_ahead_ns: 0,
            slew_ppm: 0,
            slew_since_ns: 0,
            boot_ns: 0,
            boots: 1,
            source,
        })))
    }

    pub(super) fn set(&self, now_ns: u64) {
        self.change(|times| times.now_ns = now_ns);
    }

    /// Simulates a restart of the machine: elapsed time begins again.
    pub(super) fn reboot(&self) {
        self.change(|times| {
            times.boot_ns = i128::from(times.now_ns);
            times.boots += 1;
        });
    }

    /// Sets the rate of the wall clock, like a time server that slews it, in millionths. Returns how many ns it is
    /// ahead.
    pub(super) fn slew(&self, ppm: i64) -> i128 {
        self.change(|times| {
            times.wall_ahead_ns = times.ahead_ns();
            (times.slew_ppm, times.slew_since_ns) = (ppm, times.now_ns);
        });
        self.times().wall_ahead_ns
    }

    /// Steps the wall clock; returns the times before and after, in ms.
    pub(super) fn step_wall(&self, to_ms: u64) -> (u64, u64) {
        let before = self.wall_ms();
        self.change(|times| {
            // The fraction of a millisecond stays.
            let part = i128::from(times.wall_ns() % MS);
            let to = i128::from(to_ms) * i128::from(MS) + part;
            times.wall_ahead_ns = to - i128::from(BEGIN_MS) * i128::from(MS) - i128::from(times.now_ns);
            times.slew_since_ns = times.now_ns;
        });
        (before, self.wall_ms())
    }

    pub(super) fn wall_ms(&self) -> u64 {
        self.times().wall_ns() / MS
    }

    /// The time that the wall clock would show if it had never been stepped.
    pub(super) fn true_wall_ms(&self) -> u64 {
        BEGIN_MS + self.times().now_ns / MS
    }

    fn times(&self) -> Times {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Times)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Times {
    fn ahead_ns(&self) -> i128 {
        let slewed = i128::from(self.now_ns - self.slew_since_ns) * i128::from(self.slew_ppm);
        self.wall_ahead_ns + slewed / 1_000_000
    }

    fn wall_ns(&self) -> u64 {
        let ns = i128::from(BEGIN_MS) * i128::from(MS) + i128::from(self.now_ns) + self.ahead_ns();
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }

    fn elapsed_ns(&self) -> u64 {
        match self.source {
            Source::Elapsed => {
                u64::try_from((i128::from(self.now_ns) - self.boot_ns).max(0)).unwrap_or(u64::MAX)
            }
            Source::Wall => self.wall_ns(),
        }
    }
}

impl Clock for SimClock {
    fn read(&self) -> ClockSample {
        let times = self.times();
        ClockSample { elapsed_ns: times.elapsed_ns(), wall_ns: times.wall_ns() }
    }

    fn boot(&self) -> Option<BootId> {
        let times = self.times();
        (times.source == Source::Elapsed).then_some(BootId(times.boots))
    }

    fn running(&self) -> Duration {
        Duration::from_nanos(self.times().now_ns)
    }
}
