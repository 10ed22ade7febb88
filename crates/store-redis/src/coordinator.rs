//! What several nodes agree by: who takes part, and who owns which shard.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use duewheel_core::store::{
    Candidate, Coordinator, ErrorKind, Joined, Level, Node, Owner, Store, StoreError, Waker,
};
use duewheel_core::{Epoch, ShardId};
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Mutex;

use crate::keys::Keys;
use crate::options::Options;
use crate::reign::{self, Claimant, FIRST_EPOCH, FORMAT};
use crate::store::RedisStore;
use crate::wire::{Address, Reply, Servers, Slots, Wire, wait_for};
use crate::{fault, script, value};

/// Calls are given this time at least, however short the lease.
const LEAST: Duration = Duration::from_secs(1);

/// Nodes and shards in Redis.
///
/// Every call ends within the connect and response timeouts of its [`Options`], and needs no runtime of the caller's; it must not
/// be made on a thread that may not wait.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
/// use duewheel_core::ShardId;
/// use duewheel_core::store::{Candidate, Coordinator};
/// use duewheel_store_redis::{Options, RedisCoordinator};
///
/// let nodes = RedisCoordinator::new(Options::parse("redis-cluster://10.0.0.1,10.0.0.2")?);
/// let candidate =
///     Candidate { name: "a".into(), advertise: "10.0.1.1:7600".into(), shards_if_new: 16 };
/// let joined = nodes.join(&candidate)?;
/// let store = nodes.open(&joined.node, ShardId(0), Arc::new(|| {}))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisCoordinator {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Servers,
    /// One for each master, made when it is needed, and made anew after an error.
    wires: Mutex<BTreeMap<Address, Arc<Wire>>>,
    known: Mutex<Option<Arc<Slots>>>,
    cluster: String,
    nodes: String,
    /// 0: not known yet.
    shards: AtomicU32,
}

impl RedisCoordinator {
    /// Does not connect yet.
    pub fn new(options: Options) -> Self {
        let key = |name: &str| format!("{{{}:cluster}}:{name}", options.prefix);
        let (cluster, nodes) = (key("cluster"), key("nodes"));
        let servers = Servers(Arc::new(options));
        let (wires, known, shards) = (Mutex::default(), Mutex::default(), AtomicU32::new(0));
        RedisCoordinator { inner: Arc::new(Inner { servers, wires, known, cluster, nodes, shards }) }
    }

    /// Where Redis is, and how it is used.
    pub fn options(&self) -> &Options {
        &self.inner.servers.0
    }

    /// What an operator should change at the servers, in sentences; nothing if all is well.
    ///
    /// # Errors
    /// When they cannot be asked.
    pub fn warnings(&self) -> Result<Vec<String>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.warnings().await })
    }

    fn call(&self, call: Cmd) -> Result<Vec<Value>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move {
            let reply = inner.of_cluster(call).await?;
            value::list(value::some(reply.into_iter().next(), "node")?, "node")
        })
    }

    fn bounded<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let options = self.options();
        // Each step has a bound of its own, and cleans up behind it; this is for all of them together.
        let most = options.connect_timeout * 2 + self.inner.patience() * 2;
        wait_for(async move {
            let late = |_| StoreError::new(ErrorKind::Unavailable, "Redis does not answer in time");
            tokio::time::timeout(most, work).await.map_err(late)?
        })
    }
}

impl Inner {
    /// A command for the master of the cluster's own keys.
    async fn of_cluster(&self, call: Cmd) -> Reply {
        let slots = self.slots().await?;
        let mut ask = Pipeline::new();
        ask.add_command(call);
        self.send(slots.master_of(&self.cluster)?, ask).await
    }

    /// Which master has what, as it was when a call failed last.
    async fn slots(&self) -> Result<Arc<Slots>, StoreError> {
        let mut known = self.known.lock().await;
        if let Some(slots) = &*known {
            return Ok(Arc::clone(slots));
        }
        let slots = Arc::new(self.servers.slots().await?);
        *known = Some(Arc::clone(&slots));
        Ok(slots)
    }

