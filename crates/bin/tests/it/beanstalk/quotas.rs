//! Quotas: a put waits for the rate; what is used up otherwise is no memory left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use duewheel::VirtualClock;
use duewheel::core::engine::Quota;

use super::Both;

fn quota(prefix: &str) -> Quota {
    Quota { prefix: prefix.into(), ..Quota::default() }
}

/// Lets time pass, a quarter of a second at a time, until it is dropped.
struct Passing(Arc<AtomicBool>);

impl Passing {
    fn of(clock: &VirtualClock) -> Passing {
        let (over, clock) = (Arc::new(AtomicBool::new(false)), clock.clone());
        let ends = over.clone();
        std::thread::spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                clock.advance(Duration::from_millis(250));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Passing(over)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limited_put_waits_ten_seconds() {
    let server = Both::start().await;
    let rate = Quota { enqueues_per_second: Some(1), ..quota("rate") };
    server.http.wheel.set_quotas(vec![rate]).expect("quotas");
    let (mut client, mut other) = (server.client("rate"), server.client("free"));
    client.put("put 0 0 60", "burst");
    client.send("put 0 0 60 4\r\nlate\r\n");
    other.put("put 0 0 60", "others do not wait");
    {
        let _passing = Passing::of(&server.http.clock);
        assert!(client.reply().starts_with("INSERTED "));
        // Far more at once than ten seconds bring.
        client.send("put 0 0 60 1\r\nx\r\n".repeat(60));
        let replies: Vec<String> = (0..60).map(|_| client.reply()).collect();
        let accepted = replies.iter().filter(|reply| reply.starts_with("INSERTED ")).count();
        let refused = replies.iter().filter(|reply| *reply == "OUT_OF_MEMORY").count();
        assert!(accepted > 0 && refused > 0 && accepted + refused == 60, "{replies:?}");
        assert!(accepted < 30, "{accepted}");
        assert!(replies[0].starts_with("INSERTED "), "first come, first served: {replies:?}");
    }
    let used = client.field("stats-tube rate", "current-jobs-ready").expect("jobs");
    assert_eq!(client.field("stats-tube rate", "total-jobs"), Some(used));
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_quota_answers_out_of_memory() {
    let server = Both::start().await;
    let quotas = vec![Quota { messages: Some(2), leases: Some(1), ..quota("few") }];
    server.http.wheel.set_quotas(quotas).expect("quotas");
    let mut client = server.client("few");
    let ids = [client.put("put 0 0 60", "a"), client.put("put 0 0 60", "b")];
    assert_eq!(client.ask_put("put 0 0 60", "c"), "OUT_OF_MEMORY");
    assert_eq!(client.ask("reserve"), format!("RESERVED {} 1\r\na", ids[0]));
    assert_eq!(client.ask("reserve-with-timeout 0"), "TIMED_OUT");
    assert_eq!(client.ask(&format!("reserve-job {}", ids[1])), "OUT_OF_MEMORY");
    assert_eq!(client.ask(&format!("release {} 0 0", ids[0])), "RELEASED");
    assert_eq!(client.ask(&format!("reserve-job {}", ids[1])), format!("RESERVED {} 1\r\nb", ids[1]));
    assert_eq!(client.ask(&format!("delete {}", ids[1])), "DELETED");
    client.put("put 0 0 60", "c");
}
