//! A full disk shows in `room()`, never inside an append; and room comes back by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel_core::record::{Gone, Group, Record, Was};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{Capacity, ErrorKind, Store};
use duewheel_core::{Due, EngineMs, Lsn, MessageId};
use duewheel_store_log::{Options, WorkMode, Worked};

use duewheel_sim_disk::{Denial, SimDisk, Trouble};

use crate::rig::{Rig, by_hand, figure, was, work, work_all};

/// No flush gets in the way.
fn lazy() -> Options {
    Options { journal_bytes: u64::MAX / 4, journal_records: u64::MAX, ..by_hand() }
}

/// Settles something that is not there: the smallest group that puts no message.
fn settle(rig: &mut Rig) {
    let first = rig.history.model().applied().next();
    let was = was("q", Due::After(EngineMs(1)), 0);
    let removed = Record::Removed { id: MessageId(u64::MAX), why: Gone::Acked, was };
    let clock = rig.history.tick();
    let group = Group { first, clock, records: vec![removed] };
    rig.store.append(&group).expect("settling goes on");
    rig.history.adopt(group);
}

#[test]
fn full_disk_keeps_ballast_for_settling() {
    let disk = SimDisk::new(1);
    let mut rig = Rig::open(&disk, lazy(), History::new(1));
    let hands = rig.store.hands();
    while hands.prepare() == Worked::Done {}
    disk.set_free(5_000);
    // New messages are taken as long as there is a segment besides the ballast.
    while rig.store.room() == Capacity::Enough {
        rig.append(9);
    }
    assert!(figure(&rig.store, "segment_rotations_total") <= 1, "the ballast is untouched");
    assert!(figure(&rig.store, "segment_failures_total") > 0);
    // A whole segment of settling fits behind that.
    for _ in 0..80 {
        settle(&mut rig);
        assert_eq!(rig.store.room(), Capacity::SettleOnly);
        assert_eq!(hands.prepare(), Worked::Later, "it is tried again");
    }
    disk.set_free(1_000_000);
    assert_eq!(hands.prepare(), Worked::Done);
    assert_eq!(rig.store.room(), Capacity::Enough, "room came back by itself");
    for _ in 0..100 {
        assert_eq!(rig.store.room(), Capacity::Enough);
        rig.append(9);
    }
    rig.assert_reopens(&disk, lazy());
}

/// Story: any error of making a segment counted as want of room, so a disk that failed was reported to callers as full.
#[test]
fn failing_disk_is_not_full() {
    let disk = SimDisk::new(9);
    let journal = |denial| Some(Trouble { folders: &["journal/"], denial, one_in: 1 });
    let mut rig = Rig::open(&disk, lazy(), History::new(9));
    let hands = rig.store.hands();
    while hands.prepare() == Worked::Done {}
    // A step by hand makes the segments within `room`.
    for groups in 0.. {
        assert!(groups < 1_000, "no segment was wanted");
        disk.trouble(journal(Denial::Failed));
        if rig.store.room() == Capacity::SettleOnly {
            break;
        }
        disk.trouble(None);
        rig.append(9);
    }
    let error = rig.store.room_error().expect("the disk fails");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("journal/"), "{error}");
    disk.trouble(journal(Denial::Full));
    assert_eq!(hands.prepare(), Worked::Later);
    assert_eq!(
        (rig.store.room(), rig.store.room_error().map(|e| e.to_string())),
        (Capacity::SettleOnly, None)
    );
    disk.trouble(journal(Denial::Failed));
    assert_eq!(hands.prepare(), Worked::Later);
    assert!(rig.store.room_error().is_some());
    disk.trouble(None);
    assert_eq!(hands.prepare(), Worked::Done);
    assert_eq!(
        (rig.store.room(), rig.store.room_error().is_none()),
        (Capacity::Enough, true),
        "it came back"
    );
    rig.append(9);
    rig.assert_reopens(&disk, lazy());
}

/// While runs cannot be written the memtables fill up to their bound. That is no full disk either.
#[test]
fn failing_flush_is_not_full_disk() {
    let disk = SimDisk::new(10);
    let options = Options { journal_bytes: 8 * 1024, ..by_hand() };
    let mut rig = Rig::open(&disk, options.clone(), History::new(10));
    while rig.store.hands().prepare() == Worked::Done {}
    disk.trouble(Some(Trouble { folders: &["runs/"], denial: Denial::Failed, one_in: 1 }));
    for _ in 0..2_000 {
        if rig.store.room() == Capacity::RemoveOnly {
            break;
        }
        rig.append(9);
        let _ = work(&rig.store.hands());
    }
    assert_eq!(rig.store.room(), Capacity::RemoveOnly);
    assert_eq!(rig.store.room_error().expect("the disk fails").kind(), ErrorKind::Unavailable);
    disk.trouble(None);
    work_all(&rig.store.hands());
    assert_eq!((rig.store.room(), rig.store.room_error().is_none()), (Capacity::Enough, true));
    rig.assert_reopens(&disk, options);
}

