//! Groups that the store refuses as a whole, and groups of which nobody knows: what goes on by itself, and what is
//! counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use duewheel_core::engine::{Config, Grant, Op, Reply, Reserved};
use duewheel_core::record::Totals;
use duewheel_core::store::{ErrorKind, Level, MemoryDisk, MemoryStore, Progress, StoreError};
use duewheel_shard::client::Client;
use duewheel_shard::clock::SystemClock;
use duewheel_shard::error::{CallError, Outcome};
use duewheel_shard::inbox::{Answers, Pending, WhenBusy};
use duewheel_shard::runner::{AfterTurn, Runner};
use duewheel_shard::shared::DriverEnd;

use crate::driver::{put, reserve};

struct Rig {
    disk: MemoryDisk,
    /// Another node has the shard: it cannot be opened.
    is_taken: Arc<AtomicBool>,
    runner: Runner,
    client: Client,
}

impl Rig {
    fn new() -> Self {
        let disk = MemoryDisk::default();
        disk.claim(Level::Fsync);
        disk.sync_by_hand();
        let place = disk.clone();
        let is_taken = Arc::new(AtomicBool::new(false));
        let taken = Arc::clone(&is_taken);
        let opener = Box::new(move |waker| match taken.load(Ordering::SeqCst) {
            false => Ok(Box::new(MemoryStore::open(&place, waker)) as _),
            true => Err(StoreError::new(ErrorKind::Fenced, "another node has it")),
        });
        let mut runner = Runner::start(opener, Config::default(), Arc::new(SystemClock)).unwrap();
        while runner.opening().unwrap().is_some() {}
        Rig { disk, is_taken, client: runner.client(), runner }
    }

    fn submit(&mut self, ops: Vec<Op>) -> Pending {
        let Ok(pending) = self.client.offer(ops, WhenBusy::Refuse) else { panic!("the inbox is full") };
        self.turn();
        pending
    }

    fn turn(&mut self) {
        assert!(!matches!(self.runner.turn(), AfterTurn::Ended(_)), "it lives");
    }

    /// The answers, once everything that was appended is synced.
    fn answers(&mut self, pending: Pending) -> Answers {
        let mut pending = Box::pin(pending);
        for _ in 0..1_000 {
            self.disk.complete_sync();
            self.turn();
            if let Poll::Ready(answers) = pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                // Grants are answered before their sync is requested.
                self.turn();
                self.disk.complete_sync();
                return answers;
            }
        }
        panic!("no answer");
    }

    fn call(&mut self, op: Op) -> Reply {
        let pending = self.submit(vec![op]);
        self.answers(pending).pop().unwrap().unwrap()
    }

    fn granted(&mut self) -> Vec<Grant> {
        match self.call(reserve(0)) {
            Reply::Reserve(Reserved::Grants(grants)) => grants,
            other => panic!("{other:?}"),
        }
    }

    /// As they are after one more turn.
    fn totals(&mut self) -> Totals {
        self.client.renew_store_figures();
        self.call(Op::NextDue);
        self.client.local_shards()[0].counted().totals
    }

    /// The store refuses all groups that it has not synced.
    fn refuse(&mut self, kind: ErrorKind) {
        let groups = self.disk.groups();
        self.disk.lose_power();
        let first = groups[self.disk.groups().len()].first;
        self.disk.fail(StoreError::new(kind, "no memory").with_nothing_from(first));
    }
}

fn ack(grant: &Grant) -> Op {
    Op::Ack { id: grant.message.id, proof: grant.token.into(), result: None }
}

fn is_refused(answer: &Result<Reply, CallError>) -> bool {
    matches!(answer, Err(CallError::Store { error, outcome: Outcome::NotApplied }) if error.kind() == ErrorKind::Full)
}

/// Story: Redis had no memory left and refused a group with a new message in it. The acks of the same group, and of
/// those behind it, were answered 507 with it, although an ack needs no memory.
#[test]
fn acks_survive_refused_enqueues_in_group() {
    let mut rig = Rig::new();
    for _ in 0..4 {
        rig.call(put(0));
    }
    let grants = rig.granted();
    assert_eq!(grants.len(), 4);
    let target = duewheel_core::engine::Target::Id(grants[3].message.id);
    let both = rig.submit(vec![put(60_000), ack(&grants[0]), put(60_000)]);
    let behind = rig.submit(vec![ack(&grants[1])]);
    let stale = rig.submit(vec![ack(&grants[1])]);
    let cancel = rig.submit(vec![Op::Cancel {
        keep: None,
        dedupe_id: duewheel_core::engine::DedupeId::Stays,
        target,
    }]);
    rig.refuse(ErrorKind::Full);
    let waits = rig.submit(vec![ack(&grants[2])]);
    let both = rig.answers(both);
    assert!(is_refused(&both[0]) && is_refused(&both[2]), "{both:?}");
    assert!(matches!(both[1], Ok(Reply::Settle(Ok(_)))), "{both:?}");
    for pending in [behind, stale, waits] {
        let answers = rig.answers(pending);
        assert!(matches!(answers[0], Ok(Reply::Settle(Ok(_)))), "{answers:?}");
    }
    let answers = rig.answers(cancel);
    assert!(answers[0].is_ok(), "{answers:?}");
    let totals = rig.totals();
    assert_eq!((totals.enqueued, totals.acked), (4, 3), "{totals:?}");
}

