//! Far more messages than memory holds, on the real store with a tiny journal: everything comes, in time, and once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel::core::engine::{Enqueue, Op, Past, Reply, Reserved, When};
use duewheel::core::name::QueueName;
use duewheel::core::random::SplitMix64;
use duewheel::core::time::WallMs;
use duewheel::store_log::Options as LogOptions;
use duewheel::{Client, Duewheel, Policy};
use duewheel_shard::client::Reserve;

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

/// Reserves and acks until nothing comes for a while; an attempt in five is let go, to come again when its lease runs
/// out.
async fn consume(client: Client, queue: QueueName, seen: Arc<Mutex<BTreeMap<u64, u32>>>, until: Instant) {
    let mut n = 0u64;
    while Instant::now() < until {
        let demand = Reserve {
            max: 5,
            wait_ms: 200,
            lease_ms: Some(100),
            queues: vec![queue.clone()],
            ..Reserve::new(queue.clone())
        };
        let Ok(Reserved::Grants(grants)) = client.reserve(demand).await else { return };
        let mut acks = Vec::new();
        for grant in grants {
            n += 1;
            if !n.is_multiple_of(5) {
                acks.push((
                    grant.message.id,
                    Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None },
                ));
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
fn backlog_beyond_memory_survives_restarts() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let queues = [QueueName::new("orders").unwrap(), QueueName::new("sms").unwrap()];
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let mut total = 0u64;
        let mut numbers = SplitMix64::new(1);
        for life in 0..4 {
            let wheel = tiny().data(&data).open().await.unwrap();
            let client = wheel.client().clone();
            let last = life == 3;
            let until =
                Instant::now() + if last { Duration::from_secs(60) } else { Duration::from_millis(600) };
            let consumers: Vec<_> = (0..3)
                .map(|n| {
                    let queue = queues[n % 2].clone();
                    tokio::spawn(consume(client.clone(), queue, seen.clone(), until))
                })
                .collect();
            for _ in 0..if last { 0 } else { 20 } {
                let ops = (0..40)
                    .map(|_| {
                        let random = numbers.next();
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
                let deadline = Instant::now() + Duration::from_secs(60);
                loop {
                    let left: u64 = wheel
                        .queues()
                        .await
                        .unwrap()
                        .iter()
                        .map(|q| q.counts.scheduled + q.counts.ready + q.counts.leased)
                        .sum();
                    // What was acked is counted by its consumer a moment later.
                    if left == 0 && seen.lock().unwrap().len() as u64 == total {
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
            wheel.shutdown(Duration::from_secs(60)).await.unwrap();
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len() as u64, total, "each was acked");
        assert!(seen.values().all(|n| *n == 1), "and once");
    });
}

/// Story: a page whose rows are all hidden by newer records is empty and not the last; redriving all dead messages
/// ended at the first such page, and removing old ones asked for it for ever (review).
#[test]
fn runs_redrive_and_expire_all_dead() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let policy = Policy {
            near_messages: 50,
            ready_messages: 50,
            load_rows: 10,
            max_step: 40,
            ..Policy::default()
        };
        let wheel = tiny().policy(policy).data(folder.path().join("data")).open().await.unwrap();
        let client = wheel.client();
        let queue = QueueName::new("q").unwrap();
        let ops = (0..400).map(|_| Op::Enqueue(Box::new(Enqueue::new(queue.clone(), vec![b'.'; 200]))));
        // A batch that fills the store's memory on its way is taken whole: the store falls behind, and has room.
        let put = client.submit(ops.collect()).unwrap().await;
        assert!(put.iter().all(|answer| matches!(answer, Ok(Reply::Enqueue(Ok(_))))));
        let bury_all = async || {
            loop {
                let demand = Reserve { max: 50, ..Reserve::new(queue.clone()) };
                let Ok(Reserved::Grants(grants)) = client.reserve(demand).await else { panic!() };
                if grants.is_empty() {
                    return;
                }
                let bury = |g: &duewheel::core::engine::Grant| {
                    let (id, token) = (g.message.id, g.token);
                    Op::Bury { id, proof: token.into(), priority: None, note: "".into() }
                };
                client.submit(grants.iter().map(bury).collect()).unwrap().await;
            }
        };
        let flushes =
            || client.store_figures().iter().find(|(n, _)| *n == "flushes_total").map_or(0, |f| f.1);
        let counts = async || wheel.queues().await.unwrap()[0].counts;
        bury_all().await;
        assert_eq!(counts().await.dead, 400);
        let mut redriven = 0;
        loop {
            match client.call(Op::RedriveMany { queue: queue.clone(), max: 1_000 }).await.unwrap() {
                Reply::Count(n) if *n == 0 => break,
                Reply::Count(n) => redriven += *n,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(redriven, 400);
        bury_all().await;
        assert_eq!(counts().await.dead, 400);
        let settings = duewheel::core::policy::QueueSettings { dead_ttl_ms: Some(1), ..Default::default() };
        client.call(Op::Configure { queue: queue.clone(), settings }).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while counts().await.dead > 0 {
            assert!(Instant::now() < deadline, "{:?}", counts().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(1_100)).await; // figures are told once a second
        assert!(flushes() > 2, "most of it was in runs");
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
    });
}
