//! The messages in memory: by slot, by id, by key.

use std::hash::BuildHasher;
use std::sync::Arc;

use duewheel_wheel::Handle;
use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use slab::Slab;

use crate::id::{Lsn, MessageId};
use crate::message::{Life, Message, Stage, State};
use crate::name::Key;
use crate::time::Now;

use super::index::QueueIdx;
pub(super) use super::index::{Rank, Slot};

/// A message in memory.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) message: Arc<Message>,
    pub(super) life: Life,
    pub(super) queue: QueueIdx,
    /// The record that put it (or the purge that spared it): a later purge removes messages that are older than itself.
    pub(super) born: Lsn,
    /// Its last record: a grant waits until this one is durable.
    pub(super) changed: Lsn,
    pub(super) place: Place,
}

/// The structure that holds a row; mirrors the row's state.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Scheduled(Handle),
    /// In the ready set of its queue, with this rank.
    Ready(Rank),
    Leased(Handle),
    /// In the store alone: due behind the horizon, or dead. It is in memory for this batch only.
    Far,
    /// In none: between two structures, within one operation.
    Nowhere,
}

impl Entry {
    pub(super) fn state(&self, now: Now) -> State {
        match self.place {
            Place::Scheduled(_) => State::Scheduled,
            Place::Ready(_) => State::Ready,
            Place::Leased(_) => State::Leased,
            Place::Far | Place::Nowhere => state_of(now, &self.life),
        }
    }
}

/// The state of a message that is in the store alone.
pub(super) fn state_of(now: Now, life: &Life) -> State {
    match life.stage {
        Stage::Waiting { .. } if now.is_due(life.due) => State::Ready,
        Stage::Waiting { .. } => State::Scheduled,
        Stage::Leased(_) => State::Leased,
        Stage::Dead { .. } => State::Dead,
    }
}

/// All messages in memory.
#[derive(Debug)]
pub(super) struct Rows {
    entries: Slab<Entry>,
    by_id: HashMap<MessageId, Slot, FixedState>,
    by_key: HashTable<Slot>,
    hasher: FixedState,
    bytes: u64,
}

impl Rows {
    /// Empty rows. `seed` makes the hash order unpredictable for callers that choose keys; nothing is ever iterated in
    /// that order.
    pub(super) fn new(seed: u64) -> Self {
        Rows {
            entries: Slab::new(),
            by_id: HashMap::with_hasher(FixedState::with_seed(seed)),
            by_key: HashTable::new(),
            hasher: FixedState::with_seed(!seed),
            bytes: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Weight of all messages held.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn slot(&self, id: MessageId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn get(&self, slot: Slot) -> &Entry {
        &self.entries[slot as usize]
    }

    /// The row of an id, if it is still in this slot.
    pub(super) fn is_at(&self, slot: Slot, id: MessageId) -> bool {
        self.entries.get(slot as usize).is_some_and(|e| e.message.id == id)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot as usize]
    }

    /// Every slot whose message has this key in this queue, dead ones and purged ones included.
    pub(super) fn with_key<'a>(&'a self, queue: QueueIdx, key: &'a Key) -> impl Iterator<Item = Slot> + 'a {
        let entries = &self.entries;
        self.by_key.iter_hash(self.hash(queue, key)).copied().filter(move |&s| {
            entries[s as usize].queue == queue && entries[s as usize].message.key.as_ref() == Some(key)
        })
    }

    pub(super) fn insert(&mut self, entry: Entry) -> Slot {
        let id = entry.message.id;
        let keyed = entry.message.key.as_ref().map(|key| self.hash(entry.queue, key));
        self.bytes += entry.message.weight() as u64;
        // More than 2^32 rows cannot be: `Policy::max_messages` and memory end before.
        let slot = Slot::try_from(self.entries.insert(entry)).expect("fewer than 2^32 messages in memory");
        if let Some(hash) = keyed {
            let (entries, hasher) = (&self.entries, &self.hasher);
            self.by_key.insert_unique(hash, slot, |&s| {
                let e = &entries[s as usize];
                e.message.key.as_ref().map_or(0, |k| hasher.hash_one((e.queue, k.as_str())))
            });
        }
        self.by_id.insert(id, slot);
        slot
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self.entries.remove(slot as usize);
        self.by_id.remove(&entry.message.id);
        self.bytes -= entry.message.weight() as u64;
        if let Some(key) = &entry.message.key
            && let Ok(held) = self.by_key.find_entry(self.hash(entry.queue, key), |&s| s == slot)
        {
            held.remove();
        }
        entry
    }

    /// Replaces the content: same id, same key.
    pub(super) fn set_message(&mut self, slot: Slot, message: Arc<Message>) {
        let entry = &mut self.entries[slot as usize];
        self.bytes -= entry.message.weight() as u64;
        self.bytes += message.weight() as u64;
        entry.message = message;
    }

    fn hash(&self, queue: QueueIdx, key: &Key) -> u64 {
        self.hasher.hash_one((queue, key.as_str()))
    }
}
