//! A queue of the library that is delivered to a receiver on loopback.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use duewheel::core::engine::{Counts, Enqueue, HeldBack, Op, Reserved};
use duewheel::core::message::{DeadReason, MaxAttempts, Options, State};
use duewheel::core::name::QueueName;
use duewheel::core::policy::{GrantLimits, GrantRate, QueueSettings};
use duewheel::{Duewheel, View, VirtualClock};
use duewheel_delivery::{
    BreakerStage, PushClient, PushRate, PushTarget, Pusher, PusherError, RetrySettings, Stopped,
    TargetSettings,
};
use duewheel_shard::client::Reserve;

use crate::receiver::{Answer, Receiver, status};

const LONG: Duration = Duration::from_secs(60);

/// A wheel in memory whose time stands still.
async fn virtual_wheel() -> (Duewheel, VirtualClock) {
    let clock = VirtualClock::at_2026();
    let wheel = Duewheel::builder().in_memory().clock(clock.clone()).seed(1).open().await.unwrap();
    (wheel, clock)
}

/// Polls until `done`, with a deadline.
async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn push(wheel: &Duewheel, settings: &TargetSettings) -> Pusher {
    let client = PushClient::new(Arc::new(PushTarget::new(settings).unwrap()));
    Pusher::start(wheel, &["q"], "s1", client).unwrap()
}

async fn enqueue(wheel: &Duewheel, n: usize) {
    for key in 0..n {
        wheel.queue("q").body(key.to_string()).key(&key.to_string()).enqueue().await.unwrap();
    }
}

async fn view(wheel: &Duewheel, key: &str) -> Option<View> {
    wheel.queue("q").get_key(key).await.unwrap()
}

fn total(counts: Counts) -> u64 {
    counts.scheduled + counts.ready + counts.leased + counts.dead
}

async fn is_empty(wheel: &Duewheel) -> bool {
    total(wheel.stats().await.unwrap().counts) == 0
}

async fn leased(wheel: &Duewheel) -> u64 {
    wheel.stats().await.unwrap().counts.leased
}

/// Lets time pass, but not over the leases of what is under way.
async fn pass(wheel: &Duewheel, clock: &VirtualClock) {
    if leased(wheel).await == 0 {
        clock.advance(Duration::from_secs(10));
    }
}

/// The settings with one delay between attempts, a second.
fn retried(receiver: &Receiver) -> TargetSettings {
    let retry = RetrySettings { delays: Some(vec!["1s".into()]), ..RetrySettings::default() };
    TargetSettings { retry: Some(retry), ..receiver.target() }
}

#[tokio::test]
async fn due_messages_are_delivered_and_acked() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &receiver.target());
    enqueue(&wheel, 20).await;
    wheel.queue("q").body("later").delay(duewheel::HOUR).header("customer", "7").enqueue().await.unwrap();
    until("all are delivered", async || pusher.counts().delivered == 20).await;
    let bodies: HashSet<_> = receiver.requests().into_iter().map(|request| request.body).collect();
    assert_eq!(bodies.len(), 20);
    until("all are settled", async || leased(&wheel).await == 0).await;
    clock.advance(duewheel::HOUR);
    until("all is done", async || is_empty(&wheel).await).await;
    let last = receiver.requests().pop().unwrap();
    assert_eq!((last.body, last.headers.len()), (b"later".to_vec(), 10));
    assert_eq!(last.headers.iter().find(|(name, _)| name == "duewheel-h-customer").unwrap().1, "7");
    assert_eq!(pusher.stop(LONG).await, Stopped::Complete);
}

