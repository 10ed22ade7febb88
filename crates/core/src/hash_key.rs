//! Keyed hashes of what callers choose: keys, dedupe ids, names of queues.
//!
//! With a public hash anybody can make thousands of names that share one, and each of them is then examined at every look-up.
//! So these are hashed by SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012) under a key that
//! nobody outside knows. Ids that the engine counts itself need no such hash.

use std::fmt;
use std::hash::BuildHasher;

use siphasher::{sip, sip128};

/// A secret key of hashes. It builds the hashers of tables, and is shown by nothing.
///
/// ```
/// use duewheel_core::hash_key::HashKey;
/// let (one, other) = (HashKey::new([1, 2]), HashKey::new([1, 3]));
/// assert_eq!(one.hash(b"name"), one.hash(b"name"));
/// assert_ne!(one.hash(b"name"), other.hash(b"name"));
/// assert_ne!(one.derive(b"a").hash(b"name"), one.derive(b"b").hash(b"name"));
/// assert_eq!(format!("{one:?}"), "HashKey(..)");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct HashKey([u64; 2]);

impl HashKey {
    /// The key of these random numbers.
    pub fn new(random: [u64; 2]) -> Self {
        HashKey(random)
    }

    /// A key from one number, for tests and simulations that are to be repeated.
    pub fn seeded(seed: u64) -> Self {
        HashKey([seed, !seed]).derive(b"seeded")
    }

    /// The numbers of the key, for where it is stored.
    pub fn numbers(self) -> [u64; 2] {
        self.0
    }

    /// The hash of these bytes.
    #[inline]
    pub fn hash(self, bytes: &[u8]) -> u64 {
        sip::SipHasher13::new_with_keys(self.0[0], self.0[1]).hash(bytes)
    }

    /// Another key for each label: what is hashed under one says nothing of hashes under another.
    #[inline]
    pub fn derive(self, label: &[u8]) -> HashKey {
        let hash = sip128::SipHasher13::new_with_keys(self.0[0], self.0[1]).hash(label);
        HashKey([hash.h1, hash.h2])
    }
}

impl BuildHasher for HashKey {
    type Hasher = sip::SipHasher13;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        sip::SipHasher13::new_with_keys(self.0[0], self.0[1])
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}
