//! A node of a cluster: it joins, owns some shards, and routes operations to the owners of the others.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duewheel_core::engine::Op;
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Joined, Recovered, Secrets};
use duewheel_shard::client::LocalShard;
use duewheel_shard::clock::Clock;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::inbox::{Inbox, Pending, WhenBusy};
use duewheel_shard::random::{self, Jitter};
use duewheel_shard::shared::{DriverEnd, DriverShared, ThreadCommand};
use duewheel_shard::timekeeper::Timekeeper;
use tokio::net::TcpListener;
use xxhash_rust::xxh3::xxh3_64;

use crate::forwarding::routes::RouteTable;
use crate::ownership::assignment::{DEFAULT_SETTLE_DELAY, Presence};
use crate::ownership::core::{ClusterView, Core, FleetError, LocalCounters, MAX_NAME, stranger};
use crate::ownership::owned::{OnThreads, Owned, ShardConfig, Starter, share_of};
use crate::ownership::reconciler::{Reconciler, ReconcilerParts};
use crate::routing::Shards;
use crate::transport::wire::{FrameLimits, SupportedVersions};
use crate::transport::{Connector, Host, PeerCertificates, PeerTls, TransportConfig, listen};

/// The options of a node.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The name of the node; no other living node has the same.
    pub name: String,
    /// The address at which other nodes reach it, host and port; `None`: it is the only node. Port 0 stands for the
    /// port at which it listens.
    pub advertise: Option<String>,
    /// The address at which it listens, if that differs from the advertised one.
    pub bind: Option<String>,
    /// The number of shards of a new cluster.
    pub shards_if_new: u32,
    /// The certificates that it shows to other nodes; `None`: a key that is generated at the start.
    pub certificates: Option<PeerCertificates>,
    /// The versions of the nodes' protocol that it speaks. Only tests change them.
    pub(crate) speaks: SupportedVersions,
    /// How long a new node must stay before this one gives up shards to it.
    pub settle_delay: Duration,
    /// The seed of the jitter of backoffs and of the keys of hash tables, for repeatable tests. `None`: the former is
    /// taken from the clock, the latter are secret.
    pub seed: Option<u64>,
    /// The quotas of all shards.
    pub quotas: QuotaSource,
}

impl FleetOptions {
    /// The options of a single node with this name; a new cluster has one shard.
    pub fn new(name: impl Into<String>) -> Self {
        FleetOptions {
            name: name.into(),
            advertise: None,
            bind: None,
            certificates: None,
            speaks: SupportedVersions::of_this_process(),
            shards_if_new: 1,
            settle_delay: DEFAULT_SETTLE_DELAY,
            seed: None,
            quotas: QuotaSource::default(),
        }
    }
}

/// A node that has joined, with what a client needs.
#[derive(Debug)]
pub struct Started {
    /// The access to all shards; a router takes it as a trait object.
    pub fleet: Arc<Fleet>,
    /// The state of the node: health, commands, its end.
    pub shared: Arc<DriverShared>,
    /// The inbox of the node. It takes no operations; only its commands and wake-ups are used.
    pub inbox: Arc<Inbox>,
    /// Numbers of sessions and waiters begin above this number and stay below it plus 2^32.
    pub sessions: u64,
}

/// A node of a cluster. It ends by [`ThreadCommand::Stop`]; see [`Started`].
pub struct Fleet {
    core: Arc<Core>,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("me", &self.core.me).field("shards", &self.core.shards).finish()
    }
}

impl Shards for Fleet {
    fn local_shards(&self) -> Vec<LocalShard> {
        self.core.locals.all()
    }

    fn count(&self) -> u32 {
        self.core.shards
    }

    fn here(&self) -> Vec<ShardId> {
        self.core.routes.all_here()
    }

    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending {
        self.core.routes.submit(shard, ops, patience)
    }
}

