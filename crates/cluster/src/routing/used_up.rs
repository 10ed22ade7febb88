//! Shards at which a tenant's share of a quota is used up.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use duewheel_core::id::ShardId;

/// How long a shard that has refused is not asked again.
const LATELY: Duration = Duration::from_millis(100);
/// The largest number of refusals that are remembered.
const MOST: usize = 10_000;

/// Which shards have refused messages of which tenant, and until when they are not asked.
#[derive(Debug, Default)]
pub(crate) struct ExhaustedShards(Mutex<BTreeMap<(Box<str>, ShardId), u64>>);

impl ExhaustedShards {
    pub(super) fn note(&self, quota: &str, shard: ShardId, now: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, until| *until > now);
        }
        if all.len() < MOST {
            let until = now.saturating_add(u64::try_from(LATELY.as_nanos()).unwrap_or(u64::MAX));
            all.insert((quota.into(), shard), until);
        }
    }

    pub(super) fn has(&self, quota: &str, shard: ShardId, now: u64) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(quota.into(), shard)).is_some_and(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_shard_is_skipped_briefly() {
        let (used_up, lately) = (ExhaustedShards::default(), 100_000_000);
        used_up.note("a", ShardId(1), 1_000);
        assert!(used_up.has("a", ShardId(1), 1_000) && used_up.has("a", ShardId(1), 999 + lately));
        assert!(!used_up.has("a", ShardId(1), 1_000 + lately));
        assert!(!used_up.has("a", ShardId(2), 1_000) && !used_up.has("b", ShardId(1), 1_000));
        for n in 0..2 * MOST {
            used_up.note(&format!("{n}"), ShardId(0), 1_000);
        }
        assert_eq!(used_up.0.lock().unwrap().len(), MOST, "bounded");
        used_up.note("late", ShardId(0), 1_000 + lately);
        assert!(used_up.has("late", ShardId(0), 1_000 + lately), "old ones make room");
    }
}
