//! Several nodes of duewheel on one Redis, or on one Redis Cluster. Each of them serves all requests, so a client keeps
//! to one node as long as it exists; leases and ids are the same at all nodes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel_judge::history::{Rules, Shards, Unanswered};

use super::beanstalk::{self, Beanstalk};
use super::http::DuewheelHttp;
use super::{Ability, Peer, System};
use crate::process::{Server, binary};

/// How late a takeover at the start may make the messages of a shard, in ms.
const STANDS_STILL: u64 = 500;
/// How late one fault, which moves a shard away and back, may make the messages of a shard, in ms; most of it is for a
/// busy machine, on which a change takes long to reach the store. It is less than the lease, so that a takeover that
/// forgets the time without an owner is found.
const MOVES: u64 = 2_000;
/// How far a replica of the store that follows at all is behind, in ms.
const FORGETS: u64 = 2_000;
/// After a node has gone, its shards have no owner for as long as the lease and this.
pub const TAKEOVER: Duration = Duration::from_secs(2);

const HTTP: DuewheelHttp = DuewheelHttp { shards: 1 };

/// The protocol of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Over HTTP.
    Http,
    /// Over beanstalkd's protocol.
    Beanstalk,
}

/// A cluster of nodes.
#[derive(Clone, Debug)]
pub struct DuewheelCluster {
    /// The protocol of the clients.
    pub door: Door,
    /// How long a shard stays with a node that does not renew its lease.
    pub shard_lease: Duration,
    /// The number of shards.
    pub shards: u32,
    /// Replicas of the store that must have a change before it is answered.
    pub wait: u32,
    /// Further options of each node.
    pub more: Vec<String>,
    tokens: Arc<AtomicU64>,
    measured: Arc<Measured>,
}

/// Times that depend on the machine, and that the history is judged by: they are measured during the run.
#[derive(Debug)]
struct Measured {
    /// The time before a failover of the store whose changes may be forgotten, in ms.
    forgets_ms: AtomicU64,
    /// How late one fault may make the messages of a shard, in ms.
    moves_ms: AtomicU64,
}

/// The settings that differ between nodes.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The address for connections of other nodes.
    pub peers: SocketAddr,
    /// The address of its listener for beanstalkd's protocol.
    pub beanstalk: SocketAddr,
    /// The URL of its store.
    pub store: String,
    /// Its version.
    pub build: Build,
}

/// The version of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Build {
    /// The present version.
    #[default]
    This,
    /// A later version, which only a debug build pretends to be; it logs its connections.
    Next,
}

impl DuewheelCluster {
    /// A cluster of six shards.
    pub fn new(door: Door, shard_lease: Duration) -> Self {
        let measured = Measured { forgets_ms: AtomicU64::new(FORGETS), moves_ms: AtomicU64::new(MOVES) };
        DuewheelCluster {
            door,
            shard_lease,
            shards: 6,
            wait: 0,
            more: Vec::new(),
            tokens: Arc::default(),
            measured: Arc::new(measured),
        }
    }

    /// From now on a failover of the store may have forgotten what was answered within this time before it.
    pub fn may_forget(&self, time: Duration) {
        self.measured.forgets_ms.fetch_max(ms(time), Ordering::SeqCst);
    }

    /// From now on the time of a shard may have stood still for so long in one fault, besides the usual.
    pub fn may_stand_still(&self, time: Duration) {
        self.measured.moves_ms.fetch_max(ms(time).saturating_add(MOVES), Ordering::SeqCst);
    }

    /// Starts a node; it prints the address of its HTTP listener.
    ///
    /// # Errors
    ///
    /// There is no binary, or it cannot be started.
    pub fn node(&self, member: &Member, folder: &Path) -> io::Result<Server> {
        let mut command = Command::new(binary()?);
        command.args(["serve", "--http", "127.0.0.1:0", "--store", &member.store]);
        command.args(["--node", &member.name, "--advertise", &member.peers.to_string()]);
        command.args(["--shards", &self.shards.to_string()]);
        command.args(["--shard-lease", &format!("{}ms", self.shard_lease.as_millis())]);
        // Shards are to move often, so that faults happen while they move.
        command.args(["--settle-delay", "500ms"]);
        if self.wait > 0 {
            command.args(["--redis-wait", &self.wait.to_string()]);
        }
        command.args(&self.more);
        if member.build == Build::Next {
            command.env("DUEWHEEL_TEST_NEXT_VERSION", "yes").args(["--log", "debug"]);
        }
        let beanstalk = member.beanstalk.to_string();
        command.args(["--beanstalk", if self.door == Door::Beanstalk { &beanstalk } else { "off" }]);
        Server::spawn(command, &folder.join(format!("{}.log", member.name)), "http")
    }
}

/// In whole ms, rounded up.
fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl System for DuewheelCluster {
    fn name(&self) -> &'static str {
        match self.door {
            Door::Http => "duewheel cluster, HTTP",
            Door::Beanstalk => "duewheel cluster, beanstalk",
        }
    }

    fn abilities(&self) -> &[Ability] {
        match self.door {
            Door::Http => HTTP.abilities(),
            Door::Beanstalk => &beanstalk::OURS,
        }
    }

    fn unit_ms(&self) -> u64 {
        match self.door {
            Door::Http => 1,
            Door::Beanstalk => 1_000,
        }
    }

    fn rules(&self) -> Rules {
        let measured = |time: &AtomicU64| time.load(Ordering::SeqCst);
        let away = ms(self.shard_lease + TAKEOVER);
        let alone = match self.door {
            Door::Http => HTTP.rules(),
            Door::Beanstalk => beanstalk::ours(),
        };
        Rules {
            shards: Shards::Many,
            offer_ms: alone.offer_ms + away,
            // Any owner that still works on it may carry it out as long as its lease runs.
            unanswered: Unanswered::ForMs(away),
            failover_ms: measured(&self.measured.forgets_ms),
            // `TIME_LIMIT` of a reserve (crates/cluster/src/routing/reserve.rs): a store that stands still for that long,
            // because the machine's disk does, costs attempts as a failure of it does.
            partial_ms: 1_000,
            // Shards move at the start, too.
            slack_ms: alone.slack_ms + STANDS_STILL,
            move_ms: measured(&self.measured.moves_ms),
            ..alone
        }
    }

    fn spawn(&self, _folder: &Path) -> io::Result<Server> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a cluster is more than one process"))
    }

    fn connect(&self, address: SocketAddr, reign: u64) -> io::Result<Box<dyn Peer>> {
        match self.door {
            Door::Http => HTTP.connect(address, reign),
            // The tokens of all nodes come from one counter, so they are in the order of the grants.
            Door::Beanstalk => {
                Ok(Box::new(Beanstalk::open(address, 0, self.rules(), Arc::clone(&self.tokens))?))
            }
        }
    }

    fn prepare(&self, address: SocketAddr, queue: &str) -> Result<(), String> {
        match self.door {
            Door::Http => HTTP.prepare(address, queue),
            Door::Beanstalk => Ok(()),
        }
    }
}
