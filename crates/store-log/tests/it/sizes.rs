//! The space that a folder takes while it holds little: at first, and again once it is empty and rests.

use duewheel_core::message::Row;
use duewheel_core::record::{ClockPair, Gone, Group, Record, Was};
use duewheel_core::store::Store;
use duewheel_core::store::conformance::History;
use duewheel_core::{EngineMs, WallMs};
use duewheel_sim_disk::{SimDisk, Survivors};
use duewheel_store_log::{Options, WorkMode, Worked};

use crate::rig::{Rig, all_rows, figure, work_all};

const MIB: u64 = 1024 * 1024;
/// What an empty folder takes at most.
const MOST: u64 = 64 * MIB;

/// Those of the server, worked by hand.
fn options() -> Options {
    Options { workers: WorkMode::ByHand, ..Options::default() }
}

/// Bytes of all files.
fn bytes(disk: &SimDisk) -> u64 {
    disk.names("").iter().map(|name| disk.read(name).len() as u64).sum()
}

fn prepare_all(rig: &Rig) {
    while rig.store.hands().prepare() == Worked::Done {}
}

/// Appends so many groups of 4 MiB, synced and flushed as the options say.
fn put(rig: &mut Rig, groups: usize) {
    for _ in 0..groups {
        let group = rig.history.puts(4 << 20, 64);
        rig.store.append(&group).expect("append");
        rig.sync();
        prepare_all(rig);
        work_all(&rig.store.hands());
    }
}

/// The store has the messages that the history says.
#[track_caller]
fn assert_all(rig: &mut Rig, what: &str) {
    let ids = |rows: &[Row]| rows.iter().map(|row| row.message.id).collect::<Vec<_>>();
    assert_eq!(ids(&all_rows(&mut rig.store)), ids(&rig.history.model().rows()), "{what}");
}

/// Acks everything.
fn remove_all(rig: &mut Rig) {
    let rows = rig.history.model().rows();
    let records = rows.iter().map(|Row { message, life }| Record::Removed {
        id: message.id,
        why: Gone::Acked,
        was: Was::of(message, life),
    });
    let records: Vec<_> = records.collect();
    if records.is_empty() {
        return;
    }
    let group = Group { first: rig.history.model().applied().next(), clock: rig.history.tick(), records };
    rig.store.append(&group).expect("append");
    rig.history.adopt(group);
    rig.sync();
}

/// Nothing is appended for so long, in steps of a second; the workers do what there is to do.
fn rest(rig: &mut Rig, ms: u64) {
    let begun = rig.history.clock();
    for passed in (0..=ms).step_by(1_000) {
        let clock =
            ClockPair { engine: EngineMs(begun.engine.0 + passed), wall: WallMs(begun.wall.0 + passed) };
        rig.store.idle(clock, None).expect("idle");
        rig.store.hands().sync();
        prepare_all(rig);
        work_all(&rig.store.hands());
    }
}

#[test]
fn empty_folder_stays_small() {
    let disk = SimDisk::new(1);
    let mut rig = Rig::open(&disk, options(), History::new(1));
    prepare_all(&rig);
    assert!(bytes(&disk) <= MOST, "{} at first", bytes(&disk));

    put(&mut rig, 40);
    assert!(bytes(&disk) > 3 * MOST, "{} under load: segments grow", bytes(&disk));
    assert_eq!(figure(&rig.store, "segment_waits_total"), 0);
    assert_all(&mut rig, "loaded");

    // Messages that wait keep their space, and what was prepared for them.
    rest(&mut rig, 120_000);
    let loaded = bytes(&disk);
    assert!(loaded > 3 * MOST, "{loaded} at rest");

    remove_all(&mut rig);
    rest(&mut rig, 50_000);
    assert!(bytes(&disk) > MOST, "an hour's load may have pauses");
    rest(&mut rig, 75_000);
    assert!(bytes(&disk) <= MOST, "{} again", bytes(&disk));
    assert_all(&mut rig, "emptied");

    // And it takes the next load as the first one.
    put(&mut rig, 40);
    assert!(bytes(&disk) > 3 * MOST);
    remove_all(&mut rig);
    drop(rig.store);
    disk.restart(Survivors::All);
    let mut rig = Rig::open(&disk, options(), rig.history);
    rest(&mut rig, 75_000);
    assert!(bytes(&disk) <= MOST, "{} after a restart", bytes(&disk));
    assert_all(&mut rig, "restarted");
}

/// What rests is not written over and over.
#[test]
fn a_folder_that_rests_does_nothing() {
    let disk = SimDisk::new(1);
    let mut rig = Rig::open(&disk, options(), History::new(1));
    put(&mut rig, 40);
    remove_all(&mut rig);
    rest(&mut rig, 75_000);
    let calls =
        |rig: &Rig| ["cuts_total", "flushes_total", "segments_made_total"].map(|f| figure(&rig.store, f));
    let before = calls(&rig);
    rest(&mut rig, 600_000);
    assert_eq!(calls(&rig), before);
}

/// Story: each short session left its segments and their records behind: 67 MB a session, up to 604 MB.
#[test]
fn a_closed_folder_takes_its_live_data() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    for session in 0..6 {
        let mut rig = Rig::open(&disk, options(), history);
        prepare_all(&rig);
        if session < 3 {
            put(&mut rig, 1);
        }
        if session == 4 {
            remove_all(&mut rig);
        }
        assert_all(&mut rig, "open");
        let clock = rig.history.tick();
        rig.store.close(clock).expect("close");
        history = rig.history;
        let live: u64 = history.model().rows().iter().map(|row| row.weight() as u64).sum();
        let most = live + live / 8 + 2 * MIB;
        assert!(bytes(&disk) <= most, "{} after session {session}, {live} live", bytes(&disk));
    }
}

#[test]
fn killed_sessions_do_not_add_up() {
    let disk = SimDisk::new(1);
    let mut history = History::new(1);
    for session in 0..20 {
        let mut rig = Rig::open(&disk, options(), history);
        prepare_all(&rig);
        let group = rig.history.group(3);
        rig.store.append(&group).expect("append");
        rig.sync();
        work_all(&rig.store.hands());
        prepare_all(&rig);
        drop(rig.store);
        disk.restart(Survivors::All);
        history = rig.history;
        assert!(bytes(&disk) <= 160 * MIB, "{} after session {session}", bytes(&disk));
    }
}
