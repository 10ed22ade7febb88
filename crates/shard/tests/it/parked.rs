//! A look-up that needs a slow medium delays the calls that need it, and nothing else.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use duewheel_core::engine::{Config, Enqueue, Op, Reply, Target, When};
use duewheel_core::id::MessageId;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::pass_on;
use duewheel_core::policy::Policy;
use duewheel_core::store::{
    AtHand, ErrorKind, Found, Lookups, MemoryDisk, MemoryStore, Progress, Store, StoreArrival, StoreError,
    StoreRequest,
};
use duewheel_core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use proptest::prelude::*;
use tokio::sync::oneshot;

pub(crate) const FAR: u64 = 300 * 86_400_000; // ms

/// What a slow store shows and is told.
#[derive(Debug, Default)]
pub(crate) struct Slow {
    /// Messages that must be fetched before they are found by their id or their key.
    pub(crate) cold: BTreeSet<MessageId>,
    /// Messages that cannot be read.
    broken: BTreeSet<MessageId>,
    /// What the store reports from now on, because it hangs.
    pub(crate) hangs_at: Option<Progress>,
    /// Whether what was fetched is gone from memory when it is looked up.
    forgets: bool,
    asked: VecDeque<(u64, Lookups)>,
    done: VecDeque<u64>,
    /// Look-ups of cold messages that have kept the driver waiting.
    waited: u64,
}

impl Slow {
    fn is_cold(&self, lookups: &Lookups) -> bool {
        !named(lookups).is_disjoint(&self.cold)
    }

    fn check(&self, lookups: &Lookups) -> Result<(), StoreError> {
        match named(lookups).is_disjoint(&self.broken) {
            true => Ok(()),
            false => Err(StoreError::new(ErrorKind::Unavailable, "EIO")),
        }
    }

    /// The store has fetched what it was asked for first.
    pub(crate) fn fetch(&mut self) -> bool {
        let Some((ticket, lookups)) = self.asked.pop_front() else { return false };
        if !self.forgets {
            self.cold.retain(|id| !named(&lookups).contains(id));
        }
        self.done.push_back(ticket);
        true
    }
}

/// The messages that look-ups name: the key of message 7 is `key-7`.
fn named(lookups: &Lookups) -> BTreeSet<MessageId> {
    let of_key = |key: &Key| MessageId(key.as_str()["key-".len()..].parse().unwrap());
    lookups.ids.iter().copied().chain(lookups.keys.iter().map(|(_, key)| of_key(key))).collect()
}

/// A memory store of which some messages are far away.
pub(crate) struct SlowStore(pub(crate) MemoryStore, pub(crate) Arc<Mutex<Slow>>);

impl Store for SlowStore {
    pass_on!(0: recovered append sync sync_here room room_error terms idle close figures);
    fn progress(&mut self) -> Result<Progress, StoreError> {
        let progress = self.0.progress()?;
        Ok(self.1.lock().unwrap().hangs_at.unwrap_or(progress))
    }
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        let mut slow = self.1.lock().unwrap();
        let is_cold = slow.is_cold(lookups);
        if is_cold && lookups.at_hand {
            return Ok(AtHand::No);
        }
        slow.waited += u64::from(is_cold);
        slow.check(lookups)?;
        self.0.find_many(lookups, found)
    }
    fn ask(&mut self, request: StoreRequest) -> Result<(), StoreError> {
        match request {
            StoreRequest::Fetch(ticket, lookups) => {
                self.1.lock().unwrap().asked.push_back((ticket, lookups));
                Ok(())
            }
            other => self.0.ask(other),
        }
    }
    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        let fetched = self.1.lock().unwrap().done.pop_front();
        fetched.map(|ticket| Ok(StoreArrival::Fetched(ticket))).or_else(|| self.0.arrived())
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
        let rig = Rig::of(4, Policy::default().max_batch_ops);
        rig.slow().cold.extend([MessageId(1), MessageId(2)]);
        rig
    }

    /// So many messages that are due after 300 days and are in the store alone.
    fn of(far: u64, max_batch_ops: usize) -> Self {
        Rig::with(far, Policy { max_batch_ops, ..small() })
    }

    fn with(far: u64, policy: Policy) -> Self {
        let now = Now::whole(0, 1_000);
        let slow = Arc::<Mutex<Slow>>::default();
        let mut store = SlowStore(MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {})), slow.clone());
        let recovered = store.recovered();
        let driver = Driver::new(store, recovered, Config { policy, ..Config::default() }, now).unwrap();
        let mut rig = Rig { driver, slow, now };
        while !rig.driver.is_open() {
            rig.step();
        }
        for n in 1..=far {
            let message = Enqueue { key: Some(key(n)), ..put(FAR) };
            rig.submit(vec![Op::Enqueue(Box::new(message))]).try_recv().unwrap();
        }
        for _ in 0..4 {
            let near = || Op::Enqueue(Box::new(put(60_000)));
            drop(rig.submit(vec![near(), near(), near()]));
            rig.settle(100);
        }
        rig
    }

    fn slow(&self) -> std::sync::MutexGuard<'_, Slow> {
        self.slow.lock().unwrap()
    }

    fn step(&mut self) {
        self.driver.step(self.now, &mut Vec::new()).unwrap();
    }

    fn submit(&mut self, ops: Vec<Op>) -> Pending {
        let (submission, answers) = submission(ops);
        let mut waiting = vec![submission];
        while !waiting.is_empty() {
            self.driver.step(self.now, &mut waiting).unwrap(); // the rest of a large call before it goes first
        }
        answers
    }

    /// Submits calls that one step takes.
    fn submit_all<const N: usize>(&mut self, calls: [Vec<Op>; N]) -> [Pending; N] {
        let (submissions, answers): (Vec<_>, Vec<_>) = calls.into_iter().map(submission).unzip();
        let mut submissions = submissions;
        self.driver.step(self.now, &mut submissions).unwrap();
        answers.try_into().unwrap()
    }

    /// The store has fetched what it was asked for first.
    fn fetched(&mut self) {
        assert!(self.slow().fetch(), "something is fetched");
        self.step();
        self.step();
    }

    /// The store fetches all that it is asked for, until nothing waits; at most so many steps.
    fn settle(&mut self, steps: usize) {
        for _ in 0..steps {
            if !self.driver.is_waiting_for_store() {
                return;
            }
            self.slow().fetch();
            self.step();
        }
        assert!(!self.driver.is_waiting_for_store(), "after {steps} steps something waits");
    }
}

