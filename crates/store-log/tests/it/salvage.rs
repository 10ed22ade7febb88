//! A salvage keeps what can be proved, says what is lost, and never writes to the damaged folder.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use duewheel_core::answers::AnswerLog;
use duewheel_core::message::Row;
use duewheel_core::record::{BootAnchor, BootId, ClockPair, DedupeRow, Record};
use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Found, Lookups, QueueRow, Recovered, Store};
use duewheel_core::{EngineMs, Lsn, MessageId, WallMs};
use duewheel_sim_disk::SimDisk;
use duewheel_store_log::disk::Disk;
use duewheel_store_log::{
    LogStore, Loss, Options, SalvageReport, Worked, salvage, salvage_from, salvage_shards, shards_in, verify,
};

use crate::answers::{answer, append};
use crate::rig::{Rig, all_rows, by_hand, figure, open, small, work, work_all};

/// Runs, a state with deltas, sealed segments and one in use; closed. All appends are in the history.
fn healthy() -> (SimDisk, History) {
    let disk = SimDisk::new(1);
    let mut rig = Rig::open(&disk, by_hand(), History::new(1));
    let hands = rig.store.hands();
    let lacks_deltas = || disk.names("state").len() < 3;
    while figure(&rig.store, "merges_total") == 0 || figure(&rig.store, "runs") < 2 || lacks_deltas() {
        rig.append(9);
        work(&hands);
        hands.prepare();
    }
    for _ in 0..12 {
        rig.append(9);
        hands.prepare();
    }
    rig.store.close(rig.history.tick()).expect("close");
    (disk, rig.history)
}

/// Every name and byte of a folder.
fn bytes_of(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    disk.names("").into_iter().map(|name| (name.clone(), disk.read(&name))).collect()
}

/// Salvages a folder, checks that it stays as it is and that the new one is whole, and reads that.
#[track_caller]
fn salvaged(disk: &SimDisk) -> (SalvageReport, Recovered, Vec<Row>) {
    let before = bytes_of(disk);
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let report = salvage_from(disk, &data).expect("salvage");
    assert!(before == bytes_of(disk), "the damaged folder stays as it is");
    let checked = verify(&data).expect("verify");
    assert_eq!(checked.problems, []);
    assert_eq!(checked.messages, report.messages);
    let (recovered, rows) = read(&data);
    assert_eq!(rows.len() as u64, report.messages);
    let mut keys = BTreeSet::new();
    for row in rows.iter().filter(|row| row.life.stage.kind() != duewheel_core::message::Kind::Dead) {
        let Some(key) = &row.message.key else { continue };
        assert!(keys.insert((row.message.queue.clone(), key.clone())), "{key:?} is held twice");
    }
    (report, recovered, rows)
}

fn read(data: &Path) -> (Recovered, Vec<Row>) {
    let mut store = LogStore::open(data, small(), std::sync::Arc::new(|| {})).expect("open");
    (store.recovered(), all_rows(&mut store))
}

fn lost_ids(report: &SalvageReport) -> BTreeSet<MessageId> {
    let mut ids = BTreeSet::new();
    for loss in &report.losses {
        match loss {
            Loss::Ids { first, last } => ids.extend((first.0..=last.0).map(MessageId)),
            Loss::Message { id, .. } => {
                ids.insert(*id);
            }
            _ => {}
        }
    }
    ids
}

/// The queues without their logs of answers, which are put again.
fn books(recovered: &Recovered) -> Vec<QueueRow> {
    let queues = recovered.queues.iter().filter(|row| !row.is_over()).cloned();
    queues.map(|row| QueueRow { answers: AnswerLog::default(), ..row }).collect()
}

#[test]
fn healthy_folder_salvages_without_loss() {
    let (disk, history) = healthy();
    let model = history.model();
    let (report, recovered, rows) = salvaged(&disk);
    assert_eq!((report.losses.as_slice(), report.damage.as_slice()), (&[][..], &[][..]));
    assert_eq!(rows, model.rows());
    assert!(rows.len() > 50, "{}", rows.len());
    let should = model.recovered(recovered.epoch);
    assert_eq!(books(&recovered), books(&should), "settings, pauses, totals and counts");
    assert_eq!((recovered.next_id, recovered.due), (should.next_id, should.due));
    assert!(recovered.epoch.0 > 65_536, "no lease token of the old folder is given again");
}

