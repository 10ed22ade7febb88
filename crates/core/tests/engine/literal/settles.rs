//! What a settlement says of the attempt, and what a repeated ack is told.

use duewheel_core::engine::*;
use duewheel_core::id::{LeaseToken, MessageId};
use duewheel_core::message::*;
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::store::Capacity;

use super::rig;
use crate::harness::*;

fn nack(id: MessageId, token: LeaseToken, attempt: Attempt) -> Op {
    Op::Nack { id, proof: token.into(), attempt, delay_ms: Some(0), priority: None, note: "".into() }
}

fn view(rig: &mut Rig, id: MessageId) -> View {
    match rig.call(Op::Get { target: Target::Id(id) }) {
        Reply::View(Some(view)) => *view,
        other => panic!("{other:?}"),
    }
}

fn attempts(max: u32) -> Enqueue {
    let options = Options { max_attempts: MaxAttempts::new(max), ..Options::default() };
    Enqueue { options, ..message("q", 0) }
}

#[test]
fn not_yet_forgives_attempt() {
    let mut rig = rig();
    rig.call(Op::Enqueue(Box::new(attempts(2))));
    let id = MessageId(1);
    for n in 1..=5 {
        let grant = rig.reserve("q", 1).remove(0);
        assert_eq!(grant.attempt, n, "grants are counted all the same");
        let said = rig.call(nack(id, grant.token, Attempt::NotYet));
        assert!(matches!(said, Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))), "{said:?}");
    }
    let now = view(&mut rig, id);
    assert_eq!((now.state, now.attempt, now.forgiven), (State::Ready, 5, 5));

    rig.restart();
    let grant = rig.reserve("q", 1).remove(0);
    assert!(matches!(
        rig.call(nack(id, grant.token, Attempt::Failed)),
        Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))
    ));
    let grant = rig.reserve("q", 1).remove(0);
    let last = rig.call(nack(id, grant.token, Attempt::Failed));
    assert_eq!(
        last,
        Reply::Settle(Ok(Settled::Dead(DeadReason::MaxAttempts).into())),
        "two that were not forgiven"
    );
    let now = view(&mut rig, id);
    assert_eq!((now.state, now.attempt, now.forgiven), (State::Dead, 7, 5));
}

fn failed_of(limit: u32) -> Attempt {
    Attempt::FailedOf(MaxAttempts::new(limit).expect("a limit"))
}

/// Story: a target with more attempts than its queue lost its messages at the limit of the queue.
#[test]
fn consumer_limit_may_exceed_queue_limit() {
    let mut rig = rig();
    let settings = QueueSettings { max_attempts: MaxAttempts::new(2), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    let id = rig.put("q", 0, None);
    for _ in 1..=3 {
        let grant = rig.reserve("q", 1).remove(0);
        let said = rig.call(nack(id, grant.token, failed_of(5)));
        assert!(matches!(said, Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))), "{said:?}");
    }
    assert_eq!(view(&mut rig, id).max_attempts, 5);
    // It holds for a lease that ends by itself, too, also behind a restart.
    rig.restart();
    assert_eq!(rig.reserve("q", 1)[0].attempt, 4);
    rig.pass(30_000);
    assert_eq!(view(&mut rig, id).state, State::Ready);
    let grant = rig.reserve("q", 1).remove(0);
    let last = rig.call(nack(id, grant.token, failed_of(5)));
    assert_eq!(last, Reply::Settle(Ok(Settled::Dead(DeadReason::MaxAttempts).into())));
    assert_eq!(view(&mut rig, id).attempt, 5);
}

#[test]
fn message_limit_overrides_consumer_limit() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(nack(id, grant.token, failed_of(2)));
    // The last attempt ends with its lease.
    rig.reserve("q", 1);
    rig.pass(30_000);
    assert_eq!((view(&mut rig, id).state, view(&mut rig, id).attempt), (State::Dead, 2));

    rig.call(Op::Enqueue(Box::new(attempts(3))));
    let id = MessageId(2);
    for n in 1..=3 {
        let grant = rig.reserve("q", 1).remove(0);
        assert_eq!(grant.attempt, n);
        rig.call(nack(id, grant.token, failed_of(if n == 1 { 1 } else { 9 })));
    }
    assert_eq!(view(&mut rig, id).state, State::Dead);
}

