//! Folders of a later version that has added a field to records: an optional field is skipped, a required one is refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use duewheel_core::message::{Life, MessageContent, Options, Row};
use duewheel_core::record::{ClockPair, Group, Record, Writer};
use duewheel_core::store::{ErrorKind, Store};
use duewheel_core::{Due, EngineMs, MessageId, QueueName, WallMs};
use duewheel_store_log::{LogStore, Worked, verify};

use crate::golden_folders::crc32c;
use crate::rig::{all_rows, by_hand, work};

const CLOCK: ClockPair = ClockPair { engine: EngineMs(1_000), wall: WallMs(1_700_000_000_000) };

fn row() -> Row {
    let message = MessageContent {
        dedupe_id: None,
        id: MessageId(1),
        queue: QueueName::new("q").expect("a good name"),
        key: None,
        body: b"the body of a message".as_slice().into(),
        headers: Vec::new(),
        options: Options::default(),
        enqueued_at: WallMs(5),
    };
    Row { message: Arc::new(message), life: Life::new(Due::After(EngineMs(2_000)), None) }
}

/// A folder whose only record has this section of fields in place of the empty one of its message's life.
fn folder(data: &Path, section: &[u8]) {
    let Row { message, life } = row();
    let put = Record::Put { message, life, was: None };
    let mut writer = Writer::default();
    writer.record(&put);
    let old = writer.bytes;
    // The life ends with its section; the byte behind it says that nothing was there before.
    let at = old.len() - 2;
    let new = [&old[..at], section, &old[at + 1..]].concat();
    let whole = old.len().next_multiple_of(8);
    assert!(new.len() <= whole, "the frame has as many bytes as before");

    let mut store = LogStore::open(data, by_hand(), Arc::new(|| {})).expect("open");
    let first = store.recovered().next_lsn;
    store.append(&Group { first, clock: CLOCK, records: vec![put] }).expect("append");
    store.close(CLOCK).expect("close");
    drop(store);
    for entry in fs::read_dir(data.join("journal")).expect("a folder") {
        let path = entry.expect("a name").path();
        let mut bytes = fs::read(&path).expect("a segment");
        let Some(start) = bytes.windows(old.len()).position(|part| part == old) else { continue };
        bytes[start..start + new.len()].copy_from_slice(&new);
        let frame = start - 56;
        let length = u32::try_from(new.len()).expect("a short record");
        bytes[frame + 4..frame + 8].copy_from_slice(&length.to_le_bytes());
        let sum = crc32c(&[&bytes[frame + 4..start + whole]]);
        bytes[frame..frame + 4].copy_from_slice(&sum.to_le_bytes());
        return fs::write(&path, bytes).expect("a segment");
    }
    panic!("the record is in no segment");
}

#[test]
fn unknown_optional_field_opens() {
    let scratch = tempfile::tempdir().expect("a folder");
    folder(scratch.path(), &[1, 30 << 2, 5]);
    assert_eq!(verify(scratch.path()).expect("a report").problems, []);
    // From the journal, then from a run.
    for runs in 0..2 {
        let options = duewheel_store_log::Options { journal_records: 0, ..by_hand() };
        let mut store = LogStore::open(scratch.path(), options, Arc::new(|| {})).expect("open");
        store.recovered();
        assert_eq!(crate::rig::figure(&store, "runs"), runs);
        assert_eq!(all_rows(&mut store), [row()]);
        while work(&store.hands()) == Worked::Done {}
        store.close(CLOCK).expect("close");
    }
}

#[test]
fn unknown_required_field_is_refused() {
    let scratch = tempfile::tempdir().expect("a folder");
    folder(scratch.path(), &[1, 30 << 2 | 2, 5]);
    let error = LogStore::open(scratch.path(), by_hand(), Arc::new(|| {})).expect_err("a later version");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("this message has a field of a later version"), "{error}");
    assert_eq!(verify(scratch.path()).expect("a report").problems.len(), 1);
}
