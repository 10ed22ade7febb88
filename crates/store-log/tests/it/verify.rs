//! `verify` finds each damage, says where it is, changes nothing, and is silent on a healthy folder.

use duewheel_core::store::conformance::History;
use duewheel_core::store::{ErrorKind, Store};
use duewheel_store_log::{Options, verify, verify_on};

use duewheel_sim_disk::SimDisk;

use crate::rig::{Rig, by_hand, figure, open, work};

/// A run, sealed segments and one in use; closed.
fn healthy() -> SimDisk {
    let disk = SimDisk::new(1);
    // Segments of one size: the close leaves the journal as it is.
    let options = by_hand();
    let options = Options { small_segment_bytes: options.segment_bytes, ..options };
    let mut rig = Rig::open(&disk, options, History::new(1));
    let hands = rig.store.hands();
    while figure(&rig.store, "merges_total") == 0 || figure(&rig.store, "runs") < 2 {
        rig.append(9);
        work(&hands);
        hands.prepare();
    }
    for _ in 0..90 {
        rig.append(9);
        hands.prepare();
    }
    rig.store.close(rig.history.tick()).expect("close");
    disk
}

#[test]
fn verify_leaves_healthy_folder_untouched() {
    let disk = healthy();
    let calls = disk.calls();
    let report = verify_on(&disk).expect("verify");
    assert_eq!(report.problems, []);
    assert_eq!(disk.calls(), calls, "nothing is written");
    assert!(
        report.files >= 5 && report.bytes > 40_000 && report.records > 200 && report.messages > 10,
        "{report:?}"
    );
    assert_eq!(report.unproven_groups, 0);
}

#[test]
fn verify_locates_each_damage() {
    let disk = healthy();
    let mut found = 0;
    for name in disk.names("").into_iter().filter(|name| name != "LOCK" && name != "RESERVE") {
        let bytes = disk.read(&name);
        let frames = match name.split('/').next() {
            Some("journal") if bytes[..8] == *b"duewsegm" => {
                // The last frame may be a write that was cut short: it is the mark of the close.
                let written = bytes.iter().rposition(|byte| *byte != 0).expect("a head");
                4_096..written.saturating_sub(64).min(4_096 + 2_000)
            }
            Some("journal") => continue,
            _ => 0..bytes.len(),
        };
        for at in frames.step_by(41) {
            let copy = disk.copy();
            let mut bytes = bytes.clone();
            bytes[at] ^= 0x40;
            copy.overwrite(&name, &bytes);
            let report = verify_on(&copy).expect("damage is no error");
            let problem = report.problems.iter().find(|p| p.file == name);
            let problem = problem.unwrap_or_else(|| panic!("byte {at} of {name}: {:?}", report.problems));
            assert!(problem.offset <= at as u64, "byte {at}: {problem}");
            assert!(problem.offset + 70_000 > at as u64, "byte {at}: {problem}");
            found += 1;
        }
    }
    assert!(found > 100, "{found}");
}

#[test]
fn verify_reports_each_damaged_file() {
    let disk = healthy();
    let mut damaged = Vec::new();
    let names = ["journal", "runs", "state"].into_iter().flat_map(|dir| disk.names(dir));
    for name in names.collect::<Vec<_>>() {
        let mut bytes = disk.read(&name);
        if name.starts_with("journal") && bytes[..8] != *b"duewsegm" {
            continue;
        }
        let at = if name.starts_with("journal") { 4_096 + 300 } else { bytes.len().min(301) - 1 };
        bytes[at] ^= 1;
        disk.overwrite(&name, &bytes);
        damaged.push(name);
    }
    assert!(damaged.iter().filter(|name| name.starts_with("state")).count() > 1, "a state with deltas");
    let mut reported: Vec<String> =
        verify_on(&disk).expect("damage is no error").problems.into_iter().map(|p| p.file).collect();
    reported.dedup();
    // The last segment is read only when all before it are sound.
    for name in damaged
        .iter()
        .filter(|name| *name != damaged.iter().rfind(|n| n.starts_with("journal")).expect("one"))
    {
        assert!(reported.contains(name), "{name} in {reported:?}");
    }
}

#[test]
fn missing_and_cut_files_are_found() {
    let disk = healthy();
    for name in disk.names("").into_iter().filter(|name| name != "LOCK" && name != "RESERVE") {
        let copy = disk.copy();
        copy.remove_file(&name);
        let report = verify_on(&copy).expect("damage is no error");
        assert!(report.problems.iter().any(|p| p.file == name), "{name}: {:?}", report.problems);
        let copy = disk.copy();
        let bytes = disk.read(&name);
        copy.overwrite(&name, &bytes[..bytes.len() - 1]);
        let report = verify_on(&copy).expect("damage is no error");
        assert!(report.problems.iter().any(|p| p.file == name), "{name}: {:?}", report.problems);
    }
}

/// A killed owner leaves groups that nothing proves. That is no damage: the next owner writes them again.
#[test]
fn a_torn_tail_is_no_problem() {
    let disk = SimDisk::new(2);
    let mut rig = Rig::open(&disk, by_hand(), History::new(2));
    rig.append(9);
    rig.sync();
    rig.append(9);
    rig.append(9);
    drop(rig.store);
    let name = "journal/0000000001.log";
    let mut bytes = disk.read(name);
    let end = bytes.iter().rposition(|b| *b != 0).expect("frames");
    bytes[end - 20] ^= 1;
    disk.overwrite(name, &bytes);
    let report = verify_on(&disk).expect("verify");
    assert_eq!(report.problems, []);
    assert_eq!(report.unproven_groups, 1, "one is proven by the second, the third is torn");
}

#[test]
fn verify_accepts_only_data_folders() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    let mut store =
        duewheel_store_log::LogStore::open(&data, crate::rig::small(), std::sync::Arc::new(|| {}))
            .expect("open");
    let mut history = History::new(3);
    for _ in 0..30 {
        store.append(&history.group(9)).expect("append");
    }
    store.close(history.tick()).expect("close");
    let report = verify(&data).expect("verify");
    assert_eq!((report.problems.as_slice(), report.messages), (&[][..], history.model().len() as u64));

    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let report = verify(&empty).expect("it can be read");
    assert!(report.problems[0].what.contains("not a data folder"), "{report:?}");
    assert_eq!(std::fs::read_dir(&empty).expect("a folder").count(), 0, "nothing is written");
    assert_eq!(
        verify(dir.path().join("nowhere")).expect_err("no such folder").kind(),
        ErrorKind::Unavailable
    );
}

/// Story: the fuzzer gave the last epoch that there is. The folder was refused when it was opened, and `verify` found
/// nothing.
#[test]
fn unopenable_folder_fails_verify() {
    let disk = healthy();
    let mut manifest = disk.read("MANIFEST");
    manifest[16..20].fill(0xff);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&manifest[..12]), &manifest[16..]);
    manifest[12..16].copy_from_slice(&crc.to_le_bytes());
    disk.overwrite("MANIFEST", &manifest);
    let problems = verify_on(&disk).expect("verify").problems;
    assert!(problems.iter().any(|p| p.file == "MANIFEST" && p.what.contains("epochs")), "{problems:?}");
    let error = open(&disk, by_hand()).expect_err("there is no epoch left");
    assert_eq!((error.kind(), error.to_string().contains("MANIFEST at byte 16")), (ErrorKind::Corrupt, true));
}
