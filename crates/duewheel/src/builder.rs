//! Opening a wheel: data folder, durability and clock.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use duewheel_core::engine::{Config, Quota};
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
#[cfg(feature = "cluster")]
use duewheel_core::store::Coordinator;
use duewheel_core::store::{MAX_SHARDS, Store, StoreError, Waker};
use duewheel_shard::client::Client;
use duewheel_shard::clock::{Clock, SystemClock};
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::runner::{OpenStore, WhenFenced};
use duewheel_shard::shared::Lifecycle;
use duewheel_shard::thread::Shard;
use duewheel_store_log::disk::Disk;
use duewheel_store_log::{LogStore, Options as LogOptions, SyncMode};

use crate::Duewheel;
use crate::backup::{Copier, Newest};
#[cfg(feature = "cluster")]
use crate::cluster::{Joining, NodeOptions, ShardsHere};
use crate::opening::{Common, DataPlace, OpenError, VolatileStore};
use crate::wheel::WheelParts;

/// The guarantee for a change when its answer arrives; see `docs/guarantees.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// `fdatasync` has returned: the change survives a power loss.
    #[default]
    Fsync,
    /// The change was written to the operating system: it survives kill -9; a power loss loses at most the last 50 ms.
    Buffered,
    /// In memory only: the log store without a folder.
    Memory,
}

/// Opens a [`Duewheel`].
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
/// # wheel.shutdown(std::time::Duration::from_secs(1)).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct Builder {
    data: PathBuf,
    durability: Durability,
    /// Whether messages in memory are in plain tables.
    is_model: bool,
    policy: Policy,
    log: LogOptions,
    disk: Option<Arc<dyn Disk>>,
    own: Option<CustomStore>,
    /// The cluster to join, in place of a store.
    #[cfg(feature = "cluster")]
    joining: Option<Joining>,
    /// The number of shards that the caller asks for.
    shards: Option<u32>,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    quotas: Vec<Quota>,
}

/// A store that the caller provides.
struct CustomStore(OpenStore);

impl fmt::Debug for CustomStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store of one's own")
    }
}

impl Duewheel {
    /// Opens the data folder (created if it does not exist) with durability `fsync`; use [`Duewheel::builder`] for all
    /// other settings.
    ///
    /// # Errors
    /// Another process has the folder open, the data is damaged, its format is unknown, or permission is missing: see
    /// [`OpenError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// See [`Builder::open`].
    pub async fn open(data: impl Into<PathBuf>) -> Result<Self, OpenError> {
        Builder::default().data(data).open().await
    }

    /// Starts a [`Builder`], to open a wheel with other settings.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            data: "duewheel-data".into(),
            durability: Durability::Fsync,
            is_model: false,
            policy: Policy::default(),
            log: LogOptions::default(),
            disk: None,
            own: None,
            #[cfg(feature = "cluster")]
            joining: None,
            shards: None,
            clock: Arc::new(SystemClock),
            seed: None,
            quotas: Vec::new(),
        }
    }
}

