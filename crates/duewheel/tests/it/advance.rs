//! A clock that goes from event to event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duewheel::core::policy::{GrantLimits, GrantRate, QueueSettings};
use duewheel::{Clock, Duewheel, HOUR, HandlerResult, MINUTE, Message, Policy, SECOND, VirtualClock};
use tokio::sync::Semaphore;

use super::{count, counter, until, virtual_wheel};

/// Story: one advance of 48 hours went there in one leap, and the chain ran once.
#[tokio::test]
async fn hourly_chain_runs_at_each_hour() {
    let (wheel, clock) = virtual_wheel().await;
    let (runs, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counts, on_time, now) = (runs.clone(), seen.clone(), clock.clone());
    let handler = move |msg: Message| {
        let (counts, on_time, now) = (counts.clone(), on_time.clone(), now.clone());
        async move {
            counts.fetch_add(1, Ordering::SeqCst);
            on_time.fetch_add(usize::from(msg.due_at() == now.now()), Ordering::SeqCst);
            let wheel = msg.wheel()?;
            wheel.queue("chain").body("next").delay(HOUR).enqueue().await?;
            HandlerResult::Ok(())
        }
    };
    wheel.queue("chain").handler(handler).unwrap();
    wheel.queue("chain").body("first").delay(HOUR).enqueue().await.unwrap();
    let start = clock.now();
    wheel.advance(&clock, 48 * HOUR).await.unwrap();
    assert_eq!((count(&runs), count(&seen)), (48, 48));
    assert_eq!(clock.now(), start + 48 * HOUR);
}

/// Story: the lease of a message ran out while its handler was running, and it ran twice.
#[tokio::test(flavor = "multi_thread")]
async fn running_handler_holds_time_still() {
    let (wheel, clock) = virtual_wheel().await;
    let (runs, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let (counts, opened) = (runs.clone(), gate.clone());
    let handler = move |_: Message| {
        let (counts, opened) = (counts.clone(), opened.clone());
        async move {
            counts.fetch_add(1, Ordering::SeqCst);
            opened.acquire().await.unwrap().forget();
        }
    };
    wheel.queue("slow").handler(handler).unwrap();
    wheel.queue("slow").body("a").enqueue().await.unwrap();
    until("it runs", || count(&runs) == 1).await;
    let start = clock.read();
    let advancing = tokio::spawn({
        let (wheel, clock) = (wheel.clone(), clock.clone());
        async move { wheel.advance(&clock, 10 * MINUTE).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(clock.read(), start);
    gate.add_permits(1);
    advancing.await.unwrap().unwrap();
    // By the virtual clock, which only the call moves.
    assert_eq!((count(&runs), clock.read().elapsed_ns), (1, start.elapsed_ns + 600_000_000_000));
}

/// Story: `idle` never returned while a rate held messages back.
#[tokio::test]
async fn idle_leaves_rate_limited_messages() {
    let (wheel, clock) = virtual_wheel().await;
    let rate = GrantRate { burst: Some(1), ..GrantRate::per_second(1) };
    let limits = GrantLimits { rate: Some(rate), ..GrantLimits::default() };
    wheel.queue("mails").configure(QueueSettings { limits, ..QueueSettings::default() }).await.unwrap();
    let runs = counter(&wheel.queue("mails"));
    for _ in 0..10 {
        wheel.queue("mails").body("a").enqueue().await.unwrap();
    }
    wheel.idle().await.unwrap();
    assert_eq!(count(&runs), 1);
    wheel.advance(&clock, 5 * SECOND).await.unwrap();
    assert_eq!(count(&runs), 6);
    wheel.advance(&clock, HOUR).await.unwrap();
    assert_eq!(count(&runs), 10);
}

/// A handler that fails gets its message after each backoff, at its instant.
#[tokio::test]
async fn advance_meets_each_backoff() {
    let (wheel, clock) = virtual_wheel().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counts = runs.clone();
    let handler = move |_: Message| {
        counts.fetch_add(1, Ordering::SeqCst);
        async { Err::<(), _>("the bank is closed") }
    };
    wheel.queue("pay").handler(handler).unwrap();
    let draft = wheel.queue("pay").body("a").max_attempts(5);
    draft.backoff(MINUTE, 10 * MINUTE).enqueue().await.unwrap();
    wheel.advance(&clock, HOUR).await.unwrap();
    assert_eq!(count(&runs), 5);
}

/// Story: a handler whose reserves were refused paused between them, and the clock waited for it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn refused_handler_does_not_hold_the_clock() {
    let clock = VirtualClock::at_2026();
    let policy = Policy { max_waiters: 0, ..Policy::default() };
    let builder = Duewheel::builder().in_memory().clock(clock.clone()).policy(policy);
    let wheel = builder.open().await.unwrap();
    wheel.queue("q").handler(|_| async { HandlerResult::Ok(()) }).unwrap();
    let advanced = wheel.advance(&clock, 48 * HOUR);
    tokio::time::timeout(Duration::from_secs(60), advanced).await.unwrap().unwrap();
}
