//! Pages from the store must not bring back what has changed meanwhile.

use duewheel_core::engine::*;
use duewheel_core::policy::Policy;
use duewheel_core::store::{Loaded, Which};

use crate::harness::*;

#[test]
fn single_row_pages_load_everything() {
    let mut rig = Rig::new(Policy { load_rows: 1, ..Policy::default() });
    for delay in [0, 0, 5, 60_000, 120_000] {
        rig.put("q", delay, None);
    }
    let grant = rig.reserve("q", 1).remove(0);
    let dead = rig.reserve("q", 1).remove(0);
    rig.call(Op::Bury { id: dead.message.id, proof: dead.token.into(), priority: None, note: "".into() });
    rig.restart();
    let Reply::Stats(stats) = rig.call(Op::Stats) else { panic!() };
    assert_eq!(stats.counts, Counts { scheduled: 3, ready: 0, leased: 1, dead: 1, estimated: false });
    let ack = rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
    assert_eq!(ack, Reply::Settle(Ok(Settled::Acked.into())));
}

/// Memory for a hundred messages.
fn little() -> Policy {
    Policy {
        near_messages: 100,
        ready_messages: 100,
        least_window: 4,
        load_rows: 20,
        wheel_slots: 64,
        wheel_tick_ms: 100,
        ..Policy::default()
    }
}

fn stats(rig: &mut Rig) -> Stats {
    match rig.call(Op::Stats) {
        Reply::Stats(stats) => *stats,
        other => panic!("{other:?}"),
    }
}

fn ack_all(rig: &mut Rig, grants: &[Grant]) {
    for grant in grants {
        let ack = Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None };
        assert_eq!(rig.call(ack), Reply::Settle(Ok(Settled::Acked.into())));
    }
}

#[test]
fn due_minute_loads_in_small_parts() {
    let mut rig = Rig::new(little());
    for n in 0..3_000u64 {
        rig.put(["a", "b", "c"][(n % 3) as usize], 60_000 + (n * 7_919) % 60_000, None);
    }
    rig.restart();
    let mut most = 0;
    let mut granted = 0;
    rig.pass(60_000);
    for _ in 0..600 {
        rig.pass(100);
        for name in ["a", "b", "c"] {
            loop {
                let grants = rig.reserve(name, 10);
                assert!(grants.iter().all(|g| g.lateness_ms <= 100), "in time: {grants:?}");
                granted += grants.len();
                ack_all(&mut rig, &grants);
                if grants.len() < 10 {
                    break;
                }
            }
        }
        most = most.max(stats(&mut rig).resident);
    }
    assert_eq!(granted, 3_000);
    assert!(most > 20 && most <= 240, "{most} in memory at a time");
    assert!(rig.brought < 4_000, "each was read about once: {}", rig.brought);
}

#[test]
fn unserved_queue_delays_no_other() {
    let mut rig = Rig::new(little());
    for n in 0..3_000u64 {
        rig.put("idle", 10_000 + (n * 7_919) % 10_000, None);
    }
    for n in 0..200u64 {
        rig.put("served", 10_000 + n * 50, None);
    }
    rig.restart();
    rig.pass(10_000);
    let mut served = 0;
    for ms in 0..10_000u64 {
        rig.pass(1);
        if ms % 10 == 0 {
            let grants = rig.reserve("served", 10);
            assert!(grants.iter().all(|g| g.lateness_ms <= 10), "in time beside the idle queue");
            served += grants.len();
            ack_all(&mut rig, &grants);
        } else {
            rig.timeout();
        }
        if ms % 500 == 0 {
            let resident = stats(&mut rig).resident;
            assert!(resident <= 240, "{resident} in memory");
        }
    }
    assert_eq!(served, 200);
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("idle") }) else { panic!() };
    let counts = views[0].counts;
    assert!(counts.estimated, "the split is read off the histogram");
    assert_eq!(counts.scheduled + counts.ready, 3_000, "but together they are exact");
    assert!(rig.brought < 3_000, "what nobody wants is not read: {}", rig.brought);

    let mut seen = Vec::new();
    loop {
        let grants = rig.reserve("idle", 50);
        if grants.is_empty() {
            break;
        }
        seen.extend(grants.iter().map(|g| (g.due_at, g.message.id)));
        ack_all(&mut rig, &grants);
    }
    assert_eq!(seen.len(), 3_000, "the backlog comes whole");
    assert!(seen.is_sorted(), "and in due order");
    assert!(!stats(&mut rig).counts.estimated);
}

