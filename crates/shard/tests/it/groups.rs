//! How large a group is, and what happens to work that goes on over several groups when the store has no room for it.

use std::sync::Arc;

use duewheel_core::engine::{Attempt, Config, Enqueue, Op, Reply, Reserved, When};
use duewheel_core::pass_on;
use duewheel_core::policy::Policy;
use duewheel_core::record::Writer;
use duewheel_core::store::{Capacity, MemoryDisk, MemoryStore, Store, StoreTerms};
use duewheel_core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Submission, WhenBusy};
use tokio::sync::oneshot;

use crate::driver::{Rig, put, queue, reserve};

fn take(rig: &mut Rig, max: usize) -> Vec<duewheel_core::engine::Grant> {
    let mut all = Vec::new();
    while all.len() < max {
        let Op::Reserve(demand) = reserve(0) else { panic!() };
        let demand = Op::Reserve(duewheel_core::engine::Reserve { max: max - all.len(), ..demand });
        match rig.answers(vec![demand]).pop() {
            Some(Ok(Reply::Reserve(Reserved::Grants(grants)))) if !grants.is_empty() => all.extend(grants),
            other => panic!("{other:?}"),
        }
    }
    all
}

/// Story: time decides up to 4,096 records a step, whatever they weigh. Leases with long histories that ran out
/// together made a group of 10 MiB; with others of the same step that was more than the store had agreed to.
#[test]
fn timed_decisions_fit_store_group() {
    const MANY: usize = 4_096;
    let mut rig = Rig::new();
    rig.answers((0..MANY).map(|_| put(0)).collect());
    for _ in 0..Policy::default().max_history {
        let grants = take(&mut rig, MANY);
        let nack = |g: &duewheel_core::engine::Grant| Op::Nack {
            id: g.message.id,
            proof: g.token.into(),
            attempt: Attempt::NotYet,
            delay_ms: Some(0),
            priority: None,
            note: "n".repeat(256).into(),
        };
        rig.answers(grants.iter().map(nack).collect());
    }
    take(&mut rig, MANY);
    let before = rig.disk.groups().len();
    rig.pass(3_600_000);
    rig.step();
    while rig.driver.next_wakeup(rig.now).is_some_and(|t| t <= rig.now.engine) {
        rig.step();
    }
    let groups = rig.disk.groups();
    let most = Policy::default().max_step_bytes;
    let mut records = 0;
    for group in &groups[before..] {
        let mut writer = Writer::default();
        group.records.iter().for_each(|record| writer.record(record));
        assert!(writer.bytes.len() <= most, "{} bytes in a group", writer.bytes.len());
        records += group.records.len();
    }
    assert_eq!(records, MANY);
}

/// What one group may hold is what the store says, also when that is little.
#[test]
fn step_fits_small_store_group() {
    let rig = Rig::new();
    assert!(Policy::default().max_step_bytes <= rig.driver.store().terms().group_bytes / 4);
}

/// A store that takes few records at once, as one does that serves others as well.
struct Few(MemoryStore);

impl Store for Few {
    pass_on!(0: recovered append sync sync_here progress room room_error find_many ask arrived idle close figures);

    fn terms(&self) -> StoreTerms {
        StoreTerms { group_records: 2_000, ..self.0.terms() }
    }
}

/// A group ends with the operation by which it is as large as the store takes; how many effects have come together is
/// looked at a thousand at a time.
#[test]
fn group_records_are_bounded() {
    let disk = MemoryDisk::default();
    let mut store = Few(MemoryStore::open(&disk, Arc::new(|| {})));
    let (recovered, now) = (store.recovered(), Now::whole(0, 1_000));
    let config = Config { policy: Policy { max_step: 100_000, ..Policy::default() }, ..Config::default() };
    let mut driver = Driver::new(store, recovered, config, now).unwrap();
    let (answer, mut answers) = oneshot::channel();
    let ops = (0..10_000).map(|_| put(60_000)).collect();
    let mut submissions = vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }];
    while answers.try_recv().is_err() {
        driver.step(now, &mut submissions).unwrap();
    }
    let sizes: Vec<usize> = disk.groups().iter().map(|group| group.records.len()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 10_000);
    assert!(sizes.iter().all(|size| *size < 3_000), "{sizes:?}");
}

/// Story: messages were fired although the store had come to take removals alone since that was asked for.
#[test]
fn firing_stops_while_removals_only() {
    let later = || {
        let e = Enqueue { when: When::After(3_600_000), ..Enqueue::new(queue(), "b") };
        Op::Enqueue(Box::new(e))
    };
    let fire = || Op::FireMany { queue: queue(), max: 100 };
    let mut rig = Rig::new();
    rig.answers((0..100).map(|_| later()).collect());
    let mut pending = rig.submit(vec![fire()]);
    assert!(pending.try_recv().is_err(), "it waits for a page");
    rig.disk.set_room(Capacity::RemoveOnly);
    let before = rig.disk.groups().len();
    rig.step();
    rig.step();
    match pending.try_recv().unwrap().pop() {
        Some(Err(error @ CallError::Store { .. })) => {
            assert_eq!((error.outcome(), error.is_retryable()), (Outcome::NotApplied, true));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.disk.groups().len(), before, "nothing was written");
    rig.disk.set_room(Capacity::Enough);
    let answers = rig.answers(vec![fire()]);
    assert!(matches!(answers[0], Ok(Reply::Count(n)) if *n == 100), "{answers:?}");
}

/// A batch with more than one step decides gives way to what else there is: answers that can leave leave.
#[test]
fn large_batch_is_decided_in_steps() {
    let mut rig = Rig::new();
    let step = Policy::default().max_step_bytes;
    let before = rig.disk.groups().len();
    let body = 100_000;
    let count = 8 * step / body;
    let one = || Op::Enqueue(Box::new(Enqueue::new(queue(), vec![7; body])));
    let mut answers = rig.submit((0..count).map(|_| one()).collect());
    let first: usize = rig.disk.groups()[before..].iter().map(|group| group.records.len()).sum();
    assert!(first <= step / body + 1, "{first} messages in a step");
    assert!(answers.try_recv().is_err());
    assert!(rig.driver.next_wakeup(rig.now).is_some_and(|t| t <= rig.now.engine), "it goes on at once");
    for _ in 0..8 {
        rig.step();
    }
    assert!(answers.try_recv().unwrap().iter().all(|a| matches!(a, Ok(Reply::Enqueue(Ok(_))))));
}
