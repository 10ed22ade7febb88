//! Runs against a model, against damage, and against the bytes described in `docs/format.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::hash_key::HashKey;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{
    DeadReason, Died, Ended, Lease, Life, MessageContent, Options, PastAttempt, Row, Stage,
};
use duewheel_core::record::{Created, DedupeRow};
use duewheel_core::store::{Cursor, Sequence, Which};
use duewheel_core::time::Class;
use duewheel_core::{Due, EngineMs, Key, Lsn, MessageId, QueueName, WallMs};
use proptest::prelude::*;

use super::writer::SPAN;
use super::{
    AnswerScan, Blocking, KeyLookup, Live, Mask, NewerTables, ReadAllowance, Run, RunWriter, verify,
};
use crate::disk::Disk;
use crate::fault::ReadFault;
use crate::format::{FileNo, Incarnation};
use crate::manifest::RunEntry;
use crate::run::filter::NameHasher;
use crate::run::opened::Interner;
use mem_disk::MemDisk;
use model::{Model, Shape, answer, no_messages, queue, row};

pub(crate) mod flood;
pub(crate) mod mem_disk;
pub(crate) mod model;

const ALL: [Sequence; 6] =
    [Sequence::At, Sequence::After, Sequence::Leased, Sequence::Dead, Sequence::AllAt, Sequence::AllAfter];

/// The hashes of all folders in these tests.
pub(crate) fn hasher() -> NameHasher {
    NameHasher::new(HashKey::seeded(1))
}

/// A disk with one run of these rows and answers.
pub(crate) fn written(model: &Model, shape: Shape) -> (Arc<MemDisk>, RunEntry) {
    let disk = Arc::new(MemDisk::default());
    let entry = write(&disk, 7, model, shape);
    (disk, entry)
}

pub(crate) fn write(disk: &Arc<MemDisk>, no: u64, model: &Model, shape: Shape) -> RunEntry {
    let disk: Arc<dyn Disk> = disk.clone();
    let mut writer =
        RunWriter::create(&disk, FileNo(no), Incarnation(0x1122_3344_5566_7700 + no), Lsn(99), hasher())
            .unwrap();
    writer.set_span(shape.span);
    writer.set_piece(shape.piece);
    for row in model.by_due() {
        writer.row(row).unwrap();
    }
    for answer in &model.answers {
        writer.answer(answer);
    }
    writer.finish().unwrap()
}

pub(crate) fn open(disk: &Arc<MemDisk>, entry: &RunEntry) -> Arc<Run> {
    Arc::new(Run::open(&**disk, entry, hasher(), &Interner::default()).unwrap())
}

#[test]
fn an_empty_run_is_whole() {
    let (disk, entry) = written(&Model::default(), Shape::default());
    assert_eq!(disk.names(), ["runs/0000000007.run"]);
    let run = open(&disk, &entry);
    assert_eq!((run.rows(), run.answers(), run.queues().len()), (0, 0, 0));
    assert!(no_messages(&run));
    assert_eq!(verify(&*disk, &entry, hasher()).unwrap().rows, 0);
}