#[tokio::test]
async fn failures_keep_id_and_end_dead() {
    let receiver = Receiver::new(|_, _| status(404, "", "no such order")).await;
    let (wheel, clock) = virtual_wheel().await;
    // Two failures are fewer than it takes to open the breaker.
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(2), ..retried(&receiver) });
    enqueue(&wheel, 1).await;
    until("the first has failed", async || pusher.counts().failed == 1).await;
    until("it is scheduled", async || view(&wheel, "0").await.unwrap().state == State::Scheduled).await;
    let waits = view(&wheel, "0").await.unwrap().due_in_ms;
    assert!((800..=1_200).contains(&waits), "a second, give or take a fifth: {waits}");
    clock.advance(Duration::from_secs(2));
    until("it is dead", async || pusher.counts().dead == 1).await;
    assert_eq!(view(&wheel, "0").await.unwrap().state, State::Dead);
    let notes: Vec<_> =
        view(&wheel, "0").await.unwrap().history.iter().map(|past| past.note.to_string()).collect();
    assert_eq!(notes, ["status_404", "status_404"]);
    let ids: HashSet<_> =
        receiver.requests().iter().map(|request| request.header("webhook-id").unwrap().to_owned()).collect();
    assert_eq!((receiver.requests().len(), ids.len()), (2, 1));
    assert!(ids.iter().next().unwrap().starts_with("dw_s1_"));
    let counts = pusher.counts();
    assert_eq!((counts.delivered, counts.failed, counts.dead, counts.forgiven), (0, 1, 1, 0));
}

#[tokio::test]
async fn push_lease_exceeds_timeout_by_margin() {
    let receiver = Receiver::new(|_, _| Answer::Hang).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { timeout_ms: Some(700_000), ..receiver.target() });
    enqueue(&wheel, 1).await;
    until("it is under way", async || receiver.requests().len() == 1).await;
    let leased_until = view(&wheel, "0").await.unwrap().lease_until.unwrap();
    assert_eq!(leased_until.0 - wheel.client().now().wall.0, 710_000);
    pusher.stop(Duration::ZERO).await;
}

/// What is sent once more because a kept connection ended costs no attempt, but is one of the requests a second.
#[tokio::test]
async fn a_repeated_request_counts_in_the_rate_alone() {
    let receiver = Receiver::new(|number, _| match number {
        2 => Answer::Close,
        _ => status(200, "", ""),
    })
    .await;
    let (wheel, clock) = virtual_wheel().await;
    let rate = Some(PushRate { per_second: 1, burst: Some(3) });
    let settings = TargetSettings { max_attempts: Some(1), concurrency: Some(1), rate, ..receiver.target() };
    let pusher = push(&wheel, &settings);
    enqueue(&wheel, 3).await;
    until("two are delivered", async || pusher.counts().delivered == 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(receiver.requests().len(), 3, "the burst is used up");
    clock.advance(Duration::from_secs(1));
    until("the third is delivered", async || pusher.counts().delivered == 3).await;
    assert_eq!((pusher.counts().failed, pusher.counts().dead, receiver.requests().len()), (0, 0, 4));
}

/// Story: a fresh message of one queue waited for the sixty older ones of another queue of its target.
#[tokio::test]
async fn queues_of_a_target_take_turns() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    for (queue, n) in [("long", 60), ("none", 0), ("short", 3)] {
        for _ in 0..n {
            wheel.queue(queue).body(queue).enqueue().await.unwrap();
        }
    }
    let settings = TargetSettings { concurrency: Some(1), ..receiver.target() };
    let client = PushClient::new(Arc::new(PushTarget::new(&settings).unwrap()));
    let pusher = Pusher::start(&wheel, &["long", "none", "short"], "s1", client).unwrap();
    until("all are delivered", async || pusher.counts().delivered == 63).await;
    let order: Vec<_> =
        receiver.requests().iter().map(|got| got.header("duewheel-queue").unwrap().to_owned()).collect();
    assert_eq!(order[..6], ["long", "short", "long", "short", "long", "short"]);
}

/// A redrive is the same message: a receiver that has taken note of the id may have it already.
#[tokio::test]
async fn redriven_message_keeps_webhook_id() {
    let receiver = Receiver::new(|number, _| status(if number == 1 { 404 } else { 200 }, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(1), ..receiver.target() });
    enqueue(&wheel, 1).await;
    until("it is dead", async || pusher.counts().dead == 1).await;
    let id = view(&wheel, "0").await.unwrap().message.id;
    wheel.client().ask(Op::redrive(id)).await.unwrap().unwrap();
    until("it is delivered", async || pusher.counts().delivered == 1).await;
    let ids: Vec<_> =
        receiver.requests().iter().map(|request| request.header("webhook-id").unwrap().to_owned()).collect();
    assert_eq!(ids[0], ids[1]);
}