/// Story: the anchor of the boot was left behind, so the new folder took its downtime from the wall clock even on the
/// same boot.
#[test]
fn boot_anchor_survives_salvage() {
    let disk = SimDisk::new(3);
    let mut rig = Rig::open(&disk, by_hand(), History::new(3));
    let clock = rig.history.clock();
    let anchor = BootAnchor { boot: BootId(7), engine: clock.engine, elapsed_ns: 5_000_000_000 };
    rig.store.idle(clock, Some(anchor)).expect("anchor");
    for _ in 0..20 {
        rig.append(9);
    }
    rig.store.close(rig.history.tick()).expect("close");
    let (_, recovered, _) = salvaged(&disk);
    let kept = recovered.anchor.expect("an anchor");
    assert_eq!(kept.at(clock.engine), Some(anchor), "the same moment of the same boot");
}

fn flip(disk: &SimDisk, name: &str, at: usize) {
    let mut bytes = disk.read(name);
    bytes[at] ^= 0x40;
    disk.overwrite(name, &bytes);
}

fn ids_of(rows: &[Row]) -> BTreeSet<MessageId> {
    rows.iter().map(|row| row.message.id).collect()
}

#[test]
fn damaged_block_loses_named_messages() {
    let (disk, history) = healthy();
    let all = history.model().rows();
    let mut losing = 0;
    for name in disk.names("runs") {
        let copy = disk.copy();
        flip(&copy, &name, 64 + 40);
        let (report, _, rows) = salvaged(&copy);
        assert!(
            report.damage.iter().any(|problem| problem.file == name && problem.offset == 64),
            "{report:?}"
        );
        let lost = lost_ids(&report);
        let missing = &ids_of(&all) - &ids_of(&rows);
        assert!(missing.is_subset(&lost), "{missing:?} in {lost:?}");
        // Of which queue an unread message was, and so whether a purge took it, only the books tell: they count it.
        let counted = report.losses.iter().map(|loss| match loss {
            Loss::Missing { messages, .. } => *messages,
            _ => 0,
        });
        assert_eq!(counted.sum::<u64>(), missing.len() as u64, "{report:?}");
        for row in all.iter().filter(|row| missing.contains(&row.message.id)) {
            let due = row.life.due;
            let is_in = |loss: &Loss| match loss {
                Loss::Due { file, from, until } => {
                    *file == name
                        && due.class() == from.class()
                        && due.raw() >= from.raw()
                        && until.is_none_or(|until| due.raw() <= until.raw())
                }
                // The journal has a later change of it, which says when it is due.
                Loss::Message { id, due: changed, .. } => *id == row.message.id && *changed == due,
                _ => false,
            };
            assert!(report.losses.iter().any(is_in), "{due:?} is in no stretch of {report:?}");
        }
        for row in &rows {
            let stale = Loss::Stale { id: row.message.id, queue: row.message.queue.clone() };
            assert!(all.contains(row) || report.losses.contains(&stale), "{row:?}");
        }
        losing += missing.len();
    }
    assert!(losing > 5, "{losing}");
}

#[test]
fn run_indexes_are_not_needed() {
    let (disk, history) = healthy();
    let name = disk.names("runs").pop().expect("a run");
    let size = disk.read(&name).len();
    flip(&disk, &name, size - 20);
    let (report, _, rows) = salvaged(&disk);
    assert_eq!(report.losses, []);
    assert!(report.damage.iter().any(|problem| problem.file == name), "{report:?}");
    assert_eq!(rows, history.model().rows());
}

/// The groups behind the cut that the used segments hold: the file, where the frame starts, its first LSN and its
/// records.
fn groups(disk: &SimDisk) -> Vec<(String, usize, u64, u64)> {
    let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let small = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let cut = number(&disk.read(&disk.names("state").pop().expect("a state")), 32);
    let is_used = |name: &String| disk.read(name)[..8] == *b"duewsegm";
    let mut groups = Vec::new();
    for name in disk.names("journal").into_iter().filter(is_used) {
        let bytes = disk.read(&name);
        let mut at = 4_096;
        while at + 56 <= bytes.len() && number(&bytes, at + 16) == number(&bytes, 24) {
            let (first, records) = (number(&bytes, at + 24), u64::from(small(&bytes, at + 12)));
            if records > 0 && first > cut {
                groups.push((name.clone(), at, first, records));
            }
            at += (56 + small(&bytes, at + 4) as usize).next_multiple_of(8);
        }
    }
    groups
}

