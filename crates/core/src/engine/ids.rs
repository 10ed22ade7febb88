//! The ids of one shard's messages.

use crate::id::ShardId;

/// The ids that an engine gives: those of its shard, so that an id determines its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub(super) shard: ShardId,
    pub(super) shards: u32,
}

impl Default for Ids {
    /// All ids: 1, 2, 3, ...
    fn default() -> Self {
        Ids { shard: ShardId(0), shards: 1 }
    }
}

impl Ids {
    /// The ids of one shard of several: the first has 1, 1 + `shards`, ...; the second 2, 2 + `shards`, ...
    ///
    /// ```
    /// # use duewheel_core::{engine::Ids, MessageId, ShardId};
    /// let ids = Ids::of(ShardId(1), 16);
    /// assert_eq!((ids.at_least(1), ids.at_least(3)), (2, 18));
    /// assert_eq!(ShardId::of(MessageId(18), 16), ShardId(1));
    /// ```
    pub fn of(shard: ShardId, shards: u32) -> Self {
        Ids { shard, shards: shards.max(1) }
    }

    /// The first id of this shard that is at least `id`.
    pub fn at_least(self, id: u64) -> u64 {
        let (first, step) = (u64::from(self.shard.0) + 1, u64::from(self.shards));
        first + id.saturating_sub(first).div_ceil(step) * step
    }

    /// The next id of this shard after `id`.
    pub(super) fn after(self, id: u64) -> u64 {
        id + u64::from(self.shards)
    }
}
