//! What is enqueued, refused, replaced or changed, and when it is due.

use duewheel_core::engine::*;
use duewheel_core::id::{MessageId, SessionId, ShardId};
use duewheel_core::message::*;
use duewheel_core::policy::{Backoff, OWN_DEDUPE_WINDOW_MS, Policy, QueueSettings};
use duewheel_core::record::{Created, Gone, Record, Totals};
use duewheel_core::store::{Capacity, Level};
use duewheel_core::time::{EngineMs, WallMs};

use super::{durable, life, plain, rig, token, was};
use crate::harness::*;

#[test]
fn enqueue_answer_waits_for_durability() {
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
                    created: Created::New,
                    kept: None,
                    answered: Answered::Now,
                    level: Level::default(),
                })),
                after: durable(1),
            },
        ]
    );
    assert_eq!(rig.engine.next_wakeup(), Some(EngineMs(5)));
}

#[test]
fn enqueue_sees_key_of_same_batch() {
    let mut rig = rig();
    let keyed = || Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), ..message("q", 5) }));
    rig.raw(keyed());
    let (to, fx) = rig.raw(keyed());
    let reply = Reply::Enqueue(Err(EnqueueRefusal::KeyExists(KeyHolder {
        id: MessageId(1),
        state: State::Scheduled,
    })));
    assert_eq!(fx, [Effect::Respond { to, reply, after: durable(1) }], "a refusal waits, too");
}

#[test]
fn answers_name_state_of_key_holder() {
    let mut rig = rig();
    let id = rig.put("q", 5, Some("k"));
    let ask = |if_exists| Enqueue { key: Some(key("k")), if_exists, ..message("q", 5) };
    let mut firsts: Vec<Box<str>> = Vec::new();
    for state in [State::Scheduled, State::Ready, State::Leased] {
        match state {
            State::Ready => rig.pass(5),
            State::Leased => _ = rig.reserve("q", 1).remove(0),
            State::Scheduled | State::Dead | State::Done => {}
        }
        let refused = rig.call(Op::Enqueue(Box::new(ask(IfExists::Reject))));
        assert_eq!(refused, Reply::Enqueue(Err(EnqueueRefusal::KeyExists(KeyHolder { id, state }))));
        let kept = rig.call(Op::Enqueue(Box::new(ask(IfExists::Keep))));
        let Reply::Enqueue(Ok(kept)) = kept else { panic!("{kept:?}") };
        assert_eq!((kept.id, kept.created, kept.kept), (id, Created::Kept, Some(state)));
        // A repeat gets the first answer, whatever the message has become.
        let remembered = Enqueue { dedupe_id: Some(format!("{state:?}").into()), ..ask(IfExists::Keep) };
        for dedupe_id in firsts.iter().cloned().chain(remembered.dedupe_id.clone()) {
            let again = Enqueue { dedupe_id: Some(dedupe_id.clone()), ..remembered.clone() };
            let Reply::Enqueue(Ok(kept)) = rig.call(Op::Enqueue(Box::new(again))) else { panic!() };
            assert_eq!(kept.kept.map(|state| format!("{state:?}")).as_deref(), Some(&*dedupe_id));
        }
        firsts.extend(remembered.dedupe_id);
    }
    let said = EnqueueRefusal::KeyExists(KeyHolder { id, state: State::Leased }).to_string();
    assert_eq!(said, "message 1, which is leased, has this key");
}

#[test]
fn replace_is_atomic_and_raises_generation() {
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
                    created: Created::Replacing(MessageId(1)),
                    kept: None,
                    answered: Answered::Now,
                    level: Level::default(),
                })),
                after: durable(3),
            },
        ]
    );
}

