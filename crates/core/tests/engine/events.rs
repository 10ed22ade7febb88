//! Every transition of a message's life has one event, in order.

use duewheel_core::engine::{Attempt, Edit, Enqueue, IfExists, Op, Reply, ShardEvents, Target, When};
use duewheel_core::event::{EventKind, MessageEvent};
use duewheel_core::id::{Lsn, MessageId, ShardId};
use duewheel_core::message::MaxAttempts;
use duewheel_core::name::QueueName;
use duewheel_core::policy::{OnExpiry, Policy, QueueSettings};
use duewheel_core::store::More;
use duewheel_core::time::Partial;

use crate::harness::*;

fn ask(rig: &mut Rig, after: Option<u64>, limit: usize, fired_after: Option<u64>) -> ShardEvents {
    let op = Op::Events { shard: ShardId(0), after: after.map(Lsn), limit, fired_after };
    match rig.call(op) {
        Reply::Events(events) => *events,
        other => panic!("{other:?}"),
    }
}

/// Everything since the start, with what became due since `rig` is followed.
fn told(rig: &mut Rig) -> Vec<String> {
    ask(rig, Some(0), 1_000, Some(0)).page.events.iter().map(line).collect()
}

fn line(event: &MessageEvent) -> String {
    let mut line = event.kind.as_str().to_owned();
    if let Some(id) = event.id {
        line += &format!(" {id}");
    }
    for part in [
        event.attempt.map(|n| format!("attempt {n}")),
        event.reason.map(|reason| reason.as_str().to_owned()),
        event.count.map(|n| format!("count {n}")),
        event.due_at.map(|due| format!("due {}", due.0 - WALL)),
        event.key.as_ref().map(|key| format!("key {}", key.as_str())),
    ] {
        line += &part.map(|part| format!(" {part}")).unwrap_or_default();
    }
    line
}

/// A rig that somebody follows.
fn followed() -> Rig {
    let mut rig = Rig::new(Policy::default());
    ask(&mut rig, None, 1, None);
    rig
}

fn fails(rig: &mut Rig, id: MessageId, delay_ms: u64, note: &str) {
    let grant = rig.reserve("q", 1).remove(0);
    assert_eq!(grant.message.id, id);
    rig.call(Op::Nack {
        id,
        proof: grant.token.into(),
        attempt: Attempt::Failed,
        delay_ms: Some(delay_ms),
        priority: None,
        note: note.into(),
    });
}

fn settings(rig: &mut Rig, settings: QueueSettings) {
    assert!(matches!(rig.call(Op::Configure { queue: queue("q"), settings }), Reply::Configured(_)));
}

/// Story: the wall clock of a group is rounded up, and events showed each due time 1 ms after the answer.
#[test]
fn events_and_answers_share_due_time() {
    for partial in [Partial::Whole, Partial::Cut] {
        let mut rig = followed();
        rig.now.partial = partial;
        let id = rig.put("q", 1_000, Some("order"));
        let mut shown = Vec::new();
        let mut look = |rig: &mut Rig| match rig.call(Op::Get { target: Target::Id(id) }) {
            Reply::View(Some(view)) => shown.push(view.due_at),
            other => panic!("{other:?}"),
        };
        look(&mut rig);
        rig.pass(300);
        let later = Edit { when: Some(When::After(2_000)), ..Edit::default() };
        rig.call(Op::Postpone { target: Target::Id(id), edit: Box::new(later), if_generation: None });
        look(&mut rig);
        rig.pass(2_001);
        fails(&mut rig, id, 0, "not today");
        look(&mut rig);
        let page = ask(&mut rig, Some(0), 1_000, None).page;
        let told: Vec<_> = page.events.iter().filter_map(|event| event.due_at).collect();
        assert_eq!(told, shown, "{partial:?}");
    }
}