/// Compares every query with the model.
fn compare(run: &Arc<Run>, model: &Model, live: &Live) {
    let all: Vec<MessageId> = model.rows.keys().copied().collect();
    let mut found = Vec::new();
    let asked: Vec<MessageId> =
        all.iter().flat_map(|id| [*id, MessageId(id.0 + 1)]).collect::<BTreeSet<_>>().into_iter().collect();
    run.find_ids(&asked, &ReadAllowance::new(usize::MAX, Blocking::Allowed), &mut found).unwrap();
    found.sort_by_key(|row| row.message.id);
    let expected: Vec<Row> = model.rows.values().cloned().collect();
    assert_eq!(found, expected);
    assert!(run.ids().iter().eq(all.iter().map(|id| id.0)));

    let live_ids: BTreeSet<MessageId> = model
        .rows
        .values()
        .filter(|row| live.has(row.message.id, run.queue_no(&row.message.queue).unwrap()))
        .map(|row| row.message.id)
        .collect();
    compare_keys(run, model, live, &live_ids);
    for answer in &model.answers {
        let hash = hasher().answer(&answer.queue, &answer.dedupe_id);
        assert_eq!(
            run.find_answer(hash, &answer.queue, &answer.dedupe_id, Blocking::Allowed).unwrap().as_ref(),
            Some(answer)
        );
        assert_eq!(run.find_answer(hash, &answer.queue, "another", Blocking::Allowed).unwrap(), None);
    }
    for which in model.whiches() {
        for sequence in ALL {
            let expected = model.sequence(sequence, &which, &live_ids);
            assert_eq!(scan(run, live, sequence, &which, None, u64::MAX), expected, "{sequence:?} {which:?}");
            let Some((middle, _)) = expected.get(expected.len() / 2) else { continue };
            let rest: Vec<_> = expected.iter().filter(|(at, _)| at > middle).cloned().collect();
            assert_eq!(
                scan(run, live, sequence, &which, Some(*middle), u64::MAX),
                rest,
                "{sequence:?} {which:?}"
            );
            let until: Vec<_> = expected.iter().filter(|(at, _)| at.0 <= middle.0).cloned().collect();
            assert_eq!(scan(run, live, sequence, &which, None, middle.0), until, "{sequence:?} {which:?}");
        }
    }
}

fn compare_keys(run: &Arc<Run>, model: &Model, live: &Live, live_ids: &BTreeSet<MessageId>) {
    let mut by_key: BTreeMap<(QueueName, Key), Vec<&Row>> = BTreeMap::new();
    for row in model.rows.values() {
        if let Some(key) = &row.message.key {
            by_key.entry((row.message.queue.clone(), key.clone())).or_default().push(row);
        }
    }
    by_key.entry((queue(0), Key::new("nobody has it").unwrap())).or_default();
    let lookups: Vec<KeyLookup<'_>> =
        by_key.keys().map(|(queue, key)| KeyLookup { hash: hasher().key(queue, key), queue, key }).collect();
    for dead in [0, 2, 8] {
        let mut found = Vec::new();
        run.find_keys(
            &lookups,
            live,
            dead,
            &NewerTables::NOTHING,
            &ReadAllowance::new(usize::MAX, Blocking::Allowed),
            &mut found,
        )
        .unwrap();
        for (i, rows) in by_key.values().enumerate() {
            let mut rows: Vec<Row> = rows
                .iter()
                .filter(|row| live_ids.contains(&row.message.id))
                .map(|row| (*row).clone())
                .collect();
            let (mut gone, mut expected): (Vec<_>, Vec<_>) =
                rows.drain(..).partition(|row| matches!(row.life.stage, Stage::Dead { .. }));
            gone.sort_by_key(|row| std::cmp::Reverse(row.message.id));
            expected.extend(gone.into_iter().take(dead));
            expected.sort_by_key(|row| row.message.id);
            let mut of: Vec<Row> =
                found.iter().filter(|(n, _)| *n == i).map(|(_, row)| row.clone()).collect();
            of.sort_by_key(|row| row.message.id);
            assert_eq!(of, expected);
        }
    }
}

fn scan(
    run: &Arc<Run>,
    live: &Live,
    sequence: Sequence,
    which: &Which,
    after: Option<Cursor>,
    until: u64,
) -> Vec<(Cursor, Row)> {
    let mut scan = run.scan(&Arc::new(live.clone()), sequence, which, after, until).unwrap();
    let mut rows = Vec::new();
    while let Some(raw) = scan.next().unwrap() {
        let row = run.decode(&raw).unwrap();
        assert_eq!((raw.id, raw.due, raw.weight), (row.message.id, row.life.due, row.weight() as u64));
        rows.push((Model::place(sequence, &row), row));
    }
    assert!(scan.next().unwrap().is_none(), "the end stays the end");
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn run_matches_model(
        model in model::strategy(60),
        shape in model::shapes(),
        gone in proptest::collection::vec(any::<proptest::sample::Index>(), 0..20),
        purge in proptest::option::of((0..3u64, any::<proptest::sample::Index>())),
    ) {
        let (disk, entry) = written(&model, shape);
        let run = open(&disk, &entry);
        let verified = verify(&*disk, &entry, hasher()).unwrap();
        assert_eq!((verified.rows, verified.answers), (model.rows.len() as u64, model.answers.len() as u64));
        compare(&run, &model, &Live::all(&run));
        let mut live = Live::all(&run);
        let ids: Vec<MessageId> = model.rows.keys().copied().collect();
        if !ids.is_empty() {
            for gone in gone {
                live.remove(*gone.get(&ids));
            }
            if let Some((of, before)) = purge
                && let Some(no) = run.queue_no(&queue(of))
            {
                let keep = ids.iter().copied().filter(|id| id.0 % 5 == 0).collect();
                live.mask(no, Mask { before: *before.get(&ids), keep });
            }
        }
        compare(&run, &model, &live);
    }
}