/// What a receiver asks for by headers, from the socket to the queue.
#[tokio::test]
async fn answer_headers_control_delivery() {
    let receiver = Receiver::new(|_, request| match &request.body[..] {
        b"abort" => status(500, "webhook-delivery: abort-message\r\n", ""),
        b"in seconds" => status(503, "retry-after: 999999999\r\n", ""),
        b"by date" => status(429, "retry-after: Fri, 31 Dec 2100 23:59:59 GMT\r\n", ""),
        _ => status(200, "webhook-delivery: disable\r\n", ""),
    })
    .await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(5), ..receiver.target() });
    let put = async |body: &str| wheel.queue("q").body(body.to_owned()).key(body).enqueue().await.unwrap();
    put("abort").await;
    until("it is dead", async || pusher.counts().dead == 1).await;
    let aborted = view(&wheel, "abort").await.unwrap();
    assert_eq!((aborted.state, aborted.attempt), (State::Dead, 1));
    for (n, body) in (1..).zip(["in seconds", "by date"]) {
        put(body).await;
        until("it is put off", async || pusher.counts().forgiven == n).await;
        let put_off = view(&wheel, body).await.unwrap();
        assert_eq!((put_off.state, put_off.due_in_ms), (State::Scheduled, 86_400_000), "a day at most");
        // The target is left alone for at most five minutes.
        clock.advance(Duration::from_secs(300));
    }
    put("last").await;
    until("it is delivered", async || pusher.counts().delivered == 1).await;
    assert!(matches!(pusher.stage(), BreakerStage::Paused { .. }), "and it was the last one");
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test]
async fn the_messages_own_settings_win() {
    let receiver = Receiver::new(|_, _| status(500, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(1), ..retried(&receiver) });
    let draft = wheel.queue("q").body("x").key("0").max_attempts(2);
    draft.backoff(duewheel::HOUR, duewheel::HOUR).enqueue().await.unwrap();
    until("it has failed", async || pusher.counts().failed == 1).await;
    until("it is scheduled", async || view(&wheel, "0").await.unwrap().state == State::Scheduled).await;
    assert!(view(&wheel, "0").await.unwrap().due_in_ms > 2_000_000, "its own backoff");
}

#[tokio::test]
async fn dead_on_code_makes_message_dead() {
    let receiver = Receiver::new(|_, _| status(422, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { dead_on: vec![422], ..receiver.target() });
    enqueue(&wheel, 1).await;
    until("it is dead", async || pusher.counts().dead == 1).await;
    assert_eq!(view(&wheel, "0").await.unwrap().state, State::Dead);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn snooze_and_slowdown_cost_no_attempt() {
    let receiver = Receiver::new(|number, _| match number {
        1 => status(200, "duewheel-snooze: 15m\r\n", ""),
        2 => status(429, "retry-after: 30\r\n", ""),
        _ => status(200, "", ""),
    })
    .await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(1), ..receiver.target() });
    enqueue(&wheel, 1).await;
    for (n, seconds) in [(1, 900), (2, 30)] {
        until("it is forgiven", async || {
            view(&wheel, "0").await.is_some_and(|view| view.forgiven == n && view.state == State::Scheduled)
        })
        .await;
        assert_eq!(view(&wheel, "0").await.unwrap().due_in_ms, seconds * 1_000);
        clock.advance(Duration::from_secs(seconds));
    }
    until("it is done", async || pusher.counts().delivered == 1).await;
    assert_eq!(pusher.counts().forgiven, 2);
    assert!(is_empty(&wheel).await);
}

#[tokio::test]
async fn gone_target_is_paused_until_resumed() {
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = gone.clone();
    let receiver =
        Receiver::new(move |_, _| status(if is_gone.load(Ordering::SeqCst) { 410 } else { 200 }, "", ""))
            .await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher =
        push(&wheel, &TargetSettings { concurrency: Some(1), max_attempts: Some(1), ..receiver.target() });
    enqueue(&wheel, 5).await;
    until("it is paused", async || matches!(pusher.stage(), BreakerStage::Paused { .. })).await;
    until("it is settled", async || leased(&wheel).await == 0).await;
    clock.advance(duewheel::HOUR);
    until("the first waits as well", async || wheel.stats().await.unwrap().counts.ready == 5).await;
    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(
        pusher.stage(),
        BreakerStage::Paused { reason: "the target takes no more messages: status_410".into() }
    );
    gone.store(false, Ordering::SeqCst);
    pusher.resume();
    until("all are done", async || pusher.counts().delivered == 5).await;
    assert!(is_empty(&wheel).await);
}