#[test]
fn urgent_message_overtakes_backlog() {
    let mut rig = Rig::new(little());
    for n in 0..500u64 {
        rig.put("q", n % 50, None);
    }
    rig.pass(1_000);
    rig.timeout();
    let e = Enqueue { priority: Some(1), ..message("q", 0) };
    let Reply::Enqueue(Ok(urgent)) = rig.call(Op::Enqueue(Box::new(e))) else { panic!() };
    assert_eq!(rig.reserve("q", 1)[0].message.id, urgent.id);
}

#[test]
fn purge_of_far_messages_reads_nothing() {
    let mut rig = Rig::new(little());
    for n in 0..2_000u64 {
        rig.put("q", 3_600_000 + n, Some(&format!("k{n}")));
    }
    rig.put("other", 3_600_000, None);
    rig.restart();
    rig.timeout();
    let brought = rig.brought;
    let (to, fx) = rig.raw(Op::Purge { at_most: None, queue: queue("q") });
    assert!(fx.iter().filter(|e| matches!(e, Effect::Append(_))).count() == 1);
    assert_eq!(rig.reply(to), Some(Reply::Count(2_000.into())));
    assert_eq!(rig.brought, brought);
    assert_eq!(rig.table.len(), 1);
    rig.put("q", 5, Some("k7"));
    let view = rig.call(Op::Get { target: Target::Key(queue("q"), key("k8")) });
    assert_eq!(view, Reply::View(None));
    rig.pass(4_000_000);
    assert_eq!(rig.reserve("q", 10).len(), 1);
    assert_eq!(rig.reserve("other", 10).len(), 1);
}

#[test]
fn listings_show_each_message_once() {
    let mut rig = Rig::new(Policy { max_page: 7, ..little() });
    for n in 0..400u64 {
        rig.put("q", (n * 7_919) % 100_000, None);
    }
    rig.pass(10_000);
    let leased = rig.reserve("q", 9);
    for grant in &leased[..4] {
        rig.call(Op::Bury {
            id: grant.message.id,
            proof: grant.token.into(),
            priority: None,
            note: "".into(),
        });
    }
    use duewheel_core::State;
    for (state, count) in [
        (None, 400),
        (Some(State::Dead), 4),
        (Some(State::Leased), 5),
        (Some(State::Ready), 32),
        (Some(State::Scheduled), 359),
    ] {
        let (mut after, mut seen) = (None, Vec::new());
        loop {
            let op = Op::List { queue: queue("q"), state, after, limit: 100, from: None };
            let Reply::Page(page) = rig.call(op) else { panic!() };
            assert!(page.views.len() <= 7);
            assert!(page.views.iter().all(|v| state.is_none_or(|wanted| v.state == wanted)));
            seen.extend(page.views.into_iter().map(|v| (v.due_at, v.message.id)));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen.len(), count, "{state:?}");
        assert!(state == Some(State::Dead) || seen.is_sorted(), "{state:?} in due order");
    }
    let Reply::View(Some(first)) = rig.call(Op::Peek { queue: queue("q"), state: State::Scheduled }) else {
        panic!()
    };
    assert!(first.due_in_ms > 0 && first.due_in_ms < 1_000);
    assert_eq!(rig.call(Op::RedriveMany { queue: queue("q"), max: 3 }), Reply::Count(3.into()));
    assert_eq!(rig.call(Op::FireMany { queue: queue("q"), max: 50 }), Reply::Count(50.into()));
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!(views[0].counts.scheduled + views[0].counts.ready, 400 - 5 - 1);
    assert_eq!((views[0].counts.leased, views[0].counts.dead), (5, 1));
}

