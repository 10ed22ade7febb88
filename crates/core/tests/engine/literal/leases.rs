//! Grants, their leases and tokens, and how a message ends.

use duewheel_core::engine::*;
use duewheel_core::id::{LeaseToken, Lsn, MessageId, SessionId};
use duewheel_core::message::*;
use duewheel_core::record::{Gone, Record};
use duewheel_core::store::Capacity;
use duewheel_core::time::{EngineMs, WallMs};

use super::{durable, plain, rig, token, was};
use crate::harness::*;

#[test]
fn grant_waits_for_durable_message() {
    let mut rig = rig();
    rig.put("q", 0, None);
    rig.put("other", 60_000, None); // not what the grant depends on
    let demand = rig.demand(&["q"], 10, 0);
    let (to, fx) = rig.raw(Op::Reserve(demand));
    let lease = Lease {
        token: token(1),
        until: EngineMs(30_000),
        session: SessionId::NONE,
        granted_at: WallMs(WALL),
    };
    let grant = Grant {
        message: plain(1, "q", None),
        attempt: 1,
        priority: 1024,
        due_at: WallMs(WALL),
        token: token(1),
        lease_until: WallMs(WALL + 30_000),
        lease_ms: 30_000,
        lateness_ms: 0,
        generation: 1,
        late: false,
    };
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Granted {
                id: MessageId(1),
                attempt: 1,
                lease,
                was: was(Kind::Waiting, 0, 4)
            }),
            Effect::Respond {
                to,
                reply: Reply::Reserve(Reserved::Grants(vec![grant])),
                after: After { durable: Lsn(1), written: Lsn(3) },
            },
        ]
    );
}

#[test]
fn ack_removes_and_is_final() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    let (to, fx) = rig.raw(Op::Ack { id, proof: grant.token.into(), result: None });
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Removed { id, why: Gone::Acked, was: was(Kind::Leased, 0, 4) }),
            Effect::Respond { to, reply: Reply::Settle(Ok(Settled::Acked.into())), after: durable(3) },
        ]
    );
    let again = rig.call(Op::Ack { id, proof: grant.token.into(), result: None });
    assert_eq!(again, Reply::Settle(Ok(Settled::Already { queue: queue("q") }.into())));
    let never = rig.call(Op::Ack { id: MessageId(99), proof: grant.token.into(), result: None });
    assert_eq!(never, Reply::Settle(Err(SettleRefusal::NeverIssued)));
}

#[test]
fn expired_lease_allows_ack_not_extend() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    let extend = rig.call(Op::Extend { id, proof: grant.token.into(), lease_ms: None });
    assert_eq!(extend, Reply::Extend(Err(SettleRefusal::LeaseLost)));
    assert_eq!(
        rig.call(Op::Ack { id, proof: grant.token.into(), result: None }),
        Reply::Settle(Ok(Settled::Acked.into()))
    );
}

/// Story: a consumer that had reserved for ten minutes extended its lease, and then had 30 seconds.
#[test]
fn extend_without_length_shortens_no_lease() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let demand = rig.demand(&["q"], 1, 0);
    let answer = rig.call(Op::Reserve(Reserve { lease_ms: Some(600_000), ..demand }));
    let Reply::Reserve(Reserved::Grants(grants)) = answer else { panic!("{answer:?}") };
    let extend = |lease_ms| Op::Extend { id, proof: grants[0].token.into(), lease_ms };
    let until = |after| Reply::Extend(Ok(WallMs(WALL + after).into()));
    assert_eq!(rig.call(extend(None)), until(600_000));
    assert_eq!(rig.call(extend(Some(20_000))), until(20_000), "who names a length may");
    assert_eq!(rig.call(extend(None)), until(30_000));
}

/// Story: leases ran out on a full disk. Their records used up what was kept for removals, and the store failed.
#[test]
fn leases_end_once_store_has_room() {
    let mut rig = rig();
    let (first, _) = (rig.put("q", 0, None), rig.put("q", 0, None));
    let grant = rig.reserve("q", 1).remove(0);
    let session = SessionId(7);
    let demand = rig.demand(&["q"], 1, 0);
    rig.call(Op::Reserve(Reserve { session, ..demand }));
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::RemoveOnly), &mut fx);
    rig.pass(10_000);
    let (closed, fx) = rig.raw(Op::SessionClosed { session });
    assert_eq!(fx, []);
    rig.pass(20_000);
    assert_eq!(rig.timeout(), []);
    assert_eq!(rig.reply(closed), None);
    let ack = rig.call(Op::Ack { id: first, proof: grant.token.into(), result: None });
    assert_eq!(ack, Reply::Settle(Ok(Settled::Acked.into())));
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::Enough), &mut fx);
    rig.timeout();
    assert_eq!(rig.reply(closed), Some(Reply::Done));
    assert_eq!(rig.reserve("q", 2)[0].attempt, 2);
}

#[test]
fn stale_token_stays_refused_after_restart() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let old = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    rig.restart();
    let new = rig.reserve("q", 1).remove(0);
    assert!(new.token > old.token && new.attempt == 2);
    for op in [
        Op::Ack { id, proof: old.token.into(), result: None },
        Op::Nack {
            id,
            proof: old.token.into(),
            attempt: Attempt::Failed,
            delay_ms: None,
            priority: None,
            note: "".into(),
        },
        Op::Bury { id, proof: old.token.into(), priority: None, note: "".into() },
    ] {
        assert_eq!(rig.call(op), Reply::Settle(Err(SettleRefusal::LeaseLost)));
    }
    assert_eq!(
        rig.call(Op::Ack { id, proof: new.token.into(), result: None }),
        Reply::Settle(Ok(Settled::Acked.into()))
    );
}

