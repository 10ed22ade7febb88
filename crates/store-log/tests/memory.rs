//! What many stores of one process allocate, counted by the allocator. One test only: the count is that of the whole
//! process.

use std::alloc::System;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use duewheel_core::message::{Life, MessageContent};
use duewheel_core::record::{ClockPair, Group, Record};
use duewheel_core::store::{Capacity, Store};
use duewheel_core::{Due, EngineMs, Lsn, MessageId, QueueName, WallMs};
use duewheel_store_log::{LogStore, MemoryBudget, Options, SyncMode};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MIB: u64 = 1024 * 1024;
/// Messages of a group, and bytes of a body.
const GROUP: u64 = 250;
const BODY: usize = 200;

fn allocated() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.bytes_allocated - stats.bytes_deallocated) as u64
}

/// The figures of the requirement with `DUEWHEEL_TEST_FULL=1`, which takes minutes and some 10 GB of disk; smaller ones
/// without.
fn is_full() -> bool {
    std::env::var_os("DUEWHEEL_TEST_FULL").is_some()
}

fn open(dir: &Path, shard: usize, options: &Options) -> LogStore {
    LogStore::open(dir.join(format!("shard-{shard}")), options.clone(), Arc::new(|| {})).expect("open")
}

fn puts(first: u64) -> Vec<Record> {
    let queue = QueueName::new("orders").expect("a good name");
    let put = |id: u64| {
        let message = MessageContent {
            dedupe_id: None,
            id: MessageId(id),
            queue: queue.clone(),
            key: None,
            body: vec![7; BODY].into(),
            headers: vec![],
            options: Default::default(),
            enqueued_at: WallMs(1),
        };
        let life = Life::new(Due::At(WallMs(1_000_000 + id % 100_000)), None);
        Record::Put { message: Arc::new(message), life, was: None }
    };
    (first..first + GROUP).map(put).collect()
}

/// Story: each store had a memory of its own, some 400 MB when its shard was busy, so 16 shards took 16 times as much.
#[test]
fn shards_share_one_memory_budget() {
    let dir = tempfile::tempdir().expect("a folder");
    let before = allocated();
    let default = Options { sync: SyncMode::Buffered, segment_bytes: MIB, ..Options::default() };
    let idle: Vec<LogStore> = (0..64).map(|shard| open(&dir.path().join("idle"), shard, &default)).collect();
    let of_idle = allocated().saturating_sub(before);
    println!("64 idle shards: {of_idle} bytes");
    assert!(of_idle <= 64 * MIB, "64 idle shards take {of_idle} bytes");
    drop(idle);

    let (bytes, shards, messages) =
        if is_full() { (512 * MIB, 16, 1_000_000) } else { (32 * MIB, 16, 20_000) };
    let budget = MemoryBudget::new(bytes);
    let options = Options { memory: budget.clone(), ..default };
    let mut stores: Vec<LogStore> =
        (0..shards).map(|shard| open(&dir.path().join("busy"), shard, &options)).collect();
    assert_eq!((budget.stores(), budget.bytes()), (shards, bytes));
    let before = allocated();
    let clock = ClockPair { engine: EngineMs(1), wall: WallMs(1) };
    let mut next = vec![Lsn(1); shards];
    let (mut most_used, mut most_allocated) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(if is_full() { 3_600 } else { 120 });
    while let Some(least) = next.iter().map(|lsn| lsn.0).min().filter(|least| *least <= messages) {
        let mut has_appended = false;
        for (store, next) in stores.iter_mut().zip(&mut next) {
            store.progress().expect("a healthy disk");
            if next.0 > messages || store.room() != Capacity::Enough {
                continue;
            }
            let group = Group { first: *next, clock, records: puts(next.0) };
            *next = group.last().next();
            store.append(&group).expect("append");
            has_appended = true;
        }
        most_used = budget.used().max(most_used);
        most_allocated = allocated().saturating_sub(before).max(most_allocated);
        if !has_appended {
            assert!(Instant::now() < deadline, "no shard takes messages any more, at {least}: {budget:?}");
            thread::sleep(Duration::from_millis(1)); // until a flush has made room
        }
    }
    println!("{most_used} bytes of memtables, {most_allocated} in all, of a budget of {bytes}");
    let pending = shards as u64 * messages * BODY as u64;
    assert!(pending > bytes * 3 / 2, "more than the budget is pending");
    // Tables grow in steps.
    assert!(most_used <= bytes + 4 * MIB, "{most_used} bytes of memtables");
    // Besides memtables there are bitmaps of runs, and for each store the last chunk of a memtable and what a flush
    // writes at a time.
    let beside = shards as u64 * 4 * MIB;
    assert!(most_allocated <= bytes + beside, "{most_allocated} bytes");
    let in_runs: Vec<u64> = stores
        .iter()
        .map(|store| store.figures().iter().find(|(name, _)| *name == "cuts_total").map_or(0, |(_, n)| *n))
        .collect();
    assert!(in_runs.iter().any(|cuts| *cuts > 0), "{in_runs:?}");
    for mut store in stores {
        store.close(clock).expect("close");
    }
}
