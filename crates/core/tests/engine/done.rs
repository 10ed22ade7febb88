//! Messages that have ended and are kept as done. `model.rs` compares looks and lists of them over random histories.

use duewheel_core::engine::*;
use duewheel_core::message::{DeadReason, DoneOutcome, Expiry, MaxAttempts, Options, State};
use duewheel_core::policy::{Backoff, OnExpiry, Policy, QueueSettings};
use duewheel_core::store::Capacity;
use duewheel_core::time::WallMs;
use duewheel_core::{MessageId, record::Record};

use crate::harness::*;

fn keep(rig: &mut Rig, name: &str, keep_done_ms: Option<u64>) {
    configure(rig, name, QueueSettings { keep_done_ms, ..QueueSettings::default() });
}

fn configure(rig: &mut Rig, name: &str, settings: QueueSettings) {
    let reply = rig.call(Op::Configure { queue: queue(name), settings });
    assert!(matches!(reply, Reply::Configured(_)), "{reply:?}");
}

fn recall(rig: &mut Rig, id: MessageId) -> Option<View> {
    match rig.call(Op::Recall { target: Target::Id(id) }) {
        Reply::View(view) => view.map(|view| *view),
        other => panic!("{other:?}"),
    }
}

fn outcome(rig: &mut Rig, id: MessageId) -> Option<DoneOutcome> {
    match recall(rig, id)?.dead {
        Some((DeadReason::Done(outcome), _)) => Some(outcome),
        other => panic!("{other:?}"),
    }
}

fn cancel(rig: &mut Rig, id: MessageId) {
    let reply = rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(id) });
    assert!(matches!(reply, Reply::Change(Ok(_))), "{reply:?}");
}

fn ack_one(rig: &mut Rig, name: &str) -> MessageId {
    let grant = rig.reserve(name, 1).pop().expect("a message");
    let acked = rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
    assert_eq!(acked, Reply::Settle(Ok(Settled::Acked.into())));
    grant.message.id
}

/// The ids that a list of done messages has, in its order, page by page.
fn listed(rig: &mut Rig, name: &str, limit: usize) -> Vec<MessageId> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let list = Op::List { queue: queue(name), state: Some(State::Done), after, limit, from: None };
        let Reply::Page(page) = rig.call(list) else { panic!() };
        ids.extend(page.views.iter().map(|view| view.message.id));
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

fn give_room(rig: &mut Rig, room: Capacity) {
    let mut fx = Effects::new();
    rig.engine.handle(rig.now, Input::Room(room), &mut fx);
    rig.absorb(fx);
}

#[test]
fn done_outcomes_survive_restart() {
    let mut rig = Rig::new(Policy::default());
    let settings = QueueSettings {
        keep_done_ms: Some(10_000),
        on_expiry: Some(OnExpiry::Drop),
        dead_ttl_ms: Some(1_000),
        ..QueueSettings::default()
    };
    configure(&mut rig, "q", settings);
    rig.put("q", 0, Some("order-1"));
    let acked = ack_one(&mut rig, "q");
    let cancelled = rig.put("q", 5_000, Some("order-2"));
    cancel(&mut rig, cancelled);
    let replaced = rig.put("q", 5_000, Some("order-3"));
    let again = Enqueue { key: Some(key("order-3")), if_exists: IfExists::Replace, ..message("q", 60_000) };
    rig.call(Op::Enqueue(Box::new(again)));
    let options = Options { expiry: Some(Expiry::In(10)), ..Options::default() };
    let Reply::Enqueue(Ok(dropped)) = rig.call(Op::Enqueue(Box::new(Enqueue { options, ..message("q", 0) })))
    else {
        panic!()
    };
    rig.pass(11);
    assert!(rig.reserve("q", 1).is_empty());
    let begins = InitialState::Dead;
    let Reply::Enqueue(Ok(died)) = rig.call(Op::Enqueue(Box::new(Enqueue { begins, ..message("q", 0) })))
    else {
        panic!()
    };
    rig.pass(1_000);
    rig.timeout();
    for again in 0..2 {
        let ends = [acked, cancelled, replaced, dropped.id, died.id].map(|id| outcome(&mut rig, id));
        let [one, two, three, four] =
            [DoneOutcome::Acked, DoneOutcome::Cancelled, DoneOutcome::Replaced, DoneOutcome::Expired];
        assert_eq!(ends, [Some(one), Some(two), Some(three), Some(four), Some(four)], "restarts: {again}");
        let view = recall(&mut rig, acked).unwrap();
        assert_eq!((view.state, view.attempt), (State::Done, 1));
        assert_eq!((view.message.queue.as_str(), view.message.id), ("q", acked));
        assert_eq!(listed(&mut rig, "q", 2), [acked, cancelled, replaced, dropped.id, died.id]);
        rig.restart();
    }
    // The present holder of the key, not what had it.
    let Reply::View(Some(holder)) = rig.call(Op::Recall { target: Target::Key(queue("q"), key("order-3")) })
    else {
        panic!()
    };
    assert_eq!(holder.state, State::Scheduled);
}

