//! Consumers: which grants they get, and which messages are never lost.

use std::collections::BTreeSet;
use std::time::Duration;

use duewheel_core::engine::{Op, QueueView, Reply, Reserve, Reserved};
use duewheel_core::id::SessionId;
use duewheel_core::policy::Policy;
use duewheel_shard::clock::VirtualClock;
use duewheel_shard::error::{CallError, Outcome};

use super::rig::*;

const LONG: u64 = 3_600_000;

async fn view(rig: &Rig, name: &str) -> QueueView {
    match rig.call(Op::Queue { queue: queue(name) }).await {
        Reply::Queues(mut views) => views.pop().unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn waiters(rig: &Rig, name: &str) -> usize {
    match rig.call(Op::Queue { queue: queue(name) }).await {
        Reply::Queues(views) => views.first().map_or(0, |view| view.waiters),
        other => panic!("{other:?}"),
    }
}

async fn until_waiting(rig: &Rig, name: &str, n: usize) {
    for _ in 0..10_000 {
        if waiters(rig, name).await == n {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{n} never waited at {name}");
}

#[tokio::test]
async fn any_shard_serves_waiting_consumer() {
    let rig = rig(8);
    for shard in 0..8 {
        let waiting = tokio::spawn({
            let client = rig.client.clone();
            async move { client.reserve(demand("q", 1, LONG)).await }
        });
        until_waiting(&rig, "q", 1).await;
        let id = rig.put_at(shard, "q", "x").await;
        let Reserved::Grants(grants) = waiting.await.unwrap().unwrap() else { panic!() };
        assert_eq!((grants[0].message.id, grants[0].attempt), (id, 1));
        let ack = Op::Ack { id, proof: grants[0].token.into(), result: None };
        assert!(matches!(rig.call(ack).await, Reply::Settle(Ok(_))));
    }
    assert_eq!(rig.local.asked("undelivered"), 0);
}

#[tokio::test]
async fn due_message_reaches_waiting_consumer() {
    let rig = rig(4);
    for n in 0..4 {
        rig.enqueue(later("q", &n.to_string(), 60_000)).await;
    }
    let (client, clock) = (rig.client.clone(), rig.clock.clone());
    let waiting = tokio::spawn(async move {
        let mut got = Vec::new();
        while got.len() < 4 {
            match client.reserve(demand("q", 4, LONG)).await.unwrap() {
                Reserved::Grants(grants) => got.extend(grants.iter().map(body)),
                other => panic!("{other:?}"),
            }
        }
        got.sort_unstable();
        got
    });
    until_waiting(&rig, "q", 1).await;
    clock.advance(Duration::from_millis(59_999));
    assert_eq!(view(&rig, "q").await.counts.leased, 0, "never early");
    clock.advance(Duration::from_millis(1));
    assert_eq!(waiting.await.unwrap(), ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn hundred_consumers_share_hundred_messages() {
    let rig = rig(8);
    let consumer = |client: duewheel_shard::client::Client| async move {
        match client.reserve(demand("q", 1, LONG)).await.unwrap() {
            Reserved::Grants(grants) => grants,
            other => panic!("{other:?}"),
        }
    };
    let consumers: Vec<_> = (0..100).map(|_| tokio::spawn(consumer(rig.client.clone()))).collect();
    until_waiting(&rig, "q", 100).await;
    assert_eq!(rig.local.asked_each("wait"), [1; 8], "once for a queue at a shard, however many wait");
    for n in 0..100 {
        rig.put("q", &n.to_string()).await;
    }
    let mut seen = BTreeSet::new();
    for consumer in consumers {
        let grants = consumer.await.unwrap();
        assert_eq!((grants.len(), grants[0].attempt), (1, 1));
        assert!(seen.insert(body(&grants[0])), "granted twice");
    }
    assert_eq!(seen.len(), 100);
    let view = view(&rig, "q").await;
    assert_eq!((view.totals.granted, view.counts.leased), (100, 100));
    assert_eq!(rig.local.asked("undelivered"), 0);
}

#[tokio::test]
async fn nonwaiting_reserve_finds_available_messages() {
    let rig = rig(8);
    assert!(rig.reserve(demand("q", 10, 0)).await.is_empty());
    for shard in [1, 3, 3, 6] {
        rig.put_at(shard, "q", "x").await;
    }
    assert_eq!(rig.reserve(demand("q", 3, 0)).await.len(), 3);
    assert_eq!(rig.reserve(demand("q", 3, 0)).await.len(), 1);
    assert!(rig.reserve(demand("q", 3, 0)).await.is_empty());
    // Elsewhere it is found, too, but nobody waits for more of it.
    rig.local.set_here(&[0, 1]);
    for shard in [4, 5] {
        rig.put_at(shard, "q", "x").await;
    }
    assert_eq!(rig.reserve(demand("q", 3, 0)).await.len(), 1);
    assert_eq!(rig.reserve(demand("q", 3, 0)).await.len(), 1);
}

#[tokio::test]
async fn reserve_keeps_to_its_byte_limit() {
    let rig = rig(4);
    let large = "x".repeat(200_000);
    for shard in 0..4 {
        rig.put_at(shard, "q", &large).await;
    }
    let reserve = Reserve {
        waiter: rig.client.new_waiter(),
        queues: vec![queue("q")],
        max: 10,
        max_bytes: 500_000,
        wait_ms: 0,
        lease_ms: None,
        session: SessionId::NONE,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: None,
    };
    let Reply::Reserve(Reserved::Grants(grants)) = rig.call(Op::Reserve(reserve)).await else { panic!() };
    let bytes: usize = grants.iter().map(|grant| grant.message.weight()).sum();
    assert!((1..500_000).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn first_come_first_served() {
    let rig = rig(4);
    let mut consumers = Vec::new();
    for n in 0..20 {
        let client = rig.client.clone();
        consumers.push(tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await }));
        until_waiting(&rig, "q", n + 1).await;
    }
    for (n, consumer) in consumers.into_iter().enumerate() {
        rig.put("q", &n.to_string()).await;
        let Reserved::Grants(grants) = consumer.await.unwrap().unwrap() else { panic!() };
        assert_eq!(body(&grants[0]), n.to_string());
    }
}

#[tokio::test]
async fn served_demand_leaves_all_its_queues() {
    let rig = rig(4);
    let demand = Reserve { queues: vec![queue("a"), queue("b")], ..demand("a", 1, LONG) };
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand).await });
    until_waiting(&rig, "a", 1).await;
    until_waiting(&rig, "b", 1).await;
    rig.put("b", "x").await;
    assert!(matches!(waiting.await.unwrap(), Ok(Reserved::Grants(grants)) if grants.len() == 1));
    assert_eq!((waiters(&rig, "a").await, waiters(&rig, "b").await), (0, 0));
    rig.put("a", "y").await;
    rig.put("b", "y").await;
    assert_eq!(view(&rig, "a").await.counts.ready + view(&rig, "b").await.counts.ready, 2);
}

/// The shards of a queue give its number together, not each of them.
#[tokio::test]
async fn queue_maximum_holds_over_all_shards() {
    let rig = rig(4);
    for n in 0..20 {
        rig.put("a", &n.to_string()).await;
        rig.put("b", &n.to_string()).await;
    }
    let of_both =
        |max, max_of| Reserve { queues: vec![queue("a"), queue("b")], max_of, ..demand("a", max, 0) };
    let mut from = [0, 0];
    for _ in 0..40 {
        let max_of = vec![(queue("a"), 3), (queue("b"), 100)];
        let Ok(Reserved::Grants(grants)) = rig.client.reserve(of_both(10, max_of)).await else { panic!() };
        let of_a = grants.iter().filter(|grant| grant.message.queue == queue("a")).count();
        assert!(of_a <= 3 && grants.len() <= 10, "{of_a} of {}", grants.len());
        from[0] += of_a;
        from[1] += grants.len() - of_a;
    }
    assert_eq!(from, [20, 20], "nothing is left behind");
}

#[tokio::test]
async fn expired_wait_is_withdrawn_from_shards() {
    let rig = rig(4);
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, 1_000)).await });
    until_waiting(&rig, "q", 1).await;
    rig.pass(1_000);
    assert_eq!(waiting.await.unwrap().unwrap(), Reserved::Grants(vec![]));
    assert_eq!(rig.local.asked("withdraw"), 0, "consumers come again");
    rig.pass(5_000);
    until("the posts are withdrawn", || rig.local.asked("withdraw") == 4).await;
}