/// A small run with every kind of content.
fn little() -> Model {
    let mut model = Model::default();
    let lease = Lease {
        token: LeaseToken { epoch: Epoch(1), counter: 2 },
        until: EngineMs(70),
        session: SessionId(4),
        granted_at: WallMs(60),
    };
    let dead = Stage::Dead { reason: DeadReason::MaxAttempts, at: Died::from_raw(50), token: None };
    let waiting = Stage::Waiting { token: None };
    for (id, of, due, stage, key) in [
        (1, 0, Due::At(WallMs(10)), waiting.clone(), Some("a")),
        (2, 1, Due::At(WallMs(9)), Stage::Leased(lease), Some("a")),
        (3, 0, Due::At(WallMs(10)), dead.clone(), Some("a")),
        (5, 1, Due::After(EngineMs(3)), waiting, None),
        (900, 0, Due::After(EngineMs(u64::MAX)), dead, Some("b")),
    ] {
        model.rows.insert(MessageId(id), row(id, of, due, stage, key, 10));
    }
    model.answers.push(answer(0, "x", 100));
    model.answers.push(answer(1, "x", 200));
    model
}

/// Makes every query; each answer is the right one or an error.
fn right_or_refused(run: &Arc<Run>, model: &Model) {
    let live = Live::all(run);
    let mut found = Vec::new();
    for (id, expected) in &model.rows {
        found.clear();
        if run.find_ids(&[*id], &ReadAllowance::new(usize::MAX, Blocking::Allowed), &mut found).is_ok() {
            assert_eq!(found, std::slice::from_ref(expected));
        }
    }
    let key = Key::new("a").unwrap();
    if let Ok(found) = run.find_key(
        hasher().key(&queue(0), &key),
        &queue(0),
        &key,
        &live,
        8,
        &NewerTables::NOTHING,
        &ReadAllowance::new(usize::MAX, Blocking::Allowed),
    ) {
        let found: BTreeSet<u64> = found.iter().map(|row| row.message.id.0).collect();
        assert_eq!(found, BTreeSet::from([1, 3]));
    }
    for answer in &model.answers {
        let hash = hasher().answer(&answer.queue, &answer.dedupe_id);
        if let Ok(found) = run.find_answer(hash, &answer.queue, &answer.dedupe_id, Blocking::Allowed) {
            assert_eq!(found.as_ref(), Some(answer));
        }
    }
    let ids = model.rows.keys().copied().collect();
    for sequence in ALL {
        for which in [Which::All, Which::One(queue(1)), Which::AllBut([queue(1)].into())] {
            let mut expected = model.sequence(sequence, &which, &ids).into_iter();
            let Ok(mut scan) = run.scan(&Arc::new(live.clone()), sequence, &which, None, u64::MAX) else {
                continue;
            };
            loop {
                match scan.next() {
                    Err(_) => break,
                    Ok(None) => {
                        assert_eq!(expected.next(), None);
                        break;
                    }
                    Ok(Some(raw)) => {
                        let Some((_, right)) = expected.next() else { panic!("one too many: {raw:?}") };
                        assert_eq!(run.decode(&raw).unwrap(), right);
                    }
                }
            }
        }
    }
}

