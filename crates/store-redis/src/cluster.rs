//! The keys of a cluster in Redis, and the connections to the masters that have them and the shards.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};
use std::time::Duration;

use duewheel_core::store::{ErrorKind, Node, Owner, Ownership, PLACEMENT, Secrets, StoreError};
use duewheel_core::{Epoch, ShardId};
use duewheel_store_medium::{hex, locked, millis};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::fault;
use crate::keeping::{Finding, Keeping};
use crate::keys::{self, HostPort, Keys};
use crate::options::Options;
use crate::reign::{ClusterIdentity, FIRST_EPOCH, FORMAT, unknown_format};
use crate::wire::{self, RedisReply, Servers, Slots, Wire};

/// The shortest time limit of a call, however short the lease.
const LEAST: Duration = Duration::from_secs(1);

/// A cluster in Redis, as one of its nodes sees it.
pub(crate) struct CoordinatorInner {
    pub(crate) servers: Servers,
    /// The connection to each master, made on demand, and again after an error.
    wires: Mutex<BTreeMap<HostPort, Arc<Wire>>>,
    known: Mutex<Option<Arc<Slots>>>,
    cluster: String,
    nodes: String,
    /// The cluster that this node has joined; `None`: none yet.
    joined: StdMutex<Option<ClusterIdentity>>,
    /// The masters that have not answered the request for the owners of their shards.
    questions: Questions<MasterLeases>,
}

/// The shards of one master, each with its owner if a lease runs by the master's clock, or why that is not known.
type MasterLeases = Vec<(usize, Result<Option<Owner>, StoreError>)>;

impl CoordinatorInner {
    /// Connects to nothing yet.
    pub(crate) fn new(options: Options) -> Self {
        let key = |name: &str| format!("{{{}:cluster}}:{name}", options.prefix);
        let (cluster, nodes) = (key("cluster"), key("nodes"));
        let servers = Servers(Arc::new(options));
        let (wires, known) = (Mutex::default(), Mutex::default());
        let (joined, questions) = (StdMutex::default(), Questions::default());
        CoordinatorInner { servers, wires, known, cluster, nodes, joined, questions }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.servers.0
    }

    pub(crate) fn cluster_key(&self) -> &str {
        &self.cluster
    }

    /// Sends a command to the master of the cluster's own keys.
    pub(crate) async fn of_cluster(&self, call: Cmd) -> RedisReply {
        let mut ask = Pipeline::new();
        ask.add_command(call);
        self.of_key(&self.cluster, ask).await
    }

    /// Sends commands to the master of a key.
    pub(crate) async fn of_key(&self, key: &str, ask: Pipeline) -> RedisReply {
        let slots = self.slots().await?;
        match slots.master_of(key) {
            Ok(master) => self.send(master, ask).await,
            Err(error) => {
                self.forget_slots().await;
                Err(error.into())
            }
        }
    }

    /// Discards the masters of the slots: the next call asks for them again.
    async fn forget_slots(&self) {
        *self.known.lock().await = None;
    }

    /// The masters of the slots, as of the last failed call.
    async fn slots(&self) -> Result<Arc<Slots>, StoreError> {
        let mut known = self.known.lock().await;
        if let Some(slots) = &*known {
            return Ok(Arc::clone(slots));
        }
        let slots = Arc::new(self.servers.slots().await?);
        *known = Some(Arc::clone(&slots));
        Ok(slots)
    }

    async fn send(&self, to: &HostPort, ask: Pipeline) -> RedisReply {
        let reply = self.send_each(to, ask).await.and_then(wire::all_or_none);
        if reply.is_err() {
            self.give_up(to).await;
        }
        reply
    }

    /// Sends commands to a master; a refusal is the value of its command ([`Value::ServerError`]), and a partial
    /// refusal leaves the connection open.
    async fn send_each(&self, to: &HostPort, ask: Pipeline) -> RedisReply {
        let known = self.wires.lock().await.get(to).cloned();
        let wire = match known {
            Some(wire) => wire,
            None => {
                let connection = match self.servers.connect(to).await {
                    Ok(connection) => connection,
                    Err(error) => {
                        self.forget_slots().await;
                        return Err(error.into());
                    }
                };
                let wire = Arc::new(Wire::new(connection));
                self.wires.lock().await.insert(to.clone(), Arc::clone(&wire));
                wire
            }
        };
        let late = || StoreError::new(ErrorKind::Unavailable, "Redis does not answer in time");
        let reply = tokio::time::timeout(self.time_limit(), wire.call_each(ask)).await;
        let reply = reply.unwrap_or_else(|_| Err(late().into()));
        let is_refusal = |value: &Value| matches!(value, Value::ServerError(_));
        match &reply {
            Ok(values) if !values.iter().any(is_refusal) => {}
            // The slot may have another master by now.
            Ok(values) if !values.iter().all(is_refusal) => self.forget_slots().await,
            Ok(_) | Err(_) => self.give_up(to).await,
        }
        reply
    }

