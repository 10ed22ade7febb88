//! Where handlers run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duewheel::{Duewheel, HOUR, SECOND};
use tokio::net::lookup_host;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{count, counter, until};

fn small_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(2).build().unwrap()
}

/// Story: each run held a thread of the runtime's blocking pool, and what it awaited needed a thread of the same pool:
/// with 32 queues of 20 messages nothing was done for ever.
#[test]
fn runs_leave_blocking_pool_to_their_awaits() {
    small_runtime().block_on(async {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        for n in 0..4 {
            let queue = wheel.queue(&format!("q{n}"));
            let seen = done.clone();
            if n % 2 == 0 {
                queue.handler(move |_| {
                    let seen = seen.clone();
                    async move {
                        drop(lookup_host("localhost:80").await?);
                        seen.fetch_add(1, Ordering::SeqCst);
                        std::io::Result::Ok(())
                    }
                })
            } else {
                queue.handler_blocking(move |_| {
                    drop(Handle::current().block_on(lookup_host("localhost:80"))?);
                    seen.fetch_add(1, Ordering::SeqCst);
                    std::io::Result::Ok(())
                })
            }
            .unwrap();
            for _ in 0..8 {
                queue.body("").enqueue().await.unwrap();
            }
        }
        until("all are done", || count(&done) == 32).await;
        wheel.shutdown(10 * SECOND).await.unwrap();
    });
}

/// On a runtime with paused time every timer of ours ended at once: leases, time limits and the shutdown's deadline.
#[tokio::test(start_paused = true)]
async fn paused_time_ends_no_run() {
    let wheel = Duewheel::builder().in_memory().open().await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = runs.clone();
    let slow = wheel.queue("slow");
    slow.handler_blocking(move |_| {
        seen.fetch_add(1, Ordering::SeqCst);
        // A blocking client of HTTP has a runtime of its own.
        small_runtime().block_on(tokio::time::sleep(Duration::from_millis(300)));
    })
    .unwrap();
    let sleeps = crate::worker(&wheel.queue("sleeps"), HOUR);
    slow.body("").lease(Duration::from_millis(60)).max_attempts(1).key("a").enqueue().await.unwrap();
    wheel.queue("sleeps").body("").max_attempts(1).key("b").enqueue().await.unwrap();
    wheel.idle().await.unwrap();
    assert_eq!((count(&runs), count(&sleeps)), (1, 1));
    assert!(slow.get_key("a").await.unwrap().is_none(), "acked");
    assert!(wheel.queue("sleeps").get_key("b").await.unwrap().is_none(), "acked");
    slow.body("").enqueue().await.unwrap();
    until("it runs", || count(&runs) == 2).await;
    wheel.shutdown(60 * SECOND).await.unwrap();
}

/// The loops outlive the runtime of the handler; they must not take messages that nobody runs.
#[test]
fn a_handler_ends_with_its_runtime() {
    let (first, second) = (small_runtime(), small_runtime());
    let wheel = first.block_on(async {
        let wheel = Duewheel::builder().in_memory().open().await.unwrap();
        let done = counter(&wheel.queue("q"));
        wheel.queue("q").body("").enqueue().await.unwrap();
        until("it is done", || count(&done) == 1).await;
        wheel
    });
    drop(first);
    second.block_on(async {
        wheel.queue("q").body("").key("k").enqueue().await.unwrap();
        let mut got = Vec::new();
        while got.is_empty() {
            got = wheel.queue("q").reserve(1, SECOND).await.unwrap();
        }
        wheel.queue("q").ack(&got[0]).await.unwrap();
    });
}
