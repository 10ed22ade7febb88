//! Two who want the same message at the same instant: one of them gets it, each time, and everybody is told the truth.
//!
//! Through the real driver and the log store, from several threads, on a clock that stands still until it is moved.
//! `DUEWHEEL_TEST_RACES` says how many messages there are (10,000).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duewheel::core::engine::{
    Applied, Attempt, ChangeRefusal, Enqueue, Op, Past, Reply, Reserved, SettleRefusal, Settled, Target, When,
};
use duewheel::core::id::LeaseToken;
use duewheel::core::name::QueueName;
use duewheel::core::store::conformance::Dice;
use duewheel::core::time::WallMs;
use duewheel::{Client, Duewheel, Durability, MessageId, VirtualClock};
use duewheel_shard::client::Reserve;

use crate::size;

const ROUND: usize = 500;

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

async fn open(data: &std::path::Path, clock: &VirtualClock) -> Duewheel {
    let builder = Duewheel::builder().data(data).durability(Durability::Buffered).clock(clock.clone());
    builder.seed(1).open().await.unwrap()
}

/// Messages that are due at one instant; by both clocks in turn.
async fn enqueue(client: &Client, n: usize, delay: u64) -> Vec<MessageId> {
    let at = client.now().wall.0 + delay;
    let ops = (0..n).map(|i| {
        let when = match i % 2 {
            0 => When::After(delay),
            _ => When::At { due_at: WallMs(at), past: Past::Fire },
        };
        Op::Enqueue(Box::new(Enqueue { when, ..Enqueue::new(queue(), "x") }))
    });
    let answers = client.submit(ops.collect()).unwrap().await;
    let id = |answer| match answer {
        Ok(Reply::Enqueue(Ok(done))) => duewheel::core::engine::Enqueued::clone(&done).id,
        other => panic!("{other:?}"),
    };
    answers.into_iter().map(id).collect()
}

