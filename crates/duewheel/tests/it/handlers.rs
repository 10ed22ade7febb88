//! Handlers (rows M3, M6, M14): nothing a handler does delays another.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use duewheel::core::message::{DeadReason, State};
use duewheel::{
    DeadLetter, HandlerError, HandlerResult, MINUTE, Message, NotYet, QueueSettings, SECOND, WallMs,
};

use crate::{count, counter, until, virtual_wheel, worker};

#[tokio::test]
async fn m3_bad_handler_delays_no_other() {
    // On a runtime with a single thread: a handler that blocked it would stop everything.
    let (wheel, _clock) = virtual_wheel().await;
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let started = Arc::new(AtomicUsize::new(0));
    let seen = started.clone();
    wheel
        .queue("blocks")
        .handler_blocking(move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            let _ = blocked.lock().unwrap().recv();
        })
        .unwrap();
    wheel.queue("panics").handler(panics).unwrap();
    let done = counter(&wheel.queue("good"));
    for _ in 0..3 {
        wheel.queue("blocks").body("").enqueue().await.unwrap();
        wheel.queue("panics").body("").enqueue().await.unwrap();
    }
    until("the blocking ones run", || count(&started) == 3).await;
    for _ in 0..20 {
        wheel.queue("good").body("").enqueue().await.unwrap();
    }
    until("the good ones are done", || count(&done) == 20).await;
    assert_eq!(wheel.queue("blocks").info().await.unwrap().unwrap().counts.leased, 3);
    for _ in 0..3 {
        release.send(()).unwrap();
    }
    wheel.shutdown(10 * SECOND).await.unwrap();
}

async fn panics(_: Message) -> HandlerResult {
    panic!("as bad handlers do")
}

#[tokio::test]
async fn m14_exhausted_retries_make_message_dead() {
    let (wheel, clock) = virtual_wheel().await;
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let seen = attempts.clone();
    let now = clock.clone();
    wheel
        .queue("pay")
        .handler(move |msg: Message| {
            let (seen, now) = (seen.clone(), now.clone());
            async move {
                seen.lock().unwrap().push((msg.attempt(), now.now()));
                if msg.attempt() == 2 {
                    panic!("out of luck")
                }
                Err::<(), _>("the bank is closed")
            }
        })
        .unwrap();
    let draft = wheel.queue("pay").message(&42).key("order-1").max_attempts(3);
    draft.backoff(10 * SECOND, MINUTE).enqueue().await.unwrap();
    for _ in 0..100 {
        wheel.idle().await.unwrap();
        clock.advance(SECOND);
    }
    let attempts = attempts.lock().unwrap().clone();
    assert_eq!(attempts.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 3]);
    let gap = |i: usize| attempts[i + 1].1.duration_since(attempts[i].1).unwrap();
    assert!((10 * SECOND..=16 * SECOND).contains(&gap(0)), "{:?}", gap(0));
    assert!((20 * SECOND..=31 * SECOND).contains(&gap(1)), "{:?}", gap(1));
    let dead = wheel.queue("pay").get_key("order-1").await.unwrap().expect("kept");
    assert_eq!(dead.state, State::Dead);
    assert_eq!(dead.dead.map(|(reason, _)| reason), Some(DeadReason::MaxAttempts));
    let notes: Vec<&str> = dead.history.iter().map(|p| &*p.note).collect();
    assert_eq!(notes, ["the bank is closed", "panic: out of luck", "the bank is closed"]);
}

#[tokio::test]
async fn m6_unhandled_message_awaits_its_handler() {
    let (wheel, _clock) = virtual_wheel().await;
    wheel.queue("close-reveiw").message(&"misspelt").enqueue().await.unwrap();
    let unattended = wheel.unattended().await.unwrap();
    assert_eq!(unattended.len(), 1);
    assert_eq!((unattended[0].name.as_str(), unattended[0].counts.ready), ("close-reveiw", 1));
    let (sent, mut got) = tokio::sync::mpsc::unbounded_channel();
    wheel
        .queue("close-reveiw")
        .handler(move |msg: Message| {
            let sent = sent.clone();
            async move {
                sent.send(msg.json::<String>()?)?;
                HandlerResult::Ok(())
            }
        })
        .unwrap();
    assert_eq!(got.recv().await.unwrap(), "misspelt");
    wheel.idle().await.unwrap();
    assert!(wheel.unattended().await.unwrap().is_empty());
}