/// Story: the limit of a target was known when a failed attempt was returned. A crash in the very first attempt left that
/// of the queue: with 1 there the message was dead, and with 1 at the target it was attempted twice.
#[test]
fn consumer_limit_applies_from_grant() {
    for (of_queue, of_consumer, state) in [(1, 3, State::Ready), (9, 1, State::Dead)] {
        let mut rig = rig();
        let settings = QueueSettings { max_attempts: MaxAttempts::new(of_queue), ..QueueSettings::default() };
        rig.call(Op::Configure { queue: queue("q"), settings });
        let id = rig.put("q", 0, None);
        let own = attempts(2);
        rig.call(Op::Enqueue(Box::new(own)));
        let demand = Reserve { max_attempts: MaxAttempts::new(of_consumer), ..rig.demand(&["q"], 9, 0) };
        let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(demand)) else { panic!() };
        assert_eq!(grants.len(), 2);
        let granted = rig.call(Op::Queue { queue: queue("q") });
        let Reply::Queues(views) = granted else { panic!("{granted:?}") };
        assert_eq!(views[0].totals.granted, 2, "both forms of a grant count");
        assert_eq!(view(&mut rig, id).max_attempts, of_consumer);
        rig.restart();
        rig.pass(30_000);
        assert_eq!((view(&mut rig, id).state, view(&mut rig, id).attempt), (state, 1));
        // The message has the last word.
        let other = grants.iter().find(|grant| grant.message.id != id).expect("the other").message.id;
        assert_eq!((view(&mut rig, other).state, view(&mut rig, other).max_attempts), (State::Ready, 2));
    }
}

#[test]
fn next_failed_nack_replaces_consumer_limit() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    for attempt in [failed_of(3), Attempt::NotYet] {
        let grant = rig.reserve("q", 1).remove(0);
        rig.call(nack(id, grant.token, attempt));
        assert_eq!(view(&mut rig, id).max_attempts, 3, "{attempt:?}");
    }
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(nack(id, grant.token, Attempt::Failed));
    assert_eq!(view(&mut rig, id).max_attempts, 20);
}

#[test]
fn late_not_yet_forgives_attempt() {
    let mut rig = rig();
    rig.call(Op::Enqueue(Box::new(attempts(2))));
    let id = MessageId(1);
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    assert_eq!(view(&mut rig, id).forgiven, 0);
    let said = rig.call(nack(id, grant.token, Attempt::NotYet));
    assert!(matches!(said, Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))), "{said:?}");
    let again = rig.call(nack(id, grant.token, Attempt::NotYet));
    assert_eq!(again, Reply::Settle(Err(SettleRefusal::LeaseLost)), "once");
    let now = view(&mut rig, id);
    assert_eq!((now.attempt, now.forgiven), (1, 1));
}

#[test]
fn not_yet_backoff_does_not_grow() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    for _ in 0..6 {
        let grant = rig.reserve("q", 1).remove(0);
        let op = Op::Nack {
            id,
            proof: grant.token.into(),
            attempt: Attempt::NotYet,
            delay_ms: None,
            priority: None,
            note: "".into(),
        };
        let Reply::Settle(Ok(Applied { what: Settled::Again(due), .. })) = rig.call(op) else { panic!() };
        let waits = due.0 - rig.now.wall.0;
        assert!((1_000..1_500).contains(&waits), "as after the first attempt: {waits}");
        rig.pass(waits);
    }
}

#[test]
fn repeated_ack_is_answered_already_done() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    let ack = || Op::Ack { id, proof: grant.token.into(), result: None };
    let already = Reply::Settle(Ok(Settled::Already { queue: queue("q") }.into()));
    let lost = Reply::Settle(Err(SettleRefusal::LeaseLost));
    assert_eq!(rig.call(ack()), Reply::Settle(Ok(Settled::Acked.into())));
    assert_eq!(rig.call(ack()), already);
    assert_eq!(rig.call(ack()), already, "as often as it is asked");
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!((stats.lease_lost, stats.totals.acked), (0, 1), "it was not lost, and acked once");

    let other = LeaseToken { counter: grant.token.counter + 1, ..grant.token };
    assert_eq!(rig.call(Op::Ack { id, proof: other.into(), result: None }), lost, "another token");
    assert_eq!(rig.call(nack(id, grant.token, Attempt::Failed)), lost, "it cannot come again");
    rig.pass(299_999);
    assert_eq!(rig.call(ack()), already);
    rig.pass(1);
    assert_eq!(rig.call(ack()), lost, "five minutes later");
}

