//! Figures of a shard: the current ones of its driver, and counters over all runs of it in this process.

use std::collections::BTreeMap;

use duewheel_core::engine::{QuotaUse, RecordedCounts, Stats};
use duewheel_core::record::Totals;

/// The suffix of a store's figure that is a counter; a word after a dot names its kind.
const COUNTER: &str = "_total";

/// Everything this process has counted for a shard, over all runs. The sums over the nodes of a cluster are meaningful.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Counts of what happened to messages.
    pub totals: Totals,
    /// Leases that ran out.
    pub lease_expired: u64,
    /// Settlements refused because of a stale token.
    pub lease_lost: u64,
    /// Reserves answered without a message because too many are leased.
    pub held_back: u64,
    /// Lateness of the first delivery of messages: the count per column of [`duewheel_core::engine::LATENESS_MS`].
    pub lateness: Vec<u64>,
    /// The sum of these, in ms.
    pub lateness_sum_ms: u64,
    /// Refusals by quota, in the order of [`duewheel_core::engine::Resource`].
    pub quota_refused: BTreeMap<Box<str>, [u64; 5]>,
    /// The store's own counters, by name.
    pub store: BTreeMap<&'static str, u64>,
    /// How long nobody owned the shard before this node took it, in ms, as far as this node observed it.
    pub unowned_ms: u64,
}

impl Counted {
    /// The counts of one run.
    pub(crate) fn of(counts: &RecordedCounts) -> Self {
        Counted {
            totals: counts.totals,
            lease_expired: counts.lease_expired,
            lateness: counts.lateness.to_vec(),
            lateness_sum_ms: counts.lateness_sum_ms,
            ..Counted::default()
        }
    }

    /// Adds the counts of another run or another process.
    pub fn add(&mut self, other: &Counted) {
        self.totals = self.totals.with(&other.totals, u64::saturating_add);
        self.lease_expired += other.lease_expired;
        self.lease_lost += other.lease_lost;
        self.held_back += other.held_back;
        self.lateness.resize(self.lateness.len().max(other.lateness.len()), 0);
        for (mine, theirs) in self.lateness.iter_mut().zip(&other.lateness) {
            *mine += theirs;
        }
        self.lateness_sum_ms += other.lateness_sum_ms;
        for (prefix, refused) in &other.quota_refused {
            let mine = self.quota_refused.entry(prefix.clone()).or_default();
            mine.iter_mut().zip(refused).for_each(|(mine, theirs)| *mine += theirs);
        }
        for (name, count) in &other.store {
            *self.store.entry(name).or_default() += count;
        }
        self.unowned_ms += other.unowned_ms;
    }
}

/// The figures of one run: those of its engine and those of its store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) stats: Stats,
    pub(crate) quotas: Vec<QuotaUse>,
    pub(crate) store: Vec<(&'static str, u64)>,
}

impl Figures {
    /// The counters among them.
    pub(crate) fn counted(&self) -> Counted {
        let stats = &self.stats;
        let refused = self.quotas.iter().map(|one| ((&*one.quota.prefix).into(), one.refused));
        Counted {
            totals: stats.totals,
            lease_expired: stats.lease_expired,
            lease_lost: stats.lease_lost,
            held_back: stats.held_back,
            lateness: stats.lateness.clone(),
            lateness_sum_ms: stats.lateness_sum_ms,
            quota_refused: refused.collect(),
            store: self.store.iter().filter(|(name, _)| is_counter(name)).copied().collect(),
            unowned_ms: 0,
        }
    }
}

/// The figures of answers that were forgotten, in the order of [`duewheel_core::engine::ForgottenFor`].
pub(crate) const ANSWERS_FORGOTTEN: [&str; 4] = [
    "answers_forgotten_total.quota",
    "answers_forgotten_total.limit",
    "answers_forgotten_total.room",
    "answers_forgotten_total.purge",
];

/// Whether a store's figure of this name is a counter.
pub fn is_counter(name: &str) -> bool {
    name.split('.').next().is_some_and(|name| name.ends_with(COUNTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reigns_add_up() {
        let one = Counted {
            totals: Totals { enqueued: 3, acked: 1, ..Totals::default() },
            lateness: vec![1, 2],
            lateness_sum_ms: 7,
            quota_refused: [("a".into(), [1, 0, 0, 2, 0])].into(),
            store: [("groups_total", 5)].into(),
            ..Counted::default()
        };
        let mut sum = Counted::default();
        sum.add(&one);
        sum.add(&Counted { lateness: vec![1, 1, 1], store: [("finds_total", 1)].into(), ..one });
        assert_eq!((sum.totals.enqueued, sum.totals.acked), (6, 2));
        assert_eq!((sum.lateness, sum.lateness_sum_ms), (vec![2, 3, 1], 14));
        assert_eq!(sum.quota_refused["a"], [2, 0, 0, 4, 0]);
        assert_eq!((sum.store["groups_total"], sum.store["finds_total"]), (5, 1));
    }

    #[test]
    fn counters_are_known_by_their_names() {
        assert!(is_counter("groups_total") && is_counter("fences_total.gap"));
        assert!(!is_counter("epoch") && !is_counter("total_bytes"));
    }
}
