//! What `/healthz` says when something is wrong, and that it says so only as long as it is.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use duewheel::core::id::ShardId;
use duewheel::store_log::disk::RealDisk;
use duewheel::testing::MemoryCoordinator;
use duewheel::{Clock, ClockSample, Duewheel, NodeOptions, Policy, SystemClock, VirtualClock};
use duewheel_server::http::HttpLimits;
use duewheel_sim_disk::{Denial, GateRule, GatedCalls, GatedDisk};
use serde_json::Value;

use crate::fixture::{PATIENCE, Server};

/// Asks until it is so; what was said then.
async fn until(server: &Server, status: u16, word: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = server.call("GET", "/healthz", "").await;
        if (answer.status, &answer.json()["status"]) == (status, &word.into()) {
            return answer.json();
        }
        assert!(Instant::now() < deadline, "never {status} {word}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A real disk whose writes wait or fail as a test says.
fn gated(dir: &Path) -> GatedDisk<RealDisk> {
    GatedDisk::new(RealDisk::new(&dir.join("data")), GatedCalls::Writes, GateRule::Open)
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reports_first_bug() {
    let server = Server::start().await;
    until(&server, 200, "ok").await;
    server.app.set_failing("a bug in duewheel: a thread has panicked");
    server.app.set_failing("and what came of it");
    let said = until(&server, 503, "failing").await;
    assert_eq!(said["trouble"], "a bug in duewheel: a thread has panicked", "the first reason counts");
}

/// Story: a disk that did not return from a call for two minutes had the server killed, and the next one stood before
/// the same disk.
///
/// A driver that does not come round any more is found out by the age of its last round; when it goes on, all is well
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn health_fails_while_driver_is_stuck() {
    let dir = tempfile::tempdir().expect("dir");
    let disk = Arc::new(gated(dir.path()));
    let clock = Hurried::default();
    let open = Duewheel::builder().disk(disk.clone()).clock(clock.clone()).open();
    let wheel = open.await.expect("wheel");
    let server = Server::over(wheel, VirtualClock::at_2026(), Policy::default(), HttpLimits::default()).await;
    until(&server, 200, "ok").await;
    disk.set(GateRule::After(0));
    let request = r#"{"body": "a", "delay": "1h"}"#;
    let (stuck, said) = tokio::join!(server.call("POST", "/v1/queues/q/messages", request), async {
        // However long it takes until the driver is at the disk.
        let begun = Instant::now();
        let said = loop {
            clock.pass(Duration::from_secs(600));
            let said = server.call("GET", "/healthz", "").await;
            if said.json()["status"] == "store_hangs" {
                assert_eq!(said.status, 503);
                break said.json();
            }
            assert!(begun.elapsed() < PATIENCE, "never at the disk: {said:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        // Requests had better go elsewhere; a restart would stand before the same disk.
        let (ready, live) = (server.call("GET", "/readyz", "").await, server.call("GET", "/livez", "").await);
        assert_eq!((ready.status, &ready.json()["status"], live.status), (503, &"store_hangs".into(), 200));
        disk.set(GateRule::Open);
        said
    });
    assert!(said["tick_age_ms"].as_u64() >= Some(600_000), "{said}");
    assert!(
        said["trouble"].as_str().is_some_and(|why| why.contains("has not returned from a call")),
        "{said}"
    );
    assert_eq!(stuck.status, 201, "{stuck:?}");
    until(&server, 200, "ok").await;
}

/// Story: one shard whose store hung took its whole node out of service, and no answer said which shard it was.
#[tokio::test(flavor = "multi_thread")]
async fn hung_shard_keeps_node_ready() {
    let coordinator = MemoryCoordinator::new(Duration::from_secs(1));
    let clock = Hurried::default();
    let options = NodeOptions::new("a").shards_if_new(4);
    let open = Duewheel::builder().cluster(Arc::new(coordinator.for_a_node()), options).clock(clock.clone());
    let wheel = open.open().await.expect("wheel");
    let server = Server::over(wheel, VirtualClock::at_2026(), Policy::default(), HttpLimits::default()).await;
    until(&server, 200, "ok").await;
    coordinator.hold_append(ShardId(2));
    let request = r#"{"body": "a", "delay": "1h"}"#;
    // Messages without a key go to the shards in turn, so one of these is stuck.
    let [a, b, c, d] = [(); 4].map(|()| server.call("POST", "/v1/queues/q/messages", request));
    let (a, b, c, d, said) = tokio::join!(a, b, c, d, async {
        let begun = Instant::now();
        while !coordinator.hangs() {
            assert!(begun.elapsed() < PATIENCE, "never in the store");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        clock.pass(Duration::from_secs(600));
        // The others are late until their next round.
        let said = loop {
            let said = until(&server, 503, "store_hangs").await;
            if said["trouble"]
                .as_str()
                .is_some_and(|why| why.starts_with("shard 2: the store has not returned"))
            {
                break said;
            }
            assert!(begun.elapsed() < PATIENCE, "never named alone: {said}");
        };
        for path in ["/livez", "/readyz"] {
            assert_eq!(server.call("GET", path, "").await.status, 200, "{path}");
        }
        coordinator.let_append();
        said
    });
    assert!(said["trouble"].as_str().is_some_and(|why| why.ends_with("are served: 3")), "{said}");
    assert_eq!([a, b, c, d].map(|answer| answer.status), [201; 4]);
    until(&server, 200, "ok").await;
}

/// A store that cannot be opened again keeps health red until it can.
#[tokio::test(flavor = "multi_thread")]
async fn health_fails_while_store_unavailable() {
    let dir = tempfile::tempdir().expect("dir");
    let disk = Arc::new(gated(dir.path()));
    let wheel = Duewheel::builder().disk(disk.clone()).open().await.expect("wheel");
    let server = Server::over(wheel, VirtualClock::at_2026(), Policy::default(), HttpLimits::default()).await;
    until(&server, 200, "ok").await;
    let request = r#"{"body": "a", "delay": "1h"}"#;
    let first = server.call("POST", "/v1/queues/q/messages", request).await.json();
    disk.set(GateRule::Denied(Denial::Failed));
    let answer = server.call("POST", "/v1/queues/q/messages", request).await;
    assert_eq!((answer.status, &answer.json()["code"]), (503, &"storage_unavailable".into()));
    // Without the segments that come next the store refuses a new message by itself. It takes a cancel in any case,
    // and writes that.
    let path = format!("/v1/messages/{}", first["id"].as_str().expect("an id"));
    let answer = server.call("DELETE", &path, "").await;
    assert_eq!((answer.status, &answer.json()["code"]), (503, &"storage_unavailable".into()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = until(&server, 503, "failing").await;
        // The first try to open the folder again may meet the lock of the store that has failed.
        match said["trouble"].as_str() {
            Some(why) if why.contains("os error 5") => break,
            _ => assert!(Instant::now() < deadline, "{said}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.call("GET", path, "").await.status, 200, "{path}");
    }
    disk.set(GateRule::Open);
    until(&server, 200, "ok").await;
    assert_eq!(server.call("POST", "/v1/queues/q/messages", request).await.status, 201);
}

/// The machine's clock; the time by which hanging threads are found out can be made to pass.
#[derive(Clone, Debug, Default)]
struct Hurried(Arc<AtomicU64>);

impl Hurried {
    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_secs(), Ordering::SeqCst);
    }
}

impl Clock for Hurried {
    fn read(&self) -> ClockSample {
        SystemClock.read()
    }

    fn running(&self) -> Duration {
        SystemClock.running() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}
