//! Work goes on while nodes come and go: nothing that was accepted is lost, and order is kept.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use duewheel_shard::error::Outcome;
use tokio::task::JoinHandle;

use super::*;

/// Producers and consumers over some nodes, which change.
#[derive(Default)]
pub(super) struct Load {
    nodes: Mutex<Vec<Arc<Fleet>>>,
    accepted: Mutex<BTreeSet<String>>,
    acked: Mutex<BTreeSet<String>>,
    /// Acked with an unknown outcome.
    maybe: Mutex<BTreeSet<String>>,
    produce: AtomicBool,
    consume: AtomicBool,
    next: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unknown: AtomicU64,
}

impl Load {
    pub(super) fn nodes(&self, nodes: &[&Started]) {
        *self.nodes.lock().unwrap() = nodes.iter().map(|node| node.fleet.clone()).collect();
    }

    fn any(&self, n: u64) -> Arc<Fleet> {
        let nodes = self.nodes.lock().unwrap();
        nodes[n as usize % nodes.len()].clone()
    }

    pub(super) fn start_producers(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        self.produce.store(true, Ordering::SeqCst);
        (0..4).map(|_| tokio::spawn(self.clone().produce())).collect()
    }

    pub(super) async fn end_producers(&self, producers: Vec<JoinHandle<()>>) {
        self.produce.store(false, Ordering::SeqCst);
        for producer in producers {
            producer.await.unwrap();
        }
    }

    /// Waits until so many more are accepted.
    pub(super) async fn more(&self, n: usize) {
        let before = self.accepted.lock().unwrap().len();
        until("work goes on", || self.accepted.lock().unwrap().len() >= before + n).await;
    }

    /// Everything that was accepted is there, and nobody was refused anything or told that it is unknown.
    pub(super) async fn nothing_failed(&self, node: &Started) {
        let counted = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        assert_eq!((counted(&self.refused), counted(&self.unknown)), (0, 0), "what failed could have waited");
        let accepted = self.accepted.lock().unwrap().len() as u64;
        let mut kept = 0;
        for shard in (0..8).map(ShardId) {
            let Reply::Stats(stats) = call(node, shard, Op::Stats).await.unwrap() else { panic!("no stats") };
            // What is beyond the memory for ready messages counts as scheduled in an estimate.
            kept += stats.counts.ready + stats.counts.scheduled;
        }
        assert_eq!(kept, accepted);
    }

