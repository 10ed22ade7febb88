//! Answers remembered for a `dedupe_id`: the store keeps them, this module holds those of the present batch.

use hashbrown::HashMap;
use xxhash_rust::xxh3::Xxh3;

use crate::hash_key::HashKey;
use crate::message::{Expiry, is_of_a_trace};
use crate::name::QueueName;
use crate::record::DedupeRow;
use crate::time::EngineMs;

use super::input::{Enqueue, IfExists, InitialState, Past, When};

#[derive(Debug)]
pub(super) struct Dedupe {
    rows: HashMap<(QueueName, Box<str>), DedupeRow, HashKey>,
}

impl Dedupe {
    pub(super) fn new(key: HashKey) -> Self {
        Dedupe { rows: HashMap::with_hasher(key) }
    }

    /// The answer given for an id, unless it has expired.
    pub(super) fn find(&self, queue: &QueueName, id: &str, now: EngineMs) -> Option<&DedupeRow> {
        self.rows.get(&(queue.clone(), id.into())).filter(|row| row.until > now)
    }

    /// Whether the store need not be asked, because this batch has a newer answer.
    pub(super) fn knows(&self, queue: &QueueName, id: &str) -> bool {
        !self.rows.is_empty() && self.rows.contains_key(&(queue.clone(), id.into()))
    }

    pub(super) fn insert(&mut self, row: DedupeRow) {
        self.rows.insert((row.queue.clone(), row.dedupe_id.clone()), row);
    }

    /// Ends the batch.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }
}

/// A hash of the content of an enqueue: the same content gives the same number, in every version. The headers that name a
/// trace are no content: each try has a span of its own.
pub(super) fn content(e: &Enqueue) -> u128 {
    let mut h = Xxh3::new();
    let mut text = |b: &[u8]| {
        h.update(&(b.len() as u64).to_le_bytes());
        h.update(b);
    };
    text(&e.body);
    text(e.key.as_ref().map_or("", |k| k.as_str()).as_bytes());
    let headers = || e.headers.iter().filter(|(name, _)| !is_of_a_trace(name));
    for (name, value) in headers() {
        text(name.as_bytes());
        text(value.as_bytes());
    }
    let mut number = |n: Option<u64>| match n {
        None => h.update(&[0]),
        Some(n) => {
            h.update(&[1]);
            h.update(&n.to_le_bytes());
        }
    };
    number(Some(headers().count() as u64));
    match e.when {
        When::After(ms) => {
            number(None);
            number(Some(ms));
        }
        When::Seconds(s) => {
            number(None);
            number(Some(u64::from(s) * 1_000));
        }
        When::At { due_at, past } => {
            number(Some(due_at.0));
            number(Some(u64::from(past == Past::Fire)));
        }
    }
    number(Some(match e.if_exists {
        IfExists::Reject => 0,
        IfExists::Keep => 1,
        IfExists::Replace => 2,
    }));
    number(e.priority.map(u64::from));
    number(e.options.lease_ms);
    number(e.options.max_attempts.map(|n| u64::from(n.count())));
    number(e.options.backoff.map(|b| b.min_ms));
    number(e.options.backoff.map(|b| b.max_ms));
    // Without them the number is that of a version that did not have them.
    if let Some(ms) = e.options.spread_ms {
        h.update(b"spread");
        h.update(&ms.to_le_bytes());
    }
    match e.options.expiry {
        None => {}
        Some(Expiry::In(ms)) => {
            h.update(b"expires in");
            h.update(&ms.to_le_bytes());
        }
        Some(Expiry::At(at)) => {
            h.update(b"expires at");
            h.update(&at.0.to_le_bytes());
        }
    }
    if e.begins == InitialState::Dead {
        h.update(b"dead");
    }
    h.digest128()
}
