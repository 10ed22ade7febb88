//! The hashes by which keys and dedupe ids are found, in memory and in runs. They are stored on the disk: the function
//! never changes, and the seed is that of the data folder.
//!
//! Callers choose keys and ids. Under a hash that they know they could make thousands that share one, each of which
//! every look-up would examine; so each folder draws a secret seed (see [`Manifest`](crate::manifest::Manifest)).

use std::fmt;

use duewheel_core::hash_key::HashKey;
use duewheel_core::{Key, QueueName};

/// The hashes of one data folder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NameHasher {
    keys: HashKey,
    answers: HashKey,
}

/// The hashes of one queue's keys and dedupe ids: those of another queue are unrelated.
#[derive(Clone, Copy)]
pub(crate) struct QueueHash {
    keys: HashKey,
    answers: HashKey,
}

impl NameHasher {
    /// The hashes under a folder's seed. Those of keys and of dedupe ids are unrelated.
    pub(crate) fn new(seed: HashKey) -> Self {
        NameHasher { keys: seed.derive(b"keys"), answers: seed.derive(b"answers") }
    }

    pub(crate) fn queue(&self, queue: &QueueName) -> QueueHash {
        let name = queue.as_str().as_bytes();
        QueueHash { keys: self.keys.derive(name), answers: self.answers.derive(name) }
    }

    /// The hash of a queue's name.
    pub(crate) fn name(&self, queue: &QueueName) -> u64 {
        self.keys.hash(queue.as_str().as_bytes())
    }

    /// The hash of a message's key.
    pub(crate) fn key(&self, queue: &QueueName, key: &Key) -> u64 {
        self.keys.derive(queue.as_str().as_bytes()).hash(key.as_str().as_bytes())
    }

    /// The hash of a dedupe id.
    pub(crate) fn answer(&self, queue: &QueueName, dedupe_id: &str) -> u64 {
        self.answers.derive(queue.as_str().as_bytes()).hash(dedupe_id.as_bytes())
    }
}

impl QueueHash {
    /// The hash of a message's key in this queue.
    pub(crate) fn key(&self, key: &[u8]) -> u64 {
        self.keys.hash(key)
    }

    /// The hash of a dedupe id in this queue.
    pub(crate) fn answer(&self, dedupe_id: &str) -> u64 {
        self.answers.hash(dedupe_id.as_bytes())
    }
}

impl fmt::Debug for NameHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameHasher(..)")
    }
}

impl fmt::Debug for QueueHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueHash(..)")
    }
}

/// The part of a hash that an index and the filter keep: its upper 40 bits.
pub(crate) fn short(hash: u64) -> u64 {
    hash >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by another program from what `docs/format.md` says.
    #[test]
    fn names_have_these_hashes() {
        let hasher = NameHasher::new(HashKey::new([1, 2]));
        let (queue, key) = (QueueName::new("q").unwrap(), Key::new("k").unwrap());
        assert_eq!(hasher.key(&queue, &key), 0x08b2_db6b_b77b_f55f);
        assert_eq!(hasher.answer(&queue, "k"), 0x6681_3af3_0fc6_1d14);
        assert_eq!(hasher.queue(&queue).key(b"k"), hasher.key(&queue, &key));
        assert_eq!(hasher.queue(&queue).answer("k"), hasher.answer(&queue, "k"));
    }
}