#[test]
fn flipped_bytes_never_give_wrong_rows() {
    let model = little();
    let (disk, entry) = written(&model, Shape { span: 150, ..Shape::default() });
    let name = entry.no.run();
    right_or_refused(&open(&disk, &entry), &model);
    for at in 0..usize::try_from(entry.bytes).unwrap() {
        let flip = |bytes: &mut Vec<u8>| bytes[at] ^= 1 << (at % 8);
        disk.change(&name, flip);
        match verify(&*disk, &entry, hasher()) {
            Err(ReadFault::Damaged(problem)) => assert_eq!(problem.file, name),
            other => panic!("byte {at}: {other:?}"),
        }
        if let Ok(run) = Run::open(&*disk, &entry, hasher(), &Interner::default()) {
            right_or_refused(&Arc::new(run), &model);
        }
        disk.change(&name, flip);
    }
    verify(&*disk, &entry, hasher()).unwrap();
}

/// Story: each part of the tail was read by itself, its head first, and none could be asked for before the one in front
/// of it was there: 22 reads, one after the other.
#[test]
fn run_opens_with_one_tail_read() {
    let (disk, entry) = written(&little(), Shape { span: 150, ..Shape::default() });
    let opening = |tail: Option<u64>| {
        let before = (disk.reads(), disk.read_bytes());
        let run = Run::open(&*disk, &RunEntry { tail, ..entry }, hasher(), &Interner::default()).unwrap();
        assert_eq!(*run.entry(), entry, "it is known from now on");
        (disk.reads() - before.0, disk.read_bytes() - before.1)
    };
    let range = entry.bytes - entry.tail.expect("the writer knows it");
    assert_eq!(opening(entry.tail), (2, 64 + range));
    // An older manifest does not say where the tail starts: the footer does.
    assert_eq!(opening(None), (3, 64 + 104 + range));
    for tail in [0, 64, entry.tail.unwrap() - 8, entry.tail.unwrap() + 8, entry.bytes - 8, u64::MAX] {
        let opened =
            Run::open(&*disk, &RunEntry { tail: Some(tail), ..entry }, hasher(), &Interner::default());
        assert!(matches!(opened, Err(ReadFault::Damaged(_))), "tail at {tail}");
    }
}

#[test]
fn every_cut_is_refused() {
    let (disk, entry) = written(&little(), Shape::default());
    let name = entry.no.run();
    let whole = disk.read(&name);
    for cut in 0..whole.len() {
        disk.change(&name, |bytes| bytes.truncate(cut));
        for bytes in [entry.bytes, cut as u64] {
            let opened = Run::open(&*disk, &RunEntry { bytes, ..entry }, hasher(), &Interner::default());
            assert!(matches!(opened, Err(ReadFault::Damaged(_))), "cut at {cut}");
        }
        disk.change(&name, |bytes| bytes.clone_from(&whole));
    }
    disk.remove(&name).unwrap();
    assert!(matches!(Run::open(&*disk, &entry, hasher(), &Interner::default()), Err(ReadFault::Damaged(_))));
}

