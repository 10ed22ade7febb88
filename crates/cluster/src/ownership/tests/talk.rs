//! What nodes tell each other while versions, secrets and limits change.

use duewheel_core::engine::{EnqueueRefusal, RefusedPart};

use super::load::Load;
use super::*;
use crate::forwarding::routes::ShardRoute;
use crate::transport::Peer;
use crate::transport::wire::PROTOCOL;

/// The connections of a node to the owners of shards that it does not own.
fn peers(node: &Started) -> Vec<Arc<Peer>> {
    let routes = &node.fleet.core().routes;
    let there = |shard| match routes.route(shard) {
        ShardRoute::There(peer) => Some(peer),
        ShardRoute::None | ShardRoute::Here(_) => None,
    };
    routes.shards().filter_map(there).collect()
}

/// Waits until all connections of these nodes speak this version.
async fn speak(nodes: &[&Started], version: impl Fn(&str, &str) -> u32) {
    until("they speak their version", || {
        nodes.iter().all(|node| {
            let me = &node.fleet.core().me.name;
            peers(node).iter().all(|peer| peer.version() == Some(version(me, &peer.node().name)))
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_upgrade_refuses_no_request() {
    // Story: nodes of two versions did not talk at all, so that most requests failed for as long as an upgrade took.
    let coordinator = MemoryCoordinator::new(LEASE);
    let names = ["a", "b", "c"];
    let mut nodes = Vec::new();
    for name in names {
        nodes.push(start(&coordinator, name).await);
    }
    settled(&nodes.iter().collect::<Vec<_>>()).await;
    speak(&nodes.iter().collect::<Vec<_>>(), |_, _| PROTOCOL).await;
    let load = Arc::new(Load::default());
    load.nodes(&nodes.iter().collect::<Vec<_>>());
    let producers = load.start_producers();
    for at in 0..names.len() {
        load.more(50).await;
        let others: Vec<&Started> = (0..names.len()).filter(|n| *n != at).map(|n| &nodes[n]).collect();
        load.nodes(&others);
        until("nobody asks it any more", || Arc::strong_count(&nodes[at].fleet) == 1).await;
        assert_eq!(stop(&nodes[at]).await, DriverEnd::Stopped);
        let next = FleetOptions { speaks: NEXT, ..options(names[at]) };
        nodes[at] = start_with(&coordinator, next).await.unwrap();
        let all: Vec<&Started> = nodes.iter().collect();
        settled(&all).await;
        load.nodes(&all);
        let upgraded = &names[..=at];
        speak(&all, |a, b| PROTOCOL + u32::from(upgraded.contains(&a) && upgraded.contains(&b))).await;
        load.more(50).await;
    }
    load.end_producers(producers).await;
    load.nothing_failed(&nodes[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_rotation_fails_no_request() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let nodes =
        [start(&coordinator, "a").await, start(&coordinator, "b").await, start(&coordinator, "c").await];
    let all: Vec<&Started> = nodes.iter().collect();
    settled(&all).await;
    until("all are connected", || all.iter().all(|node| peers(node).iter().all(|peer| peer.is_up()))).await;
    let before: Vec<_> = all.iter().flat_map(|node| peers(node)).map(|peer| (peer.lives(), peer)).collect();
    let load = Arc::new(Load::default());
    load.nodes(&all);
    let producers = load.start_producers();
    load.more(50).await;
    // One that waits at another node meanwhile. Its queue is nobody else's.
    let rare = QueueName::new("rare").unwrap();
    let there = nodes[0].fleet.here()[0];
    let mut wait = reserve_op(9, 120_000);
    if let Op::Reserve(reserve) = &mut wait {
        reserve.queues = vec![rare.clone()];
    }
    let waiting = nodes[1].fleet.submit(there, vec![wait], WhenBusy::Refuse);

    coordinator.rotate_secret([8; 32]);
    until("all know the new secret", || coordinator.all_know()).await;
    load.more(50).await;
    assert!(
        before.iter().all(|(lives, peer)| peer.lives() == *lives),
        "what stands stays, for as long as both are known"
    );
    coordinator.end_rotation();
    until("all have forgotten the former one", || coordinator.all_know()).await;
    until("nothing stands that was proved by it", || {
        before.iter().all(|(lives, peer)| peer.is_up() && peer.lives() > *lives)
    })
    .await;
    load.more(50).await;
    load.end_producers(producers).await;
    load.nothing_failed(&nodes[0]).await;
    // It waits still, at the same shard.
    let late = Op::Enqueue(Box::new(Enqueue::new(rare, Bytes::from_static(b"late"))));
    call(&nodes[2], there, late).await.unwrap();
    let answers = waiting.await;
    let [Ok(Reply::Reserve(Reserved::Grants(grants)))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((body(&grants[0]).as_str(), grants[0].attempt), ("late", 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_operation_fails_alone() {
    // Story: a frame that was larger than the owner took ended the connection, and everything under way on it was
    // unknown.
    let coordinator = MemoryCoordinator::new(LEASE);
    let large = Policy { max_body: 8 << 20, ..Policy::default() };
    let small = Policy {
        max_body: 10_000,
        max_batch_bytes: 100_000,
        max_reserve_bytes: 100_000,
        load_bytes: 100_000,
        max_batch_messages: 1_000,
        max_reserve: 1_000,
        ..Policy::default()
    };
    let a = start_by(&coordinator, options("a"), large).await.unwrap();
    let b = start_by(&coordinator, options("b"), small).await.unwrap();
    settled(&[&a, &b]).await;
    let there = b.fleet.here()[0];
    until("they are connected", || peers(&a).iter().all(|peer| peer.is_up())).await;
    let lives: Vec<u64> = peers(&a).iter().map(|peer| peer.lives()).collect();
    let of = |bytes: usize| Op::Enqueue(Box::new(Enqueue::new(queue(), vec![b'x'; bytes])));
    // Others are under way on the same connection, before and behind it; a batch is decided line by line.
    let others = || a.fleet.submit(there, vec![of(9_000)], WhenBusy::Refuse);
    let before: Vec<_> = (0..20).map(|_| others()).collect();
    let batch = a.fleet.submit(there, vec![of(1), of(6 << 20), of(20_000), of(2)], WhenBusy::Refuse);
    let alone = a.fleet.submit(there, vec![of(6 << 20)], WhenBusy::Refuse);
    let behind: Vec<_> = (0..20).map(|_| others()).collect();
    let word = |answer: &Result<Reply, CallError>| match answer {
        Ok(Reply::Enqueue(Ok(_))) => "taken",
        Ok(Reply::Enqueue(Err(EnqueueRefusal::TooLarge(RefusedPart::Body, 10_000)))) => "too large",
        other => panic!("{other:?}"),
    };
    assert_eq!(
        batch.await.iter().map(word).collect::<Vec<_>>(),
        ["taken", "too large", "too large", "taken"]
    );
    assert_eq!(alone.await.iter().map(word).collect::<Vec<_>>(), ["too large"]);
    for other in before.into_iter().chain(behind) {
        assert_eq!(other.await.iter().map(word).collect::<Vec<_>>(), ["taken"]);
    }
    // Story: a batch of good lines that the owner does not take together got 503, and at each further try again. It
    // goes in pieces; the lines that are too large are refused, each alone.
    let mut lines: Vec<usize> = vec![9_000; 400];
    (lines[7], lines[390]) = (20_000, 3 << 20);
    let batch = a.fleet.submit(there, lines.iter().map(|bytes| of(*bytes)).collect(), WhenBusy::Refuse);
    let expected = lines.iter().map(|bytes| if *bytes > 10_000 { "too large" } else { "taken" });
    assert_eq!(batch.await.iter().map(word).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let many = a.fleet.submit(there, vec![of(1); 5_000], WhenBusy::Refuse).await;
    let ids = many.iter().map(|answer| match answer {
        Ok(Reply::Enqueue(Ok(done))) => done.id,
        other => panic!("{other:?}"),
    });
    assert!(
        ids.is_sorted() && many.len() == 5_000,
        "more operations than it takes at a time, in their order"
    );
    assert_eq!(peers(&a).iter().map(|peer| peer.lives()).collect::<Vec<_>>(), lives, "the connection stands");
    // An answer that is too large for who asks is not sent either.
    let many: Vec<Op> = (0..90).map(|_| of(1_000)).collect();
    let here = a.fleet.here()[0];
    assert!(b.fleet.submit(here, many, WhenBusy::Refuse).await.iter().all(|answer| word(answer) == "taken"));
}