/// Story: a single message whose target refused connections for longer than its attempts lasted was dead.
#[tokio::test]
async fn single_message_outlives_target_outage() {
    // A port that is taken, and where nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let taken = socket.local_addr().unwrap();
    for max_attempts in [10, 1] {
        let (wheel, clock) = virtual_wheel().await;
        let settings = TargetSettings {
            max_attempts: Some(max_attempts),
            networks: Receiver::new(|_, _| status(200, "", "")).await.target().networks,
            ..TargetSettings::new(format!("http://{taken}/"))
        };
        let pusher = push(&wheel, &settings);
        enqueue(&wheel, 1).await;
        until("it has failed more often than it has attempts", async || {
            pass(&wheel, &clock).await;
            pusher.counts().forgiven > 15
        })
        .await;
        until("nothing is leased", async || leased(&wheel).await == 0).await;
        let view = view(&wheel, "0").await.unwrap();
        assert_eq!((view.state != State::Dead, view.attempt - view.forgiven), (true, 0), "{view:?}");
        assert_eq!(view.history.last().map(|past| &*past.note), Some("connection_refused"));
        assert!(matches!(pusher.stage(), BreakerStage::Open { .. }));
        assert_eq!((pusher.counts().failed, pusher.counts().dead), (0, 0));
    }
}

/// G18: a target that is away costs its messages no attempts.
#[tokio::test]
async fn messages_wait_unleased_during_target_outage() {
    let away = Arc::new(AtomicBool::new(true));
    let is_away = away.clone();
    let receiver =
        Receiver::new(
            move |_, _| {
                if is_away.load(Ordering::SeqCst) { Answer::Close } else { status(200, "", "") }
            },
        )
        .await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { concurrency: Some(2), ..receiver.target() });
    enqueue(&wheel, 200).await;
    until("it is open", async || matches!(pusher.stage(), BreakerStage::Open { .. })).await;
    until("nothing is leased", async || leased(&wheel).await == 0).await;
    // Only probes go out: time passes, and the target is still away.
    let before = receiver.requests().len();
    for probe in 1..=5 {
        until("a probe has ended", async || {
            pass(&wheel, &clock).await;
            matches!(pusher.stage(), BreakerStage::Open { probes, .. } if probes >= probe)
                && leased(&wheel).await == 0
        })
        .await;
    }
    let BreakerStage::Open { probes, .. } = pusher.stage() else { panic!() };
    assert!(receiver.requests().len() <= before + probes as usize + 1, "one request for each probe");
    let counts = pusher.counts();
    assert_eq!(counts.failed, 0, "it has answered nothing");
    assert!(counts.forgiven >= 4, "{counts:?}");

    away.store(false, Ordering::SeqCst);
    until("all are done", async || {
        pass(&wheel, &clock).await;
        pusher.counts().delivered == 200
    })
    .await;
    assert!(is_empty(&wheel).await);
    assert_eq!((pusher.stage(), pusher.counts().dead), (BreakerStage::Closed, 0));
}

