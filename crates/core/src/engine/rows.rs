//! The messages in memory: by slot, by id, by key.

use std::hash::BuildHasher;
use std::sync::Arc;

use duewheel_wheel::Handle;
use foldhash::fast::FixedState;

use crate::growing::{SplitTable, StableSlab};
use crate::hash_key::HashKey;
use crate::id::{Lsn, MessageId};
use crate::message::{DeadReason, Life, MessageContent, Stage, State};
use crate::name::Key;
use crate::time::Now;

/// Index of a row in memory. Valid until the row is removed.
pub(super) type RowIdx = u32;

/// Index of a queue. Valid until the queue vanishes.
pub(super) type QueueIdx = u32;

/// Index of a tenant among the quotas.
pub(super) type TenantIdx = usize;

/// Order of grants: priority, then due time; the id decides between equals, and alone where the order is that of
/// arrival.
pub(super) type GrantRank = (u32, u64);

/// A message in memory.
#[derive(Debug)]
pub(super) struct MessageEntry {
    pub(super) message: Arc<MessageContent>,
    pub(super) life: Life,
    pub(super) queue: QueueIdx,
    /// The record that put the message (or the purge that spared it): a later purge removes messages that are older
    /// than itself.
    pub(super) born: Lsn,
    /// The last record of the message: a grant waits until this one is durable.
    pub(super) changed: Lsn,
    pub(super) place: RowLocation,
}

/// The structure that holds a row; mirrors the row's state.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowLocation {
    Scheduled(Handle),
    /// In the ready set of its queue, with this rank.
    Ready(GrantRank),
    Leased(Handle),
    /// Due, and withheld from consumers ([`super::expiry`]).
    Withheld,
    /// In the store alone: due behind the horizon, or dead. It is in memory for this batch only.
    Far,
    /// In no structure: between two structures, within one operation.
    Nowhere,
}

impl MessageEntry {
    /// The bytes that count against limits.
    pub(super) fn weight(&self) -> u64 {
        (self.message.weight() + self.life.weight()) as u64
    }

    pub(super) fn state(&self, now: Now) -> State {
        match self.place {
            RowLocation::Scheduled(_) | RowLocation::Withheld => State::Scheduled,
            RowLocation::Ready(_) => State::Ready,
            RowLocation::Leased(_) => State::Leased,
            RowLocation::Far | RowLocation::Nowhere => state_of(now, &self.life),
        }
    }
}

/// The state of a message that is in the store alone.
pub(super) fn state_of(now: Now, life: &Life) -> State {
    match life.stage {
        Stage::Waiting { .. } if now.is_due(life.due) => State::Ready,
        Stage::Waiting { .. } => State::Scheduled,
        Stage::Leased(_) => State::Leased,
        Stage::Dead { reason: DeadReason::Done(_), .. } => State::Done,
        Stage::Dead { .. } => State::Dead,
    }
}

/// A slot is passed around only while its row is in memory.
const KNOWN: &str = "a row that is in memory";

/// All messages in memory.
#[derive(Debug)]
pub(super) struct Rows {
    entries: StableSlab<MessageEntry>,
    by_id: SplitTable<(MessageId, RowIdx)>,
    by_key: SplitTable<RowIdx>,
    id_hasher: FixedState,
    /// The hasher of keys.
    hasher: HashKey,
    bytes: u64,
}

impl Rows {
    /// Empty rows. Callers choose keys, so these are hashed under a secret `key`; nothing is ever iterated in the order
    /// of hashes.
    pub(super) fn new(seed: u64, key: HashKey) -> Self {
        Rows {
            entries: StableSlab::new(),
            by_id: SplitTable::new(),
            by_key: SplitTable::new(),
            id_hasher: FixedState::with_seed(seed),
            hasher: key,
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

    pub(super) fn slot(&self, id: MessageId) -> Option<RowIdx> {
        let found = self.by_id.find(self.id_hasher.hash_one(id), |(known, _)| *known == id);
        found.map(|(_, slot)| *slot)
    }

    pub(super) fn get(&self, slot: RowIdx) -> &MessageEntry {
        self.entries.get(slot).expect(KNOWN)
    }

    /// The row of an id, if it is still in this slot.
    pub(super) fn is_at(&self, slot: RowIdx, id: MessageId) -> bool {
        self.entries.get(slot).is_some_and(|e| e.message.id == id)
    }

    pub(super) fn get_mut(&mut self, slot: RowIdx) -> &mut MessageEntry {
        self.entries.get_mut(slot).expect(KNOWN)
    }

    /// Every slot whose message has this key in this queue, dead ones and purged ones included.
    pub(super) fn with_key<'a>(&'a self, queue: QueueIdx, key: &'a Key) -> impl Iterator<Item = RowIdx> + 'a {
        self.by_key.iter_hash(self.hash(queue, key)).copied().filter(move |&slot| {
            let entry = self.get(slot);
            entry.queue == queue && entry.message.key.as_ref() == Some(key)
        })
    }

    pub(super) fn insert(&mut self, entry: MessageEntry) -> RowIdx {
        let id = entry.message.id;
        let keyed = entry.life.key_of(&entry.message).map(|key| self.hash(entry.queue, key));
        self.bytes += entry.message.weight() as u64;
        // There are never more than 2^32 rows: `Policy::max_messages` and memory are reached before.
        let slot = self.entries.insert(entry).expect("fewer than 2^32 messages in memory");
        if let Some(hash) = keyed {
            let (entries, hasher) = (&self.entries, &self.hasher);
            self.by_key.insert(hash, slot, |&slot| {
                let keyed = entries.get(slot).and_then(|e| Some((e.queue, e.message.key.as_ref()?.as_str())));
                keyed.map_or(0, |keyed| hasher.hash_one(keyed))
            });
        }
        let hasher = &self.id_hasher;
        self.by_id.insert(hasher.hash_one(id), (id, slot), |(id, _)| hasher.hash_one(id));
        slot
    }

    /// The message in this slot is no longer found by its key.
    pub(super) fn lose_key(&mut self, slot: RowIdx) {
        let entry = self.get(slot);
        if let Some(key) = &entry.message.key {
            self.by_key.remove(self.hash(entry.queue, key), |&s| s == slot);
        }
    }

    pub(super) fn remove(&mut self, slot: RowIdx) -> MessageEntry {
        self.lose_key(slot);
        let entry = self.entries.remove(slot).expect(KNOWN);
        let id = entry.message.id;
        self.by_id.remove(self.id_hasher.hash_one(id), |(known, _)| *known == id);
        self.bytes -= entry.message.weight() as u64;
        entry
    }

    /// Replaces the content: same id, same key.
    pub(super) fn set_message(&mut self, slot: RowIdx, message: Arc<MessageContent>) {
        let entry = self.entries.get_mut(slot).expect(KNOWN);
        self.bytes -= entry.message.weight() as u64;
        self.bytes += message.weight() as u64;
        entry.message = message;
    }

    fn hash(&self, queue: QueueIdx, key: &Key) -> u64 {
        self.hasher.hash_one((queue, key.as_str()))
    }
}