#[test]
fn unloaded_dead_messages_expire_on_time() {
    let mut rig = Rig::new(little());
    let settings = duewheel_core::policy::QueueSettings { dead_ttl_ms: Some(60_000), ..Default::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    for _ in 0..3 {
        for _ in 0..50 {
            rig.put("q", 0, None);
        }
        for grant in rig.reserve("q", 50) {
            let note = "".into();
            rig.call(Op::Bury { id: grant.message.id, proof: grant.token.into(), priority: None, note });
        }
        rig.pass(20_000);
        rig.restart();
        rig.settle();
    }
    assert_eq!(stats(&mut rig).counts.dead, 100, "the first fifty are over after 60 s");
    rig.pass(20_000);
    assert_eq!(stats(&mut rig).counts.dead, 50);
    rig.pass(20_000);
    assert_eq!(stats(&mut rig).counts.dead, 0);
    assert!(rig.engine.next_wakeup().is_none_or(|t| t > rig.now.engine), "at rest");
}

/// Story: the kill -9 test with little memory left messages ready for ever: nobody asked for the rest of a backlog.
#[test]
fn late_pages_lose_no_message() {
    for seed in 1..400u64 {
        let mut rng = Rng::seeded(seed);
        let policy = Policy {
            near_messages: 10 + rng.below(50) as usize,
            ready_messages: 10 + rng.below(50) as usize,
            least_window: 4,
            load_rows: 10,
            ..little()
        };
        let mut rig = Rig::new(policy);
        let names = ["a", "b"];
        let total = 50 + rng.below(250);
        for n in 0..total {
            let mut e = message(names[(n % 2) as usize], rng.below(3_000));
            if rng.chance(30) {
                let due_at = duewheel_core::WallMs(WALL + rng.below(3_000));
                e.when = When::At { due_at, past: Past::Fire };
            }
            e.priority = Some(1_000 + rng.below(3) as u32);
            rig.call(Op::Enqueue(Box::new(e)));
        }
        let ahead = rng.below(4_000);
        rig.pass(ahead);
        rig.restart();
        rig.slow = Some(Rng::seeded(!seed));
        let mut done = 0;
        let mut waiting = std::collections::BTreeMap::new();
        for round in 0..20_000 {
            if round < 60 {
                // New ones come while pages are under way.
                for _ in 0..rng.below(4) {
                    let e = message(names[rng.below(2) as usize], rng.below(60));
                    rig.raw(Op::Enqueue(Box::new(e)));
                }
            }
            while waiting.len() < 3 {
                let name = if rng.chance(50) { "a" } else { "b" };
                let demand =
                    Reserve { lease_ms: Some(50), ..rig.demand(&[name], 1 + rng.below(5) as usize, 200) };
                let (to, _) = rig.raw(Op::Reserve(demand));
                waiting.insert(to, name);
            }
            let ms = rng.below(10);
            rig.pass(ms);
            rig.timeout();
            for (to, _) in waiting.clone() {
                let Some(reply) = rig.reply(to) else { continue };
                waiting.remove(&to);
                let Reply::Reserve(Reserved::Grants(grants)) = reply else { panic!("{reply:?}") };
                for grant in grants {
                    if rng.chance(80) {
                        rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
                        done += 1;
                    } else if rng.chance(50) {
                        let note = "".into();
                        let delay_ms = Some(rng.below(100));
                        let (id, token) = (grant.message.id, grant.token);
                        rig.call(Op::Nack {
                            id,
                            proof: token.into(),
                            attempt: Attempt::Failed,
                            delay_ms,
                            priority: None,
                            note,
                        });
                    } // or its lease runs out
                }
            }
            if round >= 60 && rig.table.is_empty() {
                break;
            }
        }
        assert!(rig.table.is_empty(), "seed {seed}: {done} of {total} done, {} left", rig.table.len());
    }
}

/// Story: a queue whose settings were made and unmade vanished, and its check for dead messages ended the driver
/// (review).
#[test]
fn dead_check_survives_vanished_queue() {
    let mut rig = Rig::new(little());
    for dead_ttl_ms in [Some(1_000), None] {
        let settings = duewheel_core::policy::QueueSettings { dead_ttl_ms, ..Default::default() };
        rig.raw(Op::Configure { queue: queue("q"), settings });
    }
    rig.timeout();
    let id = rig.put("q", 0, None);
    let settings = duewheel_core::policy::QueueSettings { dead_ttl_ms: Some(1_000), ..Default::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    let grant = rig.reserve("q", 1).remove(0);
    rig.call(Op::Bury { id, proof: grant.token.into(), priority: None, note: "".into() });
    rig.call(Op::Cancel { keep: None, dedupe_id: DedupeId::Stays, target: Target::Id(id) });
    rig.call(Op::Configure { queue: queue("q"), settings: Default::default() });
    rig.pass(10_000);
    rig.timeout();
}

/// Story: while too much was leased a consumer waited in vain, also when leases had ended since (review).
#[test]
fn ended_lease_serves_waiting_consumer() {
    let mut rig = Rig::new(Policy { max_leased: 1, ..little() });
    rig.put("a", 0, None);
    rig.put("b", 0, None);
    let first = rig.reserve("a", 1).remove(0);
    let demand = rig.demand(&["b"], 1, 60_000);
    let (to, _) = rig.raw(Op::Reserve(demand));
    rig.timeout();
    assert_eq!(rig.reply(to), None, "one lease is all there may be");
    rig.call(Op::Ack { id: first.message.id, proof: first.token.into(), result: None });
    let Some(Reply::Reserve(Reserved::Grants(grants))) = rig.reply(to) else { panic!("served") };
    assert_eq!(grants.len(), 1);
}

/// Story: right after a start the next due time was told as "none", because nothing was in memory yet; twenty-one years
/// of real events came late by it (example nudge).
#[test]
fn next_due_is_known_after_start() {
    for delay in [5, 4_000_000] {
        let mut rig = Rig::new(little());
        let e = Enqueue {
            when: When::At { due_at: duewheel_core::WallMs(WALL + delay), past: Past::Refuse },
            ..message("q", 0)
        };
        rig.call(Op::Enqueue(Box::new(e)));
        rig.restart();
        let (to, _) = rig.raw(Op::NextDue);
        rig.settle();
        assert_eq!(rig.reply(to), Some(Reply::NextDue(Some(duewheel_core::WallMs(WALL + delay)))));
    }
}

/// A queue of which more was due than memory takes, and which is drained; the wheel is full of others. Nothing of it is
/// due, and only pages can tell.
fn drained_backlog() -> Rig {
    let mut rig = Rig::new(little());
    for n in 0..60 {
        rig.put("full", 60_000 + n, None);
    }
    for _ in 0..400 {
        rig.put("q", 0, None);
    }
    rig.put("q", 30_000, None);
    rig.restart();
    let mut granted = 0;
    while granted < 400 {
        let grants = rig.reserve("q", 50);
        granted += grants.len();
        ack_all(&mut rig, &grants);
    }
    rig
}

/// Story: a reserve waits for messages that are due and on their way from the store, up to two seconds. Where a page
/// took longer than a millisecond, its end was in the past when it came, so the engine took it that more might be on
/// its way, and asked for the next: a consumer of a drained queue got its empty answer after two seconds, however short
/// it wanted to wait. Found by the simulation, whose pages take their time.
#[test]
fn empty_answer_waits_for_one_page() {
    for wait_ms in [0, 20] {
        let mut rig = drained_backlog();
        rig.pass(500);
        let reserve = Reserve {
            waiter: WaiterId(9_999),
            queues: vec![queue("q")],
            max: 1,
            max_bytes: usize::MAX,
            wait_ms,
            lease_ms: None,
            session: duewheel_core::SessionId::NONE,
            max_of: Vec::new(),
            max_attempts: None,
            deadline_margin_ms: None,
        };
        let asked = rig.now.engine.0;
        let (to, _) = rig.raw(Op::Reserve(reserve));
        let mut waited = false;
        while !rig.replies.iter().any(|(of, _)| *of == to) {
            waited = true;
            rig.slow_step(3);
            assert!(rig.now.engine.0 < asked + 100, "wait {wait_ms}: {} ms", rig.now.engine.0 - asked);
        }
        assert!(waited, "it cannot know without a page");
        let reply = rig.replies.iter().find(|(of, _)| *of == to).unwrap();
        assert_eq!(reply.1, Reply::Reserve(Reserved::Grants(vec![])));
    }
}

/// Story: the same engine asked for the next page of such a queue as soon as the last one had come, a thousand times a
/// second.
#[test]
fn drained_backlog_is_polled_rarely() {
    let mut rig = drained_backlog();
    let before = rig.asked;
    for _ in 0..1_000 {
        rig.slow_step(3);
    }
    let asked = rig.asked - before;
    assert!((10..200).contains(&asked), "{asked} pages in three seconds");
}

/// Steps until no more pages are asked for, with everything that is asked for delivered.
fn comes_to_rest(rig: &mut Rig) {
    for _ in 0..400 {
        rig.slow_step(1);
    }
    let asked = rig.asked;
    for _ in 0..200 {
        rig.slow_step(1);
    }
    assert_eq!(rig.asked, asked, "pages are asked for without end");
}

/// Reserves and acks all messages of a queue that are due; returns how many there were.
fn drain(rig: &mut Rig, name: &str) -> usize {
    let mut granted = 0;
    loop {
        let grants = rig.reserve(name, 100);
        if grants.is_empty() {
            return granted;
        }
        granted += grants.len();
        ack_all(rig, &grants);
    }
}

const HOUR: u64 = 3_600_000;

/// Messages of these weights that are due in an hour, in a wheel that takes four of the weight `B`.
fn of_weights(weights: &[usize], whens: &[When], load_rows: usize) -> Rig {
    let policy = Policy { near_bytes: 4 * B, load_bytes: 4 * B, load_rows, ..Policy::default() };
    let mut rig = Rig::new(policy);
    for (n, &weight) in weights.iter().enumerate() {
        let when = whens[n % whens.len()];
        rig.raw(Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue("q"), vec![b'x'; weight]) })));
    }
    rig
}

