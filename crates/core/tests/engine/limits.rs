//! Limits of a queue's grants: the rate, the rate while it catches up, leases at a time.

use duewheel_core::engine::*;
use duewheel_core::id::{MessageId, SessionId, ShardId};
use duewheel_core::policy::{GrantLimits, GrantRate, Policy, QueueSettings};
use duewheel_core::time::EngineMs;

use crate::harness::*;

fn rate(per_second: u32, burst: u32) -> GrantLimits {
    let rate = GrantRate { burst: Some(burst), ..GrantRate::per_second(per_second) };
    GrantLimits { rate: Some(rate), ..GrantLimits::default() }
}

fn concurrency(leases: u32) -> GrantLimits {
    GrantLimits { concurrency: Some(leases), ..GrantLimits::default() }
}

fn limit(rig: &mut Rig, name: &str, limits: GrantLimits) -> Reply {
    let settings = QueueSettings { limits, ..QueueSettings::default() };
    rig.call(Op::Configure { queue: queue(name), settings })
}

fn put_one(rig: &mut Rig, e: Enqueue) -> MessageId {
    match rig.call(Op::Enqueue(Box::new(e))) {
        Reply::Enqueue(Ok(done)) => done.id,
        other => panic!("{other:?}"),
    }
}

fn put(rig: &mut Rig, name: &str, count: usize) {
    for _ in 0..count {
        put_one(rig, message(name, 0));
    }
}

fn reserved(rig: &mut Rig, queues: &[&str], max: usize) -> Reserved {
    let demand = rig.demand(queues, max, 0);
    match rig.call(Op::Reserve(demand)) {
        Reply::Reserve(reserved) => reserved,
        other => panic!("{other:?}"),
    }
}

fn granted(reserved: Reserved) -> Vec<Grant> {
    match reserved {
        Reserved::Grants(grants) => grants,
        other => panic!("{other:?}"),
    }
}

/// Consumers that always wait for more: what they get in each ms, for some time. Time goes from one wake-up of the engine to
/// the next, as a driver's does.
fn drain(rig: &mut Rig, name: &str, max: usize, ms: u64) -> Vec<(u64, MessageId)> {
    let until = EngineMs(rig.now.engine.0 + ms);
    let mut got = Vec::new();
    let demand = rig.demand(&[name], max, 1_000_000);
    let mut waits = rig.step(Op::Reserve(demand));
    while rig.now.engine < until {
        while let Some(reply) = rig.reply(waits) {
            let Reply::Reserve(Reserved::Grants(grants)) = reply else { panic!("{reply:?}") };
            for grant in grants {
                got.push((rig.now.engine.0, grant.message.id));
                rig.call(Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None });
            }
            let demand = rig.demand(&[name], max, 1_000_000);
            waits = rig.step(Op::Reserve(demand));
        }
        let wakeup = rig.engine.next_wakeup().unwrap_or(until).min(until);
        rig.pass(wakeup.0.saturating_sub(rig.now.engine.0).clamp(1, 1_000));
        rig.timeout();
    }
    got
}

#[test]
fn rate_holds_in_every_second() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", rate(1_000, 10));
    put(&mut rig, "q", 6_000);
    rig.pass(1);
    let got = drain(&mut rig, "q", 100, 5_000);
    // The last ms may be cut off.
    assert!((4_990..=5_010).contains(&got.len()), "{}", got.len());
    assert!(got.is_sorted_by(|a, b| a.1 < b.1), "in their order");
    for (n, (at, _)) in got.iter().enumerate() {
        let second = got[n..].iter().take_while(|(later, _)| *later < at + 1_000).count();
        assert!(second <= 1_010, "{second} in one second");
    }
}