#[test]
fn damaged_frame_loses_named_records() {
    let (disk, history) = healthy();
    let groups = groups(&disk);
    assert!(groups.len() > 5, "{groups:?}");
    for (name, at, first, records) in groups {
        let copy = disk.copy();
        flip(&copy, &name, at + 60);
        let (report, _, rows) = salvaged(&copy);
        let spans: Vec<_> =
            report.losses.iter().filter(|loss| matches!(loss, Loss::Records { .. })).collect();
        let span = Loss::Records { from: Lsn(first), to: Lsn(first + records - 1) };
        assert_eq!(spans, [&span], "{report:?}");
        assert_eq!((report.damage.len(), report.damage[0].offset), (1, at as u64));
        let missing = &ids_of(&history.model().rows()) - &ids_of(&rows);
        assert!(missing.len() as u64 <= records, "{missing:?} by {records} records");
    }
}

#[test]
fn missing_manifest_is_rebuilt_from_files() {
    let (disk, history) = healthy();
    for damage in [None, Some(20)] {
        let copy = disk.copy();
        match damage {
            None => copy.remove_file("MANIFEST"),
            Some(at) => flip(&copy, "MANIFEST", at),
        }
        let (report, recovered, rows) = salvaged(&copy);
        assert_eq!(report.losses, []);
        assert_eq!(report.damage.len(), 1, "{report:?}");
        assert_eq!(rows, history.model().rows());
        assert_eq!(books(&recovered), books(&history.model().recovered(recovered.epoch)));
        assert!(recovered.next_id > history.model().recovered(recovered.epoch).next_id);
    }
}

#[test]
fn missing_state_keeps_every_message() {
    let (disk, history) = healthy();
    for name in disk.names("state") {
        disk.remove_file(&name);
    }
    let (report, _, rows) = salvaged(&disk);
    assert!(report.losses.iter().any(|loss| matches!(loss, Loss::Settings { .. })), "{report:?}");
    assert!(report.losses.iter().any(|loss| matches!(loss, Loss::Settled { .. })), "{report:?}");
    let missing = &ids_of(&history.model().rows()) - &ids_of(&rows);
    assert_eq!(missing, BTreeSet::new());
}

/// The step that wrote the newest file of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastStep {
    Flush,
    Merge,
}

/// Like [`healthy`], with a state whose newest file is a delta of this step.
fn ended_by(last: LastStep) -> (SimDisk, History) {
    let disk = SimDisk::new(1);
    let mut rig = Rig::open(&disk, by_hand(), History::new(1));
    let hands = rig.store.hands();
    loop {
        rig.append(9);
        hands.prepare();
        let files = disk.names("state").len();
        let is_delta = || disk.names("state").len() > files.max(2);
        if hands.flush() == Worked::Done && last == LastStep::Flush && is_delta() {
            break;
        }
        let merges = figure(&rig.store, "merges_total");
        let files = disk.names("state").len();
        while hands.merge() == Worked::Done && figure(&rig.store, "merges_total") == merges {}
        let has_merged = figure(&rig.store, "merges_total") > merges;
        if last == LastStep::Merge && has_merged && disk.names("state").len() > files.max(2) {
            break;
        }
    }
    rig.append(9);
    rig.store.close(rig.history.tick()).expect("close");
    (disk, rig.history)
}

/// Salvages a folder of which only files of the state and the manifest are damaged: every message is there, in its last
/// state or reported, and whatever else is not as it was is reported.
#[track_caller]
fn assert_all_are_there(disk: &SimDisk, history: &History, what: &str) -> SalvageReport {
    let (report, recovered, rows) = salvaged(disk);
    let all = history.model().rows();
    assert!(!report.damage.is_empty(), "{what}: {report:?}");
    assert_eq!(&ids_of(&all) - &ids_of(&rows), BTreeSet::new(), "{what}: messages are missing: {report:?}");
    let has = |is: fn(&Loss) -> bool| report.losses.iter().any(is);
    let is_known = has(|loss| matches!(loss, Loss::Settled { .. }));
    assert!(is_known || rows == all, "{what}: settled messages come again: {report:?}");
    let should = history.model().recovered(recovered.epoch);
    let is_known = has(|loss| matches!(loss, Loss::Settings { .. }));
    assert!(is_known || books(&recovered) == books(&should), "{what}: queues are other: {report:?}");
    assert!(recovered.next_id > should.next_id, "{what}");
    report
}

