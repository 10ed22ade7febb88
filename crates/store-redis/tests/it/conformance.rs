//! The suites that every store and every medium run, on one server and on a Redis Cluster.

use std::sync::Arc;
use std::time::Instant;

use duewheel_core::store::conformance::{self, Fixture, FixtureSpace, Hook};
use duewheel_core::store::{Candidate, Coordinator, ErrorKind, StoreError, Waker};
use duewheel_redis_rig::{Redis, RedisCluster, Settings};
use duewheel_store_medium::conformance::{self as of_medium, Able, MediumFixture};
use duewheel_store_medium::{Acquired, FileId, FileKind, MAX_PIECE, Medium, MediumStore, Piece};
use duewheel_store_redis::{Options, RedisCoordinator};

use crate::place::{PATIENCE, SHARD, of_cluster, options, server, small, until};

/// Where the shard is; each place is a prefix of its own.
struct Servers {
    kind: Kind,
    places: u32,
    losses: u32,
    acquired: u32,
    options: Options,
}

enum Kind {
    Single(Redis),
    Cluster(RedisCluster),
}

impl Servers {
    fn single() -> Self {
        let redis = server();
        let options = options(&redis);
        Servers { kind: Kind::Single(redis), places: 0, losses: 0, acquired: 0, options }
    }

    fn cluster() -> Self {
        let cluster = RedisCluster::start(3, 0, Settings::default()).expect("a cluster");
        let options = of_cluster(&cluster);
        Servers { kind: Kind::Cluster(cluster), places: 0, losses: 0, acquired: 0, options }
    }

    /// The node that has the shard.
    fn node(&self) -> usize {
        match &self.kind {
            Kind::Single(_) => 0,
            Kind::Cluster(cluster) => cluster.master_of_key(&self.key("owner")).expect("a master"),
        }
    }

    fn redis(&self) -> &Redis {
        match &self.kind {
            Kind::Single(redis) => redis,
            Kind::Cluster(cluster) => cluster.node(self.node()),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{{place{}:{SHARD}}}:{name}", self.places)
    }

    fn lease_end(&self) -> Option<u64> {
        self.redis().command(&["HGET", &self.key("owner"), "until"]).expect("a reply").number()
    }

    fn command(&self, words: &[&str]) {
        let reply = self.redis().command(words).expect("a reply");
        assert!(!matches!(reply, duewheel_redis_rig::Value::Error(_)), "{words:?}: {reply:?}");
    }
}

impl Fixture for Servers {
    type Store = MediumStore;

    fn clear(&mut self) {
        self.command(&["FLUSHALL"]);
        self.places += 1;
        let options = match &self.kind {
            Kind::Single(redis) => options(redis),
            Kind::Cluster(cluster) => of_cluster(cluster),
        };
        self.options = small(options.prefix(format!("place{}", self.places)).expect("a good prefix"));
    }

    fn open(&mut self, waker: Waker) -> Result<MediumStore, StoreError> {
        duewheel_store_redis::open(&self.options, SHARD, waker)
    }

    /// The server is killed; it syncs its append-only file before each reply.
    fn lose_power(&mut self) -> Hook {
        let node = self.node();
        match &mut self.kind {
            Kind::Single(redis) => {
                redis.kill().expect("it ran");
                redis.restart().expect("it starts again");
            }
            Kind::Cluster(cluster) => {
                self.losses += 1;
                if self.losses % 8 != 1 {
                    return Hook::Unsupported; // it takes seconds until the others believe it again
                }
                cluster.kill(node).expect("it ran");
                cluster.restart(node).expect("it starts again");
                cluster.wait_until_well(PATIENCE).expect("a cluster that is well");
            }
        }
        Hook::Done
    }

    fn damage(&mut self) -> Hook {
        let files = self.redis().command(&["HGETALL", &self.key("files")]).expect("a reply");
        let journals = files.list().chunks(2).filter_map(|pair| {
            let (name, entry) = (pair[0].text()?, pair[1].text()?);
            name.starts_with("journal/").then(|| entry.split(' ').next().map(str::to_owned)).flatten()
        });
        // The frame of a group, behind the block of the segment's header.
        let is_written = |block: &String| {
            let at = self.redis().command(&["GETRANGE", block, "4156", "4156"]).expect("a reply").text();
            at.is_some_and(|byte| !byte.is_empty() && byte != "\0")
        };
        let block = journals.map(|file| self.key(&format!("block:{file}:0"))).find(is_written);
        self.command(&["SETRANGE", &block.expect("a segment with a group"), "4156", "nonsense"]);
        Hook::Done
    }

