//! The coordinator on Redis: membership of nodes, and ownership of shards.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use duewheel_core::ShardId;
use duewheel_core::store::{
    Candidate, Coordinator, ErrorKind, Joined, Level, MAX_SHARDS, Node, Ownership, PLACEMENT, Secrets, Store,
    StoreError, Waker,
};
use duewheel_store_medium::{
    Acquired, FillFolder, Medium, MediumFiles, MediumStore, ROTATION_LEASES, RestoreTarget, SecretRotation,
    hex, millis, name_in_use, option_differs, random,
};
use redis::{Cmd, Pipeline, Value};

use crate::cluster::CoordinatorInner;
use crate::files::RedisReader;
use crate::keeping::Finding;
use crate::keys::{self, Keys};
use crate::options::{Create, Options};
use crate::reign::{Claimant, ClusterIdentity, FORMAT, RESTORING, unknown_format};
use crate::reset::Reset;
use crate::wire::wait_for;
use crate::{fault, leases};

/// Nodes and shards in Redis.
///
/// Every call ends within the connect and response timeouts of its [`Options`], and needs no runtime of the caller's.
/// Do not call it on a thread that may not block.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use duewheel_core::ShardId;
/// use duewheel_core::store::{Candidate, Coordinator};
/// use duewheel_store_redis::{Options, RedisCoordinator};
///
/// let nodes = RedisCoordinator::new(Options::parse("redis-cluster://10.0.0.1,10.0.0.2")?);
/// let candidate =
///     Candidate { name: "a".into(), advertise: "10.0.1.1:7600".into(), shards_if_new: 16, settle_delay: Duration::from_secs(10) };
/// let joined = nodes.join(&candidate)?;
/// let store = nodes.open(&joined.node, ShardId(0), Arc::new(|| {}))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisCoordinator {
    inner: Arc<CoordinatorInner>,
}

impl RedisCoordinator {
    /// Makes a coordinator, which does not connect yet.
    pub fn new(options: Options) -> Self {
        RedisCoordinator { inner: Arc::new(CoordinatorInner::new(options)) }
    }

    /// The address of Redis, and the settings.
    pub fn options(&self) -> &Options {
        &self.inner.servers.0
    }

    /// How safely the masters keep changes, in sentences for their operator. Call it at startup.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when a master has no append-only file and [`Options::without_aof`] was not set, cannot
    /// give what [`Options::wait_for`] demands, or refuses user and password; [`ErrorKind::Unavailable`] when no master
    /// can be asked; a single one that cannot be asked is a finding.
    pub fn inspect(&self) -> Result<Vec<Finding>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.inspect().await }).map_err(fault::at_start)
    }

    /// Gives up data that Redis has lost: creates the cluster's key and the missing shards, and keeps the others. In an
    /// empty Redis it creates a cluster of `shards_if_new` shards. Nothing that exists is changed, and no id is given
    /// again.
    ///
    /// The reset is complete when this returns; an interrupted one can be repeated.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] while a node takes part, [`ErrorKind::Corrupt`] when the remaining data does not belong
    /// together, [`ErrorKind::Unavailable`] when Redis does not answer.
    pub fn reset(&self, shards_if_new: u32) -> Result<Reset, StoreError> {
        let inner = Arc::clone(&self.inner);
        wait_for(async move { inner.reset(shards_if_new).await })
    }

    /// Begins to replace the secret by which nodes authenticate each other: from now on a new one is valid, and also
    /// the former one, for nodes that have not read the new one yet. This survives a crash: an interrupted rotation can
    /// be continued.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when there is no cluster, [`ErrorKind::Unavailable`] when Redis does not answer, or when
    /// too few replicas know of the rotation (with [`Options::wait_replicas`]).
    pub fn begin_rotation(&self) -> Result<SecretRotation, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.begin_rotation().await })
    }

    /// Ends the validity of the former secret, and the connections that were authenticated by it. Call it
    /// [`SecretRotation::wait`] after [`RedisCoordinator::begin_rotation`]; without a rotation nothing changes.
    ///
    /// # Errors
    /// See [`RedisCoordinator::begin_rotation`].
    pub fn end_rotation(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.end_rotation().await })
    }

    /// Acquires a shard, without opening its store: its files in Redis, for their owner. `waker` is called when the lease
    /// is lost.
    ///
    /// # Errors
    /// As [`Coordinator::open`].
    pub fn acquire(
        &self,
        node: &Node,
        shard: ShardId,
        waker: Waker,
    ) -> Result<(Arc<dyn Medium>, Acquired), StoreError> {
        let acquired = leases::acquire(self.inner.servers.clone(), shard, self.claimant(node), waker);
        acquired.map(|(files, acquired)| (Arc::new(files) as Arc<dyn Medium>, acquired))
    }

    /// The files of a shard, to read, whether it has an owner or not.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when its master does not answer.
    pub fn read(&self, shard: ShardId) -> Result<Arc<dyn MediumFiles>, StoreError> {
        let servers = self.inner.servers.clone();
        let reader = self.bounded(async move { RedisReader::connect(&servers, shard).await })?;
        Ok(Arc::new(reader))
    }

    /// Whether an owner has written to a shard, or the shard is missing although it was there: then files were there,
    /// too.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when Redis does not answer, [`ErrorKind::Corrupt`] when what it says is no number.
    pub fn has_been_written(&self, shard: ShardId) -> Result<bool, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.has_been_written(shard).await })
    }

    pub(crate) fn inner(&self) -> &Arc<CoordinatorInner> {
        &self.inner
    }

    fn claimant(&self, node: &Node) -> Claimant {
        let Node { name, advertise, number } = node.clone();
        Claimant { node: name, number, advertise, cluster: self.inner.joined() }
    }

    fn call(&self, call: Cmd) -> Result<Vec<Value>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move {
            let reply = inner.of_cluster(call).await?;
            fault::list(fault::some(reply.into_iter().next(), "node")?, "node")
        })
    }

    fn bounded<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let options = self.options();
        // Each step has a limit of its own, and cleans up after itself; this limit is for all of them together.
        let most = options.connect_timeout * 2 + self.inner.time_limit() * 2;
        wait_for(async move {
            let late = |_| StoreError::new(ErrorKind::Unavailable, "Redis does not answer in time");
            tokio::time::timeout(most, work).await.map_err(late)?
        })
    }
}

