//! Random numbers. The keys that the standard library draws for its hash maps are of the system, and never the same.

use std::hash::{BuildHasher as _, RandomState};

fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// An id that nobody else makes.
pub(crate) fn id() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// A number from 0 up to 1.
pub(crate) fn fraction() -> f64 {
    f64::from(u32::try_from(random() >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}
