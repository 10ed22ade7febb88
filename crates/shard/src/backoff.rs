//! Randomised, growing pauses between attempts: each is longer than the one before, and no two nodes keep the same
//! rhythm.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A pause that doubles.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pause {
    /// A pause that begins with `first`, doubles each time, and does not exceed `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Pause { first, longest: longest.max(first), next: first }
    }

    /// The next pause.
    pub fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        jittered(pause)
    }

    /// Starts again with the first pause.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random duration between three quarters of the pause and the whole pause.
pub fn jittered(pause: Duration) -> Duration {
    // The keys of a new hash table are the standard library's random numbers.
    let random = RandomState::new().build_hasher().finish() % 256;
    let quarter = pause / 4;
    pause - quarter + quarter * u32::try_from(random).unwrap_or(0) / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest_and_begin_again() {
        let ms = Duration::from_millis;
        let mut pause = Pause::new(ms(10), ms(35));
        for whole in [10, 20, 35, 35] {
            let taken = pause.take();
            assert!(ms(whole) * 3 / 4 <= taken && taken <= ms(whole), "{taken:?} of {whole} ms");
        }
        pause.reset();
        assert!(pause.take() <= ms(10));
    }
}
