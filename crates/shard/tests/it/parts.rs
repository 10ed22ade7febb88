//! A batch that names messages that weigh more than memory may hold is decided in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use duewheel_core::engine::{Config, Enqueue, Op, Reply, Target, When};
use duewheel_core::id::{MessageId, SessionId};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::pass_on;
use duewheel_core::policy::Policy;
use duewheel_core::store::{AtHand, Found, Lookups, MemoryDisk, MemoryStore, Store, StoreError};
use duewheel_core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use tokio::sync::oneshot;

const MESSAGES: u64 = 300;
const BODY: usize = 1_000;
const FOUND: usize = 40 * BODY;

/// A memory store, and the greatest weight that one call of `find_many` has brought.
struct Weighed(MemoryStore, Arc<AtomicUsize>);

impl Store for Weighed {
    pass_on!(0: recovered append sync sync_here progress room room_error terms ask arrived idle close figures);
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        self.0.find_many(lookups, found)?;
        let weight = found.rows.iter().map(|row| row.message.weight()).sum();
        self.1.fetch_max(weight, Relaxed);
        Ok(AtHand::Yes)
    }
}

struct Rig {
    driver: Driver<Weighed>,
    heaviest: Arc<AtomicUsize>,
    now: Now,
}

impl Rig {
    /// Memory reaches so far ahead that none of the messages is in it.
    fn new() -> Self {
        Self::of(FOUND, 2)
    }

    fn of(found_bytes: usize, load_rows: usize) -> Self {
        let now = Now::whole(0, 1_000);
        let heaviest = Arc::<AtomicUsize>::default();
        let mut store = Weighed(MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {})), heaviest.clone());
        let recovered = store.recovered();
        let policy = Policy {
            near_messages: 2,
            near_bytes: 2 * BODY,
            load_rows,
            found_bytes,
            max_batch_ops: 2_048,
            ..Policy::default()
        };
        let config = Config { policy, ..Config::default() };
        let driver = Driver::new(store, recovered, config, now).unwrap();
        let mut rig = Rig { driver, heaviest, now };
        while !rig.driver.is_open() {
            rig.driver.step(now, &mut Vec::new()).unwrap();
        }
        rig
    }

    /// The answers to operations that are submitted together, and the steps that it took.
    fn submit(&mut self, ops: Vec<Op>) -> (Answers, usize) {
        let (answer, mut answers) = oneshot::channel();
        let mut submissions = vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }];
        for steps in 1..10_000 {
            self.driver.step(self.now, &mut submissions).unwrap();
            if let Ok(answers) = answers.try_recv() {
                return (answers, steps);
            }
            let at_once = self.driver.next_wakeup(self.now) == Some(self.now.engine);
            assert!(at_once || self.driver.engine().has_questions(), "there is more to do");
        }
        panic!("no answer");
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn key(id: u64) -> Key {
    Key::new(&format!("key-{id}")).unwrap()
}

fn filled() -> Rig {
    fill(Rig::new())
}

fn fill(mut rig: Rig) -> Rig {
    let put = |id| {
        let when = When::After(3_600_000 + id);
        Op::Enqueue(Box::new(Enqueue { key: Some(key(id)), when, ..Enqueue::new(queue(), vec![b'a'; BODY]) }))
    };
    let (answers, _) = rig.submit((1..=MESSAGES).map(put).collect());
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Reply::Enqueue(Ok(_))))));
    rig.heaviest.store(0, Relaxed);
    rig
}