#[test]
fn remembered_acks_are_bounded() {
    let mut rig = Rig::new(Policy { max_acked: 2, ..Policy::default() });
    for _ in 0..4 {
        rig.put("q", 0, None);
    }
    let grants = rig.reserve("q", 4);
    let ack = |grant: &Grant| Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None };
    for grant in &grants {
        assert_eq!(rig.call(ack(grant)), Reply::Settle(Ok(Settled::Acked.into())));
    }
    let is_known = |rig: &mut Rig, grant: &Grant| {
        matches!(rig.call(ack(grant)), Reply::Settle(Ok(Applied { what: Settled::Already { .. }, .. })))
    };
    let known: Vec<bool> = grants.iter().map(|grant| is_known(&mut rig, grant)).collect();
    assert_eq!(known, [false, false, true, true], "the last two");
    rig.restart();
    assert!(!is_known(&mut rig, &grants[3]), "a restart forgets");
}

#[test]
fn late_ack_of_cancelled_is_lost() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    assert!(matches!(
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(id) }),
        Reply::Change(Ok(_))
    ));
    let ack = Op::Ack { id, proof: grant.token.into(), result: None };
    assert_eq!(rig.call(ack), Reply::Settle(Err(SettleRefusal::LeaseLost)));
}

/// A message of one attempt, dead because its lease ran out, and its token. `restart`: the engine is a new one.
fn lapsed(rig: &mut Rig, restart: bool) -> (MessageId, LeaseToken) {
    rig.call(Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), ..attempts(1) })));
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    rig.timeout();
    if restart {
        rig.restart();
    }
    assert_eq!(view(rig, grant.message.id).state, State::Dead);
    (grant.message.id, grant.token)
}

/// Story: `max_attempts: 1`, and an ack half a second late: 409, although no other consumer had the message since. It was dead, and a
/// redrive repeated finished work.
#[test]
fn late_settles_of_the_last_attempt_are_taken() {
    for restart in [false, true] {
        let mut rig = rig();
        rig.put("q", 900_000_000, None); // the queue keeps its totals
        let (id, token) = lapsed(&mut rig, restart);
        // The dead hold no keys: another one has it.
        rig.put("q", 60_000, Some("k"));
        let extend = rig.call(Op::Extend { id, proof: token.into(), lease_ms: None });
        assert_eq!(extend, Reply::Extend(Err(SettleRefusal::LeaseLost)));
        let other = LeaseToken { counter: token.counter + 1, ..token };
        let lost = Reply::Settle(Err(SettleRefusal::LeaseLost));
        assert_eq!(rig.call(Op::Ack { id, proof: other.into(), result: None }), lost);
        let ack = || Op::Ack { id, proof: token.into(), result: None };
        assert_eq!(rig.call(ack()), Reply::Settle(Ok(Settled::Acked.into())));
        assert_eq!(rig.call(ack()), Reply::Settle(Ok(Settled::Already { queue: queue("q") }.into())));
        let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
        assert_eq!((views[0].counts.dead, views[0].totals.died, views[0].totals.acked), (0, 1, 1));

        let (id, token) = lapsed_again(&mut rig, restart);
        let dead = |reason| Reply::Settle(Ok(Settled::Dead(reason).into()));
        let died = view(&mut rig, id).dead;
        let said = Op::Nack {
            id,
            proof: token.into(),
            attempt: Attempt::Failed,
            delay_ms: None,
            priority: None,
            note: "why".into(),
        };
        assert_eq!(rig.call(said), dead(DeadReason::MaxAttempts));
        let now = view(&mut rig, id);
        assert_eq!((now.dead, &*now.history.last().unwrap().note), (died, "why"));
        assert_eq!(rig.call(ack_of(id, token)), lost, "once");

        let (id, token) = lapsed_again(&mut rig, restart);
        let bury = Op::Bury { id, proof: token.into(), priority: None, note: "no".into() };
        assert_eq!(rig.call(bury), dead(DeadReason::Buried));
        assert_eq!(view(&mut rig, id).dead.map(|(reason, _)| reason), Some(DeadReason::Buried));
        let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
        assert_eq!(views[0].totals.died, 3, "each died once");
    }
}

fn lapsed_again(rig: &mut Rig, restart: bool) -> (MessageId, LeaseToken) {
    rig.call(Op::Cancel {
        keep: None,
        dedupe_id: DedupeId::Stays,
        target: Target::Key(queue("q"), key("k")),
    });
    lapsed(rig, restart)
}

fn ack_of(id: MessageId, token: LeaseToken) -> Op {
    Op::Ack { id, proof: token.into(), result: None }
}

