//! The suite that every store runs.

use duewheel_core::store::conformance::{self, Fixture, Hook, Space};
use duewheel_core::store::{StoreError, Waker};
use duewheel_redis_rig::Redis;
use duewheel_store_redis::{Options, RedisStore};

use crate::place::{SHARD, options, server, until};

/// One server; each place is a prefix of its own.
struct Single {
    redis: Redis,
    places: u32,
    options: Options,
}

impl Single {
    fn new() -> Self {
        let redis = server();
        let options = options(&redis);
        Single { redis, places: 0, options }
    }

    fn key(&self, name: &str) -> String {
        format!("{{place{}:{SHARD}}}:{name}", self.places)
    }

    fn lease_end(&self) -> Option<u64> {
        self.redis.command(&["HGET", &self.key("owner"), "until"]).expect("a reply").number()
    }

    fn command(&self, words: &[&str]) {
        let reply = self.redis.command(words).expect("a reply");
        assert!(!matches!(reply, duewheel_redis_rig::Value::Error(_)), "{words:?}: {reply:?}");
    }
}

impl Fixture for Single {
    type Store = RedisStore;

    fn clear(&mut self) {
        self.command(&["FLUSHALL"]);
        self.places += 1;
        // Small books, so that they are written now and then.
        let options = options(&self.redis).tail_bytes(3_000);
        self.options = options.prefix(format!("place{}", self.places)).expect("a good prefix");
    }

    fn open(&mut self, waker: Waker) -> Result<RedisStore, StoreError> {
        RedisStore::open(&self.options, SHARD, waker)
    }

    /// The server is killed; it syncs its append-only file before each reply.
    fn lose_power(&mut self) -> Hook {
        self.redis.kill().expect("it ran");
        self.redis.restart().expect("it starts again");
        Hook::Done
    }

    fn damage(&mut self) -> Hook {
        let books = self.key("books");
        self.command(&["HSET", &books, "queue/0", "\u{1}nonsense"]);
        Hook::Done
    }

    /// All connections end, whoever uses them.
    fn fail(&mut self) -> Hook {
        self.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        Hook::Done
    }

    fn space(&mut self, space: Space) -> Hook {
        let limit = match space {
            Space::Free => 0,
            Space::Full => {
                let info =
                    self.redis.command(&["INFO", "memory"]).expect("a reply").text().unwrap_or_default();
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

#[test]
fn a_single_server_conforms() {
    conformance::run(&mut Single::new());
}
