//! What a change gives a waiting message, and what it leaves.

use duewheel_core::engine::*;
use duewheel_core::id::MessageId;
use duewheel_core::message::*;
use duewheel_core::policy::Policy;
use duewheel_core::store::Capacity;
use duewheel_core::time::WallMs;

use super::rig;
use crate::harness::*;

fn edit(rig: &mut Rig, id: MessageId, edit: Edit) -> Result<View, ChangeRefusal> {
    let op = Op::Postpone { target: Target::Id(id), edit: Box::new(edit), if_generation: None };
    match rig.call(op) {
        Reply::Change(result) => result?,
        other => panic!("{other:?}"),
    };
    let Reply::View(Some(view)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
    Ok(*view)
}

fn body(text: &'static str) -> Edit {
    Edit { body: Some(text.into()), ..Edit::default() }
}

/// Story: a change of the body alone was refused with the advice to say `delay_ms: 0`, which had a message of 48 hours
/// come at once.
#[test]
fn body_edit_keeps_due_time() {
    let mut rig = rig();
    let after = rig.put("q", 1_000, None);
    let at =
        Enqueue { when: When::At { due_at: WallMs(WALL + 1_000), past: Past::Refuse }, ..message("q", 0) };
    rig.call(Op::Enqueue(Box::new(at)));
    let at = MessageId(2);
    for id in [after, at] {
        let view = edit(&mut rig, id, body("new")).unwrap();
        assert_eq!((view.due_at, view.due_in_ms, view.delay_ms), (WallMs(WALL + 1_000), 1_000, 1_000));
        assert_eq!((view.generation, view.state, &view.message.body[..]), (2, State::Scheduled, &b"new"[..]));
    }
    rig.restart();
    // The wall clock is set forward: only what is due at an instant follows it.
    rig.now.wall.0 += 1_000;
    let ready: Vec<MessageId> = rig.reserve("q", 10).iter().map(|grant| grant.message.id).collect();
    assert_eq!(ready, [at]);
    rig.pass(1_000);
    assert_eq!(rig.reserve("q", 10)[0].message.id, after);
}

#[test]
fn a_ready_message_stays_ready() {
    let mut rig = rig();
    let id = rig.put("q", 10, None);
    rig.pass(20);
    let view = edit(&mut rig, id, body("new")).unwrap();
    assert_eq!((view.state, view.due_at), (State::Ready, WallMs(WALL + 10)));
    let grant = rig.reserve("q", 1).remove(0);
    assert_eq!((&grant.message.body[..], grant.generation, grant.lateness_ms), (&b"new"[..], 2, 10));
}

#[test]
fn each_part_by_itself() {
    let mut rig = rig();
    let headers: Headers = vec![("a".into(), "1".into()), ("b".into(), "2".into())];
    let options = Options { lease_ms: Some(5_000), max_attempts: MaxAttempts::new(3), ..Options::default() };
    let e = Enqueue { headers: headers.clone(), options, priority: Some(7), ..message("q", 1_000) };
    rig.call(Op::Enqueue(Box::new(e)));
    let id = MessageId(1);
    let as_it_is = |view: &View| {
        let message = &view.message;
        (message.body.clone(), message.headers.clone(), view.priority, view.max_attempts, view.lease_ms)
    };
    let other: Headers = vec![("c".into(), "3".into())];
    let said = edit(&mut rig, id, Edit { headers: Some(other.clone()), ..Edit::default() }).unwrap();
    assert_eq!(as_it_is(&said), ("body".into(), other, 7, 3, 5_000), "all headers are others");
    let said = edit(&mut rig, id, Edit { headers: Some(vec![]), ..Edit::default() }).unwrap();
    assert_eq!(as_it_is(&said), ("body".into(), vec![], 7, 3, 5_000));
    let said = edit(&mut rig, id, Edit { priority: Some(0), ..Edit::default() }).unwrap();
    assert_eq!(as_it_is(&said), ("body".into(), vec![], 0, 3, 5_000));
    let said = edit(&mut rig, id, Edit { max_attempts: MaxAttempts::new(9), ..Edit::default() }).unwrap();
    assert_eq!(as_it_is(&said), ("body".into(), vec![], 0, 9, 5_000));
    let said = edit(&mut rig, id, Edit { lease_ms: Some(60_000), ..Edit::default() }).unwrap();
    assert_eq!(as_it_is(&said), ("body".into(), vec![], 0, 9, 60_000));
    assert_eq!((said.generation, said.due_in_ms), (6, 1_000), "each is a change");
    rig.restart();
    let Reply::View(Some(kept)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
    assert_eq!(as_it_is(&kept), as_it_is(&said));
}

#[test]
fn edited_message_refuses_expired_lease_ack() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    assert_eq!(edit(&mut rig, id, body("new")), Err(ChangeRefusal::Leased));
    rig.pass(30_000);
    edit(&mut rig, id, body("new")).unwrap();
    let ack = Op::Ack { id, proof: grant.token.into(), result: None };
    assert_eq!(rig.call(ack), Reply::Settle(Err(SettleRefusal::LeaseLost)));
    let grant = rig.reserve("q", 1).remove(0);
    let bury = Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() };
    rig.call(bury);
    assert_eq!(edit(&mut rig, id, body("newer")), Err(ChangeRefusal::Dead));
}

