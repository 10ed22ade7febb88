//! Nodes of a cluster, and several shards in this process: one data folder, or memory, with an engine and a thread for
//! each shard.
//!
//! A process with several shards is a cluster of one node: routing, retries and the end of a shard are those of a node
//! whose store is shared. The lock of the folder takes the place of the system by which the nodes of a cluster agree.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel_cluster::{ClusterView, Fleet, FleetError, FleetOptions, PeerCertificates, Router, Started};
use duewheel_core::Epoch;
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{
    Candidate, Coordinator, ErrorKind, Joined, Level, Node, Owner, Ownership, Secrets, Store, StoreError,
    Waker,
};
use duewheel_shard::client::Client;
use duewheel_shard::runner::OpenStore;
use duewheel_shard::shared::Lifecycle;
use duewheel_store_log::{LogStore, Options as LogOptions, ShardFolders, SyncMode};

use crate::Duewheel;
use crate::backup::{Copier, Newest};
use crate::opening::{Common, DataPlace, OpenError, VolatileStore};
use crate::wheel::WheelParts;

/// The options of a cluster node.
///
/// ```
/// let alone = duewheel::NodeOptions::new("a");
/// let with_others = duewheel::NodeOptions::new("a").advertise("10.0.0.1:7800").shards_if_new(16);
/// ```
#[derive(Clone, Debug)]
pub struct NodeOptions {
    fleet: FleetOptions,
}

impl NodeOptions {
    /// A node of this name, which no other live node may have. Without further options it runs alone, and a new cluster
    /// has one shard.
    pub fn new(name: impl Into<String>) -> Self {
        NodeOptions { fleet: FleetOptions::new(name) }
    }

    /// The host and port at which other nodes reach this one; it also listens there. Nodes authenticate each other by a
    /// secret stored in the coordinator, and use TLS. With port 0 a free port is taken.
    #[must_use]
    pub fn advertise(mut self, address: impl Into<String>) -> Self {
        self.fleet.advertise = Some(address.into());
        self
    }

    /// The certificates that this node presents; every other node must then present one of the same authority. Without
    /// them each start of a node generates a key, which is vouched for by the cluster's secret. The secret is required
    /// in both cases.
    #[must_use]
    pub fn certificates(mut self, certificates: PeerCertificates) -> Self {
        self.fleet.certificates = Some(certificates);
        self
    }

    /// The address to listen on, if it differs from the advertised one.
    #[must_use]
    pub fn bind(mut self, address: impl Into<String>) -> Self {
        self.fleet.bind = Some(address.into());
        self
    }

    /// The number of shards of a new cluster, which cannot be changed later; an existing cluster keeps its number.
    #[must_use]
    pub fn shards_if_new(mut self, shards: u32) -> Self {
        self.fleet.shards_if_new = shards;
        self
    }

    /// How long a node that joins must stay before this one hands shards over to it;
    /// [`DEFAULT_SETTLE_DELAY`](crate::DEFAULT_SETTLE_DELAY) by default. A node that joins and leaves repeatedly thus
    /// moves no shards each time. It must be the same at all nodes: a node with another value is refused while others
    /// take part.
    #[must_use]
    pub fn settle_delay(mut self, delay: Duration) -> Self {
        self.fleet.settle_delay = delay;
        self
    }
}

/// A node that is about to join.
#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    pub(crate) node: NodeOptions,
}

impl Joining {
    /// Joins the cluster and creates a client for it.
    pub(crate) async fn open(self, common: Common) -> Result<WheelParts, OpenError> {
        Ok(join(self.coordinator, self.node.fleet, common).await?)
    }
}

/// Joins the cluster and creates a client for it.
pub(crate) async fn join(
    coordinator: Arc<dyn Coordinator>,
    mut options: FleetOptions,
    common: Common,
) -> Result<WheelParts, FleetError> {
    let Common { policy, quotas, clock, seed } = common;
    options.quotas = quotas.clone();
    options.seed = seed;
    let Started { fleet, shared, inbox, sessions } =
        Fleet::start(coordinator, options, policy.clone(), clock).await?;
    let runtime = tokio::runtime::Handle::current();
    let router =
        Router::new(fleet.clone(), policy.clone(), &inbox, &shared, quotas.clone(), sessions, runtime);
    let life = Lifecycle::new(inbox.clone(), shared.clone());
    let client = Client::routed(inbox, shared, router, sessions);
    Ok(WheelParts { client, life, copier: Copier::None, policy, quotas, node: Some(fleet) })
}

