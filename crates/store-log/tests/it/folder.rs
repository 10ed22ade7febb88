//! One folder, one owner; and what a folder may look like.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Store, StoreError};
use duewheel_core::{Epoch, Lsn};
use duewheel_store_log::{LogStore, Worked, verify};

use crate::rig::{Rig, by_hand, figure, open, small};
use duewheel_sim_disk::{SimDisk, Survivors};

fn open_in(dir: &std::path::Path) -> Result<LogStore, StoreError> {
    LogStore::open(dir, small(), Arc::new(|| {}))
}

#[test]
fn second_owner_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let first = open_in(&data).expect("open");
    let error = open_in(&data).expect_err("it is taken");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let text = error.to_string();
    assert!(text.contains("this process has this data folder open already"), "{text}");
    assert!(text.contains("data"), "the folder is named: {text}");
    assert_eq!(verify(&data).expect_err("a server has it").kind(), ErrorKind::Fenced);
    drop(first);
    open_in(&data).expect("dropping gives it up");
}

/// Story: while a server ran, somebody removed `LOCK`. The next server locked a new file of this name, and two owners
/// wrote one journal.
#[test]
fn removed_lock_file_admits_no_second_owner() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = open_in(dir.path()).expect("open");
    std::fs::remove_file(dir.path().join("LOCK")).expect("the lock file");
    assert_eq!(open_in(dir.path()).expect_err("it is taken").kind(), ErrorKind::Fenced);
    assert!(!dir.path().join("LOCK").exists(), "nothing was made");
    drop(first);
    open_in(dir.path()).expect("dropping gives it up");
}

/// What another process has locked is locked for this one too.
#[test]
fn a_lock_held_elsewhere_refuses() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open_in(dir.path()).expect("open"));
    let lock = File::open(dir.path().join("LOCK")).expect("the lock file stays");
    lock.lock().expect("flock");
    assert_eq!(open_in(dir.path()).expect_err("it is taken").kind(), ErrorKind::Fenced);
    lock.unlock().expect("unlock");
    lock.lock_shared().expect("flock");
    assert_eq!(open_in(dir.path()).expect_err("somebody reads").kind(), ErrorKind::Fenced);
    verify(dir.path()).expect("readers do not mind each other");
    lock.unlock().expect("unlock");
    open_in(dir.path()).expect("free again");
}

#[test]
fn closed_store_releases_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut store = open_in(dir.path()).expect("open");
    let mut history = History::new(1);
    store.append(&history.group(3)).expect("append");
    store.close(history.tick()).expect("close");
    let again = open_in(dir.path()).expect("open while the closed one still exists");
    drop((store, again));
}

#[test]
fn only_the_owner_may_look_inside() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("a/b/data");
    drop(open_in(&data).expect("folders are made"));
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("journal")), 0o700);
    assert_eq!(mode(&data.join("MANIFEST")) & 0o077, 0);
    for segment in fs::read_dir(data.join("journal")).expect("a folder") {
        assert_eq!(mode(&segment.expect("an entry").path()) & 0o077, 0);
    }
}

#[test]
fn epoch_grows_with_each_open() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    let mut before = Epoch(0);
    for round in 0..30 {
        let mut store = open(&disk, by_hand()).expect("open");
        let recovered = store.recovered();
        assert!(recovered.epoch > before, "round {round}");
        before = recovered.epoch;
        match round % 4 {
            0 => {}
            1 => store.append(&history.group(3)).expect("append"),
            2 => drop(store.close(history.tick()).expect("close")),
            _ => {
                history.forget_after(Lsn(recovered.next_lsn.0 - 1));
                while store.hands().prepare() == Worked::Done {}
            }
        }
        drop(store);
        let survivors = if round % 2 == 0 { Survivors::None } else { Survivors::All };
        disk.restart(survivors);
        if survivors == Survivors::None {
            let last = open(&disk.copy(), by_hand()).expect("open").recovered().next_lsn;
            history.forget_after(Lsn(last.0 - 1));
        }
    }
}

