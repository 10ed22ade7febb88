//! Writes and syncs that fail: the store ends, and the next one starts from what is certain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::conformance::{Dice, History};
use duewheel_core::store::{
    Capacity, ErrorKind, Found, Level, Load, Lookups, Sequence, Store, StoreError, StoreRequest, Which,
};
use duewheel_store_log::{LogStore, Options, SyncMode, WorkMode, Worked, verify_on};

use duewheel_sim_disk::{Plan, SimDisk, Survivors};

use crate::rig::{Rig, assert_is, by_hand, figure, load_page, open, read_all, small, work, work_all};

/// Every call of the store, after it was poisoned.
fn every_call(store: &mut LogStore, history: &mut History) -> Vec<Result<(), StoreError>> {
    let load = Load {
        ticket: 1,
        sequence: Sequence::At,
        which: Which::All,
        after: None,
        until: 9,
        rows: 1,
        bytes: 1,
    };
    vec![
        store.append(&history.group(2)),
        store.sync(),
        store.progress().map(drop),
        store.find_many(&Lookups::default(), &mut Found::default()).map(drop),
        store.ask(StoreRequest::Load(load)),
        store.idle(history.tick(), None),
        store.close(history.tick()).map(drop),
    ]
}

#[test]
fn a_failed_write_ends_the_store() {
    let disk = SimDisk::new(1);
    let mut rig = Rig::open(&disk, by_hand(), History::new(1));
    rig.append(5);
    rig.sync();
    let durable = rig.history.model().applied();
    disk.plan(Plan::FailNext("journal"));
    let error = rig.store.append(&rig.history.group(5)).expect_err("the write fails");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("cannot write journal/0000000001.log"), "{error}");
    for (n, result) in every_call(&mut rig.store, &mut rig.history).into_iter().enumerate() {
        assert_eq!(result.expect_err("the store has ended").to_string(), error.to_string(), "call {n}");
    }
    // Story: it said that new messages had no room, so their senders were told that the disk was full.
    assert_eq!(rig.store.room(), Capacity::Enough);
    let group = rig.history.group(5);
    let refused = rig.store.append(&group).expect_err("the store has ended");
    assert_eq!(refused.nothing_from(), Some(group.first), "it knows that it took nothing");
    drop(rig.store);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert!(rig.recovered.next_lsn > durable);
    rig.assert_is("reopened");
}

/// Story (PostgreSQL, 2018): after a failed fsync the kernel marks the pages clean; the next fsync succeeds and the
/// data is nowhere. So no sync is tried twice, and what a new owner reads from the page cache it writes again
/// elsewhere.
#[test]
fn failed_sync_is_never_retried() {
    let disk = SimDisk::new(2);
    let mut rig = Rig::open(&disk, by_hand(), History::new(2));
    rig.append(5);
    rig.sync();
    rig.append(5);
    rig.append(5);
    let written = rig.history.model().applied();
    let hands = rig.store.hands();
    rig.store.sync().expect("asking works");
    disk.plan(Plan::FailNext("journal"));
    hands.sync();
    let error = rig.store.progress().expect_err("the sync failed");
    assert!(error.to_string().contains("cannot sync journal/0000000001.log"), "{error}");
    let calls = disk.calls();
    assert_eq!(
        (hands.sync(), hands.prepare(), work(&hands)),
        (Worked::Nothing, Worked::Nothing, Worked::Nothing)
    );
    assert!(rig.store.sync().is_err());
    drop(rig.store);
    assert_eq!(disk.calls(), calls, "nothing touches the disk any more");

    // The page cache still has the tail, the disk never will: forget that it is dirty.
    let name = "journal/0000000001.log";
    assert_eq!(verify_on(&disk).expect("verify").unproven_groups, 2);
    let rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.recovered.next_lsn, written.next());
    drop(rig.store);
    let zeros = vec![0; 12 * 1024 - 4096 - 500];
    let mut bytes = disk.read(name);
    bytes[4096 + 500..].copy_from_slice(&zeros);
    disk.overwrite(name, &bytes);
    disk.restart(Survivors::None);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.recovered.next_lsn, written.next(), "the new segment has the tail");
    rig.assert_is("reopened");
}

