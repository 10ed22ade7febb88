//! Stores that share a memory budget, worked by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use duewheel_core::store::conformance::History;
use duewheel_core::store::{Capacity, Store};
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::{LogStore, MemoryBudget, Options, Worked};

use crate::rig::{by_hand, figure};

/// A store that only the budget bounds, and how often it was woken.
struct Shard {
    store: LogStore,
    history: History,
    woken: Arc<AtomicU64>,
}

impl Shard {
    fn open(seed: u64, memory: &MemoryBudget) -> Self {
        let options =
            Options { memory: memory.clone(), journal_bytes: 1 << 40, journal_records: 1 << 40, ..by_hand() };
        let woken = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&woken);
        let waker = Arc::new(move || {
            counted.fetch_add(1, Relaxed);
        });
        let store = LogStore::open_on(Arc::new(SimDisk::new(seed)), options, waker).expect("open");
        Shard { store, history: History::new(seed), woken }
    }

    fn append(&mut self) {
        self.store.append(&self.history.group(9)).expect("append");
        while self.store.hands().prepare() == Worked::Done {}
    }

    fn append_until(&mut self, mut is_enough: impl FnMut(&mut LogStore) -> bool) {
        for _ in 0..20_000 {
            if is_enough(&mut self.store) {
                return;
            }
            self.append();
        }
        panic!("{:?}", self.store.figures());
    }
}

fn cuts(store: &LogStore) -> u64 {
    figure(store, "cuts_total")
}

/// A flush of one store wakes another one that found no memory.
#[test]
fn flush_wakes_another_short_store() {
    let memory = MemoryBudget::new(512 * 1024);
    let (mut first, mut second) = (Shard::open(1, &memory), Shard::open(2, &memory));
    first.append_until(|store| cuts(store) == 1);
    second.append_until(|store| store.room() == Capacity::Busy);
    assert!(memory.used() >= memory.bytes(), "{memory:?}");
    let woken = second.woken.load(Relaxed);
    assert_eq!(first.store.hands().flush(), Worked::Done);
    assert!(second.woken.load(Relaxed) > woken, "{memory:?}");
    assert_eq!(second.store.room(), Capacity::Enough);
}

/// A store whose flush never ends stops no other one: that one lives on its reserve, and takes messages during its own
/// flushes.
#[test]
fn store_proceeds_beside_stuck_flush() {
    let memory = MemoryBudget::new(1024 * 1024);
    let (mut stuck, mut other) = (Shard::open(1, &memory), Shard::open(2, &memory));
    stuck.append_until(|store| store.room() == Capacity::Busy);
    for round in 1..=5 {
        other.append_until(|store| {
            assert_eq!(store.room(), Capacity::Enough, "round {round}");
            cuts(store) == round
        });
        other.append();
        assert_eq!(other.store.room(), Capacity::Enough, "during flush {round}: {memory:?}");
        while other.store.hands().flush() == Worked::Done {}
        assert!(memory.used() <= memory.bytes() + 64 * 1024, "{memory:?}");
    }
    assert_eq!(stuck.store.room(), Capacity::Busy);
}

/// A store to which nothing comes any more cuts its records off when another one needs the memory.
#[test]
fn idle_store_cuts_when_asked() {
    let memory = MemoryBudget::new(512 * 1024);
    let (mut first, mut second) = (Shard::open(1, &memory), Shard::open(2, &memory));
    first.append_until(|_| memory.used() > 150 * 1024);
    let woken = first.woken.load(Relaxed);
    second.append_until(|_| first.woken.load(Relaxed) > woken);
    assert_eq!(cuts(&first.store), 0);
    first.store.progress().expect("progress");
    assert_eq!(cuts(&first.store), 1);
}

/// Story: a store that was closed with frozen memtables kept its part of the budget as long as anybody had its hands.
#[test]
fn closed_store_returns_its_budget() {
    let memory = MemoryBudget::new(512 * 1024);
    let mut shard = Shard::open(1, &memory);
    shard.append_until(|store| cuts(store) == 1);
    let hands = shard.store.hands();
    drop(shard.store);
    assert_eq!(memory.used(), 0, "{memory:?}");
    drop(hands);
}

/// Story: the table of a flushed memtable was used again whatever its size. It counted at once, so that its first
/// record was over the limit, and each flush wrote a few records.
#[test]
fn reused_table_starts_small() {
    let memory = MemoryBudget::new(256 * 1024);
    let mut shard = Shard::open(1, &memory);
    for cut in 1..=6 {
        shard.append_until(|store| cuts(store) == cut);
        while shard.store.hands().flush() == Worked::Done {}
        shard.append();
        assert!(memory.used() <= memory.bytes() / 8 + 16 * 1024, "cut {cut}: {memory:?}");
    }
}