#[tokio::test]
async fn shard_waits_are_renewed_on_expiry() {
    let rig = rig(2);
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await });
    until_waiting(&rig, "q", 1).await;
    for round in 1..4 {
        until("both are armed", || rig.local.asked("wait") == 2 * round).await;
        // Behind that, so that the shards have seen it before time passes.
        rig.call(Op::Stats).await;
        rig.pass(30_000);
    }
    rig.put("q", "x").await;
    assert!(matches!(waiting.await.unwrap(), Ok(Reserved::Grants(grants)) if grants.len() == 1));
}

#[tokio::test]
async fn a_cancelled_reserve_loses_nothing() {
    let rig = rig(4);
    for round in 0..200 {
        let client = rig.client.clone();
        let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await });
        if round % 2 == 0 {
            until_waiting(&rig, "q", 1).await;
        }
        rig.put("q", "x").await;
        if round % 3 == 0 {
            tokio::task::yield_now().await;
        }
        // Somewhere between told and granted.
        waiting.abort();
        if let Ok(Ok(Reserved::Grants(grants))) = waiting.await {
            let ack = Op::Ack { id: grants[0].message.id, proof: grants[0].token.into(), result: None };
            assert!(matches!(rig.call(ack).await, Reply::Settle(Ok(_))));
            continue;
        }
        let grants = rig.reserve(demand("q", 1, LONG)).await;
        assert_eq!((grants.len(), grants[0].attempt), (1, 1), "a grant that nobody received does not count");
        let ack = Op::Ack { id: grants[0].message.id, proof: grants[0].token.into(), result: None };
        assert!(matches!(rig.call(ack).await, Reply::Settle(Ok(_))));
    }
}

