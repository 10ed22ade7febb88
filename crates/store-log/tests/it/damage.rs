//! Damage of every kind: never a wrong message, and never silent loss of what was durable.

use std::collections::BTreeMap;

use duewheel_core::message::{Kind, Life};
use duewheel_core::record::{Group, Record, Was};
use duewheel_core::store::conformance::{Dice, History};
use duewheel_core::store::{ErrorKind, Found, Lookups, Store};
use duewheel_core::{Due, EngineMs, Lsn, MessageId, QueueName};
use duewheel_store_log::{Options, Worked, verify_on};

use duewheel_sim_disk::{SimDisk, Survivors};

use crate::rig::{Rig, assert_is, by_hand, is_corrupt, open, read_all, test_bytes, times, work, work_all};

/// A folder, the history in it, and what was durable.
struct Healthy {
    disk: SimDisk,
    history: History,
    durable: Lsn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Closed: everything is proven.
    Closed,
    /// Killed with groups that nothing proves yet.
    Killed,
}

/// So many bytes of frames in one segment, with nothing else in the folder: no run, and what is kept in memory is not
/// cut.
fn one_segment(end: End) -> Healthy {
    let bytes = test_bytes();
    let options = Options {
        segment_bytes: 4_096 + bytes + bytes / 8 + 4_096,
        journal_bytes: u64::MAX / 4,
        journal_records: u64::MAX,
        ..by_hand()
    };
    let disk = SimDisk::new(5);
    let mut rig = Rig::open(&disk, options, History::new(5));
    let before = rig.store.figures();
    while figure(&rig, "journal_bytes") < bytes {
        rig.append(6);
        if rig.history.dice().once_in(3) {
            rig.sync();
        }
    }
    rig.sync();
    assert_eq!(before.len(), rig.store.figures().len());
    assert_eq!(figure(&rig, "segment_rotations_total"), 0, "all in one segment");
    let healthy = finish(disk, rig, end);
    assert!(frames_end(&healthy.disk.read(&used(&healthy))) as u64 >= 4_096 + bytes);
    healthy
}

/// Runs, a state with deltas, sealed segments, one in use, and prepared ones that were used before; together so many bytes at
/// least.
fn many_files(end: End) -> Healthy {
    let disk = SimDisk::new(6);
    let mut rig = Rig::open(&disk, by_hand(), History::new(6));
    let hands = rig.store.hands();
    let is_small = |rig: &Rig| figure(rig, "run_bytes") + figure(rig, "journal_bytes") < test_bytes();
    let lacks_runs = |rig: &Rig| figure(rig, "merges_total") < 1 || figure(rig, "runs") < 2 || is_small(rig);
    let lacks_deltas = || disk.names("state").len() < 3;
    while lacks_runs(&rig) || lacks_deltas() || figure(&rig, "journal_segments") < 5 {
        rig.append(9);
        rig.sync();
        if lacks_runs(&rig) || lacks_deltas() {
            work_all(&hands);
        }
        while hands.prepare() == Worked::Done {}
    }
    rig.append(9);
    rig.append(9);
    finish(disk, rig, end)
}

fn finish(disk: SimDisk, mut rig: Rig, end: End) -> Healthy {
    let clock = rig.history.tick();
    let mut durable = rig.store.progress().expect("progress").durable;
    if end == End::Closed {
        rig.store.close(clock).expect("close");
        durable = rig.history.model().applied();
    }
    drop(rig.store);
    disk.restart(Survivors::All);
    Healthy { disk, history: rig.history, durable }
}

fn figure(rig: &Rig, name: &str) -> u64 {
    rig.store.figures().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| value)
}

/// How often a damaged folder was refused, and how often it opened.
#[derive(Debug, Default)]
struct Tally {
    refused: u64,
    opened: u64,
}

impl Healthy {
    /// Opens a damaged copy: refused as corrupt, or whole groups with everything that must be there.
    fn check(&self, damaged: &SimDisk, must_have: Lsn, tally: &mut Tally, what: &str) {
        match open(damaged, by_hand()) {
            Err(error) => {
                assert!(is_corrupt(&error), "{what}: {error:?}");
                assert!(error.to_string().contains(" at byte "), "{what}: {error} names no place");
                tally.refused += 1;
            }
            Ok(mut store) => {
                let recovered = store.recovered();
                assert!(recovered.next_lsn > must_have, "{what}: lost silently");
                // Runs are not read as a whole when a store is opened: damage shows when it is met.
                if let Err(error) = read_all(&mut store, &self.history) {
                    assert!(is_corrupt(&error), "{what}: {error:?}");
                    assert!(error.to_string().contains(" at byte "), "{what}: {error} names no place");
                    tally.refused += 1;
                    return;
                }
                assert_is(&mut store, &recovered, &self.history, what);
                tally.opened += 1;
            }
        }
    }

