//! Answers remembered for a `dedupe_id`.

use std::collections::BTreeSet;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use xxhash_rust::xxh3::Xxh3;

use crate::name::QueueName;
use crate::record::DedupeRow;
use crate::time::EngineMs;

use super::input::{Enqueue, IfExists, Past, When};

type Name = (QueueName, Box<str>);

#[derive(Debug)]
pub(super) struct Dedupe {
    rows: HashMap<Name, DedupeRow, FixedState>,
    by_time: BTreeSet<(EngineMs, Name)>,
}

impl Dedupe {
    pub(super) fn new(seed: u64) -> Self {
        Dedupe { rows: HashMap::with_hasher(FixedState::with_seed(seed ^ 0x9e37)), by_time: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn find(&self, queue: &QueueName, id: &str, now: EngineMs) -> Option<&DedupeRow> {
        self.rows.get(&(queue.clone(), id.into())).filter(|row| row.until > now)
    }

    pub(super) fn insert(&mut self, row: DedupeRow) {
        let name = (row.queue.clone(), row.dedupe_id.clone());
        self.by_time.insert((row.until, name.clone()));
        if let Some(old) = self.rows.insert(name.clone(), row) {
            let until = self.rows[&name].until;
            if old.until != until {
                self.by_time.remove(&(old.until, name));
            }
        }
    }

    /// Forgets what is over, at most `max`.
    pub(super) fn expire(&mut self, now: EngineMs, max: usize) {
        for _ in 0..max {
            match self.by_time.first() {
                Some((until, _)) if *until <= now => {}
                Some(_) | None => return,
            }
            if let Some((_, name)) = self.by_time.pop_first() {
                self.rows.remove(&name);
            }
        }
    }

    pub(super) fn next(&self) -> Option<EngineMs> {
        self.by_time.first().map(|(until, _)| *until)
    }
}

/// What an enqueue asks for, as a number: the same content gives the same number, in every version.
pub(super) fn content(e: &Enqueue) -> u128 {
    let mut h = Xxh3::new();
    let mut text = |b: &[u8]| {
        h.update(&(b.len() as u64).to_le_bytes());
        h.update(b);
    };
    text(&e.body);
    text(e.key.as_ref().map_or("", |k| k.as_str()).as_bytes());
    for (name, value) in &e.headers {
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
    number(Some(e.headers.len() as u64));
    match e.when {
        When::After(ms) => {
            number(None);
            number(Some(ms));
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
    h.digest128()
}