/// Grants of up to so many messages.
async fn reserve(client: &Client, max: usize, wait_ms: u64) -> Vec<(MessageId, LeaseToken)> {
    let demand = Reserve { max, wait_ms, lease_ms: Some(1_000), ..Reserve::new(queue()) };
    match client.reserve(demand).await.unwrap() {
        Reserved::Grants(grants) => grants.iter().map(|g| (g.message.id, g.token)).collect(),
        other => panic!("{other:?}"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// Producers cancel messages in the very instant in which they come due and consumers wait for them.
#[test]
fn cancel_or_grant_wins_when_due() {
    let wanted = size("DUEWHEEL_TEST_RACES", 10_000);
    let (mut cancels_won, mut grants_won) = (0, 0);
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let clock = VirtualClock::at_2026();
        let wheel = open(&dir.path().join("data"), &clock).await;
        let mut dice = Dice::new(1);
        while cancels_won + grants_won < wanted {
            let client = wheel.client();
            let mut ids = enqueue(client, ROUND, 1_000).await;
            let all: BTreeSet<MessageId> = ids.iter().copied().collect();
            clock.advance(Duration::from_millis(999));
            for i in (1..ids.len()).rev() {
                ids.swap(i, usize::try_from(dice.below(i as u64 + 1)).unwrap());
            }
            // Consumers wait already; more come while the cancels do. One that comes too late for anything is told when
            // all is over: its wait would never end, as time stands still.
            let (over, _) = tokio::sync::watch::channel(false);
            let consumers: Vec<_> = (0..4)
                .map(|_| {
                    let (client, mut over) = (client.clone(), over.subscribe());
                    tokio::spawn(async move {
                        let mut granted = tokio::select! {
                            granted = reserve(&client, 20, 60_000) => granted,
                            _ = over.wait_for(|over| *over) => return Vec::new(),
                        };
                        for _ in 0..30 {
                            granted.extend(reserve(&client, 10, 0).await);
                            tokio::task::yield_now().await;
                        }
                        granted
                    })
                })
                .collect();
            // The instant comes somewhere between the cancels, from another thread.
            let moved = usize::try_from(dice.below(ROUND as u64)).unwrap() / 10;
            let mut cancelled = BTreeSet::new();
            let mut leased = BTreeSet::new();
            let mut moving = None;
            for (n, piece) in ids.chunks(10).enumerate() {
                if n == moved {
                    let clock = clock.clone();
                    moving = Some(std::thread::spawn(move || clock.advance(Duration::from_millis(1))));
                }
                let ops = piece
                    .iter()
                    .map(|&id| Op::Cancel {
                        keep: None,
                        dedupe_id: duewheel_core::engine::DedupeId::Stays,
                        target: Target::Id(id),
                    })
                    .collect();
                let answers = client.submit(ops).unwrap().await;
                for (&id, answer) in piece.iter().zip(answers) {
                    match answer {
                        Ok(Reply::Change(Ok(_))) => assert!(cancelled.insert(id)),
                        Ok(Reply::Change(Err(ChangeRefusal::Leased))) => assert!(leased.insert(id)),
                        other => panic!("{id}: {other:?}"),
                    }
                }
            }
            moving.expect("moved").join().unwrap();
            over.send_replace(true);
            let mut granted = BTreeMap::new();
            for consumer in consumers {
                for (id, token) in consumer.await.unwrap() {
                    assert_eq!(granted.insert(id, token), None, "{id} was granted twice");
                }
            }
            loop {
                let more = reserve(client, 500, 0).await;
                if more.is_empty() {
                    break;
                }
                granted.extend(more);
            }
            let acks = granted.iter().map(|(&id, &token)| Op::Ack { id, proof: token.into(), result: None });
            for ack in client.submit(acks.collect()).unwrap().await {
                assert!(
                    matches!(ack, Ok(Reply::Settle(Ok(Applied { what: Settled::Acked, .. })))),
                    "{ack:?}"
                );
            }
            let granted: BTreeSet<MessageId> = granted.into_keys().collect();
            assert_eq!(granted, leased, "what was not cancelled was granted, and nothing else");
            assert_eq!(cancelled.union(&granted).copied().collect::<BTreeSet<_>>(), all);
            assert!(cancelled.is_disjoint(&granted));
            cancels_won += cancelled.len();
            grants_won += granted.len();
        }
        let stats = wheel.stats().await.unwrap();
        assert_eq!((stats.counts.scheduled, stats.counts.ready, stats.counts.leased), (0, 0, 0));
        assert_eq!(stats.totals.cancelled as usize, cancels_won);
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
    });
    println!("{cancels_won} cancels and {grants_won} grants won");
    assert!(cancels_won > wanted / 100 && grants_won > wanted / 100, "both happen");
}

/// Everybody who has ever had a message settles it, at once and in any order, over restarts, too.
#[test]
fn only_current_token_settles() {
    let wanted = size("DUEWHEEL_TEST_RACES", 10_000);
    let (mut stale, mut right) = (0, 0);
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let clock = VirtualClock::at_2026();
        let mut wheel = open(&data, &clock).await;
        let mut dice = Dice::new(2);
        let mut round = 0;
        while stale < wanted {
            round += 1;
            let messages = enqueue(wheel.client(), ROUND / 5, 0).await.len();
            // Three holders, one after the other: the first two were too slow.
            let mut holders: Vec<BTreeMap<MessageId, LeaseToken>> = Vec::new();
            for holder in 0..3 {
                let granted: BTreeMap<_, _> = reserve(wheel.client(), ROUND, 0).await.into_iter().collect();
                assert_eq!(granted.len(), messages);
                if let Some(before) = holders.last() {
                    assert!(granted.iter().all(|(id, token)| *token > before[id]), "tokens grow");
                }
                holders.push(granted);
                if round % 20 == 0 {
                    wheel.shutdown(Duration::from_secs(60)).await.unwrap();
                    wheel = open(&data, &clock).await;
                }
                if holder < 2 {
                    clock.advance(Duration::from_millis(1_001));
                }
            }
            let mut asks: Vec<(usize, MessageId, LeaseToken)> = Vec::new();
            for (n, holder) in holders.iter().enumerate() {
                asks.extend(holder.iter().map(|(&id, &token)| (n, id, token)));
            }
            for i in (1..asks.len()).rev() {
                asks.swap(i, usize::try_from(dice.below(i as u64 + 1)).unwrap());
            }
            // From three tasks at once.
            let tasks: Vec<_> = asks
                .chunks(asks.len().div_ceil(3))
                .map(|part| {
                    let (client, part) = (wheel.client().clone(), part.to_vec());
                    let kinds: Vec<u64> = part.iter().map(|_| dice.below(4)).collect();
                    tokio::spawn(async move {
                        let mut seen = Vec::new();
                        for (asks, kinds) in part.chunks(7).zip(kinds.chunks(7)) {
                            let ops: Vec<Op> = asks
                                .iter()
                                .zip(kinds)
                                .map(|(&(n, id, token), &kind)| ask(n, id, token, kind))
                                .collect();
                            let answers = client.submit(ops).unwrap().await;
                            seen.extend(asks.iter().map(|(n, ..)| *n).zip(answers));
                        }
                        seen
                    })
                })
                .collect();
            for task in tasks {
                for (holder, answer) in task.await.unwrap() {
                    match (holder, answer) {
                        (2, Ok(Reply::Settle(Ok(Applied { what: Settled::Acked, .. })))) => right += 1,
                        (0 | 1, Ok(Reply::Settle(Err(SettleRefusal::LeaseLost))))
                        | (0 | 1, Ok(Reply::Extend(Err(SettleRefusal::LeaseLost)))) => stale += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
            let stats = wheel.stats().await.unwrap();
            assert_eq!((stats.counts.scheduled, stats.counts.ready, stats.counts.leased), (0, 0, 0));
        }
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
    });
    println!("{stale} stale settles were refused, {right} right ones accepted");
    assert_eq!(stale, right * 2);
}

/// The last holder acks; the others try everything.
fn ask(holder: usize, id: MessageId, token: LeaseToken, kind: u64) -> Op {
    let proof = token.into();
    match (holder, kind) {
        (2, _) | (_, 0) => Op::Ack { id, proof, result: None },
        (_, 1) => Op::Nack {
            id,
            proof,
            attempt: Attempt::Failed,
            delay_ms: Some(0),
            priority: None,
            note: "".into(),
        },
        (_, 2) => Op::Extend { id, proof, lease_ms: Some(60_000) },
        _ => Op::Bury { id, proof, priority: None, note: "".into() },
    }
}