const B: usize = 10_000;
const AFTER: When = When::After(HOUR);
const AT: When = When::At { due_at: duewheel_core::WallMs(WALL + HOUR), past: Past::Fire };

/// Story: a shard of 16 with one message of 9 MiB that was due in an hour used one core until then. A page brought the
/// message, it overfilled the wheel, it left, and so the wheel had room for the page.
#[test]
fn pages_never_overfill_the_wheel() {
    let mut hidden = vec![1; 5_000];
    hidden.push(5 * B);
    let cases: [(&str, Vec<usize>, &[When], usize); 6] = [
        ("many of a quarter", vec![B; 20], &[AFTER], 10),
        ("many of somewhat less than half", vec![2 * B - B / 10; 20], &[AFTER], 10),
        ("one too large", vec![5 * B], &[AFTER], 10),
        ("two too large", vec![10, 5 * B, 5 * B], &[AFTER], 10),
        ("both classes", vec![2 * B - B / 10, 5 * B, B, B, B, B, 5 * B, B / 2], &[AFTER, AT], 10),
        ("one that a sample misses", hidden, &[AFTER], 1_000),
    ];
    for (case, weights, whens, load_rows) in cases {
        println!("{case}");
        for restarts in [false, true] {
            let mut rig = of_weights(&weights, whens, load_rows);
            if restarts {
                rig.restart();
            }
            comes_to_rest(&mut rig);
            let (to, _) = rig.raw(Op::NextDue);
            rig.slow_step(1);
            let reply = rig.reply(to);
            assert!(matches!(reply, Some(Reply::NextDue(Some(_)))), "{reply:?}");
            rig.pass(HOUR);
            assert_eq!(drain(&mut rig, "q"), weights.len());
        }
    }
}

