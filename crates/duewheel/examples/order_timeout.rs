//! Closes an order that nobody pays within 30 minutes; a payment cancels that: `cargo run --example order_timeout`.
//!
//! The example keeps its messages in memory and moves a clock of its own, so that half an hour passes at once. A
//! service opens a folder, `Duewheel::open("data")`, and lets time pass by itself.

use std::error::Error;
use std::sync::{Arc, Mutex};

use duewheel::{Cancel, Duewheel, HandlerResult, MINUTE, Message, SECOND, VirtualClock};
use serde::{Deserialize, Serialize};

/// What the handler needs to know of an order.
#[derive(Debug, Deserialize, Serialize)]
struct Order {
    number: u64,
}

/// Two orders, one of which is paid in time; returns the numbers of those that were closed.
pub(crate) async fn run() -> Result<Vec<u64>, Box<dyn Error + Send + Sync>> {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await?;
    let closed = Arc::new(Mutex::new(Vec::new()));

    let queue = wheel.queue("close-order");
    let seen = Arc::clone(&closed);
    queue.handler(move |message: Message| {
        let seen = Arc::clone(&seen);
        async move {
            // A handler may run twice for one message, so closing a closed order must do no harm.
            let order: Order = message.json()?;
            println!("order {} was not paid in time: closed", order.number);
            seen.lock().map_err(|_| "another handler panicked")?.push(order.number);
            HandlerResult::Ok(())
        }
    })?;

    for number in [42, 43] {
        queue.message(&Order { number }).delay(30 * MINUTE).key(&format!("order-{number}")).enqueue().await?;
    }
    clock.advance(29 * MINUTE);
    wheel.idle().await?;

    // Paid a minute before the end. The answer is the truth: if it had been too late, it would say so.
    match queue.cancel_key("order-42").await? {
        Cancel::Cancelled(_) => println!("order 42 is paid"),
        Cancel::Leased | Cancel::NotFound => println!("order 42 was paid too late: give the money back"),
    }
    clock.advance(MINUTE);
    wheel.idle().await?;
    wheel.shutdown(10 * SECOND).await?;
    let closed = closed.lock().map_err(|_| "a handler panicked")?.clone();
    Ok(closed)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run().await?;
    Ok(())
}
