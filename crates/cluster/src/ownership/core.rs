//! The state that the parts of a node share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel_core::engine::Op;
use duewheel_core::id::ShardId;
use duewheel_core::store::Node;
use duewheel_shard::inbox::Inbox;
use duewheel_shard::shared::{DriverShared, EndOnPanic};

use crate::forwarding::routes::RouteTable;
use crate::ownership::locals::LocalCounters;
use crate::ownership::view::ClusterView;
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
