//! Merges against a model.

use std::collections::{BTreeMap, BTreeSet};

use duewheel_core::message::Row;
use duewheel_core::record::DedupeRow;
use proptest::prelude::*;

use super::*;
use crate::run::opened::Interner;
use crate::run::tests::mem_disk::MemDisk;
use crate::run::tests::model::{self, Model, queue};
use crate::run::tests::{hasher, open, write};
use crate::run::{Mask, verify};

/// The content of one run: its rows, and which of them are live (by position).
fn input() -> impl Strategy<Value = (Model, Vec<prop::sample::Index>)> {
    (model::strategy(40), proptest::collection::vec(any::<prop::sample::Index>(), 0..12))
}

fn all_rows(run: &Arc<Run>) -> BTreeMap<MessageId, Row> {
    let live = Arc::new(Live::all(run));
    let mut rows = BTreeMap::new();
    for sequence in [Sequence::AllAt, Sequence::AllAfter] {
        let mut scan = run.scan(&live, sequence, &Which::All, None, u64::MAX).unwrap();
        while let Some(raw) = scan.next().unwrap() {
            rows.insert(raw.id, run.decode(&raw).unwrap());
        }
    }
    rows
}

fn all_answers(run: &Arc<Run>) -> Vec<DedupeRow> {
    let mut scan = AnswerScan::new(Arc::clone(run));
    std::iter::from_fn(|| scan.next().unwrap()).map(|(_, row)| row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_merge_keeps_what_counts(
        inputs in proptest::collection::vec(input(), 1..5),
        shape in model::shapes(),
        budget in prop_oneof![Just(1u64), 1..5_000u64, Just(u64::MAX)],
        now in 0..1_000u64,
        purge in proptest::option::of((0..3u64, 0..300u64)),
        later in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let disk = Arc::new(MemDisk::default());
        let shared: Arc<dyn Disk> = disk.clone();
        let mut runs: Vec<(Arc<Run>, Live)> = Vec::new();
        let mut expected: BTreeMap<MessageId, Row> = BTreeMap::new();
        let mut answers: BTreeMap<(String, String), DedupeRow> = BTreeMap::new();
        for (no, (model, gone)) in (1..).zip(&inputs) {
            let run = open(&disk, &write(&disk, no, model, shape));
            let mut live = Live::all(&run);
            let ids: Vec<MessageId> = model.rows.keys().copied().collect();
            for gone in gone.iter().filter(|_| !ids.is_empty()) {
                live.remove(*gone.get(&ids));
            }
            // The newest version of an id counts.
            for id in ids {
                for (_, older) in &mut runs {
                    older.remove(id);
                }
            }
            runs.push((run, live));
            for answer in model.answers.iter().cloned() {
                answers.insert((answer.queue.to_string(), answer.dedupe_id.to_string()), answer);
            }
        }
        if let Some((of, before)) = purge {
            for (run, live) in &mut runs {
                if let Some(no) = run.queue_no(&queue(of)) {
                    live.mask(no, Mask { before: MessageId(before), keep: vec![MessageId(before / 2)] });
                }
            }
        }
        for ((run, live), (model, _)) in runs.iter().zip(&inputs) {
            for row in model.rows.values() {
                if live.has(row.message.id, run.queue_no(&row.message.queue).unwrap()) {
                    expected.insert(row.message.id, row.clone());
                }
            }
        }
        answers.retain(|_, answer| answer.until.0 > now);

        let began = runs.iter().map(|(run, live)| (run.clone(), Arc::new(live.clone()))).collect();
        let mut merge = Merge::new(&shared, FileNo(50), Incarnation(50), began, Vec::new(), EngineMs(now), hasher()).unwrap();
        merge.set_span(shape.span);
        let entry = loop {
            if let Some(entry) = merge.step(budget, &|_| true).unwrap() {
                break entry;
            }
        };
        drop(merge);
        prop_assert!(disk.names().iter().all(|name| name.ends_with(".run")), "{:?}", disk.names());
        let verified = verify(&*disk, &entry, hasher()).unwrap();
        prop_assert_eq!(verified.rows, expected.len() as u64);
        let run = Arc::new(Run::open(&*disk, &entry, hasher(), &Interner::default()).unwrap());
        prop_assert_eq!(all_rows(&run), expected.clone());
        let merged: BTreeMap<_, _> = all_answers(&run)
            .into_iter()
            .map(|answer| ((answer.queue.to_string(), answer.dedupe_id.to_string()), answer))
            .collect();
        prop_assert_eq!(verified.answers, answers.len() as u64);
        prop_assert_eq!(merged, answers);

        // What goes while it is merged, goes when it is installed.
        let ids: Vec<MessageId> = expected.keys().copied().collect();
        let gone: BTreeSet<MessageId> =
            later.iter().filter(|_| !ids.is_empty()).map(|later| *later.get(&ids)).collect();
        for (_, live) in &mut runs {
            for id in &gone {
                live.remove(*id);
            }
        }
        let now: Vec<(&Run, &Live, &Live)> = runs.iter().map(|(run, live)| (&**run, live, live)).collect();
        let live = Live::of_merged(&run, &now);
        for row in expected.values() {
            let no = run.queue_no(&row.message.queue).unwrap();
            prop_assert_eq!(live.has(row.message.id, no), !gone.contains(&row.message.id));
        }
    }
}

/// Story: an answer that was over stayed in each merge because an older run had one of the same id, which was over,
/// too. Such a run was rewritten again and again, and came out as it was.
#[test]
fn merge_drops_expired_answers_unless_shadowing() {
    let answer = |until| Model { answers: vec![model::answer(1, "d", until)], ..Model::default() };
    for (older_until, kept) in [(30, 1), (15, 0)] {
        let disk = Arc::new(MemDisk::default());
        let shared: Arc<dyn Disk> = disk.clone();
        let older = open(&disk, &write(&disk, 1, &answer(older_until), model::Shape::default()));
        let run = open(&disk, &write(&disk, 2, &answer(10), model::Shape::default()));
        let live = Arc::new(Live::all(&run));
        let mut merge = Merge::new(
            &shared,
            FileNo(50),
            Incarnation(50),
            vec![(run, live)],
            vec![older],
            EngineMs(20),
            hasher(),
        )
        .unwrap();
        let entry = loop {
            if let Some(entry) = merge.step(u64::MAX, &|_| true).unwrap() {
                break entry;
            }
        };
        let run = Arc::new(Run::open(&*disk, &entry, hasher(), &Interner::default()).unwrap());
        assert_eq!(all_answers(&run).len(), kept, "an older one until {older_until}");
    }
}

/// What is live in the output of a merge of two runs of one queue, with the ids 1 to 3 and 4 to 6: what a purge has kept of
/// each run when the merge begins, and when it ends.
fn live_after_a_merge(then: [Option<&[u64]>; 2], now: [Option<&[u64]>; 2]) -> Vec<u64> {
    let disk = Arc::new(MemDisk::default());
    let shared: Arc<dyn Disk> = disk.clone();
    let waiting = duewheel_core::message::Stage::Waiting { token: None };
    let runs: Vec<Arc<Run>> = [[1, 2, 3], [4, 5, 6]]
        .into_iter()
        .zip(1..)
        .map(|(ids, no)| {
            let row =
                |id| model::row(id, 0, duewheel_core::Due::After(EngineMs(id)), waiting.clone(), None, 5);
            let rows = ids.into_iter().map(|id| (MessageId(id), row(id))).collect();
            open(&disk, &write(&disk, no, &Model { rows, ..Model::default() }, Default::default()))
        })
        .collect();
    let purged = |kept: [Option<&[u64]>; 2]| -> Vec<Live> {
        let live = runs.iter().zip(kept).map(|(run, kept)| {
            let mut live = Live::all(run);
            if let Some(kept) = kept {
                let keep = kept.iter().copied().map(MessageId).collect();
                live.mask(run.queue_no(&queue(0)).unwrap(), Mask { before: MessageId(7), keep });
            }
            live
        });
        live.collect()
    };
    let (then, now) = (purged(then), purged(now));
    let began = runs.iter().zip(&then).map(|(run, live)| (run.clone(), Arc::new(live.clone()))).collect();
    let mut merge =
        Merge::new(&shared, FileNo(50), Incarnation(50), began, Vec::new(), EngineMs(0), hasher()).unwrap();
    let entry = loop {
        if let Some(entry) = merge.step(u64::MAX, &|_| true).unwrap() {
            break entry;
        }
    };
    let output = Run::open(&*disk, &entry, hasher(), &Interner::default()).unwrap();
    let inputs: Vec<_> =
        runs.iter().zip(then.iter().zip(&now)).map(|(run, (then, now))| (&**run, then, now)).collect();
    let merged = Live::of_merged(&output, &inputs);
    let Some(no) = output.queue_no(&queue(0)) else { return Vec::new() };
    (1..=6).filter(|id| merged.has(MessageId(*id), no)).collect()
}

/// Each run has the kept ids of its own rows alone. A purge that comes while two are merged keeps those of both.
#[test]
fn purge_during_merge_keeps_both_remainders() {
    assert_eq!(live_after_a_merge([None; 2], [Some(&[2]), Some(&[5])]), [2, 5]);
    assert_eq!(
        live_after_a_merge([Some(&[2]), Some(&[5])], [Some(&[2]), Some(&[5])]),
        [2, 5],
        "applied before"
    );
}

/// Another purge, before which nothing new was enqueued, takes what the first one kept of one run. What it keeps of the
/// other run is as before, and is kept all the same.
#[test]
fn second_purge_during_merge_keeps_remainder() {
    let first: [Option<&[u64]>; 2] = [Some(&[2]), Some(&[5])];
    assert_eq!(live_after_a_merge(first, [Some(&[]), Some(&[5])]), [5]);
    assert_eq!(live_after_a_merge(first, [Some(&[2]), Some(&[])]), [2]);
}