/// Story: without the manifest and the newest file of the state the older ones were taken for all of it. The runs that
/// only the newest one named were left out, with all their messages, and no loss was reported.
#[test]
fn missing_manifest_and_state_lose_nothing() {
    for last in [LastStep::Flush, LastStep::Merge] {
        let (disk, history) = ended_by(last);
        let states = disk.names("state");
        assert!(states.len() > 2, "{states:?}");
        for name in &states {
            for kept in [None, Some(0), Some(40), Some(63), Some(70), Some(87), Some(100)] {
                let copy = disk.copy();
                copy.remove_file("MANIFEST");
                match kept {
                    None => copy.remove_file(name),
                    Some(kept) => copy.overwrite(name, &disk.read(name)[..kept]),
                }
                let what = format!("{last:?}, {kept:?} bytes of {name}");
                let report = assert_all_are_there(&copy, &history, &what);
                assert!(!report.losses.is_empty(), "{what}: {report:?}");
                let is_named = report.damage.iter().any(|damage| damage.file == *name);
                assert!(is_named || kept.is_none(), "{what}: {report:?}");
            }
        }
    }
}

/// A file of the state says which one it continues. If these bytes are damaged, another file is taken for it, or none.
#[test]
fn damaged_state_head_is_ignored() {
    let (disk, history) = ended_by(LastStep::Flush);
    for name in disk.names("state") {
        for at in [8, 12, 16, 32, 37, 40, 41, 48, 60] {
            let copy = disk.copy();
            copy.remove_file("MANIFEST");
            flip(&copy, &name, at);
            assert_all_are_there(&copy, &history, &format!("byte {at} of {name}"));
        }
    }
}

/// The position in the head of a run says where the journal goes on: a damaged one is not taken.
#[test]
fn damaged_run_head_keeps_journal() {
    let (disk, history) = ended_by(LastStep::Flush);
    for name in disk.names("runs") {
        for at in [16, 24, 32, 34, 38] {
            let copy = disk.copy();
            copy.remove_file("MANIFEST");
            flip(&copy, &name, at);
            assert_all_are_there(&copy, &history, &format!("byte {at} of {name}"));
        }
    }
}

/// A run that only the state names, now that the manifest is missing, is on the list.
#[test]
fn missing_run_is_named_without_manifest() {
    let (disk, _) = ended_by(LastStep::Flush);
    for name in disk.names("runs") {
        for kept in [None, Some(0), Some(40), Some(80)] {
            let copy = disk.copy();
            copy.remove_file("MANIFEST");
            match kept {
                None => copy.remove_file(&name),
                Some(kept) => copy.overwrite(&name, &disk.read(&name)[..kept]),
            }
            let (report, ..) = salvaged(&copy);
            let is_it = |loss: &Loss| matches!(loss, Loss::Run { file, .. } if *file == name);
            assert!(report.losses.iter().any(is_it), "{kept:?} bytes of {name}: {report:?}");
            assert!(report.damage.iter().any(|damage| damage.file == name), "{name}: {report:?}");
        }
    }
}

/// With the manifest, each file of the state may be missing or short.
#[test]
fn damaged_state_file_is_listed() {
    for last in [LastStep::Flush, LastStep::Merge] {
        let (disk, history) = ended_by(last);
        for name in disk.names("state") {
            for kept in [None, Some(0), Some(40), Some(87)] {
                let copy = disk.copy();
                match kept {
                    None => copy.remove_file(&name),
                    Some(kept) => copy.overwrite(&name, &disk.read(&name)[..kept]),
                }
                let what = format!("{last:?}, {kept:?} bytes of {name}");
                let report = assert_all_are_there(&copy, &history, &what);
                assert!(report.damage.iter().any(|damage| damage.file == name), "{what}: {report:?}");
                let of = |loss: &&Loss| matches!(loss, Loss::Settings { .. });
                let settings: Vec<&Loss> = report.losses.iter().filter(of).collect();
                assert_eq!(settings, [&Loss::Settings { file: name.clone() }], "{what}");
            }
        }
    }
}