impl Coordinator for RedisCoordinator {
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError> {
        let Candidate { name, advertise, shards_if_new, settle_delay } = candidate;
        let inner = &self.inner;
        let mut call = inner.node_call("join", name, 0, advertise);
        let if_new = ClusterIdentity {
            id: hex(&random::<16>()?),
            shards: (*shards_if_new).max(1),
            secret: random::<32>()?,
            made: false,
        };
        let new = if inner.options().create == Create::Always { "new" } else { "" };
        inner.about(&mut call, Some(&if_new), new);
        call.arg(millis(*settle_delay));
        let of = "join";
        let mut words = self.call(call)?.into_iter();
        let mut next = || fault::text(words.next().unwrap_or_default(), of);
        match next()?.as_deref() {
            Some("OK") => {
                let number = |text: Option<String>| text.and_then(|n| n.parse().ok());
                let number = fault::some(number(next()?), of)?;
                let (shards, secret, id, made) = (next()?, next()?, next()?, next()?);
                let cluster = inner.cluster_of(id, shards, secret, made.is_some_and(|made| made == "1"))?;
                let (shards, secret) = (cluster.shards, cluster.secret);
                inner.note_joined(cluster);
                let node = Node { name: name.clone(), advertise: advertise.clone(), number };
                let all = Arc::clone(inner);
                if let Err(error) = self.bounded(async move { all.replicas_know().await }) {
                    let _ = self.leave(&node); // or its time runs out
                    return Err(error);
                }
                Ok(Joined { node, shards, secret, is_alone: false })
            }
            Some("EMPTY") => {
                let what = format_args!(
                    "{} is not there, and must not be made (--redis-create never): Redis is new, was emptied or has lost its data. \
                     Give Redis its data back, or make a cluster by `duewheel cluster reset`",
                    inner.cluster_key()
                );
                Err(StoreError::new(ErrorKind::Corrupt, what.to_string()))
            }
            Some("OTHER") => {
                let (_, placement) = (next()?, next()?.unwrap_or_default());
                let what = format_args!(
                    "{} places messages by rule {placement}; this version knows {PLACEMENT}",
                    inner.cluster_key()
                );
                Err(StoreError::new(ErrorKind::Corrupt, what.to_string()))
            }
            Some("LEASE") => {
                let lease = next()?.unwrap_or_default();
                Err(option_differs("--shard-lease", lease, millis(inner.options().lease)))
            }
            Some("SETTLE") => {
                let delay = next()?.unwrap_or_default();
                Err(option_differs("--settle-delay", delay, millis(*settle_delay)))
            }
            Some("HELD") => Err(name_in_use(name, next()?.unwrap_or_default())),
            Some("FORMAT") => Err(unknown_format(inner.cluster_key(), &next()?.unwrap_or_default())),
            _ => Err(fault::odd(of)),
        }
    }

    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError> {
        let of = "beat";
        let mut call = self.inner.node_call("beat", &node.name, node.number, &node.advertise);
        let joined = self.inner.joined();
        self.inner.about(&mut call, joined.as_ref(), "");
        let mut words = self.call(call)?.into_iter().map(|word| fault::text(word, of));
        match words.next().transpose()?.flatten().as_deref() {
            Some("OK") => {}
            Some("FENCED") => {
                let what = format_args!("another node has taken the name {:?}", node.name).to_string();
                return Err(StoreError::new(ErrorKind::Fenced, what));
            }
            Some("OTHER") => {
                let id = words.next().transpose()?.flatten().unwrap_or_default();
                let mine = joined.map_or_else(String::new, |cluster| cluster.id);
                let what = format_args!(
                    "{} is of cluster {id:?}, and not of {mine:?}, which this node has joined: it was made anew meanwhile",
                    self.inner.cluster_key()
                );
                return Err(StoreError::new(ErrorKind::Corrupt, what.to_string()));
            }
            Some("FORMAT") => {
                let stored = words.next().transpose()?.flatten().unwrap_or_default();
                return Err(unknown_format(self.inner.cluster_key(), &stored));
            }
            _ => return Err(fault::odd(of)),
        }
        let mut nodes = Vec::new();
        while let Some(name) = words.next() {
            let mut next = || fault::some(words.next().transpose()?.flatten(), of);
            let (number, advertise) = (next()?, next()?);
            let number = number.parse().map_err(|_| fault::odd(of))?;
            nodes.push(Node { name: fault::some(name?, of)?.into(), advertise: advertise.into(), number });
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    fn secrets(&self) -> Result<Secrets, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.secrets().await })
    }

    fn leave(&self, node: &Node) -> Result<(), StoreError> {
        self.call(self.inner.node_call("leave", &node.name, node.number, &node.advertise)).map(drop)
    }

    fn owners(&self) -> Result<Vec<Ownership>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.owners().await })
    }

    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let store = leases::open_as(self.inner.servers.clone(), shard, self.claimant(node), waker)?;
        Ok(Box::new(store))
    }

    fn lease(&self) -> Duration {
        self.inner.servers.0.lease
    }

    fn level(&self) -> Level {
        Level::BestEffortReplicated
    }
}