impl Duewheel {
    /// The cluster as this node sees it, or the shards of this process; `None` for a single store.
    pub fn cluster(&self) -> Option<ClusterView> {
        self.fleet().map(Fleet::view)
    }

    /// The number of submissions that this node has forwarded to each other node since it started, by that node's name.
    pub fn cluster_forwards(&self) -> Vec<(Box<str>, u64)> {
        self.fleet().map(Fleet::forwards).unwrap_or_default()
    }

    /// Metrics of the node for `/metrics`; names without prefix.
    pub fn cluster_figures(&self) -> Option<[(&'static str, u64); 4]> {
        self.fleet().map(Fleet::figures)
    }

    fn fleet(&self) -> Option<&Fleet> {
        self.node()
    }
}

/// The name of the only node.
const NAME: &str = "duewheel";
/// No other node can take a shard. The node looks at its shards in pauses that follow from this.
const LEASE: Duration = Duration::from_secs(2);
/// Most stores that are opened at a time: each reads its journal.
const MAX_OPENING: usize = 8;

/// Shards of this process that are about to be opened.
#[derive(Debug)]
pub(crate) struct ShardsHere {
    pub(crate) shards: u32,
    pub(crate) place: DataPlace,
}

impl ShardsHere {
    /// Opens all shards, as the only node of a cluster.
    pub(crate) async fn open(self, common: Common) -> Result<WheelParts, OpenError> {
        let mut copier = Copier::None;
        let of_shard = |mut log: LogOptions| {
            log.id_step = u64::from(self.shards);
            log.segment_bytes = segment_bytes(log.segment_bytes, self.shards, &common.policy);
            log
        };
        let medium = match self.place {
            DataPlace::Memory(store) => {
                let store = match store {
                    VolatileStore::Tables => VolatileStore::Tables,
                    VolatileStore::Log(log) => VolatileStore::Log(of_shard(log)),
                };
                ShardMedium::Memory(
                    (0..self.shards).map(|_| Mutex::new(store.clone().opener(&common.policy))).collect(),
                )
            }
            DataPlace::Folder(data, log) => {
                let log = of_shard(log);
                let newest = Arc::new(Newest::of(self.shards));
                copier = Copier::of(&newest, &data);
                ShardMedium::Folder { data, log, newest }
            }
        };
        let alone = Arc::new(Alone { shards: self.shards, medium, state: Mutex::default() });
        let opening = alone.clone();
        let opened = tokio::task::spawn_blocking(move || opening.open_all()).await;
        opened.map_err(|_| OpenError::Runtime)??;
        let mut options = FleetOptions::new(NAME);
        options.settle_delay = Duration::ZERO;
        let parts = join(alone, options, common).await?;
        Ok(WheelParts { copier, ..parts })
    }
}

/// The size of each shard's journal segments, of which a few are prepared: less than that of a lone shard, so that
/// several do not take several times the space, and enough for the largest group.
fn segment_bytes(of_one: u64, shards: u32, policy: &Policy) -> u64 {
    let least = 2 * policy.least_group() as u64;
    (of_one / u64::from(shards.max(1))).max(least.min(of_one))
}

/// The coordinator of a single process, which owns all shards from its start to its end.
struct Alone {
    shards: u32,
    medium: ShardMedium,
    state: Mutex<AloneState>,
}

enum ShardMedium {
    /// An opener for each shard.
    Memory(Vec<Mutex<OpenStore>>),
    Folder {
        data: PathBuf,
        log: LogOptions,
        newest: Arc<Newest>,
    },
}

#[derive(Default)]
struct AloneState {
    /// The folder, until the node has left.
    folders: Option<ShardFolders>,
    /// Stores that were opened before their drivers.
    opened: Vec<Option<EarlyStore>>,
    /// The owner of each shard whose store has been opened, and its epoch.
    owners: Vec<Option<(Node, Epoch)>>,
}

/// A store that waits for its driver.
struct EarlyStore {
    store: LogStore,
    waker: Arc<LateWaker>,
}

/// Wakes a driver that does not exist yet when its store is opened.
#[derive(Default)]
struct LateWaker(Mutex<Option<Waker>>);

impl LateWaker {
    fn wake(&self) {
        if let Some(waker) = &*lock(&self.0) {
            waker();
        }
    }
}

impl fmt::Debug for Alone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alone").field("shards", &self.shards).finish_non_exhaustive()
    }
}

