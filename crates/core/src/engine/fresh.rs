//! Messages of this batch that went directly to the store because they are due behind the horizon, and look-ups that
//! the store has left for the next batch.
//!
//! Nearly every message of a large backlog is one of these, so they cost as little as can be: a row in a list, and a
//! key in a small table. Only an operation of the same batch that names one of them brings it into memory.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::hash_key::HashKey;
use crate::id::{Lsn, MessageId};
use crate::message::{Life, MessageContent};
use crate::name::{Key, QueueName};
use crate::store::{Left, Lookups};

/// The messages of the batch.
#[derive(Debug)]
pub(super) struct Fresh {
    /// Ids, ascending.
    ids: Vec<MessageId>,
    /// The row of each id; `None` once it is in memory, or purged.
    rows: Vec<Option<FreshRow>>,
    key_rows: HashTable<u32>,
    hasher: HashKey,
}

#[derive(Debug)]
pub(super) struct FreshRow {
    pub(super) message: Arc<MessageContent>,
    pub(super) life: Life,
    pub(super) born: Lsn,
}

impl Fresh {
    pub(super) fn new(key: HashKey) -> Self {
        Fresh { ids: Vec::new(), rows: Vec::new(), key_rows: HashTable::new(), hasher: key }
    }

    /// Adds a message; its id is above all others.
    pub(super) fn push(&mut self, message: Arc<MessageContent>, life: Life, born: Lsn) {
        let Fresh { ids, rows, key_rows, hasher } = self;
        ids.push(message.id);
        if let Some(key) = &message.key {
            let hash = hasher.hash_one((&message.queue, key.as_str()));
            let index = u32::try_from(rows.len()).expect("a batch is bounded");
            key_rows.insert_unique(hash, index, |&i| match &rows[i as usize] {
                Some(FreshRow { message, .. }) => {
                    hasher.hash_one((&message.queue, message.key.as_ref().map_or("", Key::as_str)))
                }
                None => 0,
            });
        }
        rows.push(Some(FreshRow { message, life, born }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes a message out, unless that has been done.
    pub(super) fn take(&mut self, row: usize) -> Option<FreshRow> {
        self.rows[row].take()
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.rows.clear();
        self.key_rows.clear();
    }

    /// Removes the purged messages of a queue.
    pub(super) fn purge(&mut self, queue: &QueueName) {
        for row in &mut self.rows {
            if row.as_ref().is_some_and(|row| row.message.queue == *queue) {
                *row = None;
            }
        }
    }

    pub(super) fn by_id(&self, id: MessageId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    pub(super) fn by_key(&self, queue: &QueueName, key: &Key) -> Option<usize> {
        let hash = self.hasher.hash_one((queue, key.as_str()));
        let is_it = |&i: &u32| {
            let row = self.rows[i as usize].as_ref();
            row.is_some_and(|row| row.message.key.as_ref() == Some(key) && row.message.queue == *queue)
        };
        self.key_rows.find(hash, is_it).map(|&i| i as usize)
    }
}

/// Look-ups of this batch that the store has not made yet.
#[derive(Debug, Default)]
pub(super) struct Unmade {
    ids: BTreeSet<MessageId>,
    keys: BTreeSet<(QueueName, Key)>,
}

impl Unmade {
    /// Notes what the store has left, and what it has made that was left before.
    pub(super) fn note(&mut self, lookups: &Lookups, left: Left) {
        if left == Left::default() && self.is_empty() {
            return;
        }
        let (made, unmade) = lookups.ids.split_at(lookups.ids.len() - left.ids.min(lookups.ids.len()));
        self.ids.extend(unmade);
        for id in made {
            self.ids.remove(id);
        }
        let (made, unmade) = lookups.keys.split_at(lookups.keys.len() - left.keys.min(lookups.keys.len()));
        self.keys.extend(unmade.iter().cloned());
        for key in made {
            self.keys.remove(key);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.keys.is_empty()
    }

    pub(super) fn has_id(&self, id: MessageId) -> bool {
        self.ids.contains(&id)
    }

    pub(super) fn has_key(&self, queue: &QueueName, key: &Key) -> bool {
        !self.keys.is_empty() && self.keys.contains(&(queue.clone(), key.clone()))
    }

    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.keys.clear();
    }
}
