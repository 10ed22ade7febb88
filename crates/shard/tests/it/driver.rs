//! The driver, stepped by hand: when answers leave, and what a failing store means.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use duewheel_core::MessageId;
use duewheel_core::engine::{
    Ask, Attempt, Config, Enqueue, Op, Reply, Reserve, Reserved, Target, WaiterId, When,
};
use duewheel_core::id::SessionId;
use duewheel_core::message::State;
use duewheel_core::name::{Key, QueueName};
use duewheel_core::pass_on;
use duewheel_core::policy::{Policy, QueueSettings};
use duewheel_core::store::{
    AtHand, Capacity, ErrorKind, Found, Level, Lookups, MemoryDisk, MemoryStore, Progress, Store,
    StoreArrival, StoreError,
};
use duewheel_core::time::Now;
use duewheel_shard::driver::Driver;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, Submission, WhenBusy};
use tokio::sync::oneshot;

pub struct Rig {
    pub disk: MemoryDisk,
    pub driver: Driver<MemoryStore>,
    pub now: Now,
}

impl Rig {
    pub fn new() -> Self {
        let disk = MemoryDisk::default();
        Rig { driver: open(&disk, Now::whole(0, 1_000)), disk, now: Now::whole(0, 1_000) }
    }

    pub fn submit(&mut self, ops: Vec<Op>) -> oneshot::Receiver<Answers> {
        let (answer, answers) = oneshot::channel();
        self.driver
            .step(
                self.now,
                &mut vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }],
            )
            .unwrap();
        answers
    }

    pub fn step(&mut self) {
        self.driver.step(self.now, &mut Vec::new()).unwrap();
    }

    /// The answers of a batch that may take several steps.
    pub fn answers(&mut self, ops: Vec<Op>) -> Answers {
        let mut answers = self.submit(ops);
        for _ in 0..1_000 {
            if let Ok(answers) = answers.try_recv() {
                return answers;
            }
            self.step();
        }
        panic!("no answer");
    }

    pub fn pass(&mut self, ms: u64) {
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

pub fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

pub fn put(delay: u64) -> Op {
    Op::Enqueue(Box::new(Enqueue { when: When::After(delay), ..Enqueue::new(queue(), "b") }))
}

fn keyed() -> Op {
    let key = Some(Key::new("k").unwrap());
    Op::Enqueue(Box::new(Enqueue { key, when: When::After(60_000), ..Enqueue::new(queue(), "b") }))
}

pub fn reserve(wait_ms: u64) -> Op {
    Op::Reserve(Reserve {
        waiter: WaiterId(1),
        queues: vec![queue()],
        max: 10,
        max_bytes: usize::MAX,
        wait_ms,
        lease_ms: None,
        session: SessionId::NONE,
        max_of: Vec::new(),
        max_attempts: None,
        deadline_margin_ms: None,
    })
}

pub fn grants(answers: Answers) -> usize {
    match &answers[0] {
        Ok(Reply::Reserve(Reserved::Grants(grants))) => grants.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_wait_for_durability() {
    let mut rig = Rig::new();
    rig.disk.claim(Level::Fsync);
    rig.disk.sync_by_hand();
    let mut accepted = rig.submit(vec![keyed()]);
    let mut refused = rig.submit(vec![keyed()]);
    let mut read = rig.submit(vec![Op::Get { target: Target::Id(duewheel_core::MessageId(1)) }]);
    rig.step();
    assert!(accepted.try_recv().is_err() && refused.try_recv().is_err() && read.try_recv().is_err());
    assert_eq!(rig.disk.groups().len(), 1, "although it is written");
    rig.disk.complete_sync();
    rig.step();
    assert!(matches!(accepted.try_recv().unwrap()[0], Ok(Reply::Enqueue(Ok(_)))));
    assert!(matches!(refused.try_recv().unwrap()[0], Ok(Reply::Enqueue(Err(_)))));
    assert!(matches!(read.try_recv().unwrap()[0], Ok(Reply::View(Some(_)))));
}

/// The detail of a settlement is in its record: nobody sees it before that is durable.
#[test]
fn detail_waits_for_its_settlement() {
    let mut rig = Rig::new();
    rig.submit(vec![put(0)]);
    let answers = rig.submit(vec![reserve(0)]).try_recv().unwrap();
    let Ok(Reply::Reserve(Reserved::Grants(grants))) = &answers[0] else { panic!("{answers:?}") };
    let (id, token) = (grants[0].message.id, grants[0].token);
    rig.disk.claim(Level::Fsync);
    rig.disk.sync_by_hand();
    let nack = Op::nack(id, token, Attempt::Failed, None, "").with_detail(Some((*b"why").into()));
    let mut settled = rig.submit(vec![nack.into_op()]);
    let mut read = rig.submit(vec![Op::Get { target: Target::Id(id) }]);
    rig.step();
    assert!(settled.try_recv().is_err() && read.try_recv().is_err());
    rig.disk.complete_sync();
    rig.step();
    assert!(matches!(settled.try_recv().unwrap()[0], Ok(Reply::Settle(Ok(_)))));
    let shown = read.try_recv().unwrap().remove(0);
    assert!(matches!(shown, Ok(Reply::View(Some(view))) if view.detail.as_deref() == Some(b"why")));
}

/// Story: a consumer was gone when its grant left, and the driver stopped: the lease ran out, and with one attempt the
/// message was dead although nobody had ever had it.
#[test]
fn stopping_driver_takes_undelivered_grants_back() {
    for is_stepped in [true, false] {
        let mut rig = Rig::new();
        rig.disk.claim(Level::Fsync);
        rig.disk.sync_by_hand();
        let _put = rig.submit(vec![put(0)]);
        drop(rig.submit(vec![reserve(0)]));
        assert!(rig.driver.is_waiting_for_store());
        rig.disk.complete_sync();
        if is_stepped {
            rig.step();
            assert!(rig.driver.is_waiting_for_store(), "it has something to take back");
        }
        let Rig { driver, disk, now } = rig;
        driver.close(now).unwrap();
        disk.complete_sync();
        let mut rig = Rig { driver: open(&disk, now), disk, now };
        let got = rig.answers(vec![Op::Get { target: Target::Id(MessageId(1)) }]);
        let Ok(Reply::View(Some(view))) = &got[0] else { panic!("{got:?}") };
        assert_eq!((view.state, view.attempt), (State::Ready, 0), "stepped: {is_stepped}");
    }
}

/// Story: a lease ran out in the step in which an enqueue was repeated. The store had applied nothing of that step, so the
/// repeated one was answered "not applied", although the first one had been.
#[test]
fn repeated_operations_are_never_not_applied() {
    for is_ack in [false, true] {
        let mut rig = Rig::new();
        let first = Enqueue { dedupe_id: Some("once".into()), ..Enqueue::new(queue(), "b") };
        let first = Op::Enqueue(Box::new(first));
        rig.answers(vec![first.clone(), put(0)]);
        let granted = rig.answers(vec![reserve(0)]);
        let Ok(Reply::Reserve(Reserved::Grants(grants))) = &granted[0] else { panic!("{granted:?}") };
        let ack = Op::Ack { id: grants[0].message.id, proof: grants[0].token.into(), result: None };
        rig.answers(vec![ack.clone()]);
        rig.disk.claim(Level::Fsync);
        rig.disk.sync_by_hand();
        rig.pass(60_000); // a lease is 30 s
        let groups = rig.disk.groups().len();
        let mut answers = rig.submit(vec![if is_ack { ack } else { first }]);
        let lost = &rig.disk.groups()[groups];
        let error = StoreError::new(ErrorKind::Unavailable, "gone").with_nothing_from(lost.first);
        drop(rig.driver.fail(&error));
        let answers = answers.try_recv().unwrap();
        let is_unknown = matches!(answers[0], Err(CallError::Store { outcome: Outcome::Unknown, .. }));
        assert!(is_unknown, "ack: {is_ack}, {answers:?}");
    }
}

#[test]
fn grant_waits_for_own_message_only() {
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
fn batch_is_one_group_in_order() {
    let mut rig = Rig::new();
    let mut answers = rig.submit(vec![keyed(), keyed(), put(5)]);
    let answers = answers.try_recv().unwrap();
    let accepted: Vec<bool> = answers.iter().map(|a| matches!(a, Ok(Reply::Enqueue(Ok(_))))).collect();
    assert_eq!(accepted, [true, false, true], "the second sees the first");
    assert_eq!(rig.disk.groups().len(), 1);
}

#[test]
fn m9_overdue_message_granted_after_restart() {
    let mut rig = Rig::new();
    rig.submit(vec![put(5_000)]);
    rig.pass(60_000);
    rig.driver = open(&rig.disk, rig.now);
    assert_eq!(grants(rig.submit(vec![reserve(0)]).try_recv().unwrap()), 1);
}

#[test]
fn unreceived_grants_return_without_attempt() {
    let mut rig = Rig::new();
    drop(rig.submit(vec![reserve(60_000)])); // its consumer goes away while it waits
    rig.submit(vec![put(0)]);
    rig.step();
    let answers = rig.submit(vec![reserve(0)]).try_recv().unwrap();
    let Ok(Reply::Reserve(Reserved::Grants(grants))) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(grants[0].attempt, 1);
}

#[test]
fn failed_store_reopens_with_unknown_outcomes() {
    let mut rig = Rig::new();
    let waiting = rig.submit(vec![reserve(60_000)]);
    rig.disk.fail(StoreError::new(ErrorKind::Unavailable, "the disk is gone"));
    let (answer, mut answers) = oneshot::channel();
    let error = rig
        .driver
        .step(
            rig.now,
            &mut vec![Submission {
                ops: vec![put(0)],
                answer,
                patience: WhenBusy::Refuse,
                has_waited: false,
            }],
        )
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
fn nothing_applied_position_limits_unknown_outcomes() {
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

/// Story: an enqueue was tried again by its dedupe id while the first try was under way. What came between was refused
/// for sure, and so the second try was called not applied, although its message may be there from the first.
#[test]
fn retry_of_unknown_enqueue_stays_unknown() {
    let mut rig = Rig::new();
    rig.disk.claim(Level::Fsync);
    rig.disk.sync_by_hand();
    let once = || {
        let mut message = Enqueue::new(QueueName::new("q").unwrap(), "x");
        message.dedupe_id = Some("order-42".into());
        Op::Enqueue(Box::new(message))
    };
    let first = rig.submit(vec![once()]);
    let last = rig.disk.groups().last().unwrap().last();
    let between = rig.submit(vec![put(60_000)]);
    let again = rig.submit(vec![once()]);
    rig.disk.fail(StoreError::new(ErrorKind::Full, "no memory").with_nothing_from(last.next()));
    let error = rig.driver.step(rig.now, &mut Vec::new()).unwrap_err();
    let disk = rig.disk.clone();
    std::mem::replace(&mut rig.driver, open(&disk, rig.now)).fail(&error);
    let outcomes = [first, between, again].map(|mut answers| match answers.try_recv().unwrap().remove(0) {
        Err(CallError::Store { outcome, .. }) => outcome,
        other => panic!("{other:?}"),
    });
    assert_eq!(outcomes, [Outcome::Unknown, Outcome::NotApplied, Outcome::Unknown]);
}

#[test]
fn full_disk_is_known_before_deciding() {
    let mut rig = Rig::new();
    rig.disk.set_room(Capacity::SettleOnly);
    let before = rig.disk.groups().len();
    let answers = rig.submit(vec![put(0)]).try_recv().unwrap();
    assert!(matches!(answers[0], Ok(Reply::Enqueue(Err(duewheel_core::engine::EnqueueRefusal::DiskFull)))));
    assert_eq!(rig.disk.groups().len(), before);
    rig.disk.set_room(Capacity::Enough);
    assert!(matches!(rig.submit(vec![put(0)]).try_recv().unwrap()[0], Ok(Reply::Enqueue(Ok(_)))));
}

/// Story: a disk that failed to make segments, for an error that was no want of room, was reported to callers as full.
#[test]
fn failed_segment_creation_is_not_full() {
    let mut rig = Rig::new();
    rig.submit(vec![put(60_000), put(0)]);
    let Some(Ok(Reply::Reserve(Reserved::Grants(granted)))) = rig.answers(vec![reserve(0)]).pop() else {
        panic!("no grant")
    };
    let (later, proof) = (duewheel_core::MessageId(1), granted[0].token.into());
    let error = StoreError::new(ErrorKind::Unavailable, "cannot create journal/7: input/output error");
    for room in [Capacity::SettleOnly, Capacity::RemoveOnly] {
        rig.disk.set_room(room);
        rig.disk.set_room_error(Some(error.clone()));
        // A message that is moved needs no more room than a settlement.
        let fire = (room == Capacity::RemoveOnly).then_some(Op::Fire { target: Target::Id(later) });
        for op in [put(0)].into_iter().chain(fire) {
            let what = format!("{room:?} {op:?}");
            match rig.submit(vec![op]).try_recv().unwrap().pop() {
                Some(Err(CallError::Store { error, outcome: Outcome::NotApplied })) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}");
                    assert!(error.to_string().contains("input/output error"), "{what}: {error}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    let ack = Op::Ack { id: granted[0].message.id, proof, result: None };
    assert!(matches!(rig.submit(vec![ack]).try_recv().unwrap()[0], Ok(Reply::Settle(Ok(_)))));
    // A disk that is full later is reported as full.
    rig.disk.set_room(Capacity::SettleOnly);
    rig.disk.set_room_error(None);
    let answers = rig.submit(vec![put(0)]).try_recv().unwrap();
    assert!(matches!(answers[0], Ok(Reply::Enqueue(Err(duewheel_core::engine::EnqueueRefusal::DiskFull)))));
}

/// Story: groups were cut when a thousand effects had come together, whatever they weighed: 500 messages of 256 KiB
/// made a group of 125 MiB, where the store had agreed to 16.
#[test]
fn group_size_respects_store_limit() {
    let mut rig = Rig::new();
    let agreed = rig.driver.store().terms().group_bytes;
    let most = duewheel_core::policy::Policy::default().max_group_bytes;
    for body in [256 * 1024, 200_000, 65_536, 20_000, 1_000, 1] {
        for bytes in [most - 1, most, most + 1, 2 * most, 5 * most] {
            let before = rig.disk.groups().len();
            let count = (bytes / (body + 64)).clamp(1, 10_000);
            let one = || Op::Enqueue(Box::new(Enqueue::new(queue(), vec![7; body])));
            let mut answers = rig.submit((0..count).map(|_| one()).collect());
            // A step decides so many operations that fit one look-up.
            let mut steps = 0;
            while answers.try_recv().is_err() {
                steps += 1;
                assert!(steps < 100, "no answer");
                rig.step();
            }
            let groups = &rig.disk.groups()[before..];
            for group in groups {
                let mut writer = duewheel_core::record::Writer::default();
                group.records.iter().for_each(|record| writer.record(record));
                assert!(writer.bytes.len() <= agreed, "{} bytes in a group", writer.bytes.len());
                assert!(writer.bytes.len() <= most + body + 1_000, "{} bytes: cut late", writer.bytes.len());
            }
            assert_eq!(groups.iter().map(|group| group.records.len()).sum::<usize>(), count);
            rig.submit(vec![Op::Purge { at_most: None, queue: queue() }]);
        }
    }
}

/// What the store says of its room is good for one group.
#[test]
fn capacity_is_checked_before_each_group() {
    let mut rig = Rig::new();
    let before = rig.disk.groups().len();
    rig.disk.full_after(Some(2));
    let ops = (0..200).map(|_| Op::Enqueue(Box::new(Enqueue::new(queue(), vec![7; 200_000]))));
    let answers = rig.answers(ops.collect());
    let refused = |a: &&Result<Reply, CallError>| {
        matches!(a, Ok(Reply::Enqueue(Err(duewheel_core::engine::EnqueueRefusal::DiskFull))))
    };
    assert_eq!(rig.disk.groups().len() - before, 2);
    let accepted: usize = rig.disk.groups()[before..].iter().map(|group| group.records.len()).sum();
    assert_eq!(answers.iter().filter(refused).count(), 200 - accepted);
}

/// At its bound a store takes removals alone. Everything else is refused and not applied; consumers that wait go on
/// waiting.
#[test]
fn full_store_takes_removals_only() {
    let mut rig = Rig::new();
    rig.submit(vec![put(0), put(0), put(0), put(60_000), keyed()]);
    let answers = rig.submit(vec![reserve(0)]).try_recv().unwrap();
    let Some(Ok(Reply::Reserve(Reserved::Grants(granted)))) = answers.first() else { panic!("{answers:?}") };
    let proofs: Vec<_> = granted.iter().map(|g| (g.message.id, g.token)).collect();
    let mut waiting = rig.submit(vec![reserve(60_000)]);
    rig.disk.set_room(Capacity::RemoveOnly);
    let before = rig.disk.groups().len();
    let (id, proof) = (proofs[0].0, proofs[0].1.into());
    let refused = [
        Op::Nack { id, proof, delay_ms: None, priority: None, note: "".into(), attempt: Attempt::Failed },
        Op::Bury { id, proof, priority: None, note: "".into() },
        Op::Extend { id, proof, lease_ms: None },
        Op::Fire { target: Target::Id(duewheel_core::MessageId(4)) },
        reserve(0),
        reserve(60_000),
    ];
    for op in refused {
        let what = format!("{op:?}");
        match rig.submit(vec![op]).try_recv().unwrap().pop() {
            Some(Err(error @ CallError::Store { .. })) => {
                assert_eq!((error.outcome(), error.is_retryable()), (Outcome::NotApplied, true), "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    let answers = rig.submit(vec![put(0)]).try_recv().unwrap();
    assert!(matches!(answers[0], Ok(Reply::Enqueue(Err(duewheel_core::engine::EnqueueRefusal::DiskFull)))));
    assert_eq!(rig.disk.groups().len(), before);
    let ack = Op::Ack { id: proofs[1].0, proof: proofs[1].1.into(), result: None };
    assert!(matches!(rig.submit(vec![ack]).try_recv().unwrap()[0], Ok(Reply::Settle(Ok(_)))));
    let cancel = Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Id(duewheel_core::MessageId(4)),
    };
    assert!(matches!(rig.submit(vec![cancel]).try_recv().unwrap()[0], Ok(Reply::Change(Ok(_)))));
    // A lease that ends makes its message ready, and nobody is given it.
    rig.pass(40_000);
    rig.step();
    assert!(waiting.try_recv().is_err(), "it waits on");
    rig.disk.set_room(Capacity::Enough);
    rig.step();
    assert!(grants(waiting.try_recv().unwrap()) > 0);
}

#[test]
fn driver_sleeps_until_next_due() {
    let mut rig = Rig::new();
    rig.submit(vec![put(500)]);
    rig.pass(200); // past the note that follows an append
    rig.step();
    assert_eq!(rig.driver.next_wakeup(rig.now).map(|t| t.0), Some(500));
    rig.submit(vec![Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Id(duewheel_core::MessageId(1)),
    }]);
    rig.pass(200);
    rig.step();
    assert_eq!(rig.driver.next_wakeup(rig.now), None);
}

/// Counts the syncs that the driver makes on its own thread.
struct Synced {
    store: MemoryStore,
    here: Arc<AtomicU64>,
}

impl Store for Synced {
    pass_on!(store: recovered append sync progress room room_error terms find_many ask arrived idle close figures);
    fn sync_here(&mut self) -> Result<(), StoreError> {
        self.here.fetch_add(1, Relaxed);
        self.store.sync_here()
    }
}

/// Story: a consumer of a calm queue acked alone, the driver synced on its own thread for 4 ms, and the queue's next
/// messages, which were due in the meantime, were as late.
#[test]
fn driver_never_syncs_while_due_soon() {
    let (disk, here, mut now) = (MemoryDisk::default(), Arc::new(AtomicU64::new(0)), Now::whole(0, 1_000));
    let mut store = Synced { store: MemoryStore::open(&disk, Arc::new(|| {})), here: here.clone() };
    let recovered = store.recovered();
    let mut driver = Driver::new(store, recovered, Config::default(), now).unwrap();
    while !driver.is_open() {
        driver.step(now, &mut Vec::new()).unwrap();
    }
    // The delay of each message, which is put alone, and whether the driver's thread may sync it.
    for (delay, itself) in [(500, true), (400, true), (2, false), (300, false)] {
        let (answer, mut answers) = oneshot::channel();
        let before = here.load(Relaxed);
        let submission =
            Submission { ops: vec![put(delay)], answer, patience: WhenBusy::Refuse, has_waited: false };
        driver.step(now, &mut vec![submission]).unwrap();
        assert!(matches!(answers.try_recv().unwrap()[0], Ok(Reply::Enqueue(Ok(_)))));
        assert_eq!(here.load(Relaxed) - before, u64::from(itself), "a delay of {delay} ms");
        driver.step(now, &mut Vec::new()).unwrap();
    }
    now = Now::whole(10, 1_010); // the message that was due has fired
    driver.step(now, &mut Vec::new()).unwrap();
    let (answer, _answers) = oneshot::channel();
    let submission =
        Submission { ops: vec![put(200)], answer, patience: WhenBusy::Refuse, has_waited: false };
    driver.step(now, &mut vec![submission]).unwrap();
    assert_eq!(here.load(Relaxed), 3, "nothing is due soon any more");
}

/// Story: a page made the engine remove dead messages; a cancel of one of them in the same step looked it up before
/// that was appended, found it, and removed it once more (review).
#[test]
fn page_effects_append_before_lookup() {
    let mut rig = Rig::new();
    let settings = duewheel_core::policy::QueueSettings { dead_ttl_ms: Some(100), ..Default::default() };
    rig.submit(vec![Op::Configure { queue: queue(), settings }, put(0)]);
    let answers = rig.submit(vec![reserve(0)]).try_recv().unwrap();
    let Some(Ok(Reply::Reserve(Reserved::Grants(granted)))) = answers.first() else { panic!("{answers:?}") };
    let (id, token) = (granted[0].message.id, granted[0].token);
    rig.submit(vec![Op::Bury { id, proof: token.into(), priority: None, note: "".into() }]);
    rig.pass(1_000);
    rig.step(); // asks for the page; it comes with the next step, and so does the cancel
    let mut cancel = rig.submit(vec![Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Id(id),
    }]);
    let refused = matches!(cancel.try_recv().unwrap()[0], Ok(Reply::Change(Err(_))));
    assert!(refused, "it is gone");
    let groups = rig.disk.groups();
    let records = groups.iter().flat_map(|group| &group.records);
    let removals = records.filter(|r| matches!(r, duewheel_core::record::Record::Removed { .. }));
    assert_eq!(removals.count(), 1);
}

/// A store whose disk does not give one message.
struct Unreadable {
    store: MemoryStore,
    /// Its id; 0 if there is none.
    bad: Arc<AtomicU64>,
    /// How many pages fail before one is read.
    bad_pages: Arc<AtomicU64>,
}

impl Store for Unreadable {
    pass_on!(store: recovered append sync sync_here progress room room_error terms ask idle close figures);
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        if lookups.ids.contains(&MessageId(self.bad.load(Relaxed))) {
            return Err(StoreError::new(ErrorKind::Unavailable, "cannot read runs/0000000007.run: EIO"));
        }
        self.store.find_many(lookups, found)
    }
    fn arrived(&mut self) -> Option<Result<StoreArrival, StoreError>> {
        if self.bad_pages.load(Relaxed) > 0 {
            // As the log: it says so once, and reads the page again by itself.
            let said = self.bad_pages.fetch_sub(1, Relaxed).is_multiple_of(2);
            return said.then(|| {
                Err(StoreError::new(ErrorKind::Unavailable, "cannot read runs/0000000007.run: EIO"))
            });
        }
        self.store.arrived()
    }
}

/// Story: one unreadable block failed the step of all callers, and the store was opened again for everybody.
#[test]
fn unreadable_lookup_fails_alone() {
    const FAR: u64 = 300 * 86_400_000;
    let disk = MemoryDisk::default();
    let now = Now::whole(0, 1_000);
    let mut store = MemoryStore::open(&disk, Arc::new(|| {}));
    let recovered = store.recovered();
    let bad = Arc::new(AtomicU64::new(0));
    let unreadable = Unreadable { store, bad: Arc::clone(&bad), bad_pages: Arc::default() };
    // So little memory that what is far off is in the store alone.
    let policy =
        Policy { near_messages: 4, ready_messages: 4, least_window: 4, load_rows: 4, ..Policy::default() };
    let config = Config { policy, ..Config::default() };
    let mut driver = Driver::new(unreadable, recovered, config, now).unwrap();
    while !driver.is_open() {
        driver.step(now, &mut Vec::new()).unwrap();
    }
    let call = |driver: &mut Driver<Unreadable>, ops| {
        let (answer, mut answers) = oneshot::channel();
        driver
            .step(now, &mut vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }])
            .unwrap();
        answers.try_recv().unwrap()
    };
    call(&mut driver, vec![put(FAR), put(FAR)]);
    for _ in 0..4 {
        call(&mut driver, vec![put(60_000), put(60_000), put(60_000)]);
    }
    let get = |id| Op::Get { target: Target::Id(MessageId(id)) };
    let cancel = |id| Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target: Target::Id(MessageId(id)),
    };
    bad.store(1, Relaxed);
    let answers = call(&mut driver, vec![get(1), get(2), cancel(1), put(0), cancel(2)]);
    for refused in [&answers[0], &answers[2]] {
        let Err(CallError::Store { error, outcome }) = refused else { panic!("{refused:?}") };
        assert_eq!((error.kind(), *outcome), (ErrorKind::Unavailable, Outcome::NotApplied));
        assert!(error.to_string().contains("EIO"), "{error}");
    }
    assert!(matches!(answers[1], Ok(Reply::View(Some(_)))), "{:?}", answers[1]);
    assert!(matches!(answers[3], Ok(Reply::Enqueue(Ok(_)))), "{:?}", answers[3]);
    assert!(matches!(answers[4], Ok(Reply::Change(Ok(_)))), "{:?}", answers[4]);
    bad.store(0, Relaxed);
    let answers = call(&mut driver, vec![get(1), get(2), cancel(1)]);
    assert!(matches!(answers[0], Ok(Reply::View(Some(_)))), "it was not applied: {:?}", answers[0]);
    assert!(matches!(answers[1], Ok(Reply::View(None))), "{:?}", answers[1]);
    assert!(matches!(answers[2], Ok(Reply::Change(Ok(_)))), "{:?}", answers[2]);
}

/// Story: what a redrive looks up by itself belongs to no operation of the batch, so a block of it that could not be
/// read ended the driver.
#[test]
fn redrive_with_unreadable_block_fails_alone() {
    let now = Now::whole(0, 1_000);
    let mut store = MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {}));
    let recovered = store.recovered();
    let bad = Arc::new(AtomicU64::new(0));
    let unreadable = Unreadable { store, bad: Arc::clone(&bad), bad_pages: Arc::default() };
    let mut driver = Driver::new(unreadable, recovered, Config::default(), now).unwrap();
    while !driver.is_open() {
        driver.step(now, &mut Vec::new()).unwrap();
    }
    let call = |driver: &mut Driver<Unreadable>, op| {
        let (answer, mut answers) = oneshot::channel();
        driver
            .step(
                now,
                &mut vec![Submission {
                    ops: vec![op],
                    answer,
                    patience: WhenBusy::Refuse,
                    has_waited: false,
                }],
            )
            .unwrap();
        for _ in 0..20 {
            if let Ok(mut answers) = answers.try_recv() {
                return answers.remove(0);
            }
            driver.step(now, &mut Vec::new()).unwrap();
        }
        panic!("no answer");
    };
    call(&mut driver, put(0)).unwrap();
    let Ok(Reply::Reserve(Reserved::Grants(grants))) = call(&mut driver, reserve(0)) else { panic!() };
    let (id, proof) = (grants[0].message.id, grants[0].token.into());
    call(&mut driver, Op::Bury { id, proof, priority: None, note: "".into() }).unwrap();
    let redrive = || Op::RedriveMany { queue: queue(), max: 10 };
    bad.store(id.0, Relaxed);
    match call(&mut driver, redrive()) {
        Err(CallError::Store { outcome: Outcome::NotApplied, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(call(&mut driver, put(0)), Ok(Reply::Enqueue(Ok(_)))), "all others go on");
    bad.store(0, Relaxed);
    assert!(matches!(call(&mut driver, redrive()), Ok(Reply::Count(n)) if *n == 1));
}

/// Story: a page that could not be read failed the step of all callers, and the next owner met the same block.
#[test]
fn unreadable_page_blocks_no_others() {
    let now = Now::whole(0, 1_000);
    let mut store = MemoryStore::open(&MemoryDisk::default(), Arc::new(|| {}));
    let recovered = store.recovered();
    let bad_pages = Arc::new(AtomicU64::new(0));
    let unreadable = Unreadable { store, bad: Arc::default(), bad_pages: Arc::clone(&bad_pages) };
    let mut driver = Driver::new(unreadable, recovered, Config::default(), now).unwrap();
    while !driver.is_open() {
        driver.step(now, &mut Vec::new()).unwrap();
    }
    let submit = |driver: &mut Driver<Unreadable>, ops| {
        let (answer, answers) = oneshot::channel();
        driver
            .step(now, &mut vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }])
            .unwrap();
        answers
    };
    submit(&mut driver, vec![put(60_000)]);
    let list = Op::List { queue: queue(), state: None, after: None, limit: 10, from: None };
    let mut page = submit(&mut driver, vec![list]);
    bad_pages.store(4, Relaxed);
    for _ in 0..2 {
        let mut other = submit(&mut driver, vec![put(0)]);
        assert!(matches!(other.try_recv().unwrap()[0], Ok(Reply::Enqueue(Ok(_)))));
        assert!(page.try_recv().is_err(), "it waits");
    }
    driver.step(now, &mut Vec::new()).unwrap();
    assert!(matches!(&page.try_recv().unwrap()[0], Ok(Reply::Page(_))));
}

/// Story: a listing waits for a page; a shutdown must not end before it is answered.
#[test]
fn driver_waits_for_pending_page() {
    let mut rig = Rig::new();
    rig.submit(vec![put(60_000)]);
    let mut page =
        rig.submit(vec![Op::List { queue: queue(), state: None, after: None, limit: 10, from: None }]);
    assert!(page.try_recv().is_err() && rig.driver.is_waiting_for_store());
    rig.step();
    assert!(matches!(&page.try_recv().unwrap()[0], Ok(Reply::Page(page)) if page.views.len() == 1));
    assert!(!rig.driver.is_waiting_for_store());
}

/// A store that does not always reach what it hopes for: `durability` says what was reached, also when a caller who
/// does not answer anybody has asked for the progress in between.
#[test]
fn answers_report_reached_level() {
    let levels = |answers: Answers| -> Vec<Level> {
        let level = |answer: Result<Reply, CallError>| match answer {
            Ok(reply) => reply.level().unwrap_or_else(|| panic!("{reply:?}")),
            other => panic!("{other:?}"),
        };
        answers.into_iter().map(level).collect()
    };
    let mut rig = Rig::new();
    for level in [Level::Memory, Level::Fsync, Level::Buffered, Level::BestEffortReplicated] {
        rig.disk.claim(level);
        let mut answers = rig.submit(vec![put(1), put(2)]);
        assert_eq!(levels(answers.try_recv().unwrap()), [level; 2]);
        let pause = Op::Pause { queue: queue(), for_ms: None };
        let configure = Op::Configure { queue: queue(), settings: QueueSettings::default() };
        let mut answers = rig.submit(vec![configure, pause, Op::Resume { queue: queue() }]);
        assert_eq!(levels(answers.try_recv().unwrap()), [level; 3], "settings of a queue");
        assert_eq!(rig.driver.reached(), level);
    }
    // So far away that the next driver does not load it.
    rig.submit(vec![put(30 * 86_400_000)]);
    rig.submit(vec![put(60_000); 8]);
    let far = MessageId(9);
    let policy =
        Policy { near_messages: 4, ready_messages: 4, least_window: 4, load_rows: 4, ..Policy::default() };
    let config = Config { policy, ..Config::default() };
    // It was durable at a lower level when nobody was answered.
    let falls = Falls::default();
    let mut store = MemoryStore::open(&rig.disk, Arc::new(|| {}));
    let recovered = store.recovered();
    let store = Falling { store, falls: falls.clone() };
    let mut driver = Driver::new(store, recovered, config, rig.now).unwrap();
    while !driver.is_open() {
        driver.step(rig.now, &mut Vec::new()).unwrap();
    }
    let (answer, mut answers) = oneshot::channel();
    // Asked for by the look-up that fails, and again when answers leave.
    falls.store(1, Relaxed);
    let ops = vec![put(1), Op::Get { target: Target::Id(far) }];
    driver
        .step(rig.now, &mut vec![Submission { ops, answer, patience: WhenBusy::Refuse, has_waited: false }])
        .unwrap();
    let mut said = answers.try_recv().unwrap();
    assert!(matches!(said.pop(), Some(Ok(Reply::View(Some(_))))));
    assert_eq!((levels(said), falls.load(Relaxed)), (vec![Level::Memory], 0));
    assert_eq!(falls.load(Relaxed), 0, "it was asked for twice");
    driver.step(rig.now, &mut Vec::new()).unwrap();
    assert_eq!(driver.reached(), Level::BestEffortReplicated, "what was told is told once");
}

type Falls = Arc<AtomicU64>;

/// A store that tells of a lower level once, when a look-up has failed.
struct Falling {
    store: MemoryStore,
    falls: Falls,
}

impl Store for Falling {
    pass_on!(store: recovered append sync sync_here room room_error terms ask arrived idle close figures);
    fn progress(&mut self) -> Result<Progress, StoreError> {
        let progress = self.store.progress()?;
        if self.falls.load(Relaxed) == 2 {
            self.falls.store(0, Relaxed);
            return Ok(Progress { level: Level::Memory, ..progress });
        }
        Ok(progress)
    }
    fn find_many(&mut self, lookups: &Lookups, found: &mut Found) -> Result<AtHand, StoreError> {
        if self.falls.compare_exchange(1, 2, Relaxed, Relaxed).is_ok() {
            return Err(StoreError::new(ErrorKind::Unavailable, "for a moment"));
        }
        self.store.find_many(lookups, found)
    }
}