#[test]
fn done_message_has_detail_of_its_end() {
    let mut rig = Rig::new(Policy::default());
    keep(&mut rig, "q", Some(10_000));
    let ack = |rig: &mut Rig, id, token, detail: Option<&[u8]>| {
        let before = rig.engine.done_counts().bytes;
        let ack = Op::ack(id, token).with_detail(detail.map(Into::into)).into_op();
        assert!(matches!(rig.call(ack), Reply::Settle(Ok(_))));
        rig.engine.done_counts().bytes - before
    };
    let mut took = Vec::new();
    let ids = [None, Some(&b"attempts"[..])].map(|detail| {
        let id = rig.put("q", 0, None);
        let grant = rig.reserve("q", 1).remove(0);
        took.push(ack(&mut rig, id, grant.token, detail));
        id
    });
    assert_eq!(took[1], took[0] + 8);
    // One that a message had stays; a superseded one ends with what its last settlement brings.
    let third = rig.put("q", 0, Some("k"));
    let mut grant = rig.reserve("q", 1).remove(0);
    let nack = |token| Op::nack(third, token, Attempt::Failed, Some(0), "");
    rig.call(nack(grant.token).with_detail(Some((*b"one").into())).into_op());
    grant = rig.reserve("q", 1).remove(0);
    let newer = Enqueue { key: Some(key("k")), if_exists: IfExists::Supersede, ..message("q", 60_000) };
    rig.call(Op::Enqueue(Box::new(newer)));
    assert_eq!(look(&mut rig, third).detail.as_deref(), Some(&b"one"[..]));
    rig.call(nack(grant.token).with_detail(Some((*b"two").into())).into_op());
    assert_eq!(outcome(&mut rig, third), Some(DoneOutcome::Superseded));
    for _ in 0..2 {
        let details = [ids[0], ids[1], third].map(|id| recall(&mut rig, id).unwrap().detail);
        assert_eq!(details.each_ref().map(|d| d.as_deref()), [None, Some(&b"attempts"[..]), Some(b"two")]);
        rig.restart();
    }
}

#[test]
fn result_of_an_ack_stays_with_its_message() {
    let mut rig = Rig::new(Policy::default());
    keep(&mut rig, "q", Some(10_000));
    let bytes = |rig: &Rig| rig.engine.done_counts().bytes;
    let result = "[1, \"two\"]";
    let acked = |rig: &mut Rig, name: &str, result: Option<&str>| {
        rig.put(name, 0, None);
        let grant = rig.reserve(name, 1).pop().expect("a message");
        let (id, proof) = (grant.message.id, grant.token.into());
        let before = bytes(rig);
        rig.call(Op::Ack { id, proof, result: result.map(Box::from) });
        let took = bytes(rig) - before;
        let again = rig.call(Op::Ack { id, proof, result: Some("2".into()) });
        assert!(
            matches!(again, Reply::Settle(Ok(Applied { what: Settled::Already { .. }, .. }))),
            "{again:?}"
        );
        (id, took)
    };
    let ((with, took), (without, less)) = (acked(&mut rig, "q", Some(result)), acked(&mut rig, "q", None));
    let (not_kept, _) = acked(&mut rig, "other", Some(result));
    assert!(took >= less + result.len() as u64, "{took} {less}");
    for _ in 0..2 {
        let view = recall(&mut rig, with).unwrap();
        assert_eq!((view.message.result(), view.message.given_headers().count()), (Some(result), 0));
        assert_eq!(recall(&mut rig, without).unwrap().message.result(), None);
        assert!(recall(&mut rig, not_kept).is_none());
        rig.restart();
    }
}

