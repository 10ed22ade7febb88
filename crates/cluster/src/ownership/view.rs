//! The cluster as one node sees it, for people.

use std::time::Duration;

use duewheel_core::id::{Epoch, ShardId};
use duewheel_core::store::Node;

/// The cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The node that shows the view.
    pub me: Node,
    /// All members by name, this node included.
    pub nodes: Vec<Node>,
    /// All shards, in order.
    pub shards: Vec<ShardView>,
    /// How long ago this view was read from the coordinator.
    pub age: Duration,
}

/// A shard as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// The number of the shard.
    pub shard: ShardId,
    /// The name of the node that owns it, while its lease runs.
    pub owner: Option<Box<str>>,
    /// Why it is not known whether the shard has an owner; `None` if it is known.
    pub unknown: Option<Box<str>>,
    /// The epoch of the owner.
    pub epoch: Option<Epoch>,
    /// The name of the node that should own it.
    pub wanted: Option<Box<str>>,
    /// The stage of the shard at this node.
    pub here: ShardStage,
}

/// The stage of a shard at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardStage {
    /// The node does not serve the shard.
    Away,
    /// The node takes the shard and reads what must be in memory.
    Opening,
    /// The node serves the shard.
    Serving,
    /// The node gives the shard up, once it is open if it was being opened.
    Closing,
}

impl ShardStage {
    /// The name of the stage in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ShardStage::Away => "away",
            ShardStage::Opening => "opening",
            ShardStage::Serving => "serving",
            ShardStage::Closing => "closing",
        }
    }
}