impl Builder {
    /// The data folder; created if it does not exist. `./duewheel-data` by default.
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = folder.into();
        self
    }

    /// Keeps everything in plain tables in memory, where nothing waits for a thread: for tests.
    /// [`Durability::Memory`] is for many messages that may be lost.
    pub fn in_memory(mut self) -> Self {
        (self.durability, self.is_model) = (Durability::Memory, true);
        self
    }

    /// Sets the guarantee for a change when its answer arrives. [`Durability::Fsync`] by default.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let data = dir.path().join("data");
    /// use duewheel::{Duewheel, Durability, Level};
    ///
    /// let wheel = Duewheel::builder().data(&data).durability(Durability::Buffered).open().await?;
    /// assert_eq!(wheel.queue("sms").body("hello").enqueue().await?.level, Level::Buffered);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        (self.durability, self.is_model) = (durability, false);
        self
    }

    /// Sets limits and defaults.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// use duewheel::{Duewheel, Policy};
    ///
    /// let mut policy = Policy::default();
    /// policy.max_body = 1024 * 1024;
    /// let wheel = Duewheel::builder().in_memory().policy(policy).open().await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the options of the log store: segment size and journal budget.
    pub fn log_options(mut self, options: LogOptions) -> Self {
        self.log = options;
        self
    }

    /// Uses your own store in place of the embedded log. It must fulfil the obligations of [`Store`], which
    /// `duewheel_core::store::conformance` checks (feature `conformance`). It is opened at the start and again after
    /// each failure, always by one owner at a time. [`Builder::data`] and [`Builder::durability`] then have no effect,
    /// and [`Duewheel::backup`] is not available.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// use duewheel::{Duewheel, SECOND, Store};
    /// use duewheel_core::store::{MemoryDisk, MemoryStore};
    ///
    /// let disk = MemoryDisk::default(); // stands for a database of yours
    /// let place = disk.clone();
    /// let open = move |waker| Ok(Box::new(MemoryStore::open(&place, waker)) as Box<dyn Store>);
    /// let wheel = Duewheel::builder().store(open.clone()).open().await?;
    /// wheel.queue("sms").body("hello").delay(60 * SECOND).key("user-7").enqueue().await?;
    /// wheel.shutdown(SECOND).await?;
    ///
    /// let wheel = Duewheel::builder().store(open).open().await?;
    /// assert!(wheel.queue("sms").get_key("user-7").await?.is_some(), "it is there after a restart");
    /// # wheel.shutdown(SECOND).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn store(
        mut self,
        open: impl FnMut(Waker) -> Result<Box<dyn Store>, StoreError> + Send + 'static,
    ) -> Self {
        self.own = Some(CustomStore(Box::new(open)));
        self
    }

    /// The number of shards of a new data folder, which cannot be changed later; an existing one keeps its number and
    /// is refused with another. 1 by default. Each shard has a thread and a journal of its own, so several processors
    /// can work; messages of one queue are in all shards, and order is kept within each. With [`Builder::in_memory`]
    /// there is nothing to keep. [`Builder::store`] and [`Builder::cluster`] have shards of their own.
    ///
    /// The runtime on which it is opened must live as long as the wheel.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let data = dir.path().join("data");
    /// use duewheel::{Duewheel, SECOND};
    ///
    /// let wheel = Duewheel::builder().data(&data).shards(2).open().await?;
    /// wheel.queue("sms").body("hello").delay(60 * SECOND).key("user-7").enqueue().await?;
    /// wheel.shutdown(SECOND).await?;
    ///
    /// assert!(Duewheel::builder().data(&data).shards(3).open().await.is_err(), "the number is fixed");
    /// let wheel = Duewheel::open(&data).await?;
    /// assert!(wheel.queue("sms").get_key("user-7").await?.is_some());
    /// # wheel.shutdown(SECOND).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    #[cfg(feature = "cluster")]
    pub fn shards(mut self, shards: u32) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Opens as a node of a cluster: its shards are opened here when this node becomes their owner, and every operation
    /// is routed to the owner. [`Builder::data`] and [`Builder::durability`] then have no effect, and
    /// [`Duewheel::backup`] is not available.
    ///
    /// The runtime on which it is opened must live as long as the node.
    #[cfg(feature = "cluster")]
    pub fn cluster(mut self, coordinator: Arc<dyn Coordinator>, node: NodeOptions) -> Self {
        self.joining = Some(Joining { coordinator, node });
        self
    }

    /// Runs the log store on this disk in place of the folder's own: one that fails, for tests.
    #[doc(hidden)]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = Some(disk);
        self
    }

    /// Sets the clock; tests use a [`crate::VirtualClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Seeds the random part of backoffs and the keys of hash tables, for repeatable tests. By default the former is
    /// derived from the clock, and the latter are secret: do not set a seed that others know where callers are not
    /// trusted.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets limits for tenants; a tenant is all queues whose names share a prefix. None by default;
    /// [`Duewheel::set_quotas`] changes them later.
    pub fn quotas(mut self, quotas: impl IntoIterator<Item = Quota>) -> Self {
        self.quotas = quotas.into_iter().collect();
        self
    }

    /// Opens the wheel: recovers the stored messages and starts.
    ///
    /// # Errors
    /// See [`OpenError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// When the future is dropped, opening continues in the background and is then undone.
    pub async fn open(self) -> Result<Duewheel, OpenError> {
        let quotas = QuotaSource::default();
        quotas.set(self.quotas, &self.policy)?;
        let common = Common { policy: self.policy, quotas, clock: self.clock, seed: self.seed };
        #[cfg(feature = "cluster")]
        if let Some(joining) = self.joining {
            return Ok(Duewheel::new(joining.open(common).await?));
        }
        let mut log = self.log;
        log.sync = match self.durability {
            Durability::Buffered => SyncMode::Buffered,
            Durability::Fsync => SyncMode::Fsync,
            Durability::Memory => SyncMode::Memory,
        };
        let place = match self.durability {
            Durability::Memory if self.is_model => DataPlace::Memory(VolatileStore::Tables),
            Durability::Memory => DataPlace::Memory(VolatileStore::Log(log)),
            Durability::Fsync | Durability::Buffered => DataPlace::Folder(self.data, log),
        };
        if self.own.is_none() && self.disk.is_none() {
            let shards = number_of_shards(&place, self.shards).await?;
            if shards > 1 {
                return several(shards, place, common).await;
            }
        }
        let (seed, hash_key) = (common.any_seed(), common.hash_key());
        let Common { policy, quotas, clock, .. } = common;
        let (opener, copier): (OpenStore, Copier) = match (self.own, place) {
            (Some(CustomStore(opener)), _) => (opener, Copier::None),
            (None, DataPlace::Memory(store)) => (store.opener(&policy), Copier::None),
            (None, DataPlace::Folder(data, log)) => {
                let disk = self.disk;
                let newest = Arc::new(Newest::of(1));
                let copier = Copier::of(&newest, &data);
                let opener = move |waker| {
                    // The former store is gone, and its handle should not keep its data in memory.
                    newest.set(ShardId(0), None);
                    let store = match &disk {
                        None => LogStore::open(&data, log.clone(), waker)?,
                        Some(disk) => LogStore::open_on(disk.clone(), log.clone(), waker)?,
                    };
                    newest.set(ShardId(0), Some(store.backup_handle()));
                    Ok(Box::new(store) as Box<dyn Store>)
                };
                (Box::new(opener), copier)
            }
        };
        let config = Config { policy: policy.clone(), seed, hash_key, ..Config::default() };
        let source = quotas.clone();
        let fenced = WhenFenced::OpenAgain;
        let started =
            tokio::task::spawn_blocking(move || Shard::start(opener, config, source, clock, fenced)).await;
        let shard = started.map_err(|_| OpenError::Runtime)??;
        let (inbox, shared) = shard.hand_on();
        let life = Lifecycle::new(inbox.clone(), shared.clone());
        let client = Client::new(inbox, shared);
        Ok(Duewheel::new(WheelParts { client, life, copier, policy, quotas, node: None }))
    }
}

