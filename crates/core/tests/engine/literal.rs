//! Inputs in, literal effects out.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::engine::*;
use duewheel_core::id::{Epoch, LeaseToken, Lsn, MessageId, ReplyTo, SessionId, ShardId};
use duewheel_core::message::*;
use duewheel_core::policy::{Backoff, Policy, QueueSettings, ReadyOrder};
use duewheel_core::record::{Created, Gone, Pause, Record, Was};
use duewheel_core::store::Room;
use duewheel_core::time::{Due, EngineMs, WallMs};

use crate::harness::*;

fn rig() -> Rig {
    Rig::new(Policy::default())
}

fn token(counter: u64) -> LeaseToken {
    LeaseToken { epoch: Epoch(1), counter }
}

fn durable(n: u64) -> After {
    After { durable: Lsn(n), written: Lsn(0) }
}

fn plain(id: u64, name: &str, k: Option<&str>) -> Arc<Message> {
    Arc::new(Message {
        id: MessageId(id),
        queue: queue(name),
        key: k.map(key),
        body: Bytes::from("body"),
        headers: vec![],
        options: Options::default(),
        enqueued_at: WallMs(WALL),
    })
}

fn was(kind: Kind, due: u64, weight: u64) -> Was {
    Was { queue: queue("q"), kind, due: Due::After(EngineMs(due)), weight }
}

fn life(due: u64) -> Life {
    Life::new(Due::After(EngineMs(due)), None)
}

#[test]
fn enqueue_appends_the_message_and_answers_when_it_is_durable() {
    let mut rig = rig();
    let (to, fx) = rig.raw(Op::Enqueue(Box::new(message("q", 5))));
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Put { message: plain(1, "q", None), life: life(5), was: None }),
            Effect::Respond {
                to,
                reply: Reply::Enqueue(Ok(Enqueued {
                    id: MessageId(1),
                    due_at: WallMs(WALL + 5),
                    generation: 1,
                    created: Created::New
                })),
                after: durable(1),
            },
        ]
    );
    assert_eq!(rig.engine.next_wakeup(), Some(EngineMs(5)));
}

#[test]
fn a_grant_waits_until_its_message_is_durable_and_itself_is_written() {
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
    let (to, fx) = rig.raw(Op::Ack { id, proof: grant.token.into() });
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Removed { id, why: Gone::Acked, was: was(Kind::Leased, 0, 4) }),
            Effect::Respond { to, reply: Reply::Settle(Ok(Settled::Acked)), after: durable(3) },
        ]
    );
    let again = rig.call(Op::Ack { id, proof: grant.token.into() });
    assert_eq!(again, Reply::Settle(Err(SettleRefusal::LeaseLost)));
    let never = rig.call(Op::Ack { id: MessageId(99), proof: grant.token.into() });
    assert_eq!(never, Reply::Settle(Err(SettleRefusal::NeverIssued)));
}

#[test]
fn two_enqueues_of_one_key_in_one_batch_the_second_sees_the_first() {
    let mut rig = rig();
    let keyed = || Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), ..message("q", 5) }));
    rig.raw(keyed());
    let (to, fx) = rig.raw(keyed());
    let reply = Reply::Enqueue(Err(EnqueueRefusal::KeyExists(MessageId(1))));
    assert_eq!(fx, [Effect::Respond { to, reply, after: durable(1) }], "a refusal waits, too");
}

#[test]
fn replace_is_one_group_of_removal_and_put_and_raises_the_generation() {
    let mut rig = rig();
    rig.put("q", 5, Some("k"));
    let e = Enqueue { key: Some(key("k")), if_exists: IfExists::Replace, ..message("q", 9) };
    let (to, fx) = rig.raw(Op::Enqueue(Box::new(e)));
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Removed {
                id: MessageId(1),
                why: Gone::Replaced,
                was: was(Kind::Waiting, 5, 5)
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
                    created: Created::Replacing(MessageId(1))
                })),
                after: durable(3),
            },
        ]
    );
}