impl fmt::Debug for RedisCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCoordinator").field("options", self.options()).finish_non_exhaustive()
    }
}

impl CoordinatorInner {
    /// Writes a new secret; the former one also stays valid.
    pub(crate) async fn begin_rotation(&self) -> Result<SecretRotation, StoreError> {
        let (is_new, wait) = self.rotate("begin", &hex(&random::<32>()?)).await?;
        self.replicas_know().await?;
        Ok(SecretRotation { is_new, wait })
    }

    /// Ends the validity of the former secret.
    pub(crate) async fn end_rotation(&self) -> Result<(), StoreError> {
        self.rotate("end", "").await?;
        self.replicas_know().await
    }

    async fn rotate(&self, step: &str, new: &str) -> Result<(bool, Duration), StoreError> {
        let of = "rotate";
        let mut call = redis::cmd("EVAL");
        call.arg(keys::rotate()).arg(1).arg(self.cluster_key()).arg(step).arg(FORMAT).arg(new);
        let reply = fault::some(self.of_cluster(call).await?.into_iter().next(), of)?;
        let mut words = fault::list(reply, of)?.into_iter();
        let mut next = || fault::text(words.next().unwrap_or_default(), of);
        let (word, second) = (next()?, next()?);
        let is_new = match word.as_deref() {
            Some("OK") => true,
            Some("BEGUN") => false,
            Some("FORMAT") => {
                return Err(unknown_format(self.cluster_key(), &second.unwrap_or_default()));
            }
            Some("EMPTY") => {
                let what = format_args!("{} is not there: no node has taken part yet", self.cluster_key());
                return Err(StoreError::new(ErrorKind::Corrupt, what.to_string()));
            }
            _ => return Err(fault::odd(of)),
        };
        let lease = second.and_then(|ms| ms.parse().ok()).map_or(self.options().lease, Duration::from_millis);
        Ok((is_new, lease * ROTATION_LEASES))
    }
}

// Restores a backup to Redis.
//
// The format of the cluster's key says that a restore has begun, from before the first shard is made until the last is
// complete. A restore that has not ended is begun anew, under a new id of the cluster: an earlier restore that still
// runs acquires no further shard, and cannot end.