    /// Enqueues until told to stop. What is refused is tried again with another node; so is what is unknown, under the
    /// same key.
    async fn produce(self: Arc<Self>) {
        while self.produce.load(Ordering::SeqCst) {
            let n = self.next.fetch_add(1, Ordering::SeqCst);
            let (shard, name) = (ShardId(u32::try_from(n % 8).unwrap()), format!("m{n}"));
            let mut tries = n;
            loop {
                let answer =
                    self.any(tries).submit(shard, vec![enqueue_op(&name)], WhenBusy::Refuse).await.pop();
                tries += 1;
                match answer.unwrap() {
                    Ok(Reply::Enqueue(Ok(_))) => break,
                    // An earlier try was applied; it may have been acked since, and then it is accepted once more.
                    Ok(Reply::Enqueue(Err(duewheel_core::engine::EnqueueRefusal::KeyExists(_)))) => break,
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => {
                        let counter = match error.outcome() {
                            Outcome::NotApplied => &self.refused,
                            Outcome::Unknown => &self.unknown,
                        };
                        counter.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            self.accepted.lock().unwrap().insert(name);
        }
    }

    async fn consume(self: Arc<Self>, shard: ShardId, consumer: u64) {
        let mut n = consumer;
        while self.consume.load(Ordering::SeqCst) {
            n += 1;
            let fleet = self.any(n);
            let mut op = reserve_op(consumer << 20 | n, 50);
            if let Op::Reserve(reserve) = &mut op {
                // What a dead node had granted to somebody comes again soon.
                reserve.lease_ms = Some(1_000);
            }
            let answer = fleet.submit(shard, vec![op], WhenBusy::Refuse).await.pop().unwrap();
            let Ok(Reply::Reserve(Reserved::Grants(grants))) = answer else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            for grant in grants {
                let op = Op::Ack { id: grant.message.id, proof: Proof::Token(grant.token), result: None };
                let answer = fleet.submit(shard, vec![op], WhenBusy::Refuse).await.pop().unwrap();
                match answer {
                    Ok(Reply::Settle(Ok(_))) => drop(self.acked.lock().unwrap().insert(body(&grant))),
                    // It may have been applied, and then the message does not come again.
                    Err(error) if error.outcome() == Outcome::Unknown => {
                        self.maybe.lock().unwrap().insert(body(&grant));
                    }
                    // It comes again.
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn membership_changes_lose_no_accepted_message() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let a = start(&coordinator, "a").await;
    let load = Arc::new(Load::default());
    load.consume.store(true, Ordering::SeqCst);
    load.nodes(&[&a]);
    let producers = load.start_producers();
    let consumers: Vec<_> =
        (0..8).map(|shard| tokio::spawn(load.clone().consume(ShardId(shard), u64::from(shard)))).collect();
    let more = async |n: usize| {
        let before = load.accepted.lock().unwrap().len();
        until("work goes on", || load.accepted.lock().unwrap().len() >= before + n).await;
    };
    more(200).await;
    let b = start(&coordinator, "b").await;
    settled(&[&a, &b]).await;
    load.nodes(&[&a, &b]);
    more(200).await;
    let c = start(&coordinator, "c").await;
    load.nodes(&[&a, &b, &c]);
    more(200).await;
    // A clean end: those that ask it are sent elsewhere first, as a load balancer does.
    load.nodes(&[&b, &c]);
    assert_eq!(stop(&a).await, DriverEnd::Stopped);
    more(200).await;
    kill(&coordinator, &b);
    load.nodes(&[&c]);
    more(200).await;
    settled(&[&c]).await;
    coordinator.end_lease(ShardId(2));
    more(200).await;
    load.end_producers(producers).await;
    let missing = || {
        let (accepted, acked) = (load.accepted.lock().unwrap(), load.acked.lock().unwrap());
        let maybe = load.maybe.lock().unwrap();
        accepted.difference(&acked).filter(|name| !maybe.contains(*name)).cloned().collect::<Vec<_>>()
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !missing().is_empty() {
        assert!(Instant::now() < deadline, "accepted and never granted: {:?}", missing());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    load.consume.store(false, Ordering::SeqCst);
    for consumer in consumers {
        consumer.await.unwrap();
    }
    // The other direction: nothing was granted that nobody had asked to keep.
    let tried = load.next.load(Ordering::SeqCst);
    assert!(load.acked.lock().unwrap().iter().all(|name| name[1..].parse::<u64>().unwrap() < tried));
    assert!(load.accepted.lock().unwrap().len() >= 1_200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_refuses_no_request() {
    let coordinator = MemoryCoordinator::new(LEASE);
    let mut nodes = [start(&coordinator, "a").await, start(&coordinator, "b").await];
    settled(&nodes.iter().collect::<Vec<_>>()).await;
    let load = Arc::new(Load::default());
    load.nodes(&[&nodes[0], &nodes[1]]);
    let producers = load.start_producers();
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        load.nodes(&[&nodes[1 - at]]);
        until("nobody asks it any more", || Arc::strong_count(&nodes[at].fleet) == 1).await;
        assert_eq!(stop(&nodes[at]).await, DriverEnd::Stopped);
        nodes[at] = start(&coordinator, name).await;
        settled(&nodes.iter().collect::<Vec<_>>()).await;
        load.nodes(&[&nodes[0], &nodes[1]]);
    }
    load.end_producers(producers).await;
    load.nothing_failed(&nodes[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submissions_for_one_shard_stay_ordered() {
    let (_coordinator, a, b) = pair().await;
    let shard = a.fleet.here()[0];
    for node in [&a, &b] {
        keeps_order(node, shard, &node.fleet.core().me.name, 500).await;
    }
    // And so do those that had to wait for an owner.
    assert_eq!(stop(&b).await, DriverEnd::Stopped);
    settled(&[&a]).await;
    a.fleet.core().routes.set(shard, crate::forwarding::routes::ShardRoute::None);
    keeps_order(&a, shard, "line", 100).await;
}

/// Submits so many enqueues one by one without waiting; their ids must be in the same order.
async fn keeps_order(node: &Started, shard: ShardId, name: &str, count: usize) {
    let all: Vec<_> = (0..count)
        .map(|n| node.fleet.submit(shard, vec![enqueue_op(&format!("{name}{n}"))], WhenBusy::Refuse))
        .collect();
    let mut last = 0;
    for pending in all {
        let answers = pending.await;
        let [Ok(Reply::Enqueue(Ok(enqueued)))] = &answers[..] else { panic!("{answers:?}") };
        assert!(enqueued.id.0 > last);
        last = enqueued.id.0;
    }
}