/// Rates below one a second are kept exactly: ten a minute, and seven an hour.
#[test]
fn fractional_rates_grant_on_time() {
    for (per_hour, first, in_an_hour) in [(600, 6_000, 600), (7, 514_285, 7), (5_400, 666, 5_400)] {
        let mut rig = Rig::new(Policy::default());
        limit(
            &mut rig,
            "q",
            GrantLimits { rate: Some(GrantRate::per_hour(per_hour)), ..GrantLimits::default() },
        );
        put(&mut rig, "q", 6_000);
        assert_eq!(granted(reserved(&mut rig, &["q"], 9)).len(), 1);
        rig.pass(first - 1);
        assert_eq!(reserved(&mut rig, &["q"], 9), Reserved::HeldBack(HeldBack::Rate), "{per_hour}");
        rig.pass(1);
        let mut got = granted(reserved(&mut rig, &["q"], 9)).len() as u64;
        assert_eq!(got, 1, "{per_hour}");
        let step = if per_hour == 7 { 1_000 } else { 100 };
        for _ in 0..(3_600_000 - first) / step {
            rig.pass(step);
            if let Reserved::Grants(grants) = reserved(&mut rig, &["q"], 9) {
                got += grants.len() as u64;
            }
        }
        assert!((in_an_hour - 1..=in_an_hour).contains(&got), "{got} of {per_hour}");
    }
}

#[test]
fn rate_limited_reserve_says_held_back() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "slow", rate(2, 1));
    put(&mut rig, "slow", 3);
    put(&mut rig, "free", 3);
    assert_eq!(granted(reserved(&mut rig, &["slow"], 9)).len(), 1);
    assert_eq!(reserved(&mut rig, &["slow"], 9), Reserved::HeldBack(HeldBack::Rate));
    assert_eq!(granted(reserved(&mut rig, &["slow", "free"], 9)).len(), 3, "those of the other queue");
    let one = Op::ReserveOne { id: MessageId(2), session: SessionId::NONE, lease_ms: None };
    assert_eq!(
        rig.call(one.clone()),
        Reply::ReserveOne(Err(ChangeRefusal::Overloaded(Limit::GrantRate(500))))
    );
    rig.pass(499);
    assert_eq!(reserved(&mut rig, &["slow"], 9), Reserved::HeldBack(HeldBack::Rate));
    rig.pass(1);
    assert!(matches!(rig.call(one), Reply::ReserveOne(Ok(_))));
    rig.pass(10_000);
    assert_eq!(granted(reserved(&mut rig, &["slow"], 9)).len(), 1, "a pause is worth one burst");
}

#[test]
fn rate_limited_wait_ends_on_time() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", rate(4, 1));
    put(&mut rig, "q", 2);
    assert_eq!(granted(reserved(&mut rig, &["q"], 1)).len(), 1);
    let demand = rig.demand(&["q"], 1, 100_000);
    let waits = rig.step(Op::Reserve(demand));
    rig.timeout();
    assert_eq!(rig.engine.next_wakeup(), Some(EngineMs(250)), "the engine sleeps until then");
    rig.pass(249);
    rig.timeout();
    assert_eq!(rig.reply(waits), None);
    rig.pass(1);
    rig.timeout();
    assert!(matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
}

#[test]
fn late_queue_uses_its_catchup_rate() {
    let mut rig = Rig::new(Policy::default());
    let limits = GrantLimits { catchup_per_hour: Some(100 * 3_600), ..rate(1_000, 1) };
    limit(&mut rig, "q", limits);
    put(&mut rig, "q", 3_000);
    rig.pass(10_000);
    rig.timeout();
    assert!(granted(reserved(&mut rig, &["q"], 9)).len() == 1, "ten seconds are not behind yet");
    rig.pass(1);
    let behind = drain(&mut rig, "q", 100, 2_000);
    assert!((198..=202).contains(&behind.len()), "{}", behind.len());
    for _ in 0..500 {
        put_one(&mut rig, Enqueue { priority: Some(1), ..message("q", 0) });
    }
    let urgent = drain(&mut rig, "q", 100, 400);
    assert!((398..=402).contains(&urgent.len()), "what comes first and is not late: {}", urgent.len());
    let without = GrantLimits { rate: None, ..limits };
    limit(&mut rig, "q", without);
    rig.pass(1_000);
    let alone = drain(&mut rig, "q", 100, 1_000);
    assert!(alone.len() >= 198, "without another rate what is up to date is not limited: {}", alone.len());
}

