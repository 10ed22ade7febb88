//! Nodes that come, serve and go.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_serves_any_shard() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start(&coordinator, "a").await;
    assert_eq!(a.fleet.here().len(), 8, "the first one owns everything");
    let b = start(&coordinator, "b").await;
    settled(&[&a, &b]).await;
    for shard in (0..8).map(ShardId) {
        for node in [&a, &b] {
            let enqueued =
                enqueue(node, shard, &format!("{} {shard}", node.fleet.core().me.name)).await.unwrap();
            assert_eq!(ShardId::of(enqueued.id, 8), shard, "an id tells its shard");
        }
        let far = stranger_to(&[&a, &b], shard);
        let grants = reserve(far, shard, 1, 0).await.unwrap();
        assert_eq!(grants.len(), 2);
        for grant in &grants {
            assert!(matches!(ack(far, shard, grant).await.unwrap(), Reply::Settle(Ok(_))));
        }
    }
    let view = a.fleet.view();
    assert_eq!(view.nodes.len(), 2);
    assert!(view.shards.iter().all(|shard| shard.owner == shard.wanted && shard.owner.is_some()));
    assert_eq!(view.shards.iter().filter(|s| s.here == ShardStage::Serving).count(), a.fleet.here().len());
    let figures = a.fleet.figures();
    assert_eq!(figures[0], ("shards_owned", a.fleet.here().len() as u64));
    let forwards = a.fleet.forwards();
    assert!(
        matches!(&*forwards, [(name, n)] if **name == *"b" && *n > 0),
        "some were forwarded: {forwards:?}"
    );

    assert_eq!(stop(&a).await, DriverEnd::Stopped);
    settled(&[&b]).await;
    assert_eq!(stop(&b).await, DriverEnd::Stopped);
    assert!(
        coordinator.owners().unwrap().iter().all(|owner| *owner == Ownership::Free),
        "all leases were given back"
    );
    let late = enqueue(&b, ShardId(0), "late").await.unwrap_err();
    assert!(matches!(late, CallError::Draining), "{late:?}");
}