    /// Discards the connection to a master: the next call makes another one. The request is not repeated, because a
    /// join that was carried out must not be made twice.
    async fn give_up(&self, to: &HostPort) {
        self.wires.lock().await.remove(to);
        self.forget_slots().await;
    }

    /// The time limit of a call: an answer after the end of a lease is useless.
    pub(crate) fn time_limit(&self) -> Duration {
        let options = &self.servers.0;
        options.response_timeout.min(options.lease.max(LEAST))
    }

    pub(crate) fn node_call(&self, verb: &str, name: &str, number: u32, advertise: &str) -> Cmd {
        let mut call = redis::cmd("EVAL");
        call.arg(keys::node()).arg(2).arg(&self.cluster).arg(&self.nodes);
        call.arg(verb).arg(name).arg(number).arg(advertise);
        call.arg(millis(self.servers.0.lease)).arg(FORMAT).arg(FIRST_EPOCH);
        call
    }

    /// Adds what a joining or living node reports about the cluster.
    pub(crate) fn about(&self, call: &mut Cmd, cluster: Option<&ClusterIdentity>, new: &str) {
        match cluster {
            Some(cluster) => {
                call.arg(&cluster.id).arg(cluster.shards).arg(hex(&cluster.secret));
                call.arg(PLACEMENT).arg(new).arg(if cluster.made { "1" } else { "" });
            }
            None => {
                call.arg("").arg("").arg("").arg(PLACEMENT).arg(new).arg("");
            }
        }
    }

    /// The cluster that this node has joined.
    pub(crate) fn joined(&self) -> Option<ClusterIdentity> {
        locked(&self.joined).clone()
    }

    /// Records the cluster that this node has joined.
    pub(crate) fn note_joined(&self, cluster: ClusterIdentity) {
        *locked(&self.joined) = Some(cluster);
    }

    /// The cluster as it is stored.
    pub(crate) async fn stored(&self) -> Result<Option<ClusterIdentity>, StoreError> {
        let mut call = redis::cmd("HMGET");
        call.arg(&self.cluster).arg(&["format", "id", "shards", "secret", "made"]);
        let of = "HMGET";
        let reply = fault::some(self.of_cluster(call).await?.into_iter().next(), of)?;
        let mut words = fault::list(reply, of)?.into_iter();
        let mut next = || fault::text(words.next().unwrap_or_default(), of);
        let (format, id, shards, secret, made) = (next()?, next()?, next()?, next()?, next()?);
        let Some(format) = format else { return Ok(None) };
        if format != FORMAT {
            return Err(unknown_format(&self.cluster, &format));
        }
        self.cluster_of(id, shards, secret, made.is_some()).map(Some)
    }

    pub(crate) fn cluster_of(
        &self,
        id: Option<String>,
        shards: Option<String>,
        secret: Option<String>,
        made: bool,
    ) -> Result<ClusterIdentity, StoreError> {
        let id = id.ok_or_else(|| fault::damaged(&self.cluster, "id", "there is none"))?;
        let shards = shards.and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let shards = shards.ok_or_else(|| fault::damaged(&self.cluster, "shards", "no number"))?;
        let secret = secret.and_then(|text| unhex(&text));
        let secret = secret.ok_or_else(|| fault::damaged(&self.cluster, "secret", "no 32 bytes"))?;
        Ok(ClusterIdentity { id, shards, secret, made })
    }