/// Story: Redis had confirmed an ack, and refused the group behind it. The driver heard of both together, and the ack
/// was answered as unknown.
#[test]
fn durable_answers_survive_later_refusal() {
    let mut rig = Rig::new();
    rig.call(put(0));
    let grants = rig.granted();
    let before = rig.submit(vec![ack(&grants[0])]);
    let durable = rig.disk.groups().last().unwrap().last();
    let refused = rig.submit(vec![put(60_000)]);
    let reached = Progress { written: durable, durable, level: Level::Fsync };
    let error = StoreError::new(ErrorKind::Full, "no memory").with_nothing_from(durable.next());
    rig.disk.fail(error.with_reached(reached));
    let answers = rig.answers(before);
    assert!(matches!(answers[0], Ok(Reply::Settle(Ok(_)))), "{answers:?}");
    let answers = rig.answers(refused);
    assert!(is_refused(&answers[0]), "{answers:?}");
    assert_eq!(rig.totals().acked, 1);
}

/// Story: the same, and then another node had the shard. The ack was answered, and never counted.
#[test]
fn fenced_owner_counts_earlier_durable_acks() {
    let mut rig = Rig::new();
    rig.call(put(0));
    let grants = rig.granted();
    let before = rig.submit(vec![ack(&grants[0])]);
    let durable = rig.disk.groups().last().unwrap().last();
    let reached = Progress { written: durable, durable, level: Level::Fsync };
    let error = StoreError::new(ErrorKind::Full, "no memory").with_nothing_from(durable.next());
    rig.disk.fail(error.with_reached(reached));
    rig.is_taken.store(true, Ordering::SeqCst);
    rig.turn();
    let mut before = std::pin::pin!(before);
    let answers = before.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(&answers, Poll::Ready(answers) if answers[0].is_ok()), "{answers:?}");
    let Rig { runner, client, .. } = rig;
    runner.end(DriverEnd::Fenced("another node has it".to_owned()));
    assert_eq!(client.local_shards()[0].counted().totals.acked, 1);
}

/// A store that is full for another reason, or that says nothing, promises nothing about them.
#[test]
fn silent_store_leaves_settlements_unknown() {
    let mut rig = Rig::new();
    rig.call(put(0));
    let grants = rig.granted();
    let both = rig.submit(vec![put(60_000), ack(&grants[0])]);
    rig.disk.fail(StoreError::new(ErrorKind::Full, "no memory"));
    for answer in rig.answers(both) {
        assert!(matches!(answer, Err(CallError::Store { outcome: Outcome::Unknown, .. })), "{answer:?}");
    }
}

/// Story: a group that a fenced store had refused was counted, and its second try as well: 45 messages for 32.
#[test]
fn refused_groups_are_not_counted() {
    let mut rig = Rig::new();
    rig.call(put(0));
    let grants = rig.granted();
    for kind in [ErrorKind::Fenced, ErrorKind::Unavailable, ErrorKind::Full] {
        let refused = rig.submit(vec![put(60_000), put(60_000)]);
        let behind = rig.submit(vec![put(60_000)]);
        rig.refuse(kind);
        for pending in [refused, behind] {
            for answer in rig.answers(pending) {
                assert!(
                    matches!(answer, Err(CallError::Store { outcome: Outcome::NotApplied, .. })),
                    "{answer:?}"
                );
            }
        }
    }
    rig.call(ack(&grants[0]));
    let totals = rig.totals();
    assert_eq!((totals.enqueued, totals.granted, totals.acked), (1, 1, 1), "{totals:?}");
}

/// Story: a bug of ours was told as a store that is away, which callers try again and nobody looks into.
#[test]
fn mismatched_answer_is_reported_as_bug() {
    let came = Client::answer_to::<duewheel_core::engine::Enqueue>(Some(Ok(Reply::Done)));
    let Err(error @ CallError::Bug(_)) = came else { panic!("{came:?}") };
    assert_eq!((error.outcome(), error.is_retryable()), (Outcome::Unknown, false));
}

/// The outcome was unknown, and the store shows it when it is open again.
#[test]
fn unknown_outcomes_count_if_stored() {
    let mut rig = Rig::new();
    rig.call(put(0));
    // Two are there when the store is open again, and two others are not.
    for kept in [true, false] {
        let doubtful = rig.submit(vec![put(60_000), put(60_000)]);
        if !kept {
            rig.disk.lose_power();
        }
        rig.disk.fail(StoreError::new(ErrorKind::Unavailable, "gone"));
        for answer in rig.answers(doubtful) {
            assert!(matches!(answer, Err(CallError::Store { outcome: Outcome::Unknown, .. })), "{answer:?}");
        }
        assert_eq!(rig.totals().enqueued, 3, "kept: {kept}");
    }
}