impl RestoreTarget for RedisCoordinator {
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError> {
        let inner = Arc::clone(self.inner());
        wait_for(async move { inner.begin_restore(shards).await })
    }

    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError> {
        let node = Node { name: "duewheel restore".into(), advertise: "".into(), number: 0 };
        let (medium, acquired) = self.acquire(&node, shard, Arc::clone(&waker))?;
        let options = self.options();
        MediumStore::restore(medium, &options.shared, options.log.clone(), &acquired, waker, fill)
    }

    fn end_restore(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(self.inner());
        wait_for(async move {
            match inner.restore_step("end", &inner.restored()?).await?.as_str() {
                "OK" => inner.replicas_know().await,
                "OTHER" => {
                    let what = "another restore of the store has begun since, or its keys were removed";
                    Err(StoreError::new(ErrorKind::Fenced, what))
                }
                _ => Err(fault::odd("restore")),
            }
        })
    }
}

impl CoordinatorInner {
    /// The cluster that is being restored.
    fn restored(&self) -> Result<ClusterIdentity, StoreError> {
        let closed = || StoreError::new(ErrorKind::Closed, "no restore has begun");
        self.joined().ok_or_else(closed)
    }

    async fn begin_restore(&self, shards: u32) -> Result<(), StoreError> {
        let living = self.living().await?;
        let is_restoring = self.is_restoring().await?;
        let heads = self.heads(MAX_SHARDS).await?;
        if let (Some(head), false) = (heads.first(), is_restoring) {
            return Err(there(&format!("its shard {}", head.shard), &living));
        }
        for head in &heads {
            self.wipe("look", head.shard).await?;
        }
        let id = hex(&random::<16>()?);
        let cluster = ClusterIdentity { id, shards, secret: random::<32>()?, made: false };
        if let Some((_, shards)) = self.restore_step("begin", &cluster).await?.split_once(' ') {
            return Err(there(&format!("a cluster with shards: {shards}"), &living));
        }
        // Only now: whatever an earlier restore still makes belongs to another cluster.
        for head in &heads {
            self.wipe("wipe", head.shard).await?;
        }
        self.note_joined(cluster);
        self.replicas_know().await
    }

    /// Whether the key of the cluster says that a restore has not ended.
    async fn is_restoring(&self) -> Result<bool, StoreError> {
        let mut call = redis::cmd("HGET");
        call.arg(self.cluster_key()).arg("format");
        let reply = fault::some(self.of_cluster(call).await?.into_iter().next(), "HGET")?;
        match fault::text(reply, "HGET")?.as_deref() {
            Some(RESTORING) => Ok(true),
            Some(FORMAT) | None => Ok(false),
            Some(other) => Err(unknown_format(self.cluster_key(), other)),
        }
    }

    /// The answer of the script that begins and ends a restore.
    async fn restore_step(&self, verb: &str, cluster: &ClusterIdentity) -> Result<String, StoreError> {
        let mut call = redis::cmd("EVAL");
        call.arg(keys::restore()).arg(1).arg(self.cluster_key());
        call.arg(verb).arg(RESTORING).arg(FORMAT).arg(&cluster.id);
        call.arg(cluster.shards).arg(hex(&cluster.secret)).arg(PLACEMENT);
        let reply = self.of_cluster(call).await?.into_iter().next();
        fault::some(fault::text(fault::some(reply, "restore")?, "restore")?, "restore")
    }

    /// Removes what an unfinished restore has left of a shard, or only looks whether that may be done.
    async fn wipe(&self, verb: &str, shard: ShardId) -> Result<(), StoreError> {
        let keys = Keys::new(&self.options().prefix, shard);
        let mut call = redis::cmd("EVAL");
        call.arg(keys::wipe()).arg(4).arg(&keys.owner).arg(&keys.head).arg(&keys.files).arg(&keys.blocks);
        call.arg(verb).arg(&keys.block);
        let mut ask = Pipeline::new();
        ask.add_command(call);
        keys::answered(self.of_key(&keys.owner, ask).await?).map(drop)
    }
}

/// The refusal of a restore to a store that exists.
fn there(what: &str, living: &[String]) -> StoreError {
    let nodes = match living {
        [] => String::new(),
        names => format!(", living nodes: {}", names.join(", ")),
    };
    let what = format_args!(
        "there is a store already: {what}{nodes}. A backup is restored to an empty Redis, or under a --redis-prefix of \
         its own"
    );
    StoreError::new(ErrorKind::Corrupt, what)
}
