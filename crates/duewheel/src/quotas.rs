//! The quotas of a process: set by its owner, read by each of its shards between two steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::engine::{BadQuota, Op, Quota, QuotaUse, Quotas};
use duewheel_core::policy::Policy;

use crate::Duewheel;
use crate::error::CallError;

/// The quotas that count in a process. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaSource {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// How often they were set.
    version: AtomicU64,
    quotas: Mutex<Quotas>,
}

impl QuotaSource {
    /// From now on these count, and no others.
    ///
    /// # Errors
    /// When they cannot be; those before go on.
    pub(crate) fn set(&self, quotas: Vec<Quota>, policy: &Policy) -> Result<(), BadQuota> {
        let quotas = Quotas::new(quotas, policy)?;
        let mut place = self.lock();
        *place = quotas;
        self.inner.version.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// What counts, and its version, if that is not the version seen.
    pub(crate) fn newer(&self, seen: u64) -> Option<(u64, Quotas)> {
        if self.inner.version.load(Ordering::SeqCst) == seen {
            return None;
        }
        let quotas = self.lock();
        Some((self.inner.version.load(Ordering::SeqCst), quotas.clone()))
    }

    /// Whether there are any.
    #[cfg(feature = "cluster")]
    pub(crate) fn are_set(&self) -> bool {
        self.inner.version.load(Ordering::SeqCst) > 0 && !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Quotas> {
        self.inner.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Duewheel {
    /// Sets the quotas of tenants, in place of all that were set before. They count within a second, also for what is there already: a tenant
    /// that has more than a new limit keeps it, and gets no more. Nothing of them is stored: set them again after a start. In a cluster each
    /// node sets them for the shards that it owns, so all nodes should set the same.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// use duewheel::{Duewheel, core::engine::Quota};
    ///
    /// let wheel = Duewheel::builder().in_memory().open().await?;
    /// wheel.set_quotas(vec![Quota { prefix: "acme.".into(), messages: Some(1_000_000), ..Quota::default() }])?;
    /// # wheel.shutdown(std::time::Duration::from_secs(1)).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// When they cannot be; those before go on.
    pub fn set_quotas(&self, quotas: Vec<Quota>) -> Result<(), BadQuota> {
        let (source, policy) = self.quota_source();
        source.set(quotas, policy)
    }

    /// How much of each quota is used, by prefix.
    ///
    /// # Errors
    /// When there was no answer.
    pub async fn quotas(&self) -> Result<Vec<QuotaUse>, CallError> {
        self.client().ask(Op::quotas()).await
    }
}
