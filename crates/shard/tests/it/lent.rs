//! Turns that callers take while the thread of a shard sleeps.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use duewheel_core::engine::{Config, Op, Reply, Reserve};
use duewheel_core::pass_on;
use duewheel_core::record::Group;
use duewheel_core::store::{Level, MemoryDisk, MemoryStore, Store, StoreError};
use duewheel_shard::client::Client;
use duewheel_shard::clock::VirtualClock;
use duewheel_shard::error::CallError;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::inbox::{Answers, Pending, WhenBusy};
use duewheel_shard::runner::{Runner, WhenFenced};
use duewheel_shard::shared::DriverShared;
use duewheel_shard::thread::Shard;

use crate::driver::{grants, put, reserve};

/// A store that syncs on its owner's thread, but hands every third sync to another one.
struct SyncsHere {
    store: MemoryStore,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    disk: MemoryDisk,
    syncs: AtomicUsize,
    /// A sync was requested that another thread makes.
    requested: AtomicBool,
    /// Where the last group was appended.
    appended_by: Mutex<Option<ThreadId>>,
    panics: AtomicBool,
}

impl Store for SyncsHere {
    fn append(&mut self, group: &Group) -> Result<(), StoreError> {
        assert!(!self.seen.panics.load(SeqCst), "the test wants it");
        *self.seen.appended_by.lock().unwrap() = Some(thread::current().id());
        self.store.append(group)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.store.sync()?;
        self.seen.requested.store(true, SeqCst);
        Ok(())
    }

    fn sync_here(&mut self) -> Result<(), StoreError> {
        if self.seen.syncs.fetch_add(1, SeqCst) % 3 == 2 {
            return self.sync();
        }
        self.store.sync()?;
        self.seen.disk.complete_sync();
        Ok(())
    }

    pass_on!(store: recovered progress room room_error terms find_many ask arrived idle close figures);
}

struct Rig {
    client: Client,
    shared: Arc<DriverShared>,
    seen: Arc<Seen>,
    waker: duewheel_core::store::Waker,
}

impl Rig {
    /// The clock stands: the thread sleeps until it is woken.
    fn new() -> Self {
        let (seen, woken) = (Arc::<Seen>::default(), Arc::new(Mutex::new(None)));
        seen.disk.claim(Level::Fsync);
        seen.disk.sync_by_hand();
        let (of_store, of_rig) = (Arc::clone(&seen), Arc::clone(&woken));
        let opener = Box::new(move |waker| {
            *of_rig.lock().unwrap() = Some(waker);
            let store = MemoryStore::open(&of_store.disk, Arc::new(|| {}));
            Ok(Box::new(SyncsHere { store, seen: Arc::clone(&of_store) }) as Box<dyn Store>)
        });
        let clock = Arc::new(VirtualClock::at_2026());
        let shard =
            Shard::start(opener, Config::default(), QuotaSource::default(), clock, WhenFenced::End).unwrap();
        let (inbox, shared) = shard.hand_on();
        let client = Client::new(inbox, shared.clone()).served_here();
        let waker = woken.lock().unwrap().take().unwrap();
        Rig { client, shared, seen, waker }
    }

    /// Makes the syncs that were requested from another thread.
    fn sync(&self) {
        if self.seen.requested.swap(false, SeqCst) {
            self.seen.disk.complete_sync();
            (self.waker)();
        }
    }

    fn call(&self, op: Op) -> Answers {
        let mut pending = self.client.submit(vec![op]).unwrap();
        poll_for_a_minute(|| {
            self.sync();
            answered(&mut pending)
        })
    }
}

fn reserve_one() -> Op {
    match reserve(0) {
        Op::Reserve(demand) => Op::Reserve(Reserve { max: 1, ..demand }),
        other => other,
    }
}

fn answered(pending: &mut Pending) -> Option<Answers> {
    match Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answers) => Some(answers),
        Poll::Pending => None,
    }
}

fn poll_for_a_minute<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    for _ in 0..600_000 {
        if let Some(found) = poll() {
            return found;
        }
        thread::park_timeout(Duration::from_micros(100));
    }
    panic!("not within a minute");
}

/// Story: a lent turn whose sync another thread made left the rest to the shard's thread, which slept on because
/// nothing lay in the inbox. The answer came with the thread's next turn, a second later.
#[test]
fn no_call_is_lost_between_threads() {
    let rig = Rig::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let answers = rig.call(put(0));
                    assert!(matches!(answers[0], Ok(Reply::Enqueue(Ok(_)))), "{answers:?}");
                    assert_eq!(grants(rig.call(reserve_one())), 1, "as many as messages");
                }
            });
        }
    });
}

#[test]
fn lent_panic_ends_shard_not_caller() {
    let rig = Rig::new();
    let here = Some(thread::current().id());
    poll_for_a_minute(|| {
        rig.call(put(0));
        (*rig.seen.appended_by.lock().unwrap() == here).then_some(())
    });
    rig.seen.panics.store(true, SeqCst);
    let answers = rig.call(put(0));
    assert!(matches!(answers[0], Err(CallError::Lost(_) | CallError::Closed(_))), "{answers:?}");
    poll_for_a_minute(|| rig.shared.has_ended().then_some(()));
    let trouble = rig.shared.health().trouble.unwrap();
    assert!(trouble.contains("the test wants it"), "{trouble}");
    assert!(rig.client.submit(vec![put(0)]).is_err());
}

#[test]
fn crowd_of_callers_takes_no_turns() {
    let disk = MemoryDisk::default();
    let opener = Box::new(move |waker| Ok(Box::new(MemoryStore::open(&disk, waker)) as Box<dyn Store>));
    let clock = Arc::new(VirtualClock::at_2026());
    let mut runner = Runner::start(opener, Config::default(), clock).unwrap();
    while runner.opening().unwrap().is_some() {}
    let client = runner.client();
    let mut lends_after = |callers: usize| {
        let _answers: Vec<Pending> = (0..callers)
            .map(|_| client.offer(vec![put(0)], WhenBusy::Refuse).unwrap_or_else(|_| panic!("a full inbox")))
            .collect();
        runner.turn();
        runner.is_lone()
    };
    assert!(lends_after(1));
    assert!(!lends_after(6));
    assert!(!lends_after(1), "a crowd has gaps");
    assert!((0..6).any(|_| lends_after(1)), "until one caller is left");
}