/// Each call of the disk fails once: those that change it as if it were broken and as if it were full, and those that
/// only look. The store goes on or ends; nothing durable is ever missing.
#[test]
fn every_call_may_fail() {
    for (plan, all) in [
        (Plan::FailAt as fn(u64) -> Plan, CHANGES),
        (Plan::FullAt as fn(u64) -> Plan, CHANGES),
        (Plan::BlindAt as fn(u64) -> Plan, LOOKS),
    ] {
        let mut seen = Failures::default();
        let mut n = 1;
        while fail(plan, n, &mut seen) == Reached::Yes {
            n += 1;
        }
        assert_eq!(seen.calls, BTreeSet::from_iter(all.iter().copied()), "each kind of call has failed");
        assert!(seen.poisoned > 10 && seen.refused > 20 && seen.cases > 100, "{:?}: {seen:?}", plan(n));
    }
}

/// What the store asks of a disk.
const CHANGES: &[&str] = &["allocate", "create", "remove", "rename", "sync", "sync_dir", "write"];
const LOOKS: &[&str] = &["free_bytes", "list", "lock", "open", "read", "size"];

/// What failing calls have led to.
#[derive(Debug, Default)]
struct Failures {
    calls: BTreeSet<&'static str>,
    poisoned: u64,
    refused: u64,
    cases: u64,
}

/// Whether a run makes so many calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    Yes,
    No,
}

/// Three owners one after the other, the power lost between them, and call `n` fails.
fn fail(plan: fn(u64) -> Plan, n: u64, seen: &mut Failures) -> Reached {
    let failing = plan(n);
    let kind = if matches!(failing, Plan::FullAt(_)) { ErrorKind::Full } else { ErrorKind::Unavailable };
    let disk = SimDisk::new(3);
    let made = |disk: &SimDisk| match failing {
        Plan::BlindAt(_) => disk.looks(),
        _ => disk.calls(),
    };
    let mut history = History::new(3);
    let mut dice = Dice::new(3);
    disk.plan(failing);
    let mut durable = Lsn(0);
    for _owner in 0..3 {
        let mut store = match open(&disk, by_hand()) {
            Ok(store) => store,
            Err(error) => {
                assert_eq!(error.kind(), kind, "{failing:?}: {error:?}");
                seen.refused += 1;
                continue;
            }
        };
        let recovered = store.recovered();
        assert!(recovered.next_lsn > durable, "{failing:?}");
        history.forget_after(Lsn(recovered.next_lsn.0 - 1));
        let hands = store.hands();
        for _ in 0..16 {
            let appended = store.append(&history.group(9));
            let asked = appended.and_then(|()| match dice.below(8) {
                0 => store.find_many(&history.lookups(), &mut Found::default()).map(drop),
                1 => read_all(&mut store, &history),
                _ => Ok(()),
            });
            if let Err(error) = asked {
                assert_eq!(error.kind(), kind, "{failing:?}: {error:?}");
                seen.poisoned += 1;
                break;
            }
            if dice.once_in(2) {
                let _ = store.sync();
                hands.sync();
                hands.prepare();
                work_all(&hands);
            }
            if let Ok(progress) = store.progress() {
                durable = progress.durable;
            }
        }
        drop(store);
        disk.restart(Survivors::Some);
        disk.plan(if made(&disk) < n { failing } else { Plan::Fine });
    }
    let reached = if made(&disk) < n { Reached::No } else { Reached::Yes };
    disk.plan(Plan::Fine);
    seen.calls.extend(disk.failed());
    let mut rig = Rig::open(&disk, by_hand(), history);
    assert!(rig.recovered.next_lsn > durable, "{failing:?}: lost");
    rig.assert_is(&format!("{failing:?}"));
    rig.history.forget_after(Lsn(rig.recovered.next_lsn.0 - 1));
    rig.append(3);
    seen.cases += 1;
    reached
}