#[test]
fn m9_lease_survives_restart() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(10_000);
    rig.restart();
    assert!(rig.reserve("q", 1).is_empty(), "the lease runs on");
    assert!(matches!(
        rig.call(Op::Extend { id, proof: grant.token.into(), lease_ms: Some(5_000) }),
        Reply::Extend(Ok(_))
    ));
    rig.pass(5_000);
    rig.restart();
    assert_eq!(rig.reserve("q", 1)[0].attempt, 2, "it ran out while nothing ran");
}

#[test]
fn session_leases_end_on_disconnect() {
    let mut rig = rig();
    rig.put("q", 0, None);
    let take = |rig: &mut Rig| {
        let demand = Reserve { session: SessionId(5), ..rig.demand(&["q"], 1, 0) };
        match rig.call(Op::Reserve(demand)) {
            Reply::Reserve(Reserved::Grants(mut g)) => g.remove(0),
            other => panic!("{other:?}"),
        }
    };
    let first = take(&mut rig);
    assert_eq!(rig.call(Op::SessionDeadline { session: SessionId(5) }), Reply::Deadline(Some(30_000)));
    rig.call(Op::SessionClosed { session: SessionId(5) });
    let late = rig.call(Op::Ack { id: first.message.id, proof: first.token.into(), result: None });
    assert_eq!(late, Reply::Settle(Err(SettleRefusal::LeaseLost)));
    assert_eq!(take(&mut rig).attempt, 2);
    rig.restart();
    assert_eq!(take(&mut rig).attempt, 3, "connections do not survive a restart, and their leases neither");
}

#[test]
fn redriven_dead_message_has_fresh_attempts() {
    let mut rig = rig();
    let e = Enqueue {
        options: Options { max_attempts: MaxAttempts::new(2), ..Options::default() },
        key: Some(key("k")),
        ..message("q", 0)
    };
    rig.call(Op::Enqueue(Box::new(e)));
    let id = MessageId(1);
    let first = rig.reserve("q", 1).remove(0);
    let nack = |t: LeaseToken, note: &str| Op::Nack {
        attempt: Attempt::Failed,
        id,
        proof: t.into(),
        delay_ms: Some(0),
        priority: None,
        note: note.into(),
    };
    assert!(matches!(
        rig.call(nack(first.token, "smtp down")),
        Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))
    ));
    rig.reserve("q", 1);
    rig.pass(30_000); // the second attempt's lease runs out
    let Reply::View(Some(dead)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
    assert_eq!((dead.state, dead.attempt), (State::Dead, 2));
    assert_eq!(dead.dead, Some((DeadReason::MaxAttempts, rig.now.wall)));
    let ends: Vec<_> = dead.history.iter().map(|p| (p.attempt, p.how, &*p.note)).collect();
    assert_eq!(ends, [(1, Ended::Nacked, "smtp down"), (2, Ended::LeaseExpired, "")]);
    assert_eq!(&dead.message.body[..], b"body");

    rig.put("q", 60_000, Some("k")); // its key is free
    assert_eq!(
        rig.call(Op::Redrive { id, delay_ms: None, died: None }),
        Reply::Change(Err(ChangeRefusal::KeyExists(KeyHolder { id: MessageId(2), state: State::Scheduled })))
    );
    rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(MessageId(2)) });
    let too_far = Op::Redrive { id, delay_ms: Some(u64::MAX), died: None };
    assert!(matches!(rig.call(too_far), Reply::Change(Err(ChangeRefusal::TooFar(_)))));
    let later = Op::Redrive { id, delay_ms: Some(60_000), died: None };
    let generation = dead.generation;
    assert!(
        matches!(rig.call(later), Reply::Change(Ok(v)) if (v.state, v.generation) == (State::Scheduled, generation))
    );
    assert!(rig.reserve("q", 1).is_empty());
    rig.pass(59_999);
    assert!(rig.reserve("q", 1).is_empty(), "never early");
    rig.pass(1);
    let again = rig.reserve("q", 1).remove(0);
    assert_eq!((again.message.id, again.attempt), (id, 3));
    let bury = Op::Bury { id, proof: Proof::Token(again.token), priority: None, note: "".into() };
    rig.call(bury);
    assert!(
        matches!(rig.call(Op::Redrive { id, delay_ms: None, died: None }), Reply::Change(Ok(v)) if v.state == State::Ready)
    );
    let fourth = rig.reserve("q", 1).remove(0);
    assert_eq!(fourth.attempt, 4, "attempts never fall");
    assert!(
        matches!(
            rig.call(nack(fourth.token, "")),
            Reply::Settle(Ok(Applied { what: Settled::Again(_), .. }))
        ),
        "and it has two more"
    );
}

#[test]
fn grants_nobody_received_do_not_count() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Undelivered { leases: vec![(id, grant.token)] });
    let again = rig.reserve("q", 1).remove(0);
    assert_eq!(again.attempt, 1);
    assert!(again.token > grant.token);
}
