//! A node of a cluster: it takes part, owns some shards, and knows the way to the others.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use duewheel_core::engine::Op;
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, Joined, Node, Secrets, StoreError};
use tokio::net::TcpListener;

use super::Shards;
use super::keeper::{Keeper, Parts};
use super::locals::Locals;
use super::owned::{Owned, Recipe, share_of};
use super::pause::jittered;
use super::peer::{Host, PeerCertificates, Terms, Tls, listen};
use super::presence::Presence;
use super::view::ClusterView;
use super::ways::Ways;
use super::wire::Limits;
use super::wire::dialect::Speaks;
use crate::client::Pending;
use crate::clock::Clock;
use crate::inbox::{Inbox, Patience};
use crate::local::LocalShard;
use crate::quotas::QuotaSource;
use crate::shared::{End, EndOnPanic, Shared, Wish};
use crate::timekeeper::Timekeeper;

/// Longest name of a node, and longest address, in bytes: a greeting has room for them.
const MAX_NAME: usize = 200;

/// How a node takes part.
#[derive(Clone, Debug)]
pub(crate) struct FleetOptions {
    /// Its name; no other living node has it.
    pub(crate) name: String,
    /// Where other nodes reach it, host and port; `None`: it is alone. A port 0 becomes the one that it listens on.
    pub(crate) advertise: Option<String>,
    /// Where it listens, if that is not what it advertises.
    pub(crate) bind: Option<String>,
    /// How many shards there are to be in a new cluster.
    pub(crate) shards_if_new: u32,
    /// What it shows to other nodes; `None`: a key that is drawn at its start.
    pub(crate) certificates: Option<PeerCertificates>,
    /// Versions of the nodes' protocol that it speaks. Only tests have others.
    pub(crate) speaks: Speaks,
    /// How long a node that comes must stay before this one gives shards up to it.
    pub(crate) settle_delay: Duration,
    /// Seeds the jitter of backoffs; `None`: out of the clock.
    pub(crate) seed: Option<u64>,
    /// The quotas of all its shards.
    pub(crate) quotas: QuotaSource,
}

/// Why a node cannot take part. It does not.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// What the nodes agree by refuses, or cannot be reached.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// Another living node has the name, or one that died has it until its lease is over.
    #[error("another living node has the name {0:?}; each node needs its own")]
    NameTaken(String),
    /// Without an address no other node can reach it, and there are some.
    #[error("this node has no address for other nodes (--advertise), but others take part: {0}")]
    NotAlone(String),
    /// Another node runs without an address, and owns everything.
    #[error("node {0} takes part without an address for other nodes (--advertise), and owns everything")]
    OtherIsAlone(String),
    /// Its name or address cannot be one.
    #[error("a node's name and address have 1 to {MAX_NAME} bytes each")]
    BadName,
    /// It cannot listen there.
    #[error("cannot listen for other nodes at {0}: {1}")]
    Listen(String, io::Error),
    /// It cannot speak TLS with other nodes.
    #[error("cannot speak TLS with other nodes: {0}")]
    Tls(io::Error),
    /// No thread could be started.
    #[error("no thread could be started: {0}")]
    Thread(io::Error),
    /// It ended while it started.
    #[error("it ended while it started: {0}")]
    Ended(String),
    /// The async runtime was shut down meanwhile.
    #[error("the async runtime was shut down while starting")]
    Runtime,
}

/// A node that takes part, for whoever puts a client on top.
#[derive(Debug)]
pub(crate) struct Started {
    /// The way to all shards; the same as a trait object is what a router takes.
    pub(crate) fleet: Arc<Fleet>,
    /// Of the node: health, wishes, the end.
    pub(crate) shared: Arc<Shared>,
    /// Of the node: nothing is put in; its door and its wake-ups count.
    pub(crate) inbox: Arc<Inbox>,
    /// Sessions, and waiters if one wants, get numbers above this, and below it plus 2^32.
    pub(crate) sessions: u64,
}

/// A node of a cluster. It ends by [`Wish::Stop`]; see [`Started`].
pub(crate) struct Fleet {
    core: Arc<Core>,
}

