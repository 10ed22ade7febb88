//! Occurrences of schedules that became due while their shard was closed.

use duewheel_core::engine::*;
use duewheel_core::id::MessageId;
use duewheel_core::message::State;
use duewheel_core::policy::{OWN_OCCURRENCE, Policy};
use duewheel_core::time::WallMs;

use crate::harness::*;

/// Puts an occurrence that is due so long after the start, in ms.
fn put(rig: &mut Rig, due: u64) -> MessageId {
    let dedupe_id = Some(format!("{OWN_OCCURRENCE}s/{due}/u.0").into());
    put_as(rig, due, dedupe_id)
}

fn put_as(rig: &mut Rig, due: u64, dedupe_id: Option<Box<str>>) -> MessageId {
    let when = When::At { due_at: WallMs(WALL + due), past: Past::Keep };
    let e = Enqueue { when, dedupe_id, ..Enqueue::new(queue("q"), "body") };
    match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(Ok(enqueued)) => enqueued.id,
        other => panic!("{other:?}"),
    }
}

fn state(rig: &mut Rig, id: MessageId) -> State {
    match rig.call(Op::Get { target: Target::Id(id) }) {
        Reply::View(Some(view)) => view.state,
        other => panic!("{other:?}"),
    }
}

fn granted(rig: &mut Rig) -> Vec<MessageId> {
    let mut ids: Vec<_> = rig.reserve("q", 99).iter().map(|grant| grant.message.id).collect();
    ids.sort_unstable();
    ids
}

/// The shard is closed from 20 s to 185 s after the start.
fn close_and_open(rig: &mut Rig) {
    rig.pass(20_000);
    rig.put("other", 0, None); // the last record: until then it was open
    rig.pass(165_000);
    rig.restart();
}

#[test]
fn occurrences_due_while_closed_are_withheld() {
    let mut rig = Rig::new(Policy::default());
    let ready = put(&mut rig, 10_000);
    let old = put(&mut rig, 40_000);
    let taken = put(&mut rig, 50_000);
    let on_time = put(&mut rig, 155_000);
    let plain = put_as(&mut rig, 40_000, None);
    close_and_open(&mut rig);
    assert_eq!(state(&mut rig, old), State::Scheduled);
    assert_eq!(state(&mut rig, ready), State::Ready);
    assert_eq!(granted(&mut rig), [ready, on_time, plain]);
    assert_eq!(state(&mut rig, old), State::Scheduled, "also when it is in memory");
    let edit = Box::new(Edit::due(When::After(60_000)));
    let later = Op::Postpone { target: Target::Id(taken), edit, if_generation: Some(1) };
    assert!(matches!(rig.call(later), Reply::Change(Ok(_))));
    let caught_up = put(&mut rig, 60_000);
    assert_eq!(granted(&mut rig), [caught_up], "what enters now is not withheld");
    rig.pass(4_999);
    assert_eq!(granted(&mut rig), []);
    // A consumer that waits is served when the time is over.
    let demand = rig.demand(&["q"], 9, 10_000);
    let to = rig.step(Op::Reserve(demand));
    rig.timeout();
    assert_eq!(rig.engine.next_wakeup(), Some(duewheel_core::time::EngineMs(rig.now.engine.0 + 1)));
    rig.pass(1);
    rig.timeout();
    let Some(Reply::Reserve(Reserved::Grants(grants))) = rig.reply(to) else { panic!("it is served") };
    assert_eq!(grants[0].message.id, old);
    rig.restart();
    rig.pass(60_000);
    assert_eq!(granted(&mut rig), [ready, old, taken, on_time, plain, caught_up], "their leases ran out");
}

/// Story: a scheduler that asked right after the opening heard that the message was ready, and counted it as entered.
#[test]
fn outline_shows_withheld_as_scheduled() {
    let mut rig = Rig::new(Policy::default());
    let (old, on_time) = (put(&mut rig, 40_000), put(&mut rig, 155_000));
    close_and_open(&mut rig);
    for (id, state) in [(old, State::Scheduled), (on_time, State::Ready)] {
        match rig.call(Op::Outline { id }) {
            Reply::Change(Ok(outline)) => assert_eq!(outline.what.state, state),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn withheld_occurrences_can_be_purged() {
    let mut rig = Rig::new(Policy::default());
    let old = put(&mut rig, 40_000);
    close_and_open(&mut rig);
    assert_eq!(granted(&mut rig), []);
    rig.call(Op::Purge { at_most: None, queue: queue("q") });
    assert!(matches!(rig.call(Op::Get { target: Target::Id(old) }), Reply::View(None)));
    rig.pass(5_000);
    assert_eq!(granted(&mut rig), []);
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!("a view") };
    assert!(views.iter().all(|view| !view.is_there()), "only its totals are left: {views:?}");
}
