//! Settings and errors of opening a wheel, wherever its messages are.

use std::path::PathBuf;
use std::sync::Arc;

use duewheel_core::engine::{BadQuota, GeometryError};
use duewheel_core::hash_key::HashKey;
use duewheel_core::policy::Policy;
use duewheel_core::store::{MAX_SHARDS, MemoryStore, Store, StoreError};
use duewheel_shard::clock::Clock;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::random;
use duewheel_shard::runner::{OpenStore, StartError};
use duewheel_store_log::disk::RamDisk;
use duewheel_store_log::{LogStore, Options as LogOptions};

/// The settings that apply wherever the messages are.
pub(crate) struct Common {
    pub(crate) policy: Policy,
    pub(crate) quotas: QuotaSource,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: Option<u64>,
}

impl Common {
    /// The configured seed, or one derived from the clock.
    pub(crate) fn any_seed(&self) -> u64 {
        let reading = self.clock.read();
        self.seed.unwrap_or(reading.wall_ns ^ reading.elapsed_ns.rotate_left(32))
    }

    /// The key of the hash tables: from the configured seed, or a secret one.
    pub(crate) fn hash_key(&self) -> HashKey {
        random::hash_key(self.seed)
    }
}

/// Why the wheel could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The store could not be opened: another process has the folder open, the data is damaged, its format is unknown,
    /// or permission is missing.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The data folder has another number of shards than was asked for; the number cannot be changed.
    #[error("{} has {has} {}, which cannot be changed, and {asked} were asked for", data.display(), if *has == 1 { "shard" } else { "shards" })]
    Shards {
        /// The data folder.
        data: PathBuf,
        /// The number of shards of the folder.
        has: u32,
        /// The number that was asked for.
        asked: u32,
    },
    /// The number of shards that was asked for is impossible.
    #[error("{0} shards: there must be from 1 to {MAX_SHARDS}")]
    NumberOfShards(u32),
    /// The data folder has several shards, and this program was built without the feature `cluster`.
    #[error("{} has {shards} shards, which needs the feature `cluster` of the crate", data.display())]
    NeedsCluster {
        /// The data folder.
        data: PathBuf,
        /// The number of shards of the folder.
        shards: u32,
    },
    /// The policy has a ring of an impossible size.
    #[error("the ring cannot be made: {0}")]
    Policy(GeometryError),
    /// A quota is invalid.
    #[error(transparent)]
    Quota(#[from] BadQuota),
    /// The node cannot join its cluster.
    #[cfg(feature = "cluster")]
    #[error(transparent)]
    Node(#[from] duewheel_cluster::FleetError),
    /// The operating system could not start a thread.
    #[error("no thread could be started: {0}")]
    Thread(std::io::Error),
    /// The async runtime has stopped.
    #[error("the async runtime was shut down while the wheel was opened")]
    Runtime,
}

impl From<StartError> for OpenError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => OpenError::Store(error),
            StartError::Policy(error) => OpenError::Policy(error),
            StartError::Thread(error) => OpenError::Thread(error),
        }
    }
}

/// Where the messages of a wheel without a store of the caller's own are.
#[derive(Clone, Debug)]
pub(crate) enum DataPlace {
    Folder(PathBuf, LogOptions),
    Memory(VolatileStore),
}

/// A store whose data ends with the process.
#[derive(Clone, Debug)]
pub(crate) enum VolatileStore {
    /// Plain tables, in which everything is at hand: for tests.
    Tables,
    /// The log store on a disk in memory.
    Log(LogOptions),
}

impl VolatileStore {
    /// Opens the store of a shard, which has its data until the opener is dropped: also after a failure of the store.
    pub(crate) fn opener(self, policy: &Policy) -> OpenStore {
        let (bytes, disk) = (policy.least_group(), Arc::new(RamDisk::default()));
        Box::new(move |waker| {
            Ok(match &self {
                VolatileStore::Tables => {
                    Box::new(MemoryStore::with_waker(waker).taking(bytes)) as Box<dyn Store>
                }
                VolatileStore::Log(options) => {
                    Box::new(LogStore::open_on(disk.clone(), options.clone(), waker)?)
                }
            })
        })
    }
}
