//! The end of a journal segment: the owner goes on while workers make the old one durable and the next one ready.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Capacity, ErrorKind, Found, Store};
use duewheel_sim_disk::{Denial, GateRule, GatedCalls, GatedDisk, SimDisk, Survivors};
use duewheel_store_log::{AtSegmentEnd, Options, SyncMode, Worked};

use crate::counting::CountingDisk;
use crate::rig::{Rig, all_rows, by_hand, figure, small};

fn going_on() -> Options {
    Options { at_segment_end: AtSegmentEnd::GoOn, ..by_hand() }
}

/// Appends until a segment is full and groups wait for the next one.
fn to_the_end(rig: &mut Rig) -> Lsn {
    let hands = rig.store.hands();
    while hands.prepare() == Worked::Done {}
    loop {
        let last = rig.append(6);
        if figure(&rig.store, "groups_waited_total") > 0 {
            return last;
        }
        assert_eq!(figure(&rig.store, "segment_rotations_total"), 0, "nobody has synced the full segment");
    }
}

/// Story: whoever filled a segment waited for its sync, and everybody for him.
#[test]
fn segment_change_waits_for_no_sync() {
    for sync in [SyncMode::Fsync, SyncMode::Buffered] {
        let disk = SimDisk::new(3);
        let mut rig = Rig::open(&disk, Options { sync, ..going_on() }, History::new(3));
        let hands = rig.store.hands();
        while hands.prepare() == Worked::Done {}
        disk.start_trace();
        to_the_end(&mut rig);
        let written = rig.store.progress().expect("progress").written;
        let mut last = rig.append(2);
        while rig.store.room() == Capacity::Enough {
            last = rig.append(2);
        }
        assert_eq!(rig.store.room(), Capacity::Busy, "a group of the agreed size has to wait for the sync");
        rig.store.sync().expect("sync");
        rig.store.idle(rig.history.tick(), None).expect("idle");
        let progress = rig.store.progress().expect("progress");
        assert_eq!(progress.written, written, "what waits is not written");
        assert!(written < last && progress.durable <= written);
        let lookups = rig.history.lookups();
        rig.store.find_many(&lookups, &mut Found::default()).expect("it is there all the same");
        assert_eq!(all_rows(&mut rig.store), rig.history.model_at(last).expect("whole groups").rows());
        let trace = disk.take_trace();
        let waits = ["sync", "create", "allocate", "rename"];
        let waited = trace.lines().find(|line| waits.iter().any(|word| line.contains(word)));
        assert_eq!(waited, None, "the owner waits for the disk");

        // The sync of the full segment lets the next one begin, and the sync of that one makes all durable.
        assert_eq!(hands.sync(), Worked::Done);
        assert_eq!(rig.store.progress().expect("progress").written, last);
        assert_eq!(figure(&rig.store, "segment_rotations_total"), 1);
        assert_eq!(hands.sync(), Worked::Done, "it has been asked for");
        assert_eq!(rig.store.progress().expect("progress").durable, last);
        assert_eq!(rig.store.room(), Capacity::Enough);
        rig.assert_reopens(&disk, by_hand());
    }
}

/// Whoever is killed meanwhile loses what waits, and nothing else: it was neither written nor durable.
#[test]
fn killed_process_loses_waiting_groups_only() {
    for survivors in [Survivors::All, Survivors::None, Survivors::Some] {
        for synced in [false, true] {
            let disk = SimDisk::new(4);
            let mut rig = Rig::open(&disk, going_on(), History::new(4));
            to_the_end(&mut rig);
            if synced {
                rig.store.hands().sync();
            }
            let progress = rig.store.progress().expect("progress");
            let Rig { store, history, .. } = rig;
            drop(store);
            disk.restart(survivors);
            let mut rig = Rig::open(&disk, by_hand(), history);
            let last = Lsn(rig.recovered.next_lsn.0 - 1);
            assert!(
                last >= progress.durable && last <= progress.written,
                "{survivors:?}: {last:?}, {progress:?}"
            );
            assert!(last == progress.written || survivors != Survivors::All);
            rig.assert_is("after the kill");
        }
    }
}

