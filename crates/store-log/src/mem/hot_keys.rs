//! Crowded keys: those that many messages of a table have had, usually a live one and dead ones. A look-up wants the
//! live one and a few dead ones, and must not examine all of them. So the messages of such a key are kept separately,
//! by their stage.

use std::collections::{BTreeSet, HashMap};

use duewheel_core::MessageId;
use duewheel_core::message::Kind;
use duewheel_core::store::DEAD_FOUND;

use crate::mem::record::Purge;
use crate::run::{Newer, NewerTables};

/// A key is crowded from this number of messages on. Fewer are examined one by one.
pub(super) const CROWD: usize = 16;

/// The crowded keys of a table.
#[derive(Debug, Default)]
pub(super) struct Crowds(HashMap<u64, Crowd>);

#[derive(Debug)]
struct Crowd {
    queue: u32,
    key: Box<[u8]>,
    dead: BTreeSet<MessageId>,
    /// Messages that wait or are leased.
    alive: BTreeSet<MessageId>,
}

impl Crowds {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Approximate size in memory, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.0.values().map(|crowd| 128 + crowd.key.len() + 12 * (crowd.dead.len() + crowd.alive.len())).sum()
    }

    /// Whether a key is crowded.
    pub(super) fn has(&self, hash: u64, queue: u32, key: &[u8]) -> bool {
        self.0.get(&hash).is_some_and(|crowd| crowd.is_of(queue, key))
    }

    /// Makes a key crowded; returns false if that is impossible because another key with the same hash is crowded.
    pub(super) fn begin(&mut self, hash: u64, queue: u32, key: &[u8]) -> bool {
        let new = || Crowd { queue, key: key.into(), dead: BTreeSet::new(), alive: BTreeSet::new() };
        self.0.entry(hash).or_insert_with(new).is_of(queue, key)
    }

    /// Updates the stage of a message of a key; `None`: it was removed.
    pub(super) fn turn(&mut self, hash: u64, queue: u32, key: &[u8], id: MessageId, stands: Option<Kind>) {
        let Some(crowd) = self.0.get_mut(&hash).filter(|crowd| crowd.is_of(queue, key)) else { return };
        crowd.dead.remove(&id);
        crowd.alive.remove(&id);
        match stands {
            None => {}
            Some(Kind::Dead) => {
                crowd.dead.insert(id);
            }
            Some(Kind::Waiting | Kind::Leased) => {
                crowd.alive.insert(id);
            }
        }
    }

    pub(super) fn purge(&mut self, queue: u32, purge: &Purge) {
        for crowd in self.0.values_mut().filter(|crowd| crowd.queue == queue) {
            crowd.dead.retain(|id| !purge.takes(*id));
            crowd.alive.retain(|id| !purge.takes(*id));
        }
    }

    /// The messages of a crowded key that a look-up may want: live ones, the newest dead ones that newer tables do not
    /// have, and those that newer tables have changed, as far as these are met on the way or may have been revived.
    /// Also returns how many were examined.
    pub(super) fn find(
        &self,
        hash: u64,
        queue: u32,
        key: &[u8],
        newer: &NewerTables<'_>,
        ids: &mut Vec<MessageId>,
    ) -> usize {
        let Some(crowd) = self.0.get(&hash).filter(|crowd| crowd.is_of(queue, key)) else { return 0 };
        ids.extend(&crowd.alive);
        let (mut looks, mut dead) = (crowd.alive.len(), 0);
        for id in crowd.dead.iter().rev() {
            if dead == DEAD_FOUND && !newer.revived {
                break;
            }
            looks += 1;
            match (newer.says)(*id) {
                Newer::Gone => {}
                Newer::Changed => ids.push(*id),
                Newer::Nothing if dead < DEAD_FOUND => {
                    dead += 1;
                    ids.push(*id);
                }
                Newer::Nothing => {}
            }
        }
        looks
    }
}

impl Crowd {
    fn is_of(&self, queue: u32, key: &[u8]) -> bool {
        self.queue == queue && *self.key == *key
    }
}
