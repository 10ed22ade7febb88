//! Decisions from a seed: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
//! 2014). Simulations, fault tests and benchmarks all use this one generator.

/// The distance of two states of the generator.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Scatters a number: neighbours get unrelated values, and each number always gets the same one.
#[must_use]
pub fn scatter(n: u64) -> u64 {
    Rng(n.wrapping_mul(STEP)).bits()
}

/// A stream of decisions; the same seed gives the same.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    /// A number from `from` up to but not including `to`.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, n: u64) -> bool {
        self.below(100) < n
    }

    /// One of the items, if there is one.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let n = self.below(items.len() as u64);
        items.get(usize::try_from(n).unwrap_or(0))
    }

    /// Puts the items into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = usize::try_from(self.below(at as u64 + 1)).unwrap_or(0);
            items.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference values of SplitMix64 for seed 1234567, as in the test vectors of other implementations.
    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..5).map(|_| rng.bits()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first, expected);
    }

    #[test]
    fn shuffle_is_seeded_permutation() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..100).collect();
            Rng::new(seed).shuffle(&mut items);
            items
        };
        let mut sorted = shuffled(1);
        assert_ne!(sorted, shuffled(2));
        assert_eq!(sorted, shuffled(1));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(scatter(7), scatter(7));
        assert_ne!(scatter(7), scatter(8));
    }
}
