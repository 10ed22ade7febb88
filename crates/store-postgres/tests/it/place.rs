//! What the tests need: a server, nodes on it, and a history that a shard follows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::ShardId;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Candidate, Coordinator, Joined, Progress, Store, StoreError};
use duewheel_postgres_rig::{Postgres, Settings};
use duewheel_store_log::Options as LogOptions;
use duewheel_store_postgres::{Options, PostgresCoordinator};

pub(crate) const SHARD: ShardId = ShardId(0);
pub(crate) const LEASE: Duration = Duration::from_secs(2);
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn server() -> Postgres {
    Postgres::start(Settings::default()).expect("a server")
}

/// With memtables so small that they are flushed and merged.
pub(crate) fn options(url: &str) -> Options {
    let log = LogOptions {
        journal_bytes: 24 * 1024,
        journal_records: 400,
        small_runs: 3,
        max_group_bytes: 256 * 1024,
        ..LogOptions::default()
    };
    Options::parse(url).expect("a URL").lease(LEASE).expect("a lease").log(log)
}

/// A node that has made the tables if they were missing, and joined.
pub(crate) fn node(url: &str, name: &str, shards: u32) -> (PostgresCoordinator, Joined) {
    node_of(options(url), name, shards)
}

pub(crate) fn node_of(options: Options, name: &str, shards: u32) -> (PostgresCoordinator, Joined) {
    let nodes = PostgresCoordinator::new(options).expect("a coordinator");
    nodes.init().expect("tables");
    let joined = until(&format!("{name} joins"), || nodes.join(&candidate(name, shards)));
    (nodes, joined)
}

pub(crate) fn candidate(name: &str, shards: u32) -> Candidate {
    Candidate {
        name: name.into(),
        advertise: format!("{name}:1").into(),
        shards_if_new: shards,
        settle_delay: Duration::ZERO,
    }
}

/// Tries until something succeeds.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut attempt: impl FnMut() -> Result<T, StoreError>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) if Instant::now() >= deadline => panic!("{what}: {error:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Opens the shard when it is free.
#[track_caller]
pub(crate) fn open((nodes, joined): &(PostgresCoordinator, Joined)) -> Box<dyn Store> {
    until("open", || nodes.open(&joined.node, SHARD, Arc::new(|| {})))
}

/// Appends a group of the history, and waits until it is durable.
pub(crate) fn append(store: &mut dyn Store, history: &mut History, most: u64) -> Result<(), StoreError> {
    let group = history.group(most);
    store.append(&group)?;
    store.sync()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let Progress { durable, .. } = store.progress()?;
        if durable >= group.last() {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "it does not become durable");
        std::thread::sleep(Duration::from_millis(1));
    }
}