/// Story: a disk that would not give one block (EIO) ended the store, and with it every call of every caller.
#[test]
fn lookup_read_error_keeps_store() {
    let disk = SimDisk::new(8);
    let mut rig = Rig::open(&disk, by_hand(), History::new(8));
    let hands = rig.store.hands();
    while figure(&rig.store, "runs") < 3 {
        rig.append(9);
        hands.flush();
    }
    rig.sync();
    let lookups = rig.history.lookups();
    let looks = |store: &mut LogStore| {
        let before = disk.looks();
        let mut found = Found::default();
        store.find_many(&lookups, &mut found).expect("the disk is well");
        (disk.looks() - before, found)
    };
    let (reads, all) = looks(&mut rig.store);
    assert!(reads > 10, "{reads}");
    for n in 1..=reads {
        disk.plan(Plan::BlindAt(disk.looks() + n));
        let mut found = all.clone();
        let error = rig.store.find_many(&lookups, &mut found).expect_err("a block cannot be read");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(found, all, "nothing half found");
        disk.plan(Plan::Fine);
        rig.store.progress().expect("nothing is poisoned");
        assert_eq!(looks(&mut rig.store), (reads, all.clone()), "asked again it is there");
    }
    rig.append(9);
    rig.sync();
    rig.assert_reopens(&disk, by_hand());
}

/// Story: a block of a page that the disk would not give (EIO) ended the store, and again at each next owner, who asked
/// for the same page.
#[test]
fn page_read_error_keeps_store() {
    let disk = SimDisk::new(9);
    let mut rig = Rig::open(&disk, by_hand(), History::new(9));
    let hands = rig.store.hands();
    while figure(&rig.store, "runs") < 3 {
        rig.append(9);
        hands.flush();
    }
    rig.sync();
    let (until, bytes) = (u64::MAX, 100_000);
    let load = |ticket| Load {
        ticket,
        sequence: Sequence::At,
        which: Which::All,
        after: None,
        until,
        rows: 1_000,
        bytes,
    };
    let before = disk.looks();
    let whole = load_page(&mut rig.store, load(1));
    let reads = disk.looks() - before;
    assert!(reads > 2 && !whole.rows.is_empty(), "{reads}");
    for n in 1..=reads {
        disk.plan(Plan::BlindAt(disk.looks() + n));
        rig.store.ask(StoreRequest::Load(load(1))).expect("asked");
        rig.store.ask(StoreRequest::Load(load(2))).expect("asked");
        let error = rig.store.arrived().expect("an outcome").expect_err("a block cannot be read");
        assert_eq!((error.kind(), error.page()), (ErrorKind::Unavailable, Some(1)), "{error}");
        disk.plan(Plan::Fine);
        rig.store.progress().expect("nothing is poisoned");
        let other = rig.store.arrived().expect("the other page").expect("is read").page().expect("a page");
        assert_eq!((other.load.ticket, &other.rows), (2, &whole.rows));
        assert!(rig.store.arrived().is_none(), "whoever takes all pages comes to an end");
        let again =
            rig.store.arrived().expect("it is read again").expect("the disk is well").page().expect("a page");
        assert_eq!((again.load.ticket, &again.rows, again.more), (1, &whole.rows, whole.more));
        assert!(rig.store.arrived().is_none());
    }
    assert_eq!(figure(&rig.store, "page_failures_total"), reads);

    // A page that is not wanted any more is not read again.
    disk.plan(Plan::BlindAt(disk.looks() + 1));
    rig.store.ask(StoreRequest::Load(load(3))).expect("asked");
    let error = rig.store.arrived().expect("an outcome").expect_err("a block cannot be read");
    assert_eq!(error.page(), Some(3));
    disk.plan(Plan::Fine);
    rig.store.ask(StoreRequest::Forget(3)).expect("asked");
    let before = disk.looks();
    assert!((0..3).all(|_| rig.store.arrived().is_none()));
    assert_eq!(disk.looks(), before);
    rig.append(9);
    rig.sync();
    rig.assert_reopens(&disk, by_hand());
}

