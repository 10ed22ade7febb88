//! Rows of an outbox: each is applied once, however often its drain is killed before the delete of the row is confirmed.

use std::collections::BTreeMap;

use duewheel_core::engine::*;
use duewheel_core::policy::{OWN_DEDUPE_WINDOW_MS, Policy};
use duewheel_core::record::Record;
use duewheel_core::store::Capacity;
use duewheel_core::time::WallMs;
use duewheel_core::{Key, QueueName};

use crate::harness::*;

const MINUTE: u64 = 60_000;
const FAR: u64 = 1_000_000;

fn source() -> QueueName {
    QueueName::system("#outbox/orders").unwrap()
}

fn row(id: u64) -> SourceRow {
    SourceRow { source: source(), id: id.to_string().into() }
}

fn target(name: &str) -> Target {
    Target::Key(queue("q"), key(name))
}

fn put(name: &str, body: u64, if_exists: IfExists) -> Op {
    let when = When::At { due_at: WallMs(WALL + FAR + body), past: Past::Fire };
    let body = body.to_string();
    Op::Enqueue(Box::new(Enqueue { key: Some(key(name)), when, if_exists, ..Enqueue::new(queue("q"), body) }))
}

fn cancel(name: &str) -> Op {
    Op::cancel(target(name)).into_op()
}

fn confirm(rig: &mut Rig, rows: &[u64]) -> u64 {
    let rows = rows.iter().map(|id| id.to_string().into()).collect();
    match rig.call(Op::confirm(source(), rows).into_op()) {
        Reply::Count(count) => count.what,
        other => panic!("{other:?}"),
    }
}

/// The messages by key: body, due time, generation.
fn state(rig: &mut Rig) -> BTreeMap<Option<Key>, (Vec<u8>, u64, u32)> {
    let list = Op::List { queue: queue("q"), state: None, after: None, limit: 100, from: None };
    let Reply::Page(page) = rig.call(list) else { panic!() };
    let all = page
        .views
        .iter()
        .map(|view| (view.message.key.clone(), (view.message.body.to_vec(), view.due_at.0, view.generation)));
    all.collect()
}

fn body_of(rig: &mut Rig, name: &str) -> Option<Vec<u8>> {
    state(rig).get(&Some(key(name))).map(|(body, ..)| body.clone())
}

const APPLIED: Reply = Reply::Recorded(RowOutcome::Applied);

fn refused(refusal: RowRefusal) -> Reply {
    Reply::Recorded(RowOutcome::Refused(refusal))
}

/// The rows of the issue: applied again, the second would cancel the message of the third.
#[test]
fn replayed_cancel_leaves_later_message() {
    let mut rig = Rig::new(Policy::default());
    let rows = [put("k", 1, IfExists::Reject), cancel("k"), put("k", 3, IfExists::Reject)];
    for (id, op) in (1..).zip(rows.clone()) {
        assert!(matches!(rig.call(op.once(row(id))), Reply::Enqueue(Ok(_)) | Reply::Change(Ok(_))));
    }
    rig.restart();
    for (id, op) in (1..).zip(rows) {
        let last = rig.engine.last_lsn();
        assert_eq!(rig.call(op.once(row(id))), APPLIED);
        assert_eq!(rig.engine.last_lsn(), last, "a replay writes nothing");
    }
    assert_eq!(body_of(&mut rig, "k"), Some(b"3".to_vec()));
}

#[test]
fn outcomes_without_effect_are_recorded() {
    let mut rig = Rig::new(Policy { max_body: 5, ..Policy::default() });
    assert_eq!(rig.call(cancel("k").once(row(1))), Reply::Change(Err(ChangeRefusal::NotFound)));
    rig.call(put("k", 2, IfExists::Reject).once(row(2)));
    assert_eq!(rig.call(cancel("k").once(row(1))), APPLIED, "it does not cancel what came after it");
    assert_eq!(body_of(&mut rig, "k"), Some(b"2".to_vec()));

    let twice = put("k", 3, IfExists::Reject).once(row(3));
    assert!(matches!(rig.call(twice.clone()), Reply::Enqueue(Err(EnqueueRefusal::KeyExists(_)))));
    let large = put("l", 123_456, IfExists::Reject).once(row(4));
    assert!(matches!(rig.call(large.clone()), Reply::Enqueue(Err(EnqueueRefusal::TooLarge(..)))));
    let nothing = Op::postpone(target("k"), Box::default(), None).once(row(5));
    assert_eq!(rig.call(nothing.clone()), Reply::Change(Err(ChangeRefusal::NothingToChange)));
    rig.call(cancel("k"));
    rig.restart();
    for (op, refusal) in
        [(twice, RowRefusal::KeyExists), (large, RowRefusal::BodyTooLarge), (nothing, RowRefusal::BadRequest)]
    {
        assert_eq!(rig.call(op), refused(refusal), "although the key is free now");
    }
}