    fn segments(&self) -> Vec<String> {
        self.disk.names("journal")
    }

    fn damaged(&self, name: &str, bytes: &[u8]) -> SimDisk {
        let disk = self.disk.copy();
        disk.overwrite(name, bytes);
        disk
    }
}

/// Where the frames of a segment end.
fn frames_end(segment: &[u8]) -> usize {
    let number = |at: usize| u32::from_le_bytes(segment[at..at + 4].try_into().expect("four bytes"));
    let mut at = 4_096;
    while at + 56 <= segment.len() && segment[at + 16..at + 24] == segment[24..32] && number(at) != 0 {
        at += (56 + number(at + 4) as usize).next_multiple_of(8);
    }
    at
}

/// The segment that has frames in it.
fn used(healthy: &Healthy) -> String {
    let is_used = |name: &String| healthy.disk.read(name)[..8] == *b"duewsegm";
    healthy.segments().into_iter().find(is_used).expect("one is used")
}

#[test]
fn truncated_journal_is_refused() {
    let healthy = one_segment(End::Killed);
    let name = used(&healthy);
    let bytes = healthy.disk.read(&name);
    let mut tally = Tally::default();
    for cut in 0..bytes.len() {
        let damaged = healthy.damaged(&name, &bytes[..cut]);
        healthy.check(&damaged, healthy.durable, &mut tally, &format!("cut at {cut}"));
    }
    assert_eq!(tally.opened, 0);
}

/// As if the end had never been written. What is proven by a frame that is still there, or by the manifest of a clean
/// close, is missed; the rest cannot be told from a crash, and then exactly whole groups are left.
#[test]
fn zeroed_journal_is_prefix_or_refused() {
    for end in [End::Closed, End::Killed] {
        let healthy = one_segment(end);
        let name = used(&healthy);
        let bytes = healthy.disk.read(&name);
        let mut tally = Tally::default();
        let every = if end == End::Closed { 1 } else { 5 };
        for cut in (0..bytes.len()).filter(|cut| !(100..4_096).contains(cut) && cut % every == 0) {
            let mut zeroed = bytes[..cut].to_vec();
            zeroed.resize(bytes.len(), 0);
            let must_have = if end == End::Closed { healthy.durable } else { Lsn(0) };
            let damaged = healthy.damaged(&name, &zeroed);
            healthy.check(&damaged, must_have, &mut tally, &format!("zero from {cut}"));
        }
        assert!(tally.opened > 0 && (end == End::Killed || tally.refused > 6_000), "{tally:?}");
    }
}

/// Story: 300 messages were accepted, the server rested for seconds and was killed, and the last half of its journal was
/// zeroed. It served 129 of them: the watermarks had vanished with the frames that held them.
#[test]
fn rested_truncated_journal_is_refused() {
    let disk = SimDisk::new(11);
    let mut rig = Rig::open(&disk, by_hand(), History::new(11));
    while rig.store.hands().prepare() == Worked::Done {}
    for _ in 0..12 {
        rig.append(4);
        rig.sync();
    }
    let durable = rig.store.progress().expect("progress").durable;
    // The owner rests, for less than the second that G13 allows.
    let mut clock = rig.history.tick();
    for _ in 0..10 {
        clock.engine.0 += 99;
        clock.wall.0 += 99;
        rig.store.idle(clock, None).expect("idle");
        rig.store.hands().sync();
        rig.store.hands().prepare();
    }
    let healthy = finish(disk, rig, End::Killed);
    assert_eq!(healthy.durable, durable);
    let name = used(&healthy);
    let bytes = healthy.disk.read(&name);
    let mut tally = Tally::default();
    for cut in (4_096..frames_end(&bytes)).step_by(8) {
        let mut zeroed = bytes[..cut].to_vec();
        zeroed.resize(bytes.len(), 0);
        healthy.check(&healthy.damaged(&name, &zeroed), durable, &mut tally, &format!("zero from {cut}"));
    }
    assert!(tally.refused > 100, "{tally:?}");
}