/// Story: an order that had died once was shown as dead by its key, although the same order was done since.
#[test]
fn key_recalls_its_latest_holder() {
    let mut rig = Rig::new(Policy::default());
    keep(&mut rig, "q", Some(100_000));
    let by_key = |rig: &mut Rig| match rig.call(Op::Recall { target: Target::Key(queue("q"), key("k")) }) {
        Reply::View(view) => view.map(|view| (view.message.id, view.state)),
        other => panic!("{other:?}"),
    };
    let bury = |rig: &mut Rig| {
        let grant = rig.reserve("q", 1).pop().expect("a message");
        let id = grant.message.id;
        rig.call(Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() });
        id
    };
    rig.put("q", 0, Some("k"));
    let first = ack_one(&mut rig, "q");
    assert_eq!(by_key(&mut rig), Some((first, State::Done)));
    rig.put("q", 0, Some("k"));
    let second = ack_one(&mut rig, "q");
    assert_eq!(by_key(&mut rig), Some((second, State::Done)), "the newer one of two");
    rig.put("q", 0, Some("k"));
    let dead = bury(&mut rig);
    assert_eq!(by_key(&mut rig), Some((dead, State::Dead)));
    rig.put("q", 0, Some("k"));
    let third = ack_one(&mut rig, "q");
    for _ in 0..2 {
        assert_eq!(by_key(&mut rig), Some((third, State::Done)), "the dead one is older");
        rig.restart();
    }
    // It comes back, and dies again, a moment later: within one millisecond a start does not keep the order.
    rig.pass(1);
    rig.call(Op::Redrive { id: dead, delay_ms: None, died: None });
    assert_eq!(by_key(&mut rig), Some((dead, State::Ready)));
    assert_eq!(bury(&mut rig), dead);
    assert_eq!(by_key(&mut rig), Some((dead, State::Dead)));
    // Changes mean the dead one all the same.
    let target = Target::Key(queue("q"), key("k"));
    assert!(
        matches!(rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target }), Reply::Change(Ok(was)) if was.what.id == dead)
    );
    assert_eq!(by_key(&mut rig), Some((dead, State::Done)));
}

#[test]
fn done_message_is_hidden_from_operations() {
    let mut rig = Rig::new(Policy::default());
    keep(&mut rig, "q", Some(10_000));
    let id = rig.put("q", 5_000, Some("k"));
    cancel(&mut rig, id);
    let kept = rig.table.rows().into_iter().next().unwrap().message.id;
    assert_ne!(kept, id);
    for id in [id, kept] {
        let target = Target::Id(id);
        let changes = [
            Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: target.clone() },
            Op::Fire { target: target.clone() },
            Op::Redrive { id, delay_ms: None, died: None },
            Op::Outline { id },
        ];
        for op in changes {
            assert_eq!(rig.call(op), Reply::Change(Err(ChangeRefusal::NotFound)));
        }
        assert_eq!(rig.call(Op::Get { target }), Reply::View(None));
        let one = Op::ReserveOne { id, session: duewheel_core::SessionId(3), lease_ms: None };
        assert_eq!(rig.call(one), Reply::ReserveOne(Err(ChangeRefusal::NotFound)));
    }
    assert_eq!(rig.call(Op::Get { target: Target::Key(queue("q"), key("k")) }), Reply::View(None));
    let Reply::Queues(queues) = rig.call(Op::Queues { after: None, limit: 100 }) else { panic!() };
    assert_eq!(queues.len(), 1, "no queue of the server is shown");
    assert_eq!((queues[0].name.as_str(), queues[0].done, queues[0].counts.dead), ("q", 1, 0));
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!((stats.counts, stats.bytes, stats.queues), (Counts::default(), 0, 1));
    assert_eq!((stats.totals.enqueued, stats.totals.cancelled), (1, 1), "each message is counted once");
}