    /// The stored secrets of a cluster whose format this version knows. Keeps the valid one, in case Redis loses it.
    pub(crate) async fn secrets(&self) -> Result<Secrets, StoreError> {
        let of = "secrets";
        let mut call = redis::cmd("HMGET");
        call.arg(&self.cluster).arg(&["format", "secret", "former_secret"]);
        let reply = fault::some(self.of_cluster(call).await?.into_iter().next(), of)?;
        let mut words = fault::list(reply, of)?.into_iter();
        let mut next = || fault::text(words.next().unwrap_or_default(), of);
        let read = |field: &str, text: String| {
            unhex(&text).ok_or_else(|| fault::damaged(&self.cluster, field, "no 32 bytes"))
        };
        match next()?.as_deref() {
            Some(FORMAT) => {}
            Some(other) => return Err(unknown_format(&self.cluster, other)),
            None => {
                let what = format_args!("{} is not there: no node has taken part yet", self.cluster);
                return Err(StoreError::new(ErrorKind::Corrupt, what));
            }
        }
        let (current, former) = (fault::some(next()?, of)?, next()?);
        let current = read("secret", current)?;
        let former = former.map(|text| read("former_secret", text)).transpose()?;
        if let Some(cluster) = &mut *locked(&self.joined) {
            cluster.secret = current;
        }
        Ok(Secrets { current, former })
    }

    /// The names of the living nodes, as far as the server knows.
    pub(crate) async fn living(&self) -> Result<Vec<String>, StoreError> {
        let mut ask = Pipeline::new();
        ask.cmd("TIME");
        ask.cmd("HGETALL").arg(&self.nodes);
        let of = "HGETALL";
        let mut replies = self.of_key(&self.nodes, ask).await?.into_iter();
        let mut next = || fault::some(replies.next(), of);
        let now = server_ms(next()?)?;
        let mut living = Vec::new();
        for (name, node) in fault::pairs(next()?, of)? {
            let node = String::from_utf8_lossy(&node).into_owned();
            let until: u64 = node.split(' ').nth(1).and_then(|until| until.parse().ok()).unwrap_or(0);
            if until > now {
                living.push(String::from_utf8_lossy(&name).into_owned());
            }
        }
        Ok(living)
    }

    /// Waits until as many replicas as the options require know a node that has joined, or a new cluster.
    pub(crate) async fn replicas_know(&self) -> Result<(), StoreError> {
        let options = self.options();
        if options.wait == 0 {
            return Ok(());
        }
        let mut call = redis::cmd("WAIT");
        call.arg(options.wait).arg(millis(options.wait_timeout));
        let have =
            fault::number(fault::some(self.of_cluster(call).await?.into_iter().next(), "WAIT")?, "WAIT")?;
        if have.unwrap_or(0) >= u64::from(options.wait) {
            return Ok(());
        }
        let what = "a replica is behind: the node takes part once --redis-wait replicas have its entry";
        Err(StoreError::new(ErrorKind::Unavailable, what))
    }

    pub(crate) async fn inspect(&self) -> Result<Vec<Finding>, StoreError> {
        let slots = self.slots().await?;
        let asked = slots.masters().into_iter().map(|master| async move {
            let late = |_| StoreError::new(ErrorKind::Unavailable, "it does not answer in time");
            let asking = async { Keeping::ask(&Wire::new(self.servers.connect(master).await?)).await };
            let keeping = tokio::time::timeout(self.time_limit(), asking).await.map_err(late).flatten();
            (format!("{}:{}", master.0, master.1), keeping)
        });
        let (mut findings, mut known, mut away) = (Vec::new(), 0, None);
        for (name, keeping) in futures_util::future::join_all(asked).await {
            match keeping {
                Ok(keeping) => {
                    if let Some(why) = keeping.refusal(&name, self.options()) {
                        return Err(StoreError::new(ErrorKind::Corrupt, why));
                    }
                    findings.extend(keeping.findings(&name, self.options()));
                    known += 1;
                }
                // The state of this shard is not known, and that is reported.
                Err(error) => {
                    findings.push(Finding::unknown(&name, &error));
                    away = Some(error);
                }
            }
        }
        match away {
            Some(error) if known == 0 => Err(error),
            Some(_) | None => Ok(findings),
        }
    }

    async fn shards(&self) -> Result<u32, StoreError> {
        match self.joined() {
            Some(cluster) => Ok(cluster.shards),
            None => Ok(self.stored().await?.map_or(0, |cluster| cluster.shards)),
        }
    }

    /// Records what was seen of the shards: epochs are remembered, and once all shards have been made, a missing one
    /// was lost.
    fn note(&self, keys: &[Keys], owners: &[Ownership]) {
        for (keys, owner) in keys.iter().zip(owners) {
            if let Some(owner) = owner.owner() {
                self.options().remembered.note_epoch(keys, owner.epoch.0);
            }
        }
        if !owners.is_empty()
            && owners.iter().all(|owner| owner.owner().is_some())
            && let Some(cluster) = &mut *locked(&self.joined)
        {
            cluster.made = true; // the next beat says so
        }
    }

