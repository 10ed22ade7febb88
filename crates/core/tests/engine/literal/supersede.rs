//! A message that takes the key of a leased one, and how the leased one ends.

use duewheel_core::engine::*;
use duewheel_core::id::{LeaseToken, MessageId, SessionId};
use duewheel_core::message::*;
use duewheel_core::policy::QueueSettings;
use duewheel_core::record::{Created, Record};
use duewheel_core::store::Level;
use duewheel_core::time::WallMs;

use super::{durable, life, plain, rig, token, was};
use crate::harness::*;

const SESSION: SessionId = SessionId(9);

fn supersede(delay: u64) -> Op {
    let e = Enqueue { key: Some(key("k")), if_exists: IfExists::Supersede, ..message("q", delay) };
    Op::Enqueue(Box::new(e))
}

fn enqueued(rig: &mut Rig, op: Op) -> Enqueued {
    match rig.call(op) {
        Reply::Enqueue(Ok(done)) => done,
        other => panic!("{other:?}"),
    }
}

fn view(rig: &mut Rig, target: Target) -> Option<View> {
    match rig.call(Op::Get { target }) {
        Reply::View(view) => view.map(|view| *view),
        other => panic!("{other:?}"),
    }
}

fn by_key() -> Target {
    Target::Key(queue("q"), key("k"))
}

fn nack(id: MessageId, proof: impl Into<Proof>, attempt: Attempt) -> Op {
    let (proof, note) = (proof.into(), "why".into());
    Op::Nack { id, proof, attempt, delay_ms: Some(0), priority: None, note }
}

fn bury(id: MessageId, proof: impl Into<Proof>) -> Op {
    Op::Bury { id, proof: proof.into(), priority: None, note: "why".into() }
}

/// A message that is leased, and superseded by one that is due in a minute; their ids, and the token.
fn superseded(rig: &mut Rig, max_attempts: u32, session: SessionId) -> (MessageId, LeaseToken, MessageId) {
    let options = Options { max_attempts: MaxAttempts::new(max_attempts), ..Options::default() };
    let old =
        enqueued(rig, Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), options, ..message("q", 0) })));
    let demand = Reserve { session, ..rig.demand(&["q"], 1, 0) };
    let Reply::Reserve(Reserved::Grants(mut grants)) = rig.call(Op::Reserve(demand)) else { panic!() };
    let grant = grants.remove(0);
    assert_eq!(grant.message.id, old.id);
    let new = enqueued(rig, supersede(60_000));
    assert_eq!((new.created, new.generation), (Created::Superseding(old.id), old.generation + 1));
    (old.id, grant.token, new.id)
}

fn totals(rig: &mut Rig) -> (Counts, duewheel_core::record::Totals) {
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    (views[0].counts, views[0].totals)
}

#[test]
fn supersede_writes_both_messages_together() {
    let mut rig = rig();
    rig.put("q", 0, Some("k"));
    rig.reserve("q", 1);
    let (to, fx) = rig.raw(supersede(9));
    let leased = rig.table.row(MessageId(1)).expect("it runs on").0.life.clone();
    assert_eq!(leased.marks.superseded_by, Some(MessageId(2)));
    assert_eq!(leased.lease().map(|lease| lease.token), Some(token(1)));
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Changed {
                id: MessageId(1),
                life: leased.clone(),
                was: was(Kind::Leased, 0, 5),
            }),
            Effect::Append(Record::Put {
                message: plain(2, "q", Some("k")),
                life: Life { generation: 2, ..life(9) },
                was: None,
            }),
            Effect::Respond {
                to,
                reply: Reply::Enqueue(Ok(Enqueued {
                    id: MessageId(2),
                    due_at: WallMs(WALL + 9),
                    generation: 2,
                    created: Created::Superseding(MessageId(1)),
                    kept: None,
                    answered: Answered::Now,
                    level: Level::default(),
                })),
                after: durable(4),
            },
        ]
    );
}

