//! Health shows a driver that completes rounds, but no call.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duewheel_core::engine::{Config, Enqueue, Op};
use duewheel_core::id::{Lsn, MessageId};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::policy::Policy;
use duewheel_core::store::{Level, MemoryDisk, MemoryStore, Progress};
use duewheel_shard::client::{Client, Reserve};
use duewheel_shard::clock::{Clock, ClockSample};
use duewheel_shard::runner::Runner;
use duewheel_shard::shared::{Health, ThreadIn};

use crate::parked::{FAR, Slow, SlowStore, cancel, put, queue, small};

/// A clock that the test moves.
#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn read(&self) -> ClockSample {
        let ns = self.0.load(Relaxed) * 1_000_000;
        ClockSample { elapsed_ns: ns, wall_ns: ns }
    }
    fn running(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }
}

struct Rig {
    runner: Runner,
    client: Client,
    clock: Arc<Hands>,
    slow: Arc<Mutex<Slow>>,
}

impl Rig {
    /// Four messages are in the store alone, and slow to find.
    fn new() -> Self {
        let (clock, slow) = (Arc::<Hands>::default(), Arc::<Mutex<Slow>>::default());
        let (disk, shared) = (MemoryDisk::default(), Arc::clone(&slow));
        let opener = Box::new(move |waker| {
            Ok(Box::new(SlowStore(MemoryStore::open(&disk, waker), Arc::clone(&shared))) as Box<_>)
        });
        let config = Config { policy: Policy { max_batch_ops: 4, ..small() }, ..Config::default() };
        let mut runner = Runner::start(opener, config, Arc::clone(&clock) as Arc<_>).unwrap();
        while runner.opening().unwrap().is_some() {}
        let mut rig = Rig { client: runner.client(), runner, clock, slow };
        for delay in [FAR, 60_000] {
            for _ in 0..4 {
                drop(rig.client.submit(vec![enqueue(delay), enqueue(delay)]).unwrap());
                rig.pass(2);
            }
        }
        rig.slow.lock().unwrap().cold = (1..=4).map(MessageId).collect();
        rig
    }

    /// Lets so many ms pass, with a round in each.
    fn pass(&mut self, ms: u64) -> (u64, u64, ThreadIn) {
        for _ in 0..ms {
            self.clock.0.fetch_add(1, Relaxed);
            let _ = self.runner.turn();
        }
        let Health { tick_age_ms, quiet_ms, thread, .. } = self.client.health();
        (tick_age_ms, quiet_ms, thread)
    }
}

fn enqueue(delay: u64) -> Op {
    Op::Enqueue(Box::new(Enqueue { ..put(delay) }))
}

/// Story: two calls that each waited for the other one kept the thread busy for ever, and `/readyz` was green.
#[test]
fn a_livelock_is_no_activity() {
    let mut rig = Rig::new();
    let both = || [[1, 2, 3], [3, 1, 2]].map(|ids| rig.client.submit(ids.map(cancel).to_vec()).unwrap());
    let calls = both();
    rig.pass(10);
    mutant::choose(Some(Mutant::WaitsForLater));
    rig.slow.lock().unwrap().fetch();
    let stuck = rig.pass(6_000);
    mutant::choose(None);
    assert_eq!(stuck, (5_999, 5_999, ThreadIn::Ours));
    assert_eq!(rig.pass(2), (0, 0, ThreadIn::Ours));
    drop(calls);
}

/// Story: while a sync hung on a thread of the store, each probe said that all was well.
#[test]
fn a_sync_that_hangs_is_seen() {
    let mut rig = Rig::new();
    let before = Progress { written: Lsn(0), durable: Lsn(0), level: Level::Memory };
    rig.slow.lock().unwrap().hangs_at = Some(before);
    let call = rig.client.submit(vec![enqueue(FAR)]).unwrap();
    let (age, quiet, thread) = rig.pass(6_000);
    assert!(age >= 5_990, "{age}");
    assert_eq!((quiet, thread), (0, ThreadIn::Unreported));
    rig.slow.lock().unwrap().hangs_at = None;
    assert_eq!(rig.pass(2), (0, 0, ThreadIn::Ours));
    drop(call);
}

/// A look-up that the store never fetches is a store that hangs.
#[test]
fn a_fetch_that_hangs_is_seen() {
    let mut rig = Rig::new();
    let call = rig.client.submit(vec![cancel(1)]).unwrap();
    let (age, quiet, thread) = rig.pass(6_000);
    assert!(age >= 5_990, "{age}");
    assert_eq!((quiet, thread), (0, ThreadIn::Unreported));
    rig.slow.lock().unwrap().fetch();
    assert_eq!(rig.pass(2), (0, 0, ThreadIn::Ours));
    drop(call);
}

#[test]
fn reserves_that_wait_are_no_trouble() {
    let mut rig = Rig::new();
    let demand = || Reserve { wait_ms: 600_000, ..Reserve::new(queue()) };
    let client = rig.client.clone();
    let mut waits: Vec<_> = (0..100).map(|_| Box::pin(client.reserve(demand()))).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(rig.pass(20_000), (0, 0, ThreadIn::Ours));
}
