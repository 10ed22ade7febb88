//! Arithmetic of random numbers. The caller chooses their source: a seed, a hash, the system.
//!
//! Results are a function of the arguments alone, and never change between versions: recorded seeds, the delays of
//! messages and the dates of occurrences depend on them.

/// The increment of [`SplitMix64`]: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
///
/// ```
/// use duewheel_core::random::SplitMix64;
/// let mut numbers = SplitMix64::new(1_234_567);
/// assert_eq!(numbers.next(), 6_457_827_717_110_365_317);
/// assert_eq!(numbers.next(), 3_203_168_211_198_807_973);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// The sequence of this seed behind its first `n` numbers.
    pub fn after(seed: u64, n: u64) -> Self {
        SplitMix64(seed.wrapping_add(n.wrapping_mul(STEP)))
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)] // the sequence has no end
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mixed(self.0)
    }
}

/// A number all of whose bits depend on all bits of `n`: the output function of [`SplitMix64`].
pub fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A number from 0 to `most`, evenly distributed if `random` is: 0 gives 0, and the largest number gives `most`.
///
/// ```
/// use duewheel_core::random::scaled;
/// assert_eq!((scaled(0, 10), scaled(u64::MAX / 2, 10), scaled(u64::MAX, 10)), (0, 5, 10));
/// ```
pub fn scaled(random: u64, most: u64) -> u64 {
    let product = u128::from(random) * (u128::from(most) + 1);
    u64::try_from(product >> 64).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_left_out() {
        let mut all = SplitMix64::new(7);
        for _ in 0..3 {
            all.next();
        }
        assert_eq!(SplitMix64::after(7, 3), all);
    }
}