fn submission(ops: Vec<Op>) -> (Submission, Pending) {
    let (answer, answers) = oneshot::channel();
    (Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }, answers)
}

/// Memory for four messages that are due soon.
pub(crate) fn small() -> Policy {
    let (near_messages, ready_messages, least_window, load_rows) = (4, 4, 4, 4);
    Policy { near_messages, ready_messages, least_window, load_rows, ..Policy::default() }
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key(n: u64) -> Key {
    Key::new(&format!("key-{n}")).unwrap()
}

pub(crate) fn put(ms: u64) -> Enqueue {
    Enqueue { when: When::After(ms), ..Enqueue::new(queue(), "body") }
}

fn get(id: u64) -> Op {
    Op::Get { target: Target::Id(MessageId(id)) }
}

pub(crate) fn cancel(id: u64) -> Op {
    Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Id(MessageId(id)),
    }
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
fn cold_call_does_not_block_others() {
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
fn only_cold_call_of_batch_waits() {
    let mut rig = Rig::new();
    let mut calls = rig.submit_all([vec![get(3)], vec![get(1), get(4)], vec![get(3)]]);
    let found: Vec<_> = calls.iter_mut().map(is_found).collect();
    assert_eq!(found, [Some(vec![true]), None, Some(vec![true])]);
    rig.fetched();
    assert_eq!(is_found(&mut calls[1]), Some(vec![true, true]));
}

/// The second call is decided behind the first, though what it names has been in memory since before.
#[test]
fn same_message_calls_keep_order() {
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
fn ignored_lane_mutant_is_caught() {
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
fn call_waits_behind_shared_message() {
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
fn parked_call_decides_at_its_return() {
    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(2)]);
    // A purge names no message.
    let mut purge = rig.submit(vec![Op::Purge { at_most: None, queue: queue() }]);
    assert!(matches!(purge.try_recv().unwrap()[0], Ok(Reply::Count(_))));
    rig.fetched();
    assert_eq!(is_found(&mut cold), Some(vec![false]), "it was purged");
}

/// A memory that is too small for what is fetched does not keep a call waiting for ever.
#[test]
fn repeatedly_evicted_call_waits_for_medium() {
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
fn stop_and_failure_answer_parked_calls() {
    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(1)]);
    let now = rig.now;
    rig.driver.close(now).unwrap();
    assert!(matches!(cold.try_recv().unwrap()[0], Err(CallError::Draining)));

    let mut rig = Rig::new();
    let mut cold = rig.submit(vec![cancel(1), cancel(3)]);
    let error = StoreError::new(ErrorKind::Unavailable, "EIO");
    drop(rig.driver.fail(&error));
    let answers = cold.try_recv().unwrap();
    assert_eq!(answers.len(), 2);
    for answer in answers {
        let Err(CallError::Store { outcome, .. }) = answer else { panic!("{answer:?}") };
        assert_eq!(outcome, duewheel_shard::error::Outcome::NotApplied);
    }
}

/// Story: a client's retry of a batch cancel of 1,500 cold messages. The two calls did not fit into one batch. The first
/// came back alone, and waited for the second one, which waited for the first one, for ever.
#[test]
fn retried_partial_batch_terminates() {
    let mut rig = Rig::of(4, 4);
    rig.slow().cold = (1..=3).map(MessageId).collect();
    let mut first = rig.submit([1, 2, 3].map(cancel).to_vec());
    let mut second = rig.submit([3, 1, 2].map(cancel).to_vec());
    rig.settle(20);
    assert_eq!(is_found(&mut first), Some(vec![true; 3]));
    assert_eq!(is_found(&mut second), Some(vec![false; 3]));
}

/// The mutant has the order of that time; this test and the simulation notice it.
#[test]
#[should_panic(expected = "something waits")]
fn waiting_for_later_calls_is_caught() {
    mutant::choose(Some(Mutant::WaitsForLater));
    let mut rig = Rig::of(4, 4);
    rig.slow().cold = (1..=3).map(MessageId).collect();
    let _calls = [(); 2].map(|()| rig.submit([1, 2, 3].map(cancel).to_vec()));
    rig.settle(20);
}

/// Story: a producer sends the same 3,000 enqueues of pending keys three times.
#[test]
fn repeated_enqueues_of_cold_keys_end() {
    let mut rig = Rig::of(8, 4);
    rig.slow().cold = (1..=8).map(MessageId).collect();
    let keep = |n| {
        let if_exists = duewheel_core::engine::IfExists::Keep;
        Op::Enqueue(Box::new(Enqueue { key: Some(key(n)), if_exists, ..put(FAR) }))
    };
    let mut calls = [(); 3].map(|()| rig.submit((1..=6).map(keep).collect()));
    let mut other = rig.submit(vec![get(7)]);
    rig.settle(40);
    assert_eq!(calls.each_mut().map(is_found), [(); 3].map(|()| Some(vec![true; 6])));
    assert_eq!(is_found(&mut other), Some(vec![true]));
}

/// An operation of the property below: a cancel or a get, by id or by key.
#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u64,
    cancels: bool,
}

fn calls_of_shared_names() -> impl Strategy<Value = Vec<(Vec<Asked>, bool)>> {
    let op = (1..=6u64, any::<bool>()).prop_map(|(id, cancels)| Asked { id, cancels });
    let call = proptest::collection::vec(op, 1..10);
    // Whether the store has fetched something when the next call arrives.
    proptest::collection::vec((call, any::<bool>()), 1..12)
}

proptest! {
    /// With calls of all sizes around that of a batch: each ends, and what one message is asked for is decided in the
    /// order of arrival.
    #[test]
    fn overlapping_calls_end_in_order(
        calls in calls_of_shared_names(),
        cold in proptest::collection::btree_set(1..=6u64, 0..6),
        forgets in any::<bool>(),
        max_step in 1..6usize,
    ) {
        // With few records to a step, a batch takes several.
        let mut rig = Rig::with(6, Policy { max_batch_ops: 4, max_step, ..small() });
        rig.slow().cold = cold.into_iter().map(MessageId).collect();
        rig.slow().forgets = forgets;
        let mut answers = Vec::new();
        for (call, fetched) in &calls {
            let op = |asked: &Asked| if asked.cancels { cancel(asked.id) } else { get(asked.id) };
            answers.push(rig.submit(call.iter().map(op).collect()));
            if *fetched {
                rig.slow().fetch();
            }
        }
        let ops: usize = calls.iter().map(|(call, _)| call.len()).sum();
        rig.settle(4 * ops + 10);
        let mut pending: BTreeSet<u64> = (1..=6).collect();
        for ((call, _), answer) in calls.iter().zip(&mut answers) {
            let expected: Vec<bool> = call
                .iter()
                .map(|Asked { id, cancels }| if *cancels { pending.remove(id) } else { pending.contains(id) })
                .collect();
            prop_assert_eq!(is_found(answer), Some(expected));
        }
    }
}

/// A step takes time by what it decides, not by what waits: it lets out no more than a batch.
#[test]
fn a_step_lets_out_one_batch() {
    let mut rig = Rig::of(4, 4);
    rig.slow().cold = [MessageId(1)].into();
    let mut calls: Vec<Pending> = (0..20).map(|_| rig.submit(vec![get(1)])).collect();
    rig.slow().fetch();
    rig.step();
    let ended = calls.iter_mut().filter_map(is_found).count();
    assert_eq!(ended, 4);
    rig.settle(10);
}

/// Story: after a look-up that failed, calls were looked up one by one, and overtook the one that waited.
#[test]
fn failed_lookups_keep_the_order() {
    let mut rig = Rig::new();
    rig.slow().broken = [MessageId(3)].into();
    let [mut first, mut failed, mut second] = rig.submit_all([vec![cancel(1)], vec![get(3)], vec![get(1)]]);
    rig.step();
    assert!(matches!(failed.try_recv().unwrap()[0], Err(CallError::Store { .. })));
    assert_eq!([&mut first, &mut second].map(is_found), [None, None]);
    rig.settle(10);
    assert_eq!(is_found(&mut first), Some(vec![true]));
    assert_eq!(is_found(&mut second), Some(vec![false]), "it was cancelled before");
}
