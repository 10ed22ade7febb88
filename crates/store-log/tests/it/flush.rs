//! Flushes and merges mean what the records mean, keep the journal short and memory small.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{Lease, Life, Stage};
use duewheel_core::record::{ClockPair, Gone, Group, Record};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{
    Capacity, Found, Load, Lookups, More, Sequence, Store, StoreRequest, Which, place_in,
};
use duewheel_core::time::Due;
use duewheel_core::{EngineMs, Lsn, MessageContent, MessageId, QueueName, WallMs};
use duewheel_store_log::{LogStore, Options, WorkMode, Worked, verify_on};

use crate::counting::CountingDisk;
use crate::rig::{
    Rig, all_rows, assert_rows, by_hand, figure, load_all, load_page, open, times, was, work, work_all,
};
use duewheel_sim_disk::{Plan, SimDisk, Survivors};

/// Appends groups of given records to a new store.
fn appender() -> impl FnMut(&mut LogStore, Vec<Record>) {
    let mut lsn = 1;
    move |store, records| {
        let group = Group { first: Lsn(lsn), clock: clock(lsn), records };
        lsn = group.last().0 + 1;
        store.append(&group).expect("append");
    }
}

/// A cut behind each group, as long as the flushes keep up.
fn eager() -> Options {
    Options { journal_bytes: 0, ..by_hand() }
}

/// What is told by memtables, runs and the state file together is what the records say: messages with every change,
/// queues that came and went, totals, purges that keep some, remembered answers, counters and clocks.
#[test]
fn all_layers_fold_to_model() {
    let (mut flushes, mut merges) = (0, 0);
    for seed in 0..times(24) {
        let disk = SimDisk::new(seed);
        let mut history = History::new(seed);
        for round in 0..6 {
            let options = if seed % 3 == 0 { by_hand() } else { eager() };
            let mut rig = Rig::open(&disk, options, history);
            let what = format!("seed {seed}, round {round}");
            rig.assert_is(&what);
            let hands = rig.store.hands();
            for _ in 0..rig.history.dice().below(60) {
                rig.append(10);
                match rig.history.dice().below(6) {
                    0 => work_all(&hands),
                    1 | 2 => drop(work(&hands)),
                    _ => {}
                }
                if rig.history.dice().once_in(9) {
                    assert_rows(&mut rig.store, &rig.history, rig.history.model(), &what);
                }
            }
            flushes += figure(&rig.store, "flushes_total");
            merges += figure(&rig.store, "merges_total");
            assert_rows(&mut rig.store, &rig.history, rig.history.model(), &what);
            assert_eq!(figure(&rig.store, "messages"), rig.history.model().len() as u64, "{what}");
            history = rig.history;
        }
        assert_eq!(verify_on(&disk).expect("verify").problems, [], "seed {seed}");
    }
    assert!(flushes > 500 && merges > 50, "{flushes} flushes, {merges} merges");
}

