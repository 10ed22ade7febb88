//! The boundary between routing and ownership: operations for a shard, wherever its owner is.

use std::fmt;

use duewheel_core::engine::Op;
use duewheel_core::id::ShardId;
use duewheel_shard::inbox::WhenBusy;
use duewheel_shard::local::LocalShard;
use duewheel_shard::pending::Pending;

/// Takes operations to shards, wherever their owners are.
pub trait Shards: Send + Sync + fmt::Debug {
    /// How many there are; 0, 1, 2, ...
    fn count(&self) -> u32;

    /// Those that this node owns at the moment: a way that is shorter by a hop.
    fn here(&self) -> Vec<ShardId>;

    /// Submits operations of one shard to its owner, to be decided in order, next to each other. Two calls for one shard keep their order
    /// unless one of them comes back: while the shard moves, or its owner opens the store again, the first may follow the second.
    ///
    /// Waits a little for an owner where there is none. What certainly was not applied is tried again meanwhile; what may have been is
    /// answered with an error whose outcome is unknown. Grants whose answer nobody receives go back, and do not count as attempts.
    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending;

    /// Those that this node owns, or has owned since it started.
    fn local_shards(&self) -> Vec<LocalShard> {
        Vec::new()
    }
}
