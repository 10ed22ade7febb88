//! The driver, stepped by hand: when answers leave, and what a failing store means.

use std::sync::Arc;

use duewheel::core::engine::{Config, Enqueue, Op, Reply, Reserve, Reserved, Target, WaiterId, When};
use duewheel::core::id::SessionId;
use duewheel::core::name::{Key, QueueName};
use duewheel::core::store::{ErrorKind, Level, MemoryDisk, MemoryStore, Room, Store, StoreError};
use duewheel::core::time::Now;
use duewheel::{Answers, CallError, Driver, Outcome, Patience, Submission};
use tokio::sync::oneshot;

struct Rig {
    disk: MemoryDisk,
    driver: Driver<MemoryStore>,
    now: Now,
}

impl Rig {
    fn new() -> Self {
        let disk = MemoryDisk::default();
        Rig { driver: open(&disk, Now::whole(0, 1_000)), disk, now: Now::whole(0, 1_000) }
    }

    fn submit(&mut self, ops: Vec<Op>) -> oneshot::Receiver<Answers> {
        let (answer, answers) = oneshot::channel();
        self.driver.step(self.now, &mut vec![Submission { ops, answer, patience: Patience::None }]).unwrap();
        answers
    }

    fn step(&mut self) {
        self.driver.step(self.now, &mut Vec::new()).unwrap();
    }

    fn pass(&mut self, ms: u64) {
        self.now = Now::whole(self.now.engine.0 + ms, self.now.wall.0 + ms);
    }
}

