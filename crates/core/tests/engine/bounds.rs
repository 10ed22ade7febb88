//! What one step of the engine writes at most, in records and bytes, whatever an operation or time asks for.

use duewheel_core::engine::*;
use duewheel_core::id::{ReplyTo, SessionId};
use duewheel_core::message::State;
use duewheel_core::policy::{Policy, QueueSettings, ReadyOrder};
use duewheel_core::record::{Record, Writer};

use crate::harness::*;

/// Records that one step may write in these tests.
const STEP: usize = 50;

fn policy() -> Policy {
    Policy { max_step: STEP, ..Policy::default() }
}

/// The largest step, in records and in bytes.
#[derive(Default)]
struct Largest {
    records: usize,
    bytes: usize,
    steps: usize,
}

impl Largest {
    fn note(&mut self, fx: &Effects) {
        let records = fx.iter().filter_map(|effect| match effect {
            Effect::Append(record) => Some(record),
            _ => None,
        });
        let mut writer = Writer::default();
        let mut count = 0;
        for record in records {
            writer.record(record);
            count += 1;
        }
        self.records = self.records.max(count);
        self.bytes = self.bytes.max(writer.bytes.len());
        self.steps += usize::from(count > 0);
    }
}

/// Decides one operation and lets the engine work until it rests; each call of the engine is a step.
fn steps_of(rig: &mut Rig, op: Op) -> (Largest, ReplyTo) {
    rig.settle();
    let mut largest = Largest::default();
    let (to, fx) = rig.raw(op);
    largest.note(&fx);
    steps_of_time(rig, &mut largest);
    (largest, to)
}

fn steps_of_time(rig: &mut Rig, largest: &mut Largest) {
    for _ in 0..10_000 {
        let delivered = rig.deliver_noting(|fx| largest.note(fx));
        rig.look_up(None);
        let mut fx = Effects::new();
        rig.engine.handle_timeout(rig.now, &mut fx);
        largest.note(&fx);
        rig.absorb_batch(fx);
        if !delivered && rig.pages.is_empty() && rig.engine.next_wakeup().is_none_or(|t| t > rig.now.engine) {
            return;
        }
    }
    panic!("the engine does not come to rest");
}

fn bound(rig: &mut Rig, name: &str, max: usize, session: u64) -> Vec<Grant> {
    let mut all = Vec::new();
    while all.len() < max {
        let demand = Reserve { session: SessionId(session), ..rig.demand(&[name], max - all.len(), 0) };
        match rig.call(Op::Reserve(demand)) {
            Reply::Reserve(Reserved::Grants(grants)) if !grants.is_empty() => all.extend(grants),
            other => panic!("{other:?}"),
        }
    }
    all
}

fn state_counts(rig: &mut Rig) -> Counts {
    match rig.call(Op::Stats) {
        Reply::Stats(stats) => stats.counts,
        other => panic!("{other:?}"),
    }
}

/// Story: a connection that held half a million leases was closed, and all of them were ended in one step.
#[test]
fn closing_large_session_takes_several_steps() {
    let mut rig = Rig::new(policy());
    for _ in 0..400 {
        rig.put("q", 0, None);
    }
    bound(&mut rig, "q", 300, 7);
    bound(&mut rig, "q", 40, 8);
    let (largest, to) = steps_of(&mut rig, Op::SessionClosed { session: SessionId(7) });
    assert!(largest.records <= STEP, "{} records in a step", largest.records);
    assert_eq!(rig.reply(to), Some(Reply::Done), "all of them have ended when it is answered");
    let counts = state_counts(&mut rig);
    assert_eq!((counts.ready, counts.leased), (360, 40), "the leases of others run on");
}

/// The same for the leases of all connections of the process before.
#[test]
fn restart_ends_session_leases_in_steps() {
    let mut rig = Rig::new(policy());
    for _ in 0..400 {
        rig.put("q", 0, None);
    }
    bound(&mut rig, "q", 300, 7);
    let kept = rig.reserve("q", 20).len() as u64;
    rig.settle();
    let largest = rig.restart_noting();
    assert!(largest.iter().all(|&records| records <= STEP), "{largest:?} records in a step");
    let mut rest = Largest::default();
    steps_of_time(&mut rig, &mut rest);
    assert!(rest.records <= STEP, "{} records in a step", rest.records);
    let counts = state_counts(&mut rig);
    assert_eq!((counts.ready, counts.leased), (400 - kept, kept));
}

