//! What `/healthz` says when something is wrong, and that it says so only as long as it is.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use duewheel::core::id::ShardId;
use duewheel::store_log::disk::{Disk, DiskFile, FileAccess, HeldLock, LockKind, RealDisk};
use duewheel::testing::MemoryCoordinator;
use duewheel::{Clock, Duewheel, NodeOptions, Policy, Reading, SystemClock, VirtualClock};
use duewheel_server::http::HttpLimits;
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

/// Waits until the journal has its next segments: a disk that fails while they are made has too little room, and says so.
async fn until_prepared(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    let ready = |metrics: &str| metrics.lines().any(|line| line == "duewheel_store_journal_segments 3");
    while !ready(&String::from_utf8_lossy(&server.call("GET", "/metrics", "").await.body)) {
        assert!(Instant::now() < deadline, "the next segments are never made");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_red_after_a_bug_and_says_which() {
    let server = Server::start().await;
    until(&server, 200, "ok").await;
    server.app.set_failing("a bug in duewheel: a thread has panicked");
    server.app.set_failing("and what came of it");
    let said = until(&server, 503, "failing").await;
    assert_eq!(said["trouble"], "a bug in duewheel: a thread has panicked", "the first reason counts");
}

/// Story: a disk that did not return from a call for two minutes had the server killed, and the next one stood before the same disk.
///
/// A driver that does not come round any more is found out by the age of its last round; when it goes on, all is well again.
#[tokio::test(flavor = "multi_thread")]
async fn health_is_red_while_the_driver_is_stuck_and_green_afterwards() {
    let dir = tempfile::tempdir().expect("dir");
    let disk = Arc::new(SlowDisk { real: RealDisk::new(&dir.path().join("data")), gate: Arc::default() });
    let clock = Hurried::default();
    let open = Duewheel::builder().disk(disk.clone()).clock(clock.clone()).open();
    let wheel = open.await.expect("wheel");
    let server = Server::over(wheel, VirtualClock::at_2026(), Policy::default(), HttpLimits::default()).await;
    until(&server, 200, "ok").await;
    disk.gate.close();
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
        disk.gate.open();
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
async fn one_shard_whose_store_hangs_is_named_and_its_node_stays_ready() {
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
async fn health_is_red_while_the_store_is_gone_and_green_afterwards() {
    let dir = tempfile::tempdir().expect("dir");
    let disk = Arc::new(SlowDisk { real: RealDisk::new(&dir.path().join("data")), gate: Arc::default() });
    let wheel = Duewheel::builder().disk(disk.clone()).open().await.expect("wheel");
    let server = Server::over(wheel, VirtualClock::at_2026(), Policy::default(), HttpLimits::default()).await;
    until(&server, 200, "ok").await;
    until_prepared(&server).await;
    disk.gate.take_away();
    let request = r#"{"body": "a", "delay": "1h"}"#;
    let answer = server.call("POST", "/v1/queues/q/messages", request).await;
    assert_eq!((answer.status, &answer.json()["code"]), (503, &"storage_unavailable".into()));
    let said = until(&server, 503, "failing").await;
    assert!(said["trouble"].as_str().is_some_and(|why| why.contains("os error 5")), "{said}");
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.call("GET", path, "").await.status, 200, "{path}");
    }
    disk.gate.open();
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
    fn read(&self) -> Reading {
        SystemClock.read()
    }

    fn running(&self) -> Duration {
        SystemClock.running() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

/// A disk whose writes can be made to wait, or to fail.
#[derive(Debug)]
struct SlowDisk {
    real: RealDisk,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<Way>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Open,
    Closed,
    Gone,
}

impl Gate {
    fn set(&self, way: Way) {
        *self.state.lock().expect("gate") = way;
        self.changed.notify_all();
    }

    fn close(&self) {
        self.set(Way::Closed);
    }

    fn take_away(&self) {
        self.set(Way::Gone);
    }

    fn open(&self) {
        self.set(Way::Open);
    }

    fn pass(&self) -> io::Result<()> {
        let state = self.state.lock().expect("gate");
        match *self.changed.wait_while(state, |way| *way == Way::Closed).expect("gate") {
            Way::Gone => Err(io::Error::from_raw_os_error(5)),
            Way::Open | Way::Closed => Ok(()),
        }
    }
}

#[derive(Debug)]
struct SlowFile {
    real: Arc<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl Disk for SlowDisk {
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.real.make_dir(dir)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.real.list(dir)
    }

    fn lock(&self, name: &str, hold: LockKind) -> io::Result<Box<dyn HeldLock>> {
        self.real.lock(name, hold)
    }

    fn open(&self, name: &str, access: FileAccess) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile { real: self.real.open(name, access)?, gate: self.gate.clone() }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SlowFile { real: self.real.create(name)?, gate: self.gate.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.real.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.real.remove(name)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.real.sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.real.free_bytes()
    }

    fn unique(&self) -> u64 {
        self.real.unique()
    }
}

impl DiskFile for SlowFile {
    fn size(&self) -> io::Result<u64> {
        self.real.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        self.real.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.gate.pass()?;
        self.real.write_at(bytes, at)
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        self.real.allocate(bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.real.sync_data()
    }
}