fn open(disk: &MemoryDisk, now: Now) -> Driver<MemoryStore> {
    let mut store = MemoryStore::open(disk, Arc::new(|| {}));
    let recovered = store.recovered();
    let mut driver = Driver::new(store, recovered, Config::default(), now).unwrap();
    while !driver.is_open() {
        driver.step(now, &mut Vec::new()).unwrap();
    }
    driver
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn put(delay: u64) -> Op {
    Op::Enqueue(Box::new(Enqueue { when: When::After(delay), ..Enqueue::new(queue(), "b") }))
}

fn keyed() -> Op {
    let key = Some(Key::new("k").unwrap());
    Op::Enqueue(Box::new(Enqueue { key, when: When::After(60_000), ..Enqueue::new(queue(), "b") }))
}

fn reserve(wait_ms: u64) -> Op {
    Op::Reserve(Reserve {
        waiter: WaiterId(1),
        queues: vec![queue()],
        max: 10,
        max_bytes: usize::MAX,
        wait_ms,
        lease_ms: None,
        session: SessionId::NONE,
        deadline_margin_ms: None,
    })
}

fn grants(answers: Answers) -> usize {
    match &answers[0] {
        Ok(Reply::Reserve(Reserved::Grants(grants))) => grants.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_leaves_when_it_is_durable_and_not_before_and_refusals_and_reads_wait_too() {
    let mut rig = Rig::new();
    rig.disk.claim(Level::Fsync);
    rig.disk.sync_by_hand();
    let mut accepted = rig.submit(vec![keyed()]);
    let mut refused = rig.submit(vec![keyed()]);
    let mut read = rig.submit(vec![Op::Get { target: Target::Id(duewheel::MessageId(1)) }]);
    rig.step();
    assert!(accepted.try_recv().is_err() && refused.try_recv().is_err() && read.try_recv().is_err());
    assert_eq!(rig.disk.groups().len(), 1, "although it is written");
    rig.disk.complete_sync();
    rig.step();
    assert!(matches!(accepted.try_recv().unwrap()[0], Ok(Reply::Enqueue(Ok(_)))));
    assert!(matches!(refused.try_recv().unwrap()[0], Ok(Reply::Enqueue(Err(_)))));
    assert!(matches!(read.try_recv().unwrap()[0], Ok(Reply::View(Some(_)))));
}

#[test]
fn a_grant_waits_for_its_message_and_not_for_what_others_do() {
    let mut rig = Rig::new();
    rig.disk.claim(Level::Fsync);
    rig.disk.sync_by_hand();
    let mut put_first = rig.submit(vec![put(0)]);
    let mut early = rig.submit(vec![reserve(0)]);
    assert!(early.try_recv().is_err(), "its message may be gone after a power loss");
    rig.disk.complete_sync();
    rig.step();
    assert!(put_first.try_recv().is_ok());
    assert_eq!(grants(early.try_recv().unwrap()), 1);

    rig.submit(vec![put(0)]);
    rig.disk.complete_sync();
    rig.step();
    let mut others = rig.submit(vec![put(60_000)]); // not durable
    let mut grant = rig.submit(vec![reserve(0)]);
    assert_eq!(
        grants(grant.try_recv().unwrap()),
        1,
        "at once: its own message is durable, the grant is written"
    );
    assert!(others.try_recv().is_err());
}

#[test]
fn a_batch_is_one_group_and_its_answers_come_in_order() {
    let mut rig = Rig::new();
    let mut answers = rig.submit(vec![keyed(), keyed(), put(5)]);
    let answers = answers.try_recv().unwrap();
    let accepted: Vec<bool> = answers.iter().map(|a| matches!(a, Ok(Reply::Enqueue(Ok(_))))).collect();
    assert_eq!(accepted, [true, false, true], "the second sees the first");
    assert_eq!(rig.disk.groups().len(), 1);
}

#[test]
fn m9_what_is_due_while_nothing_runs_is_granted_at_once_after_the_restart() {
    let mut rig = Rig::new();
    rig.submit(vec![put(5_000)]);
    rig.pass(60_000);
    rig.driver = open(&rig.disk, rig.now);
    assert_eq!(grants(rig.submit(vec![reserve(0)]).try_recv().unwrap()), 1);
}

#[test]
fn grants_that_nobody_receives_go_back_and_do_not_count() {
    let mut rig = Rig::new();
    drop(rig.submit(vec![reserve(60_000)])); // its consumer goes away while it waits
    rig.submit(vec![put(0)]);
    rig.step();
    let answers = rig.submit(vec![reserve(0)]).try_recv().unwrap();
    let Ok(Reply::Reserve(Reserved::Grants(grants))) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(grants[0].attempt, 1);
}

#[test]
fn a_store_that_fails_leaves_answers_unknown_and_is_opened_again() {
    let mut rig = Rig::new();
    let waiting = rig.submit(vec![reserve(60_000)]);
    rig.disk.fail(StoreError::new(ErrorKind::Unavailable, "the disk is gone"));
    let (answer, mut answers) = oneshot::channel();
    let error = rig
        .driver
        .step(rig.now, &mut vec![Submission { ops: vec![put(0)], answer, patience: Patience::None }])
        .unwrap_err();
    let disk = rig.disk.clone();
    let failed = std::mem::replace(&mut rig.driver, open(&disk, rig.now));
    failed.fail(&error);
    for mut answers in [waiting, std::mem::replace(&mut answers, oneshot::channel().1)] {
        match &answers.try_recv().unwrap()[0] {
            Err(error @ CallError::Store { .. }) => assert_eq!(error.outcome(), Outcome::Unknown),
            other => panic!("{other:?}"),
        }
    }
    rig.submit(vec![put(0)]);
    assert_eq!(grants(rig.submit(vec![reserve(0)]).try_recv().unwrap()), 1);
}

/// What was under way before stays unknown; so does an operation that has no answer yet.
#[test]
fn a_store_that_knows_from_where_on_nothing_was_applied_leaves_less_unknown() {
    let mut rig = Rig::new();
    rig.disk.claim(Level::Fsync);
    rig.disk.sync_by_hand();
    let before = rig.submit(vec![put(60_000)]);
    let last = rig.disk.groups().last().unwrap().last();
    let refused = rig.submit(vec![put(60_000)]);
    let waits = rig.submit(vec![reserve(60_000)]);
    rig.disk.fail(StoreError::new(ErrorKind::Full, "no memory").with_nothing_from(last.next()));
    let error = rig.driver.step(rig.now, &mut Vec::new()).unwrap_err();
    let disk = rig.disk.clone();
    std::mem::replace(&mut rig.driver, open(&disk, rig.now)).fail(&error);
    let outcomes = [before, refused, waits].map(|mut answers| match answers.try_recv().unwrap().remove(0) {
        Err(error @ CallError::Store { .. }) => error.outcome(),
        other => panic!("{other:?}"),
    });
    assert_eq!(outcomes, [Outcome::Unknown, Outcome::NotApplied, Outcome::Unknown]);
}

#[test]
fn a_full_disk_is_known_before_the_engine_decides() {
    let mut rig = Rig::new();
    rig.disk.set_room(Room::SettleOnly);
    let before = rig.disk.groups().len();
    let answers = rig.submit(vec![put(0)]).try_recv().unwrap();
    assert!(matches!(answers[0], Ok(Reply::Enqueue(Err(duewheel::core::engine::EnqueueRefusal::DiskFull)))));
    assert_eq!(rig.disk.groups().len(), before);
    rig.disk.set_room(Room::Enough);
    assert!(matches!(rig.submit(vec![put(0)]).try_recv().unwrap()[0], Ok(Reply::Enqueue(Ok(_)))));
}

#[test]
fn the_driver_sleeps_until_something_is_due() {
    let mut rig = Rig::new();
    rig.submit(vec![put(500)]);
    rig.pass(200); // past the note that follows an append
    rig.step();
    assert_eq!(rig.driver.next_wakeup(rig.now).map(|t| t.0), Some(500));
    rig.submit(vec![Op::Cancel { target: Target::Id(duewheel::MessageId(1)) }]);
    rig.pass(200);
    rig.step();
    assert_eq!(rig.driver.next_wakeup(rig.now), None);
}

/// Story: a page made the engine remove dead messages; a cancel of one of them in the same step looked it up before that was
/// appended, found it, and removed it once more (review).
#[test]
fn what_a_page_decides_is_appended_before_the_next_look_up() {
    let mut rig = Rig::new();
    let settings = duewheel::core::policy::QueueSettings { dead_ttl_ms: Some(100), ..Default::default() };
    rig.submit(vec![Op::Configure { queue: queue(), settings }, put(0)]);
    let answers = rig.submit(vec![reserve(0)]).try_recv().unwrap();
    let Some(Ok(Reply::Reserve(Reserved::Grants(granted)))) = answers.first() else { panic!("{answers:?}") };
    let (id, token) = (granted[0].message.id, granted[0].token);
    rig.submit(vec![Op::Bury { id, proof: token.into(), priority: None, note: "".into() }]);
    rig.pass(1_000);
    rig.step(); // asks for the page; it comes with the next step, and so does the cancel
    let mut cancel = rig.submit(vec![Op::Cancel { target: Target::Id(id) }]);
    let refused = matches!(cancel.try_recv().unwrap()[0], Ok(Reply::Change(Err(_))));
    assert!(refused, "it is gone");
    let groups = rig.disk.groups();
    let records = groups.iter().flat_map(|group| &group.records);
    let removals = records.filter(|r| matches!(r, duewheel::core::record::Record::Removed { .. }));
    assert_eq!(removals.count(), 1);
}

/// Story: a listing waits for a page; a shutdown must not end before it is answered.
#[test]
fn a_question_that_waits_for_a_page_is_waited_for() {
    let mut rig = Rig::new();
    rig.submit(vec![put(60_000)]);
    let mut page = rig.submit(vec![Op::List { queue: queue(), state: None, after: None, limit: 10 }]);
    assert!(page.try_recv().is_err() && rig.driver.is_waiting_for_store());
    rig.step();
    assert!(matches!(&page.try_recv().unwrap()[0], Ok(Reply::Page(page)) if page.views.len() == 1));
    assert!(!rig.driver.is_waiting_for_store());
}