/// Messages that a target always answers with an error, and that come before all others, do not keep the others waiting.
#[tokio::test]
async fn poison_does_not_keep_breaker_open() {
    let receiver = Receiver::new(|_, received| match &received.body[..] {
        b"poison" => status(400, "", ""),
        _ => status(200, "", ""),
    })
    .await;
    let (wheel, clock) = virtual_wheel().await;
    let retry = RetrySettings { delays: Some(vec!["1h".into()]), ..RetrySettings::default() };
    let settings = TargetSettings {
        concurrency: Some(1),
        timeout_ms: Some(900_000),
        retry: Some(retry),
        ..receiver.target()
    };
    // Three open the breaker; the fourth is the first probe.
    for _ in 0..4 {
        wheel.queue("q").body("poison").priority(0).enqueue().await.unwrap();
    }
    enqueue(&wheel, 20).await;
    let pusher = push(&wheel, &settings);
    until("it is open", async || matches!(pusher.stage(), BreakerStage::Open { .. })).await;
    for _ in 0..2 {
        until("nothing is leased", async || leased(&wheel).await == 0).await;
        let BreakerStage::Open { probes: before, next, .. } = pusher.stage() else { panic!() };
        clock.advance(Duration::from_millis(next.0 - wheel.client().now().engine.0));
        let sent = async || match pusher.stage() {
            BreakerStage::Open { probes, .. } => probes > before,
            _ => true,
        };
        until("a probe is sent", sent).await;
    }
    until("the rest is delivered", async || pusher.counts().delivered == 20).await;
    assert_eq!(receiver.requests().len(), 24);
}

/// Story: a message that was probed with again and again came back after the last delay of the plan, ten hours.
#[tokio::test]
async fn probes_do_not_advance_retry_plan() {
    let receiver = Receiver::new(|_, _| status(500, "", "")).await;
    let (wheel, clock) = virtual_wheel().await;
    let delays = Some(vec!["1s".into(), "2s".into(), "10h".into()]);
    let retry = Some(RetrySettings { delays, ..RetrySettings::default() });
    enqueue(&wheel, 3).await;
    let settings = TargetSettings { concurrency: Some(1), retry, ..receiver.target() };
    let pusher = push(&wheel, &settings);
    until("it is open", async || matches!(pusher.stage(), BreakerStage::Open { .. })).await;
    until("six probes have failed", async || {
        pass(&wheel, &clock).await;
        pusher.counts().forgiven >= 6
    })
    .await;
    until("nothing is leased", async || leased(&wheel).await == 0).await;
    for key in ["0", "1", "2"] {
        let view = view(&wheel, key).await.unwrap();
        assert_eq!(view.attempt - view.forgiven, 1, "{view:?}");
        assert!(view.due_in_ms <= 2_400, "the second delay, give or take a fifth: {}", view.due_in_ms);
    }
}

/// Story: one message that its target cannot take opened the breaker by itself, and never was dead.
#[tokio::test]
async fn single_failing_message_ends_dead() {
    let receiver = Receiver::new(|_, _| status(500, "", "")).await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(6), ..retried(&receiver) });
    enqueue(&wheel, 1).await;
    until("it is dead", async || {
        pass(&wheel, &clock).await;
        pusher.counts().dead == 1
    })
    .await;
    assert_eq!((receiver.requests().len(), pusher.stage()), (6, BreakerStage::Closed));
    let view = view(&wheel, "0").await.unwrap();
    assert_eq!((view.state, view.forgiven), (State::Dead, 0));
    assert_eq!(view.history.last().map(|past| &*past.note), Some("status_500"));
}

#[tokio::test]
async fn hanging_target_does_not_delay_others() {
    let hanging = Receiver::new(|_, _| Answer::Hang).await;
    let healthy = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    let client = |settings: &TargetSettings| PushClient::new(Arc::new(PushTarget::new(settings).unwrap()));
    let hangs = TargetSettings { concurrency: Some(4), timeout_ms: Some(900_000), ..hanging.target() };
    let slow = Pusher::start(&wheel, &["slow"], "s1", client(&hangs)).unwrap();
    let fast = Pusher::start(&wheel, &["fast"], "s1", client(&healthy.target())).unwrap();
    for n in 0..300 {
        for queue in ["slow", "fast"] {
            wheel.queue(queue).body(n.to_string()).enqueue().await.unwrap();
        }
    }
    until("the healthy one has all", async || fast.counts().delivered == 300).await;
    until("the other has as many as it takes at a time", async || hanging.requests().len() == 4).await;
    assert_eq!(slow.counts().delivered, 0);
    let info = wheel.queue("slow").info().await.unwrap().unwrap();
    assert_eq!((info.counts.leased, info.counts.ready), (4, 296));
    assert_eq!(slow.stop(Duration::from_millis(1)).await, Stopped::Interrupted);
    until("what was interrupted is released", async || leased(&wheel).await == 0).await;
    assert_eq!(fast.stop(LONG).await, Stopped::Complete);
}