#[test]
fn passing_refusals_are_not_recorded() {
    let mut rig = Rig::new(Policy { max_messages: 1, ..Policy::default() });
    rig.put("q", FAR, Some("k"));
    let more = put("l", 1, IfExists::Reject).once(row(1));
    assert!(matches!(rig.call(more.clone()), Reply::Enqueue(Err(EnqueueRefusal::Overloaded(_)))));
    let room = |rig: &mut Rig, room| {
        let mut fx = Effects::new();
        rig.engine.handle(rig.now, Input::Room(room), &mut fx);
        rig.absorb(fx);
    };
    room(&mut rig, Capacity::SettleOnly);
    let free = cancel("k").once(row(2));
    assert_eq!(rig.call(free.clone()), Reply::Change(Err(ChangeRefusal::DiskFull)), "its record needs room");
    assert_eq!(rig.call(more.clone()), Reply::Enqueue(Err(EnqueueRefusal::DiskFull)));
    assert_eq!(rig.engine.last_lsn(), rig.table.applied());
    room(&mut rig, Capacity::Enough);
    assert!(matches!(rig.call(free), Reply::Change(Ok(_))));
    assert!(matches!(rig.call(more.clone()), Reply::Enqueue(Ok(_))));
    assert_eq!(rig.call(more), APPLIED);
}

/// Story: a move into another queue that was repeated did not learn whether it had removed the message itself, or a cancel.
#[test]
fn removal_for_a_move_is_recorded() {
    let mut rig = Rig::new(Policy::default());
    let mut dead = || {
        let e = Enqueue { begins: InitialState::Dead, ..Enqueue::new(queue("q"), "x") };
        let Reply::Enqueue(Ok(put)) = rig.call(Op::Enqueue(Box::new(e))) else { panic!() };
        put.id
    };
    let (moved, cancelled) = (dead(), dead());
    let died = WallMs(rig.now.wall.0);
    let removal = |id, died, of| Op::remove_dead(id, died, None).once(row(of));
    let refused = |refusal| Reply::Change(Err(refusal));
    let early = WallMs(died.0 - 1);
    assert_eq!(rig.call(removal(moved, early, 1)), refused(ChangeRefusal::NotDead));
    assert!(matches!(rig.call(removal(moved, died, 1)), Reply::Change(Ok(_))), "no refusal was recorded");
    rig.call(Op::cancel(Target::Id(cancelled)).into_op());
    for _ in 0..2 {
        rig.restart();
        assert_eq!(rig.call(removal(moved, died, 1)), APPLIED);
        assert_eq!(rig.call(removal(moved, died, 2)), refused(ChangeRefusal::NotFound), "another move");
        assert_eq!(rig.call(removal(cancelled, died, 3)), refused(ChangeRefusal::NotFound));
    }
    rig.pass(OWN_DEDUPE_WINDOW_MS);
    assert_eq!(rig.call(removal(moved, died, 1)), refused(ChangeRefusal::NotFound), "its record has an end");
}

#[test]
fn row_is_recorded_beside_its_effect() {
    let mut rig = Rig::new(Policy::default());
    let (_, effects) = rig.raw(put("k", 1, IfExists::Reject).once(row(1)));
    let [Effect::Append(Record::Put { .. }), Effect::Append(Record::Deduped(of)), Effect::Respond { .. }] =
        &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((&of.queue, &*of.dedupe_id, of.position), (&source(), "1", None));
}