/// Story: news that came while a message was worked on was lost (`keep`) or refused (`replace`).
#[test]
fn superseded_message_ends_with_its_lease() {
    for way in ["ack", "nack", "last attempt", "not yet", "bury", "lease end", "undelivered"] {
        for restart in [false, true] {
            let mut rig = rig();
            let max_attempts = if way == "last attempt" { 1 } else { 5 };
            let (id, proof, new) = superseded(&mut rig, max_attempts, SessionId::NONE);
            if restart {
                rig.restart();
            }
            let gone = Reply::Settle(Ok(Settled::Superseded.into()));
            match way {
                "ack" => {
                    let acked = rig.call(Op::Ack { id, proof: proof.into(), result: None });
                    assert_eq!(acked, Reply::Settle(Ok(Settled::Acked.into())));
                }
                "nack" | "last attempt" => assert_eq!(rig.call(nack(id, proof, Attempt::Failed)), gone),
                "not yet" => assert_eq!(rig.call(nack(id, proof, Attempt::NotYet)), gone),
                "bury" => assert_eq!(rig.call(bury(id, proof)), gone),
                "lease end" => {
                    rig.pass(30_000);
                    rig.timeout();
                }
                _ => assert_eq!(rig.call(Op::Undelivered { leases: vec![(id, proof)] }), Reply::Done),
            }
            let case = format!("{way}, restart: {restart}");
            assert_eq!(view(&mut rig, Target::Id(id)), None, "{case}");
            let already = Reply::Settle(Ok(Settled::Already { queue: queue("q") }.into()));
            assert_eq!(rig.call(Op::Ack { id, proof: proof.into(), result: None }), already, "{case}");
            let lost = Reply::Settle(Err(SettleRefusal::LeaseLost));
            assert_eq!(rig.call(nack(id, proof, Attempt::NotYet)), lost, "{case}");
            let redriven = rig.call(Op::Redrive { id, delay_ms: None, died: None });
            assert_eq!(redriven, Reply::Change(Err(ChangeRefusal::NotFound)), "{case}");
            let (counts, totals) = totals(&mut rig);
            assert_eq!((counts.scheduled, counts.ready, counts.leased, counts.dead), (1, 0, 0, 0), "{case}");
            let acked = u64::from(way == "ack");
            assert_eq!((totals.acked, totals.superseded, totals.died), (acked, 1 - acked, 0), "{case}");
            rig.restart();
            assert_eq!(
                rig.call(Op::Ack { id, proof: proof.into(), result: None }),
                lost,
                "no longer remembered: {case}"
            );
            rig.pass(60_000);
            let grants = rig.reserve("q", 9);
            assert_eq!(grants.iter().map(|grant| grant.message.id).collect::<Vec<_>>(), [new], "{case}");
        }
    }
}

#[test]
fn session_settles_end_superseded_message() {
    for way in ["release", "bury", "delete", "close", "restart"] {
        let mut rig = rig();
        let (id, _, new) = superseded(&mut rig, 5, SESSION);
        let gone = Reply::Settle(Ok(Settled::Superseded.into()));
        match way {
            "release" => assert_eq!(rig.call(nack(id, Proof::Session(SESSION), Attempt::Failed)), gone),
            "bury" => assert_eq!(rig.call(bury(id, Proof::Session(SESSION))), gone),
            "delete" => {
                let deleted = rig.call(Op::Delete { id, session: SESSION });
                assert_eq!(deleted, Reply::Settle(Ok(Settled::Acked.into())));
            }
            "close" => assert_eq!(rig.call(Op::SessionClosed { session: SESSION }), Reply::Done),
            // No connection outlives it.
            _ => rig.restart(),
        }
        assert_eq!(view(&mut rig, Target::Id(id)), None, "{way}");
        assert_eq!(view(&mut rig, by_key()).expect("the new one").message.id, new, "{way}");
        let (counts, totals) = totals(&mut rig);
        assert_eq!((counts.scheduled, counts.leased, counts.dead, totals.died), (1, 0, 0, 0), "{way}");
        assert_eq!(totals.superseded, u64::from(way != "delete"), "{way}");
    }
}

#[test]
fn superseded_message_has_no_key() {
    for restart in [false, true] {
        let mut rig = rig();
        let (id, proof, new) = superseded(&mut rig, 5, SessionId::NONE);
        if restart {
            rig.restart();
        }
        let shown = view(&mut rig, Target::Id(id)).expect("it runs on");
        assert_eq!((shown.state, shown.message.key.as_ref()), (State::Leased, None));
        assert_eq!(shown.marks.superseded_by, Some(new));
        assert_eq!(view(&mut rig, by_key()).expect("the new one").message.id, new);
        let cancel = |target| Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target };
        assert_eq!(rig.call(cancel(Target::Id(id))), Reply::Change(Err(ChangeRefusal::Leased)));
        let extended = rig.call(Op::Extend { id, proof: proof.into(), lease_ms: Some(90_000) });
        assert_eq!(extended, Reply::Extend(Ok(WallMs(WALL + 90_000).into())));
        assert!(matches!(rig.call(cancel(by_key())), Reply::Change(Ok(done)) if done.id == new));
        assert_eq!(view(&mut rig, by_key()), None, "the key is free, not that of the leased one");
        let last = rig.put("q", 200_000, Some("k"));
        rig.pass(89_999);
        rig.timeout();
        assert!(view(&mut rig, Target::Id(id)).is_some(), "the lease was extended");
        rig.pass(1);
        rig.timeout();
        assert_eq!(view(&mut rig, Target::Id(id)), None);
        assert_eq!(view(&mut rig, by_key()).expect("the last one").message.id, last);
    }
}