#[test]
fn crash_leftovers_are_removed() {
    let disk = SimDisk::new(2);
    let rig = Rig::open(&disk, by_hand(), History::new(2));
    drop(rig.store);
    let copy = disk.copy();
    for name in [
        "journal/0000000077.log",
        "journal/0000000078.tmp",
        "runs/0000000079.run",
        "runs/0000000080.tmp",
        "runs/0000000081.spill.tmp",
        "state/0000000082.state",
        "state/0000000083.tmp",
    ] {
        use duewheel_store_log::disk::Disk;
        copy.create(name).expect("create");
    }
    let rig = Rig::open(&copy, by_hand(), History::new(2));
    drop(rig.store);
    let left: Vec<String> =
        copy.names("").into_iter().filter(|name| name.contains("00007") || name.contains("00008")).collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn missing_manifest_is_not_new_folder() {
    let disk = SimDisk::new(3);
    let mut rig = Rig::open(&disk, by_hand(), History::new(3));
    rig.append(5);
    rig.sync();
    drop(rig.store);
    disk.remove_file("MANIFEST");
    let error = open(&disk, by_hand()).expect_err("the manifest is missing");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("the manifest is missing"), "{error}");
}

/// Dropping is like kill -9: nothing more is written, by nobody.
#[test]
fn dropping_stops_all_work() {
    let disk = SimDisk::new(4);
    let mut rig = Rig::open(&disk, small(), History::new(4));
    for _ in 0..50 {
        rig.append(9);
        rig.store.sync().expect("sync");
    }
    let hands = rig.store.hands();
    drop(rig.store);
    let calls = disk.calls();
    assert_eq!(hands.prepare(), Worked::Nothing);
    std::thread::yield_now();
    assert_eq!(disk.calls(), calls);
}

/// Marks prove what is durable and note the clocks, after a rest and not before; a stepped clock is noted at once.
/// Story: of an idle server whose wall clock was slewed forward 100 ms could go unnoted. Whoever started the machine
/// again counted them as downtime, and showed delayed messages as much too early.
#[test]
fn wall_clock_slew_is_noted() {
    use duewheel_core::record::ClockPair;
    let disk = SimDisk::new(6);
    let mut rig = Rig::open(&disk, by_hand(), History::new(6));
    rig.append(3);
    rig.sync();
    let begin = rig.history.clock();
    let mut noted = begin;
    let marks = |store: &LogStore| figure(store, "marks_total");
    for second in 1..=600 {
        // 500 ppm: half a millisecond a second.
        let engine = duewheel_core::EngineMs(begin.engine.0 + second * 1_000);
        let wall = duewheel_core::WallMs(begin.wall.0 + second * 1_000 + second / 2);
        let clock = ClockPair { engine, wall };
        let before = marks(&rig.store);
        rig.store.idle(clock, None).expect("idle");
        rig.sync();
        if marks(&rig.store) > before {
            noted = clock;
        }
        let true_ms = clock.engine.0 - noted.engine.0;
        let counted = clock.wall.0 - noted.wall.0;
        assert!(
            counted <= true_ms + 6,
            "second {second}: {counted} ms would count, {true_ms} ms have passed"
        );
    }
    assert!(marks(&rig.store) < 100, "{}: and not more often than that", marks(&rig.store));
    drop(rig.store);
    let rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.recovered.clock, Some(noted));
}

#[test]
fn resting_journal_gets_marks() {
    use duewheel_core::record::ClockPair;
    let disk = SimDisk::new(5);
    let mut rig = Rig::open(&disk, by_hand(), History::new(5));
    let marks =
        |store: &LogStore| store.figures().iter().find(|(n, _)| *n == "marks_total").map_or(0, |f| f.1);
    let group = rig.history.group(3);
    rig.store.append(&group).expect("append");
    let later = |ms: u64| {
        let mut clock = group.clock;
        clock.engine.0 += ms;
        clock.wall.0 += ms;
        clock
    };
    rig.store.idle(later(500), None).expect("idle");
    assert_eq!(marks(&rig.store), 0, "there is nothing to prove before the sync");
    rig.sync();
    rig.store.idle(later(99), None).expect("idle");
    assert_eq!(marks(&rig.store), 0, "no rest yet");
    rig.store.idle(later(100), None).expect("idle");
    assert_eq!(marks(&rig.store), 1);
    for ms in 101..1_000 {
        rig.store.idle(later(ms), None).expect("idle");
    }
    assert_eq!(marks(&rig.store), 1, "once is enough");
    rig.store.idle(later(60_101), None).expect("idle");
    assert_eq!(marks(&rig.store), 2, "the clocks are noted each minute");
    let stepped = ClockPair { wall: duewheel_core::WallMs(5), ..later(60_300) };
    rig.store.idle(stepped, None).expect("idle");
    assert_eq!(marks(&rig.store), 3, "the wall clock was stepped");
    drop(rig.store);
    disk.restart(Survivors::All);
    let rig = Rig::open(&disk, by_hand(), rig.history);
    assert_eq!(rig.recovered.clock, Some(stepped));
}
