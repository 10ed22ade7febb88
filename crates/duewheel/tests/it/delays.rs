//! Delays at the edges of every integer that somebody may have put them in: kept, or refused by name; never "now".

use std::time::Duration;

use duewheel::core::engine::EnqueueRefusal;
use duewheel::{Duewheel, EnqueueError, VirtualClock};

/// In ms: those that are kept, and those above the longest delay.
const KEPT: [u64; 5] = [1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 36];
const REFUSED: [u64; 4] = [1 << 53, i64::MAX as u64, u64::MAX - 1, u64::MAX];

#[tokio::test]
async fn delays_are_exact_over_restart() {
    let dir = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let open = || Duewheel::builder().data(dir.path().join("data")).clock(clock.clone()).open();
    let mut wheel = open().await.unwrap();
    let queue = wheel.queue("q");
    let began = clock.now();
    for ms in KEPT {
        let receipt = queue.body(ms.to_string()).delay(Duration::from_millis(ms)).enqueue().await.unwrap();
        assert_eq!(receipt.due_at, began + Duration::from_millis(ms), "{ms}");
    }
    for ms in REFUSED {
        let refused = queue.body("").delay(Duration::from_millis(ms)).enqueue().await;
        assert!(
            matches!(refused, Err(EnqueueError::Refused(EnqueueRefusal::TooFar(_)))),
            "{ms}: {refused:?}"
        );
        assert!(refused.unwrap_err().to_string().contains("due time"), "{ms}");
    }
    // A duration has no sign; what is longer than any number of ms is the longest.
    let refused = queue.body("").delay(Duration::MAX).enqueue().await;
    assert!(matches!(refused, Err(EnqueueError::Refused(EnqueueRefusal::TooFar(_)))), "{refused:?}");
    // The same by postponing, and by giving back.
    let key = queue.body("postponed").key("k").delay(Duration::from_secs(3_600)).enqueue().await.unwrap();
    for ms in REFUSED {
        let refused = queue.postpone_key("k", Duration::from_millis(ms)).await;
        assert!(refused.is_err(), "{ms}: {refused:?}");
    }
    let view = queue.get_key("k").await.unwrap().unwrap();
    assert_eq!(view.due_at.to_system_time(), key.due_at, "a refused postpone changes nothing");
    queue.postpone_key("k", Duration::from_millis(1 << 36)).await.unwrap();
    assert!(matches!(queue.cancel_key("k").await.unwrap(), duewheel::Cancel::Cancelled(_)));

    // 0 is now, and the only one that is.
    queue.body("0").delay(Duration::ZERO).enqueue().await.unwrap();
    let got = queue.reserve(10, Duration::ZERO).await.unwrap();
    assert_eq!(got.iter().map(|m| &m.body()[..]).collect::<Vec<_>>(), [b"0"]);
    // Nor is it given back for so long, and the lease stays. The refusal was once that of a lost lease.
    for delay in REFUSED.map(Duration::from_millis).into_iter().chain([Duration::MAX]) {
        let nacked = queue.nack(&got[0], Some(delay), "").await;
        for refused in [nacked, queue.not_yet(&got[0], delay, "").await] {
            let text = refused.unwrap_err().to_string();
            assert_eq!(text, "delay is out of range: at most 4294967295000 ms", "{delay:?}");
        }
    }
    queue.ack(&got[0]).await.unwrap();

    for ms in KEPT {
        // Opened again before each.
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
        wheel = open().await.unwrap();
        let due = began + Duration::from_millis(ms);
        clock.advance_to(due - Duration::from_millis(1));
        assert!(wheel.queue("q").reserve(10, Duration::ZERO).await.unwrap().is_empty(), "{ms}: early");
        clock.advance_to(due);
        let got = wheel.queue("q").reserve(10, Duration::ZERO).await.unwrap();
        assert_eq!(got.len(), 1, "{ms}: due");
        assert_eq!(got[0].body(), &ms.to_string(), "{ms}");
        assert_eq!(got[0].lateness(), Duration::ZERO, "{ms}");
        wheel.queue("q").ack(&got[0]).await.unwrap();
    }
    wheel.shutdown(Duration::from_secs(60)).await.unwrap();
}

/// Story: downtime was what the wall clock showed (G2, G7). A step of it while the process was down moved every delay
/// and every lease.
#[tokio::test]
async fn offline_wall_step_moves_no_delay() {
    const HOUR: Duration = Duration::from_secs(3_600);
    const MS: Duration = Duration::from_millis(1);
    let dir = tempfile::tempdir().unwrap();
    let clock = VirtualClock::at_2026();
    let open = || Duewheel::builder().data(dir.path().join("data")).clock(clock.clone()).open();
    let none =
        async |wheel: &Duewheel| wheel.queue("q").reserve(10, Duration::ZERO).await.unwrap().is_empty();
    for steps in [[2 * HOUR, Duration::ZERO], [Duration::ZERO, 3 * HOUR]] {
        let [forward, back] = steps;
        let wheel = open().await.unwrap();
        wheel.queue("q").body("in an hour").delay(HOUR).enqueue().await.unwrap();
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
        clock.advance(HOUR / 4);
        clock.step_wall_to(clock.now() + forward - back);
        let wheel = open().await.unwrap();
        assert!(none(&wheel).await, "{steps:?}: a quarter of an hour is over");
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
        clock.advance(HOUR / 4 * 3 - MS);
        let wheel = open().await.unwrap();
        assert!(none(&wheel).await, "{steps:?}: early by a millisecond");
        clock.advance(MS);
        let got = wheel.queue("q").reserve(10, Duration::ZERO).await.unwrap();
        assert_eq!(got.len(), 1, "{steps:?}: an hour is over");
        wheel.queue("q").ack(&got[0]).await.unwrap();
        wheel.shutdown(Duration::from_secs(60)).await.unwrap();
    }
    // Another boot has nothing but the wall clock.
    let wheel = open().await.unwrap();
    wheel.queue("q").body("in an hour").delay(HOUR).enqueue().await.unwrap();
    wheel.shutdown(Duration::from_secs(60)).await.unwrap();
    clock.advance(HOUR - MS);
    clock.reboot();
    let wheel = open().await.unwrap();
    assert!(none(&wheel).await, "early by a millisecond");
    clock.advance(2 * MS); // noted with the wall clock rounded up
    assert!(!none(&wheel).await);
    wheel.shutdown(Duration::from_secs(60)).await.unwrap();
}