#[test]
fn flipped_bit_is_harmless_or_refused() {
    // Every byte of 8 KiB, and bytes all over a larger folder.
    for (healthy, step) in [(one_segment(End::Closed), 1), (many_files(End::Closed), 5)] {
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        for name in healthy.disk.names("") {
            if name == "LOCK" || name == "RESERVE" {
                continue;
            }
            let kind = name.split('/').next().unwrap_or_default().to_owned();
            let bytes = healthy.disk.read(&name);
            let end = frames_end(&bytes);
            for at in (0..bytes.len()).step_by(step) {
                let unused = name.starts_with("journal") && ((100..4_096).contains(&at) || at > end + 60);
                if unused && at % 89 != 0 {
                    continue;
                }
                let mut bytes = bytes.clone();
                bytes[at] ^= 1 << (at % 8);
                let damaged = healthy.damaged(&name, &bytes);
                let tally = tallies.entry(kind.clone()).or_default();
                healthy.check(&damaged, healthy.durable, tally, &format!("bit in byte {at} of {name}"));
            }
        }
        assert_eq!(tallies["MANIFEST"].opened, 0, "{tallies:?}");
        assert!(tallies["journal"].refused > 2_000, "{tallies:?}");
        assert_eq!(tallies.get("state").map_or(0, |t| t.opened), 0, "{tallies:?}");
        // What is opened has a damaged part that nobody asked for; `verify` finds that, too.
        let runs = tallies.get("runs");
        assert!(runs.is_none_or(|t| t.opened * 20 < t.refused), "{tallies:?}");
    }
}

/// Nothing but the groups after the last watermark can be lost by damage in them; the watermarks prove the others.
#[test]
fn killed_journal_loses_only_unproven_groups() {
    let disk = SimDisk::new(9);
    let mut rig = Rig::open(&disk, by_hand(), History::new(9));
    for _ in 0..20 {
        rig.append(4);
        rig.sync();
    }
    let proven = rig.history.groups()[18].last(); // the 20th says so
    let healthy = finish(disk, rig, End::Killed);
    let name = used(&healthy);
    let bytes = healthy.disk.read(&name);
    let mut tally = Tally::default();
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        let damaged = healthy.damaged(&name, &bytes);
        healthy.check(&damaged, proven, &mut tally, &format!("byte {at}"));
    }
    assert!(tally.refused > 1_000 && tally.opened > 100, "{tally:?}");
}

#[test]
fn bad_sectors_are_harmless_or_refused() {
    const SECTOR: usize = 512;
    for end in [End::Closed, End::Killed] {
        let healthy = many_files(end);
        // What the files held some time ago is what a lost write leaves.
        let stale = many_files(end);
        let must_have = if end == End::Closed { healthy.durable } else { Lsn(0) };
        let mut tally = Tally::default();
        let mut dice = Dice::new(1);
        let names = ["journal", "runs", "state"].into_iter().flat_map(|dir| healthy.disk.names(dir));
        for name in names {
            let bytes = healthy.disk.read(&name);
            let old = stale.disk.read(&name);
            for sector in 0..bytes.len().div_ceil(SECTOR) {
                let range = sector * SECTOR..((sector + 1) * SECTOR).min(bytes.len());
                let mut zeroed = bytes.clone();
                zeroed[range.clone()].fill(0);
                let mut filled = bytes.clone();
                filled[range.clone()].fill(0xff);
                let mut swapped = bytes.clone();
                let other = usize::try_from(dice.below((bytes.len() / SECTOR).max(1) as u64)).expect("small");
                if range.len() == SECTOR {
                    let theirs: Vec<u8> = bytes[other * SECTOR..(other + 1) * SECTOR].to_vec();
                    swapped[other * SECTOR..(other + 1) * SECTOR].copy_from_slice(&bytes[range.clone()]);
                    swapped[range.clone()].copy_from_slice(&theirs);
                }
                let mut earlier = bytes.clone();
                let from = (sector + 3) % (old.len() / SECTOR).max(1) * SECTOR;
                earlier[range.clone()].copy_from_slice(&old[from..from + range.len()]);
                for (kind, damage) in
                    [("zeroed", zeroed), ("filled", filled), ("swapped", swapped), ("stale", earlier)]
                {
                    let damaged = healthy.damaged(&name, &damage);
                    healthy.check(
                        &damaged,
                        must_have,
                        &mut tally,
                        &format!("{kind} sector {sector} of {name}"),
                    );
                }
            }
        }
        assert!(tally.refused > 100, "{tally:?}");
    }
}

#[test]
fn missing_file_is_refused_by_name() {
    let healthy = many_files(End::Closed);
    for name in healthy.disk.names("") {
        if name == "LOCK" || name == "RESERVE" {
            continue;
        }
        let disk = healthy.disk.copy();
        disk.remove_file(&name);
        let error = open(&disk, by_hand()).expect_err("a file is missing");
        assert!(is_corrupt(&error) && error.to_string().contains(&name), "{name}: {error}");
    }
}

