//! A look-up that needs a slow medium delays the calls that need it, and nothing else.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use duewheel_core::engine::{Config, Enqueue, Op, Reply, Target, When};
use duewheel_core::id::MessageId;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::policy::Policy;
use duewheel_core::store::{AtHand, Found, Lookups, MemoryDisk, MemoryStore, Store, StoreError};
use duewheel_core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use tokio::sync::oneshot;

const FAR: u64 = 300 * 86_400_000; // ms

/// What a slow store shows and is told.
#[derive(Debug, Default)]
struct Slow {
    /// Messages that must be fetched before they are found.
    cold: BTreeSet<MessageId>,
    /// Whether what was fetched is gone from memory when it is looked up.
    forgets: bool,
    asked: VecDeque<(u64, Lookups)>,
    done: VecDeque<u64>,
    /// Look-ups of cold messages that have kept the driver waiting.
    waited: u64,
}

/// A memory store of which some messages are far away.
struct SlowStore(MemoryStore, Arc<Mutex<Slow>>);

impl Store for SlowStore {
    pass_on!(0: recovered append sync progress room load loaded idle close level figures);
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<(), StoreError> {
        let mut slow = self.1.lock().unwrap();
        slow.waited += u64::from(lookups.ids.iter().any(|id| slow.cold.contains(id)));
        self.0.find_many(lookups, found)
    }
    fn find_at_hand(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        if lookups.ids.iter().any(|id| self.1.lock().unwrap().cold.contains(id)) {
            return Ok(AtHand::No);
        }
        self.0.find_many(lookups, found).map(|()| AtHand::Yes)
    }
    fn fetch(&mut self, ticket: u64, lookups: Lookups) -> Result<(), StoreError> {
        self.1.lock().unwrap().asked.push_back((ticket, lookups));
        Ok(())
    }
    fn fetched(&mut self) -> Option<u64> {
        self.1.lock().unwrap().done.pop_front()
    }
}

struct Rig {
    driver: Driver<SlowStore>,
    slow: Arc<Mutex<Slow>>,
    now: Now,
}

type Pending = oneshot::Receiver<Answers>;

impl Rig {
    /// Four messages that are due after 300 days and are in the store alone; the first two are cold.
    fn new() -> Self {
        let now = Now::whole(0, 1_000);
        let slow = Arc::<Mutex<Slow>>::default();
        let mut store = SlowStore(MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {})), slow.clone());
        let recovered = store.recovered();
        let policy = Policy {
            near_messages: 4,
            ready_messages: 4,
            least_window: 4,
            load_rows: 4,
            ..Policy::default()
        };
        let driver = Driver::new(store, recovered, Config { policy, ..Config::default() }, now).unwrap();
        let mut rig = Rig { driver, slow, now };
        while !rig.driver.is_open() {
            rig.step();
        }
        let far = |n| Op::Enqueue(Box::new(Enqueue { key: Some(key(n)), ..put(FAR) }));
        assert_eq!(rig.submit((1..=4).map(far).collect()).try_recv().unwrap().len(), 4);
        for _ in 0..4 {
            let near = || Op::Enqueue(Box::new(put(60_000)));
            rig.submit(vec![near(), near(), near()]).try_recv().unwrap();
        }
        rig.slow().cold.extend([MessageId(1), MessageId(2)]);
        rig
    }

    fn slow(&self) -> std::sync::MutexGuard<'_, Slow> {
        self.slow.lock().unwrap()
    }

    fn step(&mut self) {
        self.driver.step(self.now, &mut Vec::new()).unwrap();
    }

    fn submit(&mut self, ops: Vec<Op>) -> Pending {
        let (answer, answers) = oneshot::channel();
        let submission = Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false };
        self.driver.step(self.now, &mut vec![submission]).unwrap();
        answers
    }

    /// The store has fetched what it was asked for first.
    fn fetched(&mut self) {
        let mut slow = self.slow();
        let (ticket, lookups) = slow.asked.pop_front().expect("something is fetched");
        if !slow.forgets {
            slow.cold.retain(|id| !lookups.ids.contains(id));
        }
        slow.done.push_back(ticket);
        drop(slow);
        self.step();
        self.step();
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key(n: u64) -> Key {
    Key::new(&format!("key-{n}")).unwrap()
}

fn put(ms: u64) -> Enqueue {
    Enqueue { when: When::After(ms), ..Enqueue::new(queue(), "body") }
}

fn get(id: u64) -> Op {
    Op::Get { target: Target::Id(MessageId(id)) }
}

fn cancel(id: u64) -> Op {
    Op::Cancel { target: Target::Id(MessageId(id)) }
}

fn is_found(answers: &mut Pending) -> Option<Vec<bool>> {
    let answers = answers.try_recv().ok()?;
    let found = answers.into_iter().map(|answer| match answer {
        Ok(Reply::View(view)) => view.is_some(),
        Ok(Reply::Change(change)) => change.is_ok(),
        Ok(Reply::Enqueue(enqueued)) => enqueued.is_ok(),
        other => panic!("{other:?}"),
    });
    Some(found.collect())
}

/// Story: a cancel of a message that was read from a disk for 10 ms kept each enqueue of that time waiting.
#[test]
fn what_needs_the_medium_waits_and_the_others_go_on() {
    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(1)]);
    assert_eq!(is_found(&mut cold), None);
    assert!(rig.driver.is_waiting_for_store());
    assert_eq!(rig.driver.next_wakeup(rig.now).filter(|at| *at <= rig.now.engine), None, "nothing to do yet");
    assert_eq!(
        is_found(&mut rig.submit(vec![get(3), Op::Enqueue(Box::new(put(0)))])),
        Some(vec![true, true])
    );
    rig.fetched();
    assert_eq!(is_found(&mut cold), Some(vec![true]));
    assert!(rig.slow().asked.is_empty());
    assert_eq!(rig.slow().waited, 0, "the driver has waited");
}