#[test]
fn superseded_message_has_its_event() {
    let mut rig = followed();
    let id = rig.put("q", 1, Some("k"));
    rig.pass(1);
    let token = rig.reserve("q", 1).remove(0).token;
    let newer = Enqueue { key: Some(key("k")), if_exists: IfExists::Supersede, ..message("q", 60_000) };
    rig.call(Op::Enqueue(Box::new(newer)));
    rig.call(Op::Undelivered { leases: vec![(id, token)] });
    let events: Vec<String> = told(&mut rig)
        .iter()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .filter(|line| !line.starts_with("fired"))
        .collect();
    assert_eq!(events, ["accepted 1", "granted 1", "changed 1", "accepted 2", "superseded 1"]);
}

#[test]
fn events_cover_whole_message_life() {
    let mut rig = followed();
    settings(&mut rig, QueueSettings { max_attempts: MaxAttempts::new(3), ..QueueSettings::default() });
    let id = rig.put("q", 1_000, Some("order"));
    let later = Edit { when: Some(When::After(2_000)), ..Edit::default() };
    let target = || Target::Id(id);
    rig.call(Op::Postpone { target: target(), edit: Box::new(later), if_generation: None });
    rig.call(Op::Postpone {
        target: target(),
        edit: Box::new(Edit { body: Some("other".into()), ..Edit::default() }),
        if_generation: None,
    });
    rig.pass(2_000);
    fails(&mut rig, id, 500, "not today");
    rig.pass(500);
    // Its lease runs out.
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Extend { id, proof: grant.token.into(), lease_ms: Some(3_000) });
    rig.pass(3_000);
    rig.timeout();
    fails(&mut rig, id, 0, "never");
    rig.call(Op::Redrive { id, delay_ms: None, died: None });
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Ack { id, proof: grant.token.into(), result: None });
    let life = told(&mut rig);
    assert_eq!(
        life,
        [
            "accepted 1 due 1000 key order",
            "postponed 1 due 2000",
            "changed 1 due 2000 key order",
            "fired 1",
            "granted 1 attempt 1",
            "returned 1 attempt 1 nacked due 2500",
            "fired 1",
            "granted 1 attempt 2",
            "extended 1 attempt 2",
            "lease_expired 1 attempt 2 due 2500",
            "granted 1 attempt 3",
            "dead 1 attempt 3 max_attempts",
            "redriven 1 attempt 3 due 2500",
            "granted 1 attempt 4",
            "acked 1",
        ]
    );
}

#[test]
fn the_other_ends_of_a_life() {
    let mut rig = followed();
    let cancelled = rig.put("q", 1_000, None);
    rig.call(Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Id(cancelled),
    });
    rig.put("q", 1_000, Some("k"));
    let replaced = Enqueue { key: Some(key("k")), if_exists: IfExists::Replace, ..message("q", 5_000) };
    rig.call(Op::Enqueue(Box::new(replaced)));
    rig.call(Op::Fire { target: Target::Key(queue("q"), key("k")) });
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Bury { id: grant.message.id, proof: grant.token.into(), priority: None, note: "".into() });
    let given_back = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Undelivered { leases: vec![(given_back, grant.token)] });
    rig.call(Op::Purge { at_most: None, queue: queue("q") });
    assert_eq!(
        told(&mut rig),
        [
            "accepted 1 due 1000",
            "cancelled 1",
            "accepted 2 due 1000 key k",
            "replaced 2",
            "accepted 3 due 5000 key k",
            "fired 3 asked due 0",
            "granted 3 attempt 1",
            "dead 3 attempt 1 buried",
            "accepted 4 due 0",
            "granted 4 attempt 1",
            "returned 4 due 0",
            "purged count 2",
        ]
    );
}

#[test]
fn a_message_that_expires() {
    let mut rig = followed();
    for on_expiry in [OnExpiry::Drop, OnExpiry::Dead] {
        let expires_in_ms = Some(10);
        settings(
            &mut rig,
            QueueSettings { expires_in_ms, on_expiry: Some(on_expiry), ..QueueSettings::default() },
        );
        rig.put("q", 0, None);
        rig.pass(1_000);
        assert!(rig.reserve("q", 1).is_empty());
    }
    assert_eq!(told(&mut rig), ["accepted 1 due 0", "expired 1", "accepted 2 due 1000", "dead 2 expired"]);
}