/// Story: the driver looked up everything that a batch named in one call. A cancel of 10,000 keys with bodies of 250 kB
/// took more than 3 GB of memory.
#[test]
fn batch_lookup_memory_is_bounded() {
    let by_key = |id| Target::Key(queue(), key(id));
    let by_id = |id| Target::Id(MessageId(id));
    for target in [&by_key as &dyn Fn(u64) -> Target, &by_id] {
        let mut rig = filled();
        let (answers, steps) = rig.submit(
            (1..=MESSAGES)
                .map(|id| Op::Cancel {
                    keep: None,
                    dedupe_id: duewheel_core::engine::DedupeId::Stays,
                    target: target(id),
                })
                .collect(),
        );
        for (id, answer) in (1..).zip(&answers) {
            let Ok(Reply::Change(Ok(was))) = answer else { panic!("{id}: {answer:?}") };
            assert_eq!((was.id, was.key.as_ref()), (MessageId(id), Some(&key(id))));
        }
        assert_eq!(answers.len(), 300);
        let heaviest = rig.heaviest.load(Relaxed);
        assert!((BODY..2 * FOUND).contains(&heaviest), "{heaviest} bytes at once");
        assert!(steps >= 5, "the inbox is looked at between two parts: {steps}");
        let (answers, _) = rig.submit(
            (1..=MESSAGES)
                .map(|id| Op::Cancel {
                    keep: None,
                    dedupe_id: duewheel_core::engine::DedupeId::Stays,
                    target: target(id),
                })
                .collect(),
        );
        assert!(answers.iter().all(|answer| matches!(answer, Ok(Reply::Change(Err(_))))), "each is gone");
    }
}

/// The parts are decided in order: what is done to one message twice in a batch counts in that order.
#[test]
fn batch_parts_keep_order() {
    let mut rig = filled();
    let fire = |id| Op::Fire { target: Target::Id(MessageId(id)) };
    let cancel = |id| Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Key(queue(), key(id)),
    };
    let ops = (1..=MESSAGES).flat_map(|id| [fire(id), cancel(id), fire(id)]).collect();
    let (answers, _) = rig.submit(ops);
    for three in answers.chunks(3) {
        let done = three.iter().map(|a| matches!(a, Ok(Reply::Change(Ok(_))))).collect::<Vec<_>>();
        assert_eq!(done, [true, true, false]);
    }
}

/// Messages brought back from the dead are looked up in parts, too, and none is left out.
#[test]
fn many_are_redriven_in_parts() {
    let mut rig = filled();
    bury_all(&mut rig);
    let (answers, _) = rig.submit(vec![Op::RedriveMany { queue: queue(), max: 10_000 }]);
    assert!(matches!(answers[0], Ok(Reply::Count(n)) if *n == MESSAGES), "{answers:?}");
    assert!(rig.heaviest.load(Relaxed) < 2 * FOUND);
}

/// Buries each message.
fn bury_all(rig: &mut Rig) {
    let reserve = |id| Op::ReserveOne { id: MessageId(id), session: SessionId(7), lease_ms: None };
    rig.submit((1..=MESSAGES).map(reserve).collect());
    let bury = |id| Op::Bury {
        id: MessageId(id),
        proof: duewheel_core::engine::Proof::Session(SessionId(7)),
        priority: None,
        note: "".into(),
    };
    rig.submit((1..=MESSAGES).map(bury).collect());
    rig.heaviest.store(0, Relaxed);
}

/// Story: a fire of many left the look-ups of its last messages to later batches. A call that named one of them looked
/// it up, found it, and waited for the fire all the same, and with it all calls that came later.
#[test]
fn calls_pass_lookups_of_many() {
    let fire = Op::FireMany { queue: queue(), max: 100 };
    let redrive = Op::RedriveMany { queue: queue(), max: 100 };
    for many in [fire, redrive] {
        for target in [Target::Id(MessageId(100)), Target::Key(queue(), key(100))] {
            let mut rig = fill(Rig::of(3 * BODY, 1_000));
            if matches!(many, Op::RedriveMany { .. }) {
                bury_all(&mut rig);
            }
            let (answer, mut answers) = oneshot::channel();
            let patience = WhenBusy::Refuse;
            let mut submissions =
                vec![Submission { ops: vec![many.clone()], answer, patience, has_waited: false }];
            for _ in 0..3 {
                rig.driver.step(rig.now, &mut submissions).unwrap();
            }
            assert!(answers.try_recv().is_err(), "it takes many steps");
            for target in [target.clone(), Target::Id(MessageId(200))] {
                let (answers, steps) = rig.submit(vec![Op::Get { target }]);
                assert!(matches!(answers[0], Ok(Reply::View(_))));
                assert!(steps <= 2, "{steps} steps");
            }
            assert!(answers.try_recv().is_err(), "it takes many steps");
        }
    }
}
