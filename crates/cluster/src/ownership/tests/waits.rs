//! Reserves that wait, and grants that no consumer takes.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserve_waits_at_remote_shard() {
    let (_coordinator, a, b) = pair().await;
    let shard = a.fleet.here()[0];
    let pending = b.fleet.submit(shard, vec![reserve_op(1, 60_000)], WhenBusy::Refuse);
    // Behind it in the same way: when this is answered, the reserve waits.
    call(&b, shard, Op::Stats).await.unwrap();
    enqueue(&a, shard, "x").await.unwrap();
    let answers = pending.await;
    assert_eq!(granted(&answers), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_wait_takes_no_message() {
    let (_coordinator, a, b) = pair().await;
    let shard = a.fleet.here()[0];
    for node in [&a, &b] {
        let pending = node.fleet.submit(shard, vec![reserve_op(1, 60_000)], WhenBusy::Refuse);
        call(node, shard, Op::Stats).await.unwrap();
        drop(pending);
        waiters(&a, shard, 0).await;
        enqueue(node, shard, "x").await.unwrap();
        let grants = reserve(node, shard, 2, 0).await.unwrap();
        assert_eq!(grants.len(), 1);
        assert_eq!(grants[0].attempt, 1, "no attempt was counted");
        ack(node, shard, &grants[0]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_dropped_reserve_return() {
    let (_coordinator, a, b) = pair().await;
    let shard = a.fleet.here()[0];
    for node in [&a, &b] {
        enqueue(node, shard, "x").await.unwrap();
        // It does not wait, so it is granted whatever happens; nobody takes it.
        drop(node.fleet.submit(shard, vec![reserve_op(1, 0)], WhenBusy::Refuse));
        let mut grants = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while grants.is_empty() {
            assert!(Instant::now() < deadline, "it was not put back");
            grants = reserve(node, shard, 2, 100).await.unwrap();
        }
        assert_eq!(grants[0].attempt, 1, "no attempt was counted");
        ack(node, shard, &grants[0]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_waiter_ids_stay_separate() {
    let (_coordinator, a, b) = pair().await;
    let shard = a.fleet.here()[0];
    let of_a = a.fleet.submit(shard, vec![reserve_op(1, 60_000)], WhenBusy::Refuse);
    let of_b = b.fleet.submit(shard, vec![reserve_op(1, 60_000)], WhenBusy::Refuse);
    waiters(&a, shard, 2).await;
    call(&b, shard, Op::CancelReserve { waiter: WaiterId(1) }).await.unwrap();
    let ended = of_b.await;
    assert_eq!(granted(&ended), 0);
    enqueue(&b, shard, "x").await.unwrap();
    let answers = of_a.await;
    assert_eq!(granted(&answers), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_ends_waits_and_allows_settling() {
    let (_coordinator, a, b) = pair().await;
    let (near, far) = (b.fleet.here()[0], a.fleet.here()[0]);
    enqueue(&b, far, "x").await.unwrap();
    let grant = reserve(&b, far, 9, 0).await.unwrap().remove(0);
    let waits: Vec<_> =
        [near, far].map(|shard| b.fleet.submit(shard, vec![reserve_op(1, 60_000)], WhenBusy::Refuse)).into();
    waiters(&a, far, 1).await;
    waiters(&b, near, 1).await;
    b.inbox.close_door(Admission::Draining);
    b.shared.wish(ThreadCommand::EndWaits, &b.inbox);
    for wait in waits {
        assert_eq!(granted(&wait.await), 0);
    }
    assert!(matches!(enqueue(&b, near, "late").await, Err(CallError::Draining)));
    assert!(matches!(ack(&b, far, &grant).await.unwrap(), Reply::Settle(Ok(_))));
    assert_eq!(b.fleet.here().len(), 4, "it serves others until it stops");
    enqueue(&a, near, "from a").await.unwrap();
    assert_eq!(stop(&b).await, DriverEnd::Stopped);
    settled(&[&a]).await;
    assert_eq!(reserve(&a, near, 1, 0).await.unwrap().len(), 1);
}

/// With how many grants a reserve was answered.
fn granted(answers: &[Result<Reply, CallError>]) -> usize {
    let [Ok(Reply::Reserve(Reserved::Grants(grants)))] = answers else { panic!("{answers:?}") };
    grants.len()
}

/// Waits until so many reserves wait at a shard.
async fn waiters(node: &Started, shard: ShardId, wanted: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let Reply::Stats(stats) = call(node, shard, Op::Stats).await.unwrap() else { panic!("no stats") };
        if stats.waiters == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{} wait, not {wanted}", stats.waiters);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrived_grants_not_taken_return() {
    // Story: a reserve was given up between the arrival of its grants and its own look at them. Their sender had seen
    // them received, and they were nobody's until the end of the lease.
    let (_coordinator, a, b) = pair().await;
    let shard = a.fleet.here()[0];
    for node in [&a, &b] {
        enqueue(node, shard, "x").await.unwrap();
        let pending = node.fleet.submit(shard, vec![reserve_op(1, 0)], WhenBusy::Refuse);
        // Behind it in the same way: the grants have been sent. Whether they have arrived does not matter, they go
        // back.
        call(node, shard, Op::Stats).await.unwrap();
        drop(pending);
        let grants = reserve(node, shard, 2, 20_000).await.unwrap();
        assert_eq!(grants[0].attempt, 1, "no attempt was counted");
        ack(node, shard, &grants[0]).await.unwrap();
    }
}
