//! The source of time: the machine's clocks, or those of a test. In this crate and the cluster's, no other module reads
//! a clock.
#![allow(clippy::disallowed_methods)] // they are read here, so that nobody else does

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use duewheel_core::record::BootId;
pub use duewheel_core::time::ClockSample;
use rustix::time::{ClockId, clock_gettime};

use crate::inbox::Inbox;
use crate::random::random_pair;

/// A source of time.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Reads both clocks, elapsed time first, so that time passing between the two readings never makes a message
    /// early. `elapsed_ns` never decreases.
    fn read(&self) -> ClockSample;

    /// The boot that `elapsed_ns` counts from, if it counts from the same moment in every process of that boot.
    /// Downtime can then be computed without the wall clock. `None` by default.
    fn boot(&self) -> Option<BootId> {
        None
    }

    /// How long a driver may sleep when it wants to wake after `wanted`. A clock controlled by a test returns a long
    /// time, and wakes the driver through the inbox given in [`Clock::attach`].
    fn nap(&self, wanted: Duration) -> Duration {
        wanted
    }

    /// Real time since a fixed moment, which passes even where a test has stopped the clock: for internal pauses, and
    /// to detect a driver that hangs.
    fn running(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Registers a driver that is to be woken when the clock is moved.
    fn attach(&self, _inbox: &Arc<Inbox>) {}
}

/// The machine's clocks: `CLOCK_BOOTTIME` (elapsed time, including suspend) and `CLOCK_REALTIME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[cfg(target_os = "linux")]
const ELAPSED: ClockId = ClockId::Boottime;
/// On macOS it includes suspend.
#[cfg(not(target_os = "linux"))]
const ELAPSED: ClockId = ClockId::Monotonic;

impl Clock for SystemClock {
    fn read(&self) -> ClockSample {
        ClockSample { elapsed_ns: ns(ELAPSED), wall_ns: ns(ClockId::Realtime) }
    }

    fn boot(&self) -> Option<BootId> {
        static BOOT: OnceLock<Option<BootId>> = OnceLock::new();
        *BOOT.get_or_init(|| {
            let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
            // In a time namespace elapsed time has an offset of its own, and the next process may have a different one.
            let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
            boot_id(&id).filter(|_| !is_shifted(&offsets))
        })
    }
}

/// Parses 32 hexadecimal digits, with optional hyphens, as a number.
fn boot_id(text: &str) -> Option<BootId> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let is_id = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| u128::from_str_radix(&digits, 16).ok()).flatten().map(BootId)
}

/// Whether the kernel's table of clock offsets (clock, seconds, nanoseconds) shifts elapsed time, or has an unknown
/// format.
fn is_shifted(offsets: &str) -> bool {
    offsets.lines().any(|line| {
        let mut words = line.split_whitespace();
        let is_boottime = words.next() == Some("boottime");
        is_boottime && !(words.next() == Some("0") && words.next() == Some("0"))
    })
}

fn ns(id: ClockId) -> u64 {
    let t = clock_gettime(id);
    // Times before 1970 count as 1970.
    let s = u64::try_from(t.tv_sec).unwrap_or(0);
    s.saturating_mul(1_000_000_000).saturating_add(u64::try_from(t.tv_nsec).unwrap_or(0))
}

/// A clock that moves only on request. Clones share one clock; every other instance counts as another boot.
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<Mutex<Virtual>>);

#[derive(Debug)]
struct Virtual {
    reading: ClockSample,
    boot: BootId,
    drivers: Vec<Weak<Inbox>>,
}

impl VirtualClock {
    /// A clock that stands at this time.
    pub fn new(start: SystemTime) -> Self {
        let wall = start.duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        VirtualClock(Arc::new(Mutex::new(Virtual {
            reading: ClockSample { elapsed_ns: 0, wall_ns },
            boot: random_boot(),
            drivers: Vec::new(),
        })))
    }

    /// A clock that stands at 2026-01-01T00:00:00Z, which suits most tests.
    pub fn at_2026() -> Self {
        Self::new(UNIX_EPOCH + Duration::from_secs(1_767_225_600))
    }

    /// Lets time pass: advances both clocks.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.change(|r| {
            r.elapsed_ns = r.elapsed_ns.saturating_add(by);
            r.wall_ns = r.wall_ns.saturating_add(by);
        });
    }

    /// Lets time pass until the wall clock shows `instant`; does nothing if that is in the past.
    pub fn advance_to(&self, instant: SystemTime) {
        self.advance(instant.duration_since(self.now()).unwrap_or_default());
    }

    /// Steps only the wall clock, as an operator or a time server does; elapsed time does not change.
    pub fn step_wall_to(&self, instant: SystemTime) {
        let wall = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        self.change(|r| r.wall_ns = wall_ns);
    }

    /// The time of the wall clock.
    pub fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.read().wall_ns)
    }

    /// Simulates a reboot: elapsed time restarts, the wall clock continues. Only while nothing that reads this clock is
    /// open.
    pub fn reboot(&self) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.boot = random_boot();
        inner.reading.elapsed_ns = 0;
    }

    fn change(&self, change: impl FnOnce(&mut ClockSample)) {
        let drivers = {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut inner.reading);
            inner.drivers.retain(|d| d.strong_count() > 0);
            inner.drivers.clone()
        };
        for driver in drivers.iter().filter_map(Weak::upgrade) {
            driver.wake();
        }
    }
}

impl Clock for VirtualClock {
    fn read(&self) -> ClockSample {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reading
    }

    fn boot(&self) -> Option<BootId> {
        Some(self.0.lock().unwrap_or_else(PoisonError::into_inner).boot)
    }

    fn nap(&self, _: Duration) -> Duration {
        Duration::from_secs(3_600)
    }

    fn attach(&self, inbox: &Arc<Inbox>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drivers.push(Arc::downgrade(inbox));
    }
}

/// A random number that no other boot has.
fn random_boot() -> BootId {
    let [high, low] = random_pair().map(u128::from);
    BootId(high << 64 | low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_id_requires_unshifted_clock() {
        let id = boot_id("0f3c7a52-9b1d-4e6f-8a70-123456789abc\n");
        assert_eq!(id, Some(BootId(0x0f3c_7a52_9b1d_4e6f_8a70_1234_5678_9abc)));
        for text in
            ["", "0f3c", "+f3c7a52-9b1d-4e6f-8a70-123456789abc", "0f3c7a52-9b1d-4e6f-8a70-123456789abcd"]
        {
            assert_eq!(boot_id(text), None, "{text}");
        }
        assert!(!is_shifted(""), "a kernel without time namespaces");
        assert!(!is_shifted("monotonic           0         0\nboottime            0         0\n"));
        assert!(!is_shifted("monotonic          86400         0\nboottime            0         0\n"));
        assert!(is_shifted("monotonic           0         0\nboottime            864000         0\n"));
        assert!(is_shifted("boottime 0 1"));
        assert!(is_shifted("boottime"));
    }

    #[test]
    fn clock_readings_share_one_boot() {
        assert_eq!(SystemClock.boot(), SystemClock.boot());
        assert_ne!(VirtualClock::at_2026().boot(), VirtualClock::at_2026().boot());
        let clock = VirtualClock::at_2026();
        let before = clock.boot();
        assert_eq!(clock.clone().boot(), before);
        clock.reboot();
        assert_ne!(clock.boot(), before);
    }
}
