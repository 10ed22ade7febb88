//! Tests of bridges, in one binary. Those with a real broker start Debian's `rabbitmq-server` or PostgreSQL.
#![allow(unreachable_pub)] // one binary of several modules
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)] // a panic is a failed test; numbers are small

mod broker;
mod crashes;
mod flows;
mod outbox;
mod seam;
mod world;

use std::time::{Duration, Instant};

/// Polls until `done`, with a deadline.
pub async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
