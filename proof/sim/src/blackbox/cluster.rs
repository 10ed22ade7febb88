//! Several nodes of duewheel on one Redis, or on one Redis Cluster. Any of them may be asked for anything, so a client
//! keeps to one as long as it is there; leases and ids are the same at all.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use duewheel_judge::history::{Rules, Shards, Told, Unanswered};

use super::beanstalk::{self, Beanstalk};
use super::http::{DuewheelHttp, Memory};
use super::{Ability, Peer, System};
use crate::process::{Listens, Server, binary};

/// By how much it may make a shard late that it is taken over at the start, in ms.
const STANDS_STILL: u64 = 500;
/// The same for one fault, which moves a shard away and back, in ms; most of it is a busy machine, on which a change
/// takes long to reach the store. Less than the lease: a takeover that forgets the time without an owner is found.
const MOVES: u64 = 2_000;
/// A part of the messages is with nobody for as long as the lease and this, after a node has gone.
pub const TAKEOVER: Duration = Duration::from_secs(2);

const HTTP: DuewheelHttp = DuewheelHttp { memory: Memory::Usual };

/// How it is asked.
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
    /// How it is asked.
    pub door: Door,
    /// How long a shard stays with a node that is not heard of.
    pub shard_lease: Duration,
    /// Into how many parts the messages are split.
    pub shards: u32,
    /// How much of the last a failover of the store may forget.
    pub forgets: Duration,
    /// Replicas of the store that must have a change before it is answered.
    pub wait: u32,
    /// How late one fault may make the messages of a shard, in ms.
    pub moves_ms: u64,
    /// More options of each node.
    pub more: Vec<String>,
    tokens: Arc<AtomicU64>,
}

/// What is different about each node.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where it takes the calls of the others.
    pub peers: SocketAddr,
    /// Where it listens for beanstalkd's protocol.
    pub beanstalk: SocketAddr,
    /// Where its store is.
    pub store: String,
    /// Which version it is of.
    pub build: Build,
}

/// The version of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Build {
    /// The one that is here.
    #[default]
    This,
    /// One that pretends to come after it, which only a debug build does; it logs its connections.
    Next,
}

impl DuewheelCluster {
    /// A cluster of six shards.
    pub fn new(door: Door, shard_lease: Duration) -> Self {
        // A replica that follows at all is not further behind.
        let forgets = Duration::from_secs(2);
        DuewheelCluster {
            door,
            shard_lease,
            shards: 6,
            forgets,
            wait: 0,
            moves_ms: MOVES,
            more: Vec::new(),
            tokens: Arc::default(),
        }
    }

    /// Starts a node; it says where it listens for HTTP.
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
        // Shards are to move often, so that the faults meet them on their way.
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
        Server::spawn(command, &folder.join(format!("{}.log", member.name)), Listens::Says("http"))
    }
}

impl System for DuewheelCluster {
    fn name(&self) -> &'static str {
        match self.door {
            Door::Http => "duewheel cluster, HTTP",
            Door::Beanstalk => "duewheel cluster, beanstalk",
        }
    }

    fn described(&self) -> String {
        format!("{} shards, a lease of {} ms", self.shards, self.shard_lease.as_millis())
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
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let away = ms(self.shard_lease + TAKEOVER);
        let alone = match self.door {
            Door::Http => HTTP.rules(),
            Door::Beanstalk => beanstalk::rules(Told::Yes),
        };
        Rules {
            shards: Shards::Many,
            offer_ms: alone.offer_ms + away,
            // Whoever still has it in hand may carry it out as long as his lease runs.
            unanswered: Unanswered::ForMs(away),
            failover_ms: ms(self.forgets),
            // Shards move at the start, too.
            slack_ms: alone.slack_ms + STANDS_STILL,
            move_ms: self.moves_ms,
            ..alone
        }
    }

    fn spawn(&self, _folder: &Path) -> io::Result<Server> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a cluster is more than one process"))
    }

    fn connect(&self, address: SocketAddr, reign: u64) -> io::Result<Box<dyn Peer>> {
        match self.door {
            Door::Http => HTTP.connect(address, reign),
            // Tokens of all nodes are of one count, so that they are in the order of the grants.
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
