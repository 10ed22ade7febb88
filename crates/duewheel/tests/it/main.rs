//! Tests of the library, in one binary.
#![allow(unreachable_pub)] // one binary of several modules
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

mod advance;
mod backlog;
mod backup;
mod bugs;
mod cluster;
mod delays;
mod examples;
mod handlers;
mod herd;
mod isolation;
mod jobs;
mod lifecycle;
mod quotas;
mod races;
mod settings;
mod shapes;
mod shards;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use duewheel::{Duewheel, Queue, VirtualClock};

/// A wheel in memory whose time stands still.
pub async fn virtual_wheel() -> (Duewheel, VirtualClock) {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).seed(1).open().await.unwrap();
    (wheel, clock)
}

/// Polls until `done`, with a deadline.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Gives a queue a handler that does nothing else than count its messages.
pub fn counter(queue: &Queue) -> Arc<AtomicUsize> {
    worker(queue, Duration::ZERO)
}

/// As [`counter`]; and then it takes so long.
pub fn worker(queue: &Queue, work: Duration) -> Arc<AtomicUsize> {
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = runs.clone();
    queue
        .handler(move |_| {
            let seen = seen.clone();
            async move {
                seen.fetch_add(1, Ordering::SeqCst);
                if !work.is_zero() {
                    tokio::time::sleep(work).await;
                }
            }
        })
        .unwrap();
    runs
}

/// What a counter shows.
pub fn count(of: &AtomicUsize) -> usize {
    of.load(Ordering::SeqCst)
}

/// How much of a long test is done: what the variable says, or `default`.
pub fn size(variable: &str, default: usize) -> usize {
    let Ok(text) = std::env::var(variable) else { return default };
    text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}"))
}
