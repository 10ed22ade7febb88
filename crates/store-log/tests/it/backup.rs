//! Copies of a folder in use are consistent, complete up to a moment, and never give a token twice.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Store, StoreError};
use duewheel_core::{Epoch, Lsn};
use duewheel_store_log::disk::{Disk, RealDisk};
use duewheel_store_log::{
    LogStore, Options, ShardFolders, WorkMode, copy_shards, folders_in, restore, restore_then, salvage,
    verify,
};

use crate::rig::{Rig, assert_is, by_hand, figure, small, work, work_all};
use duewheel_sim_disk::SimDisk;

/// What a copy holds is what the history says; returns the last record in it.
fn check(copy: &Path, history: &History, what: &str) -> Lsn {
    assert_eq!(verify(copy).expect("verify").problems, [], "{what}");
    let restored = copy.with_extension("restored");
    let report = restore(copy, &restored).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut store =
        LogStore::open(&restored, small(), Arc::new(|| {})).unwrap_or_else(|e| panic!("{what}: {e}"));
    let recovered = store.recovered();
    assert_is(&mut store, &recovered, history, what);
    assert_eq!(report.unproven_groups, 0, "{what}");
    Lsn(recovered.next_lsn.0 - 1)
}

#[test]
fn backup_copies_every_folder_kind() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().expect("a folder");
        let disk = SimDisk::new(seed);
        let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
        let hands = rig.store.hands();
        let backup = rig.store.backup_handle();
        for round in 0..12 {
            let copy = dir.path().join(format!("copy{round}"));
            let report = backup.copy_to(&copy).expect("backup");
            assert_eq!(report.last, rig.history.model().applied(), "everything appended before");
            assert_eq!(report.linked, 0, "a disk in memory cannot link");
            let what = format!("seed {seed}, round {round}");
            assert_eq!(check(&copy, &rig.history, &what), report.last, "{what}");
            for _ in 0..rig.history.dice().below(25) {
                rig.append(9);
                hands.prepare();
                if rig.history.dice().once_in(4) {
                    work(&hands);
                }
            }
        }
        work_all(&hands);
        drop(rig.store);
        let error = backup.copy_to(dir.path().join("late")).expect_err("the store is gone");
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

/// While copies are made one after the other, the owner appends, and flushes and merges remove what the copies need.
#[test]
fn backups_run_beside_writes() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = Options { journal_bytes: 4_000, workers: WorkMode::Threads, ..small() };
    let mut store = LogStore::open(dir.path().join("data"), options.clone(), Arc::new(|| {})).expect("open");
    let mut history = History::new(1);
    let epoch = store.recovered().epoch;
    let stop = AtomicBool::new(false);
    // What the owner may have answered. What was only appended may wait for the next segment, and is promised to nobody.
    let answered = AtomicU64::new(0);
    // Copies so far that share files with the folder.
    let linked = AtomicU64::new(0);
    let backup = store.backup_handle();
    let reports = std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            let mut reports = Vec::new();
            while !stop.load(Ordering::Acquire) {
                let before = answered.load(Ordering::Acquire);
                let copy = dir.path().join(format!("copy{}", reports.len()));
                let report = backup.copy_to(&copy).expect("backup");
                assert!(report.last.0 >= before, "what was answered before the call is in the copy");
                linked.fetch_add(u64::from(report.linked > 1), Ordering::Release);
                reports.push((copy, report));
            }
            reports
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        for n in 0.. {
            let group = history.group(9);
            store.append(&group).expect("append");
            store.sync().expect("sync");
            answered.store(store.progress().expect("progress").durable.0, Ordering::Release);
            let done = figure(&store, "merges_total") > 3
                && figure(&store, "segments_reused_total") > 2
                && linked.load(Ordering::Acquire) > 3;
            if (n > 300 && done) || copier.is_finished() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        stop.store(true, Ordering::Release);
        copier.join().expect("no panic")
    });
    assert!(figure(&store, "merges_total") > 3, "{:?}", store.figures());
    assert!(figure(&store, "segments_reused_total") > 2, "{:?}", store.figures());
    assert!(reports.len() > 3, "{} copies", reports.len());
    assert!(linked.into_inner() > 3, "runs are linked");
    let each = reports.len().div_ceil(12);
    for (copy, report) in reports.iter().step_by(each) {
        assert_eq!(check(copy, &history, &copy.display().to_string()), report.last);
    }
    // Nothing was kept that should have gone.
    drop(store);
    let mut store = LogStore::open(dir.path().join("data"), options, Arc::new(|| {})).expect("open");
    let recovered = store.recovered();
    assert_is(&mut store, &recovered, &history, "the original");
    assert_eq!(recovered.epoch, Epoch(epoch.0 + 1));
    let restored = reports[0].0.with_extension("restored");
    let other = LogStore::open(&restored, small(), Arc::new(|| {})).expect("open").recovered();
    assert!(other.epoch.0 > epoch.0 + 65_536, "{:?}", other.epoch);
}