#[test]
fn shard_issues_only_its_own_ids() {
    let mut rig = Rig::of_shard(Policy::default(), Ids::of(ShardId(2), 5));
    assert_eq!([rig.put("q", 0, None).0, rig.put("q", 0, None).0], [3, 8]);
    let never = rig.call(Op::Ack { id: MessageId(13), proof: token(1).into(), result: None });
    assert_eq!(never, Reply::Settle(Err(SettleRefusal::NeverIssued)));
    rig.call(Op::Purge { at_most: None, queue: queue("q") });
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
fn m4_past_and_far_times_refused() {
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
    rig.call(Op::Ack { id: overdue.message.id, proof: overdue.token.into(), result: None });
    let mut seen = 0;
    while let Reply::NextDue(Some(due)) = rig.call(Op::NextDue) {
        rig.pass(due.0 - rig.now.wall.0 - 1);
        assert!(rig.reserve("q", 9).is_empty(), "not a millisecond early");
        rig.pass(1);
        let grants = rig.reserve("q", 9);
        seen += grants.len();
        for g in grants {
            rig.call(Op::Ack { id: g.message.id, proof: g.token.into(), result: None });
        }
    }
    assert_eq!(seen, 5, "each one in the right turn of the ring, 136 years included");
}

/// Story: beanstalkd's protocol took 4,294,967,295 s, and the import of the exported message refused it as too far.
#[test]
fn the_longest_delay_is_one_for_all() {
    let mut rig = rig();
    let put = Enqueue { when: When::Seconds(u32::MAX), ..message("q", 0) };
    let Reply::Enqueue(Ok(put)) = rig.call(Op::Enqueue(Box::new(put))) else { panic!("refused") };
    let when = When::At { due_at: put.due_at, past: Past::Keep };
    let Reply::Enqueue(Ok(again)) = rig.call(Op::Enqueue(Box::new(Enqueue { when, ..message("q", 0) })))
    else {
        panic!("refused");
    };
    assert_eq!(again.due_at, put.due_at);
    rig.put("q", u64::from(u32::MAX) * 1_000, None);
}

#[test]
fn wall_step_never_makes_messages_early() {
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
fn full_disk_refuses_only_enqueues() {
    let mut rig = rig();
    let id = rig.put("q", 0, None);
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(Capacity::SettleOnly), &mut fx);
    let refused = rig.call(Op::Enqueue(Box::new(message("q", 0))));
    assert_eq!(refused, Reply::Enqueue(Err(EnqueueRefusal::DiskFull)));
    let grant = rig.reserve("q", 1).remove(0);
    assert_eq!(
        rig.call(Op::Ack { id, proof: grant.token.into(), result: None }),
        Reply::Settle(Ok(Settled::Acked.into()))
    );
    rig.engine.handle(rig.now, Input::Room(Capacity::Enough), &mut fx);
    rig.put("q", 0, None);
}

#[test]
fn dedupe_answer_outlives_its_message() {
    let mut rig = rig();
    let mut e = message("q", 0);
    e.dedupe_id = Some("req-1".into());
    let first = rig.call(Op::Enqueue(Box::new(e.clone())));
    let Reply::Enqueue(Ok(accepted)) = &first else { panic!("{first:?}") };
    assert_eq!(accepted.answered, Answered::Now);
    let again = Enqueued { answered: Answered::Before, ..accepted.clone() };
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
    rig.pass(5_000);
    rig.restart();
    assert_eq!(rig.call(Op::Enqueue(Box::new(e.clone()))), Reply::Enqueue(Ok(again)));
    assert!(rig.reserve("q", 1).is_empty());
    // Each try of a client that makes spans names another one.
    let headers = vec![("TraceParent".into(), "00-1-2-01".into()), ("tracestate".into(), "a=1".into())];
    let again = rig.call(Op::Enqueue(Box::new(Enqueue { headers, ..e.clone() })));
    assert!(matches!(again, Reply::Enqueue(Ok(again)) if again.answered == Answered::Before));
    let other = Enqueue { headers: vec![("trace".into(), "1".into())], ..e.clone() };
    let mismatch = rig.call(Op::Enqueue(Box::new(other)));
    assert_eq!(mismatch, Reply::Enqueue(Err(EnqueueRefusal::DedupeMismatch(MessageId(1)))));
    let other = Enqueue { body: "another".into(), ..e.clone() };
    let mismatch = rig.call(Op::Enqueue(Box::new(other)));
    assert_eq!(mismatch, Reply::Enqueue(Err(EnqueueRefusal::DedupeMismatch(MessageId(1)))));
    rig.pass(24 * 3_600_000);
    assert_ne!(rig.call(Op::Enqueue(Box::new(e))), first, "forgotten after its window");
}

/// A queue that forgets at once must not make a schedule enter an occurrence twice.
#[test]
fn own_dedupe_answer_outlives_queue_window() {
    let mut rig = rig();
    let settings = QueueSettings { dedupe_window_ms: Some(1), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    let of = |id: &str| Op::Enqueue(Box::new(Enqueue { dedupe_id: Some(id.into()), ..message("q", 0) }));
    let id = |reply: Reply| match reply {
        Reply::Enqueue(Ok(entered)) => entered.id,
        other => panic!("{other:?}"),
    };
    let (own, other) = (id(rig.call(of("\u{1}schedule/x"))), id(rig.call(of("schedule/x"))));
    let with_other_content =
        Enqueue { dedupe_id: Some("\u{1}schedule/x".into()), body: "another".into(), ..message("q", 0) };
    assert_eq!(id(rig.call(Op::Enqueue(Box::new(with_other_content)))), own, "its id names it");
    rig.pass(OWN_DEDUPE_WINDOW_MS - 1);
    rig.restart();
    assert_eq!(id(rig.call(of("\u{1}schedule/x"))), own);
    assert_ne!(id(rig.call(of("schedule/x"))), other);
    rig.pass(1);
    assert_ne!(id(rig.call(of("\u{1}schedule/x"))), own);
}

/// Story: an occurrence was cancelled with `forget_dedupe` while its schedule did not know yet that it had entered: it
/// entered once more.
#[test]
fn cancel_leaves_own_dedupe_id_taken() {
    for restart in [false, true] {
        let mut rig = rig();
        let own = Enqueue { dedupe_id: Some("\u{1}schedule/x".into()), ..message("q", 0) };
        let Reply::Enqueue(Ok(entered)) = rig.call(Op::Enqueue(Box::new(own.clone()))) else { panic!() };
        if restart {
            rig.restart();
        }
        let target = Target::Id(entered.id);
        let gone = rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Freed, target });
        assert!(matches!(gone, Reply::Change(Ok(_))), "{gone:?}");
        let Reply::Enqueue(Ok(again)) = rig.call(Op::Enqueue(Box::new(own))) else { panic!() };
        assert_eq!((again.id, again.answered), (entered.id, Answered::Before));
    }
}

