//! Reserves: who is served with what, who waits, and for how long.

use duewheel_core::engine::*;
use duewheel_core::id::{MessageId, SessionId};
use duewheel_core::message::{MaxAttempts, State};
use duewheel_core::policy::{QueueSettings, ReadyOrder};
use duewheel_core::store::Capacity;
use duewheel_core::time::{EngineMs, Now, Partial, WallMs};

use super::{durable, rig};
use crate::harness::*;

#[test]
fn longest_waiting_reserve_is_served_first() {
    let mut rig = rig();
    let (first, second) = (rig.demand(&["a", "b"], 2, 1_000), rig.demand(&["b"], 9, 1_000));
    let (to_first, fx) = rig.raw(Op::Reserve(first));
    assert_eq!(fx, []);
    let (to_second, _) = rig.raw(Op::Reserve(second));
    for _ in 0..3 {
        rig.raw(Op::Enqueue(Box::new(message("b", 0))));
    }
    assert_eq!(rig.engine.next_wakeup(), Some(rig.now.engine), "there is something to do at once");
    rig.timeout();
    let ids = |reply: Option<Reply>| match reply {
        Some(Reply::Reserve(Reserved::Grants(g))) => g.iter().map(|g| g.message.id.0).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(ids(rig.reply(to_first)), [1, 2]);
    assert_eq!(ids(rig.reply(to_second)), [3]);
}

#[test]
fn notification_reserve_takes_no_message() {
    let mut rig = rig();
    let told = Reply::Reserve(Reserved::Grants(vec![]));
    let (asks, takes) = (rig.demand(&["a", "b"], 0, 1_000), rig.demand(&["b"], 9, 1_000));
    let (to_asks, fx) = rig.raw(Op::Reserve(asks));
    assert_eq!(fx, []);
    let (to_takes, _) = rig.raw(Op::Reserve(takes));
    rig.call(Op::Pause { queue: queue("b"), for_ms: None });
    rig.put("b", 0, None);
    assert_eq!(rig.reply(to_asks), None, "a queue that is paused has nothing to give");
    rig.call(Op::Resume { queue: queue("b") });
    assert_eq!(rig.reply(to_asks), Some(told.clone()));
    assert!(matches!(rig.reply(to_takes), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
    let mut again = rig.demand(&["b"], 0, 50);
    let (to, _) = rig.raw(Op::Reserve(again.clone()));
    rig.pass(50);
    rig.timeout();
    assert_eq!(rig.reply(to), Some(told.clone()), "its wait is over");
    rig.put("b", 0, None);
    again.waiter = WaiterId(99);
    let (_, fx) = rig.raw(Op::Reserve(again));
    assert_eq!(fx.len(), 1, "there is something already, and no record is written: {fx:?}");
    assert_eq!(rig.reserve("b", 1)[0].attempt, 1);
}

#[test]
fn wait_ends_empty_or_by_cancel() {
    let mut rig = rig();
    let demand = rig.demand(&["q"], 1, 50);
    let (to, _) = rig.raw(Op::Reserve(demand));
    assert_eq!(rig.engine.next_wakeup(), Some(EngineMs(50)));
    rig.pass(50);
    let fx = rig.timeout();
    let empty = Reply::Reserve(Reserved::Grants(vec![]));
    assert_eq!(fx, [Effect::Respond { to, reply: empty.clone(), after: durable(0) }]);

    let demand = rig.demand(&["q"], 1, 50);
    let name = demand.waiter;
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.call(Op::CancelReserve { waiter: name });
    assert_eq!(rig.reply(to), Some(empty));
    rig.put("q", 0, None);
    assert_eq!(rig.reserve("q", 1).len(), 1, "nobody waits who might take it");
    assert_eq!(rig.call(Op::Queues { after: None, limit: 9 }), rig.call(Op::Queue { queue: queue("q") }));
}

#[test]
fn deadline_soon_precedes_own_lease_end() {
    let mut rig = rig();
    rig.put("q", 0, None);
    let own = |rig: &mut Rig, wait| Reserve {
        session: SessionId(5),
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: Some(1_000),
        ..rig.demand(&["q"], 1, wait)
    };
    let demand = own(&mut rig, 0);
    rig.call(Op::Reserve(demand));
    let demand = own(&mut rig, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.pass(28_999);
    rig.timeout();
    assert_eq!(rig.reply(to), None);
    rig.pass(1);
    rig.timeout();
    assert_eq!(rig.reply(to), Some(Reply::Reserve(Reserved::DeadlineSoon)));
    let demand = own(&mut rig, 60_000);
    assert_eq!(
        rig.call(Op::Reserve(demand)),
        Reply::Reserve(Reserved::DeadlineSoon),
        "and at once from then on"
    );
}

#[test]
fn ready_order_follows_priority_then_due() {
    let mut rig = rig();
    let put = |rig: &mut Rig, delay, priority| {
        let e = Enqueue { priority, ..message("q", delay) };
        rig.call(Op::Enqueue(Box::new(e)));
    };
    put(&mut rig, 20, None); // 1
    put(&mut rig, 10, None); // 2
    put(&mut rig, 10, None); // 3
    put(&mut rig, 30, Some(5)); // 4
    rig.pass(30);
    let ids: Vec<_> = rig.reserve("q", 9).iter().map(|g| g.message.id.0).collect();
    assert_eq!(ids, [4, 2, 3, 1]);

    let settings = QueueSettings { order: Some(ReadyOrder::Arrival), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    let past = |n| When::At { due_at: WallMs(n), past: Past::Fire };
    for n in [500, 100, 300] {
        rig.call(Op::Enqueue(Box::new(Enqueue { when: past(n), ..message("q", 0) })));
    }
    let ids: Vec<_> = rig.reserve("q", 9).iter().map(|g| g.message.id.0).collect();
    assert_eq!(ids, [5, 6, 7]);
}

#[test]
fn reserve_takes_best_of_several_queues() {
    let mut rig = rig();
    for (name, priority) in [("a", 5), ("b", 3), ("a", 4)] {
        rig.call(Op::Enqueue(Box::new(Enqueue { priority: Some(priority), ..message(name, 0) })));
    }
    let demand = rig.demand(&["a", "b", "nothing"], 9, 0);
    let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(demand)) else { panic!() };
    let ids: Vec<_> = grants.iter().map(|g| g.message.id.0).collect();
    assert_eq!(ids, [2, 3, 1]);
}

#[test]
fn reserve_keeps_to_queue_maximum() {
    let mut rig = rig();
    for (name, priority) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5), ("a", 6), ("b", 7)] {
        rig.call(Op::Enqueue(Box::new(Enqueue { priority: Some(priority), ..message(name, 0) })));
    }
    let granted = |rig: &mut Rig, max, max_of: &[(&str, usize)]| {
        let max_of = max_of.iter().map(|(name, max)| (queue(name), *max)).collect();
        let demand = Reserve { max_of, ..rig.demand(&["a", "b"], max, 0) };
        let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(demand)) else { panic!() };
        let ids: Vec<_> = grants.iter().map(|g| g.message.id.0).collect();
        for grant in &grants {
            let (attempt, delay_ms) = (Attempt::NotYet, Some(0));
            let (id, proof) = (grant.message.id, grant.token.into());
            rig.call(Op::Nack { id, proof, attempt, delay_ms, priority: None, note: "".into() });
        }
        ids
    };
    assert_eq!(granted(&mut rig, 9, &[]), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(granted(&mut rig, 9, &[("a", 2)]), [1, 2, 4, 5, 7]);
    assert_eq!(granted(&mut rig, 3, &[("a", 2)]), [1, 2, 4]);
    assert_eq!(granted(&mut rig, 9, &[("a", 1), ("b", 2)]), [1, 4, 5]);
    assert_eq!(granted(&mut rig, 9, &[("a", 1), ("b", 9), ("nothing", 1)]), [1, 4, 5, 7]);
    // Other orders: the remaining queue is in order of arrival.
    let settings = QueueSettings { order: Some(ReadyOrder::Arrival), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("b"), settings });
    assert_eq!(granted(&mut rig, 9, &[("a", 1)]), [1, 4, 5, 7]);

    // The numbers hold for a reserve that has waited, too.
    rig.call(Op::Purge { at_most: None, queue: queue("a") });
    rig.call(Op::Purge { at_most: None, queue: queue("b") });
    let waits = Reserve { max_of: vec![(queue("a"), 1)], ..rig.demand(&["a", "b"], 9, 1_000) };
    let (to, _) = rig.raw(Op::Reserve(waits));
    for name in ["a", "a", "b"] {
        rig.raw(Op::Enqueue(Box::new(message(name, 0))));
    }
    rig.timeout();
    let Some(Reply::Reserve(Reserved::Grants(grants))) = rig.reply(to) else { panic!() };
    assert_eq!(grants.iter().map(|grant| grant.message.id.0).collect::<Vec<_>>(), [8, 10]);
}

#[test]
fn reserve_one_takes_scheduled_message() {
    let mut rig = rig();
    let id = rig.put("q", 60_000, None);
    let one = |id| Op::ReserveOne { id, session: SessionId(3), lease_ms: Some(100) };
    assert!(matches!(rig.call(one(id)), Reply::ReserveOne(Ok(g)) if g.attempt == 1 && g.lease_ms == 100));
    assert_eq!(rig.call(one(id)), Reply::ReserveOne(Err(ChangeRefusal::Leased)));
    assert_eq!(rig.call(one(MessageId(9))), Reply::ReserveOne(Err(ChangeRefusal::NotFound)));
}

#[test]
fn empty_reserve_blocks_no_other() {
    let mut rig = rig();
    let demand = rig.demand(&["q"], 0, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.put("q", 0, None);
    assert!(rig.reply(to).is_some(), "it counts as one");
}

#[test]
fn reserve_one_redrives_with_free_key() {
    let mut rig = rig();
    let id = rig.put("q", 0, Some("k"));
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() });
    let other = rig.put("q", 60_000, Some("k"));
    let one = || Op::ReserveOne { id, session: SessionId::NONE, lease_ms: None };
    assert_eq!(
        rig.call(one()),
        Reply::ReserveOne(Err(ChangeRefusal::KeyExists(KeyHolder { id: other, state: State::Scheduled })))
    );
    rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(other) });
    assert!(matches!(rig.call(one()), Reply::ReserveOne(Ok(grant)) if grant.attempt == 2));
}