#[tokio::test]
async fn cancelled_reserve_is_answered_empty() {
    let rig = rig(4);
    let waiter = rig.client.new_waiter();
    let reserve = Reserve {
        waiter,
        queues: vec![queue("q")],
        max: 1,
        max_bytes: usize::MAX,
        wait_ms: u64::MAX,
        lease_ms: None,
        session: SessionId::NONE,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: None,
    };
    let pending = rig.client.submit(vec![Op::Reserve(reserve)]).unwrap();
    assert_eq!(rig.call(Op::CancelReserve { waiter }).await, Reply::Done);
    let answer = pending.await.pop().unwrap().unwrap();
    assert_eq!(answer, Reply::Reserve(Reserved::Grants(vec![])));
    assert_eq!(waiters(&rig, "q").await, 0);
}

#[tokio::test]
async fn paused_queue_grants_after_resume() {
    let rig = rig(4);
    rig.call(Op::Pause { queue: queue("q"), for_ms: None }).await;
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await });
    until_waiting(&rig, "q", 1).await;
    rig.put("q", "x").await;
    assert!(rig.reserve(demand("q", 1, 0)).await.is_empty());
    let before = rig.local.submissions();
    assert_eq!(view(&rig, "q").await.counts.ready, 1);
    assert_eq!(rig.local.submissions(), before + 4, "nobody asks in vain");
    rig.call(Op::Resume { queue: queue("q") }).await;
    assert!(matches!(waiting.await.unwrap(), Ok(Reserved::Grants(grants)) if grants.len() == 1));
}

