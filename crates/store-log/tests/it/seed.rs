//! Each folder hashes callers' names under a secret seed of its own, which is in its manifest and is shown by nothing.

use std::sync::Arc;

use duewheel_core::store::Store;
use duewheel_core::store::conformance::History;
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::disk::{Disk, FileAccess, RealDisk};
use duewheel_store_log::{LogStore, inspect_on, restore, salvage_from, verify, verify_on};

use crate::rig::{Rig, all_rows, assert_rows, by_hand, figure, open, work};

/// The seed in the manifest of a folder.
fn seed_of(disk: &dyn Disk) -> [u64; 2] {
    let mut bytes = [0; 16];
    let manifest = disk.open("MANIFEST", FileAccess::Read).expect("a manifest");
    manifest.read_at(&mut bytes, 48).expect("its head");
    let seed = u128::from_le_bytes(bytes);
    [u64::try_from(seed & u128::from(u64::MAX)).expect("half"), u64::try_from(seed >> 64).expect("half")]
}

/// A folder with runs and a journal; its owner has not closed it.
fn filled(disk: &SimDisk) -> Rig {
    let mut rig = Rig::open(disk, by_hand(), History::new(4));
    let hands = rig.store.hands();
    while figure(&rig.store, "merges_total") == 0 || figure(&rig.store, "runs") < 2 {
        rig.append(9);
        work(&hands);
        hands.prepare();
    }
    rig
}

/// Story: the seeds were constants in the source, so names that collide in one folder did so in all.
#[test]
fn each_folder_draws_its_own_seed() {
    let mut seeds: Vec<[u64; 2]> = (0..4)
        .map(|_| {
            let dir = tempfile::tempdir().expect("a folder");
            drop(LogStore::open(dir.path(), by_hand(), Arc::new(|| {})).expect("open"));
            seed_of(&RealDisk::new(dir.path()))
        })
        .collect();
    let of_simulation = |seed| {
        let disk = SimDisk::new(seed);
        drop(open(&disk, by_hand()).expect("open"));
        seed_of(&disk)
    };
    assert_eq!(of_simulation(1), of_simulation(1), "a simulation is repeated by its seed");
    seeds.extend([of_simulation(1), of_simulation(2)]);
    let mut numbers = seeds.concat();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 12, "{} numbers are drawn", seeds.len() * 2);
}

#[test]
fn seed_survives_flushes_and_owners() {
    let disk = SimDisk::new(4);
    drop(open(&disk, by_hand()).expect("open"));
    let seed = seed_of(&disk);
    let rig = filled(&disk);
    assert_eq!(seed_of(&disk), seed);
    rig.assert_reopens(&disk, by_hand());
    assert_eq!(seed_of(&disk), seed);
    assert_eq!(verify_on(&disk).expect("verify").problems, []);
}

#[test]
fn backup_keeps_seed_salvage_redraws() {
    let disk = SimDisk::new(5);
    let rig = filled(&disk);
    let seed = seed_of(&disk);
    let dir = tempfile::tempdir().expect("a folder");
    let [copy, restored, saved] = ["copy", "restored", "saved"].map(|name| dir.path().join(name));
    rig.store.backup_handle().copy_to(&copy).expect("backup");
    restore(&copy, &restored).expect("restore");
    for folder in [&copy, &restored] {
        assert_eq!(seed_of(&RealDisk::new(folder)), seed);
    }
    drop(rig.store);
    salvage_from(&disk, &saved).expect("salvage");
    assert_ne!(seed_of(&RealDisk::new(&saved)), seed, "its runs are written anew");
    for folder in [&restored, &saved] {
        assert_eq!(verify(folder).expect("verify").problems, []);
        let mut store = LogStore::open(folder, by_hand(), Arc::new(|| {})).expect("open");
        if folder == &restored {
            assert_rows(&mut store, &rig.history, rig.history.model(), "under the same seed");
        }
        // Salvaged answers have other positions, so they are not compared here.
        assert_eq!(all_rows(&mut store), rig.history.model().rows(), "under either seed");
    }
}

/// Without a manifest there is no seed, and everything is found nevertheless.
#[test]
fn a_salvage_needs_no_seed() {
    let disk = SimDisk::new(6);
    let mut rig = filled(&disk);
    rig.store.close(rig.history.tick()).expect("close");
    disk.remove("MANIFEST").expect("removed");
    let dir = tempfile::tempdir().expect("a folder");
    let saved = dir.path().join("saved");
    let report = salvage_from(&disk, &saved).expect("salvage");
    assert_eq!(report.messages, rig.history.model().rows().len() as u64);
    assert_eq!(report.answers, rig.history.model().answers().len() as u64);
    assert_eq!(verify(&saved).expect("verify").problems, []);
}

#[test]
fn nothing_shows_the_seed() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let mut history = History::new(7);
    let mut store = LogStore::open(&data, by_hand(), Arc::new(|| {})).expect("open");
    for _ in 0..40 {
        store.append(&history.group(9)).expect("append");
        work(&store.hands());
        store.hands().prepare();
    }
    let backup = store.backup_handle();
    let report = backup.copy_to(dir.path().join("copy")).expect("backup");
    let shown = format!("{store:?} {backup:?} {report:?} {:?}", store.figures());
    store.close(history.tick()).expect("close");
    let disk = RealDisk::new(&data);
    let inspected = inspect_on(&disk).expect("inspected");
    let rows = inspected.rows(None, usize::MAX).expect("rows");
    let verified = verify_on(&disk).expect("verify");
    let shown = format!("{shown} {disk:?} {inspected:?} {:?} {rows:?} {verified:?}", inspected.queues);
    assert!(shown.contains("epoch"), "something is shown");
    for number in seed_of(&disk) {
        let bytes = format!("{:?}", number.to_le_bytes());
        for text in [format!("{number}"), format!("{number:x}"), bytes.trim_matches(['[', ']']).into()] {
            assert!(!shown.contains(&text), "{text}");
        }
    }
}
