//! Opening, closing, sharing (rows M4, M5, M7, M9, M10, M11).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use duewheel::core::engine::{Op, Settled};
use duewheel::core::message::State;
use duewheel::core::record::Created;
use duewheel::{
    Cancel, DAY, Duewheel, Durability, EnqueueError, HOUR, HandlerResult, IfExists, Level, Message, SECOND,
    ShutdownError, VirtualClock,
};

use crate::{count, counter, until, virtual_wheel};

#[tokio::test]
async fn m9_messages_survive_restart() {
    let dir = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let open = || Duewheel::builder().data(dir.path().join("data")).clock(clock.clone()).open();
    let wheel = open().await.unwrap();
    for (key, delay) in [("a", HOUR), ("b", 15 * DAY), ("c", 48 * HOUR)] {
        wheel.queue("close").message(&key).delay(delay).key(key).enqueue().await.unwrap();
    }
    assert_eq!(wheel.queue("close").cancel_key("c").await.unwrap(), Cancel::Cancelled(Level::Fsync));
    wheel.shutdown(SECOND).await.unwrap();
    drop(wheel);

    clock.advance(3 * HOUR); // nothing runs
    let wheel = open().await.unwrap();
    let runs = counter(&wheel.queue("close"));
    wheel.idle().await.unwrap();
    assert_eq!(count(&runs), 1, "what came due meanwhile runs at once");
    clock.advance(15 * DAY - 3 * HOUR - Duration::from_millis(1));
    wheel.idle().await.unwrap();
    assert_eq!(count(&runs), 1, "never early");
    clock.advance(Duration::from_millis(1));
    wheel.idle().await.unwrap();
    assert_eq!(count(&runs), 2, "and not late by the downtime");
    wheel.shutdown(SECOND).await.unwrap();
}

#[tokio::test]
async fn m4_enqueue_handles_past_and_keys() {
    let (wheel, clock) = virtual_wheel().await;
    let queue = wheel.queue("q");
    let past = clock.now() - SECOND;
    let refused = queue.body("").at(past).enqueue().await;
    assert!(matches!(refused, Err(EnqueueError::Refused(_))), "{refused:?}");
    queue.body("").at_or_now(past).enqueue().await.unwrap();
    let overdue = queue.reserve(9, Duration::ZERO).await.unwrap().remove(0);
    queue.ack(&overdue).await.unwrap();

    let first = queue.body("1").key("k").at(clock.now() + HOUR).enqueue().await.unwrap();
    let second = queue.body("2").key("k").delay(HOUR);
    let error = second.enqueue().await.unwrap_err();
    assert!(error.to_string().contains("which is scheduled, has this key"), "{error}");
    let kept = queue.body("3").key("k").delay(HOUR).if_exists(IfExists::Keep).enqueue().await.unwrap();
    assert_eq!((kept.id, kept.created, kept.kept), (first.id, Created::Kept, Some(State::Scheduled)));
    let new = queue.body("4").key("k").delay(HOUR).if_exists(IfExists::Replace).enqueue().await.unwrap();
    assert_eq!(new.created, Created::Replacing(first.id));
    clock.advance(HOUR);
    let got = queue.reserve(9, Duration::ZERO).await.unwrap();
    assert_eq!(got.iter().map(|m| &m.body()[..]).collect::<Vec<_>>(), [b"4"]);
    let newer = queue.body("5").key("k").if_exists(IfExists::Supersede).enqueue().await.unwrap();
    assert_eq!(newer.created, Created::Superseding(new.id));
    let ended = queue.nack(&got[0], None, "old news").await.unwrap();
    assert_eq!(ended.what, Settled::Superseded);
    assert_eq!(queue.reserve(9, Duration::ZERO).await.unwrap().remove(0).id(), newer.id);
}

