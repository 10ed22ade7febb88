//! Look-ups that the store has left for the next batch.

use std::collections::BTreeSet;

use crate::id::MessageId;
use crate::name::{Key, QueueName};
use crate::store::{Left, Lookups};

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