/// Messages that do not fit into the wheel together are granted when they are due.
#[test]
fn full_wheels_grant_in_time() {
    let mut rig = Rig::new(Policy { near_bytes: 4 * B, load_bytes: 4 * B, ..Policy::default() });
    for n in 0..40 {
        let weight = [B / 3, 5 * B, B, 10][n % 4];
        let ms = 10_000 + 100 * n as u64;
        let when = match n % 3 {
            0 => When::At { due_at: duewheel_core::WallMs(WALL + ms), past: Past::Fire },
            _ => When::After(ms),
        };
        rig.raw(Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue("q"), vec![b'x'; weight]) })));
    }
    let mut granted = 0;
    for _ in 0..2_000 {
        rig.slow_step(10);
        let grants = rig.reserve("q", 10);
        assert!(grants.iter().all(|g| g.lateness_ms <= 30), "{:?}", grants[0].lateness_ms);
        granted += grants.len();
        ack_all(&mut rig, &grants);
    }
    assert_eq!(granted, 40);
    assert!(rig.asked < 400, "{} pages", rig.asked);
}

/// Story: a queue that its settings keep had a backlog once. Twenty times a second the engine asked for its next page
/// as long as the wheel was more than half full of messages of other queues.
#[test]
fn empty_queue_requests_no_pages() {
    for far in [None, Some(HOUR)] {
        let few = Policy { near_messages: 4, ready_messages: 4, load_rows: 4, ..little() };
        let mut rig = Rig::new(few);
        let settings = duewheel_core::policy::QueueSettings { lease_ms: Some(9_000), ..Default::default() };
        rig.call(Op::Configure { queue: queue("q"), settings });
        for n in 0..6 {
            rig.put("other", HOUR + n, None);
        }
        for _ in 0..10 {
            rig.put("q", 0, None);
        }
        if let Some(ms) = far {
            rig.put("q", ms, None);
        }
        for _ in 0..10 {
            let grants = rig.reserve("q", 1);
            assert_eq!(grants.len(), 1);
            ack_all(&mut rig, &grants);
        }
        comes_to_rest(&mut rig);
        rig.put("q", 10_000, None);
        rig.pass(9_999);
        assert_eq!(rig.reserve("q", 1).len(), 0);
        rig.pass(1);
        let later = rig.reserve("q", 1);
        assert_eq!(later.len(), 1, "a message that is put later is granted in time");
        ack_all(&mut rig, &later);
        rig.pass(HOUR);
        assert_eq!([drain(&mut rig, "q"), drain(&mut rig, "other")], [usize::from(far.is_some()), 6]);
    }
}

