//! Places for stores: servers of the test's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::ShardId;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_redis_rig::{Redis, RedisCluster, Settings};
use duewheel_store_redis::{Options, RedisStore};

/// The shard that tests use when one is enough.
pub(crate) const SHARD: ShardId = ShardId(3);

/// Nothing takes longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn server() -> Redis {
    Redis::start(Settings::default()).expect("a redis-server")
}

pub(crate) fn options(redis: &Redis) -> Options {
    Options::parse(&redis.url(0)).expect("a good URL")
}

pub(crate) fn of_cluster(cluster: &RedisCluster) -> Options {
    Options::parse(&cluster.url()).expect("a good URL")
}

/// Opens the shard; waits while the lease of an owner that is gone runs.
pub(crate) fn open(options: &Options) -> RedisStore {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match RedisStore::open(options, SHARD, Arc::new(|| {})) {
            Ok(store) => return store,
            Err(error) => {
                let passes = matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Unavailable);
                assert!(passes && Instant::now() < deadline, "{error:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Asks until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn kind<T>(result: Result<T, StoreError>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}
