//! A set of small numbers with a fast search for the next one: a bitmap with summaries.
//!
//! ```text
//! layer 1   bit w is set when word w of layer 0 is not zero
//! layer 0   bit n is set when n is in the set
//! ```
//!
//! Each layer has 64 times fewer bits, so four layers are enough for sixteen million numbers, and the next one
//! is found in at most seven words however far it is.

use alloc::vec;
use alloc::vec::Vec;

const WORD: usize = u64::BITS as usize;

#[derive(Clone, Debug)]
pub(crate) struct Occupancy {
    /// The layers, the largest first. The last layer has at most one word.
    layers: Vec<Vec<u64>>,
}

impl Occupancy {
    pub(crate) const fn new() -> Self {
        Self { layers: Vec::new() }
    }

    /// Extends the set to the numbers below `limit`.
    pub(crate) fn extend(&mut self, limit: usize) {
        let mut bits = limit;
        let mut height = 0;
        while bits > 1 || height == 0 {
            let words = bits.div_ceil(WORD);
            if height == self.layers.len() {
                // A new summary of what has been one word until now.
                let below = height.checked_sub(1).and_then(|below| self.layers[below].first());
                let first = u64::from(below.is_some_and(|word| *word != 0));
                self.layers.push(vec![first]);
            }
            let layer = &mut self.layers[height];
            if layer.len() < words {
                layer.resize(words, 0);
            }
            bits = words;
            height += 1;
        }
    }

    pub(crate) fn set(&mut self, number: usize) {
        let mut bit = number;
        for layer in &mut self.layers {
            let word = &mut layer[bit / WORD];
            let known = *word != 0;
            *word |= 1 << (bit % WORD);
            if known {
                return;
            }
            bit /= WORD;
        }
    }

    pub(crate) fn unset(&mut self, number: usize) {
        let mut bit = number;
        for layer in &mut self.layers {
            let word = &mut layer[bit / WORD];
            *word &= !(1 << (bit % WORD));
            if *word != 0 {
                return;
            }
            bit /= WORD;
        }
    }

    /// The first number in the set that is at least `from`.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut bit = from;
        for (height, layer) in self.layers.iter().enumerate() {
            let rest = layer.get(bit / WORD)? & (u64::MAX << (bit % WORD));
            if rest != 0 {
                let found = bit / WORD * WORD + rest.trailing_zeros() as usize;
                // Down again: below a set bit there is always one.
                return Some(
                    self.layers[..height]
                        .iter()
                        .rev()
                        .fold(found, |word, below| word * WORD + below[word].trailing_zeros() as usize),
                );
            }
            bit = bit / WORD + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn agrees_with_a_set(
            steps in prop_oneof![1usize..200, 4000usize..5000, 262_000usize..263_000].prop_flat_map(|limit| {
                prop::collection::vec((0u8..5, 0..limit, 0..=limit), 1..200)
            })
        ) {
            let mut occupancy = Occupancy::new();
            let mut model = BTreeSet::new();
            let mut room = 0;
            for (step, number, from) in steps {
                if number >= room {
                    room = number + 1;
                    occupancy.extend(room);
                }
                if step < 3 {
                    occupancy.set(number);
                    model.insert(number);
                } else {
                    let victim = model.range(number..).next().copied().unwrap_or(number);
                    occupancy.unset(victim);
                    model.remove(&victim);
                }
                prop_assert_eq!(occupancy.next(from), model.range(from..).next().copied());
            }
        }
    }
}
