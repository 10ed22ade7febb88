//! Checkpoints mean what the records mean, and keep the journal short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::message::Life;
use duewheel_core::record::{ClockPair, Gone, Group, Record};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Room, Store};
use duewheel_core::time::Due;
use duewheel_core::{EngineMs, Lsn, Message, MessageId, QueueName, WallMs};
use duewheel_store_log::{LogStore, Options, Worked, Workers};

use crate::rig::{Rig, assert_is, by_hand, open, times};
use crate::sim_disk::{Plan, SimDisk, Survivors};

/// A checkpoint for each sealed segment.
fn eager() -> Options {
    Options { journal_bytes: 0, ..by_hand() }
}

fn figure(store: &LogStore, name: &str) -> u64 {
    store.figures().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
}

/// Everything a checkpoint holds is what the table would hold: messages with every change, queues that came and went,
/// totals, purges that keep some, remembered answers, counters and clocks.
#[test]
fn a_checkpoint_is_the_fold_of_all_records() {
    let mut checkpoints = 0;
    for seed in 0..times(30) {
        let disk = SimDisk::new(seed);
        let mut history = History::new(seed);
        for round in 0..8 {
            let mut rig = Rig::open(&disk, eager(), history);
            let what = format!("seed {seed}, round {round}");
            assert_is(&mut rig.store, &rig.recovered, &rig.history, &what);
            let hands = rig.store.hands();
            let groups = rig.history.dice().below(60);
            for _ in 0..groups {
                rig.append(10);
                // Now and then several segments are folded into one run.
                if rig.history.dice().once_in(7) {
                    while hands.checkpoint() == Worked::Done {}
                }
            }
            while hands.checkpoint() == Worked::Done {}
            checkpoints += figure(&rig.store, "checkpoints_total");
            history = rig.history;
        }
    }
    assert!(checkpoints > 200, "{checkpoints}");
}

/// Story: with workers of its own the checkpoint runs beside appends, and the manifest is changed by two threads.
#[test]
fn checkpoints_run_beside_appends() {
    for seed in 0..3 {
        let disk = SimDisk::new(seed);
        let mut history = History::new(seed);
        for round in 0..4 {
            let options = Options { workers: Workers::Threads, ..eager() };
            let mut rig = Rig::open(&disk, options, history);
            assert_is(&mut rig.store, &rig.recovered, &rig.history, &format!("seed {seed}, round {round}"));
            for _ in 0..150 {
                rig.append(10);
                rig.store.sync().expect("sync");
            }
            let deadline = Instant::now() + Duration::from_secs(20);
            while figure(&rig.store, "checkpoints_total") == 0 {
                assert!(Instant::now() < deadline, "a checkpoint is made");
                std::thread::yield_now();
            }
            drop(rig.store);
            disk.restart(Survivors::All);
            history = rig.history;
        }
    }
}

/// A message that is settled before its segment is folded never reaches a run, and segments are used again.
#[test]
fn the_journal_does_not_grow_with_settled_messages() {
    let disk = SimDisk::new(1);
    let mut store = open(&disk, by_hand()).expect("open");
    let hands = store.hands();
    let (mut lsn, mut files, mut largest_run) = (1, 0, 0);
    for id in 1..=4_000 {
        let removed = Record::Removed { id: MessageId(id), why: Gone::Acked };
        for record in [put(id, 100), removed] {
            let group = Group { first: Lsn(lsn), clock: clock(lsn), records: vec![record] };
            lsn = group.last().0 + 1;
            store.append(&group).expect("append");
        }
        if id % 50 == 0 {
            while hands.checkpoint() == Worked::Done {}
            while hands.prepare() == Worked::Done {}
            files = files.max(disk.names("journal").len());
            largest_run = largest_run.max(figure(&store, "run_bytes"));
        }
    }
    assert!(figure(&store, "checkpoints_total") > 20);
    let (made, reused) = (figure(&store, "segments_made_total"), figure(&store, "segments_reused_total"));
    assert!(reused > 2 * made, "{reused} segments used again, {made} made");
    assert!(files <= 8, "{files} files");
    assert!(largest_run < 2_000, "{largest_run} bytes of run for nothing");
    drop(store);
    let mut store = open(&disk, by_hand()).expect("open");
    let recovered = store.recovered();
    assert_eq!((recovered.next_id, recovered.messages), (4_001, 0));
    assert_eq!(recovered.queues, [], "a queue without messages, settings and pause is gone");
}

/// Nothing is left of a message but that its id was given, and only the run remembers that.
#[test]
fn an_id_is_not_given_twice_when_its_message_is_long_gone() {
    let disk = SimDisk::new(6);
    let mut store = open(&disk, eager()).expect("open");
    let removed = |id| Record::Removed { id: MessageId(id), why: Gone::Acked };
    store
        .append(&Group { first: Lsn(1), clock: clock(1), records: vec![put(77, 9), removed(77)] })
        .expect("append");
    for lsn in 3.. {
        store
            .append(&Group { first: Lsn(lsn), clock: clock(lsn), records: vec![removed(1)] })
            .expect("append");
        if store.hands().checkpoint() == Worked::Done {
            break;
        }
    }
    drop(store);
    let recovered = open(&disk, eager()).expect("open").recovered();
    assert_eq!((recovered.next_id, recovered.messages), (78, 0));
}