#[test]
fn restore_checks_copy_and_target() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let mut store = LogStore::open(&data, small(), Arc::new(|| {})).expect("open");
    let mut history = History::new(2);
    while figure(&store, "runs") == 0 {
        store.append(&history.group(9)).expect("append");
    }
    let full = dir.path().join("full");
    std::fs::create_dir(&full).expect("a folder");
    std::fs::set_permissions(&full, PermissionsExt::from_mode(0o755)).expect("chmod");
    let error = store.backup_handle().copy_to(&full).expect_err("others may look into it");
    assert!(error.to_string().contains("chmod 700"), "{error}");
    std::fs::set_permissions(&full, PermissionsExt::from_mode(0o700)).expect("chmod");
    std::fs::write(full.join("something"), "x").expect("a file");
    let error = store.backup_handle().copy_to(&full).expect_err("the folder is not empty");
    assert!(error.to_string().contains("not empty"), "{error}");
    assert_eq!(restore(&data, dir.path().join("new")).expect_err("it is open").kind(), ErrorKind::Fenced);
    let copy = dir.path().join("copy");
    store.backup_handle().copy_to(&copy).expect("backup");
    assert!(restore(&copy, &full).expect_err("the folder is not empty").to_string().contains("not empty"));
    store.close(history.tick()).expect("close");
    check(&copy, &history, "the copy");

    // A closed folder may be restored, too; and each damage is found before anything is copied.
    restore(&data, dir.path().join("moved")).expect("restore");
    let runs: Vec<_> = std::fs::read_dir(data.join("runs")).expect("a folder").collect();
    let run = runs.into_iter().next().expect("a run").expect("an entry").path();
    let mut bytes = std::fs::read(&run).expect("a file");
    bytes[100] ^= 1;
    std::fs::remove_file(&run).expect("links have the same bytes");
    std::fs::write(&run, bytes).expect("a file");
    let target = dir.path().join("damaged");
    let error = restore(&data, &target).expect_err("damage");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!target.exists(), "nothing was made");
    assert_eq!(verify(&copy).expect("verify").problems, [], "the copy has its own name for the file");
}

/// Story: a restore was killed before its last step, which ends the lease tokens. The folder was served: it accepted the
/// tokens of the original, and gave its ids again. Of one that found the disk full the server made an empty store.
#[test]
fn unfinished_restore_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let (data, target, other) =
        (dir.path().join("data"), dir.path().join("target"), dir.path().join("other"));
    let mut history = History::new(3);
    let mut store = LogStore::open(&data, small(), Arc::new(|| {})).expect("open");
    store.append(&history.group(9)).expect("append");
    store.close(history.tick()).expect("close");
    drop(store);
    let is_refused = || {
        for refused in [
            LogStore::open(&target, small(), Arc::new(|| {})).map(drop),
            ShardFolders::open(&target, 2).map(drop),
            folders_in(&target).map(drop),
            verify(&target).map(drop),
            restore(&target, &other).map(drop),
            salvage(&target, &other).map(drop),
        ] {
            let error = refused.expect_err("the folder is not finished");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("has not ended"), "{error}");
        }
        assert!(!other.exists(), "nothing was made");
    };
    let error = restore_then(&data, &target, |folders| {
        is_refused();
        LogStore::open_on(Arc::new(RealDisk::new(&folders[0])), small(), Arc::new(|| {}))?;
        Err::<(), _>(StoreError::new(ErrorKind::Full, "there is no room for the last step"))
    });
    assert_eq!(error.expect_err("the last step fails").kind(), ErrorKind::Full);
    is_refused();
    std::fs::remove_dir_all(&target).expect("remove");
    let disks = [Arc::new(RealDisk::new(&data)) as Arc<dyn Disk>];
    let changed = || {
        is_refused();
        Err(StoreError::new(ErrorKind::Fenced, "a shard has changed"))
    };
    assert_eq!(copy_shards(&disks, &target, changed).expect_err("no moment").kind(), ErrorKind::Fenced);
    is_refused();
    std::fs::remove_dir_all(&target).expect("remove");
    copy_shards(&disks, &target, || Ok(())).expect("copy");
    check(&target, &history, "the copy");
}