#[test]
fn late_not_yet_revives_unless_the_key_went() {
    let mut rig = rig();
    let (id, token) = lapsed(&mut rig, true);
    let other = rig.put("q", 60_000, Some("k"));
    let taken =
        Reply::Settle(Err(SettleRefusal::KeyExists(KeyHolder { id: other, state: State::Scheduled })));
    assert_eq!(rig.call(nack(id, token, Attempt::NotYet)), taken);
    assert_eq!((view(&mut rig, id).state, view(&mut rig, id).forgiven), (State::Dead, 0));
    rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(other) });
    let again = rig.call(nack(id, token, Attempt::NotYet));
    assert!(matches!(again, Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))), "{again:?}");
    assert_eq!((view(&mut rig, id).state, view(&mut rig, id).forgiven), (State::Ready, 1));
    assert_eq!(rig.call(ack_of(id, token)), Reply::Settle(Err(SettleRefusal::LeaseLost)));
}

#[test]
fn redriving_spends_the_token_of_the_last_lease() {
    let mut rig = rig();
    let (id, token) = lapsed(&mut rig, false);
    rig.call(Op::Redrive { id, delay_ms: None, died: None });
    assert_eq!(rig.call(ack_of(id, token)), Reply::Settle(Err(SettleRefusal::LeaseLost)));
}

/// A settlement replaces the detail in its own record. A full store, and a detail that is too large, leave the former one.
#[test]
fn settlement_replaces_detail_of_message() {
    let mut rig = rig();
    rig.call(Op::Enqueue(Box::new(attempts(9))));
    let id = MessageId(1);
    let nack = |rig: &mut Rig, detail: &[u8]| {
        let grant = rig.reserve("q", 1).remove(0);
        let nack = Op::nack(id, grant.token, Attempt::Failed, Some(0), "");
        assert!(matches!(rig.call(nack.with_detail(Some(detail.into())).into_op()), Reply::Settle(Ok(_))));
        view(rig, id).detail.as_deref().map(<[u8]>::to_vec)
    };
    let bytes = |rig: &mut Rig| match rig.call(Op::Stats) {
        Reply::Stats(stats) => stats.bytes,
        other => panic!("{other:?}"),
    };
    let body = bytes(&mut rig);
    assert_eq!(view(&mut rig, id).detail, None);
    assert_eq!(nack(&mut rig, b"first"), Some(b"first".to_vec()));
    assert_eq!(nack(&mut rig, b"the second"), Some(b"the second".to_vec()));
    assert_eq!(bytes(&mut rig), body + 10, "it counts in the bytes of its message");
    rig.restart();
    assert_eq!(
        (view(&mut rig, id).detail.as_deref(), bytes(&mut rig)),
        (Some(&b"the second"[..]), body + 10)
    );
    assert_eq!(nack(&mut rig, &vec![0; Policy::default().max_detail + 1]), Some(b"the second".to_vec()));
    let room = |rig: &mut Rig, room| {
        let mut fx = Effects::new();
        rig.engine.handle(rig.now, Input::Room(room), &mut fx);
        rig.absorb(fx);
    };
    room(&mut rig, Capacity::SettleOnly);
    assert_eq!(nack(&mut rig, b"the third"), Some(b"the second".to_vec()));
    room(&mut rig, Capacity::Enough);
    // A consumer that brings none, and a lease that runs out, leave it.
    let grant = rig.reserve("q", 1).remove(0);
    assert!(matches!(rig.call(self::nack(id, grant.token, Attempt::NotYet)), Reply::Settle(Ok(_))));
    rig.reserve("q", 1);
    rig.pass(60_000);
    rig.timeout();
    assert_eq!(view(&mut rig, id).detail.as_deref(), Some(&b"the second"[..]));
    let grant = rig.reserve("q", 1).remove(0);
    let bury = Op::bury(id, grant.token, "").with_detail(Some((*b"the end").into())).into_op();
    assert!(matches!(rig.call(bury), Reply::Settle(Ok(_))));
    assert_eq!((view(&mut rig, id).detail.as_deref(), bytes(&mut rig)), (Some(&b"the end"[..]), body + 7));
    rig.call(Op::redrive(id).into_op());
    assert_eq!(view(&mut rig, id).detail.as_deref(), Some(&b"the end"[..]));
    rig.call(Op::cancel(Target::Id(id)).into_op());
    assert_eq!(bytes(&mut rig), 0, "and goes with it");
}
