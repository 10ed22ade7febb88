//! Closes an order that nobody pays, and reminds of it a day before: two jobs with types of their own.
//! `cargo run --example jobs` runs until Ctrl-C, with the messages in `./duewheel-data`.
//!
//! ```toml
//! [dependencies]
//! duewheel = "0.1"
//! serde = { version = "1", features = ["derive"] }
//! tokio = { version = "1", features = ["full"] }
//! [dev-dependencies]
//! duewheel = { version = "0.1", features = ["test-util"] }
//! ```

use std::error::Error;
use std::sync::{Arc, Mutex};

use duewheel::{Args, DAY, Duewheel, HOUR, HandlerResult, Job, MINUTE, Meta, SECOND, State, Workers};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(queue = "close-order", key = "order-{number}", max_attempts = 5, lease = 2 * MINUTE)]
struct CloseOrder {
    number: u64,
}

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(queue = "remind", key = "order-{number}", spread = 10 * MINUTE)]
struct Remind {
    number: u64,
}

/// The state that all handlers share: here a list, elsewhere a pool of connections.
#[derive(Clone, Default)]
struct Shop {
    closed: Arc<Mutex<Vec<u64>>>,
}

/// A handler may run twice for one message, so closing a closed order must do no harm.
async fn close(Args(order): Args<CloseOrder>, State(shop): State<Shop>, meta: Meta) -> HandlerResult {
    println!("order {} is closed, at attempt {}", order.number, meta.attempt());
    shop.closed.lock().map_err(|_| "another handler panicked")?.push(order.number);
    Ok(())
}

async fn remind(Args(order): Args<Remind>) {
    println!("order {} is to be paid by tomorrow", order.number);
}

async fn ordered(wheel: &Duewheel, number: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    wheel.job(&Remind { number }).delay(DAY).enqueue().await?;
    wheel.job(&CloseOrder { number }).delay(48 * HOUR).enqueue().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let wheel = Duewheel::open("duewheel-data").await?;
    Workers::new(&wheel, Shop::default()).on::<CloseOrder, _>(close).on::<Remind, _>(remind).start()?;
    ordered(&wheel, 42).await?;
    tokio::signal::ctrl_c().await?;
    wheel.shutdown(10 * SECOND).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use duewheel::HandlerOutcome;
    use duewheel::test::{assert_enqueued, message, run_handler};

    use super::*;

    #[tokio::test]
    async fn unpaid_order_closes_after_two_days() {
        let wheel = duewheel::test::wheel().await;
        ordered(&wheel, 42).await.unwrap();
        assert_enqueued!(wheel, CloseOrder { number: 42 }, in 48 * HOUR);

        let shop = Shop::default();
        let workers = Workers::new(&wheel, shop.clone());
        workers.on::<CloseOrder, _>(close).on::<Remind, _>(remind).start().unwrap();
        wheel.advance(48 * HOUR - SECOND).await;
        assert!(shop.closed.lock().unwrap().is_empty());
        wheel.advance(SECOND).await;
        assert_eq!(*shop.closed.lock().unwrap(), [42]);
    }

    #[tokio::test]
    async fn handler_runs_by_itself() {
        let third = message(&CloseOrder { number: 7 }).attempt(3);
        assert_eq!(run_handler(close, Shop::default(), third).await, HandlerOutcome::Ack);
    }
}