/// Gives each of so many messages a history as long as it may be.
fn with_long_histories(rig: &mut Rig, count: usize) {
    for _ in 0..count {
        rig.put("q", 0, None);
    }
    for _ in 0..rig.policy.max_history {
        let mut grants = Vec::new();
        loop {
            let some = rig.reserve("q", count);
            if some.is_empty() {
                break;
            }
            grants.extend(some);
        }
        assert_eq!(grants.len(), count);
        for grant in grants {
            rig.raw(Op::Nack {
                id: grant.message.id,
                proof: grant.token.into(),
                attempt: Attempt::NotYet,
                delay_ms: Some(0),
                priority: None,
                note: "n".repeat(256).into(),
            });
        }
        rig.timeout();
    }
}

/// Story: a step was bounded in messages alone. 4,096 leases that ran out together, with histories as long as they may
/// be, made one group of 10 MiB.
#[test]
fn lease_expiry_step_is_byte_bounded() {
    let mut rig = Rig::new(Policy::default());
    with_long_histories(&mut rig, 1_500);
    while !rig.reserve("q", 1_500).is_empty() {}
    rig.pass(60_000);
    let mut largest = Largest::default();
    steps_of_time(&mut rig, &mut largest);
    assert!(largest.bytes <= 1_500_000, "{} bytes in a step", largest.bytes);
    assert_eq!(state_counts(&mut rig).ready, 1_500);
}

#[test]
fn firing_many_takes_several_steps() {
    let mut rig = Rig::new(Policy { max_step: 4_096, ..Policy::default() });
    with_long_histories(&mut rig, 1_500);
    let mut ids = Vec::new();
    loop {
        let some = rig.reserve("q", 1_500);
        if some.is_empty() {
            break;
        }
        ids.extend(some.into_iter().map(|grant| (grant.message.id, grant.token)));
    }
    for (id, token) in ids {
        rig.raw(Op::Nack {
            id,
            proof: token.into(),
            attempt: Attempt::NotYet,
            delay_ms: Some(3_600_000),
            priority: None,
            note: "".into(),
        });
    }
    let (largest, to) = steps_of(&mut rig, Op::FireMany { queue: queue("q"), max: 1_500 });
    assert!(largest.bytes <= 1_500_000, "{} bytes in a step", largest.bytes);
    assert_eq!(rig.reply(to), Some(Reply::Count(1_500.into())));
    assert_eq!(state_counts(&mut rig).ready, 1_500);
}

/// Messages that change while they wait to be fired are fired as they are then, or not at all.
#[test]
fn fire_many_respects_concurrent_changes() {
    let mut rig = Rig::new(Policy { max_step: 10, ..Policy::default() });
    let ids: Vec<_> = (0..30).map(|_| rig.put("q", 3_600_000, None)).collect();
    rig.settle();
    let (first, _) = rig.raw(Op::FireMany { queue: queue("q"), max: 10 });
    rig.slow_step(0);
    rig.raw(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(ids[1]) });
    rig.settle();
    let Some(Reply::Count(fired)) = rig.reply(first) else { panic!() };
    assert!((9..=10).contains(&*fired), "{}", *fired);
    let counts = state_counts(&mut rig);
    assert_eq!(counts.ready + counts.scheduled, 29);
}

/// Story: a change of a queue's order gave each of its ready messages its new place in one step.
#[test]
fn queue_reordering_takes_several_steps() {
    let mut rig = Rig::new(policy());
    let mut due = Vec::new();
    for n in 0..400u64 {
        due.push((rig.put("q", 400 - n, None), 400 - n));
    }
    rig.pass(1_000);
    rig.settle();
    let settings = QueueSettings { order: Some(ReadyOrder::Arrival), ..QueueSettings::default() };
    let before = rig.engine.work();
    let (to, _) = rig.raw(Op::Configure { queue: queue("q"), settings });
    let looked = rig.engine.work() - before;
    assert!((1..=2 * STEP as u64).contains(&looked), "{looked} messages ranked anew in a step");
    assert_eq!(rig.reply(to), None, "it is answered when all have their place");
    let mut steps = 0;
    while rig.engine.next_wakeup() == Some(rig.now.engine) {
        let before = rig.engine.work();
        rig.slow_step(0);
        let looked = rig.engine.work() - before;
        assert!(looked <= 4 * STEP as u64, "{looked} messages ranked anew in a step");
        steps += 1;
        assert!(steps < 1_000);
    }
    assert!(matches!(rig.reply(to), Some(Reply::Configured(_))));
    let mut given = Vec::new();
    loop {
        let some = rig.reserve("q", 50);
        if some.is_empty() {
            break;
        }
        given.extend(some.into_iter().map(|grant| grant.message.id));
    }
    let by_id: Vec<_> = due.iter().map(|(id, _)| *id).collect();
    assert_eq!(given, by_id, "in order of arrival");
}

