//! Delivers a few messages to a webhook, signed with the secrets given, and ends when it has taken all of them.
//!
//! ```text
//! cargo run -p duewheel-delivery --example webhook -- http://127.0.0.1:8000/hook whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duewheel::{Duewheel, SECOND};
use duewheel_delivery::{NetworkSettings, PushClient, PushTarget, Pusher, TargetSettings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: webhook URL [SECRET]...")?;
    let target = PushTarget::new(&TargetSettings {
        secrets: arguments.collect(),
        // Public addresses alone are the default. This receiver may be on the same machine.
        networks: Some(NetworkSettings::Several(vec!["public".into(), "127.0.0.1/32".into()])),
        ..TargetSettings::new(url)
    })?;

    let wheel = Duewheel::builder().in_memory().open().await?;
    let queue = wheel.queue("close-review");
    let pusher = Pusher::start(&wheel, &["close-review"], "example", PushClient::new(Arc::new(target)))?;
    let bodies =
        [r#"{"order": 42}"#.to_owned(), String::new(), "Grüße ✓\r\n".to_owned(), "x".repeat(100_000)];
    let all = u64::try_from(bodies.len())?;
    for (n, body) in bodies.into_iter().enumerate() {
        let draft = queue.body(body).key(&format!("order {n}")).header("customer", "7");
        draft.header("content-type", "text/plain; charset=utf-8").delay(SECOND / 10).enqueue().await?;
    }

    let deadline = Instant::now() + Duration::from_secs(60);
    while pusher.counts().delivered < all {
        if Instant::now() > deadline {
            return Err(format!("the target did not take all messages: {:?}", pusher.counts()).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pusher.stop(30 * SECOND).await;
    wheel.shutdown(10 * SECOND).await?;
    println!("{all} messages are delivered");
    Ok(())
}
