//! Locks that a panic does not poison, and bells that wake workers.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Wakes one worker; several rings during its work count as one.
#[derive(Debug, Default)]
pub(crate) struct WorkerBell {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl WorkerBell {
    pub(crate) fn ring(&self) {
        *lock(&self.rung) = true;
        self.ring.notify_one();
    }

    /// Waits for a ring, or for a time.
    pub(crate) fn wait(&self, at_most: Option<Duration>) {
        let rung = lock(&self.rung);
        let mut rung = match at_most {
            None => self.ring.wait_while(rung, |rung| !*rung).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.ring.wait_timeout_while(rung, time, |rung| !*rung);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        *rung = false;
    }
}

/// Takes a lock. A panic of a worker poisons the store, not its locks: the data that they guard is consistent between
/// any two lines.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