#[test]
fn retention_change_erases_done_messages() {
    let mut rig = Rig::new(Policy::default());
    keep(&mut rig, "q", Some(10_000));
    let first = rig.put("q", 5_000, None);
    cancel(&mut rig, first);
    rig.pass(6_000);
    let second = rig.put("q", 5_000, None);
    cancel(&mut rig, second);
    rig.pass(4_000);
    rig.timeout();
    assert_eq!((outcome(&mut rig, first), rig.engine.done_counts().kept), (None, 1));
    assert_eq!(outcome(&mut rig, second), Some(DoneOutcome::Cancelled));
    // Shorter at once: it has been kept for 4 s.
    keep(&mut rig, "q", Some(4_000));
    rig.timeout();
    assert_eq!((outcome(&mut rig, second), rig.engine.done_counts().kept), (None, 0));
    let third = rig.put("q", 5_000, None);
    cancel(&mut rig, third);
    keep(&mut rig, "q", None);
    assert_eq!((outcome(&mut rig, third), rig.engine.done_counts().kept, rig.table.len()), (None, 0, 0));
    let fourth = rig.put("q", 5_000, None);
    cancel(&mut rig, fourth);
    assert_eq!((outcome(&mut rig, fourth), rig.table.len()), (None, 0));
}

#[test]
fn purge_erases_done_messages() {
    let mut rig = Rig::new(Policy::default());
    keep(&mut rig, "q", Some(10_000));
    keep(&mut rig, "other", Some(10_000));
    let ended = [rig.put("q", 5_000, Some("k")), rig.put("other", 5_000, None)];
    ended.into_iter().for_each(|id| cancel(&mut rig, id));
    let pending = rig.put("q", 5_000, None);
    assert_eq!(rig.call(Op::Purge { at_most: None, queue: queue("q") }), Reply::Count(1.into()));
    assert_eq!(
        [pending, ended[0], ended[1]].map(|id| outcome(&mut rig, id)),
        [None, None, Some(DoneOutcome::Cancelled)]
    );
    assert_eq!(listed(&mut rig, "q", 10), []);
    rig.restart();
    assert_eq!([pending, ended[0]].map(|id| outcome(&mut rig, id)), [None, None]);
}

#[test]
fn oldest_done_leave_at_count_limit() {
    let mut rig = Rig::new(Policy { max_done: 20, max_step: 4, ..Policy::default() });
    keep(&mut rig, "q", Some(1_000_000));
    let ids: Vec<MessageId> = (0..60)
        .map(|_| {
            let id = rig.put("q", 5_000, None);
            cancel(&mut rig, id);
            id
        })
        .collect();
    rig.settle();
    assert_eq!(listed(&mut rig, "q", 7), ids[40..]);
    let counts = rig.engine.done_counts();
    assert_eq!((counts.kept, counts.given_up, counts.not_kept), (20, 40, 0));
}

#[test]
fn oldest_done_leave_at_byte_limit() {
    let mut rig = Rig::new(Policy { max_done_bytes: 5_000, max_step: 4, ..Policy::default() });
    keep(&mut rig, "q", Some(1_000_000));
    let ids: Vec<MessageId> = (0..60)
        .map(|_| {
            let large = Enqueue { when: When::After(5_000), ..Enqueue::new(queue("q"), vec![7; 500]) };
            let Reply::Enqueue(Ok(put)) = rig.call(Op::Enqueue(Box::new(large))) else { panic!() };
            cancel(&mut rig, put.id);
            put.id
        })
        .collect();
    rig.settle();
    let counts = rig.engine.done_counts();
    assert!((3_000..=5_000).contains(&counts.bytes), "{counts:?}");
    assert_eq!((counts.kept + counts.given_up, counts.not_kept), (60, 0), "{counts:?}");
    assert_eq!(listed(&mut rig, "q", 7), ids[60 - counts.kept as usize..]);
}