#[tokio::test]
async fn waiters_are_limited_by_policy() {
    let policy = Policy { max_waiters: 2, ..Policy::default() };
    let rig = rig_with(4, policy, VirtualClock::at_2026());
    let consumer =
        |client: duewheel_shard::client::Client| async move { client.reserve(demand("q", 1, LONG)).await };
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(consumer(rig.client.clone()))).collect();
    until_waiting(&rig, "q", 2).await;
    assert_eq!(rig.client.reserve(demand("q", 1, LONG)).await.unwrap(), Reserved::Overloaded);
    assert!(rig.reserve(demand("q", 1, 0)).await.is_empty(), "one that does not wait is not too many");
    for waiting in waiting {
        waiting.abort();
    }
}

#[tokio::test]
async fn unavailable_shard_is_skipped_until_back() {
    let rig = rig(4);
    let inside = rig.put_at(2, "q", "inside").await;
    rig.put_at(1, "q", "outside").await;
    rig.local.set(2, Mood::Away);
    assert_eq!(bodies(&rig.reserve(demand("q", 10, 0)).await), ["outside"]);
    assert!(rig.reserve(demand("q", 10, 0)).await.is_empty(), "the others have answered");

    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await });
    until("it is waited everywhere", || rig.local.asked("wait") == 4).await;
    rig.local.set(2, Mood::Well);
    rig.pass(10_000);
    let Reserved::Grants(grants) = waiting.await.unwrap().unwrap() else { panic!() };
    assert_eq!((grants[0].message.id, grants[0].attempt), (inside, 1));
}

