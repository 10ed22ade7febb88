//! A great many messages that are due in the same millisecond: each comes once, none early, memory stays as it is, and
//! the other queues do not notice. `DUEWHEEL_TEST_HERD` says how many (50,000).

use std::time::{Duration, Instant};

use duewheel::core::engine::{Enqueue, Grant, Op, Past, Reply, Reserved, When};
use duewheel::core::name::QueueName;
use duewheel::core::time::WallMs;
use duewheel::store_log::Options as LogOptions;
use duewheel::{CallError, Client, Duewheel, Durability, Policy, VirtualClock};
use duewheel_shard::client::Reserve;

use crate::size;

/// Other queues, with a message each that is due in that millisecond and one in each of the next ones.
const OTHERS: usize = 20;
const LATER: u64 = 10;
/// Messages in memory.
const NEAR: usize = 2_000;
const DELAY: u64 = 3_600_000;

fn name(text: &str) -> QueueName {
    QueueName::new(text).unwrap()
}

fn put(queue: &QueueName, when: When, number: u64) -> Op {
    Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue.clone(), number.to_le_bytes().to_vec()) }))
}

/// As often as the store asks for.
async fn enqueue(client: &Client, ops: Vec<Op>) {
    let mut ops = ops;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ops.is_empty() {
        assert!(Instant::now() < deadline, "{} messages are not taken", ops.len());
        match client.submit(ops.clone()) {
            Err(CallError::Overloaded) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => panic!("{error}"),
            Ok(answers) => {
                let answers = answers.await;
                let mut answers = answers.iter();
                let busy = duewheel::core::engine::EnqueueRefusal::Busy;
                ops.retain(|_| match answers.next() {
                    Some(Ok(Reply::Enqueue(Ok(_)))) => false,
                    Some(Ok(Reply::Enqueue(Err(refusal)))) if *refusal == busy => true,
                    other => panic!("{other:?}"),
                });
                if !ops.is_empty() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }
}

async fn reserve(client: &Client, queue: &QueueName, max: usize, wait_ms: u64) -> Vec<Grant> {
    let demand = Reserve { max, wait_ms, ..Reserve::new(queue.clone()) };
    match client.reserve(demand).await.unwrap() {
        Reserved::Grants(grants) => grants,
        other => panic!("{other:?}"),
    }
}

async fn ack(client: &Client, grants: &[Grant]) {
    let acks =
        grants.iter().map(|g| Op::Ack { id: g.message.id, proof: g.token.into(), result: None }).collect();
    for answer in client.submit(acks).unwrap().await {
        assert!(matches!(answer, Ok(Reply::Settle(Ok(_)))), "{answer:?}");
    }
}

#[test]
fn simultaneous_messages_arrive_once_each() {
    let herd = size("DUEWHEEL_TEST_HERD", 50_000);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let clock = VirtualClock::at_2026();
        let policy = Policy {
            near_messages: NEAR,
            ready_messages: NEAR,
            load_rows: 500,
            ..Policy::default()
        };
        let log = LogOptions {
            journal_bytes: 8 * 1024 * 1024,
            segment_bytes: 2 * 1024 * 1024,
            ..LogOptions::default()
        };
        let builder = Duewheel::builder().data(dir.path().join("data")).durability(Durability::Buffered);
        let wheel = builder.clock(clock.clone()).policy(policy).log_options(log).open().await.unwrap();
        let client = wheel.client();
        let due = client.now().wall.0 + DELAY;
        let queue = name("herd");
        let numbers: Vec<u64> = (0..herd as u64).collect();
        for piece in numbers.chunks(1_000) {
            let when = |n: u64| match n % 2 {
                0 => When::After(DELAY),
                _ => When::At { due_at: WallMs(due), past: Past::Refuse },
            };
            enqueue(client, piece.iter().map(|&n| put(&queue, when(n), n)).collect()).await;
        }
        let others: Vec<QueueName> = (0..OTHERS).map(|n| name(&format!("other-{n}"))).collect();
        for other in &others {
            let ops = (0..LATER).map(|later| put(other, When::After(DELAY + later), later));
            enqueue(client, ops.collect()).await;
        }

        clock.advance(Duration::from_millis(DELAY - 1));
        assert!(reserve(client, &queue, 10, 0).await.is_empty(), "early");
        let mut seen = vec![false; herd];
        let (mut granted, mut largest, mut steps) = (0, 0, 0);
        let mut their_last = None;
        let mut come = vec![0u64; OTHERS];
        clock.advance(Duration::from_millis(1));
        while granted < herd {
            let grants = reserve(client, &queue, 500, 60_000).await;
            assert!(!grants.is_empty(), "{granted} of {herd} have come");
            for grant in &grants {
                let number = u64::from_le_bytes(grant.message.body[..].try_into().unwrap());
                let number = usize::try_from(number).unwrap();
                assert!(!std::mem::replace(&mut seen[number], true), "message {number} came twice");
                assert_eq!((grant.due_at, grant.attempt), (WallMs(due), 1));
            }
            granted += grants.len();
            ack(client, &grants).await;
            largest = largest.max(wheel.stats().await.unwrap().resident);
            steps += 1;
            // Each other queue is asked once a round, without waiting; a millisecond passes every other round.
            for (other, come) in others.iter().zip(&mut come) {
                let grants = reserve(client, other, 10, 0).await;
                for grant in &grants {
                    assert!(grant.due_at <= client.now().wall, "early");
                }
                *come += grants.len() as u64;
                ack(client, &grants).await;
            }
            if their_last.is_none() && come.iter().all(|&n| n == LATER) {
                their_last = Some(granted);
            }
            if steps % 2 == 0 {
                clock.advance(Duration::from_millis(1));
            }
        }
        assert_eq!(granted, herd);
        println!(
            "{herd} messages in {steps} reserves; at most {largest} in memory; the other queues had all of theirs after \
             {their_last:?}"
        );
        let their_last = their_last.expect("the other queues are served meanwhile");
        assert!(their_last <= herd / 2, "not before {their_last} of {herd}");
        // What is near, what is ready, what is leased, a page on its way, and the other queues.
        let bound = 2 * NEAR + 500 + 2 * 500 + OTHERS * 10;
        assert!(largest <= bound as u64, "{largest} messages in memory, {bound} at most");
        assert!(reserve(client, &queue, 10, 0).await.is_empty());
        let totals = wheel.stats().await.unwrap().totals;
        assert_eq!(totals.acked as usize, herd + OTHERS * usize::try_from(LATER).unwrap());
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
    });
}
