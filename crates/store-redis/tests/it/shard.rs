//! One shard and its owner, and what it may be told: records with the states that they follow.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::message::{DeadReason, Died, Life, MessageContent, Stage};
use duewheel_core::record::{ClockPair, Group, Record, Was};
use duewheel_core::store::Store;
use duewheel_core::time::{Due, EngineMs, WallMs};
use duewheel_core::{Key, Lsn, MessageId, QueueName};
use duewheel_redis_rig::{Redis, Value};
use duewheel_store_medium::MediumStore;
use duewheel_store_redis::Options;

use crate::place::{open, until};

pub(crate) fn ask(redis: &Redis, words: &[&str]) -> Value {
    let reply = redis.command(words).expect("a reply");
    assert!(!matches!(reply, Value::Error(_)), "{words:?}: {reply:?}");
    reply
}

pub(crate) fn number(redis: &Redis, words: &[&str]) -> u64 {
    ask(redis, words).number().expect("a number")
}

pub(crate) fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name")
}

pub(crate) fn put(queue: &QueueName, id: u64, key: Option<&str>, body: Bytes) -> Record {
    let key = key.map(|key| Key::new(key).expect("a good key"));
    let (options, enqueued_at) = (duewheel_core::message::Options::default(), WallMs(7));
    let message = MessageContent {
        dedupe_id: None,
        id: MessageId(id),
        queue: queue.clone(),
        key,
        body,
        headers: Vec::new(),
        options,
        enqueued_at,
    };
    let due =
        if id.is_multiple_of(2) { Due::At(WallMs(1_000 + id)) } else { Due::After(EngineMs(9_000_000 + id)) };
    Record::Put { message: Arc::new(message), life: Life::new(due, None), was: None }
}

pub(crate) fn parts(record: &Record) -> (&MessageContent, &Life, Was) {
    let Record::Put { message, life, .. } = record else { panic!("a put") };
    (message, life, Was::of(message, life))
}

pub(crate) fn dead(record: &Record, at: u64) -> Record {
    let (message, life, was) = parts(record);
    let at = Died::at(WallMs(at));
    let life = Life { stage: Stage::Dead { reason: DeadReason::Buried, at, token: None }, ..life.clone() };
    Record::Changed { id: message.id, life, was }
}

pub(crate) struct Shard {
    pub(crate) store: MediumStore,
    pub(crate) next: Lsn,
    pub(crate) clock: ClockPair,
}

impl Shard {
    pub(crate) fn open(options: &Options) -> Self {
        let mut store = open(options);
        let recovered = store.recovered();
        Shard { store, next: recovered.next_lsn, clock: recovered.clock.unwrap_or_default() }
    }

    pub(crate) fn append(&mut self, records: Vec<Record>) -> Group {
        let group = Group { first: self.next, clock: self.clock, records };
        self.next = group.last().next();
        self.store.append(&group).expect("append");
        group
    }

    pub(crate) fn settle(&mut self) {
        let last = Lsn(self.next.0 - 1);
        until("it is durable", || self.store.progress().expect("it lives").durable >= last);
    }

    pub(crate) fn figure(&self, name: &str) -> u64 {
        let figure = self.store.figures().into_iter().find(|(n, _)| *n == name);
        figure.expect("a figure").1
    }
}
