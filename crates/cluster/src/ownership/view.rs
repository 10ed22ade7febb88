//! The cluster as this node sees it, for people.

use std::time::Duration;

use duewheel_core::id::{Epoch, ShardId};
use duewheel_core::store::Node;

/// The cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// This node.
    pub me: Node,
    /// All nodes that take part, this one included, by name.
    pub nodes: Vec<Node>,
    /// All shards, in order.
    pub shards: Vec<ShardView>,
    /// How long ago all of this was read from what the nodes agree by.
    pub age: Duration,
}

/// A shard as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    /// Which one.
    pub shard: ShardId,
    /// The name of the node that owns it, while its lease runs.
    pub owner: Option<Box<str>>,
    /// Why it is not known whether it has an owner, if it is not.
    pub unknown: Option<Box<str>>,
    /// The owner's reign.
    pub epoch: Option<Epoch>,
    /// The name of the node that should own it.
    pub wanted: Option<Box<str>>,
    /// What it is to this node.
    pub here: ShardStage,
}

/// What a shard is to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardStage {
    /// Not here.
    Away,
    /// It takes it, and reads what must be in memory.
    Opening,
    /// It serves it.
    Serving,
    /// It gives it up, as soon as it is open if it was being opened.
    Closing,
}

impl ShardStage {
    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            ShardStage::Away => "away",
            ShardStage::Opening => "opening",
            ShardStage::Serving => "serving",
            ShardStage::Closing => "closing",
        }
    }
}
