//! The history of queues: points of ten seconds in memory, and of five minutes in the store.

use duewheel_core::engine::*;
use duewheel_core::history::*;
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::time::WallMs;

use crate::harness::*;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A rig at the start of five minutes.
fn rig(max_history_bytes: usize) -> Rig {
    let mut rig = Rig::new(Policy { max_history_bytes, ..Policy::default() });
    rig.pass(5 * MINUTE - WALL % (5 * MINUTE));
    rig.restart();
    rig
}

fn of(rig: &mut Rig, name: Option<&str>, ago_ms: u64, step: HistoryStep) -> QueueHistory {
    let now = rig.now.wall;
    let from = WallMs(now.0.saturating_sub(ago_ms));
    let op = Op::History { queue: name.map(queue), from, until: WallMs(now.0 + 1), step };
    let Reply::History(history) = rig.call(op) else { panic!("another answer") };
    *history
}

fn fine(rig: &mut Rig, name: &str, ago_ms: u64) -> QueueHistory {
    of(rig, Some(name), ago_ms, HistoryStep::TenSeconds)
}

fn coarse(rig: &mut Rig, name: &str, ago_ms: u64) -> QueueHistory {
    of(rig, Some(name), ago_ms, HistoryStep::FiveMinutes)
}

/// The events of all steps together.
fn sum(history: &QueueHistory) -> [u64; 4] {
    let mut sum = HistoryPoint::default();
    history.points.iter().flatten().for_each(|point| sum.add(point));
    sum.events
}

fn depths(history: &QueueHistory) -> Vec<Option<(u64, u64)>> {
    let depth = |point: &HistoryPoint| point.depth.map(|depth| (depth.ready, depth.pending));
    history.points.iter().map(|point| point.as_ref().and_then(depth)).collect()
}

fn use_once(rig: &mut Rig, name: &str) {
    rig.put(name, 0, None);
    let grant = rig.reserve(name, 1).pop().unwrap();
    rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
}

/// A queue that is dropped when its last message ends, and made anew by the next one, waits once for its points to be stored.
#[test]
fn returning_queue_is_listed_once() {
    let mut rig = rig(1 << 20);
    use_once(&mut rig, "q");
    let with_one = rig.engine.history_bytes();
    (0..1_000).for_each(|_| use_once(&mut rig, "q"));
    assert!(rig.engine.history_bytes() <= with_one + 64, "{}", rig.engine.history_bytes());
}

#[test]
fn points_hold_events_depth_and_lateness() {
    let mut rig = rig(1 << 20);
    rig.put("q", 25 * SECOND, None);
    rig.put("q", 0, None);
    rig.pass(10 * SECOND);
    let grant = rig.reserve("q", 1).pop().unwrap();
    rig.pass(20 * SECOND);
    rig.timeout();
    rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
    let grant = rig.reserve("q", 1).pop().unwrap();
    let bury = Op::Bury { id: grant.message.id, proof: grant.token.into(), priority: None, note: "".into() };
    rig.call(bury);
    let history = fine(&mut rig, "q", 40 * SECOND);
    assert_eq!(history.from.0 % 10_000, 0);
    let events: Vec<_> =
        history.points.iter().map(|point| point.as_ref().map(|point| point.events)).collect();
    assert_eq!(events, [None, Some([2, 0, 0, 0]), Some([0, 1, 0, 0]), Some([0; 4]), Some([0, 1, 1, 1])]);
    assert_eq!(depths(&history), [None, Some((1, 2)), Some((0, 2)), Some((0, 2)), Some((0, 0))]);
    let late = |at: usize| history.points[at].as_ref().unwrap().late.percentile(99);
    assert_eq!((late(2), late(3), late(4)), (Some(10_239), None, Some(5_119)));
    assert_eq!(of(&mut rig, None, 40 * SECOND, HistoryStep::TenSeconds), history, "it is the only queue");
    assert!(history.complete && history.reaches_back);
    assert_eq!(sum(&coarse(&mut rig, "q", 40 * SECOND)), [2, 2, 1, 1], "the open five minutes");
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!(views[0].rates, Rates { enqueued_milli: 0, granted_milli: 100, acked_milli: 100 });
}

