//! Submits operations by the million.

use std::collections::VecDeque;
use std::time::Duration;

use duewheel::core::engine::{EnqueueRefusal, Grant, Op, Reply, Reserved};
use duewheel::core::name::QueueName;
use duewheel::{CallError, Client};
use duewheel_shard::client::Reserve;
use duewheel_shard::inbox::Pending;

/// Messages of one submission.
const GROUP: u64 = 1_000;
/// The number of submissions in flight.
const UNDER_WAY: usize = 8;

/// Submits operations by their numbers in groups, some at a time, and repeats those that were refused because the store
/// was busy. `done` decides whether an answer is a success. Returns how many were refused.
///
/// # Panics
/// When the driver accepts nothing.
pub async fn submit_all(
    client: &Client,
    count: u64,
    make: impl Fn(u64) -> Op,
    mut done: impl FnMut(&Result<Reply, CallError>) -> bool,
) -> u64 {
    let mut under_way = VecDeque::new();
    let mut again: Vec<u64> = Vec::new();
    let (mut next, mut busy) = (0, 0);
    loop {
        while under_way.len() < UNDER_WAY && (next < count || !again.is_empty()) {
            let numbers: Vec<u64> = if again.is_empty() {
                let from = next;
                next = (next + GROUP).min(count);
                (from..next).collect()
            } else {
                std::mem::take(&mut again)
            };
            let pending = client.submit(numbers.iter().map(|n| make(*n)).collect()).expect("taken");
            under_way.push_back((numbers, pending));
        }
        let Some((numbers, pending)) = under_way.pop_front() else { return busy };
        let before = again.len();
        for (n, answer) in numbers.into_iter().zip(pending.await) {
            if !done(&answer) {
                again.push(n);
            }
        }
        let refused = (again.len() - before) as u64;
        busy += refused;
        if refused > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Enqueues messages by their numbers; those that the store or a limit refuses for a moment are tried again.
///
/// # Panics
/// When one is refused for another reason.
pub async fn put_all(client: &Client, count: u64, make: impl Fn(u64) -> Op) {
    submit_all(client, count, make, |answer| match answer {
        Ok(Reply::Enqueue(Ok(_))) => true,
        Ok(Reply::Enqueue(Err(EnqueueRefusal::Overloaded(_) | EnqueueRefusal::Busy))) => false,
        other => panic!("{other:?}"),
    })
    .await;
}

/// Reserves messages of a queue; none when there was none, whatever the reason.
///
/// # Panics
/// When the call fails.
pub async fn take(client: &Client, queue: QueueName, max: usize, wait_ms: u64, lease_ms: u64) -> Vec<Grant> {
    let demand = Reserve { max, wait_ms, lease_ms: Some(lease_ms), ..Reserve::new(queue) };
    match client.reserve(demand).await.expect("answered") {
        Reserved::Grants(grants) => grants,
        _ => Vec::new(),
    }
}

/// Sends acks of all these messages; the answers are awaited by the caller.
///
/// # Panics
/// When the driver accepts nothing.
pub fn ack(client: &Client, grants: &[Grant]) -> Pending {
    let ops =
        grants.iter().map(|g| Op::Ack { id: g.message.id, proof: g.token.into(), result: None }).collect();
    client.submit(ops).expect("submitted")
}
