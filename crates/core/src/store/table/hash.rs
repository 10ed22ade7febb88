//! How ids are hashed: neighbours stay neighbours.
//!
//! Ids are handed out in sequence. Scattering them would make every insert a cache miss, keeping them all in line would
//! make long-lived messages collide with whole new ranges. So 64 consecutive ids share one random place.

use std::hash::{BuildHasher, Hasher};

/// Builds hashers for ids.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ById;

/// The hash of one id.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdHasher(u64);

impl BuildHasher for ById {
    type Hasher = IdHasher;
    #[inline]
    fn build_hasher(&self) -> IdHasher {
        IdHasher(0)
    }
}

impl Hasher for IdHasher {
    #[inline]
    fn write_u64(&mut self, id: u64) {
        let block = (id >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = block ^ (block >> 32);
        // The map takes the place from the low bits and a 7-bit tag from the high ones: tell neighbours apart there.
        self.0 = ((place << 6) | (id & 63)) ^ (id << 57);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(self.0 ^ u64::from(b));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