#[tokio::test]
async fn reserve_fails_without_available_shards() {
    let rig = rig(3);
    for shard in 0..3 {
        rig.local.set(shard, Mood::Away);
    }
    for wait_ms in [0, LONG] {
        match rig.client.reserve(demand("q", 1, wait_ms)).await {
            Err(CallError::Store { error, .. }) => assert!(error.to_string().contains("shard "), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn silent_shard_does_not_block_others() {
    let rig = rig(3);
    rig.local.set(0, Mood::Silent);
    rig.put_at(1, "q", "x").await;
    rig.local.set_here(&[0, 1, 2]);
    let mut got = rig.reserve(demand("q", 2, 0)).await;
    if got.is_empty() {
        got = rig.reserve(demand("q", 2, 0)).await;
    }
    assert_eq!(bodies(&got), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn hanging_shards_cost_one_timeout() {
    // Story: each shard was waited for, one after the other: with sixteen that hung, a reserve that does not wait took
    // sixteen seconds. The clock of the runtime is the test's here: it goes on when everybody waits.
    let rig = rig(16);
    for shard in 0..16 {
        rig.local.set(shard, Mood::Silent);
    }
    let began = tokio::time::Instant::now();
    let error = rig.client.reserve(demand("q", 1, 0)).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert_eq!(began.elapsed().as_millis() / 100, 11, "a tenth of a second for the first, one for all");
    assert_eq!(rig.local.asked("reserve"), 1, "nobody else may have granted anything");
    let all: Vec<usize> =
        (0..16).map(|n| rig.local.asked_each("reserve")[n] + rig.local.asked_each("other")[n]).collect();
    assert_eq!(all, [1; 16], "each was asked once");
}

#[tokio::test]
async fn available_message_bypasses_hanging_shards() {
    let rig = rig(8);
    rig.local.set_here(&[]);
    for shard in (0..8).filter(|shard| *shard != 5) {
        rig.local.set(shard, Mood::Silent);
    }
    rig.put_at(5, "q", "x").await;
    let grants = rig.reserve(demand("q", 3, 0)).await;
    assert_eq!((bodies(&grants), grants[0].attempt), (vec!["x".to_owned()], 1));
    // Of those that hang one was asked for messages at most, the others whether they are there.
    assert!(rig.local.asked("reserve") <= 2 && rig.local.asked("other") <= 7);
}

#[tokio::test]
async fn slow_shards_grant_at_most_requested() {
    let rig = rig(8);
    rig.local.set_here(&[]);
    for shard in 0..8 {
        rig.put_at(shard, "q", &shard.to_string()).await;
        rig.local.set(shard, Mood::Slow(Duration::from_millis(250)));
    }
    assert_eq!(rig.reserve(demand("q", 1, 0)).await.len(), 1);
    assert_eq!((rig.local.asked("reserve"), rig.local.asked("undelivered")), (1, 0));
}

#[tokio::test]
async fn late_grants_of_slow_shard_return() {
    let rig = rig(2);
    rig.put_at(0, "q", "slow").await;
    rig.local.set(0, Mood::Slow(Duration::from_millis(1_300)));
    let late = rig.client.reserve(demand("q", 1, 0)).await.unwrap_err();
    assert_eq!(late.outcome(), Outcome::Unknown, "it was not waited for, and may have granted something");
    rig.local.set(0, Mood::Well);
    let grants = rig.reserve(demand("q", 1, LONG)).await;
    assert_eq!(grants[0].attempt, 1, "what came too late does not count");
}

#[tokio::test]
async fn lost_answers_lose_no_message() {
    let rig = rig(4);
    for n in 0..40 {
        rig.put("q", &n.to_string()).await;
    }
    rig.local.set(1, Mood::Deaf);
    let mut got = BTreeSet::new();
    for _ in 0..10 {
        // With nothing from the others it is an error: something may have been granted.
        if let Ok(Reserved::Grants(grants)) = rig.client.reserve(demand("q", 7, 0)).await {
            got.extend(grants.iter().map(|g| (body(g), g.attempt)));
        }
    }
    assert!(got.len() < 40, "a shard's answers are lost");
    rig.local.set(1, Mood::Well);
    while got.len() < 40 {
        got.extend(rig.reserve(demand("q", 7, LONG)).await.iter().map(|g| (body(g), g.attempt)));
    }
    assert!(got.iter().all(|(_, attempt)| *attempt == 1), "{got:?}");
}

#[tokio::test]
async fn a_shutdown_ends_all_waits() {
    let rig = rig(4);
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await });
    until_waiting(&rig, "q", 1).await;
    rig.ended();
    rig.client.end_routed_waits();
    assert_eq!(waiting.await.unwrap().unwrap(), Reserved::Grants(vec![]));
    assert_eq!(rig.client.reserve(demand("q", 1, LONG)).await.unwrap(), Reserved::Grants(vec![]));
}

#[tokio::test]
async fn two_nodes_grant_each_message_once() {
    let rig = rig(4);
    let other = rig.second_node();
    let mut consumers = Vec::new();
    for n in 0..60 {
        let client = if n % 2 == 0 { rig.client.clone() } else { other.clone() };
        consumers.push(tokio::spawn(async move { client.reserve(demand("q", 1, LONG)).await }));
    }
    until("both wait at all shards", || rig.local.asked("wait") == 8).await;
    // The one whose wait is withdrawn is this node's, whatever the other one has called its own.
    let waiter = rig.client.new_waiter();
    drop(other.submit(vec![Op::CancelReserve { waiter }]).unwrap().await);
    for n in 0..60 {
        rig.put("q", &n.to_string()).await;
        if n % 7 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let mut seen = BTreeSet::new();
    for consumer in consumers {
        let Reserved::Grants(grants) = consumer.await.unwrap().unwrap() else { panic!() };
        assert_eq!((grants.len(), grants[0].attempt), (1, 1));
        assert!(seen.insert(body(&grants[0])));
    }
    assert_eq!(view(&rig, "q").await.totals.granted, 60);
    assert_eq!(rig.local.asked("undelivered"), 0);
}
