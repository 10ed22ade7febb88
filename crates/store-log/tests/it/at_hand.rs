//! Look-ups that do not wait for the disk, and what is fetched for them.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use duewheel_core::store::conformance::History;
use duewheel_core::store::{AtHand, Found, Left, Lookups, Store, StoreArrival, StoreRequest};
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::disk::{Disk, FileAccess, RealDisk};
use duewheel_store_log::{LogStore, WorkMode};

use crate::rig::{Rig, assert_rows, by_hand, figure, small};

/// A store of some runs, and what a look-up of all its messages finds.
fn with_runs(seed: u64) -> (SimDisk, Rig, Found) {
    let disk = SimDisk::new(seed);
    let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
    let hands = rig.store.hands();
    while figure(&rig.store, "runs") < 3 {
        rig.append(9);
        hands.flush();
    }
    rig.append(9);
    let mut found = Found::default();
    rig.store.find_many(&rig.history.lookups(), &mut found).expect("the disk is well");
    (disk, rig, found)
}

/// Looks up all messages without a wait.
fn at_hand(rig: &Rig) -> Lookups {
    Lookups { at_hand: true, ..rig.history.lookups() }
}

#[test]
fn cached_find_is_all_or_nothing() {
    let (disk, mut rig, all) = with_runs(31);
    let lookups = at_hand(&rig);
    let mut found = Found::default();
    assert_eq!(rig.store.find_many(&lookups, &mut found).unwrap(), AtHand::Yes);
    assert_eq!(found, all);
    let mut misses = 0;
    for one_of in [1, 2, 3, 50, 200] {
        disk.cold(one_of);
        for _ in 0..50 {
            let mut found = Found { left: Left { ids: 7, keys: 7 }, ..all.clone() };
            match rig.store.find_many(&lookups, &mut found).unwrap() {
                AtHand::No => {
                    misses += 1;
                    assert_eq!(
                        (found.rows, found.answers),
                        (all.rows.clone(), all.answers.clone()),
                        "half found"
                    );
                }
                AtHand::Yes => assert_eq!(found.rows.len(), 2 * all.rows.len(), "beside what was there"),
            }
        }
    }
    assert!((100..250).contains(&misses), "{misses}");
    // What waits for the disk finds it whatever is in memory.
    let mut found = Found::default();
    rig.store.find_many(&rig.history.lookups(), &mut found).unwrap();
    assert_eq!(found, all);
}

#[test]
fn fetched_lookups_see_later_changes() {
    let (disk, mut rig, _) = with_runs(32);
    let lookups = rig.history.lookups();
    disk.cold(1);
    assert_eq!(rig.store.find_many(&at_hand(&rig), &mut Found::default()).unwrap(), AtHand::No);
    let before = disk.looks();
    rig.store.ask(StoreRequest::Fetch(7, lookups.clone())).unwrap();
    assert_eq!(disk.looks(), before, "the owner reads nothing");
    // Much changes meanwhile.
    rig.append(9);
    assert_eq!(rig.store.arrived().unwrap().unwrap(), StoreArrival::Fetched(7));
    assert!(rig.store.arrived().is_none());
    assert!(disk.looks() > before, "the disk was read");
    assert_eq!((figure(&rig.store, "fetches_total"), figure(&rig.store, "fetch_failures_total")), (1, 0));
    disk.cold(0);
    assert_rows(&mut rig.store, &rig.history, rig.history.model(), "after a fetch");
}

/// The ticket comes back; the look-up itself tells the error.
#[test]
fn failed_fetch_returns_its_ticket() {
    let (disk, mut rig, _) = with_runs(33);
    let lookups = rig.history.lookups();
    rig.store.ask(StoreRequest::Fetch(1, lookups.clone())).unwrap();
    disk.plan(duewheel_sim_disk::Plan::BlindAt(disk.looks() + 1));
    assert_eq!(rig.store.arrived().unwrap().unwrap(), StoreArrival::Fetched(1));
    disk.plan(duewheel_sim_disk::Plan::Fine);
    assert_eq!(figure(&rig.store, "fetch_failures_total"), 1);
    rig.store.progress().expect("nothing is poisoned");
    assert_rows(&mut rig.store, &rig.history, rig.history.model(), "after a fetch that failed");
}

/// With threads: readers fetch, and wake the owner.
#[test]
fn readers_fetch_beside_the_owner() {
    let (disk, rig, _) = with_runs(34);
    let lookups = rig.history.lookups();
    drop(rig);
    let (wake, woken) = mpsc::channel();
    let waker = Arc::new(move || wake.send(()).unwrap_or_default());
    let options = duewheel_store_log::Options { workers: WorkMode::Threads, ..small() };
    let mut store = LogStore::open_on(Arc::new(disk), options, waker).unwrap();
    let _ = store.recovered();
    let mut left: std::collections::BTreeSet<u64> = (1..=20).collect();
    for ticket in 1..=20 {
        store.ask(StoreRequest::Fetch(ticket, lookups.clone())).unwrap();
    }
    while !left.is_empty() {
        woken.recv_timeout(Duration::from_secs(60)).expect("a reader wakes the owner");
        while let Some(arrival) = store.arrived() {
            let StoreArrival::Fetched(ticket) = arrival.unwrap() else {
                panic!("a page that nobody asked for")
            };
            assert!(left.remove(&ticket), "{ticket} twice");
        }
    }
    store.close(duewheel_core::record::ClockPair::default()).unwrap();
}

/// The machine's own files: what is in the page cache is read without a wait, whatever the file system.
#[test]
fn freshly_written_bytes_are_cached() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::new(folder.path());
    let file = disk.create("blocks").unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(40_000).collect();
    file.write_at(&bytes, 0).unwrap();
    let file = disk.open("blocks", FileAccess::Read).unwrap();
    let mut read = vec![0; 9_000];
    file.read_at_hand(&mut read, 1_234).unwrap();
    assert_eq!(read, bytes[1_234..10_234]);
    // Behind the end there is nothing to wait for: both say that it is not there.
    assert!(file.read_at_hand(&mut read, 39_000).is_err());
    assert_eq!(file.read_at(&mut read, 39_000).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(file.read_at_hand(&mut read, 40_000).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}