/// A merge that finds damage must not make it final: the store ends, and the damaged run stays.
#[test]
fn damage_in_merge_ends_store() {
    let disk = SimDisk::new(4);
    let mut rig = Rig::open(&disk, by_hand(), History::new(4));
    let hands = rig.store.hands();
    while figure(&rig.store, "runs") < 3 {
        rig.append(9);
        hands.flush();
    }
    let name = disk.names("runs").remove(0);
    let mut bytes = disk.read(&name);
    bytes[100] ^= 1;
    disk.overwrite(&name, &bytes);
    while hands.merge() == Worked::Done {}
    let error = rig.store.progress().expect_err("the run is damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&format!("{name} at byte 64")), "{error}");
    assert!(disk.names("runs").contains(&name));
}

/// Whoever meets damage is told so, and nobody gets a wrong or a shortened answer.
#[test]
fn damage_on_read_ends_store() {
    for loads in [false, true] {
        let disk = SimDisk::new(4);
        let mut rig = Rig::open(&disk, by_hand(), History::new(4));
        while figure(&rig.store, "runs") < 1 {
            rig.append(9);
            rig.store.hands().flush();
        }
        let name = disk.names("runs").remove(0);
        let mut bytes = disk.read(&name);
        bytes[100] ^= 1;
        disk.overwrite(&name, &bytes);
        let error = if loads {
            let load = Load {
                ticket: 1,
                sequence: Sequence::AllAt,
                which: Which::All,
                after: None,
                until: u64::MAX,
                rows: 1_000,
                bytes: 1_000_000,
            };
            rig.store.ask(StoreRequest::Load(load)).expect("asking works");
            rig.store.arrived().expect("an answer").expect_err("the run is damaged")
        } else {
            let lookups = rig.history.lookups();
            rig.store.find_many(&lookups, &mut Found::default()).expect_err("the run is damaged")
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&format!("{name} at byte 64")), "{error}");
        assert!(rig.store.progress().is_err());
    }
}

#[test]
fn buffered_groups_are_synced_soon() {
    let disk = SimDisk::new(5);
    let options = Options {
        sync: SyncMode::Buffered,
        buffered_for: Duration::from_millis(5),
        workers: WorkMode::Threads,
        ..small()
    };
    let mut rig = Rig::open(&disk, options, History::new(5));
    assert_eq!(rig.store.terms().level, Level::Buffered);
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..5 {
        let last = rig.append(5);
        assert_eq!(rig.store.progress().expect("progress").durable, last, "at once, without asking");
        while disk.unsynced_sectors("journal") > 0 {
            assert!(Instant::now() < deadline, "nobody asked, and it is synced all the same");
            std::thread::yield_now();
        }
    }
    drop(rig.store);
    disk.restart(Survivors::None);
    let mut rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.recovered.next_lsn, rig.history.model().applied().next());
    rig.assert_is("reopened");
}

#[test]
fn waker_rings_on_durability() {
    let disk = SimDisk::new(6);
    let (rings, heard) = std::sync::mpsc::channel();
    let waker = Arc::new(move || {
        let _ = rings.send(());
    });
    let mut store = LogStore::open_on(Arc::new(disk), small(), waker).expect("open");
    let mut history = History::new(6);
    let group = history.group(4);
    store.append(&group).expect("append");
    store.sync().expect("sync");
    while store.progress().expect("progress").durable < group.last() {
        heard.recv_timeout(Duration::from_secs(60)).expect("a ring for each sync");
    }
}

#[test]
fn out_of_order_group_ends_store() {
    let disk = SimDisk::new(7);
    let mut rig = Rig::open(&disk, by_hand(), History::new(7));
    rig.append(5);
    let mut group = rig.history.group(5);
    group.first = group.first.next();
    let error = rig.store.append(&group).expect_err("a hole in the journal");
    assert!(error.to_string().contains("is due"), "{error}");
    assert!(rig.store.progress().is_err());
}

