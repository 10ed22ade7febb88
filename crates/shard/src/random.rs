//! Randomness: growing pauses between attempts, so that nodes do not repeat their attempts at the same moments, and keys
//! that nobody can guess. In this crate, no other module draws random numbers from the system.
#![allow(clippy::disallowed_types)] // they are drawn here, so that no other module does

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duewheel_core::hash_key::HashKey;
use duewheel_core::random::SplitMix64;

/// The random part of pauses, computed from a seed: the same seed gives the same pauses. Clones share one sequence.
#[derive(Clone, Debug)]
pub struct Jitter {
    seed: u64,
    /// The number of random numbers that were taken.
    taken: Arc<AtomicU64>,
}

impl Jitter {
    /// The sequence of this seed.
    pub fn seeded(seed: u64) -> Self {
        Jitter { seed, taken: Arc::default() }
    }

    /// A random duration between three quarters of the pause and the whole pause.
    pub fn of(&self, pause: Duration) -> Duration {
        let quarter = pause / 4;
        pause - quarter + quarter * self.byte() / 256
    }

    /// The lowest byte of the next random number.
    fn byte(&self) -> u32 {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        u32::from(SplitMix64::after(self.seed, taken).next().to_le_bytes()[0])
    }
}

/// The pause after this number of earlier ones: `first`, doubled that many times, and not longer than `longest`.
pub fn doubled(first: Duration, longest: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(20)).min(longest)
}

/// A pause that doubles with each attempt.
#[derive(Clone, Debug)]
pub struct RetryPause {
    first: Duration,
    longest: Duration,
    times: u32,
    jitter: Jitter,
}

impl RetryPause {
    /// A pause that begins with `first`, doubles each time, and does not exceed `longest`.
    pub fn new(first: Duration, longest: Duration, jitter: &Jitter) -> Self {
        RetryPause { first, longest: longest.max(first), times: 0, jitter: jitter.clone() }
    }

    /// The next pause.
    pub fn take(&mut self) -> Duration {
        let pause = doubled(self.first, self.longest, self.times);
        self.times = self.times.saturating_add(1);
        self.jitter.of(pause)
    }

    /// Starts again with the first pause.
    pub fn reset(&mut self) {
        self.times = 0;
    }
}

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

    #[test]
    fn backoff_grows_to_maximum_and_resets() {
        let ms = Duration::from_millis;
        let mut pause = RetryPause::new(ms(10), ms(35), &Jitter::seeded(1));
        for whole in [10, 20, 35, 35] {
            let taken = pause.take();
            assert!(ms(whole) * 3 / 4 <= taken && taken <= ms(whole), "{taken:?} of {whole} ms");
        }
        pause.reset();
        assert!(pause.take() <= ms(10));
    }

    #[test]
    fn doubling_saturates_at_maximum() {
        let (first, longest) = (Duration::from_millis(1), Duration::from_secs(3_600));
        let lengths = [0, 1, 10, 20].map(|times| doubled(first, Duration::MAX, times).as_millis());
        assert_eq!(lengths, [1, 2, 1_024, 1 << 20]);
        assert_eq!([64, u32::MAX].map(|times| doubled(Duration::from_secs(1), longest, times)), [longest; 2]);
    }

    #[test]
    fn jitter_is_deterministic_per_seed() {
        let of = |seed| {
            let jitter = Jitter::seeded(seed);
            (0..50).map(|_| jitter.of(Duration::from_secs(1))).collect::<Vec<_>>()
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        let (least, most) = (of(7).into_iter().min(), of(7).into_iter().max());
        assert!(least < Some(Duration::from_millis(800)) && most > Some(Duration::from_millis(950)));
    }
}

#[cfg(test)]
mod entropy_tests {
    use super::*;

    /// Story: the seed of the hash tables was the time of the start, which callers can guess to the second.
    #[test]
    fn keys_without_a_seed_differ() {
        assert_ne!(hash_key(None), hash_key(None));
        assert_eq!(hash_key(Some(7)), hash_key(Some(7)));
        assert_ne!(hash_key(Some(7)), hash_key(Some(8)));
    }
}