#[tokio::test]
async fn m5_cancel_reports_its_outcome() {
    let (wheel, _clock) = virtual_wheel().await;
    let queue = wheel.queue("q");
    let id = queue.body("").delay(HOUR).enqueue().await.unwrap().id;
    assert!(matches!(queue.cancel_id(id).await.unwrap(), Cancel::Cancelled(_)));
    assert_eq!(queue.cancel_id(id).await.unwrap(), Cancel::NotFound);
    queue.body("").key("k").enqueue().await.unwrap();
    let message = queue.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    assert_eq!(queue.cancel_key("k").await.unwrap(), Cancel::Leased);
    queue.ack(&message).await.unwrap();
    assert_eq!(queue.cancel_key("k").await.unwrap(), Cancel::NotFound);
    queue.ack(&message).await.expect("a repeated ack is answered as done");
    assert!(queue.nack(&message, None, "").await.is_err(), "and its token is worth nothing else any more");
}

#[tokio::test]
async fn m10_purge_and_views() {
    let (wheel, _clock) = virtual_wheel().await;
    for i in 0..10u64 {
        wheel.queue("q").message(&i).delay(Duration::from_secs(i)).enqueue().await.unwrap();
    }
    let info = wheel.queue("q").info().await.unwrap().unwrap();
    assert_eq!((info.counts.scheduled, info.counts.ready), (9, 1));
    assert_eq!(wheel.queue("q").purge().await.unwrap().what, 10);
    assert!(wheel.queues().await.unwrap().is_empty());
}