/// Story: a connection broke while it reserved a message by its id that was due in two days: any consumer had it at once.
/// A buried one was ready again, with its attempts forgiven.
#[test]
fn undelivered_reserve_one_changes_nothing() {
    for state in [State::Scheduled, State::Dead] {
        let mut rig = rig();
        let id = rig.put("q", if state == State::Dead { 0 } else { 172_800_000 }, None);
        if state == State::Dead {
            let grant = rig.reserve("q", 1).remove(0);
            rig.call(Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() });
        }
        let look = |rig: &mut Rig| match rig.call(Op::Get { target: Target::Id(id) }) {
            Reply::View(Some(view)) => *view,
            other => panic!("{other:?}"),
        };
        let before = look(&mut rig);
        assert_eq!(before.state, state);
        let one = Op::ReserveOne { id, session: SessionId::NONE, lease_ms: None };
        let Reply::ReserveOne(Ok(grant)) = rig.call(one) else { panic!() };
        rig.pass(10);
        rig.call(Op::Undelivered { leases: vec![(id, grant.token)] });
        let after = look(&mut rig);
        assert_eq!(
            (after.state, after.attempt, after.forgiven, after.dead, after.due_at, &after.marks),
            (state, before.attempt, before.forgiven, before.dead, before.due_at, &before.marks)
        );
        assert!(rig.reserve("q", 1).is_empty(), "{state:?}");
        let late = rig.call(Op::Ack { id, proof: grant.token.into(), result: None });
        assert_eq!(late, Reply::Settle(Err(SettleRefusal::LeaseLost)));
    }
}

