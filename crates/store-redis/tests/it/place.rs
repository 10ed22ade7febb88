//! Places for stores: servers of the test's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::ShardId;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Store, StoreError};
use duewheel_redis_rig::{Redis, RedisCluster, Settings};
use duewheel_store_log::Options as LogOptions;
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::Options;

/// The shard that tests use when one is enough.
pub(crate) const SHARD: ShardId = ShardId(3);

/// Nothing takes longer than this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn server() -> Redis {
    Redis::start(Settings::default()).expect("a redis-server")
}

pub(crate) fn options(redis: &Redis) -> Options {
    Options::parse(&redis.url(0)).expect("a good URL")
}

pub(crate) fn of_cluster(cluster: &RedisCluster) -> Options {
    Options::parse(&cluster.url()).expect("a good URL")
}

/// Memtables so small that they are flushed and merged.
pub(crate) fn small(options: Options) -> Options {
    options.log(LogOptions {
        journal_bytes: 24 * 1024,
        journal_records: 400,
        small_runs: 3,
        max_group_bytes: 256 * 1024,
        ..LogOptions::default()
    })
}

/// The rules that `docs/redis.md` names for a user that may do little.
pub(crate) const LITTLE: &str = "~{duewheel:* +@hash +set +strlen +setrange +getrange +exists +eval +unlink +type +info +time +wait +select";

/// The records of the history are durable.
pub(crate) fn written(store: &mut MediumStore, history: &History) {
    let last = history.model().applied();
    until("it is durable", || store.progress().expect("it lives").durable >= last);
}

/// Opens the shard; waits while the lease of an owner that is gone runs.
pub(crate) fn open(options: &Options) -> MediumStore {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match duewheel_store_redis::open(options, SHARD, Arc::new(|| {})) {
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
