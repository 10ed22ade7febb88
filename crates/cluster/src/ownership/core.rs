//! The state that the parts of a node share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use duewheel_core::engine::Op;
use duewheel_core::id::{Epoch, ShardId};
use duewheel_core::store::{Node, StoreError};
use duewheel_shard::client::LocalShard;
use duewheel_shard::inbox::Inbox;
use duewheel_shard::shared::{DriverShared, EndOnPanic};

use crate::forwarding::routes::RouteTable;
use crate::transport::Host;

/// The state that the parts of a node share.
pub(crate) struct Core {
    pub(crate) me: Node,
    pub(crate) shards: u32,
    pub(crate) lease: Duration,
    pub(crate) routes: RouteTable,
    pub(crate) shared: Arc<DriverShared>,
    pub(crate) inbox: Arc<Inbox>,
    /// Set when the owners of all shards must be read.
    pub(crate) look: Arc<AtomicBool>,
    /// Set when another node says that the members may have changed.
    pub(crate) nudged: AtomicBool,
    pub(crate) moves: AtomicU64,
    pub(crate) locals: LocalCounters,
    /// The cluster as last read, and when it was read by [`Clock::running`](duewheel_shard::clock::Clock::running).
    pub(crate) view: Mutex<(ClusterView, Duration)>,
    /// For tests: the node shall end as if it had been killed.
    pub(crate) killed: AtomicBool,
}

impl Host for Core {
    fn inbox(&self, shard: ShardId) -> Result<Arc<Inbox>, Box<str>> {
        self.routes.here(shard).ok_or_else(|| format!("node {} does not own the shard", self.me.name).into())
    }

    fn put_back(&self, shard: ShardId, op: Op) {
        self.routes.put_back(shard, op);
    }

    fn nudged(&self) {
        self.nudged.store(true, Ordering::SeqCst);
        self.look();
    }

    fn end_on_panic(&self) -> EndOnPanic {
        EndOnPanic::new(&self.shared, &self.inbox, "the way between nodes")
    }
}

impl Core {
    /// Makes the reconciler read the owners of shards soon.
    pub(crate) fn look(&self) {
        self.look.store(true, Ordering::SeqCst);
        self.inbox.wake();
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, (ClusterView, Duration)> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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

/// The longest name of a node and the longest address, in bytes, so that a greeting can hold them.
pub(crate) const MAX_NAME: usize = 200;

/// Why a node cannot join the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The coordinator refuses, or cannot be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another living node has this name, or a dead one whose lease has not run out yet.
    #[error("another living node has the name {0:?}; each node needs its own")]
    NameTaken(String),
    /// The node has no address, so no other node could reach it, and there are other nodes.
    #[error("other nodes take part ({0}), and this one has no address for them; start it with --advertise")]
    NotAlone(String),
    /// Another node runs without an address and owns all shards.
    #[error("node {0} runs in single-node mode and owns all shards; start it with --advertise")]
    OtherIsAlone(String),
    /// The name or the address is not valid.
    #[error("a node's name and address have 1 to {MAX_NAME} bytes each")]
    BadName,
    /// The node cannot listen at this address.
    #[error("cannot listen for other nodes at {0}: {1}")]
    Listen(String, io::Error),
    /// The node cannot set up TLS for connections to other nodes.
    #[error("cannot speak TLS with other nodes: {0}")]
    Tls(io::Error),
    /// A thread could not be started.
    #[error("no thread could be started: {0}")]
    Thread(io::Error),
    /// The node ended while it started.
    #[error("the node ended while it started: {0}")]
    Ended(String),
    /// The async runtime was shut down while the node started.
    #[error("the async runtime was shut down while the node started")]
    Runtime,
}

/// Why these nodes cannot form one cluster; `None` if they can.
pub(crate) fn stranger(me: &Node, nodes: &[Node]) -> Option<FleetError> {
    let mut others = nodes.iter().filter(|node| node.number != me.number);
    if me.advertise.is_empty() {
        let names: Vec<&str> = others.map(|node| &*node.name).collect();
        return (!names.is_empty()).then(|| FleetError::NotAlone(names.join(", ")));
    }
    let alone = others.find(|node| node.advertise.is_empty())?;
    Some(FleetError::OtherIsAlone(alone.name.to_string()))
}