/// What the parts of a fleet share.
pub(crate) struct Core {
    pub(crate) me: Node,
    pub(crate) shards: u32,
    pub(crate) lease: Duration,
    pub(crate) ways: Ways,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Arc<Inbox>,
    /// Somebody should look who owns what.
    pub(crate) look: Arc<AtomicBool>,
    /// Another node says that who takes part may have changed, too.
    pub(crate) nudged: AtomicBool,
    pub(crate) moves: AtomicU64,
    pub(crate) locals: Locals,
    pub(crate) view: Mutex<(ClusterView, Instant)>,
    /// For tests: the node is to end as if it had been killed.
    pub(crate) killed: AtomicBool,
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
        self.core.ways.all_here()
    }

    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: Patience) -> Pending {
        self.core.ways.submit(shard, ops, patience)
    }
}

impl Host for Core {
    fn inbox(&self, shard: ShardId) -> Result<Arc<Inbox>, Box<str>> {
        self.ways.here(shard).ok_or_else(|| format!("node {} does not own it", self.me.name).into())
    }

    fn put_back(&self, shard: ShardId, op: Op) {
        self.ways.put_back(shard, op);
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
    /// Has the fleet's thread look who owns what, soon.
    pub(crate) fn look(&self) {
        self.look.store(true, Ordering::SeqCst);
        self.inbox.wake();
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, (ClusterView, Instant)> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fleet {
    /// Takes part, and returns once the shards are open that this node should have and nobody else has, or after a lease and two
    /// seconds. What others have they give up later.
    ///
    /// # Errors
    /// See [`FleetError`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the node leaves again, or its lease runs out.
    pub(crate) async fn start(
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
            None => Tls::drawn().map_err(FleetError::Tls)?,
        };
        let (listener, advertise) = match &options.advertise {
            None => (None, String::new()),
            Some(advertise) => bind(advertise, options.bind.as_deref()).await?,
        };
        let joined = {
            let (coordinator, options) = (coordinator.clone(), options.clone());
            let join = move || join(&*coordinator, &options, &advertise);
            tokio::task::spawn_blocking(join).await.map_err(|_| FleetError::Runtime)??
        };
        let (core, keeper, terms) = assemble(coordinator, &joined, &options, tls, &policy, clock);
        let mut guard = StopOnDrop(Some(core.clone()));
        let listening = listener.map(|listener| {
            let host: Arc<dyn Host> = core.clone();
            tokio::spawn(listen(listener, terms, host)).abort_handle()
        });
        let mut began = keeper.began();
        std::thread::Builder::new()
            .name("duewheel-fleet".into())
            .spawn(move || keeper.run(listening))
            .map_err(FleetError::Thread)?;
        let at_most = core.lease + Duration::from_secs(2);
        let ended = tokio::select! {
            // It gives up its end without a word when the thread ends; then there is an end to be had.
            Ok(_) = began.wait_for(|began| *began) => None,
            end = core.shared.ended() => Some(end),
            () = tokio::time::sleep(at_most) => None,
        };
        if let Some(End::Stopped | End::Fenced(_) | End::Failed(_)) = &ended {
            let why = core.shared.health().trouble.unwrap_or_default();
            return Err(FleetError::Ended(why));
        }
        guard.0 = None;
        Ok(Started {
            shared: core.shared.clone(),
            inbox: core.inbox.clone(),
            sessions: u64::from(core.me.number) << 32,
            fleet: Arc::new(Fleet { core }),
        })
    }

    /// The cluster as this node sees it.
    pub(crate) fn view(&self) -> ClusterView {
        let view = self.core.view();
        let (mut seen, at) = view.clone();
        seen.age = at.elapsed();
        seen
    }

    /// Figures for people. Names are metric names without prefix: the first two are states, the others count since the start.
    pub(crate) fn figures(&self) -> [(&'static str, u64); 4] {
        [
            ("shards_owned", self.core.ways.all_here().len() as u64),
            ("shards_without_owner", self.core.ways.lost() as u64),
            ("shard_moves_total", self.core.moves.load(Ordering::Relaxed)),
            ("forwarded_again_total", self.core.ways.sent_again()),
        ]
    }

    /// Submissions sent to each other node since the start, by its name.
    pub(crate) fn forwards(&self) -> Vec<(Box<str>, u64)> {
        self.core.ways.forwards()
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Ends it as `kill -9` would, as far as others can see: nothing is closed, nobody is told. Its stores must have been cut off.
    #[cfg(test)]
    pub(crate) fn kill(&self) {
        self.core.killed.store(true, Ordering::SeqCst);
        self.core.inbox.wake();
    }
}

/// A node whose start was given up stops.
struct StopOnDrop(Option<Arc<Core>>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            core.shared.wish(Wish::Stop, &core.inbox);
        }
    }
}

/// Listens; gives the address to tell others, too.
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

/// Takes part. A name or a place that a dead node holds is free after its lease.
fn join(
    coordinator: &dyn Coordinator,
    options: &FleetOptions,
    advertise: &str,
) -> Result<Joined, FleetError> {
    let candidate = Candidate {
        name: options.name.as_str().into(),
        advertise: advertise.into(),
        shards_if_new: options.shards_if_new.max(1),
        settle_delay: options.settle_delay,
    };
    let lease = coordinator.lease();
    let until = Instant::now() + lease + lease / 4;
    let pause = || std::thread::sleep(jittered((lease / 8).min(Duration::from_secs(1))));
    let joined = loop {
        match coordinator.join(&candidate) {
            Ok(joined) => break joined,
            Err(error) if error.kind() != ErrorKind::Fenced => return Err(error.into()),
            Err(_) if Instant::now() >= until => return Err(FleetError::NameTaken(options.name.clone())),
            Err(_) => pause(),
        }
    };
    loop {
        let problem = match coordinator.beat(&joined.node) {
            Err(error) => FleetError::Store(error),
            Ok(nodes) => match stranger(&joined.node, &nodes) {
                None => return Ok(joined),
                Some(problem) => problem,
            },
        };
        if Instant::now() >= until || matches!(problem, FleetError::Store(_)) {
            if let Err(error) = coordinator.leave(&joined.node) {
                tracing::warn!(%error, "could not say that this node takes part no more");
            }
            return Err(problem);
        }
        pause();
    }
}

/// If these nodes cannot share: why.
pub(crate) fn stranger(me: &Node, nodes: &[Node]) -> Option<FleetError> {
    let mut others = nodes.iter().filter(|node| node.number != me.number);
    if me.advertise.is_empty() {
        let names: Vec<&str> = others.map(|node| &*node.name).collect();
        return (!names.is_empty()).then(|| FleetError::NotAlone(names.join(", ")));
    }
    let alone = others.find(|node| node.advertise.is_empty())?;
    Some(FleetError::OtherIsAlone(alone.name.to_string()))
}

/// The parts of a node that has joined.
pub(super) fn assemble(
    coordinator: Arc<dyn Coordinator>,
    joined: &Joined,
    options: &FleetOptions,
    tls: Tls,
    policy: &Policy,
    clock: Arc<dyn Clock>,
) -> (Arc<Core>, Keeper, Terms) {
    let Joined { node: me, shards, secret } = joined.clone();
    let lease = coordinator.lease();
    let reading = clock.read();
    let shared = Arc::new(Shared::new(coordinator.level(), clock.clone()));
    // A node has no engine: only the wall clock of this counts.
    shared.set_keeper(Timekeeper::resume(None, None, None, &*clock));
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
    let ways = Ways::new(me.number, shards, &one, &shared, &inbox, looks);
    let view = ClusterView { me: me.clone(), nodes: Vec::new(), shards: Vec::new(), age: Duration::ZERO };
    let core = Arc::new(Core {
        me: me.clone(),
        shards,
        lease,
        ways: ways.clone(),
        shared,
        inbox,
        look,
        nudged: AtomicBool::new(false),
        moves: AtomicU64::new(0),
        locals: Locals::default(),
        view: Mutex::new((view, Instant::now())),
        killed: AtomicBool::new(false),
    });
    let secrets = Secrets { current: secret, former: None };
    let terms = Terms::new(me.clone(), tls, &secrets, options.speaks, Limits::of(policy), lease);
    let seed = options.seed.unwrap_or(reading.wall_ns ^ reading.elapsed_ns.rotate_left(32));
    let recipe = Recipe {
        coordinator: coordinator.clone(),
        me,
        shards,
        policy: one,
        seed,
        quotas: options.quotas.clone(),
        clock: clock.clone(),
    };
    let runtime = tokio::runtime::Handle::current();
    let owned = Owned::new(recipe, lease, &core.inbox, (&ways, &core.locals), &runtime);
    let presence = Presence::new(options.settle_delay);
    let parts = Parts { coordinator, owned, presence, clock, terms: terms.clone(), runtime };
    let keeper = Keeper::new(core.clone(), parts, policy.max_inbox_bytes);
    (core, keeper, terms)
}
