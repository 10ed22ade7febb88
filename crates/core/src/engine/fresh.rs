//! Messages of this batch that went directly to the store because they are due behind the horizon.
//!
//! Nearly every message of a large backlog is one of these, so they cost as little as can be: a row in a list, and a
//! key in a small table. Only an operation of the same batch that names one of them brings it into memory.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::id::{Lsn, MessageId};
use crate::message::{Life, Message, Row};
use crate::name::{Key, QueueName};

use super::Engine;
use super::input::Op;
use super::operation::Named;

/// The messages of the batch; see the [module](self).
#[derive(Debug)]
pub(super) struct Fresh {
    /// Ids, ascending.
    ids: Vec<MessageId>,
    /// The row of each id; `None` once it is in memory, or purged.
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
        Fresh {
            ids: Vec::new(),
            rows: Vec::new(),
            keys: HashTable::new(),
            hasher: FixedState::with_seed(seed),
        }
    }

    /// Adds a message; its id is above all others.
    pub(super) fn push(&mut self, message: Arc<Message>, life: Life, born: Lsn) {
        let Fresh { ids, rows, keys, hasher } = self;
        ids.push(message.id);
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
        self.ids.clear();
        self.rows.clear();
        self.keys.clear();
    }

    /// Removes the purged messages of a queue.
    pub(super) fn purge(&mut self, queue: &QueueName) {
        for row in &mut self.rows {
            if row.as_ref().is_some_and(|row| row.message.queue == *queue) {
                *row = None;
            }
        }
    }

    fn by_id(&self, id: MessageId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
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
        match op.names() {
            Named::Id(id) => self.meet(self.fresh.by_id(id)),
            Named::Key(queue, key) => self.meet(self.fresh.by_key(queue, key)),
            Named::Nothing => {}
        }
        if let Named::Id(id) = op.names()
            && op.operation().revives
            && let Some(message) = self.live(id).map(|slot| self.rows.get(slot).message.clone())
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