/// Whatever byte is damaged: if nothing is on the list, nothing is missing and nothing is other than it was.
#[test]
fn salvage_reports_every_loss() {
    let (disk, history) = healthy();
    let all = history.model().rows();
    let (mut tried, mut losing) = (0, 0);
    for name in disk.names("").into_iter().filter(|name| name != "LOCK" && name != "RESERVE") {
        let bytes = disk.read(&name);
        if name.starts_with("journal") && bytes[..8] != *b"duewsegm" {
            continue;
        }
        for at in (0..bytes.len()).step_by((bytes.len() / 4).max(7)) {
            let copy = disk.copy();
            flip(&copy, &name, at);
            let (report, recovered, rows) = salvaged(&copy);
            tried += 1;
            if !report.losses.is_empty() {
                losing += 1;
                continue;
            }
            assert_eq!(ids_of(&rows), ids_of(&all), "byte {at} of {name}");
            assert!(rows == all, "byte {at} of {name}");
            let should = history.model().recovered(recovered.epoch);
            assert_eq!(books(&recovered), books(&should), "byte {at} of {name}");
        }
    }
    assert!(tried > 20 && losing > 5, "{tried} {losing}");
}

#[test]
fn salvage_refuses_busy_or_existing_folders() {
    let (disk, _) = healthy();
    let dir = tempfile::tempdir().expect("a folder");
    let error = salvage_from(&disk, dir.path()).expect_err("it exists");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let (src, data) = (dir.path().join("src"), dir.path().join("data"));
    let _owner = LogStore::open(&src, small(), std::sync::Arc::new(|| {})).expect("open");
    let error = salvage(&src, &data).expect_err("it is in use");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(!data.exists());
}

/// A shard without a file is an empty one in the new folder, and never goes unsaid: it may have lost everything.
#[test]
fn shard_without_files_is_reported() {
    let (disk, history) = healthy();
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let shards: [Arc<dyn Disk>; 2] = [Arc::new(disk), Arc::new(SimDisk::new(2))];
    let report = salvage_shards(&shards, &data).expect("salvaged");
    let [Loss::InShard { folder, loss }] = &report.losses[..] else { panic!("{report:?}") };
    assert_eq!((folder.as_str(), &**loss), ("1-of-2", &Loss::Shard));
    let all = history.model().len() as u64;
    assert_eq!((report.messages, shards_in(&data).expect("shards")), (all, Some(2)));
    let whole = verify(&data).expect("verified");
    assert_eq!((whole.messages, whole.problems), (all, Vec::new()));
}

/// Story: a salvage skipped the record that frees a `dedupe_id`, so the answer that it had freed was valid again.
#[test]
fn freed_answers_stay_freed() {
    for is_in_run in [false, true] {
        let disk = SimDisk::new(1);
        let mut store = open(&disk, Options { journal_bytes: 0, ..by_hand() }).expect("open");
        let mut next = 1;
        for (name, nth) in [("freed", 1), ("again", 2), ("stays", 3)] {
            let row = answer(name, nth);
            append(&mut store, &mut next, vec![Record::Deduped(row)]);
            if is_in_run {
                work_all(&store.hands());
            }
        }
        for (name, nth) in [("freed", 1), ("again", 2)] {
            let row = DedupeRow { until: EngineMs(next), ..answer(name, nth) };
            append(&mut store, &mut next, vec![Record::Deduped(row)]);
        }
        let row = answer("again", next);
        append(
            &mut store,
            &mut next,
            vec![Record::Deduped(DedupeRow { dedupe_id: answer("again", 2).dedupe_id, ..row })],
        );
        let clock = ClockPair { engine: EngineMs(next), wall: WallMs(next) };
        store.close(clock).expect("close");
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("data");
        salvage_from(&disk, &data).expect("salvage");
        let mut store = LogStore::open(&data, small(), Arc::new(|| {})).expect("open");
        let names = [("freed", 1), ("again", 2), ("stays", 3)].map(|(name, nth)| {
            let row = answer(name, nth);
            (row.queue, row.dedupe_id)
        });
        let mut found = Found::default();
        store
            .find_many(&Lookups { answers: names.to_vec(), ..Lookups::default() }, &mut found)
            .expect("find");
        let valid = found.answers.iter().filter(|row| row.until > clock.engine);
        let queues: Vec<&str> = valid.map(|row| row.queue.as_str()).collect();
        assert_eq!(queues, ["again", "stays"], "in a run: {is_in_run}");
    }
}
