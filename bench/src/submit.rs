//! Submits operations by the million.

use std::collections::VecDeque;
use std::time::Duration;

use duewheel::core::engine::{Op, Reply};
use duewheel::{CallError, Client};

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