/// Story: a disk did not return the next page for the horizon, which was read again each second. A queue with a backlog
/// was not up to the horizon as long as that page was under way, and asked for one empty page after the other.
#[test]
fn backlogs_wait_for_the_horizon_page() {
    let mut rig = drained_backlog();
    for n in 0..100 {
        rig.put("far", HOUR + n, None);
    }
    rig.put("q", 2 * HOUR, None);
    for full in 1..=60 {
        rig.raw(Op::Cancel {
            keep: None,
            dedupe_id: DedupeId::Stays,
            target: Target::Id(duewheel_core::id::MessageId(full)),
        });
    }
    let (mut unreadable, mut asked) = (vec![], 0);
    for _ in 0..500 {
        rig.slow_step(1);
        asked += rig.pages.len();
        let is_of_horizon = |page: &Loaded| !matches!(page.load.which, Which::One(_));
        let (of_horizon, others) = rig.pages.drain(..).partition::<Vec<_>, _>(is_of_horizon);
        unreadable.extend(of_horizon);
        rig.pages.extend(others);
    }
    assert!(!unreadable.is_empty() && asked < 20, "{asked} pages");
    rig.pages.extend(unreadable);
    rig.settle();
    rig.pass(2 * HOUR);
    assert_eq!([drain(&mut rig, "q"), drain(&mut rig, "far")], [2, 100]);
}
