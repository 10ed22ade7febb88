//! Totals of queues without settings that are empty: a queue of the name goes on with them within a day, and longer if
//! nobody needs their place.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::QueueName;
use crate::policy::REST_MS;
use crate::record::Totals;
use crate::time::{EngineMs, Now};

use super::index::TenantIdx;

/// The totals of queues that have ended, in memory alone. They count as queues, of all and of their owner, and the
/// oldest make way.
#[derive(Debug, Default)]
pub(super) struct RestingTotals {
    all: BTreeMap<QueueName, RestingQueue>,
    /// The number of each: those that have ended earlier have lower ones.
    order: BTreeMap<u64, QueueName>,
    of_owner: BTreeSet<(TenantIdx, u64)>,
    counts: BTreeMap<TenantIdx, u64>,
    last: u64,
}

#[derive(Debug)]
struct RestingQueue {
    number: u64,
    totals: Totals,
    tenant: Option<TenantIdx>,
    until: EngineMs,
}

impl RestingTotals {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of those of an owner.
    pub(super) fn count_of(&self, tenant: TenantIdx) -> u64 {
        self.counts.get(&tenant).copied().unwrap_or(0)
    }

    pub(super) fn of(&self, name: &QueueName) -> Option<Totals> {
        self.all.get(name).map(|queue| queue.totals)
    }

    /// Keeps the totals of a queue that ends now.
    pub(super) fn add(&mut self, now: Now, name: QueueName, tenant: Option<TenantIdx>, totals: Totals) {
        self.take(&name);
        self.last += 1;
        let number = self.last;
        self.order.insert(number, name.clone());
        let until = EngineMs(now.engine.0.saturating_add(REST_MS));
        self.all.insert(name, RestingQueue { number, totals, tenant, until });
        self.own(tenant, number);
    }

    /// Hands them over to a queue of the name.
    pub(super) fn take(&mut self, name: &QueueName) -> Option<Totals> {
        let queue = self.all.remove(name)?;
        self.order.remove(&queue.number);
        if let Some(tenant) = queue.tenant
            && self.of_owner.remove(&(tenant, queue.number))
            && let Some(count) = self.counts.get_mut(&tenant)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&tenant);
            }
        }
        Some(queue.totals)
    }

    /// Forgets the oldest.
    pub(super) fn pop_first(&mut self) -> bool {
        let name = self.order.first_key_value().map(|(_, name)| name.clone());
        name.is_some_and(|name| self.take(&name).is_some())
    }

    /// Forgets the oldest of an owner.
    pub(super) fn pop_first_of(&mut self, tenant: TenantIdx) -> bool {
        let number = self.of_owner.range((tenant, 0)..).next().filter(|(of, _)| *of == tenant);
        let name = number.and_then(|(_, number)| self.order.get(number)).cloned();
        name.is_some_and(|name| self.take(&name).is_some())
    }

    /// Forgets the oldest if its day is over.
    pub(super) fn pop_over(&mut self, now: Now) -> bool {
        let first = self.order.first_key_value().and_then(|(_, name)| self.all.get(name));
        first.is_some_and(|queue| queue.until <= now.engine) && self.pop_first()
    }

    /// Looks the owners up again.
    pub(super) fn renew(&mut self, owner: impl Fn(&QueueName) -> Option<TenantIdx>) {
        self.of_owner.clear();
        self.counts.clear();
        let mut all = std::mem::take(&mut self.all);
        for (name, queue) in &mut all {
            queue.tenant = owner(name);
            self.own(queue.tenant, queue.number);
        }
        self.all = all;
    }

    fn own(&mut self, tenant: Option<TenantIdx>, number: u64) {
        if let Some(tenant) = tenant {
            self.of_owner.insert((tenant, number));
            *self.counts.entry(tenant).or_default() += 1;
        }
    }
}
