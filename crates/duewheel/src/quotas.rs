//! Setting and reading the quotas of tenants.

use duewheel_core::engine::{BadQuota, Op, Quota, QuotaUse};
use duewheel_shard::error::CallError;

use crate::Duewheel;

impl Duewheel {
    /// Sets the quotas of tenants, replacing all quotas set before. They take effect within a second, also for existing
    /// messages: a tenant that already exceeds a new limit keeps what it has, but gets no more. Quotas are not stored:
    /// set them again after a start. In a cluster each node applies its quotas to the shards that it owns, so all nodes
    /// should set the same.
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
    /// The quotas are not valid; the former ones stay.
    pub fn set_quotas(&self, quotas: Vec<Quota>) -> Result<(), BadQuota> {
        let (source, policy) = self.quota_source();
        source.set(quotas, policy)
    }

    /// The use of each quota, by prefix.
    ///
    /// # Errors
    /// No answer arrived.
    pub async fn quotas(&self) -> Result<Vec<QuotaUse>, CallError> {
        self.client().ask(Op::quotas()).await
    }
}