#[tokio::test]
async fn m6_unreadable_body_is_dead_at_once() {
    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Order {
        id: u64,
        lines: Vec<(String, u32)>,
    }
    let (wheel, clock) = virtual_wheel().await;
    let (sent, mut got) = tokio::sync::mpsc::unbounded_channel();
    wheel
        .queue("orders")
        .handler(move |msg: Message| {
            let sent = sent.clone();
            async move {
                let order: Order = msg.json()?;
                sent.send((order, msg.header("trace").map(str::to_owned)))?;
                HandlerResult::Ok(())
            }
        })
        .unwrap();
    let order = Order { id: 7, lines: vec![("tea".into(), 2)] };
    wheel.queue("orders").message(&order).header("trace", "abc").delay(SECOND).enqueue().await.unwrap();
    wheel.queue("orders").body("no json").key("bad").max_attempts(20).enqueue().await.unwrap();
    clock.advance(SECOND);
    assert_eq!(got.recv().await.unwrap(), (order, Some("abc".into())));
    wheel.idle().await.unwrap();
    let bad = wheel.queue("orders").get_key("bad").await.unwrap().unwrap();
    assert_eq!((bad.state, bad.attempt), (State::Dead, 1), "another attempt would fail like this one");
    let note = &bad.history[0].note;
    assert!(note.contains("Order: expected"), "{note:?}");
}

#[tokio::test]
async fn queue_has_one_handler() {
    let (wheel, _clock) = virtual_wheel().await;
    let nothing = |_: Message| async {};
    wheel.queue("q").handler(nothing).unwrap();
    assert!(matches!(wheel.queue("q").handler(nothing), Err(HandlerError::Taken(_))));
    assert!(matches!(wheel.queue("-q").handler(nothing), Err(HandlerError::Name(_))));
    let error = wheel.queue("a b").body("").enqueue().await.unwrap_err();
    assert!(error.to_string().contains("queue name"), "{error}");
    let error = wheel.queue("a").body("").key("").enqueue().await.unwrap_err();
    assert!(error.to_string().contains("key"), "{error}");
}

#[tokio::test]
async fn running_handler_keeps_its_lease() {
    // Real time: leases of half a second, work of two.
    let wheel = duewheel::Duewheel::builder().in_memory().open().await.unwrap();
    let runs = worker(&wheel.queue("slow"), Duration::from_secs(2));
    wheel.queue("slow").body("").lease(Duration::from_millis(500)).enqueue().await.unwrap();
    until("it runs", || count(&runs) == 1).await;
    wheel.idle().await.unwrap();
    assert_eq!(count(&runs), 1, "nobody else got it meanwhile");

    let hangs = Arc::new(AtomicUsize::new(0));
    let seen = hangs.clone();
    wheel
        .queue("hangs")
        .handle_with()
        .time_limit(Duration::from_millis(1))
        .run(move |_| {
            let first = seen.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
            }
        })
        .unwrap();
    wheel.queue("hangs").body("").lease(Duration::from_millis(60)).enqueue().await.unwrap();
    until("another hand takes it", || count(&hangs) == 2).await;
}