    pub(crate) async fn owners(self: &Arc<Self>) -> Result<Vec<Ownership>, StoreError> {
        let keys: Vec<Keys> = (0..self.shards().await?)
            .map(|shard| Keys::new(&self.servers.0.prefix, ShardId(shard)))
            .collect();
        let slots = self.slots().await?;
        let (mut owners, mut of_master) = (Vec::new(), BTreeMap::<&HostPort, Vec<(usize, String)>>::new());
        let mut failed = None;
        for (place, key) in keys.iter().enumerate() {
            let master = slots.master_of(&key.owner);
            owners.push(Ownership::Unknown(
                master.as_ref().err().map_or_else(String::new, ToString::to_string).into(),
            ));
            match master {
                Ok(master) => of_master.entry(master).or_default().push((place, key.owner.clone())),
                Err(error) => failed = Some(error),
            }
        }
        if failed.is_some() {
            self.forget_slots().await;
        }
        let asked = of_master.iter().map(|(master, places)| {
            let (inner, master, places) = (Arc::clone(self), (*master).clone(), places.clone());
            (master.clone(), async move { inner.leases(&master, &places).await })
        });
        let mut known = keys.is_empty();
        for (master, answer) in self.questions.ask(self.options().lease, asked.collect()).await {
            match answer {
                Ok(leases) => {
                    for (place, lease) in leases {
                        owners[place] = match lease {
                            Ok(lease) => {
                                known = true;
                                lease.map_or(Ownership::Free, Ownership::Owned)
                            }
                            Err(error) => {
                                let why = error.to_string().into();
                                failed = Some(error);
                                Ownership::Unknown(why)
                            }
                        };
                    }
                }
                Err(error) => {
                    for (place, _) in &of_master[&master] {
                        owners[*place] = Ownership::Unknown(error.to_string().into());
                    }
                    failed = Some(error);
                }
            }
        }
        self.note(&keys, &owners);
        match failed {
            Some(error) if !known => Err(error),
            Some(_) | None => Ok(owners),
        }
    }

    /// Asks a master for the leases of its shards. If it refuses to answer for a shard, because the slot moves, only
    /// that shard is unknown.
    async fn leases(
        &self,
        master: &HostPort,
        places: &[(usize, String)],
    ) -> Result<MasterLeases, StoreError> {
        let mut ask = Pipeline::new();
        ask.cmd("TIME");
        for (_, key) in places {
            let fields = ["epoch", "until", "node", "number", "advertise", "lease"];
            ask.cmd("HMGET").arg(key).arg(&fields);
        }
        let mut replies = self.send_each(master, ask).await?.into_iter();
        let mut next = || fault::some(replies.next(), "owners").and_then(fault::accepted);
        let now = server_ms(next()?)?;
        let (mut leases, mut clamps) = (Vec::new(), Pipeline::new());
        for (place, key) in places {
            let found = next().and_then(|fields| owner(fields, now));
            if let Ok(Some((_, ends))) = &found
                && ends.left > ends.lease
            {
                // After a backward step of the clock the lease would run until the clock has caught up. Its owner
                // renews it if it is alive.
                clamps.cmd("EVAL").arg(keys::clamp()).arg(1).arg(key);
            }
            leases.push((*place, found.map(|found| found.map(|(owner, _)| owner))));
        }
        if !clamps.is_empty()
            && let Err(failure) = self.send(master, clamps).await
        {
            tracing::debug!(error = %failure.error, "leases that end too late could not be shortened");
        }
        Ok(leases)
    }
}

/// The end of a lease, in ms of the server's clock.
#[derive(Clone, Copy, Debug)]
struct LeaseEnd {
    left: u64,
    /// The length of the lease from its last renewal.
    lease: u64,
}

/// The server's clock, in ms.
fn server_ms(reply: Value) -> Result<u64, StoreError> {
    let mut time = fault::list(reply, "TIME")?.into_iter();
    let mut part = || fault::number(time.next().unwrap_or_default(), "TIME");
    Ok(part()?.unwrap_or(0) * 1_000 + part()?.unwrap_or(0) / 1_000)
}

