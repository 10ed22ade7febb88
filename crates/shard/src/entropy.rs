//! Random numbers from the system, for what must be unpredictable. In this crate, no other module draws any.
#![allow(clippy::disallowed_types)] // they are drawn here, so that nobody else does

use std::hash::{BuildHasher, RandomState};

use duewheel_core::hash_key::HashKey;

/// Two numbers that nobody can guess: the standard library keys its hashes from the system's entropy, and hashes under
/// such a key are what is needed here, without a dependency.
pub(crate) fn random_pair() -> [u64; 2] {
    let state = RandomState::new();
    [0, 1].map(|n: u64| state.hash_one(n))
}

/// The key of an engine's hash tables: from `seed`, so that a run can be repeated, or else a secret one.
pub fn hash_key(seed: Option<u64>) -> HashKey {
    seed.map_or_else(|| HashKey::new(random_pair()), HashKey::seeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: the seed of the hash tables was the time of the start, which callers can guess to the second.
    #[test]
    fn keys_without_a_seed_differ() {
        assert_ne!(hash_key(None), hash_key(None));
        assert_eq!(hash_key(Some(7)), hash_key(Some(7)));
        assert_ne!(hash_key(Some(7)), hash_key(Some(8)));
    }
}
