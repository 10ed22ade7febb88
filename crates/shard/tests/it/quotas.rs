//! New messages that wait for their tenant's rate, with a driver that is stepped by hand.

use std::sync::Arc;

use duewheel_core::Policy;
use duewheel_core::engine::{Config, Enqueue, EnqueueRefusal, Op, Quota, Quotas, Reply, Resource};
use duewheel_core::name::{Key, QueueName};
use duewheel_core::store::{ErrorKind, MemoryDisk, MemoryStore, Store, StoreError};
use duewheel_core::time::{EngineMs, Now};
use duewheel_shard::driver::Driver;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use tokio::sync::oneshot;

struct Rig {
    driver: Driver<MemoryStore>,
    now: Now,
}

impl Rig {
    /// `t` has two enqueues a second, one at once.
    fn new() -> Rig {
        let now = Now::whole(0, 1_000);
        let mut store = MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {}));
        let recovered = store.recovered();
        let mut driver = Driver::new(store, recovered, Config::default(), now).unwrap();
        while !driver.is_open() {
            driver.step(now, &mut Vec::new()).unwrap();
        }
        let mut rig = Rig { driver, now };
        rig.set(vec![rate("t", 2, 1)]);
        rig
    }

    fn set(&mut self, quotas: Vec<Quota>) {
        self.driver.set_quotas(self.now, Quotas::new(quotas, &Policy::default()).unwrap());
    }

    fn submit(&mut self, queue: &str, n: usize, patience: WhenBusy) -> oneshot::Receiver<Answers> {
        let (answer, answers) = oneshot::channel();
        let put = |n| {
            let key = Some(Key::new(&format!("{n}")).unwrap());
            Op::Enqueue(Box::new(Enqueue { key, ..Enqueue::new(QueueName::new(queue).unwrap(), "b") }))
        };
        let ops = (0..n).map(put).collect();
        self.driver
            .step(self.now, &mut vec![Submission { ops, answer, patience, has_waited: false }])
            .unwrap();
        answers
    }

    fn at(&mut self, ms: u64) {
        self.now = Now::whole(ms, 1_000 + ms);
        self.driver.step(self.now, &mut Vec::new()).unwrap();
    }

    fn enqueued(&self) -> u64 {
        self.driver.engine().last_lsn().0
    }
}

fn rate(prefix: &str, rate: u64, burst: u64) -> Quota {
    Quota { prefix: prefix.into(), enqueues_per_second: Some(rate), burst: Some(burst), ..Quota::default() }
}

fn accepted(answers: &Answers) -> usize {
    answers.iter().filter(|answer| matches!(answer, Ok(Reply::Enqueue(Ok(_))))).count()
}

#[test]
fn rate_limited_enqueues_wait_in_order() {
    let mut rig = Rig::new();
    let mut first = rig.submit("t", 3, WhenBusy::Paced);
    assert_eq!((rig.enqueued(), first.try_recv().is_err()), (1, true));
    let mut second = rig.submit("t/2", 1, WhenBusy::Paced);
    assert_eq!(accepted(&rig.submit("free", 5, WhenBusy::Paced).try_recv().unwrap()), 5);
    let refused = rig.submit("t/3", 1, WhenBusy::Wait).try_recv().unwrap();
    let Ok(Reply::Enqueue(Err(EnqueueRefusal::OverQuota(over)))) = &refused[0] else { panic!("{refused:?}") };
    assert_eq!((over.resource, over.retry_ms), (Resource::Enqueues, Some(500)));
    for (ms, enqueued) in [(499, 6), (500, 7), (500, 7), (999, 7), (1_000, 8)] {
        let next = EngineMs((rig.now.engine.0 / 500 + 1) * 500);
        assert!(
            rig.driver.next_wakeup(rig.now).is_some_and(|t| t <= next),
            "it is stepped when the next may go"
        );
        rig.at(ms);
        assert_eq!(rig.enqueued(), enqueued, "at {ms} ms");
    }
    assert_eq!(accepted(&first.try_recv().unwrap()), 3);
    assert!(second.try_recv().is_err());
    rig.at(1_500);
    assert_eq!(accepted(&second.try_recv().unwrap()), 1);
}

#[test]
fn paced_rest_is_refused_after_timeout() {
    let mut rig = Rig::new();
    let mut many = rig.submit("t", 50, WhenBusy::Paced);
    for half in 1..20 {
        rig.at(half * 500);
        assert!(many.try_recv().is_err());
    }
    assert_eq!(rig.enqueued(), 20);
    rig.at(10_000);
    let answers = many.try_recv().unwrap();
    assert_eq!((accepted(&answers), answers.len()), (21, 50));
    assert!(answers[..21].iter().all(|answer| matches!(answer, Ok(Reply::Enqueue(Ok(_))))), "the first ones");
    let mut waits = rig.submit("t", 5, WhenBusy::Paced);
    assert!(waits.try_recv().is_err());
    rig.driver.end_waits();
    rig.at(10_000);
    assert_eq!(accepted(&waits.try_recv().unwrap()), 0);
}

#[test]
fn paced_enqueues_follow_changed_quotas() {
    let mut rig = Rig::new();
    let mut waits = rig.submit("t", 3, WhenBusy::Paced);
    rig.set(vec![rate("s", 1, 1), rate("t", 2, 2)]);
    rig.at(500);
    assert_eq!(rig.enqueued(), 2);
    rig.set(vec![]);
    rig.at(501);
    assert_eq!(accepted(&waits.try_recv().unwrap()), 3);

    rig.set(vec![rate("t", 2, 1)]);
    let mut lost = rig.submit("t", 3, WhenBusy::Paced);
    let Rig { driver, .. } = rig;
    driver.fail(&StoreError::new(ErrorKind::Unavailable, "gone"));
    let answers = lost.try_recv().unwrap();
    let outcome = |n: usize| match &answers[n] {
        Err(CallError::Store { outcome, .. }) => Some(*outcome),
        _ => None,
    };
    assert_eq!(
        (outcome(1), outcome(2)),
        (Some(Outcome::NotApplied), Some(Outcome::NotApplied)),
        "{answers:?}"
    );
}