/// Story: leases were extended by the setting of the moment, as seldom as before. When it was lowered while a handler ran,
/// the message was run twice.
#[tokio::test]
async fn lowered_setting_shortens_no_running_lease() {
    let (wheel, clock) = virtual_wheel().await;
    let queue = wheel.queue("slow");
    let lease = |ms| QueueSettings::default().lease(Duration::from_millis(ms));
    queue.configure(lease(600)).await.unwrap();
    let (release, blocked) = mpsc::channel::<()>();
    let (runs, blocked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(blocked)));
    let seen = runs.clone();
    queue
        .handler_blocking(move |_| {
            seen.fetch_add(1, Ordering::SeqCst);
            let _ = blocked.lock().unwrap().recv();
        })
        .unwrap();
    queue.body("").key("k").enqueue().await.unwrap();
    until("it runs", || count(&runs) == 1).await;
    queue.configure(lease(1)).await.unwrap();
    let deadline = Instant::now() + MINUTE;
    for _ in 0..3 {
        clock.advance(Duration::from_millis(500));
        let end = WallMs::from_system_time_up(clock.now() + Duration::from_millis(600));
        // It extends its lease by real time.
        while queue.get_key("k").await.unwrap().and_then(|view| view.lease_until) != Some(end) {
            assert!(Instant::now() < deadline && count(&runs) == 1, "{} runs", count(&runs));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    release.send(()).unwrap();
    wheel.idle().await.unwrap();
    assert_eq!(count(&runs), 1);
}

/// Story: all places were collected for a reserve, until the memory was full; with more than tokio can count the caller
/// panicked.
#[tokio::test]
async fn concurrency_may_be_without_bound() {
    let (wheel, _clock) = virtual_wheel().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let seen = runs.clone();
    let handler = wheel.queue("q").handle_with().concurrency(NonZeroUsize::MAX);
    handler
        .run(move |_| {
            let seen = seen.clone();
            async move {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
    wheel.queue("q").body("").enqueue().await.unwrap();
    until("it runs", || count(&runs) == 1).await;
    wheel.shutdown(10 * SECOND).await.unwrap();
}

/// A typed error of an application, with ours as its source.
#[derive(Debug, thiserror::Error)]
#[error("order {0}")]
struct OrderError(u32, #[source] DeadLetter);

#[tokio::test]
async fn handler_can_dead_letter_or_postpone() {
    let (wheel, clock) = virtual_wheel().await;
    wheel
        .queue("pay")
        .handler(move |msg: Message| async move {
            match (&msg.body()[..], msg.attempt()) {
                (b"never", _) => Err(DeadLetter::new("no such account").into()),
                (b"wrapped", _) => Err(OrderError(7, DeadLetter::new("unknown")).into()),
                (b"for ever", _) => Err(NotYet::new(Duration::MAX, "sold out").into()),
                (_, 1..=4) => Err(NotYet::new(SECOND, "no stock").into()),
                _ => HandlerResult::Err("broken".into()),
            }
        })
        .unwrap();
    for body in ["never", "wrapped", "for ever", "later"] {
        wheel.queue("pay").body(body).key(body).max_attempts(2).enqueue().await.unwrap();
    }
    wheel.idle().await.unwrap();
    let view = async |key: &str| wheel.queue("pay").get_key(key).await.unwrap().expect("kept");
    let never = view("never").await;
    assert_eq!((never.state, never.attempt), (State::Dead, 1), "after one attempt of two");
    assert_eq!(never.dead.map(|(reason, _)| reason), Some(DeadReason::Buried));
    assert_eq!(&*never.history[0].note, "no such account");
    let wrapped = view("wrapped").await;
    assert_eq!((wrapped.state, &*wrapped.history[0].note), (State::Dead, "order 7: unknown"));
    let refused = view("for ever").await;
    assert_eq!(
        (refused.state, refused.attempt, refused.forgiven),
        (State::Scheduled, 1, 0),
        "a failed attempt"
    );
    let note = "sold out: delay is out of range: at most 4294967295000 ms";
    assert_eq!(&*refused.history[0].note, note, "its lease was once left to run out");
    for n in 1..=4 {
        let later = view("later").await;
        assert_eq!((later.state, later.attempt, later.forgiven), (State::Scheduled, n, n));
        clock.advance(SECOND);
        wheel.idle().await.unwrap();
    }
    clock.advance(MINUTE);
    wheel.idle().await.unwrap();
    let later = view("later").await;
    assert_eq!((later.state, later.attempt, later.forgiven), (State::Dead, 6, 4), "two that count");
}

#[tokio::test]
async fn manual_consumer_matches_handler_abilities() {
    let (wheel, clock) = virtual_wheel().await;
    let queue = wheel.queue("q");
    queue.body("a").key("k").delay(MINUTE).header("x", "1").enqueue().await.unwrap();
    let view = queue.change_key("k").message(&42).no_headers().priority(3).apply().await.unwrap();
    assert_eq!((view.due_in_ms, view.priority, view.generation), (60_000, 3, 2), "due when it was");
    let message = queue.get_key("k").await.unwrap().unwrap().message;
    assert!(&message.body[..] == b"42" && message.headers.is_empty());
    assert!(queue.change_key("k").apply().await.is_err(), "nothing to change");
    assert!(queue.change_key("k").max_attempts(0).apply().await.is_err());
    assert!(queue.change_id(view.id).priority(1).if_generation(1).apply().await.is_err());
    clock.advance(MINUTE);
    let message = queue.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    queue.not_yet(&message, SECOND, "no stock").await.unwrap();
    clock.advance(SECOND);
    let message = queue.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    assert_eq!(message.attempt(), 2);
    queue.dead_letter(&message, "gone").await.unwrap();
    let dead = queue.get_key("k").await.unwrap().unwrap();
    assert_eq!((dead.state, dead.attempt, dead.forgiven), (State::Dead, 2, 1));
    queue.body("b").enqueue().await.unwrap();
    let message = queue.reserve(1, Duration::ZERO).await.unwrap().remove(0);
    queue.ack(&message).await.unwrap();
    queue.ack(&message).await.expect("a repeated ack succeeds");
}