    async fn send(&self, to: &Address, ask: Pipeline) -> Reply {
        let known = self.wires.lock().await.get(to).cloned();
        let wire = match known {
            Some(wire) => wire,
            None => {
                let connection = match self.servers.connect(to).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        *self.known.lock().await = None;
                        return Err(error.into());
                    }
                };
                let wire = Arc::new(Wire::new(connection));
                self.wires.lock().await.insert(to.clone(), Arc::clone(&wire));
                wire
            }
        };
        let late = || StoreError::new(ErrorKind::Unavailable, "Redis does not answer in time");
        let reply = tokio::time::timeout(self.patience(), wire.call(ask)).await;
        let reply = reply.unwrap_or_else(|_| Err(late().into()));
        if reply.is_err() {
            // The next call makes another one. This one is not sent again: a join that was carried out must not be a second time.
            self.wires.lock().await.remove(to);
            *self.known.lock().await = None;
        }
        reply
    }

    /// An answer that comes later than a lease is of no use to anybody.
    fn patience(&self) -> Duration {
        let options = &self.servers.0;
        options.response_timeout.min(options.lease.max(LEAST))
    }

    fn node_call(&self, verb: &str, name: &str, number: u32, advertise: &str) -> Cmd {
        let mut call = redis::cmd("EVAL");
        call.arg(script::node()).arg(2).arg(&self.cluster).arg(&self.nodes);
        call.arg(verb).arg(name).arg(number).arg(advertise);
        call.arg(reign::millis(self.servers.0.lease)).arg(FORMAT);
        call
    }

    async fn warnings(&self) -> Result<Vec<String>, StoreError> {
        let slots = self.slots().await?;
        let mut warnings = Vec::new();
        for master in slots.masters() {
            let mut ask = Pipeline::new();
            ask.cmd("INFO").arg("persistence");
            ask.cmd("INFO").arg("memory");
            let of = "INFO";
            let mut replies = self.send(master, ask).await?.into_iter();
            let mut next = || value::some(value::text(replies.next().unwrap_or_default(), of)?, of);
            let (persistence, memory) = (next()?, next()?);
            let (host, port) = master;
            if value::info(&persistence, "aof_enabled") != Some("1") {
                let what = "appendonly is off: what it was told since its last snapshot is lost with it";
                warnings.push(format!("{host}:{port}: {what}"));
            }
            let policy = value::info(&memory, "maxmemory_policy").unwrap_or("noeviction");
            if policy.starts_with("allkeys") {
                warnings.push(format!("{host}:{port}: maxmemory-policy {policy} may throw messages away"));
            }
        }
        Ok(warnings)
    }

    async fn shards(&self) -> Result<u32, StoreError> {
        let known = self.shards.load(SeqCst);
        if known > 0 {
            return Ok(known);
        }
        let mut call = redis::cmd("HGET");
        call.arg(&self.cluster).arg("shards");
        let reply = self.of_cluster(call).await?.into_iter().next();
        let shards = value::number(value::some(reply, "HGET")?, "HGET")?.unwrap_or(0);
        let shards = u32::try_from(shards).map_err(|_| fault::odd("HGET"))?;
        self.shards.store(shards, SeqCst);
        Ok(shards)
    }

    async fn owners(&self) -> Result<Vec<Option<Owner>>, StoreError> {
        let keys: Vec<String> = (0..self.shards().await?)
            .map(|shard| Keys::new(&self.servers.0.prefix, ShardId(shard)).owner)
            .collect();
        let slots = self.slots().await?;
        let mut by_master: BTreeMap<&Address, Vec<usize>> = BTreeMap::new();
        for (place, key) in keys.iter().enumerate() {
            by_master.entry(slots.master_of(key)?).or_default().push(place);
        }
        let mut owners = vec![None; keys.len()];
        for (master, places) in by_master {
            let mut ask = Pipeline::new();
            ask.cmd("TIME");
            for place in &places {
                let fields = ["epoch", "until", "node", "number", "advertise"];
                ask.cmd("HMGET").arg(&keys[*place]).arg(&fields);
            }
            let mut replies = self.send(master, ask).await?.into_iter();
            let mut next = || value::some(replies.next(), "owners");
            let mut time = value::list(next()?, "TIME")?.into_iter();
            let mut part = || value::number(time.next().unwrap_or_default(), "TIME");
            let now = part()?.unwrap_or(0) * 1_000 + part()?.unwrap_or(0) / 1_000;
            for place in places {
                owners[place] = owner(next()?, now)?;
            }
        }
        Ok(owners)
    }
}