/// The limits of a target hold over all its queues.
#[tokio::test]
async fn one_pusher_takes_several_queues() {
    let receiver = Receiver::new(|_, received| match received.header("duewheel-queue") {
        Some("b") => Answer::Hang,
        _ => status(200, "", ""),
    })
    .await;
    let (wheel, _clock) = virtual_wheel().await;
    let settings = TargetSettings { concurrency: Some(3), timeout_ms: Some(900_000), ..receiver.target() };
    let client = PushClient::new(Arc::new(PushTarget::new(&settings).unwrap()));
    let pusher = Pusher::start(&wheel, &["a", "b"], "s1", client).unwrap();
    wheel.queue("b").body("first").enqueue().await.unwrap();
    for n in 0..50 {
        wheel.queue("a").body(n.to_string()).enqueue().await.unwrap();
    }
    until("one queue is done beside the other", async || pusher.counts().delivered == 50).await;
    for n in 0..10 {
        wheel.queue("b").body(n.to_string()).enqueue().await.unwrap();
    }
    let hanging = || receiver.requests().iter().filter(|r| r.header("duewheel-queue") == Some("b")).count();
    until("all hands are taken", async || hanging() == 3).await;
    wheel.queue("a").body("waits").enqueue().await.unwrap();
    let counts = wheel.stats().await.unwrap().counts;
    assert_eq!((counts.leased, counts.ready, receiver.connections()), (3, 9, 3));
}

#[tokio::test]
async fn target_rate_follows_clock() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, clock) = virtual_wheel().await;
    let rate = Some(PushRate { per_second: 5, burst: None });
    let pusher = push(&wheel, &TargetSettings { rate, ..receiver.target() });
    enqueue(&wheel, 20).await;
    for n in [5, 10, 15, 20] {
        until("a second's worth is delivered", async || pusher.counts().delivered >= n).await;
        // As many turns of wheel and runtime as a sixth request would need.
        for _ in 0..50 {
            wheel.stats().await.unwrap();
        }
        assert_eq!(receiver.requests().len() as u64, n, "time stands still");
        // Not over the lease of what has been answered and not been acked.
        until("all are settled", async || leased(&wheel).await == 0).await;
        clock.advance(Duration::from_secs(1));
    }
    until("all are done", async || is_empty(&wheel).await).await;
}

#[tokio::test]
async fn stopped_pusher_finishes_running_deliveries() {
    let (receiver, open) = Receiver::held().await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { concurrency: Some(1), ..receiver.target() });
    enqueue(&wheel, 3).await;
    until("one is under way", async || receiver.connections() == 1).await;
    let mut stopping = Box::pin(pusher.stop(LONG));
    // Polled once: it has been told to stop before the request under way ends.
    assert!(tokio::time::timeout(Duration::ZERO, &mut stopping).await.is_err());
    open.send_replace(true);
    assert_eq!(stopping.await, Stopped::Complete);
    assert_eq!(receiver.requests().len(), 1, "it begins no other");
    let counts = wheel.stats().await.unwrap().counts;
    assert_eq!((counts.leased, counts.ready, total(counts)), (0, 2, 2), "what was delivered is acked");
}

/// Story: the limit of the queue held as well, so that a target could not have more attempts than its queue.
#[tokio::test]
async fn target_attempt_limit_overrides_queue_limit() {
    for (target, queue) in [(3, 1), (1, 3)] {
        let receiver = Receiver::new(|_, _| status(404, "", "")).await;
        let (wheel, clock) = virtual_wheel().await;
        let settings = QueueSettings { max_attempts: MaxAttempts::new(queue), ..QueueSettings::default() };
        let configure = Op::configure(QueueName::new("q").unwrap(), settings);
        wheel.client().ask(configure).await.unwrap().unwrap();
        let pusher = push(&wheel, &TargetSettings { max_attempts: Some(target), ..retried(&receiver) });
        enqueue(&wheel, 1).await;
        until("it is dead", async || {
            pass(&wheel, &clock).await;
            pusher.counts().dead == 1
        })
        .await;
        let view = view(&wheel, "0").await.unwrap();
        assert_eq!((view.attempt, view.forgiven), (target, 0));
        assert_eq!(view.dead.unwrap().0, DeadReason::MaxAttempts);
        assert_eq!(&*view.history.last().unwrap().note, "status_404");
        assert_eq!(receiver.requests().len(), usize::try_from(target).unwrap());
        assert_eq!((pusher.counts().failed, pusher.counts().dead), (u64::from(target) - 1, 1));
    }
}