/// What waits is bounded, however long the sync takes; then the owner waits, and the store has told so before.
#[test]
fn what_waits_is_bounded() {
    let disk = SimDisk::new(5);
    let mut rig = Rig::open(&disk, small(), History::new(5));
    let deadline = Instant::now() + Duration::from_secs(60);
    while figure(&rig.store, "journal_segments") < 3 {
        assert!(Instant::now() < deadline, "segments are prepared");
        std::thread::yield_now();
    }
    disk.hold_syncs();
    let mut appended = Lsn(0);
    while rig.store.room() == Capacity::Enough {
        appended = rig.append(3);
        assert!(appended < Lsn(10_000), "what waits is bounded");
    }
    assert_eq!(rig.store.room(), Capacity::Busy);
    assert!(figure(&rig.store, "groups_waited_total") > 0);
    assert_eq!(figure(&rig.store, "segment_waits_total"), 0, "the owner has not waited");
    disk.release_syncs();
    while rig.store.progress().expect("progress").durable < appended {
        assert!(Instant::now() < deadline, "what has waited becomes durable by itself");
        std::thread::yield_now();
    }
    rig.assert_reopens(&disk, small());
}

/// What waits is counted as it will lie in the segment, padding included: not one byte may come behind the end of the file.
#[test]
fn what_waits_fits_the_segment() {
    let disk = SimDisk::new(6);
    let options = || Options { max_group_bytes: 7 * 1024, ..going_on() };
    let mut rig = Rig::open(&disk, options(), History::new(6));
    let hands = rig.store.hands();
    for _ in 0..5 {
        let waits = figure(&rig.store, "segment_waits_total");
        while hands.prepare() == Worked::Done {}
        // Nobody syncs: the owner goes on until it has to wait, which by hand it does on the spot.
        while figure(&rig.store, "segment_waits_total") == waits {
            rig.append(1);
        }
    }
    let segment = options().segment_bytes;
    let names = disk.names("journal/");
    let sizes = names.iter().map(|name| disk.read(name).len() as u64);
    assert!(sizes.clone().all(|size| size == segment), "{:?}", sizes.collect::<Vec<_>>());
    assert!(figure(&rig.store, "groups_waited_total") > 100);
    while hands.sync() == Worked::Done {
        rig.store.progress().expect("progress");
    }
    assert_eq!(rig.store.progress().expect("progress").durable, rig.history.model().applied());
    rig.assert_reopens(&disk, by_hand());
}

/// Workers prepare segments; no flush gets in the way.
fn without_flushes() -> Options {
    Options { journal_bytes: u64::MAX / 4, journal_records: u64::MAX, ..small() }
}

/// Longer than any of these tests takes: what is not over then never is.
const FOR_EVER: Duration = Duration::from_secs(60);

/// The owner that asks for room waits while the next segment is being made. When that fails it is told that there is no
/// room, and nothing of what it wanted to write is applied; when there is room again the store goes on.
#[test]
fn failed_segment_creation_ends_wait() {
    let disk = GatedDisk::new(SimDisk::new(7), GatedCalls::Creates("journal/"), GateRule::After(1));
    let mut rig = Rig::open(&disk, without_flushes(), History::new(7));
    disk.wait_until_asked();
    let (tell, told) = mpsc::channel();
    let owner = thread::spawn(move || {
        let room = loop {
            match rig.store.room() {
                Capacity::Enough => rig.append(9),
                other => break other,
            };
        };
        tell.send(room).expect("the test listens");
        rig
    });
    assert!(told.try_recv().is_err(), "whether there is room is not known yet");
    disk.set(GateRule::Denied(Denial::Full));
    // How much of the ballast is used by then is a matter of chance.
    let room = told.recv_timeout(FOR_EVER).expect("the owner is told");
    assert!(matches!(room, Capacity::SettleOnly | Capacity::RemoveOnly), "{room:?}");
    let mut rig = owner.join().expect("the owner");
    assert!(figure(&rig.store, "segment_failures_total") > 0);
    assert_eq!(figure(&rig.store, "groups_waited_total"), 0, "no group waits for what does not come");
    rig.store.sync().expect("sync");
    let last = rig.history.model().applied();
    let deadline = Instant::now() + FOR_EVER;
    while rig.store.progress().expect("the store goes on").durable < last {
        assert!(Instant::now() < deadline, "what was appended becomes durable");
        thread::yield_now();
    }

    disk.set(GateRule::Open);
    // How much fits the segments that were made before is a matter of chance, too.
    let deadline = Instant::now() + FOR_EVER;
    while figure(&rig.store, "segment_rotations_total") < 3 {
        assert!(Instant::now() < deadline, "room comes back by itself, and segments are made again");
        if rig.store.room() == Capacity::Enough {
            rig.append(9);
        } else {
            thread::yield_now();
        }
    }
    rig.assert_reopens(&disk, without_flushes());
}

