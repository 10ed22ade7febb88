//! Nodes that come and go, and shards that no node takes. The tests move the clock that says how long a node has
//! stayed.

use duewheel_shard::clock::VirtualClock;

use super::*;

/// By the clock of the test.
const SETTLE: Duration = Duration::from_secs(60);

async fn start_at(coordinator: &MemoryCoordinator, clock: &VirtualClock, name: &str) -> Started {
    let options = FleetOptions { settle_delay: SETTLE, ..options(name) };
    let (coordinator, clock) = (Arc::new(coordinator.for_a_node()), Arc::new(clock.clone()));
    Fleet::start(coordinator, options, Policy::default(), clock).await.unwrap()
}

/// Until each of them has seen so many nodes, and has acted on it.
async fn see(nodes: &[&Started], count: usize) {
    until("they see each other", || nodes.iter().all(|node| node.fleet.view().nodes.len() == count)).await;
}

/// Story: each time a node with a bad cable came back, a third of all shards was given up to it, and had to wait for
/// its lease to run out when it was gone again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_node_moves_no_shard() {
    let (coordinator, clock) = (MemoryCoordinator::new(LEASE), VirtualClock::at_2026());
    let a = start_at(&coordinator, &clock, "a").await;
    let b = start_at(&coordinator, &clock, "b").await;
    // The cluster is new: nobody waits.
    settled(&[&a, &b]).await;
    clock.advance(SETTLE);
    let before = coordinator.owners().unwrap();
    let had = [a.fleet.here(), b.fleet.here()];
    for flap in 0..3 {
        let c = start_at(&coordinator, &clock, "c").await;
        see(&[&a, &b, &c], 3).await;
        // It takes part and answers for all shards, and owns none.
        for shard in (0..8).map(ShardId) {
            enqueue(&c, shard, &format!("{flap} {shard}")).await.unwrap();
        }
        clock.advance(SETTLE / 2);
        assert_eq!(c.fleet.here(), []);
        assert!(c.shared.health().trouble.is_none());
        kill(&coordinator, &c);
        see(&[&a, &b], 2).await;
        assert_eq!(
            coordinator.owners().unwrap(),
            before,
            "flap {flap}: no shard has moved, and no reign has ended"
        );
        assert_eq!([a.fleet.here(), b.fleet.here()], had, "flap {flap}: none was given up");
    }
    let c = start_at(&coordinator, &clock, "c").await;
    see(&[&a, &b, &c], 3).await;
    clock.advance(SETTLE);
    settled(&[&a, &b, &c]).await;
    // One that goes is missed at once.
    kill(&coordinator, &c);
    settled(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untaken_shards_are_reported_until_taken() {
    let coordinator = MemoryCoordinator::new(LEASE);
    coordinator.hold_open();
    let a = start(&coordinator, "a").await;
    until("it says so", || {
        let trouble = a.shared.health().trouble;
        trouble.is_some_and(|trouble| trouble.contains("shards have had no owner: 0, 1, 2, 3, 4, 5, 6, 7"))
    })
    .await;
    coordinator.let_open();
    until("all is well", || a.shared.health().trouble.is_none()).await;
    settled(&[&a]).await;
}