impl Alone {
    /// Opens the stores of all shards: what is damaged or owned by another process is refused before anything is
    /// served.
    fn open_all(&self) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        state.owners = vec![None; self.shards as usize];
        let ShardMedium::Folder { data, .. } = &self.medium else { return Ok(()) };
        let mut folders = ShardFolders::open(data, self.shards)?;
        let all: Vec<ShardId> = (0..self.shards).map(ShardId).collect();
        let mut opened = Vec::new();
        for some in all.chunks(MAX_OPENING) {
            let stores: Vec<Result<EarlyStore, StoreError>> = std::thread::scope(|scope| {
                let open = |shard: &ShardId| {
                    let folder = folders.folder(*shard);
                    scope.spawn(move || self.open_early(folder))
                };
                let opening: Vec<_> = some.iter().map(open).collect();
                opening.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
            });
            for store in stores {
                opened.push(Some(store?));
            }
        }
        folders.complete()?;
        (state.folders, state.opened) = (Some(folders), opened);
        Ok(())
    }

    fn open_early(&self, folder: PathBuf) -> Result<EarlyStore, StoreError> {
        let ShardMedium::Folder { log, .. } = &self.medium else { return Err(closed()) };
        let waker = Arc::new(LateWaker::default());
        let wakes = waker.clone();
        let store = LogStore::open(folder, log.clone(), Arc::new(move || wakes.wake()))?;
        Ok(EarlyStore { store, waker })
    }
}

impl Coordinator for Alone {
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError> {
        // Each start has another one, like the epoch of the first shard's store.
        let opened = lock(&self.state);
        let first = opened.opened.first().and_then(Option::as_ref);
        let number = first.map_or(1, |early| early.store.epoch().0);
        let node = Node { name: candidate.name.clone(), advertise: candidate.advertise.clone(), number };
        Ok(Joined { node, shards: self.shards, secret: [0; 32], is_alone: true })
    }

    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError> {
        Ok(vec![node.clone()])
    }

    fn leave(&self, _node: &Node) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        state.opened.clear();
        // Another may open the folder from now on.
        state.folders = None;
        Ok(())
    }

    fn secrets(&self) -> Result<Secrets, StoreError> {
        Ok(Secrets { current: [0; 32], former: None })
    }

    fn owners(&self) -> Result<Vec<Ownership>, StoreError> {
        let state = lock(&self.state);
        let owner = |owner: &Option<(Node, Epoch)>| match owner {
            Some((node, epoch)) => Ownership::Owned(Owner { node: node.clone(), epoch: *epoch }),
            None => Ownership::Free,
        };
        Ok(state.owners.iter().map(owner).collect())
    }

    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let at = shard.0 as usize;
        let (early, folder) = {
            let mut state = lock(&self.state);
            let early = state.opened.get_mut(at).and_then(Option::take);
            (early, state.folders.as_ref().map(|folders| folders.folder(shard)))
        };
        let (store, epoch): (Box<dyn Store>, _) = match &self.medium {
            ShardMedium::Memory(openers) => {
                let opener = openers.get(at).ok_or_else(closed)?;
                ((lock(opener))(waker)?, Epoch(1))
            }
            ShardMedium::Folder { log, newest, .. } => {
                // The former store is gone, and its handle should not keep its data in memory.
                newest.set(shard, None);
                let store = match early {
                    Some(EarlyStore { store, waker: late }) => {
                        *lock(&late.0) = Some(waker);
                        store
                    }
                    None => LogStore::open(folder.ok_or_else(closed)?, log.clone(), waker)?,
                };
                newest.set(shard, Some(store.backup_handle()));
                let epoch = store.epoch();
                (Box::new(store), epoch)
            }
        };
        if let Some(owner) = lock(&self.state).owners.get_mut(at) {
            *owner = Some((node.clone(), epoch));
        }
        Ok(store)
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    fn level(&self) -> Level {
        match &self.medium {
            ShardMedium::Memory(_) => Level::Memory,
            ShardMedium::Folder { log, .. } => match log.sync {
                SyncMode::Fsync => Level::Fsync,
                SyncMode::Buffered => Level::Buffered,
                SyncMode::Memory => Level::Memory,
            },
        }
    }
}

fn closed() -> StoreError {
    StoreError::new(ErrorKind::Closed, "the data folder is closed")
}

fn panicked() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "a bug: opening a shard has panicked; see the log")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