/// Story: with workers of its own the flush runs beside appends and look-ups, and three threads change the manifest.
#[test]
fn flushes_and_merges_run_beside_owner() {
    for seed in 0..3 {
        let disk = SimDisk::new(seed);
        let mut history = History::new(seed);
        for round in 0..4 {
            let what = format!("seed {seed}, round {round}");
            let options = Options { workers: WorkMode::Threads, ..eager() };
            let mut rig = Rig::open(&disk, options, history);
            rig.assert_is(&what);
            for n in 0..120 {
                rig.append(10);
                rig.store.sync().expect("sync");
                if n % 12 == 0 {
                    assert_rows(&mut rig.store, &rig.history, rig.history.model(), &what);
                }
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            while figure(&rig.store, "merges_total") == 0 {
                assert!(Instant::now() < deadline, "runs are merged: {:?}", rig.store.figures());
                rig.append(3);
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(rig.store);
            disk.restart(Survivors::All);
            history = rig.history;
        }
    }
}

/// A message that is settled before its cut never reaches a run, and segments are used again.
#[test]
fn settled_messages_do_not_grow_journal() {
    let disk = SimDisk::new(1);
    let mut store = open(&disk, by_hand()).expect("open");
    let hands = store.hands();
    let (mut lsn, mut files, mut largest) = (1, 0, 0);
    for id in 1..=4_000 {
        for record in [put(id, 100), removed(id, 100)] {
            let group = Group { first: Lsn(lsn), clock: clock(lsn), records: vec![record] };
            lsn = group.last().0 + 1;
            store.append(&group).expect("append");
        }
        if id % 20 == 0 {
            work_all(&hands);
            while hands.prepare() == Worked::Done {}
            files = files.max(disk.names("journal").len());
            largest = largest.max(figure(&store, "run_bytes"));
        }
    }
    assert!(figure(&store, "flushes_total") > 20);
    let (made, reused) = (figure(&store, "segments_made_total"), figure(&store, "segments_reused_total"));
    assert!(reused > 2 * made, "{reused} segments used again, {made} made");
    assert!(files <= 8, "{files} files");
    assert!(largest < 8_000, "{largest} bytes of runs for nothing");
    drop(store);
    let recovered = open(&disk, by_hand()).expect("open").recovered();
    assert_eq!(recovered.next_id, 4_001);
    assert_eq!(recovered.queues, [], "a queue without messages, settings and pause is gone");
}

/// Nothing is left of a message but that its id was given, and only the state remembers that.
#[test]
fn removed_message_id_is_never_reused() {
    let disk = SimDisk::new(6);
    let mut store = open(&disk, eager()).expect("open");
    let records = vec![put(77, 9), removed(77, 9)];
    store.append(&Group { first: Lsn(1), clock: clock(1), records }).expect("append");
    assert_eq!(store.hands().flush(), Worked::Done);
    drop(store);
    let recovered = open(&disk, eager()).expect("open").recovered();
    assert_eq!((recovered.next_id, recovered.next_lsn, recovered.queues), (78, Lsn(3), vec![]));
    assert_eq!(disk.names("runs"), Vec::<String>::new(), "there is nothing to write to a run");
}

/// Whatever waits is written a few times, in flushes and merges together, and memory and runs stay few.
#[test]
fn backlog_bounds_writes_runs_and_memory() {
    let disk = SimDisk::new(2);
    let mut store = open(&disk, by_hand()).expect("open");
    let hands = store.hands();
    let (mut memory, mut runs) = (0, 0);
    for id in 1..=6_000 {
        let group = Group { first: Lsn(id), clock: clock(id), records: vec![put(id, 100)] };
        store.append(&group).expect("append");
        hands.prepare();
        work_all(&hands);
        memory = memory.max(figure(&store, "memory_bytes"));
        runs = runs.max(figure(&store, "runs"));
    }
    let sum = |names: &[&str]| names.iter().map(|name| figure(&store, name)).sum::<u64>();
    let journal = figure(&store, "journal_written_bytes_total");
    let flushed = sum(&["flush_written_bytes_total"]);
    let merged = sum(&["merge_written_bytes_total"]);
    assert!(figure(&store, "flushes_total") > 5);
    // With three runs instead of sixteen, and blocks of 4 KiB for runs of 10 KiB, both are far from what they are.
    assert!(flushed <= 5 * journal, "{flushed} bytes flushed for {journal} bytes of journal");
    assert!(merged <= 20 * journal, "{merged} bytes merged for {journal} bytes of journal");
    assert!(memory < 200_000, "{memory} bytes in memory");
    assert!(runs <= 4, "{runs} runs");
    assert_eq!(figure(&store, "run_messages_live") + figure(&store, "memory_records"), 6_000);
}

#[test]
fn over_budget_open_cuts_first() {
    let disk = SimDisk::new(3);
    let lazy = Options { journal_bytes: u64::MAX / 4, journal_records: u64::MAX, ..by_hand() };
    let mut rig = Rig::open(&disk, lazy, History::new(3));
    for _ in 0..200 {
        rig.append(9);
        rig.store.hands().prepare();
    }
    drop(rig.store);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.store.hands().flush(), Worked::Done);
    rig.assert_is("while running");
    drop(rig.store);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(figure(&rig.store, "memory_records"), 0);
    rig.assert_is("from the runs");
}

/// A flush or a merge that fails leaves everything as it was, and the next attempt takes new files.
#[test]
fn what_failed_is_made_again_later() {
    for dir in ["runs", "state"] {
        let disk = SimDisk::new(4);
        let mut rig = Rig::open(&disk, eager(), History::new(4));
        let hands = rig.store.hands();
        for round in 1..=5 {
            rig.append(9);
            let before = disk.names(dir);
            for _ in 0..3 {
                disk.plan(Plan::FailNext(dir));
                assert_eq!(hands.flush(), Worked::Later);
                rig.append(9);
                assert_eq!(disk.names(dir), before, "nothing is left of it");
                assert_rows(&mut rig.store, &rig.history, rig.history.model(), "after a failed flush");
            }
            assert_eq!(figure(&rig.store, "flush_failures_total"), round * 3);
            assert_eq!(hands.flush(), Worked::Done);
        }
        assert_eq!(hands.merge(), Worked::Done, "it is planned");
        let before = disk.names(dir).len();
        disk.plan(Plan::FailNext(dir));
        while hands.merge() == Worked::Done {}
        assert_eq!(figure(&rig.store, "merge_failures_total"), 1);
        assert!(disk.names(dir).len() <= before, "nothing is left of it");
        assert_rows(&mut rig.store, &rig.history, rig.history.model(), "after a failed merge");
        work_all(&hands);
        assert!(figure(&rig.store, "merges_total") > 0);
        assert_rows(&mut rig.store, &rig.history, rig.history.model(), "after the merge");
        rig.assert_reopens(&disk, eager());
    }
}

/// Many large messages are in runs; a few of them are granted, postponed, granted and cut off again.
#[test]
fn patched_bodies_stay_byte_exact() {
    let disk = SimDisk::new(5);
    let options = Options { segment_bytes: 256 * 1024, ..eager() };
    let mut store = open(&disk, options.clone()).expect("open");
    let hands = store.hands();
    let mut append = appender();
    for id in 1..=60 {
        append(&mut store, vec![put(id, 60_000)]);
        if id % 25 == 0 {
            hands.flush();
        }
    }
    work_all(&hands);
    let mut life = Life::new(Due::At(WallMs(7)), None);
    life.generation = 9;
    for round in 0..4 {
        for id in (1..=60).step_by(7) {
            let was = was("orders", if round == 0 { due(id) } else { Due::At(WallMs(7)) }, 60_010);
            let record = match round {
                0 => Record::Changed { id: MessageId(id), life: life.clone(), was },
                _ => Record::Granted { id: MessageId(id), attempt: round, lease: lease(id), was },
            };
            append(&mut store, vec![record]);
        }
        if round % 2 == 1 {
            hands.flush();
        }
    }
    for id in 61..=110 {
        append(&mut store, vec![put(id, 60_000)]);
    }
    let check = |store: &mut LogStore| {
        let rows = all_rows(store);
        assert_eq!(rows.len(), 110);
        for row in &rows {
            let id = row.message.id.0;
            let Record::Put { message, .. } = put(id, 60_000) else { unreachable!() };
            assert_eq!(row.message, message, "message {id}");
            if id <= 60 && id % 7 == 1 {
                assert_eq!((row.life.generation, row.life.attempt), (9, 3), "message {id}");
                assert_eq!(row.life.stage, Stage::Leased(lease(id)));
                assert_eq!(row.life.due, Due::At(WallMs(7)));
            }
        }
        let leased = load_all(store, Sequence::Leased, Which::All, 3);
        assert!(leased.iter().map(|row| row.message.id.0).eq((1..=60).step_by(7)));
    };
    check(&mut store);
    work_all(&hands);
    check(&mut store);
    drop(store);
    check(&mut open(&disk, options).expect("open"));
}

/// Story: a page is asked for, and before it is fetched its messages are changed, cut off, flushed and merged. Nothing
/// of what did not change may be missing or twice.
#[test]
fn page_survives_concurrent_changes() {
    for seed in 0..times(40) {
        let disk = SimDisk::new(seed);
        let mut rig = Rig::open(&disk, eager(), History::new(seed));
        let hands = rig.store.hands();
        for _ in 0..40 {
            rig.append(9);
            if rig.history.dice().once_in(3) {
                work(&hands);
            }
        }
        for (ticket, sequence) in (0..).zip(Sequence::ALL.into_iter().cycle().take(18)) {
            let (mut after, mut seen) = (None, Vec::new());
            let before = rig.history.model().applied();
            loop {
                let load = Load {
                    ticket,
                    sequence,
                    which: Which::All,
                    after,
                    until: u64::MAX,
                    rows: 7,
                    bytes: 5_000,
                };
                rig.store.ask(StoreRequest::Load(load)).expect("load");
                let early = rig.history.dice().once_in(2).then(|| hands.load());
                for _ in 0..rig.history.dice().below(4) {
                    rig.append(4);
                    work(&hands);
                }
                let page = rig.store.arrived().expect("a page").expect("no damage").page().expect("a page");
                assert_eq!(page.load.ticket, ticket);
                seen.extend(page.rows);
                assert!(early != Some(Worked::Nothing));
                match page.more {
                    More::Yes => after = page.upto,
                    More::No => break,
                }
            }
            assert!(seen.iter().map(|row| place_in(sequence, row)).is_sorted(), "seed {seed}, {sequence:?}");
            let model = rig.history.model_at(before).expect("the end of a group");
            let now = rig.history.model();
            let since = rig.history.groups().iter().filter(|group| group.first > before);
            let touched: Vec<MessageId> =
                since.flat_map(|group| &group.records).filter_map(Record::message).collect();
            for row in model.rows() {
                let unchanged = now.row(row.message.id).is_some() && !touched.contains(&row.message.id);
                if unchanged && place_in(sequence, &row).is_some() {
                    let times = seen.iter().filter(|seen| **seen == row).count();
                    assert_eq!(times, 1, "seed {seed}, {sequence:?}: message {}", row.message.id);
                }
            }
        }
    }
}

/// Story: a page that leaves queues out read and threw away what their blocks share with each other, until it was full
/// or the sequence was at its end; every other page waited behind it.
#[test]
fn excluding_page_ends_after_enough_reading() {
    let disk = SimDisk::new(3);
    let options = Options {
        segment_bytes: 4 << 20,
        journal_bytes: 8 << 20,
        journal_records: 1_000_000,
        max_group_bytes: 1 << 20,
        ..by_hand()
    };
    let mut store = open(&disk, options).expect("open");
    let (hands, mut append) = (store.hands(), appender());
    let idle = |n: u64| QueueName::new(&format!("idle-{n:03}")).expect("a good name");
    // A hundred queues in turn: none has so much in a span that it gets blocks of its own there.
    for first in (1..=60_000u64).step_by(1_000) {
        let of_queue = |id: u64| {
            let mut record = put(id, 200);
            if let Record::Put { message, .. } = &mut record
                && !id.is_multiple_of(20_000)
            {
                *message =
                    Arc::new(MessageContent { queue: idle(id % 100), ..MessageContent::clone(message) });
            }
            record
        };
        append(&mut store, (first..first + 1_000).map(of_queue).collect());
        hands.prepare();
        work_all(&hands);
    }
    let except: Arc<[QueueName]> = (0..100).map(idle).collect();
    for rows in [1, 1_000] {
        let mut load = Load {
            ticket: 1,
            sequence: Sequence::After,
            which: Which::AllBut(except.clone()),
            after: None,
            until: u64::MAX,
            rows,
            bytes: 100_000,
        };
        let (mut found, mut pages) = (Vec::new(), 0);
        loop {
            let page = load_page(&mut store, load.clone());
            pages += 1;
            found.extend(page.rows.iter().map(|row| row.message.id.0));
            if page.more == More::No {
                break;
            }
            assert!(page.upto > load.after, "each page comes further");
            load.after = page.upto;
        }
        found.sort_unstable();
        assert_eq!(found, [20_000, 40_000, 60_000]);
        assert!(pages > 5, "{pages} pages of a tenth of the bytes each");
    }
}

/// Messages of many queues in memory and in runs: one queue, and all but some.
#[test]
fn queues_stay_separate_in_layers() {
    let disk = SimDisk::new(8);
    let mut rig = Rig::open(&disk, by_hand(), History::new(8));
    let hands = rig.store.hands();
    for n in 0..150 {
        rig.append(9);
        if n % 8 == 0 {
            work(&hands);
        }
    }
    assert!(figure(&rig.store, "runs") > 1 && figure(&rig.store, "memory_records") > 0);
    let names: Vec<QueueName> = rig.history.model().queue_rows().into_iter().map(|row| row.name).collect();
    for sequence in Sequence::ALL {
        let mut expected = rig.history.model().rows();
        expected.retain(|row| place_in(sequence, row).is_some());
        expected.sort_by_key(|row| place_in(sequence, row));
        for name in &names {
            let mut of_queue = expected.clone();
            of_queue.retain(|row| row.message.queue == *name);
            let which = Which::One(name.clone());
            assert_eq!(load_all(&mut rig.store, sequence, which, 5), of_queue, "{sequence:?} of {name}");
            let mut others = expected.clone();
            others.retain(|row| row.message.queue != *name);
            let which = Which::AllBut(Arc::from([name.clone()]));
            assert_eq!(load_all(&mut rig.store, sequence, which, 5), others, "{sequence:?} but {name}");
        }
    }
}

/// A purge is one record, whatever it takes: it hides what is older in memory and in runs, but for those kept.
#[test]
fn purge_hides_runs_without_reading() {
    let disk = SimDisk::new(9);
    let mut store = open(&disk, by_hand()).expect("open");
    let hands = store.hands();
    let mut append = appender();
    for id in 1..=300 {
        append(&mut store, vec![put(id, 50)]);
        work_all(&hands);
    }
    let grant = |id| Record::Granted {
        id: MessageId(id),
        attempt: 1,
        lease: lease(id),
        was: was("orders", due(id), 53),
    };
    append(&mut store, vec![grant(5), grant(290)]);
    let purged = Record::Purged {
        queue: QueueName::new("orders").expect("a good name"),
        keep: vec![MessageId(5), MessageId(290)].into(),
        before: MessageId(301),
        purged: 298,
    };
    append(&mut store, vec![put(302, 50), purged, put(301, 50)]);
    let ids = |store: &mut LogStore| all_rows(store).iter().map(|row| row.message.id.0).collect::<Vec<_>>();
    assert_eq!(ids(&mut store), [5, 290, 301, 302]);
    // Until it is flushed and merged away, and when the store is opened in between.
    for id in 303..=700 {
        append(&mut store, vec![put(id, 50), removed(id, 50)]);
        work(&hands);
        if id % 40 == 0 {
            assert_eq!(ids(&mut store), [5, 290, 301, 302]);
            drop(store);
            store = open(&disk, by_hand()).expect("open");
            assert_eq!(ids(&mut store), [5, 290, 301, 302]);
        }
        let hands = store.hands();
        work(&hands);
    }
    let hands = store.hands();
    work_all(&hands);
    assert_eq!(ids(&mut store), [5, 290, 301, 302]);
    let tallies: u64 = store.figures().iter().find(|f| f.0 == "run_messages").map_or(0, |f| f.1);
    assert!(tallies < 50, "{tallies} rows are still in runs");
}

/// Story: the ids that a purge keeps were written to the state file once for each run, so its size was the product of
/// the two, for which no room was kept.
#[test]
fn state_stores_kept_ids_once() {
    const RUNS: u64 = 8;
    const EACH: u64 = 100;
    let disk = CountingDisk::new(&SimDisk::new(12));
    let mut store = open(&disk, Options { small_runs: 100, ..eager() }).expect("open");
    let hands = store.hands();
    let mut append = appender();
    for run in 0..RUNS {
        let ids = run * EACH + 1..=(run + 1) * EACH;
        let leased = ids.flat_map(|id| {
            let was = was("orders", due(id), 53);
            [put(id, 50), Record::Granted { id: MessageId(id), attempt: 1, lease: lease(id), was }]
        });
        append(&mut store, leased.collect());
        while hands.flush() == Worked::Done {}
    }
    assert_eq!(figure(&store, "runs"), RUNS);
    let before = disk.written("state");
    let purged = Record::Purged {
        queue: QueueName::new("orders").expect("a good name"),
        keep: (1..=RUNS * EACH).map(MessageId).collect::<Vec<_>>().into(),
        before: MessageId(RUNS * EACH + 1),
        purged: 0,
    };
    append(&mut store, vec![purged]);
    append(&mut store, vec![put(RUNS * EACH + 1, 50)]);
    while hands.flush() == Worked::Done {}
    // By two flushes, each of which may write all of the state.
    let written = disk.written("state") - before;
    assert!((RUNS * EACH..5 * RUNS * EACH).contains(&written), "{written} bytes");
    drop(store);
    let mut store = open(&disk, eager()).expect("open");
    work_all(&store.hands());
    assert!(figure(&store, "runs") < RUNS, "runs are merged");
    assert_eq!(all_rows(&mut store).len() as u64, RUNS * EACH + 1, "all were kept");
}

/// A look-up of thousands of ids and keys, most of them in runs, by several threads.
#[test]
fn large_look_ups_are_shared_out() {
    let disk = SimDisk::new(10);
    let options = Options {
        workers: WorkMode::Threads,
        readers: 3,
        small_runs: 6,
        journal_bytes: 100_000,
        segment_bytes: 64 * 1024,
        ..by_hand()
    };
    let mut store = open(&disk, options).expect("open");
    for id in 1..=4_000 {
        while store.room() == Capacity::Busy {
            std::thread::yield_now();
        }
        let mut record = put(id, 40);
        if let Record::Put { message, .. } = &mut record {
            let key = duewheel_core::Key::new(&format!("key {id}")).expect("a good key");
            *message = Arc::new(MessageContent { key: Some(key), ..MessageContent::clone(message) });
        }
        let group = Group { first: Lsn(id), clock: clock(id), records: vec![record] };
        store.append(&group).expect("append");
    }
    let mut lookups = Lookups::default();
    lookups.ids.extend((1..=5_000).rev().step_by(2).map(MessageId));
    let queue = QueueName::new("orders").expect("a good name");
    for id in (1..=6_000).step_by(3) {
        let key = duewheel_core::Key::new(&format!("key {id}")).expect("a good key");
        lookups.keys.push((queue.clone(), key));
    }
    for _ in 0..3 {
        let mut found = Found::default();
        store.find_many(&lookups, &mut found).expect("find_many");
        let mut ids: Vec<u64> = found.rows.iter().map(|row| row.message.id.0).collect();
        ids.sort_unstable();
        let expected = (1..=4_000).filter(|id| id % 2 == 0 || id % 3 == 1);
        assert!(ids.iter().copied().eq(expected), "{} rows", ids.len());
    }
}

/// A new key is told to be new by filters in memory; a known one costs a leaf of an index and a block.
#[test]
fn key_lookups_read_few_blocks() {
    let disk = SimDisk::new(12);
    let options = Options { small_runs: 100, run_rows: 100, ..by_hand() };
    let mut store = open(&disk, options).expect("open");
    let hands = store.hands();
    let key = |id: u64| duewheel_core::Key::new(&format!("key {id}")).expect("a good key");
    for id in 1..=6_000 {
        let mut record = put(id, 100);
        if let Record::Put { message, .. } = &mut record {
            *message = Arc::new(MessageContent { key: Some(key(id)), ..MessageContent::clone(message) });
        }
        store.append(&Group { first: Lsn(id), clock: clock(id), records: vec![record] }).expect("append");
        hands.prepare();
        work_all(&hands);
    }
    let runs = figure(&store, "runs");
    assert!(runs > 10, "{runs} runs");
    let queue = QueueName::new("orders").expect("a good name");
    let mut reads = |ids: std::ops::RangeInclusive<u64>, found: usize| {
        let before = disk.calls();
        let mut rows = 0;
        for id in ids {
            let lookups = Lookups { keys: vec![(queue.clone(), key(id))], ..Lookups::default() };
            let mut found = Found::default();
            store.find_many(&lookups, &mut found).expect("find_many");
            rows += found.rows.len();
        }
        assert_eq!(rows, found);
        disk.calls() - before
    };
    let new = reads(10_001..=20_000, 0);
    assert!(new <= 100, "{new} reads for 10,000 new keys in {runs} runs");
    let known = reads(1..=1_000, 1_000);
    assert!(known <= 2_050, "{known} reads for 1,000 known keys");
}

/// Pages go on where the one before ended, also when the page before was asked for with a nearer end.
#[test]
fn next_page_continues_last_one() {
    let disk = SimDisk::new(11);
    let mut store = open(&disk, by_hand()).expect("open");
    let hands = store.hands();
    for id in 1..=900 {
        let group = Group { first: Lsn(id), clock: clock(id), records: vec![put(id, 20)] };
        store.append(&group).expect("append");
        work_all(&hands);
    }
    let mut seen = Vec::new();
    let mut after = None;
    for until in (0..1_000_000).step_by(33_000) {
        loop {
            let load = Load {
                ticket: until,
                sequence: Sequence::After,
                which: Which::All,
                after,
                until,
                rows: 20,
                bytes: 1_000_000,
            };
            let page = load_page(&mut store, load);
            assert!(page.rows.iter().all(|row| row.life.due.raw() <= until));
            seen.extend(page.rows.iter().map(|row| row.message.id.0));
            after = page.upto;
            if page.more == More::No {
                break;
            }
        }
    }
    assert!(seen.into_iter().eq(1..=900));
}

fn clock(lsn: u64) -> ClockPair {
    ClockPair { engine: EngineMs(lsn), wall: WallMs(lsn) }
}

fn due(id: u64) -> Due {
    Due::After(EngineMs(id * 1_000))
}

fn put(id: u64, body: usize) -> Record {
    let message = MessageContent {
        dedupe_id: None,
        id: MessageId(id),
        queue: QueueName::new("orders").expect("a good name"),
        key: None,
        body: id.to_le_bytes().into_iter().cycle().take(body).collect::<Vec<u8>>().into(),
        headers: vec![("trace".into(), id.to_string().into())],
        options: Default::default(),
        enqueued_at: WallMs(id),
    };
    Record::Put { message: Arc::new(message), life: Life::new(due(id), None), was: None }
}

fn removed(id: u64, body: u64) -> Record {
    let was = was("orders", due(id), body + 5 + id.to_string().len() as u64);
    Record::Removed { id: MessageId(id), why: Gone::Acked, was }
}

fn lease(id: u64) -> Lease {
    Lease {
        token: LeaseToken { epoch: Epoch(1), counter: id },
        until: EngineMs(id * 10),
        session: SessionId(0),
        granted_at: WallMs(id),
    }
}