#[test]
fn confirmed_row_is_forgotten_after_minutes() {
    let mut rig = Rig::new(Policy::default());
    let rows = [put("k", 1, IfExists::Reject).once(row(1)), cancel("l").once(row(2))];
    rows.iter().for_each(|op| drop(rig.call(op.clone())));
    rig.pass(400 * 86_400_000);
    rig.restart();
    assert_eq!(rows.clone().map(|op| rig.call(op)), [APPLIED, APPLIED], "a delete may take a year");
    assert_eq!(confirm(&mut rig, &[1, 3]), 1);
    assert_eq!(confirm(&mut rig, &[1]), 0, "once");
    rig.pass(5 * MINUTE - 1_000);
    assert_eq!(rows.clone().map(|op| rig.call(op)), [APPLIED, APPLIED], "one may still be under way");
    rig.pass(1_000);
    let [first, second] = rows.map(|op| rig.call(op));
    assert_eq!(second, APPLIED);
    assert!(matches!(first, Reply::Enqueue(_)), "{first:?}");
}

/// The records are the server's own.
#[test]
fn recorded_rows_count_in_no_limit() {
    let mut rig = Rig::new(Policy { max_answers: 1, max_queues: 1, ..Policy::default() });
    for id in 0..100 {
        rig.call(put("k", id, IfExists::Replace).once(row(id)));
    }
    assert_eq!(rig.engine.answer_counts(), AnswerCounts::default());
    let Reply::Queues(queues) = rig.call(Op::Queues { after: None, limit: 10 }) else { panic!() };
    assert_eq!(queues.len(), 1);
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.counts.scheduled, 1);
    rig.call(Op::Purge { queue: queue("q"), at_most: None });
    assert_eq!(rig.call(put("k", 0, IfExists::Replace).once(row(0))), APPLIED, "a purge forgets no row");
}

/// A row, drawn from a seed: mostly of few keys, so that rows depend on those before.
fn drawn(rng: &mut Rng, id: u64) -> Op {
    let name = ["a", "b", "c"][rng.below(3) as usize];
    match rng.below(10) {
        0..=4 => {
            let all = [IfExists::Reject, IfExists::Keep, IfExists::Replace];
            put(name, id, all[rng.below(3) as usize])
        }
        5..=7 => cancel(name),
        _ => {
            let when = When::At { due_at: WallMs(WALL + 2 * FAR + rng.below(FAR)), past: Past::Fire };
            Op::postpone(target(name), Box::new(Edit::due(when)), None).into_op()
        }
    }
}

/// A drain that is killed now and then, and another engine in which each row is applied once: both have the same messages.
fn killed_drain_leaves_state_of_once(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let (mut rig, mut plain) = (Rig::new(Policy::default()), Rig::new(Policy::default()));
    let mut next = 0;
    for _ in 0..12 {
        let batch: Vec<(u64, Op)> = (0..1 + rng.below(8))
            .map(|_| {
                next += 1;
                (next, drawn(&mut rng, next))
            })
            .collect();
        batch.iter().for_each(|(_, op)| drop(plain.call(op.clone())));
        loop {
            // It is killed behind any of its rows, or before the confirmation, and then begins anew.
            let until = rng.below(2 * batch.len() as u64 + 1) as usize;
            for (id, op) in batch.iter().take(until) {
                rig.call(op.clone().once(row(*id)));
            }
            if until >= batch.len() && rng.chance(50) {
                break;
            }
            if rng.chance(50) {
                rig.restart();
            }
        }
        confirm(&mut rig, &batch.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        assert_eq!(state(&mut rig), state(&mut plain), "seed {seed}");
    }
}

#[test]
fn killed_drains_apply_each_row_once() {
    (1..300).for_each(killed_drain_leaves_state_of_once);
}

#[cfg(feature = "mutants")]
#[test]
fn killed_drains_find_cancel_applied_again() {
    use duewheel_core::mutant::{Mutant, choose};
    choose(Some(Mutant::OnlyEnqueuesRecorded));
    let found =
        (1..300).find(|&seed| std::panic::catch_unwind(|| killed_drain_leaves_state_of_once(seed)).is_err());
    choose(None);
    assert!(found.is_some());
}