impl Fleet {
    /// Joins the cluster. It returns when all shards are open that this node should own and no other node owns, or
    /// after a lease and two seconds. Shards that other nodes own are given up by them later.
    ///
    /// # Errors
    /// See [`FleetError`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the node leaves the cluster again, or its lease runs out.
    pub async fn start(
        coordinator: Arc<dyn Coordinator>,
        options: FleetOptions,
        policy: Policy,
        clock: Arc<dyn Clock>,
    ) -> Result<Started, FleetError> {
        let fits = |text: &str| (1..=MAX_NAME).contains(&text.len());
        if !fits(&options.name) || options.advertise.as_deref().is_some_and(|a| !fits(a)) {
            return Err(FleetError::BadName);
        }
        let tls = match &options.certificates {
            Some(certificates) => certificates.tls(),
            None => PeerTls::generate().map_err(FleetError::Tls)?,
        };
        let (listener, advertise) = match &options.advertise {
            None => (None, String::new()),
            Some(advertise) => bind(advertise, options.bind.as_deref()).await?,
        };
        let jitter = options.jitter(&*clock);
        let candidacy = Candidacy::new(coordinator.lease(), &options, &advertise, clock.running());
        let joined = join(&coordinator, candidacy, &clock, &jitter).await?;
        let means = Environment { clock, jitter, link: Connector::Tls(tls), starter: Arc::new(OnThreads) };
        let (core, mut keeper, terms) = assemble(coordinator, &joined, &options, &policy, means);
        let mut guard = StopOnDrop(Some(core.clone()));
        let listening = listener.map(|listener| {
            let host: Arc<dyn Host> = core.clone();
            tokio::spawn(listen(listener, terms, host)).abort_handle()
        });
        keeper.listens(listening);
        let mut began = keeper.began();
        #[expect(clippy::disallowed_methods, reason = "the thread of a node is started here")]
        std::thread::Builder::new()
            .name("duewheel-fleet".into())
            .spawn(move || keeper.run())
            .map_err(FleetError::Thread)?;
        let at_most = core.lease + Duration::from_secs(2);
        let ended = tokio::select! {
            biased;
            // When the thread ends it drops its sender without a message; then the reason of the end is known.
            Ok(_) = began.wait_for(|began| *began) => None,
            end = core.shared.ended() => Some(end),
            () = tokio::time::sleep(at_most) => None,
        };
        if let Some(DriverEnd::Stopped | DriverEnd::Fenced(_) | DriverEnd::Failed(_)) = &ended {
            let why = core.shared.health().trouble.unwrap_or_default();
            return Err(FleetError::Ended(why));
        }
        guard.0 = None;
        Ok(Fleet::started(core))
    }

    pub(crate) fn started(core: Arc<Core>) -> Started {
        Started {
            shared: core.shared.clone(),
            inbox: core.inbox.clone(),
            sessions: u64::from(core.me.number) << 32,
            fleet: Arc::new(Fleet { core }),
        }
    }

    /// The cluster as this node sees it.
    pub fn view(&self) -> ClusterView {
        let view = self.core.view();
        let (mut seen, at) = view.clone();
        seen.age = self.core.shared.clock().running().saturating_sub(at);
        seen
    }

    /// Figures for people. Names are metric names without prefix: the first two are states, the others count since the
    /// start.
    pub fn figures(&self) -> [(&'static str, u64); 4] {
        [
            ("shards_owned", self.core.routes.all_here().len() as u64),
            ("shards_without_owner", self.core.routes.lost() as u64),
            ("shard_moves_total", self.core.moves.load(Ordering::Relaxed)),
            ("forwarded_again_total", self.core.routes.sent_again()),
        ]
    }

    /// The number of submissions sent to each other node since the start, by its name.
    pub fn forwards(&self) -> Vec<(Box<str>, u64)> {
        self.core.routes.forwards()
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Ends the node as `kill -9` would, as far as others can see: nothing is closed and no node is notified. Its
    /// stores must have been cut off.
    #[cfg(test)]
    pub(crate) fn kill(&self) {
        self.core.killed.store(true, Ordering::SeqCst);
        self.core.inbox.wake();
    }
}

/// Stops a node whose start was given up.
struct StopOnDrop(Option<Arc<Core>>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            core.shared.wish(ThreadCommand::Stop, &core.inbox);
        }
    }
}

/// Binds the listener for other nodes; returns it with the address to advertise.
async fn bind(advertise: &str, bind: Option<&str>) -> Result<(Option<TcpListener>, String), FleetError> {
    let at = bind.unwrap_or(advertise);
    let failed = |error| FleetError::Listen(at.to_owned(), error);
    let listener = TcpListener::bind(at).await.map_err(failed)?;
    let bound: SocketAddr = listener.local_addr().map_err(failed)?;
    let advertise = match advertise.strip_suffix(":0") {
        Some(host) => format!("{host}:{}", bound.port()),
        None => advertise.to_owned(),
    };
    Ok((Some(listener), advertise))
}

/// A node that tries to join. The name and the address of a dead node are free when its lease has run out.
pub(crate) struct Candidacy {
    candidate: Candidate,
    lease: Duration,
    /// When it gives up, by [`Clock::running`].
    until: Duration,
    /// Set when it has joined and must still see whether it can share with the other nodes.
    joined: Option<Joined>,
}

impl Candidacy {
    pub(crate) fn new(lease: Duration, options: &FleetOptions, advertise: &str, now: Duration) -> Self {
        let candidate = Candidate {
            name: options.name.as_str().into(),
            advertise: advertise.into(),
            shards_if_new: options.shards_if_new.max(1),
            settle_delay: options.settle_delay,
        };
        Candidacy { candidate, lease, until: now + lease + lease / 4, joined: None }
    }

    /// The longest pause between two attempts.
    pub(crate) fn pause(&self) -> Duration {
        (self.lease / 8).min(Duration::from_secs(1))
    }

