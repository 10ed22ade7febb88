//! What opening a folder and keeping its books cost, as the number of runs and queues grows.

use duewheel_core::record::{ClockPair, Group, Pause, Record};
use duewheel_core::store::Store;
use duewheel_core::store::conformance::History;
use duewheel_core::{EngineMs, Lsn, QueueName, WallMs};
use duewheel_sim_disk::{SimDisk, Survivors};
use duewheel_store_log::{Options, WorkMode, Worked, verify_on};

use crate::counting::CountingDisk;
use crate::rig::{Rig, assert_is, by_hand, figure, open};

/// Story: runs were opened one after the other, and a folder with a hundred of them waited for the disk a hundred times.
#[test]
fn runs_are_opened_side_by_side() {
    let disk = SimDisk::new(31);
    let many = Options { small_runs: 100, ..by_hand() };
    let mut rig = Rig::open(&disk, many.clone(), History::new(31));
    let hands = rig.store.hands();
    while figure(&rig.store, "runs") < 6 {
        rig.append(9);
        rig.sync();
        hands.flush();
        hands.prepare();
    }
    drop(rig.store);
    disk.restart(Survivors::All);
    let counting = CountingDisk::new(&disk);
    counting.open_together(3);
    let threads = Options { readers: 2, workers: WorkMode::Threads, ..many };
    let mut store = open(&counting, threads).expect("open");
    assert!(counting.has_met(), "three runs at a time: by the caller's thread and two others");
    let recovered = store.recovered();
    assert_is(&mut store, &recovered, &rig.history, "opened side by side");
}

/// Story: the state was written whole at each flush and at each merge: 5 MB for 25,000 queues, whatever had changed.
#[test]
fn small_flush_writes_little_state() {
    const QUEUES: u64 = 25_000;
    let disk = SimDisk::new(32);
    let counting = CountingDisk::new(&disk);
    // Each append is cut off and flushed.
    let options =
        Options { segment_bytes: 1 << 20, max_group_bytes: 1 << 18, journal_records: 0, ..by_hand() };
    let mut store = open(&counting, options.clone()).expect("open");
    let clock = ClockPair { engine: EngineMs(1), wall: WallMs(1) };
    let hands = store.hands();
    let set = |no: u64, pause: Pause| {
        let name = QueueName::new(format!("queue-{no}").as_str()).expect("a good name");
        Record::Queue { name, settings: Default::default(), pause }
    };
    let mut next = Lsn(1);
    let mut flushed = |store: &mut duewheel_store_log::LogStore, records: Vec<Record>| {
        let group = Group { first: next, clock, records };
        next = group.last().next();
        store.append(&group).expect("append");
        let before = counting.written("state");
        assert_eq!(hands.flush(), Worked::Done);
        while hands.prepare() == Worked::Done {}
        counting.written("state") - before
    };
    for first in (0..QUEUES).step_by(5_000) {
        flushed(&mut store, (first..first + 5_000).map(|no| set(no, Pause::Paused)).collect());
    }
    // What comes next may be the whole again.
    let written: Vec<u64> =
        (0..3).map(|no| flushed(&mut store, vec![set(no, Pause::Running), set(no, Pause::Paused)])).collect();
    let whole = 10 * QUEUES; // a name and a few numbers each
    assert!(written[1] < 1_024 && written[2] < 1_024, "{written:?} bytes of state, of {whole}");
    assert!(counting.written("state") > whole);
    store.close(clock).expect("close");
    drop(store);
    let report = verify_on(&disk).expect("verify");
    assert_eq!(report.problems, []);
    let mut store = open(&disk, options).expect("open");
    let queues = store.recovered().queues;
    assert_eq!(queues.len() as u64, QUEUES);
    assert!(queues.iter().all(|queue| queue.pause == Pause::Paused));
}