/// Story: of all that settles messages, histories counted acks alone.
#[test]
fn settled_counts_every_end() {
    let mut rig = rig(1 << 20);
    let settings = QueueSettings { dead_ttl_ms: Some(1), ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue("q"), settings });
    let settled = |rig: &mut Rig| sum(&fine(rig, "q", MINUTE))[2];
    let mut wanted = 0;
    let mut ended = |rig: &mut Rig, more: u64, what: &str| {
        wanted += more;
        assert_eq!(settled(rig), wanted, "{what}");
    };
    use_once(&mut rig, "q");
    ended(&mut rig, 1, "acked");
    let id = rig.put("q", HOUR, None);
    rig.call(Op::Cancel { target: Target::Id(id), dedupe_id: DedupeId::Stays, keep: None });
    ended(&mut rig, 1, "cancelled");
    let keyed = |if_exists| Enqueue { key: Some(key("k")), if_exists, ..message("q", 0) };
    rig.call(Op::Enqueue(Box::new(keyed(IfExists::Reject))));
    rig.call(Op::Enqueue(Box::new(keyed(IfExists::Replace))));
    ended(&mut rig, 1, "replaced");
    let grant = rig.reserve("q", 1).pop().unwrap();
    rig.call(Op::Enqueue(Box::new(keyed(IfExists::Supersede))));
    ended(&mut rig, 0, "still leased");
    let nack = Op::Nack {
        id: grant.message.id,
        proof: grant.token.into(),
        attempt: Attempt::Failed,
        delay_ms: None,
        priority: None,
        note: "".into(),
    };
    rig.call(nack);
    ended(&mut rig, 1, "superseded");
    (0..3).for_each(|_| _ = rig.put("q", HOUR, None));
    rig.call(Op::Purge { queue: queue("q"), at_most: None });
    ended(&mut rig, 4, "purged");
    rig.put("q", 0, None);
    let grant = rig.reserve("q", 1).pop().unwrap();
    rig.call(Op::Bury { id: grant.message.id, proof: grant.token.into(), priority: None, note: "".into() });
    ended(&mut rig, 0, "dead messages are held");
    rig.pass(SECOND);
    rig.timeout();
    ended(&mut rig, 1, "expired");
    assert_eq!(sum(&of(&mut rig, None, MINUTE, HistoryStep::TenSeconds)), [9, 3, 9, 1]);
    let Reply::Queues(views) = rig.call(Op::Queue { queue: queue("q") }) else { panic!() };
    assert_eq!(views[0].rates.acked_milli, 100, "the rate is that of acks");
}

/// A process that is killed loses the open five minutes, and no more.
#[test]
fn restart_keeps_five_minute_points() {
    let mut rig = rig(1 << 20);
    for _ in 0..60 {
        use_once(&mut rig, "q");
        rig.pass(10 * SECOND);
    }
    rig.timeout();
    use_once(&mut rig, "q");
    assert_eq!(sum(&fine(&mut rig, "q", 10 * MINUTE)), [61, 61, 61, 0]);
    let before = coarse(&mut rig, "q", 10 * MINUTE);
    assert_eq!(sum(&before), [61, 61, 61, 0]);
    rig.restart();
    assert!(!fine(&mut rig, "q", 10 * MINUTE).reaches_back, "longer steps have more");
    for name in [Some("q"), None] {
        let history = of(&mut rig, name, 10 * MINUTE, HistoryStep::FiveMinutes);
        assert_eq!(history.points.len(), 3);
        assert_eq!(history.points[..2], before.points[..2]);
        assert_eq!(sum(&history), [60, 60, 60, 0]);
        assert!(history.complete);
    }
    rig.pass(2 * 24 * HOUR);
    rig.timeout();
    assert_eq!(sum(&coarse(&mut rig, "q", 48 * HOUR)), [0; 4], "after 48 hours they are gone");
    assert_eq!(rig.table.len(), 0);
}

#[test]
fn idle_queue_costs_nothing() {
    let mut rig = rig(1 << 20);
    rig.put("q", 100 * HOUR, None);
    rig.pass(5 * MINUTE);
    rig.timeout();
    assert_eq!(rig.table.len(), 2, "the message, and one record of points");
    rig.pass(2 * HOUR);
    rig.timeout();
    assert_eq!(rig.table.len(), 2);
    assert_ne!(rig.engine.history_bytes(), 0);
    rig.put("other", 0, None);
    rig.pass(5 * MINUTE);
    rig.timeout();
    let with_one = rig.engine.history_bytes();
    rig.pass(2 * HOUR);
    rig.put("other", 0, None);
    rig.pass(5 * MINUTE);
    rig.timeout();
    assert!(rig.engine.history_bytes() <= with_one + 64, "points of an idle queue end after an hour");
    assert_eq!(depths(&fine(&mut rig, "q", MINUTE)).last(), Some(&Some((0, 1))), "it still has its message");
}

/// Beyond the bound the queue that was active least recently has no points of ten seconds, and says so.
#[test]
fn bound_takes_points_of_least_active_queue() {
    let names: Vec<String> = (0..40).map(|n| format!("queue-{n}")).collect();
    let used = |max: usize| {
        let mut rig = rig(max);
        rig.put("idle", HOUR, None);
        for _ in 0..40 {
            for name in &names {
                rig.put(name, HOUR, None);
                assert!(rig.engine.history_bytes() <= max);
            }
            rig.pass(10 * SECOND);
        }
        rig
    };
    let all = used(1 << 20).engine.history_bytes();
    let mut rig = used(all - 1);
    let [idle, active] = ["idle", "queue-39"].map(|name| fine(&mut rig, name, 400 * SECOND));
    assert_eq!((idle.complete, idle.reaches_back), (false, false));
    assert_eq!((active.complete, active.reaches_back), (true, true));
    assert_eq!(sum(&active), [40, 0, 0, 0]);
    for (name, wanted) in [("idle", 1), ("queue-0", 40), ("queue-39", 40)] {
        assert_eq!(sum(&coarse(&mut rig, name, 10 * MINUTE))[0], wanted, "{name}");
    }
}

