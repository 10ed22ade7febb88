//! Routing: the shard of each operation, and merged answers of several shards.

mod broadcast;
mod demand;
mod merge;
mod partition;
mod reserve;
pub(crate) mod router;
mod sessions;
#[cfg(test)]
mod tests;

use std::fmt;

use duewheel_core::engine::Op;
use duewheel_core::id::ShardId;
use duewheel_shard::client::LocalShard;
use duewheel_shard::inbox::{Pending, WhenBusy};

/// Submits operations to shards, wherever their owners are.
pub trait Shards: Send + Sync + fmt::Debug {
    /// The number of shards; they are numbered from 0.
    fn count(&self) -> u32;

    /// The shards that this node owns at the moment: they are reached without another node.
    fn here(&self) -> Vec<ShardId>;

    /// Submits operations of one shard to its owner, which decides them in order, without others between them. Two
    /// calls for one shard keep their order unless one of them is retried: while the shard moves, or its owner opens
    /// the store again, the first may follow the second.
    ///
    /// While there is no owner, the submission waits for one for a short time, and operations that were certainly not
    /// applied are retried; those that may have been applied are answered with an error whose outcome is unknown.
    /// Grants whose answer no caller receives are returned, and do not count as attempts.
    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending;

    /// The shards that this node owns or has owned since it started.
    fn local_shards(&self) -> Vec<LocalShard> {
        Vec::new()
    }
}
