//! M13 of `docs/testing.md`: three shapes of load, on the real log, in virtual time.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use duewheel::core::engine::{Op, Reply};
use duewheel::{DAY, Duewheel, Durability, HOUR, MINUTE, Message, VirtualClock};

struct Rig {
    wheel: Duewheel,
    clock: VirtualClock,
    _dir: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let clock = VirtualClock::at_2026();
        let builder = Duewheel::builder().data(dir.path().join("data")).durability(Durability::Buffered);
        let wheel = builder.clock(clock.clone()).open().await.unwrap();
        Rig { wheel, clock, _dir: dir }
    }

    async fn submit(&self, ops: impl Iterator<Item = Op>) {
        let ops: Vec<Op> = ops.collect();
        for batch in ops.chunks(5_000) {
            for answer in self.wheel.client().submit(batch.to_vec()).unwrap().await {
                assert!(matches!(answer, Ok(Reply::Enqueue(Ok(_)) | Reply::Settle(Ok(_)))), "{answer:?}");
            }
        }
    }

    /// Takes everything that is ready now, and acks it.
    async fn take(&self, queue: &str) -> Vec<Message> {
        let mut all = Vec::new();
        loop {
            let some = self.wheel.queue(queue).reserve(5_000, Duration::ZERO).await.unwrap();
            if some.is_empty() {
                return all;
            }
            self.submit(some.iter().map(|m| Op::Ack {
                id: m.id(),
                proof: m.lease_token().into(),
                result: None,
            }))
            .await;
            all.extend(some);
        }
    }
}

#[tokio::test]
async fn m13_a_hundred_thousand_timers() {
    let rig = Rig::new().await;
    let queue = rig.wheel.queue("timers");
    // Spread over three turns of the ring.
    let delay = |i: u64| Duration::from_millis(i * 7_919 % (3 * 3_600_000));
    rig.submit((0..100_000).map(|i| queue.message(&i).delay(delay(i)).into_op().unwrap())).await;
    let start = rig.clock.now();
    let mut seen = 0;
    for _ in 0..180 {
        let last = rig.clock.now();
        for message in rig.take("timers").await {
            let i: u64 = message.json().unwrap();
            assert_eq!(message.due_at(), start + delay(i));
            assert!(message.due_at() <= last, "never early");
            assert!(last.duration_since(message.due_at()).unwrap() < MINUTE, "and in its own minute");
            seen += 1;
        }
        rig.clock.advance(MINUTE);
    }
    assert_eq!(seen + rig.take("timers").await.len(), 100_000);
    assert!(rig.wheel.queues().await.unwrap().is_empty());
}

#[tokio::test]
async fn m13_sms_batch_at_one_instant() {
    let rig = Rig::new().await;
    let queue = rig.wheel.queue("sms");
    let instant: SystemTime = rig.clock.now() + 9 * HOUR;
    rig.submit((0..50_000).map(|i| queue.message(&i).at(instant).into_op().unwrap())).await;
    rig.clock.advance(9 * HOUR - Duration::from_millis(1));
    assert!(rig.take("sms").await.is_empty());
    rig.clock.advance(Duration::from_millis(1));
    let got = rig.take("sms").await;
    let order: Vec<u64> = got.iter().map(|m| m.json().unwrap()).collect();
    assert_eq!(order, (0..50_000).collect::<Vec<_>>(), "all at once, in order");
}

#[tokio::test]
async fn m13_unpaid_orders_close_in_stages() {
    let rig = Rig::new().await;
    let stages = [("unpaid", 30 * MINUTE), ("review", 48 * HOUR), ("receipt", 15 * DAY)];
    for (stage, delay) in stages {
        let queue = rig.wheel.queue(stage);
        let orders = (0..10_000).map(|i| queue.message(&i).key(&format!("order-{i}")).delay(delay));
        rig.submit(orders.map(|o| o.into_op().unwrap())).await;
    }
    // Nine of ten are paid in time.
    for i in (0..10_000).filter(|i| i % 10 != 0) {
        let cancelled = rig.wheel.queue("unpaid").cancel_key(&format!("order-{i}")).await.unwrap();
        assert!(matches!(cancelled, duewheel::Cancel::Cancelled(_)));
    }
    let mut closed = BTreeMap::new();
    let mut passed = Duration::ZERO;
    for (stage, delay) in stages {
        rig.clock.advance(delay - passed - Duration::from_millis(1));
        assert!(rig.take(stage).await.is_empty(), "{stage}: never early");
        rig.clock.advance(Duration::from_millis(1));
        passed = delay;
        closed.insert(stage, rig.take(stage).await.len());
    }
    assert_eq!(closed, BTreeMap::from([("unpaid", 1_000), ("review", 10_000), ("receipt", 10_000)]));
}