/// A group that waits in memory for such a segment, because its owner has not asked for room, is not said to be
/// written: the store ends, and the next owner does not find it.
#[test]
fn failed_segment_leaves_group_unapplied() {
    let disk = GatedDisk::new(SimDisk::new(8), GatedCalls::Creates("journal/"), GateRule::After(1));
    let mut rig = Rig::open(&disk, without_flushes(), History::new(8));
    disk.wait_until_asked();
    while figure(&rig.store, "groups_waited_total") == 0 {
        rig.append(6);
    }
    let written = rig.store.progress().expect("progress").written;
    assert!(written < rig.history.model().applied());
    disk.set(GateRule::Denied(Denial::Full));
    let deadline = Instant::now() + FOR_EVER;
    let error = loop {
        match rig.store.progress() {
            Ok(progress) => assert_eq!(progress.written, written),
            Err(error) => break error,
        }
        assert!(Instant::now() < deadline, "its owner is told");
        thread::yield_now();
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    drop(rig.store);
    rig.history.forget_after(written);
    disk.set(GateRule::Open);
    Rig::open(&disk, without_flushes(), rig.history).assert_is("reopened");
}

/// A start writes zeros to a part of the first segment alone, where space can be reserved.
#[test]
fn start_does_not_wait_for_zeroing() {
    let options = Options { segment_bytes: 1 << 20, filled_at_start: 64 << 10, ..by_hand() };
    let rounded = |bytes: u64| bytes.next_multiple_of(64 << 10);
    let disk = CountingDisk::new(&SimDisk::new(6));
    let rig = Rig::open(&disk, options.clone(), History::new(6));
    assert_eq!(rounded(disk.written("journal")), 128 << 10, "the zeros and the header");
    let hands = rig.store.hands();
    while hands.prepare() == Worked::Done {}
    assert!(disk.written("journal") > 2 << 20, "prepared segments are filled");
    drop(rig);

    let disk = CountingDisk::new(&SimDisk::new(6)).without_allocation();
    let rig = Rig::open(&disk, options.clone(), History::new(6));
    assert!(disk.written("journal") > 1 << 20, "nothing else takes the space");
    rig.assert_reopens(&disk, options);
}

/// The end of the zeros is the end of the first segment, if the next one is there; and it never serves again.
#[test]
fn first_segment_ends_at_its_zeros() {
    let options = Options { filled_at_start: 8 << 10, segment_bytes: 32 << 10, ..by_hand() };
    let disk = SimDisk::new(7);
    let mut rig = Rig::open(&disk, options.clone(), History::new(7));
    let hands = rig.store.hands();
    let written = |rig: &Rig| figure(&rig.store, "journal_written_bytes_total");
    while written(&rig) < 16 << 10 {
        assert_eq!(rig.store.room(), Capacity::Enough, "all of its space may be used");
        rig.append(4);
        rig.sync();
    }
    assert_eq!(figure(&rig.store, "segment_rotations_total"), 0, "the next one is not prepared");
    while hands.prepare() == Worked::Done {}
    rig.append(1);
    rig.sync();
    assert_eq!(figure(&rig.store, "segment_rotations_total"), 1, "it goes on in a segment that was filled");
    let before = written(&rig);
    while written(&rig) < before + (16 << 10) {
        rig.append(1);
        rig.sync();
    }
    assert_eq!(figure(&rig.store, "segment_rotations_total"), 1, "which is used to its end");
    while hands.flush() == Worked::Done || hands.prepare() == Worked::Done {}
    assert_eq!(figure(&rig.store, "segments_reused_total"), 0);
    rig.assert_reopens(&disk, options);
}