#[test]
fn foreign_run_or_version_is_refused() {
    let (disk, entry) = written(&little(), Shape::default());
    let what = |entry: RunEntry| match Run::open(&*disk, &entry, hasher(), &Interner::default()) {
        Err(ReadFault::Damaged(problem)) => problem.what,
        other => panic!("{other:?}"),
    };
    assert!(what(RunEntry { incarnation: Incarnation(1), ..entry }).contains("of another run"));
    assert!(what(RunEntry { last: Lsn(98), ..entry }).contains("of another run"));
    disk.change(&entry.no.run(), |bytes| bytes[8] = 2);
    assert!(what(entry).contains("format version 2 is unknown"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Meaningless bytes with a correct checksum: nothing panics, whatever they contain.
    #[test]
    fn no_bytes_make_it_panic(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let model = little();
        let (disk, entry) = written(&model, Shape { span: 150, ..Shape::default() });
        disk.change(&entry.no.run(), |bytes| {
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            approve(bytes);
        });
        let _ = verify(&*disk, &entry, hasher());
        if let Ok(run) = Run::open(&*disk, &entry, hasher(), &Interner::default()) {
            ask_everything(&Arc::new(run), &model);
        }
    }
}

/// Corrects all checksums.
fn approve(bytes: &mut [u8]) {
    let mut at = 64;
    while at + 32 <= bytes.len() {
        let length = super::block::block_length(&bytes[at..]);
        let end = at.saturating_add(length);
        if end > bytes.len() {
            return;
        }
        let crc = crc32c::crc32c(&bytes[at + 4..end]);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

fn ask_everything(run: &Arc<Run>, model: &Model) {
    let live = Live::all(run);
    let mut found = Vec::new();
    let ids: Vec<MessageId> = model.rows.keys().copied().collect();
    let _ = run.find_ids(&ids, &ReadAllowance::new(usize::MAX, Blocking::Allowed), &mut found);
    for key in ["a", "b"] {
        let key = Key::new(key).unwrap();
        let _ = run.find_key(
            hasher().key(&queue(0), &key),
            &queue(0),
            &key,
            &live,
            1,
            &NewerTables::NOTHING,
            &ReadAllowance::new(usize::MAX, Blocking::Allowed),
        );
    }
    let _ = run.find_answer(hasher().answer(&queue(0), "x"), &queue(0), "x", Blocking::Allowed);
    for sequence in ALL {
        for which in model.whiches() {
            if let Ok(mut scan) = run.scan(&Arc::new(live.clone()), sequence, &which, None, u64::MAX) {
                while let Ok(Some(raw)) = scan.next() {
                    let _ = run.decode(&raw);
                }
            }
        }
    }
    let mut answers = AnswerScan::new(Arc::clone(run));
    while let Ok(Some(_)) = answers.next() {}
}

#[test]
fn dead_heavy_key_reads_few_blocks() {
    // Story: a job with a fixed key that dies every minute has half a million dead messages after a year. Looking its
    // key up must not read them all.
    let mut model = Model::default();
    for id in 1..3_000 {
        let stage = Stage::Dead { reason: DeadReason::Buried, at: Died::from_raw(id), token: None };
        model.rows.insert(MessageId(id), row(id, 0, Due::At(WallMs(id)), stage, Some("job"), 50));
    }
    let waiting = Stage::Waiting { token: None };
    model.rows.insert(MessageId(7), row(7, 0, Due::At(WallMs(9_000)), waiting, Some("job"), 50));
    let (disk, entry) = written(&model, Shape::default());
    let run = open(&disk, &entry);
    let before = disk.reads();
    let key = Key::new("job").unwrap();
    let found = run
        .find_key(
            hasher().key(&queue(0), &key),
            &queue(0),
            &key,
            &Live::all(&run),
            8,
            &NewerTables::NOTHING,
            &ReadAllowance::new(usize::MAX, Blocking::Allowed),
        )
        .unwrap();
    let mut ids: Vec<u64> = found.iter().map(|row| row.message.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [7, 2992, 2993, 2994, 2995, 2996, 2997, 2998, 2999]);
    assert!(disk.reads() - before < 15, "{} reads", disk.reads() - before);
}

#[test]
fn excluded_large_queue_is_not_read() {
    let mut model = Model::default();
    for id in 1..4_000 {
        let of = u64::from(id % 50 == 0);
        let waiting = Stage::Waiting { token: None };
        model.rows.insert(MessageId(id), row(id, of, Due::At(WallMs(id)), waiting, None, 100));
    }
    let (disk, entry) = written(&model, Shape { span: 100_000, ..Shape::default() });
    let run = open(&disk, &entry);
    let live = Live::all(&run);
    let bytes = |which: &Which| {
        let before = disk.read_bytes();
        let rows = scan(&run, &live, Sequence::At, which, None, u64::MAX).len();
        (rows, disk.read_bytes() - before)
    };
    let (rows, all) = bytes(&Which::All);
    assert_eq!(rows, 3_999);
    for which in [Which::AllBut([queue(0)].into()), Which::One(queue(1))] {
        let (rows, read) = bytes(&which);
        assert_eq!(rows, 79);
        assert!(read < all / 10, "{read} of {all} bytes");
    }
}

/// A run of one message and one answer: for each block its kind, its entries and its payload.
const GOLDEN: [(u8, u32, &str); 17] = [
    // The message: length, queue, id, class and stage, due, died at, weight, key, then what the codec says.
    (1, 1, "1c 00 03 06 ac02 05 09 01 6b 1e 00 01 05 7472616365 01 78 02 0322 01 00 00 01 00"),
    // The answer: length, then as in a record.
    (2, 1, "21 07 71756575652d31 01 64 00000000000000000000000010000000 09 09 00 09 01 00 00"),
    // Leaves: least values, widths, entries.
    (3, 1, "0300000000000000 0800000000000000 00 00"),
    (
        4,
        2,
        "4ec758ea5b000000 0000000000000000 0800000000000000 06 08 01
            000000000000 0000000000000000 08  03554c933503 fcffffffffffffff 00",
    ),
    (5, 1, "0000000000000000 0000000000000000 0800000000000000 1000000000000000 00 00 00 00"),
    (7, 1, "0500000000000000 0300000000000000 0800000000000000 0000000000000000 00 00 00 00"),
    (8, 1, "0000000000000000 0500000000000000 0300000000000000 0800000000000000 00 00 00 00"),
    // Queues, spans.
    (16, 1, "07 71756575652d31 01 09"),
    (17, 1, "4000000000000000 0000000000000000 2c01000000000000 0300000000000000"),
    // Fences of ids, keys, spans of queues, leased, dead, dead of each queue.
    (
        18,
        1,
        "0300000000000000 0100000000000000 0001000000000000  c800000000000000
             0300000000000000 0800000000000000",
    ),
    (
        18,
        1,
        "0400000000000000 0200000000000000 6001000000000000  0001000000000000
             4ec758ea5b000000 0000000000000000 1000000000000000",
    ),
    (
        18,
        1,
        "0500000000000000 0100000000000000 a801000000000000  6001000000000000
             0000000000000000 0000000000000000 0800000000000000 1000000000000000",
    ),
    (18, 0, "0600000000000000 0000000000000000 a801000000000000"),
    (
        18,
        1,
        "0700000000000000 0100000000000000 f001000000000000  a801000000000000
             0500000000000000 0300000000000000 0800000000000000 0000000000000000",
    ),
    (
        18,
        1,
        "0800000000000000 0100000000000000 3802000000000000  f001000000000000
             0000000000000000 0500000000000000 0300000000000000 0800000000000000",
    ),
    // Filter, set of ids.
    (
        19,
        1,
        "0000000000000000  c15c0289ec2d0a91 04000000 03000000 04000000 0000000000000000
             0000ecc200000000000000000000000000000000683b0000",
    ),
    (20, 0, "0100000000000000 00000000 3a300000 01000000 00000000 10000000 0300"),
];

#[test]
fn the_bytes_of_a_run() {
    let mut model = Model::default();
    let stage = Stage::Dead { reason: DeadReason::Buried, at: Died::from_raw(5), token: None };
    model.rows.insert(MessageId(3), row(3, 1, Due::At(WallMs(300)), stage, Some("k"), 2));
    model.answers.push(answer(1, "d", 9));
    let (disk, entry) = written(&model, Shape::default());
    let bytes = disk.read(&entry.no.run());
    assert_eq!(
        bytes[..64],
        unhex(
            "6475657772756e66 01000000 8b62e9e3 0700000000000000 0777665544332211 6300000000000000
               000000000000000000000000000000000000000000000000"
        )
    );
    let footer = "6475657772756e65 8000000000000000 c800000000000000 3802000000000000 0100000000000000
                  0900000000000000 0100000000000000 0900000000000000 0100000000000000";
    let mut at = 64;
    for (kind, entries, payload) in GOLDEN.into_iter().chain([(21, 0, footer)]) {
        let mut block = vec![0; 4];
        let mut payload = unhex(payload);
        block.extend(u32::try_from(payload.len()).unwrap().to_le_bytes());
        block.extend([kind, 0, 0, 0]);
        block.extend(entries.to_le_bytes());
        block.extend(0x1122_3344_5566_7707_u64.to_le_bytes());
        block.extend((at as u64).to_le_bytes());
        block.append(&mut payload);
        block.resize(block.len().next_multiple_of(8), 0);
        let crc = crc32c::crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(bytes[at..at + block.len()], block, "the block of kind {kind} at {at}");
        at += block.len();
    }
    assert_eq!(at, bytes.len());
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let digit = |b: u8| u8::try_from(char::from(b).to_digit(16).unwrap()).unwrap();
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
