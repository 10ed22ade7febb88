//! Messages of this batch that went straight to the store: due later than memory reaches.
//!
//! Nearly every message of a large backlog is one of these, so they cost as little as can be: a row in a list, and a key in a small table. Only an
//! operation of the same batch that names one of them brings it into memory.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

use crate::id::{Lsn, MessageId};
use crate::message::{Life, Message, Row};
use crate::name::{Key, QueueName};

use super::Engine;
use super::input::{Op, Target};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Fresh {
    /// In order of id.
    rows: Vec<Option<FreshRow>>,
    keys: HashTable<u32>,
    hasher: FixedState,
}

#[derive(Debug)]
struct FreshRow {
    message: Arc<Message>,
    life: Life,
    born: Lsn,
}

impl Fresh {
    pub(super) fn new(seed: u64) -> Self {
        Fresh { rows: Vec::new(), keys: HashTable::new(), hasher: FixedState::with_seed(seed) }
    }

    /// Adds a message; its id is above all others.
    pub(super) fn push(&mut self, message: Arc<Message>, life: Life, born: Lsn) {
        let Fresh { rows, keys, hasher } = self;
        if let Some(key) = &message.key {
            let hash = hasher.hash_one((&message.queue, key.as_str()));
            let index = u32::try_from(rows.len()).expect("a batch is bounded");
            keys.insert_unique(hash, index, |&i| match &rows[i as usize] {
                Some(FreshRow { message, .. }) => {
                    hasher.hash_one((&message.queue, message.key.as_ref().map_or("", Key::as_str)))
                }
                None => 0,
            });
        }
        rows.push(Some(FreshRow { message, life, born }));
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
    }

    /// The messages of a queue were purged.
    pub(super) fn purge(&mut self, queue: &QueueName) {
        for row in &mut self.rows {
            if row.as_ref().is_some_and(|row| row.message.queue == *queue) {
                *row = None;
            }
        }
    }

    fn by_id(&self, id: MessageId) -> Option<usize> {
        let first = self.rows.iter().flatten().next()?.message.id;
        let from = self.rows.iter().position(Option::is_some)?;
        let mut at = from + usize::try_from(id.0.checked_sub(first.0)?).ok()?;
        // Ids of other messages of the batch lie between: this one is not behind where it would be without them.
        at = at.min(self.rows.len().checked_sub(1)?);
        (from..=at).rev().find(|&i| self.rows[i].as_ref().is_some_and(|row| row.message.id == id))
    }

    fn by_key(&self, queue: &QueueName, key: &Key) -> Option<usize> {
        let hash = self.hasher.hash_one((queue, key.as_str()));
        let is_it = |&i: &u32| {
            let row = self.rows[i as usize].as_ref();
            row.is_some_and(|row| row.message.key.as_ref() == Some(key) && row.message.queue == *queue)
        };
        self.keys.find(hash, is_it).map(|&i| i as usize)
    }
}

impl Engine {
    /// Brings a message of this batch into memory if the operation names it.
    pub(super) fn meet_fresh(&mut self, op: &Op) {
        if self.fresh.rows.is_empty() {
            return;
        }
        let found = match op {
            Op::Enqueue(e) => e.key.as_ref().and_then(|key| self.fresh.by_key(&e.queue, key)),
            Op::ReserveOne { id, .. }
            | Op::Ack { id, .. }
            | Op::Nack { id, .. }
            | Op::Bury { id, .. }
            | Op::Extend { id, .. }
            | Op::Redrive { id }
            | Op::Cancel { target: Target::Id(id) }
            | Op::Postpone { target: Target::Id(id), .. }
            | Op::Fire { target: Target::Id(id) }
            | Op::Get { target: Target::Id(id) } => self.fresh.by_id(*id),
            Op::Cancel { target: Target::Key(queue, key) }
            | Op::Postpone { target: Target::Key(queue, key), .. }
            | Op::Fire { target: Target::Key(queue, key) }
            | Op::Get { target: Target::Key(queue, key) } => self.fresh.by_key(queue, key),
            // These see what is appended, or keep counts.
            Op::Reserve(_)
            | Op::CancelReserve { .. }
            | Op::Undelivered { .. }
            | Op::FireMany { .. }
            | Op::RedriveMany { .. }
            | Op::Peek { .. }
            | Op::List { .. }
            | Op::Queue { .. }
            | Op::Queues { .. }
            | Op::Histogram { .. }
            | Op::Wheel
            | Op::Stats
            | Op::Configure { .. }
            | Op::Pause { .. }
            | Op::Resume { .. }
            | Op::Purge { .. }
            | Op::SessionClosed { .. }
            | Op::SessionDeadline { .. }
            | Op::NextDue => None,
        };
        self.meet(found);
        // These bring a dead message back, and then somebody else may have its key by now.
        if let Op::Redrive { id } | Op::ReserveOne { id, .. } = op
            && let Some(message) = self.live(*id).map(|slot| self.rows.get(slot).message.clone())
            && let Some(key) = &message.key
        {
            self.meet(self.fresh.by_key(&message.queue, key));
        }
    }

    fn meet(&mut self, found: Option<usize>) {
        if let Some(FreshRow { message, life, born }) = found.and_then(|i| self.fresh.rows[i].take()) {
            self.insert_far(Row { message, life }, born, born);
        }
    }
}
