//! Shards that fail in every way while messages are produced and consumed: in the end each accepted one has been acked.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duewheel_core::engine::{Op, Reply, Reserved};
use duewheel_shard::client::{Client, Reserve};
use duewheel_shard::error::CallError;

use super::list::Random;
use super::rig::*;

const MOODS: [Mood; 5] =
    [Mood::Away, Mood::Deaf, Mood::Slow(Duration::from_millis(20)), Mood::Full, Mood::Silent];

/// Reserves, sometimes gives up in the middle, and acks what it gets.
async fn consume(
    client: Client,
    mut random: Random,
    stop: Arc<AtomicBool>,
    acked: Arc<Mutex<BTreeSet<String>>>,
) {
    while !stop.load(SeqCst) {
        let max = 1 + random.below(4) as usize;
        let demand = Reserve { lease_ms: Some(2_000), ..demand("q", max, random.below(3) * 5_000) };
        let reserve = client.reserve(demand);
        let patience = Duration::from_millis(1 + random.below(200));
        let Ok(reserved) = tokio::time::timeout(patience, reserve).await else { continue };
        let Ok(Reserved::Grants(grants)) = reserved else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        for grant in grants {
            let ack = Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None };
            let acking = tokio::time::timeout(Duration::from_millis(100), client.call(ack));
            match acking.await {
                Ok(Ok(Reply::Settle(Ok(_)))) => {
                    assert!(acked.lock().unwrap().insert(body(&grant)), "acked, and granted again");
                }
                // Lost on its way it may have been done: then nobody sees the message again.
                Ok(Err(CallError::Lost(_))) => {}
                Ok(_) | Err(_) => {}
            }
        }
    }
}

async fn check(seed: u64) {
    let rig = rig(4);
    let mut random = Random::new(seed);
    let (stop, acked) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeSet::new())));
    let consumer = |n: u64| {
        let random = Random::new(seed ^ (n << 32));
        tokio::spawn(consume(rig.client.clone(), random, stop.clone(), acked.clone()))
    };
    let consumers: Vec<_> = (1..7).map(consumer).collect();
    let mut accepted = BTreeSet::new();
    for n in 0..200 {
        if random.below(4) == 0 {
            let shard = random.below(4) as u32;
            let mood = if random.below(2) == 0 { Mood::Well } else { MOODS[random.below(5) as usize] };
            rig.local.set(shard, mood);
        }
        let put = Op::Enqueue(Box::new(later("q", &n.to_string(), random.below(3) * 100)));
        let putting = tokio::time::timeout(Duration::from_millis(50), rig.client.call(put));
        if let Ok(Ok(Reply::Enqueue(Ok(_)))) = putting.await {
            accepted.insert(n.to_string());
        }
        rig.pass(random.below(300));
    }
    for shard in 0..4 {
        rig.local.set(shard, Mood::Well);
    }
    // What was lost with its consumer comes again when its lease is over.
    for _ in 0..2_000 {
        rig.pass(100);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let Reply::Stats(stats) = rig.call(Op::Stats).await else { panic!() };
        let c = stats.counts;
        if c.scheduled + c.ready + c.leased == 0 {
            stop.store(true, SeqCst);
            for consumer in consumers {
                consumer.await.unwrap();
            }
            assert_eq!(c.dead, 0, "seed {seed}");
            assert!(accepted.len() > 50, "seed {seed}: hardly anything was accepted");
            let acked = acked.lock().unwrap().len() as u64;
            assert!(acked <= stats.totals.acked, "seed {seed}");
            assert!(stats.totals.acked >= accepted.len() as u64, "seed {seed}: a message was lost");
            return;
        }
    }
    panic!("seed {seed}: some messages never reached anybody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_shards_lose_no_message() {
    for seed in 0..super::seeds(4) {
        check(seed).await;
    }
}