#[test]
fn done_messages_are_dropped_first() {
    let mut rig = Rig::new(Policy::default());
    for name in ["a", "b"] {
        keep(&mut rig, name, Some(1_000_000));
        let id = rig.put(name, 5_000, None);
        cancel(&mut rig, id);
    }
    let pending = rig.put("a", 5_000, None);
    give_room(&mut rig, Capacity::SettleOnly);
    rig.timeout();
    assert_eq!(rig.engine.done_counts(), DoneCounts { given_up: 2, ..DoneCounts::default() });
    cancel(&mut rig, pending);
    assert_eq!((outcome(&mut rig, pending), rig.engine.done_counts().not_kept), (None, 1));
    assert_eq!(rig.table.len(), 0);
}

/// Without the setting an end costs what it has always cost: one record.
#[test]
fn queue_without_retention_writes_no_extra() {
    let mut rig = Rig::new(Policy::default());
    let id = rig.put("q", 5_000, Some("k"));
    let (_, fx) = rig.raw(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(id) });
    let records: Vec<&Record> =
        fx.iter().filter_map(|e| if let Effect::Append(record) = e { Some(record) } else { None }).collect();
    assert!(matches!(records[..], [Record::Removed { .. }]), "{records:?}");
}

#[test]
fn oversized_replaced_message_is_not_kept() {
    let mut rig = Rig::new(Policy { max_op_bytes: 30_000, ..Policy::default() });
    keep(&mut rig, "q", Some(10_000));
    let large = |exists| Enqueue {
        key: Some(key("k")),
        if_exists: exists,
        when: When::After(5_000),
        ..Enqueue::new(queue("q"), vec![7; 12_000])
    };
    let Reply::Enqueue(Ok(first)) = rig.call(Op::Enqueue(Box::new(large(IfExists::Reject)))) else {
        panic!()
    };
    let Reply::Enqueue(Ok(second)) = rig.call(Op::Enqueue(Box::new(large(IfExists::Replace)))) else {
        panic!()
    };
    assert_eq!((outcome(&mut rig, first.id), rig.engine.done_counts().not_kept), (None, 1));
    cancel(&mut rig, second.id);
    assert_eq!(outcome(&mut rig, second.id), Some(DoneOutcome::Cancelled), "alone it fits");
}

/// A list of what an act keeps of the queue `q`, under the ids that it has there.
fn kept(rig: &mut Rig, act: &str) -> Vec<MessageId> {
    let list = Op::List {
        queue: queue("q").of_act(act).unwrap(),
        state: Some(State::Done),
        after: None,
        limit: 9,
        from: None,
    };
    let Reply::Page(page) = rig.call(list) else { panic!() };
    page.views.iter().map(|view| view.message.id).collect()
}

fn change(rig: &mut Rig, op: Op) -> Result<Outline, ChangeRefusal> {
    match rig.call(op) {
        Reply::Change(changed) => changed.map(|outline| *outline.what),
        other => panic!("{other:?}"),
    }
}

fn cancel_kept(rig: &mut Rig, id: MessageId, keep_ms: u64) -> Result<Outline, ChangeRefusal> {
    cancel_for(rig, id, "a1", keep_ms)
}

fn cancel_for(rig: &mut Rig, id: MessageId, act: &str, keep_ms: u64) -> Result<Outline, ChangeRefusal> {
    let keep = Some(KeptFor { act: act.into(), keep_ms });
    change(rig, Op::Cancel { target: Target::Id(id), dedupe_id: DedupeId::Stays, keep })
}