async fn limit(wheel: &Duewheel, limits: GrantLimits) {
    let settings = QueueSettings { limits, ..QueueSettings::default() };
    let configure = Op::configure(QueueName::new("q").unwrap(), settings);
    wheel.client().ask(configure).await.unwrap().unwrap();
}

/// Long enough for a request that should not be there.
async fn settle_down(wheel: &Duewheel) {
    for _ in 0..200 {
        wheel.stats().await.unwrap();
    }
}

/// The limits of a queue hold for pushes as they do for consumers.
#[tokio::test]
async fn queue_concurrency_limits_pushes() {
    let receiver = Receiver::new(|_, _| Answer::Hang).await;
    let (wheel, _clock) = virtual_wheel().await;
    limit(&wheel, GrantLimits { concurrency: Some(2), ..GrantLimits::default() }).await;
    let pusher = push(&wheel, &TargetSettings { concurrency: Some(10), ..receiver.target() });
    enqueue(&wheel, 5).await;
    until("two are under way", async || receiver.requests().len() == 2).await;
    settle_down(&wheel).await;
    let counts = wheel.stats().await.unwrap().counts;
    assert_eq!((receiver.requests().len(), counts.leased, counts.ready), (2, 2, 3));
    // A consumer shares them.
    let name = QueueName::new("q").unwrap();
    let pulled = wheel.client().reserve(Reserve { max: 5, ..Reserve::new(name) }).await.unwrap();
    assert!(matches!(pulled, Reserved::HeldBack(HeldBack::Leases)), "{pulled:?}");
    assert_eq!(pusher.stop(Duration::ZERO).await, Stopped::Interrupted);
}

#[tokio::test]
async fn queue_rate_limits_pushes() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, clock) = virtual_wheel().await;
    let rate = Some(GrantRate { burst: Some(2), ..GrantRate::per_second(1) });
    limit(&wheel, GrantLimits { rate, ..GrantLimits::default() }).await;
    let pusher = push(&wheel, &TargetSettings { concurrency: Some(10), ..receiver.target() });
    enqueue(&wheel, 5).await;
    for n in 2..=4 {
        until("as many as the rate allows", async || pusher.counts().delivered == n).await;
        settle_down(&wheel).await;
        assert_eq!(pusher.counts().delivered, n, "the clock stands still");
        clock.advance(Duration::from_secs(1));
    }
    until("the last one", async || pusher.counts().delivered == 5).await;
    pusher.stop(LONG).await;
}

/// Jobs put over beanstalkd have no limit: that of the target does not hold for them.
#[tokio::test]
async fn unlimited_message_outlives_target_limit() {
    let receiver = Receiver::new(|number, _| status(if number < 3 { 500 } else { 200 }, "", "")).await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &TargetSettings { max_attempts: Some(1), ..retried(&receiver) });
    let options = Options { max_attempts: Some(MaxAttempts::UNLIMITED), ..Options::default() };
    let queue = QueueName::new("q").unwrap();
    let enqueue = Enqueue { options, ..Enqueue::new(queue, &b"job"[..]) };
    wheel.client().ask(enqueue).await.unwrap().unwrap();
    until("it is delivered", async || {
        pass(&wheel, &clock).await;
        pusher.counts().delivered == 1
    })
    .await;
    assert_eq!((pusher.counts().failed, pusher.counts().dead), (2, 0));
}

