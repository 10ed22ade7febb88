//! Several stores that share the threads of their background work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Capacity, Store};
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::{LogStore, Options, WorkerPool};

use crate::rig::{figure, small};

const PATIENCE: Duration = Duration::from_secs(60);

fn shared(pool: &WorkerPool) -> Options {
    Options { pool: pool.clone(), ..small() }
}

/// A store, its history and its disk.
struct Sharer {
    store: LogStore,
    history: History,
    disk: SimDisk,
}

impl Sharer {
    fn open(pool: &WorkerPool, seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let store = LogStore::open_on(Arc::new(disk.clone()), shared(pool), Arc::new(|| {})).expect("open");
        Sharer { store, history: History::new(seed), disk }
    }

    /// Appends if there is room. Flushes make some.
    fn append(&mut self) {
        if self.store.room() == Capacity::Enough {
            self.store.append(&self.history.group(5)).expect("append");
            self.store.sync().expect("sync");
        }
    }

    fn flushes(&self) -> u64 {
        figure(&self.store, "flushes_total")
    }
}

#[test]
fn few_threads_serve_many_stores() {
    let pool = WorkerPool::new(2);
    let mut stores: Vec<Sharer> = (0..12).map(|seed| Sharer::open(&pool, seed)).collect();
    let deadline = Instant::now() + PATIENCE;
    while stores.iter().any(|one| one.flushes() < 5) {
        assert!(Instant::now() < deadline, "each store is served");
        stores.iter_mut().for_each(Sharer::append);
        assert!(pool.threads() <= 6, "two threads for segments, flushes and pages, for all stores together");
    }
    for mut one in stores {
        one.store.close(one.history.tick()).expect("close");
        drop(one.store);
        // Nothing of it is at work any more: the next owner finds a folder at rest.
        let again =
            LogStore::open_on(Arc::new(one.disk), shared(&pool), Arc::new(|| {})).expect("open again");
        drop(again);
    }
}

#[test]
fn panic_ends_only_one_store() {
    let pool = WorkerPool::new(1);
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&is_armed);
    // The preparer wakes the owner when it has made the first segment.
    let waker = Arc::new(move || assert!(!armed.swap(false, Relaxed), "the test wants it"));
    is_armed.store(true, Relaxed);
    let mut broken = LogStore::open_on(Arc::new(SimDisk::new(1)), shared(&pool), waker).expect("open");
    let deadline = Instant::now() + PATIENCE;
    let error = loop {
        match broken.progress() {
            Ok(_) => assert!(Instant::now() < deadline, "the panic shows"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("duewheel-prep has panicked"), "{error}");
    let mut other = Sharer::open(&pool, 2);
    let deadline = Instant::now() + PATIENCE;
    while other.flushes() < 3 {
        assert!(Instant::now() < deadline, "the threads go on");
        other.append();
    }
}