#[test]
fn chain_of_supersedes_keeps_newest() {
    let mut rig = rig();
    let mut leased = Vec::new();
    rig.put("q", 0, Some("k"));
    for n in 1..=3 {
        let grant = rig.reserve("q", 9).remove(0);
        leased.push((grant.message.id, grant.token));
        let new = enqueued(&mut rig, supersede(0));
        assert_eq!((new.created, new.generation), (Created::Superseding(grant.message.id), n + 1));
    }
    // The newest one is not leased: the next one replaces it.
    let waiting = view(&mut rig, by_key()).expect("it waits").message.id;
    let newest = enqueued(&mut rig, supersede(0));
    assert_eq!((newest.created, newest.generation), (Created::Replacing(waiting), 5));
    let (first, proof) = leased[1];
    rig.call(Op::Ack { id: first, proof: proof.into(), result: None });
    rig.restart();
    rig.pass(30_000);
    rig.timeout();
    let (counts, totals) = totals(&mut rig);
    assert_eq!((counts.ready, counts.leased, counts.dead), (1, 0, 0));
    assert_eq!((totals.acked, totals.superseded, totals.replaced), (1, 2, 1));
    let grants = rig.reserve("q", 9);
    assert_eq!(grants.iter().map(|grant| grant.message.id).collect::<Vec<_>>(), [newest.id]);
}

#[test]
fn supersede_replaces_what_is_not_leased() {
    for way in ["scheduled", "ready", "lease ran out"] {
        let mut rig = rig();
        let id = rig.put("q", if way == "scheduled" { 5 } else { 0 }, Some("k"));
        let token = (way == "lease ran out").then(|| rig.reserve("q", 1).remove(0).token);
        rig.pass(if token.is_some() { 30_000 } else { 0 });
        let new = enqueued(&mut rig, supersede(5));
        assert_eq!((new.created, new.generation), (Created::Replacing(id), 2), "{way}");
        assert_eq!(view(&mut rig, Target::Id(id)), None, "{way}");
        if let Some(token) = token {
            let late = rig.call(Op::Ack { id, proof: token.into(), result: None });
            assert_eq!(late, Reply::Settle(Err(SettleRefusal::LeaseLost)));
        }
    }
}

#[test]
fn refused_supersede_changes_nothing() {
    let mut rig = Rig::new(duewheel_core::policy::Policy { max_messages: 1, ..Default::default() });
    let id = rig.put("q", 0, Some("k"));
    rig.reserve("q", 1);
    let refused = rig.call(supersede(0));
    assert!(matches!(refused, Reply::Enqueue(Err(EnqueueRefusal::Overloaded(_)))), "{refused:?}");
    let holder = view(&mut rig, by_key()).expect("it has its key");
    assert_eq!((holder.message.id, holder.marks.superseded_by), (id, None));
}

#[test]
fn superseded_message_is_kept_as_done() {
    for (settles, outcome) in [(true, DoneOutcome::Acked), (false, DoneOutcome::Superseded)] {
        let mut rig = rig();
        let settings = QueueSettings { keep_done_ms: Some(60_000), ..QueueSettings::default() };
        rig.call(Op::Configure { queue: queue("q"), settings });
        let (id, proof, new) = superseded(&mut rig, 5, SessionId::NONE);
        let op = match settles {
            true => Op::Ack { id, proof: proof.into(), result: None },
            false => nack(id, proof, Attempt::Failed),
        };
        rig.call(op);
        let Reply::View(Some(done)) = rig.call(Op::Recall { target: Target::Id(id) }) else { panic!() };
        assert_eq!(done.dead.map(|(reason, _)| reason), Some(DeadReason::Done(outcome)));
        assert_eq!((done.message.key.as_ref(), done.marks.superseded_by), (None, Some(new)));
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: by_key() });
        let Reply::View(Some(newest)) = rig.call(Op::Recall { target: by_key() }) else { panic!() };
        assert_eq!(newest.message.id, new);
    }
}
