//! Figures of the shards that this node owns or has owned since it started.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel_core::id::ShardId;
use duewheel_shard::inbox::Inbox;
use duewheel_shard::local::LocalShard;
use duewheel_shard::shared::DriverShared;

/// The counters of these shards. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct LocalCounters(Arc<Mutex<BTreeMap<ShardId, LocalShard>>>);

impl LocalCounters {
    /// Records that this node has become the owner of a shard.
    pub(crate) fn opened(&self, shard: ShardId, inbox: Arc<Inbox>, shared: Arc<DriverShared>) {
        self.fold(shard);
        entry(&mut self.locked(), shard).begin(inbox, shared);
    }

    /// Records that this node is no longer the owner; the counts stay.
    pub(crate) fn fold(&self, shard: ShardId) {
        entry(&mut self.locked(), shard).fold();
    }

    /// Adds a time during which nobody owned the shard before this node took it.
    pub(crate) fn was_unowned(&self, shard: ShardId, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        entry(&mut self.locked(), shard).add_unowned(ms);
    }

    /// All shards, by number.
    pub(crate) fn all(&self) -> Vec<LocalShard> {
        self.locked().values().cloned().collect()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<ShardId, LocalShard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry(locked: &mut BTreeMap<ShardId, LocalShard>, shard: ShardId) -> &mut LocalShard {
    locked.entry(shard).or_insert_with(|| LocalShard::new(Some(shard), None))
}

impl fmt::Debug for LocalCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCounters").field("shards", &self.locked().len()).finish_non_exhaustive()
    }
}