/// Queues of the server itself are in no list and no figure.
#[test]
fn a_system_queue_is_not_shown() {
    let mut rig = rig();
    let name = duewheel_core::QueueName::system("#records").unwrap();
    rig.call(Op::Enqueue(Box::new(Enqueue::new(name.clone(), "x"))));
    rig.put("q", 0, None);
    rig.restart();
    let Reply::Queues(all) = rig.call(Op::Queues { after: None, limit: 10 }) else { panic!() };
    assert_eq!(all.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["q"]);
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!((stats.counts.ready, stats.queues), (1, 1));
    let Reply::Queues(one) = rig.call(Op::Queue { queue: name }) else { panic!() };
    assert_eq!(one[0].counts.ready, 1);
}

/// Story: the totals of the whole server counted its own records of targets, schedules and jobs as messages.
#[test]
fn system_queue_counts_in_no_total() {
    let mut rig = rig();
    let name = duewheel_core::QueueName::system("#records").unwrap();
    rig.put("q", 0, None);
    for _ in 0..2 {
        rig.call(Op::Enqueue(Box::new(Enqueue { key: Some(key("k")), ..Enqueue::new(name.clone(), "x") })));
        let ask = Reserve { queues: vec![name.clone()], ..rig.demand(&[], 1, 0) };
        let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(ask)) else { panic!() };
        assert_eq!(grants.len(), 1);
        rig.pass(60_000);
        rig.timeout();
    }
    let Reply::Queues(own) = rig.call(Op::Queue { queue: name.clone() }) else { panic!() };
    assert_eq!((own[0].totals.enqueued, own[0].totals.granted), (1, 2), "its own remain");
    rig.call(Op::Purge { queue: name, at_most: None });
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.totals, Totals { enqueued: 1, ..Totals::default() });
    assert_eq!((stats.lease_expired, stats.lateness.iter().sum::<u64>(), stats.lateness_sum_ms), (0, 0, 0));
    assert_eq!(rig.engine.recorded_counts().totals, stats.totals);
}

