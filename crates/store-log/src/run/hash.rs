//! The hashes by which keys and dedupe ids are found. They are stored on the disk: seeds and functions never change.

use duewheel_core::{Key, QueueName};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seeds `duewheel` and `answers`, so that hashes of keys and of dedupe ids are unrelated.
const KEYS: u64 = u64::from_le_bytes(*b"duewheel");
const ANSWERS: u64 = u64::from_le_bytes(*b"answers.");

/// The hash of a queue's name, with which its keys are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueHash(u64);

impl QueueHash {
    pub(crate) fn of(queue: &QueueName) -> Self {
        QueueHash(xxh3_64_with_seed(queue.as_str().as_bytes(), KEYS))
    }

    /// The hash of a message's key in this queue.
    pub(crate) fn key(self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.0)
    }
}

/// The hash of a message's key.
pub(crate) fn key(queue: &QueueName, key: &Key) -> u64 {
    QueueHash::of(queue).key(key.as_str().as_bytes())
}

/// The hash of a dedupe id.
pub(crate) fn answer(queue: &QueueName, dedupe_id: &str) -> u64 {
    let queue = xxh3_64_with_seed(queue.as_str().as_bytes(), ANSWERS);
    xxh3_64_with_seed(dedupe_id.as_bytes(), queue)
}

/// The part of a hash that an index and the filter keep: its upper 40 bits.
pub(crate) fn short(hash: u64) -> u64 {
    hash >> 24
}