/// The owner that these fields name, if its lease runs.
fn owner(fields: Value, now: u64) -> Result<Option<Owner>, StoreError> {
    let of = "owners";
    let mut fields = value::list(fields, of)?.into_iter();
    let mut next = || fields.next().unwrap_or_default();
    let (epoch, until) = (value::number(next(), of)?, value::number(next(), of)?);
    let (node, number, advertise) =
        (value::text(next(), of)?, value::number(next(), of)?, value::text(next(), of)?);
    let (Some(epoch), Some(until), Some(node), Some(number), Some(advertise)) =
        (epoch, until, node, number, advertise)
    else {
        return Ok(None);
    };
    if until <= now {
        return Ok(None);
    }
    let small = |n: u64| u32::try_from(n).map_err(|_| fault::odd(of));
    let node = Node { name: node.into(), advertise: advertise.into(), number: small(number)? };
    Ok(Some(Owner { node, epoch: Epoch(small(epoch)?) }))
}

fn unknown_format(format: &str) -> StoreError {
    let what = format_args!("the cluster has format {format:?}; this version knows {FORMAT}").to_string();
    StoreError::new(ErrorKind::Corrupt, what)
}

impl Coordinator for RedisCoordinator {
    fn join(&self, candidate: &Candidate) -> Result<Joined, StoreError> {
        let Candidate { name, advertise, shards_if_new } = candidate;
        let mut call = self.inner.node_call("join", name, 0, advertise);
        call.arg((*shards_if_new).max(1)).arg(reign::hex(&reign::random::<32>()?)).arg(FIRST_EPOCH);
        let of = "join";
        let mut words = self.call(call)?.into_iter();
        let mut next = || value::text(words.next().unwrap_or_default(), of);
        match next()?.as_deref() {
            Some("OK") => {
                let number = |text: Option<String>| text.and_then(|n| n.parse().ok());
                let number = value::some(number(next()?), of)?;
                let shards = next()?.and_then(|n| n.parse().ok()).filter(|n| *n > 0);
                let shards =
                    shards.ok_or_else(|| fault::damaged(&self.inner.cluster, "shards", "no number"))?;
                let secret = next()?.and_then(|text| unhex(&text));
                let secret =
                    secret.ok_or_else(|| fault::damaged(&self.inner.cluster, "secret", "no 32 bytes"))?;
                self.inner.shards.store(shards, SeqCst);
                let node = Node { name: name.clone(), advertise: advertise.clone(), number };
                Ok(Joined { node, shards, secret })
            }
            Some("HELD") => {
                let left = next()?.unwrap_or_default();
                let what = format_args!("a node {name:?} is alive, or was: its name is free in {left} ms")
                    .to_string();
                Err(StoreError::new(ErrorKind::Fenced, what))
            }
            Some("FORMAT") => Err(unknown_format(&next()?.unwrap_or_default())),
            _ => Err(fault::odd(of)),
        }
    }

    fn beat(&self, node: &Node) -> Result<Vec<Node>, StoreError> {
        let of = "beat";
        let mut words = self
            .call(self.inner.node_call("beat", &node.name, node.number, &node.advertise))?
            .into_iter()
            .map(|word| value::text(word, of));
        match words.next().transpose()?.flatten().as_deref() {
            Some("OK") => {}
            Some("FENCED") => {
                let what = format_args!("another node is called {:?} by now", node.name).to_string();
                return Err(StoreError::new(ErrorKind::Fenced, what));
            }
            Some("FORMAT") => {
                return Err(unknown_format(&words.next().transpose()?.flatten().unwrap_or_default()));
            }
            _ => return Err(fault::odd(of)),
        }
        let mut nodes = Vec::new();
        while let Some(name) = words.next() {
            let mut next = || value::some(words.next().transpose()?.flatten(), of);
            let (number, advertise) = (next()?, next()?);
            let number = number.parse().map_err(|_| fault::odd(of))?;
            nodes.push(Node { name: value::some(name?, of)?.into(), advertise: advertise.into(), number });
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    fn leave(&self, node: &Node) -> Result<(), StoreError> {
        self.call(self.inner.node_call("leave", &node.name, node.number, &node.advertise)).map(drop)
    }

    fn owners(&self) -> Result<Vec<Option<Owner>>, StoreError> {
        let inner = Arc::clone(&self.inner);
        self.bounded(async move { inner.owners().await })
    }

    fn open(&self, node: &Node, shard: ShardId, waker: Waker) -> Result<Box<dyn Store>, StoreError> {
        let Node { name, advertise, number } = node.clone();
        let claimant = Claimant { node: name, number, advertise };
        let store = RedisStore::open_as(self.inner.servers.clone(), shard, claimant, waker)?;
        Ok(Box::new(store))
    }

    fn lease(&self) -> Duration {
        self.inner.servers.0.lease
    }

    fn level(&self) -> Level {
        Level::BestEffortReplicated
    }
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Debug for RedisCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCoordinator").field("options", self.options()).finish_non_exhaustive()
    }
}