/// A purge names the leases that stay, and looks at none of them one by one. They stay alive whatever comes then.
#[test]
fn leases_survive_purge() {
    let mut rig = Rig::new(policy());
    for _ in 0..200 {
        rig.put("q", 0, None);
    }
    let grants = bound(&mut rig, "q", 120, 3);
    rig.settle();
    let before = rig.engine.work();
    let (_, fx) = rig.raw(Op::Purge { at_most: None, queue: queue("q") });
    assert!(rig.engine.work() - before <= 10, "{} looks", rig.engine.work() - before);
    let kept = fx.iter().find_map(|effect| match effect {
        Effect::Append(Record::Purged { keep, .. }) => Some(keep.len()),
        _ => None,
    });
    assert_eq!(kept, Some(120));
    let nack = |n: usize, delay_ms| Op::Nack {
        id: grants[n].message.id,
        proof: Proof::Session(SessionId(3)),
        attempt: Attempt::Failed,
        delay_ms: Some(delay_ms),
        priority: None,
        note: "".into(),
    };
    assert!(matches!(rig.call(nack(0, 60_000)), Reply::Settle(Ok(_))));
    assert!(matches!(rig.call(nack(1, 0)), Reply::Settle(Ok(_))));
    let ack = Op::Ack { id: grants[2].message.id, proof: Proof::Session(SessionId(3)), result: None };
    assert!(matches!(rig.call(ack), Reply::Settle(Ok(_))));
    rig.call(Op::SessionClosed { session: SessionId(3) });
    rig.call(Op::Purge { at_most: None, queue: queue("nothing") });
    let counts = state_counts(&mut rig);
    assert_eq!((counts.scheduled, counts.ready, counts.leased), (1, 118, 0));
    let Reply::Count(purged) = rig.call(Op::Purge { at_most: None, queue: queue("q") }) else { panic!() };
    assert_eq!(*purged, 119);
    rig.settle();
    let list = Op::List { queue: queue("q"), state: None, after: None, limit: 10, from: None };
    assert!(matches!(rig.call(list), Reply::Page(page) if page.views.is_empty()));
    rig.restart();
    assert!(matches!(rig.call(Op::Peek { queue: queue("q"), state: State::Ready }), Reply::View(None)));
}

/// The record of a purge takes little for each lease that it names.
#[test]
fn purge_record_with_leases_stays_small() {
    let mut rig = Rig::new(Policy { max_page: 10, ..Policy::default() });
    const LEASES: usize = 5_000;
    for _ in 0..LEASES + 3 {
        rig.step(Op::Enqueue(Box::new(message("q", 0))));
    }
    bound(&mut rig, "q", LEASES, 3);
    let before = rig.engine.work();
    let (largest, to) = steps_of(&mut rig, Op::Purge { at_most: None, queue: queue("q") });
    assert_eq!(rig.reply(to), Some(Reply::Count(3.into())));
    assert!(largest.bytes <= LEASES + 100, "{} bytes for {LEASES} leases", largest.bytes);
    assert!(rig.engine.work() - before <= 100, "{} looks", rig.engine.work() - before);
    let counts = state_counts(&mut rig);
    assert_eq!((counts.ready, counts.leased), (0, LEASES as u64));
    rig.call(Op::SessionClosed { session: SessionId(3) });
    rig.restart();
    assert_eq!(state_counts(&mut rig).ready, LEASES as u64, "the store has kept them, too");
}

/// A reserve asks for more than a step grants.
#[test]
fn reserve_grants_at_most_one_step() {
    let mut rig = Rig::new(policy());
    for _ in 0..3 * STEP {
        rig.put("q", 0, None);
    }
    let demand = rig.demand(&["q"], 10_000, 0);
    let (largest, to) = steps_of(&mut rig, Op::Reserve(demand));
    assert!(largest.records <= STEP, "{} records in a step", largest.records);
    let reply = rig.reply(to);
    let granted = matches!(&reply, Some(Reply::Reserve(Reserved::Grants(grants))) if grants.len() == STEP);
    assert!(granted, "{reply:?}");
}