    /// All connections end, whoever uses them.
    fn fail(&mut self) -> Hook {
        self.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        Hook::Done
    }

    fn space(&mut self, space: FixtureSpace) -> Hook {
        let limit = match space {
            FixtureSpace::Free => 0,
            FixtureSpace::Full => {
                let info =
                    self.redis().command(&["INFO", "memory"]).expect("a reply").text().unwrap_or_default();
                let used = info.lines().find_map(|line| line.trim().strip_prefix("used_memory:"));
                let used: u64 = used.and_then(|n| n.parse().ok()).expect("a number");
                used + used / 20
            }
        };
        self.command(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
        // The store looks when it renews its lease; the second renewal from now was begun after this.
        for _ in 0..2 {
            let before = self.lease_end();
            until("the lease is renewed", || self.lease_end() != before);
        }
        Hook::Done
    }
}

impl MediumFixture for Servers {
    fn clear(&mut self) {
        Fixture::clear(self);
    }

    fn acquire(&mut self) -> Result<(Arc<dyn Medium>, Acquired), StoreError> {
        let nodes = RedisCoordinator::new(self.options.clone());
        let candidate = Candidate {
            name: format!("node{}", self.acquired).into(),
            advertise: "a:1".into(),
            shards_if_new: SHARD.0 + 1,
            settle_delay: std::time::Duration::ZERO,
        };
        self.acquired += 1;
        let joined = nodes.join(&candidate)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.command(&["HSET", &self.key("owner"), "until", "0"]);
            match nodes.acquire(&joined.node, SHARD, Arc::new(|| {})) {
                // The owner before has renewed its lease in between.
                Err(error) if error.kind() == ErrorKind::Fenced && Instant::now() < deadline => {}
                acquired => return acquired,
            }
        }
    }

    fn lose_power(&mut self) -> Able {
        match Fixture::lose_power(self) {
            Hook::Done => Able::Yes,
            Hook::Unsupported => Able::No,
        }
    }
}

/// Redis gives a string that grows up to twice its bytes of memory.
#[test]
fn complete_file_uses_no_extra_memory() {
    const SEND: usize = 4 * MAX_PIECE;
    let mut servers = Servers::single();
    MediumFixture::clear(&mut servers);
    let (medium, _) = MediumFixture::acquire(&mut servers).expect("an owner");
    let file = FileId(1);
    let bytes: Vec<u8> = (0..4_500_000_u32).flat_map(u32::to_le_bytes).collect();
    for (n, sent) in bytes.chunks(SEND).enumerate() {
        let pieces = sent.chunks(MAX_PIECE).enumerate();
        let pieces =
            pieces.map(|(m, piece)| Piece { at: (n * SEND + m * MAX_PIECE) as u64, bytes: piece.to_vec() });
        medium.write(file, FileKind::Blob, pieces.collect()).expect("a write");
    }
    medium.give_name("run/1", file, FileKind::Blob, bytes.len() as u64).expect("a name");
    for (n, expected) in bytes.chunks(MAX_PIECE).enumerate() {
        let read = medium.read(file, (n * MAX_PIECE) as u64, expected.len()).expect("bytes");
        assert!(read == expected, "piece {n} is as it was written");
    }
    let blocks = servers.redis().command(&["KEYS", &servers.key("block:1:*")]).expect("a reply");
    let taken: u64 = blocks
        .list()
        .iter()
        .map(|block| {
            let block = block.text().expect("a name");
            servers.redis().command(&["MEMORY", "USAGE", &block]).expect("a reply").number().expect("bytes")
        })
        .sum();
    let limit = bytes.len() as u64 * 11 / 10;
    assert!(taken < limit, "{taken} bytes of memory for {} bytes", bytes.len());
}

#[test]
fn single_server_medium_conforms() {
    of_medium::run(&mut Servers::single());
}

#[test]
fn a_medium_on_a_cluster_conforms() {
    of_medium::run(&mut Servers::cluster());
}

#[test]
fn a_single_server_conforms() {
    conformance::run(&mut Servers::single());
}

#[test]
fn a_cluster_conforms() {
    conformance::run(&mut Servers::cluster());
}
