//! One shard and its owner, and what it may be told: records with the states that they follow.

use std::sync::Arc;

use bytes::Bytes;
use duewheel_core::id::{Epoch, LeaseToken, SessionId};
use duewheel_core::message::{DeadReason, Died, Lease, Life, MessageContent, Row, Stage};
use duewheel_core::record::{ClockPair, Group, Record, Was};
use duewheel_core::store::{Load, Loaded, More, Sequence, Store, Which};
use duewheel_core::time::{Due, EngineMs, WallMs};
use duewheel_core::{Key, Lsn, MessageId, QueueName};
use duewheel_redis_rig::{Redis, Value};
use duewheel_store_redis::{Options, RedisStore};

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
    let (queue, weight) = (message.queue.clone(), message.weight() as u64);
    (message, life, Was { queue, kind: life.stage.kind(), due: life.due, weight })
}

pub(crate) fn leased(record: &Record, until: u64) -> Record {
    let (message, _, was) = parts(record);
    let token = LeaseToken { epoch: Epoch(1), counter: message.id.0 };
    let lease = Lease { token, until: EngineMs(until), session: SessionId::NONE, granted_at: WallMs(5) };
    Record::Granted { id: message.id, attempt: 1, lease, was }
}

pub(crate) fn dead(record: &Record, at: u64) -> Record {
    let (message, life, was) = parts(record);
    let at = Died::at(WallMs(at));
    let life = Life { stage: Stage::Dead { reason: DeadReason::Buried, at }, ..life.clone() };
    Record::Changed { id: message.id, life, was }
}

pub(crate) struct Shard {
    pub(crate) store: RedisStore,
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

    /// All pages from here on.
    pub(crate) fn pages(&mut self, mut load: Load) -> Vec<Row> {
        let mut rows = Vec::new();
        loop {
            let page = self.load(load.clone());
            rows.extend(page.rows);
            match page.more {
                More::Yes => load.after = page.upto,
                More::No => return rows,
            }
        }
    }

    pub(crate) fn load(&mut self, load: Load) -> Loaded {
        self.store.load(load).expect("load");
        let mut page = None;
        until("the page comes", || {
            page = self.store.loaded();
            page.is_some()
        });
        page.expect("a page").expect("loaded")
    }
}

/// The same, due at an instant.
pub(crate) fn at(ms: u64, record: Record) -> Record {
    let Record::Put { message, was, .. } = record else { panic!("a put") };
    Record::Put { message, life: Life::new(Due::At(WallMs(ms)), None), was }
}

/// Everything in a sequence, in small pages.
pub(crate) fn all(sequence: Sequence, which: Which) -> Load {
    Load { ticket: 1, sequence, which, after: None, until: u64::MAX, rows: 100, bytes: 1 << 20 }
}
