//! Messages that expire, and due times that are drawn from a spread.

use duewheel_core::engine::*;
use duewheel_core::id::{MessageId, SessionId};
use duewheel_core::message::{DeadReason, Expiry, Options, State};
use duewheel_core::policy::{OnExpiry, Policy, QueueSettings};
use duewheel_core::random::{SpreadBy, offset_ms};
use duewheel_core::time::WallMs;

use crate::harness::*;

fn on_expiry(rig: &mut Rig, name: &str, what: OnExpiry) {
    let settings = QueueSettings { on_expiry: Some(what), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue(name), settings });
}

fn expiring(name: &str, delay_ms: u64, expiry: Expiry) -> Enqueue {
    Enqueue { options: Options { expiry: Some(expiry), ..Options::default() }, ..message(name, delay_ms) }
}

fn spread(name: &str, spread_ms: u64) -> Enqueue {
    Enqueue { options: Options { spread_ms: Some(spread_ms), ..Options::default() }, ..message(name, 1_000) }
}

fn put_one(rig: &mut Rig, e: Enqueue) -> MessageId {
    match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(Ok(done)) => done.id,
        other => panic!("{other:?}"),
    }
}

fn refusal(rig: &mut Rig, e: Enqueue) -> EnqueueRefusal {
    match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(Err(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn view(rig: &mut Rig, id: MessageId) -> Option<View> {
    match rig.call(Op::Get { target: Target::Id(id) }) {
        Reply::View(view) => view.map(|view| *view),
        other => panic!("{other:?}"),
    }
}

fn nack(rig: &mut Rig, grant: &Grant, delay_ms: u64) {
    let (id, proof) = (grant.message.id, grant.token.into());
    let nacked = rig.call(Op::Nack {
        id,
        proof,
        attempt: Attempt::Failed,
        delay_ms: Some(delay_ms),
        priority: None,
        note: "".into(),
    });
    assert!(matches!(nacked, Reply::Settle(Ok(_))), "{nacked:?}");
}

fn postpone(rig: &mut Rig, id: MessageId, delay_ms: u64) -> Reply {
    let edit = Box::new(Edit::due(When::After(delay_ms)));
    rig.call(Op::Postpone { target: Target::Id(id), edit, if_generation: None })
}

/// Story: only those that were dropped were counted.
#[test]
fn expired_outcomes_are_counted() {
    let mut rig = Rig::new(Policy::default());
    for (name, what, count) in
        [("a", OnExpiry::DeliverLate, 1), ("b", OnExpiry::Dead, 2), ("c", OnExpiry::Drop, 3)]
    {
        on_expiry(&mut rig, name, what);
        for _ in 0..count {
            put_one(&mut rig, expiring(name, 0, Expiry::In(10)));
        }
    }
    rig.pass(100);
    let mut counts = Vec::new();
    for name in ["a", "b", "c"] {
        assert_eq!(rig.reserve(name, 9).len(), usize::from(name == "a"));
        let Reply::Queues(queues) = rig.call(Op::Queue { queue: queue(name) }) else { panic!() };
        counts.push((queues[0].expired.late, queues[0].expired.dead, queues[0].totals.expired));
    }
    assert_eq!(counts, [(1, 0, 0), (0, 2, 0), (0, 0, 3)]);
    assert_eq!(rig.engine.expired_counts(), ExpiredCounts { late: 1, dead: 2 });
}

#[test]
fn expired_message_is_granted_as_late() {
    let mut rig = Rig::new(Policy::default());
    let id = put_one(&mut rig, expiring("q", 1_000, Expiry::In(500)));
    assert_eq!(view(&mut rig, id).unwrap().expires_at, Some(WallMs(WALL + 1_500)));
    rig.pass(1_500);
    rig.timeout();
    let grant = rig.reserve("q", 1).pop().unwrap();
    assert!(!grant.late, "at the instant itself it is not");
    nack(&mut rig, &grant, 0);
    rig.pass(1);
    rig.timeout();
    let grant = rig.reserve("q", 1).pop().unwrap();
    assert!(grant.late, "a retry does not move it");
}

#[test]
fn expired_message_is_dead_and_redrivable() {
    for expiry in [Expiry::In(10), Expiry::At(WallMs(WALL + 10))] {
        let mut rig = Rig::new(Policy::default());
        on_expiry(&mut rig, "q", OnExpiry::Dead);
        let e = Enqueue { key: Some(key("k")), ..expiring("q", 0, expiry) };
        let id = put_one(&mut rig, e);
        rig.pass(11);
        rig.timeout();
        assert_eq!(view(&mut rig, id).unwrap().state, State::Ready, "nobody has asked for it yet");
        assert_eq!(rig.reserve("q", 9).len(), 0);
        let dead = view(&mut rig, id).unwrap();
        assert_eq!(dead.dead, Some((DeadReason::Expired, WallMs(WALL + 11))));
        assert_eq!((dead.attempt, dead.state), (0, State::Dead), "it used up no attempt");
        assert!(matches!(rig.call(Op::Redrive { id, delay_ms: None, died: None }), Reply::Change(Ok(_))));
        rig.restart();
        let grant = rig.reserve("q", 1).pop().expect("who redrives it wants it");
        assert_eq!(grant.message.id, id);
        // Its key was free while it was dead, and is its own again.
        let other = Enqueue { key: Some(key("k")), ..message("q", 0) };
        assert_eq!(
            refusal(&mut rig, other),
            EnqueueRefusal::KeyExists(KeyHolder { id, state: State::Leased })
        );
    }
}

#[test]
fn dropped_expired_message_frees_its_key() {
    let mut rig = Rig::new(Policy::default());
    on_expiry(&mut rig, "q", OnExpiry::Drop);
    let id = put_one(&mut rig, Enqueue { key: Some(key("k")), ..expiring("q", 0, Expiry::In(10)) });
    rig.pass(11);
    rig.timeout();
    assert_eq!(rig.reserve("q", 9).len(), 0);
    assert_eq!(view(&mut rig, id), None);
    let Reply::Queues(queues) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!((queues[0].totals.expired, queues[0].counts.ready), (1, 0));
    put_one(&mut rig, Enqueue { key: Some(key("k")), ..message("q", 0) });
    assert_eq!(rig.reserve("q", 9).len(), 1);
}

#[test]
fn expiry_never_ends_leases() {
    let mut rig = Rig::new(Policy::default());
    on_expiry(&mut rig, "q", OnExpiry::Drop);
    let id = put_one(&mut rig, expiring("q", 0, Expiry::In(10)));
    let grant = rig.reserve("q", 1).pop().unwrap();
    rig.pass(10_000);
    rig.timeout();
    assert_eq!(view(&mut rig, id).unwrap().state, State::Leased);
    let acked = rig.call(Op::Ack { id, proof: grant.token.into(), result: None });
    assert!(matches!(acked, Reply::Settle(Ok(_))), "{acked:?}");

    let id = put_one(&mut rig, expiring("q", 0, Expiry::In(10)));
    let grant = rig.reserve("q", 1).pop().unwrap();
    rig.pass(11);
    nack(&mut rig, &grant, 0);
    assert_eq!(rig.reserve("q", 1).len(), 0, "after a nack its queue's setting applies");
    assert_eq!(view(&mut rig, id), None);
}

#[test]
fn queue_expiry_applies_by_default() {
    let mut rig = Rig::new(Policy::default());
    let own = put_one(&mut rig, expiring("q", 0, Expiry::In(1_000)));
    let other = put_one(&mut rig, message("q", 0));
    let settings = QueueSettings {
        expires_in_ms: Some(50),
        on_expiry: Some(OnExpiry::Dead),
        ..QueueSettings::default()
    };
    rig.call(Op::Configure { queue: queue("q"), settings });
    rig.pass(51);
    rig.timeout();
    let grants = rig.reserve("q", 9);
    assert_eq!(grants.iter().map(|grant| grant.message.id).collect::<Vec<_>>(), [own]);
    assert_eq!(view(&mut rig, other).unwrap().dead.map(|(reason, _)| reason), Some(DeadReason::Expired));
}

#[test]
fn postpone_moves_only_relative_expiry() {
    let mut rig = Rig::new(Policy::default());
    let id = put_one(&mut rig, expiring("q", 1_000, Expiry::In(500)));
    assert!(matches!(postpone(&mut rig, id, 5_000), Reply::Change(Ok(_))));
    assert_eq!(view(&mut rig, id).unwrap().expires_at, Some(WallMs(WALL + 5_500)));
    let id = put_one(&mut rig, expiring("q", 1_000, Expiry::At(WallMs(WALL + 2_000))));
    assert!(matches!(postpone(&mut rig, id, 2_000), Reply::Change(Ok(_))));
    let refused = Reply::Change(Err(ChangeRefusal::OutOfRange(RefusedPart::ExpiresAt)));
    assert_eq!(postpone(&mut rig, id, 2_001), refused, "it would expire before it is due");
    let fire = rig.call(Op::Fire { target: Target::Id(id) });
    assert!(matches!(fire, Reply::Change(Ok(_))));
    assert_eq!(view(&mut rig, id).unwrap().expires_at, Some(WallMs(WALL + 2_000)));
}

/// Story: a bulk shift, and `past: "fire"`, kept the instant that had passed. The expiry counted from it, so a message with
/// `expires_in` was dropped instead of granted.
#[test]
fn fired_is_due_now_and_kept_expires() {
    let day = 86_400_000;
    let past = |past| When::At { due_at: WallMs(WALL - day), past };
    let expiring_in = |past_word| Enqueue { when: past(past_word), ..expiring("q", 0, Expiry::In(6_000)) };
    let mut rig = Rig::new(Policy::default());
    on_expiry(&mut rig, "q", OnExpiry::Drop);
    let fired = put_one(&mut rig, expiring_in(Past::Fire));
    let kept = put_one(&mut rig, expiring_in(Past::Keep));
    let moved = put_one(&mut rig, expiring("q", 1_000, Expiry::In(6_000)));
    let edit = Box::new(Edit::due(past(Past::Fire)));
    rig.call(Op::Postpone { target: Target::Id(moved), edit, if_generation: None });
    for id in [fired, moved] {
        let view = view(&mut rig, id).unwrap();
        assert_eq!((view.due_at, view.expires_at), (WallMs(WALL), Some(WallMs(WALL + 6_000))));
    }
    assert_eq!(view(&mut rig, kept).unwrap().due_at, WallMs(WALL - day));
    rig.timeout();
    let grants = rig.reserve("q", 9);
    assert_eq!(grants.iter().map(|grant| grant.message.id).collect::<Vec<_>>(), [fired, moved]);
    assert!(grants.iter().all(|grant| grant.due_at == WallMs(WALL) && !grant.late), "{grants:?}");
    assert_eq!(view(&mut rig, kept), None, "its expiry is nominal");
}

#[test]
fn an_expiry_that_has_passed_is_refused() {
    let mut rig = Rig::new(Policy::default());
    let at = |past, ms| Enqueue {
        when: When::At { due_at: WallMs(WALL - 1_000), past },
        ..expiring("q", 0, Expiry::At(WallMs(WALL - ms)))
    };
    assert_eq!(refusal(&mut rig, at(Past::Fire, 1)), EnqueueRefusal::Expired);
    assert_eq!(refusal(&mut rig, expiring("q", 9, Expiry::At(WallMs(WALL - 1)))), EnqueueRefusal::Expired);
    put_one(&mut rig, at(Past::Keep, 1));
    let before_due = EnqueueRefusal::OutOfRange(RefusedPart::ExpiresAt);
    assert_eq!(refusal(&mut rig, at(Past::Keep, 1_001)), before_due);
    // A fire asks for it again, whatever its instant.
    let id = put_one(&mut rig, expiring("q", 1_000, Expiry::At(WallMs(WALL + 1_500))));
    rig.pass(2_000);
    let edit = Box::new(Edit::due(When::At { due_at: WallMs(0), past: Past::Fire }));
    let fired = rig.call(Op::Postpone { target: Target::Id(id), edit, if_generation: None });
    assert!(matches!(fired, Reply::Change(Ok(_))), "{fired:?}");
    rig.timeout();
    assert!(rig.reserve("q", 2).iter().any(|grant| grant.message.id == id && !grant.late));
}

/// Found by the simulation: the due time of a delay was compared with the instant of the expiry by the wall clock as it
/// is at the grant. After a step, or a few ms of slew, it lay behind the instant, which then did not count any more.
#[test]
fn expiry_instant_survives_wall_step() {
    for step in [2, 3_600_000] {
        let mut rig = Rig::new(Policy::default());
        put_one(&mut rig, expiring("q", 1_000, Expiry::At(WallMs(WALL + 1_001))));
        rig.pass(1_000);
        rig.now.wall = WallMs(rig.now.wall.0 + step);
        rig.pass(1_000);
        rig.timeout();
        assert!(rig.reserve("q", 1).pop().unwrap().late, "a step of {step} ms");
    }
}

#[test]
fn message_due_after_expiry_stays_alive() {
    let instant = || Expiry::At(WallMs(WALL + 1_500));
    let mut rig = Rig::new(Policy::default());
    on_expiry(&mut rig, "q", OnExpiry::Dead);
    // A redrive.
    let id = put_one(&mut rig, expiring("q", 1_000, instant()));
    rig.pass(2_000);
    rig.timeout();
    assert!(rig.reserve("q", 1).is_empty());
    assert_eq!(view(&mut rig, id).unwrap().state, State::Dead);
    assert!(matches!(rig.call(Op::Redrive { id, delay_ms: None, died: None }), Reply::Change(Ok(_))));
    let grant = rig.reserve("q", 1).pop().expect("it was asked for");
    // Nor after it was returned.
    nack(&mut rig, &grant, 100);
    rig.pass(100);
    rig.timeout();
    assert!(!rig.reserve("q", 1).pop().expect("again").late);
    // A retry that is fired.
    let mut rig = Rig::new(Policy::default());
    on_expiry(&mut rig, "q", OnExpiry::Dead);
    let id = put_one(&mut rig, expiring("q", 1_000, instant()));
    rig.pass(1_000);
    rig.timeout();
    let grant = rig.reserve("q", 1).pop().unwrap();
    nack(&mut rig, &grant, 60_000);
    rig.pass(1_000);
    assert!(matches!(rig.call(Op::Fire { target: Target::Id(id) }), Reply::Change(Ok(_))));
    rig.timeout();
    assert!(!rig.reserve("q", 1).pop().expect("fired").late);
}

#[test]
fn invalid_expiry_or_spread_is_refused() {
    let mut rig = Rig::new(Policy::default());
    let max = rig.policy.max_delay_ms;
    let out = EnqueueRefusal::OutOfRange;
    assert_eq!(refusal(&mut rig, expiring("q", 0, Expiry::In(0))), out(RefusedPart::ExpiresIn));
    assert_eq!(refusal(&mut rig, expiring("q", 0, Expiry::In(max + 1))), out(RefusedPart::ExpiresIn));
    let early = Expiry::At(WallMs(WALL + 999));
    assert_eq!(refusal(&mut rig, expiring("q", 1_000, early)), out(RefusedPart::ExpiresAt));
    let mut e = expiring("q", 1_000, Expiry::At(WallMs(WALL + 1_099)));
    e.options.spread_ms = Some(100);
    assert_eq!(refusal(&mut rig, e.clone()), out(RefusedPart::ExpiresAt), "wherever it is drawn to");
    e.options.expiry = Some(Expiry::At(WallMs(WALL + 1_100)));
    put_one(&mut rig, e);
    let id = put_one(&mut rig, spread("q", 100));
    assert_eq!(postpone(&mut rig, id, max - 99), Reply::Change(Err(ChangeRefusal::TooFar(max))));
    assert!(matches!(postpone(&mut rig, id, max - 100), Reply::Change(Ok(_))));
    assert_eq!(refusal(&mut rig, spread("q", max)), out(RefusedPart::Spread));
    assert_eq!(refusal(&mut rig, spread("q", u64::MAX)), out(RefusedPart::Spread));
}

/// More than a step may end lie before the one that is to be granted: whoever does not wait gets it all the same.
#[test]
fn expired_messages_hide_no_living_one() {
    for what in [OnExpiry::Drop, OnExpiry::Dead] {
        let mut rig = Rig::new(Policy { max_step: 64, ..Policy::default() });
        on_expiry(&mut rig, "q", what);
        for _ in 0..1_000 {
            put_one(&mut rig, expiring("q", 0, Expiry::In(10)));
        }
        let id = put_one(&mut rig, Enqueue { priority: Some(2_000), ..message("q", 0) });
        rig.pass(11);
        rig.timeout();
        let demand = rig.demand(&["q"], 5, 0);
        let (waits, fx) = rig.raw(Op::Reserve(demand));
        let ended = fx.iter().filter(|effect| matches!(effect, Effect::Append(_))).count();
        assert_eq!(ended, 64, "a step is bounded");
        assert_eq!(rig.reply(waits), None, "and does not say that there is nothing");
        rig.timeout();
        let reply = rig.reply(waits).expect("an answer, once all are ended");
        let Reply::Reserve(Reserved::Grants(grants)) = reply else { panic!("{reply:?}") };
        assert_eq!(grants.iter().map(|grant| grant.message.id).collect::<Vec<_>>(), [id]);
    }
}

#[test]
fn reserve_one_refuses_expired_message() {
    let mut rig = Rig::new(Policy::default());
    on_expiry(&mut rig, "q", OnExpiry::Drop);
    let id = put_one(&mut rig, expiring("q", 0, Expiry::In(10)));
    rig.pass(11);
    rig.timeout();
    let one = Op::ReserveOne { id, session: SessionId::NONE, lease_ms: None };
    assert_eq!(rig.call(one), Reply::ReserveOne(Err(ChangeRefusal::NotFound)));
    assert_eq!(view(&mut rig, id), None);
}

#[test]
fn spread_is_stable_per_key() {
    let mut rig = Rig::new(Policy::default());
    let mut drawn = Vec::new();
    for n in 0..50 {
        let e = Enqueue { key: Some(key(&format!("k{n}"))), ..spread("q", 10_000) };
        let id = put_one(&mut rig, e.clone());
        let due = view(&mut rig, id).unwrap().due_at.0;
        assert!((WALL + 1_000..=WALL + 11_000).contains(&due));
        drawn.push(due - WALL - 1_000);
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(id) });
        let again = put_one(&mut rig, e);
        assert_eq!(view(&mut rig, again).unwrap().due_at.0, due, "the same key, the same instant");
        assert!(matches!(postpone(&mut rig, again, 5_000), Reply::Change(Ok(_))));
        assert_eq!(view(&mut rig, again).unwrap().due_at.0, WALL + 5_000 + (due - WALL - 1_000));
    }
    let below = drawn.iter().filter(|ms| **ms < 5_000).count();
    assert!((10..=40).contains(&below), "{drawn:?}");
}

/// The words of `docs/limits.md`: the key, or else the dedupe id, or else the id; and the key or else the id when the due
/// time is changed.
#[test]
fn spread_uses_key_dedupe_or_id() {
    let mut rig = Rig::new(Policy::default());
    let (name, order) = (queue("q"), key("order-1"));
    let with =
        |key, dedupe: Option<&str>| Enqueue { key, dedupe_id: dedupe.map(Into::into), ..spread("q", 10_000) };
    for (e, by, again) in [
        (with(Some(order.clone()), Some("once")), SpreadBy::Key(&order), SpreadBy::Key(&order)),
        (with(None, Some("twice")), SpreadBy::DedupeId("twice"), SpreadBy::Id(MessageId(2))),
        (with(None, None), SpreadBy::Id(MessageId(3)), SpreadBy::Id(MessageId(3))),
    ] {
        let id = put_one(&mut rig, e);
        let due = |rig: &mut Rig| view(rig, id).expect("there").due_at.0 - WALL;
        assert_eq!(due(&mut rig), 1_000 + offset_ms(&name, by, 10_000), "{by:?}");
        postpone(&mut rig, id, 5_000);
        assert_eq!(due(&mut rig), 5_000 + offset_ms(&name, again, 10_000), "{again:?}");
    }
}

#[test]
fn dedupe_id_binds_spread_and_expiry() {
    let mut rig = Rig::new(Policy::default());
    let e = Enqueue { dedupe_id: Some("once".into()), ..spread("q", 10_000) };
    let id = put_one(&mut rig, e.clone());
    assert_eq!(put_one(&mut rig, e.clone()), id);
    for options in [
        Options { spread_ms: Some(9_999), ..Options::default() },
        Options { expiry: Some(Expiry::In(1)), ..e.options.clone() },
        Options::default(),
    ] {
        let other = Enqueue { options, ..e.clone() };
        assert_eq!(refusal(&mut rig, other), EnqueueRefusal::DedupeMismatch(id));
    }
}
