//! The quotas of a process: set by its owner, read by each of its shards between two steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::engine::{BadQuota, Quota, Quotas};
use duewheel_core::policy::Policy;

/// The current quotas of a process. Cheap to clone; all clones share them.
#[derive(Clone, Debug, Default)]
pub struct QuotaSource {
    inner: Arc<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    /// The number of times that they were set.
    version: AtomicU64,
    quotas: Mutex<Quotas>,
}

impl QuotaSource {
    /// Replaces all quotas.
    ///
    /// # Errors
    /// The quotas are not valid; the former ones stay.
    pub fn set(&self, quotas: Vec<Quota>, policy: &Policy) -> Result<(), BadQuota> {
        let quotas = Quotas::new(quotas, policy)?;
        let mut place = self.lock();
        *place = quotas;
        self.inner.version.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The quotas and their version, if it differs from `seen`.
    pub fn newer(&self, seen: u64) -> Option<(u64, Quotas)> {
        if self.inner.version.load(Ordering::SeqCst) == seen {
            return None;
        }
        let quotas = self.lock();
        Some((self.inner.version.load(Ordering::SeqCst), quotas.clone()))
    }

    /// Whether there are quotas.
    pub fn are_set(&self) -> bool {
        self.inner.version.load(Ordering::SeqCst) > 0 && !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Quotas> {
        self.inner.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