/// The larger the run, the rarer the checkpoint: what checkpoints write stays within a few times what the journal takes.
#[test]
fn checkpoints_write_a_bounded_multiple_of_the_journal() {
    let disk = SimDisk::new(2);
    let mut store = open(&disk, by_hand()).expect("open");
    let hands = store.hands();
    for id in 1..=6_000 {
        let group = Group { first: Lsn(id), clock: clock(id), records: vec![put(id, 100)] };
        store.append(&group).expect("append");
        hands.prepare();
        while hands.checkpoint() == Worked::Done {}
    }
    let (journal, runs) =
        (figure(&store, "journal_written_bytes_total"), figure(&store, "checkpoint_written_bytes_total"));
    assert!(figure(&store, "checkpoints_total") > 5);
    assert!(runs <= 3 * journal, "{runs} bytes of runs for {journal} bytes of journal");
}

#[test]
fn an_open_over_budget_starts_with_a_checkpoint() {
    let disk = SimDisk::new(3);
    let lazy = Options { journal_bytes: u64::MAX / 4, journal_records: u64::MAX, ..by_hand() };
    let mut rig = Rig::open(&disk, lazy, History::new(3));
    for _ in 0..200 {
        rig.append(9);
        rig.store.hands().prepare();
    }
    drop(rig.store);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.store.hands().checkpoint(), Worked::Done);
    assert_is(&mut rig.store, &rig.recovered, &rig.history, "while running");
    drop(rig.store);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert_is(&mut rig.store, &rig.recovered, &rig.history, "from the run");
}

/// A checkpoint that fails leaves everything as it was, and the next attempt takes a new file.
#[test]
fn a_failed_checkpoint_is_made_again_later() {
    let disk = SimDisk::new(4);
    let mut rig = Rig::open(&disk, eager(), History::new(4));
    let hands = rig.store.hands();
    while figure(&rig.store, "segment_rotations_total") < 2 {
        rig.append(9);
        hands.prepare();
    }
    for _ in 0..3 {
        disk.plan(Plan::FailNext("runs"));
        assert_eq!(hands.checkpoint(), Worked::Later);
        rig.append(9);
        assert_eq!(disk.names("runs"), Vec::<String>::new(), "nothing is left of it");
    }
    assert_eq!(figure(&rig.store, "checkpoint_failures_total"), 3);
    assert_eq!(rig.store.room(), Room::Enough);
    assert_eq!(hands.checkpoint(), Worked::Done);
    drop(rig.store);
    let mut rig = Rig::open(&disk, eager(), rig.history);
    assert_is(&mut rig.store, &rig.recovered, &rig.history, "reopened");
}

/// Many large messages wait in the run; a few of them are granted. The fold must not take their bodies in.
#[test]
fn bodies_of_the_backlog_come_back_byte_for_byte() {
    let disk = SimDisk::new(5);
    let options = Options { segment_bytes: 256 * 1024, ..eager() };
    let mut store = open(&disk, options.clone()).expect("open");
    let hands = store.hands();
    let mut lsn = 1;
    let mut append = |store: &mut LogStore, records: Vec<Record>| {
        let group = Group { first: Lsn(lsn), clock: clock(lsn), records };
        lsn = group.last().0 + 1;
        store.append(&group).expect("append");
    };
    for id in 1..=60 {
        append(&mut store, vec![put(id, 60_000)]);
    }
    assert_eq!(hands.checkpoint(), Worked::Done);
    let mut life = Life::new(Due::At(WallMs(7)), None);
    life.generation = 9;
    for id in (1..=60).step_by(7) {
        append(&mut store, vec![Record::Changed { id: MessageId(id), life: life.clone() }]);
    }
    for id in 61..=110 {
        append(&mut store, vec![put(id, 60_000)]);
    }
    assert_eq!(hands.checkpoint(), Worked::Done);
    let should = store.table().rows();
    drop(store);
    let mut store = open(&disk, options).expect("open");
    assert_eq!(store.recovered().messages, 110);
    assert_eq!(store.table().rows(), should);
    assert!(should.iter().filter(|row| row.life.generation == 9).all(|row| row.message.body.len() == 60_000));
}

fn clock(lsn: u64) -> ClockPair {
    ClockPair { engine: EngineMs(lsn), wall: WallMs(lsn) }
}

fn put(id: u64, body: usize) -> Record {
    let message = Message {
        id: MessageId(id),
        queue: QueueName::new("orders").expect("a good name"),
        key: None,
        body: id.to_le_bytes().into_iter().cycle().take(body).collect::<Vec<u8>>().into(),
        headers: vec![("trace".into(), id.to_string().into())],
        options: Default::default(),
        enqueued_at: WallMs(id),
    };
    Record::Put { message: Arc::new(message), life: Life::new(Due::After(EngineMs(id * 1_000)), None) }
}
