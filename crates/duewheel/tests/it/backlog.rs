//! Far more messages than memory holds, on the real store with a tiny journal: everything comes, in time, and once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel::core::engine::{Enqueue, Op, Past, Reply, Reserved, When};
use duewheel::core::name::QueueName;
use duewheel::core::time::WallMs;
use duewheel::store_log::Options as LogOptions;
use duewheel::{Client, Demand, Duewheel, Policy};

fn tiny() -> duewheel::Builder {
    let policy = Policy { near_messages: 50, ready_messages: 50, load_rows: 10, ..Policy::default() };
    let log = LogOptions {
        journal_bytes: 64 * 1024,
        segment_bytes: 64 * 1024,
        small_runs: 3,
        run_rows: 2_000,
        ..LogOptions::default()
    };
    Duewheel::builder().policy(policy).log_options(log)
}

/// Reserves and acks until nothing comes for a while; an attempt in five is let go, to come again when its lease runs out.
async fn consume(client: Client, queue: QueueName, seen: Arc<Mutex<BTreeMap<u64, u32>>>, until: Instant) {
    let mut n = 0u64;
    while Instant::now() < until {
        let demand = Demand {
            max: 5,
            wait_ms: 200,
            lease_ms: Some(100),
            queues: vec![queue.clone()],
            ..Demand::new(queue.clone())
        };
        let Ok(Reserved::Grants(grants)) = client.reserve(demand).await else { return };
        let mut acks = Vec::new();
        for grant in grants {
            n += 1;
            if !n.is_multiple_of(5) {
                acks.push((grant.message.id, Op::Ack { id: grant.message.id, token: grant.token }));
            }
        }
        if acks.is_empty() {
            continue;
        }
        let (ids, ops): (Vec<_>, Vec<_>) = acks.into_iter().unzip();
        let Ok(answers) = client.submit(ops) else { return };
        for (id, answer) in ids.into_iter().zip(answers.await) {
            if matches!(answer, Ok(Reply::Settle(Ok(_)))) {
                *seen.lock().unwrap().entry(id.0).or_default() += 1;
            }
        }
    }
}

/// Story: with little memory the kill -9 test found messages that stayed ready for ever.
#[test]
fn a_backlog_beyond_memory_is_served_whole_over_restarts() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let queues = [QueueName::new("orders").unwrap(), QueueName::new("sms").unwrap()];
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let mut total = 0u64;
        let mut random = 88_172_645_463_325_252u64;
        for life in 0..4 {
            let wheel = tiny().data(&data).open().await.unwrap();
            let client = wheel.client().clone();
            let last = life == 3;
            let until =
                Instant::now() + if last { Duration::from_secs(30) } else { Duration::from_millis(600) };
            let consumers: Vec<_> = (0..3)
                .map(|n| {
                    let queue = queues[n % 2].clone();
                    tokio::spawn(consume(client.clone(), queue, seen.clone(), until))
                })
                .collect();
            for _ in 0..if last { 0 } else { 20 } {
                let ops = (0..40)
                    .map(|_| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let ms = random % 1_500;
                        let when = if random.is_multiple_of(3) {
                            When::At { due_at: WallMs(client.now().wall.0 + ms), past: Past::Fire }
                        } else {
                            When::After(ms)
                        };
                        let queue = queues[usize::try_from(random >> 60).unwrap() % 2].clone();
                        Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue, vec![b'.'; 150]) }))
                    })
                    .collect();
                for answer in client.submit(ops).unwrap().await {
                    total += u64::from(matches!(answer, Ok(Reply::Enqueue(Ok(_)))));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if last {
                let deadline = Instant::now() + Duration::from_secs(20);
                loop {
                    let left: u64 = wheel
                        .queues()
                        .await
                        .unwrap()
                        .iter()
                        .map(|q| q.counts.scheduled + q.counts.ready + q.counts.leased)
                        .sum();
                    if left == 0 {
                        break;
                    }
                    assert!(
                        Instant::now() < deadline,
                        "{left} of {total} are left: {:?}",
                        wheel.queues().await.unwrap()
                    );
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                for consumer in &consumers {
                    consumer.abort();
                }
            } else {
                for consumer in consumers {
                    consumer.await.unwrap();
                }
            }
            wheel.shutdown(Duration::from_secs(5)).await.unwrap();
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len() as u64, total, "each was acked");
        assert!(seen.values().all(|n| *n == 1), "and once");
    });
}