#[test]
fn a_lease_that_ran_out_may_still_be_acked_but_not_extended() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    let extend = rig.call(Op::Extend { id, proof: grant.token.into(), lease_ms: None });
    assert_eq!(extend, Reply::Extend(Err(SettleRefusal::LeaseLost)));
    assert_eq!(rig.call(Op::Ack { id, proof: grant.token.into() }), Reply::Settle(Ok(Settled::Acked)));
}

#[test]
fn a_stale_token_is_refused_after_a_new_grant_and_after_a_restart() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let old = rig.reserve("q", 1).remove(0);
    rig.pass(30_000);
    rig.restart();
    let new = rig.reserve("q", 1).remove(0);
    assert!(new.token > old.token && new.attempt == 2);
    for op in [
        Op::Ack { id, proof: old.token.into() },
        Op::Nack { id, proof: old.token.into(), delay_ms: None, priority: None, note: "".into() },
        Op::Bury { id, proof: old.token.into(), priority: None, note: "".into() },
    ] {
        assert_eq!(rig.call(op), Reply::Settle(Err(SettleRefusal::LeaseLost)));
    }
    assert_eq!(rig.call(Op::Ack { id, proof: new.token.into() }), Reply::Settle(Ok(Settled::Acked)));
}

#[test]
fn m9_a_lease_and_its_token_survive_a_restart_and_downtime_counts() {
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
fn leases_of_a_connection_are_released_when_it_closes_and_at_a_restart() {
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
    let late = rig.call(Op::Ack { id: first.message.id, proof: first.token.into() });
    assert_eq!(late, Reply::Settle(Err(SettleRefusal::LeaseLost)));
    assert_eq!(take(&mut rig).attempt, 2);
    rig.restart();
    assert_eq!(take(&mut rig).attempt, 3, "connections do not survive a restart, and their leases neither");
}

#[test]
fn dead_after_exactly_max_attempts_with_history_and_redriven_with_new_ones() {
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
        id,
        proof: t.into(),
        delay_ms: Some(0),
        priority: None,
        note: note.into(),
    };
    assert!(matches!(rig.call(nack(first.token, "smtp down")), Reply::Settle(Ok(Settled::Again(_)))));
    rig.reserve("q", 1);
    rig.pass(30_000); // the second attempt's lease runs out
    let Reply::View(Some(dead)) = rig.call(Op::Get { target: Target::Id(id) }) else { panic!() };
    assert_eq!((dead.state, dead.attempt), (State::Dead, 2));
    assert_eq!(dead.dead, Some((DeadReason::MaxAttempts, rig.now.wall)));
    let ends: Vec<_> = dead.history.iter().map(|p| (p.attempt, p.how, &*p.note)).collect();
    assert_eq!(ends, [(1, Ended::Nacked, "smtp down"), (2, Ended::LeaseExpired, "")]);
    assert_eq!(&dead.message.body[..], b"body");

    rig.put("q", 60_000, Some("k")); // its key is free
    assert_eq!(rig.call(Op::Redrive { id }), Reply::Change(Err(ChangeRefusal::KeyExists(MessageId(2)))));
    rig.call(Op::Cancel { target: Target::Id(MessageId(2)) });
    assert!(matches!(rig.call(Op::Redrive { id }), Reply::Change(Ok(v)) if v.state == State::Ready));
    let third = rig.reserve("q", 1).remove(0);
    assert_eq!(third.attempt, 3, "attempts never fall");
    assert!(
        matches!(rig.call(nack(third.token, "")), Reply::Settle(Ok(Settled::Again(_)))),
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

#[test]
fn a_waiting_reserve_is_served_at_the_end_of_the_step_and_the_longest_waiting_first() {
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
fn one_who_only_wants_to_be_told_is_told_at_once_and_takes_nothing_from_those_behind() {
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
fn a_shard_gives_the_ids_that_are_its_own_before_and_after_a_restart() {
    let mut rig = Rig::of_shard(Policy::default(), Ids::of(ShardId(2), 5));
    assert_eq!([rig.put("q", 0, None).0, rig.put("q", 0, None).0], [3, 8]);
    let never = rig.call(Op::Ack { id: MessageId(13), proof: token(1).into() });
    assert_eq!(never, Reply::Settle(Err(SettleRefusal::NeverIssued)));
    rig.call(Op::Purge { queue: queue("q") });
    rig.restart();
    assert_eq!(rig.put("q", 0, None).0, 13);
    assert_eq!(rig.reserve("q", 9).len(), 1);
    let one = Ids::default();
    assert_eq!([one.at_least(0), one.at_least(1), one.at_least(7)], [1, 1, 7]);
    for shards in [1, 2, 7, 1024] {
        for shard in [0, shards / 2, shards - 1] {
            let ids = Ids::of(ShardId(shard), shards);
            for least in 0..3_000 {
                let id = MessageId(ids.at_least(least));
                assert!(id.0 >= least && (id.0 < least + u64::from(shards) || id.0 <= u64::from(shards)));
                assert_eq!(ShardId::of(id, shards), ShardId(shard));
            }
        }
    }
}

#[test]
fn a_wait_ends_empty_and_is_withdrawn_by_name() {
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
fn deadline_soon_instead_of_waiting_past_a_lease_of_ones_own() {
    let mut rig = rig();
    rig.put("q", 0, None);
    let own = |rig: &mut Rig, wait| Reserve {
        session: SessionId(5),
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
fn order_is_priority_then_due_time_then_id_or_arrival_when_set() {
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
fn one_reserve_takes_the_best_of_several_queues() {
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
fn m4_a_past_time_is_refused_unless_it_shall_fire_and_a_far_one_is_never_now() {
    let mut rig = rig();
    let at =
        |due_at, past| Op::Enqueue(Box::new(Enqueue { when: When::At { due_at, past }, ..message("q", 0) }));
    let past = rig.call(at(WallMs(WALL - 1), Past::Refuse));
    assert_eq!(past, Reply::Enqueue(Err(EnqueueRefusal::InThePast)));
    let far = Reply::Enqueue(Err(EnqueueRefusal::TooFar(rig.policy.max_delay_ms)));
    assert_eq!(rig.call(at(WallMs(u64::MAX), Past::Fire)), far);
    for delay in [u64::MAX, 1 << 53, rig.policy.max_delay_ms + 1] {
        assert_eq!(rig.call(Op::Enqueue(Box::new(message("q", delay)))), far);
    }
    assert!(rig.reserve("q", 9).is_empty());
    for delay in [1, 1 << 31, 1 << 32, 1 << 36, rig.policy.max_delay_ms] {
        rig.put("q", delay, None);
    }
    assert!(rig.reserve("q", 9).is_empty());
    rig.call(at(WallMs(WALL - 1), Past::Fire));
    let overdue = rig.reserve("q", 9).remove(0);
    rig.call(Op::Ack { id: overdue.message.id, proof: overdue.token.into() });
    let mut seen = 0;
    while let Reply::NextDue(Some(due)) = rig.call(Op::NextDue) {
        rig.pass(due.0 - rig.now.wall.0 - 1);
        assert!(rig.reserve("q", 9).is_empty(), "not a millisecond early");
        rig.pass(1);
        let grants = rig.reserve("q", 9);
        seen += grants.len();
        for g in grants {
            rig.call(Op::Ack { id: g.message.id, proof: g.token.into() });
        }
    }
    assert_eq!(seen, 5, "each one in the right turn of the ring, 100 years included");
}

#[test]
fn a_stepped_wall_clock_moves_at_and_not_delay_and_nothing_is_early() {
    let mut rig = rig();
    let at = When::At { due_at: WallMs(WALL + 1_000), past: Past::Refuse };
    rig.call(Op::Enqueue(Box::new(Enqueue { when: at, ..message("at", 0) })));
    rig.put("delay", 1_000, None);
    rig.now.wall = WallMs(WALL - 86_400_000);
    rig.pass(1_000);
    assert_eq!(rig.reserve("delay", 1).len(), 1, "elapsed time has passed");
    assert_eq!(rig.reserve("at", 1).len(), 0, "that instant is a day away");
    rig.now.wall = WallMs(WALL + 1_000);
    rig.timeout(); // it becomes ready ...
    rig.now.wall = WallMs(WALL);
    assert_eq!(rig.reserve("at", 1).len(), 0, "... and is not given out when the clock goes back");
    rig.now.wall = WallMs(WALL + 1_000);
    assert_eq!(rig.reserve("at", 1).len(), 1);
}

#[test]
fn purge_is_one_record_and_spares_what_is_leased() {
    let mut rig = rig();
    rig.policy.max_step = 2;
    for delay in [0, 0, 0, 5_000, 60_000] {
        rig.put("q", delay, None);
    }
    let leased = rig.reserve("q", 1).remove(0);
    rig.put("q", 7_000, Some("k"));
    let (to, fx) = rig.raw(Op::Purge { queue: queue("q") });
    assert_eq!(
        fx,
        [
            Effect::Append(Record::Purged {
                queue: queue("q"),
                keep: vec![MessageId(1)],
                before: MessageId(7),
                purged: 5
            }),
            Effect::Respond { to, reply: Reply::Count(5), after: durable(8) },
        ]
    );
    let kept = rig.raw(Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), ..message("q", 9_000) })));
    assert!(
        matches!(rig.reply(kept.0), Some(Reply::Enqueue(Ok(_)))),
        "its key is free before anything is swept"
    );
    assert_eq!(rig.call(Op::Get { target: Target::Id(MessageId(2)) }), Reply::View(None));
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!(views[0].counts, Counts { scheduled: 1, ready: 0, leased: 1, dead: 0, estimated: false });
    assert_eq!(rig.table.len(), 2, "the store forgets the same");
    let nack = Op::Nack {
        id: MessageId(1),
        proof: leased.token.into(),
        delay_ms: Some(0),
        priority: None,
        note: "".into(),
    };
    rig.call(nack);
    assert_eq!(rig.reserve("q", 9).len(), 1);
    rig.pass(100_000);
    assert_eq!(rig.reserve("q", 9).len(), 2, "the spared one, whose lease has run out, and the new one");
}

#[test]
fn a_paused_queue_gives_nothing_out_and_its_messages_become_ready() {
    let mut rig = rig();
    let demand = rig.demand(&["q"], 1, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.call(Op::Pause { queue: queue("q"), for_ms: Some(1_000) });
    rig.put("q", 0, None);
    assert_eq!(rig.reply(to), None);
    rig.restart(); // forgets the waiter, keeps the pause
    assert!(rig.reserve("q", 1).is_empty());
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!(
        (views[0].counts.ready, views[0].pause),
        (1, Pause::Until { end: EngineMs(1_000), length_ms: 1_000 })
    );
    rig.pass(1_000);
    assert_eq!(rig.reserve("q", 1).len(), 1);
    rig.call(Op::Pause { queue: queue("q"), for_ms: None });
    rig.put("q", 0, None);
    rig.pass(1_000_000);
    assert!(rig.reserve("q", 1).is_empty());
    let demand = rig.demand(&["q"], 1, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.call(Op::Resume { queue: queue("q") });
    assert!(rig.reply(to).is_some(), "whoever waits is served at once");
}

#[test]
fn a_full_disk_refuses_new_messages_and_nothing_else() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Room::SettleOnly), &mut fx);
    let refused = rig.call(Op::Enqueue(Box::new(message("q", 0))));
    assert_eq!(refused, Reply::Enqueue(Err(EnqueueRefusal::DiskFull)));
    let grant = rig.reserve("q", 1).remove(0);
    assert_eq!(rig.call(Op::Ack { id, proof: grant.token.into() }), Reply::Settle(Ok(Settled::Acked)));
    rig.engine.handle(rig.now, Input::Room(Room::Enough), &mut fx);
    rig.put("q", 0, None);
}

#[test]
fn a_dedupe_id_gives_the_first_answer_also_when_the_message_is_gone() {
    let mut rig = rig();
    let mut e = message("q", 0);
    e.dedupe_id = Some("req-1".into());
    let first = rig.call(Op::Enqueue(Box::new(e.clone())));
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into() });
    rig.pass(5_000);
    rig.restart();
    assert_eq!(rig.call(Op::Enqueue(Box::new(e.clone()))), first);
    assert!(rig.reserve("q", 1).is_empty());
    let other = Enqueue { body: "another".into(), ..e.clone() };
    let mismatch = rig.call(Op::Enqueue(Box::new(other)));
    assert_eq!(mismatch, Reply::Enqueue(Err(EnqueueRefusal::DedupeMismatch(MessageId(1)))));
    rig.pass(24 * 3_600_000);
    assert_ne!(rig.call(Op::Enqueue(Box::new(e))), first, "forgotten after its window");
}

#[test]
fn settings_count_at_the_moment_of_use_and_a_message_may_say_otherwise() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let settings = QueueSettings {
        lease_ms: Some(500),
        backoff: Some(Backoff { min_ms: 7, max_ms: 7 }),
        ..QueueSettings::default()
    };
    rig.call(Op::Configure { queue: queue("q"), settings });
    rig.restart();
    let grant = rig.reserve("q", 1).remove(0);
    assert_eq!(grant.lease_ms, 500);
    let nack = Op::Nack { id, proof: grant.token.into(), delay_ms: None, priority: Some(3), note: "".into() };
    assert_eq!(rig.call(nack), Reply::Settle(Ok(Settled::Again(WallMs(WALL + 7)))));
    rig.pass(7);
    assert_eq!(rig.reserve("q", 1)[0].priority, 3);
    rig.call(Op::Purge { queue: queue("q") });
    let own = Options { lease_ms: Some(900), ..Options::default() };
    rig.call(Op::Enqueue(Box::new(Enqueue { options: own, ..message("q", 0) })));
    assert_eq!(rig.reserve("q", 1)[0].lease_ms, 900);
}

#[test]
fn dead_messages_go_when_their_queue_says_so() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    let bury = Op::Bury { id, proof: grant.token.into(), priority: None, note: "bad address".into() };
    assert_eq!(rig.call(bury), Reply::Settle(Ok(Settled::Dead(DeadReason::Buried))));
    let settings = QueueSettings { dead_ttl_ms: Some(1_000), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    rig.pass(999);
    assert!(matches!(rig.call(Op::Get { target: Target::Id(id) }), Reply::View(Some(_))));
    rig.pass(1);
    assert_eq!(rig.call(Op::Get { target: Target::Id(id) }), Reply::View(None));
    assert!(rig.table.is_empty());
}

#[test]
fn reserve_one_takes_scheduled_and_dead_ones() {
    let mut rig = rig();
    let id = rig.put("q", 60_000, None);
    let one = |id| Op::ReserveOne { id, session: SessionId(3), lease_ms: Some(100) };
    assert!(matches!(rig.call(one(id)), Reply::ReserveOne(Ok(g)) if g.attempt == 1 && g.lease_ms == 100));
    assert_eq!(rig.call(one(id)), Reply::ReserveOne(Err(ChangeRefusal::Leased)));
    assert_eq!(rig.call(one(MessageId(9))), Reply::ReserveOne(Err(ChangeRefusal::NotFound)));
}

#[test]
fn peek_list_histogram_and_wheel_show_what_is_there() {
    let mut rig = rig();
    for delay in [3_600_000, 60_000, 120_000] {
        rig.put("q", delay, None);
    }
    let at = When::At { due_at: WallMs(WALL + 90_000), past: Past::Refuse };
    rig.call(Op::Enqueue(Box::new(Enqueue { when: at, ..message("q", 0) })));
    rig.put("q", 0, None);
    let peek = |rig: &mut Rig, state| match rig.call(Op::Peek { queue: queue("q"), state }) {
        Reply::View(view) => view.map(|v| v.message.id.0),
        other => panic!("{other:?}"),
    };
    assert_eq!(peek(&mut rig, State::Ready), Some(5));
    assert_eq!(peek(&mut rig, State::Scheduled), Some(2));
    assert_eq!(peek(&mut rig, State::Dead), None);

    let mut ids = vec![];
    let mut after = None;
    loop {
        let list = Op::List { queue: queue("q"), state: Some(State::Scheduled), after, limit: 2 };
        let Reply::Page(page) = rig.call(list) else { panic!() };
        ids.extend(page.views.iter().map(|v| v.message.id.0));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(ids, [2, 4, 3, 1], "in due order over both clocks");

    for state in [None, Some(State::Scheduled), Some(State::Ready)] {
        let list = |after, limit| Op::List { queue: queue("q"), state, after, limit };
        let Reply::Page(all) = rig.call(list(None, 100)) else { panic!() };
        let ids = |page: &Page| page.views.iter().map(|v| v.message.id.0).collect::<Vec<_>>();
        assert_eq!(all.views.len(), all.behind.len());
        for (n, &place) in all.behind.iter().enumerate() {
            let Reply::Page(rest) = rig.call(list(Some(place), 100)) else { panic!() };
            assert_eq!(ids(&rest), ids(&all)[n + 1..], "{state:?}: behind the message at {n}");
        }
    }

    let histogram =
        Op::Histogram { queue: Some(queue("q")), from: WallMs(WALL), to: WallMs(WALL + 180_000), columns: 3 };
    let Reply::Histogram(h) = rig.call(histogram) else { panic!() };
    assert_eq!(h.counts.iter().sum::<u64>() + h.before + h.after, 5);
    assert_eq!(h.after, 1, "the one in an hour");

    let Reply::Wheel(wheel) = rig.call(Op::Wheel) else { panic!() };
    assert_eq!((wheel.slots, wheel.tick_ms, wheel.messages), (3_600, 1_000, 4));
    assert_eq!(wheel.occupied[1], [(0, 1), (60, 1), (120, 1)], "tasks per slot; an hour is a full turn");
}

#[test]
fn the_first_ready_message_of_a_queue_nobody_reads_is_reported_and_kept() {
    let mut rig = rig();
    let (_, fx) = rig.raw(Op::Enqueue(Box::new(message("no-handler", 0))));
    assert!(fx.contains(&Effect::Notice(Notice::Unattended(queue("no-handler")))));
    let (_, fx) = rig.raw(Op::Enqueue(Box::new(message("no-handler", 0))));
    assert!(!fx.iter().any(|e| matches!(e, Effect::Notice(_))), "said once");
    assert_eq!(rig.reserve("no-handler", 9).len(), 2);
}

#[test]
fn postpone_with_a_body_puts_the_message_again_under_its_id() {
    let mut rig = rig();
    let id = rig.put("q", 0, Some("k"));
    let postpone = |if_generation| Op::Postpone {
        target: Target::Key(queue("q"), key("k")),
        when: When::After(50),
        body: Some("new".into()),
        if_generation,
    };
    assert_eq!(rig.call(postpone(Some(9))), Reply::Change(Err(ChangeRefusal::GenerationMismatch(1))));
    let Reply::Change(Ok(view)) = rig.call(postpone(Some(1))) else { panic!() };
    assert_eq!((view.message.id, view.generation, view.state), (id, 2, State::Scheduled));
    rig.restart();
    rig.pass(50);
    assert_eq!(&rig.reserve("q", 1)[0].message.body[..], b"new");
}

#[test]
fn limits_are_refusals_that_name_the_part() {
    let mut rig = Rig::new(Policy { max_messages: 2, max_body: 10, max_headers: 4, ..Policy::default() });
    let mut refused = |e: Enqueue| match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(Err(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let e = || message("q", 5);
    assert_eq!(
        refused(Enqueue { body: vec![0; 11].into(), ..e() }),
        EnqueueRefusal::TooLarge(Part::Body, 10)
    );
    let headers = vec![("abc".into(), "de".into())];
    assert_eq!(refused(Enqueue { headers, ..e() }), EnqueueRefusal::TooLarge(Part::Headers, 4));
    assert_eq!(
        refused(Enqueue { dedupe_id: Some("".into()), ..e() }),
        EnqueueRefusal::OutOfRange(Part::DedupeId)
    );
    let options = Options { lease_ms: Some(0), ..Options::default() };
    assert_eq!(refused(Enqueue { options, ..e() }), EnqueueRefusal::OutOfRange(Part::Lease));
    let options = Options { backoff: Some(Backoff { min_ms: 2, max_ms: 1 }), ..Options::default() };
    assert_eq!(refused(Enqueue { options, ..e() }), EnqueueRefusal::OutOfRange(Part::Backoff));
    rig.put("q", 5, None);
    rig.put("q", 5, None);
    let full = rig.call(Op::Enqueue(Box::new(message("q", 5))));
    assert_eq!(full, Reply::Enqueue(Err(EnqueueRefusal::Overloaded)));
}

#[test]
fn a_queue_vanishes_with_its_last_message() {
    let mut rig = rig();
    let id = rig.put("q", 5, None);
    rig.call(Op::Cancel { target: Target::Id(id) });
    assert_eq!(rig.call(Op::Queues { after: None, limit: 9 }), Reply::Queues(vec![]));
    let to = ReplyTo(0);
    assert_eq!(rig.reply(to), None);
}

#[test]
fn a_queue_that_vanishes_within_a_step_is_not_served() {
    // Story: a message became ready for a waiting consumer, the consumer left, and the message was cancelled, all in one
    // batch. The queue was gone when it came to be served, and the driver panicked. Found by review.
    let mut rig = rig();
    let demand = rig.demand(&["q"], 1, 60_000);
    let waiter = demand.waiter;
    rig.raw(Op::Reserve(demand));
    rig.raw(Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), ..message("q", 0) })));
    rig.raw(Op::CancelReserve { waiter });
    rig.raw(Op::Cancel { target: Target::Key(queue("q"), key("k")) });
    rig.timeout();

    let demand = rig.demand(&["q"], 1, 60_000);
    let waiter = demand.waiter;
    rig.raw(Op::Reserve(demand));
    rig.raw(Op::Enqueue(Box::new(message("q", 0))));
    rig.raw(Op::CancelReserve { waiter });
    rig.raw(Op::Purge { queue: queue("q") });
    rig.timeout();
    assert_eq!(rig.call(Op::Queues { after: None, limit: 9 }), Reply::Queues(vec![]));
}