/// In one batch, too: only the call that names the cold message waits.
#[test]
fn of_a_batch_the_cold_call_alone_waits() {
    let mut rig = Rig::new();
    let mut calls = Vec::new();
    let mut submissions: Vec<Submission> = [vec![get(3)], vec![get(1), get(4)], vec![get(3)]]
        .into_iter()
        .map(|ops| {
            let (answer, answers) = oneshot::channel();
            calls.push(answers);
            Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }
        })
        .collect();
    rig.driver.step(rig.now, &mut submissions).unwrap();
    let found: Vec<_> = calls.iter_mut().map(is_found).collect();
    assert_eq!(found, [Some(vec![true]), None, Some(vec![true])]);
    rig.fetched();
    assert_eq!(is_found(&mut calls[1]), Some(vec![true, true]));
}

/// The second call is decided behind the first, though what it names has been in memory since before.
#[test]
fn calls_that_name_the_same_message_keep_their_order() {
    let mut rig = Rig::new();
    let mut first = rig.submit(vec![cancel(1)]);
    rig.slow().cold.clear();
    let mut second = rig.submit(vec![get(1), get(3)]);
    let mut third = rig.submit(vec![get(3)]);
    let mut other = rig.submit(vec![get(4)]);
    let both = [&mut first, &mut second].map(is_found);
    assert_eq!((both, is_found(&mut third), is_found(&mut other)), ([None, None], None, Some(vec![true])));
    rig.fetched();
    rig.step();
    assert_eq!(is_found(&mut first), Some(vec![true]));
    assert_eq!(is_found(&mut second), Some(vec![false, true]), "it was cancelled before");
    assert_eq!(is_found(&mut third), Some(vec![true]), "it waits for a call that waits");
}

/// The bug that the tests of the order must notice: the second call overtakes the first.
#[test]
fn a_mutant_that_ignores_the_lane_is_caught() {
    mutant::choose(Some(Mutant::LaneIgnored));
    let mut rig = Rig::new();
    let mut first = rig.submit(vec![cancel(1)]);
    rig.slow().cold.clear();
    let mut second = rig.submit(vec![get(1)]);
    let both = [&mut first, &mut second].map(is_found);
    mutant::choose(None);
    assert_eq!(both, [None, Some(vec![true])]);
}

/// What a waiting call names counts, whether it was found or not.
#[test]
fn a_call_waits_behind_one_that_names_a_message_in_memory() {
    let mut rig = Rig::new();
    let mut first = rig.submit(vec![cancel(16), cancel(1)]);
    let mut second = rig.submit(vec![get(16)]);
    assert_eq!([&mut first, &mut second].map(is_found), [None, None]);
    rig.fetched();
    rig.step();
    assert_eq!(is_found(&mut first), Some(vec![true, true]));
    assert_eq!(is_found(&mut second), Some(vec![false]), "it was cancelled before");
}

/// What was found when a call began to wait does not count: it is looked up again.
#[test]
fn a_call_that_has_waited_is_decided_as_of_its_return() {
    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(2)]);
    // A purge names no message.
    let mut purge = rig.submit(vec![Op::Purge { queue: queue() }]);
    assert!(matches!(purge.try_recv().unwrap()[0], Ok(Reply::Count(_))));
    rig.fetched();
    assert_eq!(is_found(&mut cold), Some(vec![false]), "it was purged");
}

/// A memory that is too small for what is fetched does not keep a call waiting for ever.
#[test]
fn a_call_that_was_fetched_in_vain_waits_for_the_medium_in_the_end() {
    let mut rig = Rig::new();
    rig.slow().forgets = true;
    let mut cold = rig.submit(vec![get(1)]);
    rig.fetched();
    assert_eq!(is_found(&mut cold), None);
    rig.fetched();
    assert_eq!(is_found(&mut cold), Some(vec![true]));
    assert!(rig.slow().asked.is_empty());
    assert_eq!(rig.slow().waited, 1);
}

/// A stop and a failure tell each caller that nothing was done.
#[test]
fn calls_that_wait_are_told_of_a_stop_and_of_a_failure() {
    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(1)]);
    let now = rig.now;
    rig.driver.close(now).unwrap();
    assert!(matches!(cold.try_recv().unwrap()[0], Err(CallError::Draining)));

    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(1), cancel(3)]);
    let error = StoreError::new(duewheel_core::store::ErrorKind::Unavailable, "EIO");
    drop(rig.driver.fail(&error));
    let answers = cold.try_recv().unwrap();
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let Err(CallError::Store { outcome, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(outcome, duewheel_shard::error::Outcome::NotApplied);
    }
}