/// The owner that ignores `room()` gets an error that says what to do, and nothing written before is lost.
#[test]
fn append_ignoring_room_fails_full() {
    let disk = SimDisk::new(2);
    let mut rig = Rig::open(&disk, lazy(), History::new(2));
    while rig.store.hands().prepare() == Worked::Done {}
    disk.set_free(0);
    let error = loop {
        let group = rig.history.group(9);
        match rig.store.append(&group) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    let written = Lsn(rig.history.groups().last().expect("some").first.0 - 1);
    drop(rig.store);
    rig.history.forget_after(written);
    // Nothing is prepared any more: what is reserved takes a small segment.
    let mut rig = Rig::open(&disk, lazy(), rig.history);
    assert_eq!(rig.recovered.next_lsn, written.next());
    rig.assert_is("reopened");
}

/// A process that is restarted on a full disk finds its prepared segments.
#[test]
fn full_disk_reopens() {
    let disk = SimDisk::new(3);
    let mut rig = Rig::open(&disk, lazy(), History::new(3));
    while rig.store.hands().prepare() == Worked::Done {}
    rig.append(9);
    drop(rig.store);
    disk.set_free(0);
    let mut rig = Rig::open(&disk, lazy(), rig.history);
    rig.assert_is("reopened");
    assert_eq!(rig.store.hands().prepare(), Worked::Later);
    assert_eq!(rig.store.room(), Capacity::SettleOnly);
    for _ in 0..60 {
        settle(&mut rig);
    }
    rig.sync();
}

/// Messages that no flush could take over any more would keep the journal from being cut, for ever.
#[test]
fn unflushable_messages_make_room_short() {
    let disk = SimDisk::new(4);
    let mut rig = Rig::open(&disk, lazy(), History::new(4));
    let hands = rig.store.hands();
    while hands.prepare() == Worked::Done {}
    while figure(&rig.store, "memory_bytes") < 6_000 {
        rig.append(9);
    }
    disk.set_free(4_000);
    assert_eq!(hands.prepare(), Worked::Later);
    assert_eq!(rig.store.room(), Capacity::SettleOnly);
    disk.set_free(50_000);
    while hands.prepare() == Worked::Done {}
    assert_eq!(rig.store.room(), Capacity::Enough);
}

/// When the disk is full, a cut whose flush gives more back than it takes is made at once, budget or not.
#[test]
fn flush_relieves_full_disk() {
    let disk = SimDisk::new(5);
    let options = Options { workers: WorkMode::Threads, ..lazy() };
    let mut rig = Rig::open(&disk, options, History::new(5));
    for _ in 0..20 {
        rig.append(9);
    }
    while figure(&rig.store, "journal_segments") < 7 {
        settle(&mut rig);
    }
    assert_eq!(figure(&rig.store, "flushes_total"), 0, "the budget is large");
    disk.set_free(11_000); // enough for the run, not for a segment
    let deadline = Instant::now() + Duration::from_secs(60);
    while figure(&rig.store, "flushes_total") == 0 || rig.store.room() == Capacity::SettleOnly {
        assert!(Instant::now() < deadline, "{:?}", rig.store.figures());
        // Until the store has noticed; new messages would make the run larger than what is free.
        if rig.store.room() == Capacity::Enough {
            settle(&mut rig);
        }
    }
    assert_eq!(rig.store.room(), Capacity::Enough);
    rig.append(9);
    rig.assert_reopens(&disk, lazy());
}

/// A group larger than a segment gets one of its own, and order is kept among the prepared ones.
#[test]
fn oversized_group_gets_own_segment() {
    let disk = SimDisk::new(6);
    let mut rig = Rig::open(&disk, lazy(), History::new(6));
    for round in 0..6 {
        rig.append(2_000); // far more than 12 KiB
        rig.append(3);
        while rig.store.hands().prepare() == Worked::Done {}
        rig.append(9);
        drop(rig.store);
        rig = Rig::open(&disk, lazy(), rig.history);
        rig.assert_is(&format!("round {round}"));
    }
    assert!(figure(&rig.store, "journal_bytes") > 100_000);
}

/// While a memtable waits for its flush and the next one is full, no new message is taken; everything else goes on.
#[test]
fn store_is_busy_behind_flush() {
    let disk = SimDisk::new(7);
    let mut rig = Rig::open(&disk, by_hand(), History::new(7));
    let hands = rig.store.hands();
    let mut appended = 0;
    while rig.store.room() == Capacity::Enough {
        rig.append(9);
        hands.prepare();
        appended += 1;
    }
    assert!(appended > 20, "{appended}");
    assert_eq!(rig.store.room(), Capacity::Busy);
    assert_eq!((figure(&rig.store, "cuts_total"), figure(&rig.store, "flushes_total")), (1, 0));
    for _ in 0..30 {
        settle(&mut rig);
        hands.prepare();
        assert_eq!(rig.store.room(), Capacity::Busy);
    }
    assert_eq!(hands.flush(), Worked::Done);
    assert_eq!(rig.store.room(), Capacity::Enough, "the next one is cut at once");
    assert_eq!(figure(&rig.store, "cuts_total"), 2);
    work_all(&hands);
    let model = rig.history.model_at(rig.history.model().applied()).expect("the end");
    crate::rig::assert_rows(&mut rig.store, &rig.history, &model, "after the flushes");
}

/// Story: a merge had written its output until the disk was full, and the flush that would have given segments back
/// found no room either. A merge gives way: it never takes the room of the flushes to come, or gives it back.
#[test]
fn merge_never_takes_flush_room() {
    let (mut under_way, mut full) = (0, 0);
    for free in (0..60_000).step_by(1_500) {
        let disk = SimDisk::new(8);
        let mut rig = Rig::open(&disk, by_hand(), History::new(8));
        let hands = rig.store.hands();
        while hands.prepare() == Worked::Done {}
        while figure(&rig.store, "runs") < 2 || hands.merge() != Worked::Done {
            rig.append(9);
            hands.prepare();
            hands.flush();
        }
        while figure(&rig.store, "cuts_total") == figure(&rig.store, "flushes_total") {
            rig.append(9);
            hands.prepare();
        }
        under_way += u64::from(disk.names("runs").iter().any(|name| name.ends_with(".tmp")));
        disk.set_free(free);
        let mut flushed = Worked::Later;
        for _ in 0..20 {
            hands.prepare();
            flushed = hands.flush();
            if flushed != Worked::Later {
                break;
            }
            full += 1;
            hands.merge();
        }
        // Journal, runs and state stay as they were, or all of it is done.
        let model = rig.history.model_at(rig.history.model().applied()).expect("the end");
        crate::rig::assert_rows(&mut rig.store, &rig.history, &model, &format!("{free} bytes free"));
        if figure(&rig.store, "memory_bytes") * 2 < free {
            assert_eq!(flushed, Worked::Done, "{free} bytes free: {:?}", rig.store.figures());
        }
        disk.set_free(10_000_000);
        work_all(&hands);
        drop(rig.store);
        let mut rig = Rig::open(&disk, by_hand(), rig.history);
        rig.assert_is(&format!("{free} bytes free, reopened"));
    }
    assert!(full > 3 && under_way > 3, "{full} flushes found no room, {under_way} merges were under way");
}

/// Story: a disk was full of runs in which nearly nothing counted any more, and stayed full: a merge was begun only
/// with room for all that it would read, and on top of what the next flushes were promised. Found by the test that
/// fills a small tmpfs with messages and removes them.
#[test]
fn disk_full_of_dead_runs_empties() {
    let options = Options {
        segment_bytes: 4 << 20,
        journal_bytes: 600_000,
        journal_records: u64::MAX / 4,
        small_runs: 100,
        ..by_hand()
    };
    let disk = SimDisk::new(9);
    let mut rig = Rig::open(&disk, options.clone(), History::new(9));
    let hands = rig.store.hands();
    // New messages only: an answer that is remembered counts as long as it is.
    let mut others = History::new(10);
    while figure(&rig.store, "run_bytes") < 1_500_000 {
        let mut group = others.group(40);
        group.records.retain_mut(|record| match record {
            Record::Put { message, was: None, .. } => {
                Arc::make_mut(message).key = None;
                true
            }
            _ => false,
        });
        if group.records.is_empty() {
            continue;
        }
        group.first = rig.history.model().applied().next();
        group.clock = rig.history.tick();
        rig.store.append(&group).expect("append");
        rig.history.adopt(group);
        while hands.prepare() == Worked::Done {}
        hands.flush();
    }
    // All but a few are acked; what is left of each run is little.
    let rows = rig.history.model().rows();
    let gone: Vec<_> = rows.iter().enumerate().filter(|(n, _)| n % 20 != 0).map(|(_, row)| row).collect();
    for some in gone.chunks(50) {
        let first = rig.history.model().applied().next();
        let clock = rig.history.tick();
        let records = some.iter().map(|row| Record::Removed {
            id: row.message.id,
            why: Gone::Acked,
            was: Was::of(&row.message, &row.life),
        });
        let group = Group { first, clock, records: records.collect() };
        rig.store.append(&group).expect("acks go on");
        rig.history.adopt(group);
        while hands.prepare() == Worked::Done {}
        while hands.flush() == Worked::Done {}
    }
    let before = figure(&rig.store, "run_bytes");
    // Less is free than the memtable may take as a run.
    let mut short = 0;
    while short < 3 {
        settle(&mut rig);
        disk.set_free(150_000); // segments that are kept for later are given back first
        hands.prepare();
        short = if rig.store.room() == Capacity::SettleOnly { short + 1 } else { 0 };
    }
    for _ in 0..1_000 {
        if rig.store.room() == Capacity::Enough && figure(&rig.store, "run_bytes") * 2 < before {
            break;
        }
        work(&hands);
        hands.merge();
        hands.prepare();
    }
    assert_eq!(rig.store.room(), Capacity::Enough, "{:?}", rig.store.figures());
    rig.assert_reopens(&disk, options);
}