/// Story: a recycled segment holds whole frames of an earlier life, and their LSNs may even be the ones that come next.
/// Only the incarnation tells them apart.
#[test]
fn recycled_frames_never_count() {
    let mut reused = 0;
    for seed in 0..times(20) {
        let disk = SimDisk::new(seed);
        let mut rig = Rig::open(&disk, by_hand(), History::new(seed));
        let hands = rig.store.hands();
        for _ in 0..120 {
            rig.append(9);
            rig.sync();
            work_all(&hands);
            while hands.prepare() == Worked::Done {}
        }
        reused += figure(&rig, "segments_reused_total");
        let healthy = finish(disk, rig, End::Closed);
        // All frames that were ever written, at the place where the next one would be.
        let mut tally = Tally::default();
        let names = healthy.segments();
        for name in &names {
            let bytes = healthy.disk.read(name);
            for other in &names {
                let mut mixed = bytes.clone();
                let theirs = healthy.disk.read(other);
                let end = frames_end(&bytes);
                let room = mixed.len() - end;
                if room < 64 {
                    continue;
                }
                mixed[end..].copy_from_slice(&theirs[4096..4096 + room]);
                let damaged = healthy.damaged(name, &mixed);
                healthy.check(
                    &damaged,
                    healthy.durable,
                    &mut tally,
                    &format!("seed {seed}: {other} behind {name}"),
                );
            }
        }
        assert_eq!(tally.refused, 0, "bytes behind the end are of no interest");
    }
    assert!(reused > 20, "{reused}");
}

#[test]
fn unknown_format_is_refused_by_number() {
    let healthy = one_segment(End::Closed);
    let mut bytes = healthy.disk.read("MANIFEST");
    bytes[8] = 2;
    let damaged = healthy.damaged("MANIFEST", &bytes);
    let error = open(&damaged, by_hand()).expect_err("a newer format");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("format version 2 is unknown"), "{error}");
}

/// Segments of another size than the options say now are read all the same.
#[test]
fn the_segment_size_may_be_changed() {
    let disk = SimDisk::new(2);
    let mut history = History::new(2);
    for size in [12, 40, 8, 0, 16, 12] {
        let options = Options { segment_bytes: size * 1024, ..by_hand() };
        let mut rig = Rig::open(&disk, options, history);
        let what = format!("{size} KiB");
        rig.assert_is(&what);
        for _ in 0..60 {
            rig.append(9);
            if rig.history.dice().once_in(4) {
                rig.sync();
                rig.store.hands().prepare();
                work(&rig.store.hands());
            }
        }
        history = rig.history;
    }
}

/// Story: a message that a record changes and that no run and no older record has was left out of every answer, and of
/// the run that the change was flushed to: damage that hides a message in a run would have lost it without a word.
#[test]
fn change_of_absent_message_is_damage() {
    for flushed in [false, true] {
        let disk = SimDisk::new(3);
        let mut rig = Rig::open(&disk, by_hand(), History::new(3));
        let (due, id) = (Due::After(EngineMs(7)), MessageId(5));
        let was = Was {
            queue: QueueName::new("q").expect("a good name"),
            kind: Kind::Waiting,
            due,
            weight: 1,
            detail: 0,
            past: 0,
            unweighed: 0,
        };
        let record = Record::Changed { id, life: Life::new(due, None), was };
        let group = Group { first: Lsn(1), clock: rig.history.tick(), records: vec![record] };
        rig.store.append(&group).expect("a store applies what it is told");
        rig.sync();
        if flushed {
            drop(rig.store);
            let mut options = by_hand();
            options.journal_records = 0;
            let mut store = open(&disk, options).expect("open");
            store.recovered();
            work_all(&store.hands());
            let error = store.progress().expect_err("a flush that would lose a message ends the store");
            assert!(is_corrupt(&error) && error.to_string().contains("message 5"), "{error}");
            continue;
        }
        let lookups = Lookups { ids: vec![id], ..Lookups::default() };
        let error = rig.store.find_many(&lookups, &mut Found::default()).expect_err("found nowhere");
        assert!(is_corrupt(&error) && error.to_string().contains("message 5"), "{error}");
        drop(rig.store);
        let report = verify_on(&disk).expect("verify");
        assert!(report.problems.iter().any(|problem| problem.what.contains("message 5")), "{report:?}");
    }
}