/// The owner in these fields, and the end of its lease, if the lease runs by the server's clock.
fn owner(fields: Value, now: u64) -> Result<Option<(Owner, LeaseEnd)>, StoreError> {
    let of = "owners";
    let mut fields = fault::list(fields, of)?.into_iter();
    let mut next = || fields.next().unwrap_or_default();
    let (epoch, until) = (fault::number(next(), of)?, fault::number(next(), of)?);
    let (node, number, advertise) =
        (fault::text(next(), of)?, fault::number(next(), of)?, fault::text(next(), of)?);
    let lease = fault::number(next(), of)?;
    let (Some(epoch), Some(until), Some(node), Some(number), Some(advertise), Some(lease)) =
        (epoch, until, node, number, advertise, lease)
    else {
        return Ok(None);
    };
    if until <= now {
        return Ok(None);
    }
    let small = |n: u64| u32::try_from(n).map_err(|_| fault::odd(of));
    let node = Node { name: node.into(), advertise: advertise.into(), number: small(number)? };
    let ends = LeaseEnd { left: until - now, lease };
    Ok(Some((Owner { node, epoch: Epoch(small(epoch)?) }, ends)))
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

// Requests to several masters at the same time: a master that does not answer does not delay the answers of the
// others.

/// How long a master that answered its last request is awaited: half of a lease, within these limits. The caller must
/// also renew the node's membership.
const TIME_LIMITS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];
/// How long a master that did not answer its last request is awaited.
const SHORT_TIME_LIMIT: Duration = Duration::from_millis(20);

/// A request in progress, whether its answer is awaited or not.
type Question<T> = Shared<BoxFuture<'static, Result<T, StoreError>>>;

/// The masters that have not answered their last request. An unanswered request stays open and is not repeated, so the
/// answer of a slow master is used as soon as it arrives, and one that hangs hardly delays the others.
pub(crate) struct Questions<T>(StdMutex<BTreeMap<HostPort, Option<Question<T>>>>);

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Questions(StdMutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Questions<T> {
    /// Asks these masters, or waits for the answers to their open requests. While none of them has answered, it waits
    /// until one has, or until no request is open.
    ///
    /// # Cancel safety
    /// When the future is dropped, requests continue; their answers are lost.
    pub(crate) async fn ask<F>(
        &self,
        lease: Duration,
        asked: Vec<(HostPort, F)>,
    ) -> Vec<(HostPort, Result<T, StoreError>)>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let usual = (lease / 2).clamp(TIME_LIMITS[0], TIME_LIMITS[1]);
        let mut silent = std::mem::take(&mut *self.silent());
        let questions: Vec<(HostPort, Question<T>, Duration)> = asked
            .into_iter()
            .map(|(master, new)| match silent.remove(&master) {
                Some(Some(open)) => (master, open, SHORT_TIME_LIMIT),
                Some(None) => (master, under_way(new), SHORT_TIME_LIMIT),
                None => (master, under_way(new), usual),
            })
            .collect();
        let answers =
            questions.iter().map(|(_, question, time_limit)| timeout(*time_limit, question.clone()));
        let answers = join_all(answers).await;
        if !answers.iter().any(|answer| matches!(answer, Ok(Ok(_)))) {
            let mut open: FuturesUnordered<_> = questions
                .iter()
                .filter(|(_, question, _)| question.peek().is_none())
                .map(|(_, question, _)| question.clone())
                .collect();
            while let Some(Err(_)) = open.next().await {}
        }
        let answers = questions.into_iter().map(|(master, question, _)| {
            let answer = match question.peek() {
                Some(Ok(answer)) => return (master, Ok(answer.clone())),
                Some(Err(error)) => (error.clone(), None),
                None => {
                    let what = format_args!("{}:{} does not answer", master.0, master.1);
                    (StoreError::new(ErrorKind::Unavailable, what), Some(question))
                }
            };
            self.silent().insert(master.clone(), answer.1);
            (master, Err(answer.0))
        });
        answers.collect()
    }

    fn silent(&self) -> MutexGuard<'_, BTreeMap<HostPort, Option<Question<T>>>> {
        locked(&self.0)
    }
}

/// Begins a request. Must be called on a thread of the connections.
fn under_way<T: Clone + Send + Sync + 'static>(
    question: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Question<T> {
    let task = tokio::spawn(question);
    async move { task.await.unwrap_or_else(|_| Err(fault::bug("a question has ended without an answer"))) }
        .boxed()
        .shared()
}

impl<T> fmt::Debug for Questions<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Questions")
    }
}
