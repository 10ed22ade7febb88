//! Runs against a model, against damage, and against the bytes drawn in `docs/format.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{DeadReason, Ended, Lease, Life, Message, Options, PastAttempt, Row, Stage};
use duewheel_core::record::{Created, DedupeRow};
use duewheel_core::store::Cursor;
use duewheel_core::time::Class;
use duewheel_core::{Due, EngineMs, Key, Lsn, MessageId, QueueName, WallMs};
use proptest::prelude::*;

use super::hash;
use super::live::Mask;
use super::writer::SPAN;
use duewheel_core::store::{Sequence, Which};

use super::{KeyLookup, Live, Run, RunWriter, verify};
use crate::disk::Disk;
use crate::fault::Trouble;
use crate::folder::{FileNo, Incarnation};
use crate::manifest::RunEntry;
use crate::names::Interner;

pub(crate) mod mem_disk;
pub(crate) mod model;

use mem_disk::MemDisk;
use model::{Model, Shape, answer, no_messages, queue, row};

const ALL: [Sequence; 6] =
    [Sequence::At, Sequence::After, Sequence::Leased, Sequence::Dead, Sequence::AllAt, Sequence::AllAfter];

/// A disk with one run of these rows and answers.
pub(crate) fn written(model: &Model, shape: Shape) -> (Arc<MemDisk>, RunEntry) {
    let disk = Arc::new(MemDisk::default());
    let entry = write(&disk, 7, model, shape);
    (disk, entry)
}

pub(crate) fn write(disk: &Arc<MemDisk>, no: u64, model: &Model, shape: Shape) -> RunEntry {
    let disk: Arc<dyn Disk> = disk.clone();
    let mut writer =
        RunWriter::create(&disk, FileNo(no), Incarnation(0x1122_3344_5566_7700 + no), Lsn(99)).unwrap();
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
    Arc::new(Run::open(&**disk, entry, &mut Interner::default()).unwrap())
}

#[test]
fn an_empty_run_is_whole() {
    let (disk, entry) = written(&Model::default(), Shape::default());
    assert_eq!(disk.names(), ["runs/0000000007.run"]);
    let run = open(&disk, &entry);
    assert_eq!((run.rows(), run.answers(), run.queues().len()), (0, 0, 0));
    assert!(no_messages(&run));
    assert_eq!(verify(&*disk, &entry).unwrap().rows, 0);
}

/// Compares everything that can be asked with the model.
fn compare(run: &Arc<Run>, model: &Model, live: &Live) {
    let all: Vec<MessageId> = model.rows.keys().copied().collect();
    let mut found = Vec::new();
    let asked: Vec<MessageId> =
        all.iter().flat_map(|id| [*id, MessageId(id.0 + 1)]).collect::<BTreeSet<_>>().into_iter().collect();
    run.find_ids(&asked, &mut found).unwrap();
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
        let hash = hash::answer(&answer.queue, &answer.dedupe_id);
        assert_eq!(run.find_answer(hash, &answer.queue, &answer.dedupe_id).unwrap().as_ref(), Some(answer));
        assert_eq!(run.find_answer(hash, &answer.queue, "another").unwrap(), None);
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
        by_key.keys().map(|(queue, key)| KeyLookup { hash: hash::key(queue, key), queue, key }).collect();
    for dead in [0, 2, 8] {
        let mut found = Vec::new();
        run.find_keys(&lookups, live, dead, &mut found).unwrap();
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
        assert_eq!(
            (raw.id, raw.due, raw.weight),
            (row.message.id, row.life.due, row.message.weight() as u64)
        );
        rows.push((Model::place(sequence, &row), row));
    }
    assert!(scan.next().unwrap().is_none(), "the end stays the end");
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_run_says_what_the_model_says(
        model in model::strategy(60),
        shape in model::shapes(),
        gone in proptest::collection::vec(any::<proptest::sample::Index>(), 0..20),
        purge in proptest::option::of((0..3u64, any::<proptest::sample::Index>())),
    ) {
        let (disk, entry) = written(&model, shape);
        let run = open(&disk, &entry);
        let verified = verify(&*disk, &entry).unwrap();
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
