//! Whole nodes, as a host opens them: several in one process, on a coordinator in memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duewheel::testing::MemoryCoordinator;
use duewheel::{Cancel, Duewheel, Message, NodeOptions, Policy, SECOND, VirtualClock};
use duewheel_shard::client::Reserve;

use crate::until;

const LEASE: Duration = Duration::from_millis(1_000);

async fn node(coordinator: &MemoryCoordinator, name: &str) -> Duewheel {
    let options = NodeOptions::new(name).advertise("127.0.0.1:0").shards_if_new(8);
    let options = options.settle_delay(Duration::ZERO);
    let policy = Policy { max_sleep_ms: 50, ..Policy::default() };
    Duewheel::builder()
        .cluster(Arc::new(coordinator.for_a_node()), options)
        .policy(policy)
        .open()
        .await
        .unwrap()
}

/// Waits until the nodes share the shards.
async fn settled(nodes: &[&Duewheel]) {
    until("the shards are shared", || {
        let owned: Vec<usize> = nodes
            .iter()
            .map(|node| {
                let view = node.cluster().unwrap();
                view.shards.iter().filter(|s| s.here == duewheel::ShardStage::Serving).count()
            })
            .collect();
        owned.iter().sum::<usize>() == 8 && owned.iter().all(|n| n.abs_diff(8 / nodes.len()) <= 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_is_served_from_all_shards() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let (a, b) = (node(&coordinator, "a").await, node(&coordinator, "b").await);
    settled(&[&a, &b]).await;
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let take = seen.clone();
    b.queue("work")
        .handler(move |message: Message| {
            let take = take.clone();
            async move {
                take.lock().unwrap().insert(String::from_utf8_lossy(message.body()).into_owned());
            }
        })
        .unwrap();
    for n in 0..100 {
        a.queue("work").body(format!("m{n}")).key(&format!("k{n}")).enqueue().await.unwrap();
    }
    until("all were handled", || seen.lock().unwrap().len() == 100).await;
    // By its key from the other node, whichever has it.
    a.queue("later").body("x").key("order").delay(3_600 * SECOND).enqueue().await.unwrap();
    assert!(matches!(b.queue("later").cancel_key("order").await.unwrap(), Cancel::Cancelled(_)));
    a.shutdown(10 * SECOND).await.unwrap();
    settled(&[&b]).await;
    b.queue("work").body("last").enqueue().await.unwrap();
    until("the last one was handled", || seen.lock().unwrap().contains("last")).await;
    b.shutdown(10 * SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_consumer_survives_membership_changes() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = node(&coordinator, "a").await;
    let waits = tokio::spawn({
        let client = a.client().clone();
        async move {
            let queue = duewheel::core::QueueName::new("q").unwrap();
            client.reserve(Reserve { wait_ms: 60_000, ..Reserve::new(queue) }).await
        }
    });
    let b = node(&coordinator, "b").await;
    settled(&[&a, &b]).await;
    let c = node(&coordinator, "c").await;
    settled(&[&a, &b, &c]).await;
    b.shutdown(SECOND).await.unwrap();
    settled(&[&a, &c]).await;
    c.queue("q").body("x").enqueue().await.unwrap();
    let reserved = waits.await.unwrap().unwrap();
    assert!(matches!(&reserved, duewheel::core::engine::Reserved::Grants(grants) if grants.len() == 1));
    for node in [a, c] {
        node.shutdown(SECOND).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_shutdown_awaits_running_handlers() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let (a, b) = (node(&coordinator, "a").await, node(&coordinator, "b").await);
    settled(&[&a, &b]).await;
    let started = Arc::new(AtomicUsize::new(0));
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let (counts, waits) = (started.clone(), go_on.clone());
    a.queue("slow")
        .handler(move |_: Message| {
            counts.fetch_add(1, Ordering::SeqCst);
            let waits = waits.clone();
            async move {
                drop(waits.acquire().await);
            }
        })
        .unwrap();
    for n in 0..8 {
        b.queue("slow").body("x").key(&format!("k{n}")).enqueue().await.unwrap();
    }
    until("a handler runs", || started.load(Ordering::SeqCst) > 0).await;
    let waits = tokio::spawn({
        let client = a.client().clone();
        async move {
            let queue = duewheel::core::QueueName::new("empty").unwrap();
            client.reserve(Reserve { wait_ms: 60_000, ..Reserve::new(queue) }).await
        }
    });
    let stops = tokio::spawn({
        let a = a.clone();
        async move { a.shutdown(30 * SECOND).await }
    });
    let ended = waits.await.unwrap();
    // Asked before the door was closed it ends empty; after that it is refused, by the node or by one of its shards.
    let refused = |error: &duewheel::CallError| error.outcome() == duewheel::Outcome::NotApplied;
    assert!(
        matches!(&ended, Ok(duewheel::core::engine::Reserved::Grants(grants)) if grants.is_empty())
            || ended.as_ref().is_err_and(refused),
        "{ended:?}"
    );
    go_on.add_permits(1_000);
    stops.await.unwrap().unwrap();
    let left = b.stats().await.unwrap().counts;
    let done = started.load(Ordering::SeqCst) as u64;
    assert_eq!(left.ready + left.leased + left.scheduled, 8 - done, "{left:?}: those that ran were acked");
    b.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn handlers_run_over_many_shards() {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().shards(4).clock(clock.clone()).seed(1).open().await.unwrap();
    let (tries, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (tries.clone(), done.clone());
    wheel
        .queue("q")
        .handler(move |message: Message| {
            let (tries, done) = seen.clone();
            async move {
                tries.fetch_add(1, Ordering::SeqCst);
                if message.attempt() == 1 && message.body().len().is_multiple_of(2) {
                    return Err("once more");
                }
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        })
        .unwrap();
    for n in 0..50 {
        wheel.queue("q").body("x".repeat(n)).delay(Duration::from_secs(3_600)).enqueue().await.unwrap();
    }
    clock.advance(Duration::from_millis(3_599_999));
    wheel.idle().await.unwrap();
    assert_eq!(tries.load(Ordering::SeqCst), 0);
    clock.advance(Duration::from_millis(1));
    wheel.idle().await.unwrap();
    assert_eq!((tries.load(Ordering::SeqCst), done.load(Ordering::SeqCst)), (50, 25));
    clock.advance(Duration::from_secs(10));
    wheel.idle().await.unwrap();
    assert_eq!((tries.load(Ordering::SeqCst), done.load(Ordering::SeqCst)), (75, 50));
    wheel.shutdown(SECOND).await.unwrap();
}