    /// Tries to join; `None`: the caller tries again after a pause. The calls of the coordinator may block.
    pub(crate) fn attempt(
        &mut self,
        coordinator: &dyn Coordinator,
        now: Duration,
    ) -> Result<Option<Joined>, FleetError> {
        let joined = match self.joined.take() {
            Some(joined) => joined,
            None => match coordinator.join(&self.candidate) {
                Ok(joined) => joined,
                Err(error) if error.kind() != ErrorKind::Fenced => return Err(error.into()),
                Err(_) if now >= self.until => {
                    return Err(FleetError::NameTaken(self.candidate.name.to_string()));
                }
                Err(_) => return Ok(None),
            },
        };
        let problem = match coordinator.beat(&joined.node) {
            Err(error) => FleetError::Store(error),
            Ok(nodes) => match stranger(&joined.node, &nodes) {
                None => return Ok(Some(joined)),
                Some(problem) => problem,
            },
        };
        if now >= self.until || matches!(problem, FleetError::Store(_)) {
            if let Err(error) = coordinator.leave(&joined.node) {
                tracing::warn!(%error, "could not remove this node from the cluster");
            }
            return Err(problem);
        }
        self.joined = Some(joined);
        Ok(None)
    }
}

/// Joins, with pauses between the attempts.
async fn join(
    coordinator: &Arc<dyn Coordinator>,
    mut candidacy: Candidacy,
    clock: &Arc<dyn Clock>,
    jitter: &Jitter,
) -> Result<Joined, FleetError> {
    loop {
        let (coordinator, now) = (coordinator.clone(), clock.running());
        // The calls of the coordinator may block.
        let attempt = move || {
            let joined = candidacy.attempt(&*coordinator, now);
            (candidacy, joined)
        };
        let joined;
        (candidacy, joined) = tokio::task::spawn_blocking(attempt).await.map_err(|_| FleetError::Runtime)?;
        if let Some(joined) = joined? {
            return Ok(joined);
        }
        tokio::time::sleep(jitter.of(candidacy.pause())).await;
    }
}

/// External dependencies of a node: time, randomness, connections and threads.
pub(crate) struct Environment {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) jitter: Jitter,
    pub(crate) link: Connector,
    pub(crate) starter: Arc<dyn Starter>,
}

impl FleetOptions {
    /// The seed of its shards and pauses; each node has a different one.
    fn seed(&self, clock: &dyn Clock) -> u64 {
        let reading = clock.read();
        let seed = self.seed.unwrap_or(reading.wall_ns ^ reading.elapsed_ns.rotate_left(32));
        seed ^ xxh3_64(self.name.as_bytes())
    }

    /// The jitter of its pauses.
    pub(crate) fn jitter(&self, clock: &dyn Clock) -> Jitter {
        Jitter::seeded(self.seed(clock))
    }
}

/// Builds the parts of a node that has joined.
pub(crate) fn assemble(
    coordinator: Arc<dyn Coordinator>,
    joined: &Joined,
    options: &FleetOptions,
    policy: &Policy,
    means: Environment,
) -> (Arc<Core>, Reconciler, TransportConfig) {
    let Joined { node: me, shards, secret, is_alone } = joined.clone();
    let lease = coordinator.lease();
    let Environment { clock, jitter, link, starter } = means;
    let shared = Arc::new(DriverShared::new(coordinator.level(), clock.clone()));
    // A node has no engine, so only the wall clock of this reading is used.
    shared.set_keeper(Timekeeper::resume(None, &Recovered::default(), &*clock));
    let inbox = Arc::new(Inbox::new(policy));
    let one = share_of(policy, shards);
    let look = Arc::new(AtomicBool::new(true));
    let looks = {
        let (look, inbox) = (look.clone(), Arc::downgrade(&inbox));
        Box::new(move || {
            look.store(true, Ordering::SeqCst);
            if let Some(inbox) = inbox.upgrade() {
                inbox.wake();
            }
        })
    };
    let routes = RouteTable::new(me.number, shards, &one, &shared, &inbox, looks, &jitter);
    let view = ClusterView { me: me.clone(), nodes: Vec::new(), shards: Vec::new(), age: Duration::ZERO };
    let core = Arc::new(Core {
        me: me.clone(),
        shards,
        lease,
        routes: routes.clone(),
        shared,
        inbox,
        look,
        nudged: AtomicBool::new(false),
        moves: AtomicU64::new(0),
        locals: LocalCounters::default(),
        view: Mutex::new((view, clock.running())),
        killed: AtomicBool::new(false),
    });
    let secrets = Secrets { current: secret, former: None };
    let (limits, time) = (FrameLimits::of(policy), (clock.clone(), jitter.clone()));
    let terms = TransportConfig::new(me.clone(), link, &secrets, options.speaks, limits, lease, time);
    let seed = options.seed(&*clock);
    let recipe = ShardConfig {
        coordinator: coordinator.clone(),
        me,
        shards,
        is_alone,
        policy: one,
        seed,
        hash_key: random::hash_key(options.seed),
        quotas: options.quotas.clone(),
        clock: clock.clone(),
        jitter: jitter.clone(),
        starter,
    };
    let runtime = tokio::runtime::Handle::current();
    let owned = Owned::new(recipe, lease, &core.inbox, (&routes, &core.locals), &runtime);
    let presence = Presence::new(options.settle_delay);
    let parts =
        ReconcilerParts { coordinator, owned, presence, clock, jitter, terms: terms.clone(), runtime };
    let keeper = Reconciler::new(core.clone(), parts, policy.max_inbox_bytes);
    (core, keeper, terms)
}