/// The number of shards of a data folder, or of memory.
async fn number_of_shards(place: &DataPlace, asked: Option<u32>) -> Result<u32, OpenError> {
    if let Some(asked) = asked.filter(|asked| !(1..=MAX_SHARDS).contains(asked)) {
        return Err(OpenError::NumberOfShards(asked));
    }
    let DataPlace::Folder(data, _) = place else { return Ok(asked.unwrap_or(1)) };
    let (data, dir) = (data.clone(), data.clone());
    let has = tokio::task::spawn_blocking(move || duewheel_store_log::shards_in(dir)).await;
    match (has.map_err(|_| OpenError::Runtime)??, asked) {
        (Some(has), Some(asked)) if has != asked => Err(OpenError::Shards { data, has, asked }),
        (Some(has), _) => Ok(has),
        (None, asked) => Ok(asked.unwrap_or(1)),
    }
}

#[cfg(feature = "cluster")]
async fn several(shards: u32, place: DataPlace, common: Common) -> Result<Duewheel, OpenError> {
    Ok(Duewheel::new(ShardsHere { shards, place }.open(common).await?))
}

#[cfg(not(feature = "cluster"))]
async fn several(shards: u32, place: DataPlace, _common: Common) -> Result<Duewheel, OpenError> {
    let data = match place {
        DataPlace::Folder(data, _) => data,
        DataPlace::Memory(_) => PathBuf::new(),
    };
    Err(OpenError::NeedsCluster { data, shards })
}
