//! Events of the shards of other nodes, and of a shard that moves.

use duewheel_core::engine::ShardEvents;
use duewheel_core::id::Lsn;

use super::*;

async fn events(node: &Started, shard: ShardId, after: Option<Lsn>) -> Result<ShardEvents, CallError> {
    let op = Op::Events { shard, after, limit: 100, fired_after: None };
    match call(node, shard, op).await? {
        Reply::Events(events) => Ok(*events),
        other => panic!("{other:?}"),
    }
}

/// The keys of the messages that were accepted.
fn keys(events: &ShardEvents) -> Vec<String> {
    let keys = events.page.events.iter().map(|event| event.key.as_ref());
    keys.map(|key| key.expect("a key").as_str().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_available_from_any_node() {
    let (_, a, b) = pair().await;
    for shard in (0..8).map(ShardId) {
        let far = stranger_to(&[&a, &b], shard);
        let begin = events(far, shard, None).await.unwrap();
        assert!(begin.page.events.is_empty());
        for body in ["one", "two"] {
            enqueue(&a, shard, &format!("{body} {shard}")).await.unwrap();
        }
        for node in [&a, &b] {
            let told = events(node, shard, Some(begin.page.upto)).await.unwrap();
            assert_eq!(keys(&told), [format!("one {shard}"), format!("two {shard}")]);
            assert_eq!(told.page.from, begin.page.upto);
        }
    }
    stop(&a).await;
    stop(&b).await;
}

/// The next owner has no events of the time before: it says so, and from then on it has all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_owner_reports_missing_events() {
    let (coordinator, a, b) = pair().await;
    let shard = b.fleet.here()[0];
    let begin = events(&a, shard, None).await.unwrap().page.upto;
    enqueue(&a, shard, "before").await.unwrap();
    assert_eq!(keys(&events(&a, shard, Some(begin)).await.unwrap()), ["before"]);
    kill(&coordinator, &b);
    settled(&[&a]).await;
    let told = events(&a, shard, Some(begin)).await.unwrap();
    assert!(told.page.from > begin && told.page.events.is_empty(), "{told:?}");
    enqueue(&a, shard, "after").await.unwrap();
    assert_eq!(keys(&events(&a, shard, Some(told.page.upto)).await.unwrap()), ["after"]);
    stop(&a).await;
}