/// The records of the server had ids like any message, so whoever guessed one could read, change, lease and remove it.
#[test]
fn system_message_is_unreachable_by_id() {
    let mut rig = rig();
    let name = duewheel_core::QueueName::system("#records").unwrap();
    let record = Enqueue { key: Some(key("k")), ..Enqueue::new(name, "x") };
    let Reply::Enqueue(Ok(entered)) = rig.call(Op::Enqueue(Box::new(record))) else { panic!() };
    let id = entered.id;
    let target = || Target::Id(id);
    let edit = || Box::new(Edit::due(When::After(50)));
    let postpone = |target| Op::Postpone { target, edit: edit(), if_generation: None };
    assert_eq!(rig.call(Op::Get { target: target() }), Reply::View(None));
    let change = [
        Op::Outline { id },
        Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: target() },
        postpone(target()),
        Op::Fire { target: target() },
        Op::Redrive { id, delay_ms: None, died: None },
    ];
    for op in change {
        assert_eq!(rig.call(op.clone()), Reply::Change(Err(ChangeRefusal::NotFound)), "{op:?}");
    }
    let session = SessionId(7);
    let reserve = Op::ReserveOne { id, session, lease_ms: None };
    assert_eq!(rig.call(reserve), Reply::ReserveOne(Err(ChangeRefusal::NotFound)));
    assert_eq!(rig.call(Op::Delete { id, session }), Reply::Settle(Err(SettleRefusal::LeaseLost)));
    // The server itself reaches it.
    assert!(matches!(rig.call(Op::Get { target: Target::Own(id) }), Reply::View(Some(_))));
    assert!(matches!(rig.call(postpone(Target::Own(id))), Reply::Change(Ok(_))));
    assert!(matches!(
        rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Own(id) }),
        Reply::Change(Ok(_))
    ));
}

#[test]
fn postpone_with_body_keeps_id() {
    let mut rig = rig();
    let id = rig.put("q", 0, Some("k"));
    let postpone = |if_generation| Op::Postpone {
        target: Target::Key(queue("q"), key("k")),
        edit: Box::new(Edit { body: Some("new".into()), ..Edit::due(When::After(50)) }),
        if_generation,
    };
    assert_eq!(rig.call(postpone(Some(9))), Reply::Change(Err(ChangeRefusal::GenerationMismatch(1))));
    let Reply::Change(Ok(view)) = rig.call(postpone(Some(1))) else { panic!() };
    assert_eq!((view.id, view.generation, view.state), (id, 2, State::Scheduled));
    rig.restart();
    rig.pass(50);
    assert_eq!(&rig.reserve("q", 1)[0].message.body[..], b"new");
}

#[test]
fn enqueue_refusal_names_its_limit() {
    let mut rig = Rig::new(Policy { max_messages: 2, max_body: 10, max_headers: 4, ..Policy::default() });
    let mut refused = |e: Enqueue| match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(Err(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let e = || message("q", 5);
    assert_eq!(
        refused(Enqueue { body: vec![0; 11].into(), ..e() }),
        EnqueueRefusal::TooLarge(RefusedPart::Body, 10)
    );
    let headers = vec![("abc".into(), "de".into())];
    assert_eq!(refused(Enqueue { headers, ..e() }), EnqueueRefusal::TooLarge(RefusedPart::Headers, 4));
    let headers = vec![("#id".into(), "".into())];
    assert_eq!(refused(Enqueue { headers, ..e() }), EnqueueRefusal::OutOfRange(RefusedPart::Headers));
    assert_eq!(
        refused(Enqueue { dedupe_id: Some("".into()), ..e() }),
        EnqueueRefusal::OutOfRange(RefusedPart::DedupeId)
    );
    let options = Options { lease_ms: Some(0), ..Options::default() };
    assert_eq!(refused(Enqueue { options, ..e() }), EnqueueRefusal::OutOfRange(RefusedPart::Lease));
    let options = Options { backoff: Some(Backoff { min_ms: 2, max_ms: 1 }), ..Options::default() };
    assert_eq!(refused(Enqueue { options, ..e() }), EnqueueRefusal::OutOfRange(RefusedPart::Backoff));
    rig.put("q", 5, None);
    rig.put("q", 5, None);
    let full = rig.call(Op::Enqueue(Box::new(message("q", 5))));
    assert_eq!(full, Reply::Enqueue(Err(EnqueueRefusal::Overloaded(Limit::Messages(2)))));
}