#[test]
fn serving_others_first_does_not_end_a_queue_that_a_reserve_has_named() {
    // Story: A waits on two queues, one of which is there only because A waits. B names both; serving A first ended that
    // queue while B held on to it, and the driver panicked. Found by review.
    let mut rig = rig();
    let demand = rig.demand(&["a", "b"], 1, 60_000);
    let (first, _) = rig.raw(Op::Reserve(demand));
    rig.raw(Op::Enqueue(Box::new(message("b", 0))));
    let demand = rig.demand(&["a", "b"], 1, 60_000);
    let (second, _) = rig.raw(Op::Reserve(demand));
    assert!(rig.reply(first).is_some(), "who waits longer is served first");
    assert_eq!(rig.reply(second), None);
    rig.put("a", 0, None);
    assert!(rig.reply(second).is_some());
}

#[test]
fn a_reserve_of_nothing_does_not_stand_in_the_way() {
    let mut rig = rig();
    let demand = rig.demand(&["q"], 0, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.put("q", 0, None);
    assert!(rig.reply(to).is_some(), "it counts as one");
}

#[test]
fn reserve_one_of_a_dead_message_redrives_it_if_its_key_is_free() {
    let mut rig = rig();
    let id = rig.put("q", 0, Some("k"));
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() });
    let other = rig.put("q", 60_000, Some("k"));
    let one = || Op::ReserveOne { id, session: SessionId::NONE, lease_ms: None };
    assert_eq!(rig.call(one()), Reply::ReserveOne(Err(ChangeRefusal::KeyExists(other))));
    rig.call(Op::Cancel { target: Target::Id(other) });
    assert!(matches!(rig.call(one()), Reply::ReserveOne(Ok(grant)) if grant.attempt == 2));
}

#[test]
fn another_order_counts_for_what_is_ready_already() {
    let mut rig = rig();
    let first = rig.put("q", 0, None);
    rig.call(Op::Enqueue(Box::new(Enqueue { priority: Some(500), ..message("q", 0) })));
    let settings = QueueSettings { priority: Some(1), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    assert_eq!(rig.reserve("q", 1)[0].message.id, first);
}