/// A consumer may nack after its lease ran out.
#[test]
fn late_nack_is_reported_as_return() {
    let mut rig = followed();
    let id = rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).remove(0);
    rig.pass(Policy::default().defaults.lease_ms);
    rig.timeout();
    rig.call(Op::Nack {
        id,
        proof: grant.token.into(),
        attempt: Attempt::Failed,
        delay_ms: Some(100),
        priority: None,
        note: "".into(),
    });
    // In the same millisecond.
    let later = Edit { when: Some(When::After(9_000)), ..Edit::default() };
    rig.call(Op::Postpone { target: Target::Id(id), edit: Box::new(later), if_generation: None });
    let kinds: Vec<String> =
        told(&mut rig).iter().map(|line| line.split(' ').next().unwrap().into()).collect();
    assert_eq!(kinds, ["accepted", "granted", "lease_expired", "returned", "postponed"]);
}

#[test]
fn system_queues_have_no_events() {
    let mut rig = followed();
    let hidden = QueueName::system("#schedules").unwrap();
    rig.call(Op::Enqueue(Box::new(Enqueue { when: When::After(10), ..Enqueue::new(hidden.clone(), "") })));
    rig.pass(20);
    rig.timeout();
    rig.call(Op::Purge { at_most: None, queue: hidden });
    let events = ask(&mut rig, Some(0), 1_000, Some(0));
    assert_eq!((events.page.events, events.page.upto), (vec![], rig.table.applied()));
}

#[test]
fn fired_events_reach_followers_once() {
    let mut rig = Rig::new(Policy::default());
    rig.put("q", 10, None);
    rig.pass(10);
    rig.timeout();
    assert_eq!(told(&mut rig), ["accepted 1 due 10"], "nobody followed");
    rig.put("q", 10, None);
    rig.pass(10);
    rig.timeout();
    let first = ask(&mut rig, Some(1), 1_000, Some(0));
    let kinds: Vec<EventKind> = first.page.events.iter().map(|event| event.kind).collect();
    assert_eq!((kinds, first.fired), (vec![EventKind::Accepted, EventKind::Fired], 1));
    let again = ask(&mut rig, Some(first.page.upto.0), 1_000, Some(first.fired));
    assert_eq!((again.page.events, again.fired), (vec![], 1));
    let catching_up = ask(&mut rig, Some(1), 1_000, None);
    assert_eq!(catching_up.page.events.len(), 1, "by their positions: those of records");
    // Nobody asks for more than ten seconds.
    rig.put("q", 20_000, None);
    rig.pass(20_000);
    rig.timeout();
    let last = ask(&mut rig, Some(2), 1_000, Some(first.fired));
    assert_eq!((last.page.events.len(), last.fired), (1, 1));
}

#[test]
fn event_pages_are_bounded_and_ordered() {
    let mut rig = followed();
    for _ in 0..3 {
        rig.put("q", 10, None);
    }
    rig.pass(10);
    rig.timeout();
    rig.reserve("q", 3);
    let (mut at, mut fired, mut all) = (0, 0, Vec::new());
    for _ in 0..20 {
        let events = ask(&mut rig, Some(at), 2, Some(fired));
        (at, fired) = (events.page.upto.0, events.fired);
        all.extend(events.page.events.iter().map(line));
        if events.page.more == More::No {
            break;
        }
    }
    let accepted = ["accepted 1 due 10", "accepted 2 due 10", "accepted 3 due 10"];
    let then = [
        "fired 1",
        "fired 2",
        "fired 3",
        "granted 1 attempt 1",
        "granted 2 attempt 1",
        "granted 3 attempt 1",
    ];
    assert_eq!(all, [&accepted[..], &then[..]].concat());
}
