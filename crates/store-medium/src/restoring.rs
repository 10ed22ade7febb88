//! Restoring a backup to a store that nodes share.

use duewheel_core::ShardId;
use duewheel_core::store::{StoreError, Waker};

use crate::store::{FillFolder, MediumStore};

/// A store that nodes share, to which a backup is restored.
///
/// From [`RestoreTarget::begin_restore`] to [`RestoreTarget::end_restore`] its cluster has a format of its own, which
/// no node knows: a store of which a restore has ended in the middle is served by none. It is restored again from the
/// beginning.
pub trait RestoreTarget {
    /// Makes a cluster with this number of shards, which no node can join yet. What a restore that has not ended has
    /// left is removed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](duewheel_core::store::ErrorKind::Corrupt) if there is a store already, or a part of one,
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) while another process restores it,
    /// [`ErrorKind::Unavailable`](duewheel_core::store::ErrorKind::Unavailable) when the server does not answer.
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError>;

    /// Acquires a shard, has its folder filled, and opens its store.
    ///
    /// # Errors
    /// As of [`Coordinator::open`](duewheel_core::store::Coordinator::open) and of `fill`.
    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError>;

    /// Lets nodes join. The stores of all shards have been filled and closed.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](duewheel_core::store::ErrorKind::Fenced) if another process has begun to restore it since,
    /// [`ErrorKind::Unavailable`](duewheel_core::store::ErrorKind::Unavailable) when the server does not answer: run
    /// the restore again if nodes cannot join.
    fn end_restore(&self) -> Result<(), StoreError>;
}