/// Story: a job that removes or redrives dead messages did so, too, with those that were redriven after it had seen them.
#[test]
fn changes_of_dead_require_seen_death() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let bury = |rig: &mut Rig| {
        let grant = rig.reserve("q", 1).remove(0);
        rig.call(Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() });
        let Reply::View(Some(view)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
        view.dead.expect("dead").1
    };
    let remove = |rig: &mut Rig, id, died| match rig.call(Op::RemoveDead { keep: None, id, died }) {
        Reply::Change(reply) => reply.map(|was| (was.what.id, was.what.state)),
        other => panic!("{other:?}"),
    };
    let first = bury(&mut rig);
    assert_eq!(remove(&mut rig, MessageId(999), first), Err(ChangeRefusal::NotFound));
    let redrive = |rig: &mut Rig, died| match rig.call(Op::Redrive { id, delay_ms: None, died: Some(died) }) {
        Reply::Change(reply) => reply.map(|now| now.what.state),
        other => panic!("{other:?}"),
    };
    assert_eq!(redrive(&mut rig, first), Ok(State::Ready));
    assert_eq!(remove(&mut rig, id, first), Err(ChangeRefusal::NotDead), "ready");
    rig.pass(1);
    let second = bury(&mut rig);
    assert_eq!(remove(&mut rig, id, first), Err(ChangeRefusal::NotDead), "another death");
    assert_eq!(redrive(&mut rig, first), Err(ChangeRefusal::NotDead), "another death");
    rig.restart();
    assert_eq!(remove(&mut rig, id, second), Ok((id, State::Dead)));
    assert_eq!(remove(&mut rig, id, second), Err(ChangeRefusal::NotFound));
}

/// Story: a full disk refused to postpone and to fire messages, which writes no more than a nack.
#[test]
fn full_disk_refuses_only_new_content() {
    let mut rig = rig();
    let [soon, late, other] = [1_000, 2_000, 3_000].map(|delay| rig.put("q", delay, None));
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::SettleOnly), &mut fx);
    assert!(edit(&mut rig, soon, Edit::due(When::After(5_000))).is_ok());
    assert!(edit(&mut rig, late, Edit { priority: Some(1), ..Edit::default() }).is_ok());
    assert!(matches!(rig.call(Op::Fire { target: Target::Id(other) }), Reply::Change(Ok(_))));
    assert_eq!(edit(&mut rig, soon, body("new")), Err(ChangeRefusal::DiskFull));
    let both = Edit { body: Some("new".into()), ..Edit::due(When::After(1)) };
    assert_eq!(edit(&mut rig, soon, both), Err(ChangeRefusal::DiskFull));
    assert_eq!(rig.reserve("q", 9).iter().map(|grant| grant.message.id).collect::<Vec<_>>(), [other]);
    rig.pass(2_000);
    assert_eq!(rig.reserve("q", 9)[0].message.id, late);
    rig.pass(2_999);
    assert!(rig.reserve("q", 9).is_empty());
    rig.pass(1);
    assert_eq!(rig.reserve("q", 9)[0].message.id, soon);
}

#[test]
fn refusals_change_nothing() {
    let mut rig =
        Rig::new(Policy { max_body: 4, max_headers: 4, max_message_bytes: 10, ..Policy::default() });
    let id = rig.put("q", 1_000, None);
    let headers = |value: &str| Edit { headers: Some(vec![("h".into(), value.into())]), ..Edit::default() };
    assert_eq!(edit(&mut rig, id, Edit::default()), Err(ChangeRefusal::NothingToChange));
    assert_eq!(edit(&mut rig, id, body("12345")), Err(ChangeRefusal::TooLarge(RefusedPart::Body, 4)));
    assert_eq!(edit(&mut rig, id, headers("1234")), Err(ChangeRefusal::TooLarge(RefusedPart::Headers, 4)));
    let lease = |ms| Edit { lease_ms: Some(ms), ..Edit::default() };
    assert_eq!(edit(&mut rig, id, lease(0)), Err(ChangeRefusal::OutOfRange(RefusedPart::Lease)));
    assert_eq!(edit(&mut rig, id, lease(u64::MAX)), Err(ChangeRefusal::OutOfRange(RefusedPart::Lease)));
    rig.put("q", 1_000, None);
    let over = Err(ChangeRefusal::Overloaded(Limit::Bytes(10)));
    assert_eq!(edit(&mut rig, id, headers("123")), over, "over the bytes of all");
    rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(MessageId(2)) });
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::SettleOnly), &mut fx);
    assert_eq!(edit(&mut rig, id, headers("1")), Err(ChangeRefusal::DiskFull));
    rig.engine.handle(rig.now, Input::Room(Capacity::Enough), &mut fx);
    let view = edit(&mut rig, id, headers("123")).unwrap();
    assert_eq!((view.generation, view.message.weight()), (2, 8));
}