#[tokio::test]
async fn m11_reserve_is_cancel_safe() {
    let (wheel, _clock) = virtual_wheel().await;
    let queue = wheel.queue("q");
    {
        let waiting = queue.reserve(1, HOUR);
        tokio::pin!(waiting);
        let polled = tokio::time::timeout(Duration::from_millis(5), &mut waiting).await;
        assert!(polled.is_err(), "nothing there");
    } // dropped while it waits
    queue.body("x").enqueue().await.unwrap();
    let got = queue.reserve(1, HOUR).await.unwrap();
    assert_eq!(got[0].attempt(), 1, "the dropped one took nothing with it");
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_shutdown_awaits_handlers_and_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let wheel = Duewheel::open(dir.path().join("data")).await.unwrap();
    let (started, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (s, d) = (started.clone(), done.clone());
    wheel
        .queue("q")
        .handler(move |_: Message| {
            let (s, d) = (s.clone(), d.clone());
            async move {
                s.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(100)).await;
                d.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
    wheel.queue("q").body("").enqueue().await.unwrap();
    until("it runs", || count(&started) == 1).await;
    let waiting = tokio::spawn({
        let queue = wheel.queue("empty");
        async move { queue.reserve(1, HOUR).await.map(|m| m.len()) }
    });
    while wheel.queue("empty").info().await.unwrap().is_none_or(|q| q.waiters == 0) {
        tokio::task::yield_now().await;
    }
    let clone = wheel.clone();
    let (a, b) = tokio::join!(wheel.shutdown(10 * SECOND), clone.shutdown(10 * SECOND));
    a.unwrap();
    b.unwrap();
    wheel.shutdown(SECOND).await.unwrap();
    assert_eq!(count(&done), 1);
    assert!(matches!(waiting.await.unwrap(), Ok(0) | Err(_)), "no reserve hangs");
    let late = wheel.queue("q").body("").enqueue().await.unwrap_err();
    assert!(late.to_string().contains("closed") || late.to_string().contains("shutting"), "{late}");

    let wheel = Duewheel::open(dir.path().join("data")).await.unwrap();
    assert!(wheel.queues().await.unwrap().is_empty(), "its ack was kept");
    wheel.shutdown(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn m11_hanging_handler_cannot_block_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let wheel = Duewheel::open(dir.path().join("data")).await.unwrap();
    let started = Arc::new(AtomicUsize::new(0));
    let s = started.clone();
    wheel
        .queue("q")
        .handler(move |_| {
            s.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>()
        })
        .unwrap();
    wheel.queue("q").body("").enqueue().await.unwrap();
    until("it runs", || count(&started) == 1).await;
    let ended = wheel.shutdown(Duration::from_millis(50)).await;
    assert_eq!(ended, Err(ShutdownError::HandlersRunning));

    let wheel = Duewheel::open(dir.path().join("data")).await.unwrap();
    let again = wheel.queue("q").reserve(1, SECOND).await.unwrap();
    assert_eq!(again[0].attempt(), 2, "at once: the lease belonged to a process that is gone");
    wheel.shutdown(SECOND).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m11_many_threads_share_one_handle() {
    let dir = tempfile::tempdir().unwrap();
    let builder = Duewheel::builder().data(dir.path().join("data")).durability(Durability::Buffered);
    let wheel = builder.open().await.unwrap();
    let runs = counter(&wheel.queue("q"));
    let mut producers = Vec::new();
    for p in 0..8 {
        let queue = wheel.queue("q");
        producers.push(tokio::spawn(async move {
            for i in 0..50 {
                queue.message(&(p, i)).key(&format!("{p}/{i}")).enqueue().await.unwrap();
            }
        }));
    }
    for producer in producers {
        producer.await.unwrap();
    }
    until("all have run", || count(&runs) == 400).await;
    wheel.shutdown(10 * SECOND).await.unwrap();
}

#[tokio::test]
async fn m7_unusable_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let wheel = Duewheel::open(dir.path().join("data")).await.unwrap();
    let second = Duewheel::open(dir.path().join("data")).await.unwrap_err().to_string();
    assert!(second.contains("this process has this data folder open already"), "{second}");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(Duewheel::open(&file).await.is_err());
    wheel.shutdown(SECOND).await.unwrap();
}

/// Story: a handler enqueued the next message by a clone of the wheel that it held, and the folder stayed open after the
/// last other handle was dropped.
#[tokio::test(flavor = "multi_thread")]
async fn weak_handles_keep_no_folder_open() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let wheel = Duewheel::open(&data).await.unwrap();
    let runs = counter(&wheel.queue("second"));
    wheel
        .queue("first")
        .handler(|msg: Message| async move {
            msg.wheel()?.queue("second").body("").enqueue().await?;
            HandlerResult::Ok(())
        })
        .unwrap();
    wheel.queue("first").body("").enqueue().await.unwrap();
    until("both have run", || count(&runs) == 1).await;
    drop(wheel);
    let begun = std::time::Instant::now();
    while let Err(error) = Duewheel::open(&data).await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn readme_example_matches_doc_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let readme = std::fs::read_to_string(format!("{root}/README.md")).unwrap();
    let (_, rest) = readme.split_once("```rust\n").expect("a Rust example");
    let (shown, _) = rest.split_once("```").unwrap();
    let source = include_str!("../../src/lib.rs");
    let visible =
        source.lines().filter_map(|l| l.strip_prefix("//!")).map(|l| l.strip_prefix(' ').unwrap_or(l));
    let visible: Vec<&str> = visible.filter(|l| !l.starts_with("# ")).collect();
    let shown: Vec<&str> = shown.lines().collect();
    assert!(visible.windows(shown.len()).any(|w| w == shown), "README and doc test differ");
}

/// The figures were told only before a sleep that nothing but the longest sleep bounds: with a message due in half a
/// second they stayed as they were.
#[tokio::test]
async fn store_figures_are_current() {
    let (wheel, _clock) = virtual_wheel().await;
    let messages = || {
        let figures = wheel.client().store_figures();
        figures.iter().find(|(name, _)| *name == "messages").map(|(_, value)| *value)
    };
    for n in 1..=3 {
        wheel.queue("q").body("soon").delay(Duration::from_millis(500)).enqueue().await.unwrap();
        wheel.client().renew_store_figures();
        wheel.client().call(Op::Stats).await.unwrap();
        assert_eq!(messages(), Some(n));
    }
}