/// The limit of a consumer that is gone does not hold for the next one, and the holder of a lease that ran out may still
/// settle.
#[test]
fn undelivered_grant_leaves_limit_and_token() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let first = rig.reserve("q", 1).remove(0);
    rig.pass(first.lease_ms);
    let demand = Reserve { max_attempts: MaxAttempts::new(1), ..rig.demand(&["q"], 1, 0) };
    let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(demand)) else { panic!() };
    rig.call(Op::Undelivered { leases: vec![(id, grants[0].token)] });
    let Reply::View(Some(view)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
    assert_eq!((view.state, view.attempt, view.marks.limit), (State::Ready, 1, None));
    let acked = rig.call(Op::Ack { id, proof: first.token.into(), result: None });
    assert!(matches!(acked, Reply::Settle(Ok(_))), "{acked:?}");
}

#[test]
fn order_change_applies_to_ready_messages() {
    let mut rig = rig();
    let first = rig.put("q", 0, None);
    rig.call(Op::Enqueue(Box::new(Enqueue { priority: Some(500), ..message("q", 0) })));
    let settings = QueueSettings { priority: Some(1), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    assert_eq!(rig.reserve("q", 1)[0].message.id, first);
}

/// Story: a connection reserved a job with a TTR of 1 s, whose last second begins at once, and reserved again within
/// the same millisecond: it was told that there is nothing, not that the end is near. The deadline is rounded up, so
/// the present has to be, too.
#[test]
fn short_lease_is_immediately_near_end() {
    let mut rig = rig();
    rig.put("q", 0, None);
    rig.now = Now { partial: Partial::Cut, ..rig.now };
    let session = SessionId(5);
    let demand = |rig: &mut Rig| Reserve {
        lease_ms: Some(1_000),
        session,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: Some(1_000),
        ..rig.demand(&["q"], 1, 0)
    };
    let first = demand(&mut rig);
    assert!(
        matches!(rig.call(Op::Reserve(first)), Reply::Reserve(Reserved::Grants(grants)) if grants.len() == 1)
    );
    let second = demand(&mut rig);
    assert_eq!(rig.call(Op::Reserve(second)), Reply::Reserve(Reserved::DeadlineSoon));
    assert_eq!(rig.call(Op::SessionDeadline { session }), Reply::Deadline(Some(1_000)));
}

/// Story: the room of the store was only kept. A reserve that waited while the store took removals alone was not served
/// when there was room again, before something else became ready in its queue.
#[test]
fn waiting_reserve_is_served_after_recovery() {
    let mut rig = rig();
    rig.put("q", 1_000, None);
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::RemoveOnly), &mut fx);
    let demand = rig.demand(&["q"], 1, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.pass(1_000);
    assert_eq!(rig.reply(to), None, "a grant is a record, too");
    rig.engine.handle(rig.now, Input::Room(Capacity::Enough), &mut fx);
    rig.timeout();
    let reply = rig.reply(to);
    assert!(
        matches!(&reply, Some(Reply::Reserve(Reserved::Grants(grants))) if grants.len() == 1),
        "{reply:?}"
    );
}