/// Stored points have the same bound: the oldest go, and the answer says so.
#[test]
fn stored_points_are_bounded() {
    let mut rig = rig(12 << 10);
    let names: Vec<String> = (0..20).map(|n| format!("queue-with-a-long-name-{n}")).collect();
    for _ in 0..24 {
        for name in &names {
            rig.put(name, 100 * HOUR, None);
        }
        rig.pass(5 * MINUTE);
        rig.timeout();
    }
    let stats = rig.table.recovered(duewheel_core::Epoch(9)).queues;
    let points = stats.iter().find(|row| row.name.is_history()).unwrap();
    assert!(points.tally.weight() <= 12 << 10, "{}", points.tally.weight());
    let all = coarse(&mut rig, &names[3], 2 * HOUR);
    let some = coarse(&mut rig, &names[3], 10 * MINUTE);
    assert!(!all.complete && sum(&all)[0] < 24 && sum(&all)[0] > 3, "{all:?}");
    assert!(some.complete && sum(&some)[0] == 2, "{some:?}");
}

#[test]
fn removed_queue_has_no_history() {
    let mut rig = rig(1 << 20);
    for name in ["q", "other"] {
        use_once(&mut rig, name);
    }
    rig.pass(5 * MINUTE);
    rig.timeout();
    use_once(&mut rig, "q");
    rig.call(Op::EraseHistory { queue: queue("q") });
    for _ in 0..2 {
        assert_eq!(sum(&coarse(&mut rig, "q", HOUR)), [0; 4]);
        assert_eq!(sum(&fine(&mut rig, "q", HOUR)), [0; 4]);
        assert_eq!(sum(&coarse(&mut rig, "other", HOUR)), [1, 1, 1, 0]);
        rig.restart();
    }
    rig.call(Op::Configure { queue: queue("q"), settings: QueueSettings::default() });
    use_once(&mut rig, "q");
    rig.pass(5 * MINUTE);
    rig.timeout();
    assert_eq!(sum(&coarse(&mut rig, "q", HOUR)), [1, 1, 1, 0], "a new queue of the name begins anew");
}

/// Many changed queues are stored in several steps, and each of them once.
#[test]
fn points_of_many_queues_take_several_steps() {
    let mut rig = Rig::new(Policy { max_history_bytes: 1 << 20, max_step: 7, ..Policy::default() });
    for n in 0..30 {
        rig.put(&format!("q{n}"), 100 * HOUR, None);
    }
    rig.pass(10 * MINUTE);
    rig.timeout();
    assert_eq!(rig.table.len(), 30 + 5);
    rig.restart();
    for n in 0..30 {
        assert_eq!(sum(&coarse(&mut rig, &format!("q{n}"), HOUR)), [1, 0, 0, 0]);
    }
}

#[test]
fn clock_set_back_begins_points_anew() {
    let mut rig = rig(1 << 20);
    use_once(&mut rig, "q");
    rig.pass(10 * SECOND);
    use_once(&mut rig, "q");
    rig.now.wall = WallMs(rig.now.wall.0 - HOUR);
    use_once(&mut rig, "q");
    rig.pass(10 * SECOND);
    use_once(&mut rig, "q");
    assert_eq!(sum(&fine(&mut rig, "q", MINUTE)), [2, 2, 2, 0]);
}

/// Histories of shards add up: counts, messages, and the histograms of lateness.
#[test]
fn histories_of_shards_add_up() {
    let mut shards = [rig(1 << 20), rig(1 << 20)];
    for (shard, (n, late)) in shards.iter_mut().zip([(99, 0), (1, 9 * SECOND)]) {
        for _ in 0..n {
            shard.put("q", 0, None);
        }
        shard.put("q", HOUR, None);
        shard.pass(late);
        assert_eq!(shard.reserve("q", 100).len(), n);
        shard.pass(9 * SECOND - late);
    }
    let [mut sum, other] = shards.each_mut().map(|shard| fine(shard, "q", 0));
    sum.add(&other);
    let point = sum.points[0].as_ref().unwrap();
    assert_eq!(point.events, [102, 100, 0, 0]);
    assert_eq!(point.depth, Some(QueueDepth { ready: 0, pending: 102 }));
    assert_eq!((point.late.percentile(99), point.late.percentile(100)), (Some(0), Some(10_239)));
}