/// G18: what was under way when the process ended is delivered again at once, under the same id.
#[tokio::test]
async fn delivery_cut_by_restart_is_repeated() {
    let receiver =
        Receiver::new(|number, _| if number == 1 { Answer::Hang } else { status(200, "", "") }).await;
    let folder = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let open = async || Duewheel::builder().data(folder.path()).clock(clock.clone()).open().await.unwrap();
    let settings = TargetSettings { timeout_ms: Some(900_000), ..receiver.target() };
    let wheel = open().await;
    let cut_off = push(&wheel, &settings);
    enqueue(&wheel, 1).await;
    until("it is under way", async || receiver.requests().len() == 1).await;
    wheel.shutdown(LONG).await.unwrap();
    drop((cut_off, wheel));

    let wheel = open().await;
    let pusher = push(&wheel, &settings);
    until("it is delivered", async || pusher.counts().delivered == 1).await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    assert_eq!(requests[1].header("duewheel-attempt"), Some("2"));
    assert!(is_empty(&wheel).await);
}

/// Story: the limit of the queue held for a first attempt that a crash cut off, whatever the target allowed.
#[tokio::test]
async fn cut_first_attempt_counts_for_target() {
    let receiver = Receiver::new(|_, _| Answer::Hang).await;
    let folder = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let open = async || Duewheel::builder().data(folder.path()).clock(clock.clone()).open().await.unwrap();
    let settings = TargetSettings { timeout_ms: Some(900_000), max_attempts: Some(1), ..receiver.target() };
    let wheel = open().await;
    let cut_off = push(&wheel, &settings);
    enqueue(&wheel, 1).await;
    until("it is under way", async || receiver.requests().len() == 1).await;
    wheel.shutdown(LONG).await.unwrap();
    drop((cut_off, wheel));

    let wheel = open().await;
    let pusher = push(&wheel, &settings);
    until("it is dead", async || wheel.stats().await.unwrap().counts.dead == 1).await;
    assert_eq!(receiver.requests().len(), 1);
    pusher.stop(LONG).await;
}

#[tokio::test]
async fn a_closed_wheel_ends_its_pushers() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    let pusher = push(&wheel, &receiver.target());
    wheel.shutdown(LONG).await.unwrap();
    assert_eq!(pusher.stop(LONG).await, Stopped::Complete);
}

#[tokio::test]
async fn names_that_no_pusher_has() {
    let receiver = Receiver::new(|_, _| status(200, "", "")).await;
    let (wheel, _clock) = virtual_wheel().await;
    let client = PushClient::new(Arc::new(PushTarget::new(&receiver.target()).unwrap()));
    let start = |queues: &[&str], store: &str| {
        Pusher::start(&wheel, queues, store, client.clone()).map(|_| ()).unwrap_err()
    };
    assert!(matches!(start(&["q", ""], "s"), PusherError::Queue(_)));
    assert_eq!(start(&[], "s"), PusherError::NoQueue);
    for store in ["", "a.b", "a_b", "é", &"x".repeat(65)] {
        assert_eq!(start(&["q"], store), PusherError::Store, "{store}");
    }
}

/// Story: an advance ended the lease of a webhook under way, which was sent twice and could not be settled.
#[tokio::test(flavor = "multi_thread")]
async fn advance_waits_for_webhook_under_way() {
    let (receiver, answers) = Receiver::held().await;
    let (wheel, clock) = virtual_wheel().await;
    let pusher = push(&wheel, &receiver.target());
    wheel.queue("q").body("x").delay(duewheel::HOUR).enqueue().await.unwrap();
    let advancing = {
        let (wheel, clock) = (wheel.clone(), clock.clone());
        tokio::spawn(async move { wheel.advance(&clock, 48 * duewheel::HOUR).await })
    };
    until("it is under way", async || receiver.connections() == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!advancing.is_finished(), "time stands until it has ended");
    answers.send_replace(true);
    advancing.await.unwrap().unwrap();
    assert_eq!((receiver.requests().len(), pusher.counts().delivered), (1, 1));
    // A pusher that takes no messages does not hold the clock.
    pusher.pause("for a test");
    wheel.queue("q").body("y").delay(duewheel::HOUR).enqueue().await.unwrap();
    wheel.advance(&clock, 48 * duewheel::HOUR).await.unwrap();
    assert_eq!(receiver.requests().len(), 1);
    pusher.stop(LONG).await;
}
