//! Whether a lease certainly runs, by a clock that goes on while the process or the machine sleeps.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_core::time::ClockSample;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const ELAPSED: ClockId = ClockId::Boottime;
/// On macOS it includes suspend.
#[cfg(not(target_os = "linux"))]
const ELAPSED: ClockId = ClockId::Monotonic;

/// Milliseconds of a clock that goes on while the process or the machine sleeps.
pub fn boot_ms() -> u64 {
    ns(ELAPSED) / 1_000_000
}

/// Reads both clocks of this machine, elapsed time last: what passes between the two counts by neither.
pub fn read_clocks() -> ClockSample {
    let wall_ns = ns(ClockId::Realtime);
    ClockSample { elapsed_ns: ns(ELAPSED), wall_ns }
}

fn ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Times before 1970 count as 1970.
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    secs.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Whole milliseconds.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time until which the lease of a shard is certainly valid.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use duewheel_store_medium::{LeaseFence, boot_ms};
///
/// let fence = LeaseFence::new(boot_ms(), Duration::from_secs(5));
/// assert!(fence.check().is_ok() && fence.left() < 5_000);
/// ```
#[derive(Debug)]
pub struct LeaseFence {
    deadline: AtomicU64,
    sure: u64,
    /// Why it ended before its time.
    lost: OnceLock<StoreError>,
}

impl LeaseFence {
    /// A lease that was requested at this time.
    pub fn new(asked: u64, lease: Duration) -> Self {
        // The server counts from a later moment; a fiftieth is for clocks that run at different rates.
        let sure = millis(lease) - millis(lease) / 50 - 1;
        LeaseFence { deadline: AtomicU64::new(asked + sure), sure, lost: OnceLock::new() }
    }

    /// Extends the fence after a renewal that was sent at this time.
    pub fn renewed(&self, asked: u64) {
        self.deadline.fetch_max(asked + self.sure, SeqCst);
    }

    /// Ends it: another owner has the shard, it was given back, or what it owns is not what it was.
    pub fn lose(&self, why: StoreError) {
        let _ = self.lost.set(why); // the first reason counts
    }

    /// The remaining time in milliseconds.
    pub fn left(&self) -> u64 {
        if self.lost.get().is_some() {
            return 0;
        }
        self.deadline.load(SeqCst).saturating_sub(boot_ms())
    }

    /// Whether it certainly runs.
    ///
    /// # Errors
    /// Why it does not; [`ErrorKind::Fenced`] if its time is over.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.left() > 0 {
            return Ok(());
        }
        // For ever: what it was asked for may have been said to have no effect.
        let late = || StoreError::new(ErrorKind::Fenced, "the lease has run out before it could be renewed");
        Err(self.lost.get_or_init(late).clone())
    }
}

/// Random bytes.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if the system gives none.
pub fn random<const BYTES: usize>() -> Result<[u8; BYTES], StoreError> {
    let mut bytes = [0; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| StoreError::new(ErrorKind::Unavailable, "the system gives no random bytes"))?;
    Ok(bytes)
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Locks a mutex, also one whose holder has panicked: what it protects is whole after each statement.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of owners that are remembered.
const REMEMBERED: usize = 4096;

/// Marks of owners of this process that have certainly ended, so that none of them answers any more: the next owner need
/// not wait for their leases.
#[derive(Debug)]
pub struct EndedOwners<Mark>(Mutex<VecDeque<Mark>>);

impl<Mark: Clone + PartialEq> EndedOwners<Mark> {
    /// Records that an owner of this process has ended.
    pub fn note(&self, mark: Mark) {
        let mut marks = self.marks();
        if !marks.contains(&mark) {
            marks.push_back(mark);
        }
        if marks.len() > REMEMBERED {
            marks.pop_front();
        }
    }

    /// Whether an owner has ended.
    pub fn contains(&self, mark: &Mark) -> bool {
        self.marks().contains(mark)
    }

    /// All that are remembered.
    pub fn all(&self) -> Vec<Mark> {
        self.marks().iter().cloned().collect()
    }

    fn marks(&self) -> MutexGuard<'_, VecDeque<Mark>> {
        locked(&self.0)
    }
}

impl<Mark> Default for EndedOwners<Mark> {
    fn default() -> Self {
        EndedOwners(Mutex::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_fence_ends_before_lease() {
        let now = boot_ms();
        let fence = LeaseFence::new(now, Duration::from_secs(5));
        assert!(fence.left() > 4_000 && fence.left() < 5_000 - 100, "{}", fence.left());
        fence.renewed(now + 1_000);
        assert!(fence.left() > 5_000);
        fence.renewed(now);
        assert!(fence.left() > 5_000, "an older renewal shortens nothing");
        fence.lose(StoreError::new(ErrorKind::Fenced, "another"));
        fence.lose(StoreError::new(ErrorKind::Closed, "given back"));
        fence.renewed(now + 2_000);
        assert_eq!(fence.check().unwrap_err().kind(), ErrorKind::Fenced);
        assert!(LeaseFence::new(now.saturating_sub(5_000), Duration::from_secs(5)).check().is_err());
    }
}