#[test]
fn concurrency_frees_as_leases_end() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", concurrency(3));
    put(&mut rig, "q", 9);
    let grants = granted(reserved(&mut rig, &["q"], 9));
    assert_eq!(grants.len(), 3);
    assert_eq!(reserved(&mut rig, &["q"], 9), Reserved::HeldBack(HeldBack::Leases));
    let ends = [
        Op::Ack { id: grants[0].message.id, proof: grants[0].token.into(), result: None },
        Op::Bury { id: grants[1].message.id, proof: grants[1].token.into(), priority: None, note: "".into() },
        Op::Nack {
            id: grants[2].message.id,
            proof: grants[2].token.into(),
            attempt: Attempt::Failed,
            delay_ms: Some(1_000_000),
            priority: None,
            note: "".into(),
        },
    ];
    for op in ends {
        let demand = rig.demand(&["q"], 9, 100_000);
        let waits = rig.step(Op::Reserve(demand));
        rig.timeout();
        assert_eq!(rig.reply(waits), None);
        rig.call(op);
        rig.timeout();
        assert!(matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
    }
    let demand = rig.demand(&["q"], 9, 100_000);
    let waits = rig.step(Op::Reserve(demand));
    rig.pass(30_000);
    rig.timeout();
    assert!(
        matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if !g.is_empty() && g.len() <= 3),
        "leases that run out, too"
    );
}

#[test]
fn limits_survive_restart_and_change_immediately() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", concurrency(2));
    put(&mut rig, "q", 6);
    assert_eq!(granted(reserved(&mut rig, &["q"], 9)).len(), 2);
    rig.restart();
    assert_eq!(reserved(&mut rig, &["q"], 9), Reserved::HeldBack(HeldBack::Leases));
    let demand = rig.demand(&["q"], 9, 100_000);
    let waits = rig.step(Op::Reserve(demand));
    rig.timeout();
    assert_eq!(rig.reply(waits), None);
    limit(&mut rig, "q", concurrency(5));
    rig.timeout();
    assert!(matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 3));
    assert_eq!(reserved(&mut rig, &["q"], 9), Reserved::HeldBack(HeldBack::Leases));
    limit(&mut rig, "q", GrantLimits::default());
    assert_eq!(granted(reserved(&mut rig, &["q"], 9)).len(), 1);
}

/// Story: what a queue waited for must not outlive its limits, nor the queue.
#[test]
fn rate_wait_ends_with_its_limit() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", rate(1, 1));
    put(&mut rig, "q", 3);
    assert_eq!(granted(reserved(&mut rig, &["q"], 1)).len(), 1);
    let demand = rig.demand(&["q"], 1, 100_000);
    let waits = rig.step(Op::Reserve(demand));
    rig.timeout();
    assert_eq!(rig.engine.next_wakeup(), Some(EngineMs(1_000)));
    limit(&mut rig, "q", GrantLimits::default());
    rig.timeout();
    assert!(matches!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(g))) if g.len() == 1));
    assert_ne!(rig.engine.next_wakeup(), Some(EngineMs(1_000)));

    limit(&mut rig, "r", rate(1, 1));
    put(&mut rig, "r", 2);
    assert_eq!(granted(reserved(&mut rig, &["r"], 1)).len(), 1);
    let demand = rig.demand(&["r"], 1, 500);
    let waits = rig.step(Op::Reserve(demand));
    rig.timeout();
    rig.call(Op::Purge { at_most: None, queue: queue("r") });
    limit(&mut rig, "r", GrantLimits::default());
    rig.pass(500);
    rig.timeout();
    assert_eq!(rig.reply(waits), Some(Reply::Reserve(Reserved::Grants(vec![]))));
    put(&mut rig, "r", 1);
    assert_eq!(granted(reserved(&mut rig, &["r"], 1)).len(), 1);
}

#[test]
fn edit_does_not_renew_burst() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", rate(1, 5));
    put(&mut rig, "q", 20);
    assert_eq!(granted(reserved(&mut rig, &["q"], 99)).len(), 5);
    limit(&mut rig, "q", rate(1, 5));
    assert_eq!(reserved(&mut rig, &["q"], 99), Reserved::HeldBack(HeldBack::Rate));
}