fn look(rig: &mut Rig, id: MessageId) -> View {
    match rig.call(Op::Get { target: Target::Id(id) }) {
        Reply::View(view) => *view.expect("it is there"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn restored_message_is_as_before() {
    let mut rig = Rig::new(Policy::default());
    let options = Options {
        lease_ms: Some(7_000),
        max_attempts: MaxAttempts::new(9),
        backoff: Some(Backoff { min_ms: 5, max_ms: 50 }),
        spread_ms: Some(40),
        expiry: Some(Expiry::In(90_000)),
        ..Options::default()
    };
    let order = Enqueue {
        key: Some(key("order-1")),
        headers: vec![("a".into(), "1".into())],
        priority: Some(3),
        dedupe_id: Some("d".into()),
        options,
        ..message("q", 0)
    };
    let Reply::Enqueue(Ok(first)) = rig.call(Op::Enqueue(Box::new(order))) else { panic!() };
    rig.pass(50);
    let grant = rig.reserve("q", 1).pop().expect("a message");
    let nack = Op::nack(first.id, grant.token, Attempt::Failed, Some(5_000), "status_500");
    rig.call(nack.with_detail(Some((*b"how").into())).into_op());
    let dead = rig.put("q", 0, Some("order-2"));
    let grant = rig.reserve("q", 1).pop().expect("a message");
    rig.call(Op::bury(dead, grant.token, "no use").op().clone());
    for (id, detail) in [(first.id, Some(&b"how"[..])), (dead, None)] {
        let before = look(&mut rig, id);
        assert_eq!(before.detail.as_deref(), detail);
        assert_eq!(cancel_kept(&mut rig, id, 60_000).unwrap().id, id);
        rig.restart();
        rig.pass(1_000);
        let ended = recall(&mut rig, id).expect("it is kept");
        assert_eq!((ended.state, ended.message.id), (State::Done, id));
        assert!(listed(&mut rig, "q", 9).is_empty(), "the queue keeps none");
        let of_act = kept(&mut rig, "a1");
        assert_eq!(of_act.len(), 1);
        rig.restart();
        let restored = change(&mut rig, Op::Restore { id: of_act[0] }).unwrap();
        assert_eq!(
            change(&mut rig, Op::Restore { id: of_act[0] }),
            Err(ChangeRefusal::NotDead),
            "it is back"
        );
        rig.restart();
        assert_eq!(
            change(&mut rig, Op::Restore { id: of_act[0] }),
            Err(ChangeRefusal::NotDead),
            "it is back"
        );
        assert!(kept(&mut rig, "a1").is_empty() && recall(&mut rig, id).is_none());
        let after = look(&mut rig, restored.id);
        let content = duewheel_core::message::MessageContent { id, ..(*after.message).clone() };
        assert_eq!(content, *before.message);
        let (due_in_ms, message) = (after.due_in_ms, before.message.clone());
        assert_eq!(View { due_in_ms: before.due_in_ms, message, ..after }, before);
        assert_eq!(due_in_ms, before.due_in_ms.saturating_sub(1_000));
    }
}

#[test]
fn taken_key_refuses_restore() {
    let mut rig = Rig::new(Policy::default());
    let first = rig.put("q", 5_000, Some("k"));
    cancel_kept(&mut rig, first, 60_000).unwrap();
    let second = rig.put("q", 6_000, Some("k"));
    let of_act = kept(&mut rig, "a1")[0];
    for _ in 0..2 {
        let refused = change(&mut rig, Op::Restore { id: of_act });
        assert!(matches!(refused, Err(ChangeRefusal::KeyExists(holder)) if holder.id == second));
        rig.restart();
    }
    cancel(&mut rig, second);
    assert_eq!(change(&mut rig, Op::Restore { id: of_act }).unwrap().key, Some(key("k")));
}

#[test]
fn act_keeps_its_messages_for_its_time() {
    let mut rig = Rig::new(Policy::default());
    let ids = [1, 2].map(|n| rig.put("q", n * 100_000, None));
    cancel_kept(&mut rig, ids[0], 10_000).unwrap();
    cancel(&mut rig, ids[1]);
    assert_eq!((kept(&mut rig, "a1").len(), rig.engine.done_counts().kept), (1, 1));
    assert_eq!((kept(&mut rig, "a2").len(), recall(&mut rig, ids[1])), (0, None));
    // Neither a setting of the queue nor a purge ends it.
    keep(&mut rig, "q", Some(1_000));
    keep(&mut rig, "q", None);
    rig.call(Op::Purge { at_most: None, queue: queue("q") });
    rig.pass(9_999);
    rig.timeout();
    assert!(recall(&mut rig, ids[0]).is_some());
    let of_act = kept(&mut rig, "a1")[0];
    rig.pass(1);
    assert_eq!(change(&mut rig, Op::Restore { id: of_act }), Err(ChangeRefusal::NotFound));
    rig.timeout();
    assert_eq!((rig.engine.done_counts().kept, rig.table.len()), (0, 0));
    // No less than the queue keeps what has ended.
    keep(&mut rig, "q", Some(20_000));
    let last = rig.put("q", 100_000, None);
    cancel_kept(&mut rig, last, 10_000).unwrap();
    rig.pass(19_999);
    rig.timeout();
    assert!(recall(&mut rig, last).is_some());
}

#[test]
fn message_that_cannot_be_kept_stays() {
    let mut rig = Rig::new(Policy { max_done: 2, max_step: 1, ..Policy::default() });
    let ids = [1, 2].map(|n| rig.put("q", n * 100_000, None));
    for (room, refusal) in [
        (Capacity::Busy, ChangeRefusal::Busy),
        (Capacity::SettleOnly, ChangeRefusal::DiskFull),
        (Capacity::RemoveOnly, ChangeRefusal::DiskFull),
    ] {
        give_room(&mut rig, room);
        assert_eq!(cancel_kept(&mut rig, ids[0], 10_000), Err(refusal), "{room:?}");
    }
    give_room(&mut rig, Capacity::Enough);
    cancel_kept(&mut rig, ids[0], 10_000).unwrap();
    let refused = cancel_kept(&mut rig, ids[1], 10_000);
    assert_eq!(refused, Err(ChangeRefusal::Overloaded(Limit::Messages(2))));
    rig.timeout();
    // What an act keeps is not given up for the limit.
    assert_eq!((kept(&mut rig, "a1").len(), look(&mut rig, ids[1]).state), (1, State::Scheduled));
    let bury = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).pop().expect("a message");
    rig.call(Op::bury(bury, grant.token, "").op().clone());
    let keep = Some(KeptFor { act: "a1".into(), keep_ms: 1 });
    let other = Op::RemoveDead { id: bury, died: WallMs(1), keep };
    assert_eq!(change(&mut rig, other), Err(ChangeRefusal::NotDead));
}

/// Story: each act keeps its messages in a queue of its own. Acts of one message each took all places of queues, and
/// nobody could use a new queue.
#[test]
fn acts_leave_places_for_other_queues() {
    let mut rig = Rig::new(Policy { max_queues: 80, ..Policy::default() });
    let ids: Vec<MessageId> = (0..12).map(|n| rig.put("q", n * 100_000, None)).collect();
    for (n, id) in ids[..10].iter().enumerate() {
        cancel_for(&mut rig, *id, &format!("a{n}"), 10_000).unwrap();
    }
    let refused = cancel_for(&mut rig, ids[10], "a10", 10_000);
    assert_eq!(refused, Err(ChangeRefusal::Overloaded(Limit::Queues(10))));
    cancel_for(&mut rig, ids[11], "a9", 10_000).unwrap();
    rig.restart();
    assert!(cancel_for(&mut rig, ids[10], "a10", 10_000).is_err(), "the same after a restart");
    rig.pass(10_000);
    rig.timeout();
    cancel_for(&mut rig, ids[10], "a10", 10_000).unwrap();
}

/// Story: what a full disk had taken from acts counted for their limit until the next restart.
#[test]
fn full_disk_frees_places_of_acts() {
    let mut rig = Rig::new(Policy { max_done: 2, ..Policy::default() });
    let ids = [1, 2].map(|n| rig.put("q", n * 100_000, None));
    cancel_kept(&mut rig, ids[0], 10_000).unwrap();
    give_room(&mut rig, Capacity::SettleOnly);
    rig.timeout();
    assert_eq!(rig.engine.done_counts(), DoneCounts { given_up: 1, ..DoneCounts::default() });
    give_room(&mut rig, Capacity::Enough);
    cancel_kept(&mut rig, ids[1], 10_000).unwrap();
}

#[test]
fn purge_at_most_so_many() {
    let mut rig = Rig::new(Policy::default());
    for _ in 0..3 {
        rig.put("q", 0, None);
    }
    rig.reserve("q", 1);
    let purge = |rig: &mut Rig, most| rig.call(Op::Purge { queue: queue("q"), at_most: Some(most) });
    assert_eq!(purge(&mut rig, 1), Reply::Count(2.into()), "there are more, leased ones not counted");
    assert_eq!(rig.table.len(), 3);
    assert_eq!(purge(&mut rig, 2), Reply::Count(2.into()));
    assert_eq!(rig.table.len(), 1);
    assert_eq!(purge(&mut rig, 0), Reply::Count(0.into()));
}