/// What is written while a sync runs is not covered by it; asks made meanwhile are joined into the next one.
#[test]
fn sync_covers_only_earlier_writes() {
    let disk = SimDisk::new(8);
    let mut rig = Rig::open(&disk, small(), History::new(8));
    let figure = |rig: &Rig, name| rig.store.figures().iter().find(|f| f.0 == name).map_or(0, |f| f.1);
    // Segments are prepared first: their syncs would be held, too.
    let deadline = Instant::now() + Duration::from_secs(60);
    while figure(&rig, "journal_segments") < 3 {
        assert!(Instant::now() < deadline, "segments are prepared");
        std::thread::yield_now();
    }
    let syncs = figure(&rig, "syncs_total");
    disk.hold_syncs();
    let covered = rig.append(2);
    rig.store.sync().expect("sync");
    disk.wait_for_sync();
    let mut last = covered;
    for _ in 0..5 {
        last = rig.append(2);
        rig.store.sync().expect("asking does not block");
    }
    assert!(rig.store.progress().expect("progress").durable < covered);
    disk.release_syncs();
    let mut seen = Lsn(0);
    while seen < last {
        assert!(Instant::now() < deadline, "both syncs end");
        seen = rig.store.progress().expect("progress").durable;
        assert!([Lsn(0), covered, last].contains(&seen), "{seen:?} was never the end of a sync");
    }
    assert_eq!(figure(&rig, "syncs_total"), syncs + 2);
}

/// Story: a manifest was renamed, and the sync of its folder failed. Taking that for "not replaced" would remove the
/// run that the manifest on the disk already lists.
#[test]
fn background_work_survives_any_failure() {
    for what in ["flush", "merge", "prepare"] {
        let mut worked = 0;
        for n in 1.. {
            let disk = SimDisk::new(9);
            let mut rig = Rig::open(&disk, Options { journal_bytes: 0, ..by_hand() }, History::new(9));
            let hands = rig.store.hands();
            while hands.prepare() == Worked::Done {}
            while figure(&rig.store, "segment_rotations_total") < 2 {
                rig.append(9);
            }
            if what == "merge" {
                while hands.merge() == Worked::Nothing {
                    rig.append(9);
                    hands.flush();
                }
            }
            let before = disk.calls();
            disk.plan(Plan::FailAt(before + n));
            match what {
                "flush" => hands.flush(),
                "merge" => loop {
                    match hands.merge() {
                        Worked::Done => {}
                        other => break other,
                    }
                },
                _ => hands.prepare(),
            };
            let calls = disk.calls() - before;
            drop(rig.store);
            for survivors in [Survivors::All, Survivors::None, Survivors::Some] {
                let disk = disk.copy();
                disk.restart(survivors);
                let report = verify_on(&disk).expect("verify");
                assert_eq!(report.problems, [], "{what}, call {n}, {survivors:?}");
                let mut store = open(&disk, by_hand()).expect("open");
                let recovered = store.recovered();
                assert_is(&mut store, &recovered, &rig.history, &format!("{what}, call {n}, {survivors:?}"));
            }
            if calls < n {
                break;
            }
            worked += 1;
        }
        assert!(worked >= 5, "{what} changes something: {worked} calls");
    }
}

/// Story: a panic in a worker that nobody saw left the owner waiting for a sync that never came.
#[test]
fn worker_panic_ends_only_its_store() {
    let disk = SimDisk::new(10);
    // Armed late: the preparer may wake the owner before anything is appended.
    let armed = Arc::new(AtomicBool::new(false));
    let is_armed = Arc::clone(&armed);
    let waker = Arc::new(move || assert!(!is_armed.load(Relaxed), "the test wants it"));
    let mut store = LogStore::open_on(Arc::new(disk), small(), waker).expect("open");
    let mut history = History::new(10);
    store.append(&history.group(4)).expect("append");
    armed.store(true, Relaxed);
    let _ = store.sync();
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = loop {
        match store.progress() {
            Ok(_) => assert!(Instant::now() < deadline, "the panic shows"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("has panicked"), "{error}");
    assert!(store.close(history.tick()).is_err(), "nobody waits for ever");
}