/// Story: an owner that began gave the burst of each rate again, so a shard that moved between nodes, or a server that
/// crashed in a loop, granted more than its rate.
#[test]
fn restart_does_not_renew_burst() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", rate(10, 5));
    limit(&mut rig, "late", GrantLimits { catchup_per_hour: Some(10 * 3_600), ..GrantLimits::default() });
    put(&mut rig, "q", 20);
    put(&mut rig, "late", 20);
    assert_eq!(granted(reserved(&mut rig, &["q"], 99)).len(), 5);
    for _ in 0..3 {
        rig.restart();
        assert_eq!(reserved(&mut rig, &["q"], 99), Reserved::HeldBack(HeldBack::Rate));
    }
    rig.pass(100);
    assert_eq!(granted(reserved(&mut rig, &["q"], 99)).len(), 1, "what the rate gives since");
    rig.pass(11_000);
    assert_eq!(granted(reserved(&mut rig, &["late"], 99)).len(), 1);
    rig.restart();
    assert_eq!(reserved(&mut rig, &["late"], 99), Reserved::HeldBack(HeldBack::Rate));
    rig.pass(100);
    assert_eq!(granted(reserved(&mut rig, &["late"], 99)).len(), 1);
}

/// Each shard keeps to its part, so the sum of all shards holds without communication.
#[test]
fn shard_shares_add_up_to_limit() {
    let (mut leases, mut at_once) = (0, 0);
    for shard in 0..4 {
        let mut rig = Rig::of_shard(Policy::default(), Ids::of(ShardId(shard), 4));
        assert_eq!(
            limit(&mut rig, "q", concurrency(3)),
            Reply::Configure(SettingsRefusal::BelowShards("concurrency", 4)),
            "a shard without a lease would never grant its messages"
        );
        limit(&mut rig, "q", concurrency(6));
        put(&mut rig, "q", 9);
        leases += granted(reserved(&mut rig, &["q"], 9)).len();
        limit(&mut rig, "r", rate(8, 4));
        put(&mut rig, "r", 9);
        at_once += granted(reserved(&mut rig, &["r"], 9)).len();
        rig.pass(1_000);
        assert_eq!(granted(reserved(&mut rig, &["r"], 1)).len(), 1);
    }
    assert_eq!((leases, at_once), (6, 4));
}

/// Consumers of all shards together get the rate, and not each shard's own.
#[test]
fn shard_rates_add_up_to_rate() {
    const SHARDS: u32 = 3;
    let mut all = 0;
    for shard in 0..SHARDS {
        let mut rig = Rig::of_shard(Policy::default(), Ids::of(ShardId(shard), SHARDS));
        limit(&mut rig, "q", rate(100, 3));
        put(&mut rig, "q", 1_000);
        rig.pass(1);
        all += drain(&mut rig, "q", 100, 10_000).len();
    }
    // Each shard has a burst of at least one, and the last one of its part may be cut off.
    assert!((997..=1_003).contains(&all), "{all} in ten seconds");
}

#[test]
fn invalid_limits_name_their_field() {
    let mut rig = Rig::new(Policy::default());
    let max = rig.policy.max_quota_rate;
    let refused = |field| Reply::Configure(SettingsRefusal::OutOfRange(field, max));
    let over = u32::MAX;
    assert_eq!(limit(&mut rig, "q", rate(0, 1)), refused("rate.per_second"));
    assert_eq!(limit(&mut rig, "q", rate(over, 1)), refused("rate.per_second"));
    assert_eq!(limit(&mut rig, "q", rate(1, 0)), refused("rate.burst"));
    assert_eq!(limit(&mut rig, "q", concurrency(0)), refused("concurrency"));
    let limits = GrantLimits { catchup_per_hour: Some(0), ..GrantLimits::default() };
    assert_eq!(limit(&mut rig, "q", limits), refused("catchup_rate"));
    assert_eq!(rig.call(Op::Queue { queue: queue("q") }), Reply::Queues(vec![]), "and nothing is made");
}

/// A million messages that are due in one second, of a queue with a rate: what a step costs does not depend on them.
#[test]
fn grant_cost_is_independent_of_backlog() {
    let mut rig = Rig::new(Policy::default());
    limit(&mut rig, "q", rate(100, 1));
    put(&mut rig, "q", 20_000);
    rig.pass(1);
    rig.timeout();
    let before = rig.engine.work();
    let got = drain(&mut rig, "q", 100, 1_000);
    let cost = rig.engine.work() - before;
    assert!((98..=102).contains(&got.len()), "{}", got.len());
    assert!(cost < 100 * got.len() as u64, "{cost} looks for {} grants", got.len());
}
