//! Sends an SMS to a thousand customers from nine o'clock on, spread over ten minutes: `cargo run --example campaign`.
//!
//! The example keeps its messages in memory and moves a clock of its own, so that a night passes at once. A service
//! opens a folder, `Duewheel::open("data")`, and lets time pass by itself.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use duewheel::{Duewheel, HOUR, HandlerResult, IfExists, MINUTE, Message, SECOND, VirtualClock};
use serde::{Deserialize, Serialize};

const CUSTOMERS: u32 = 1_000;
const SPREAD: Duration = MINUTE.saturating_mul(10);

/// What the handler needs to know.
#[derive(Debug, Deserialize, Serialize)]
struct Sms {
    to: String,
}

/// Returns how many were sent in each minute: first those before nine o'clock, then those of ten minutes.
pub(crate) async fn run() -> Result<Vec<usize>, Box<dyn Error + Send + Sync>> {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).open().await?;
    let sent: Arc<Mutex<Vec<SystemTime>>> = Arc::default();

    let queue = wheel.queue("sms");
    let seen = Arc::clone(&sent);
    queue.handler(move |message: Message| {
        let seen = Arc::clone(&seen);
        async move {
            let _sms: Sms = message.json()?; // here it would be sent
            seen.lock().map_err(|_| "another handler panicked")?.push(message.due_at());
            HandlerResult::Ok(())
        }
    })?;

    // 2026-01-01T09:00:00Z. The draw of each instant depends on the key alone: a repeated call changes nothing.
    let nine = UNIX_EPOCH + Duration::from_secs(1_767_258_000);
    for _ in 0..2 {
        for n in 0..CUSTOMERS {
            let sms = Sms { to: format!("+4930{n}") };
            let draft = queue.message(&sms).at(nine).spread(SPREAD);
            draft.key(&format!("spring-{n}")).if_exists(IfExists::Keep).enqueue().await?;
        }
    }
    clock.advance(8 * HOUR + 59 * MINUTE);
    wheel.idle().await?;
    let mut minutes = vec![sent.lock().map_err(|_| "a handler panicked")?.len()];
    println!("{} were sent before nine o'clock", minutes[0]);

    clock.advance(MINUTE);
    for minute in 0..10 {
        clock.advance(MINUTE);
        wheel.idle().await?;
        let all = sent.lock().map_err(|_| "a handler panicked")?.len();
        let before: usize = minutes.iter().sum();
        minutes.push(all - before);
        println!("09:0{minute}  {} were sent", all - before);
    }
    wheel.shutdown(10 * SECOND).await?;
    Ok(minutes)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    run().await?;
    Ok(())
}
