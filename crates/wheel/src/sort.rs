//! The order of a slot's entries, found when the pointer reaches it.
//!
//! What is sorted is positions of four bytes, not entries. A slot's entries are due within one tick, so most
//! of the order is decided by few bits, and positions are put into runs by those: each entry is looked at
//! once, in sequence. Within a run entries mostly stand in order already, because ids grow. A run that does not
//! is sorted by comparison.

use std::cmp::Reverse;

const MAX_RUNS: u64 = 4096;

/// Sorts the entries of one slot after the other; what it holds in between is only memory.
#[derive(Clone, Debug)]
pub(crate) struct Sorter {
    last: u64,
    shift: u32,
    /// The positions and the run of each, in the order of insertion.
    positions: Vec<u32>,
    run_of: Vec<u16>,
    /// By due time, the latest first.
    runs: Vec<Run>,
    previous: (u64, u64),
    in_order: bool,
}

#[derive(Clone, Debug)]
struct Run {
    latest: (u64, u64),
    in_order: bool,
    /// How many there are; later, where the run begins.
    count: u32,
}

impl Sorter {
    pub(crate) const fn new() -> Self {
        Self {
            last: 0,
            shift: 0,
            positions: Vec::new(),
            run_of: Vec::new(),
            runs: Vec::new(),
            previous: (0, 0),
            in_order: true,
        }
    }

    /// Before a slot with up to `count` entries, all of them due in `start..=last`.
    pub(crate) fn begin(&mut self, count: usize, start: u64, last: u64) {
        let most = (count.next_power_of_two() as u64).min(MAX_RUNS);
        self.last = last;
        self.shift = shift_for(last - start, most);
        self.positions.clear();
        self.positions.reserve_exact(count);
        self.run_of.clear();
        self.run_of.reserve_exact(count);
        self.runs.clear();
        self.runs.resize(self.run(start) + 1, Run { latest: (0, 0), in_order: true, count: 0 });
        self.previous = (0, 0);
        self.in_order = true;
    }

    /// Positions must grow.
    #[inline]
    pub(crate) fn add(&mut self, position: u32, (due, tie): (u64, u64)) {
        let number = self.run(due);
        let run = &mut self.runs[number];
        run.count += 1;
        run.in_order &= run.latest <= (due, tie);
        run.latest = (due, tie);
        // Asked only while the answer is likely to be yes; a comparison that may go either way costs more than
        // all the rest.
        if self.in_order {
            self.in_order = self.previous <= (due, tie);
            self.previous = (due, tie);
        }
        self.positions.push(position);
        #[expect(clippy::cast_possible_truncation, reason = "below MAX_RUNS")]
        self.run_of.push(number as u16);
    }

    /// Puts all positions into `order`, by (due, tie), the latest first. `key` gives the two of a position.
    pub(crate) fn finish(&mut self, order: &mut Vec<u32>, key: impl Fn(u32) -> (u64, u64)) {
        order.clear();
        if self.in_order {
            order.extend(self.positions.iter().rev());
            return;
        }
        let mut sum = 0;
        for run in &mut self.runs {
            sum += run.count;
            run.count = sum;
        }
        // From each run's end downwards, so that what was inserted last comes first in it.
        order.resize(self.positions.len(), 0);
        for (position, run) in self.positions.iter().zip(&self.run_of) {
            let place = &mut self.runs[usize::from(*run)].count;
            *place -= 1;
            order[*place as usize] = *position;
        }
        let mut end = order.len();
        for run in self.runs.iter().rev() {
            let begin = run.count as usize;
            if !run.in_order {
                order[begin..end].sort_unstable_by_key(|position| Reverse(key(*position)));
            }
            end = begin;
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the shift makes it less than MAX_RUNS")]
    fn run(&self, due: u64) -> usize {
        ((self.last - due) >> self.shift) as usize
    }
}

/// The least shift that leaves at most `most` different values of `0..=span`; `most` is a power of two.
fn shift_for(span: u64, most: u64) -> u32 {
    // A shift by all 64 bits would not do; two runs instead of one are no harm.
    (u64::BITS - span.leading_zeros()).saturating_sub(most.ilog2()).min(u64::BITS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_standard_sort(
            start in prop_oneof![Just(0u64), any::<u64>()],
            span in prop_oneof![Just(0u64), 0u64..10, 900u64..1100, 0..=u64::MAX],
            mut keys in prop::collection::vec((any::<u64>(), 0u64..50), 0..3000),
            ties_in_order: bool,
        ) {
            let last = start.saturating_add(span);
            for (at, (due, tie)) in keys.iter_mut().enumerate() {
                *due = start + if last - start == u64::MAX { *due } else { *due % (last - start + 1) };
                if ties_in_order {
                    *tie = at as u64;
                }
            }
            let mut sorter = Sorter::new();
            sorter.begin(1, 0, 7);
            sorter.add(0, (3, 3));
            sorter.begin(keys.len(), start, last);
            for (position, key) in (0..).zip(&keys) {
                sorter.add(position, *key);
            }
            let mut order = vec![7];
            sorter.finish(&mut order, |position| keys[position as usize]);
            let result: Vec<_> = order.iter().map(|position| keys[*position as usize]).collect();
            order.sort_unstable();
            prop_assert!((0..).zip(&order).all(|(at, position)| at == *position));
            keys.sort_unstable();
            keys.reverse();
            prop_assert_eq!(result, keys);
        }
    }

    #[test]
    fn shifts_cut_off_no_more_than_needed() {
        for span in [0, 1, 2, 63, 64, 65, 999, 1000, 4095, 4096, u64::MAX - 1, u64::MAX] {
            for most in [64, 128, 4096] {
                let shift = shift_for(span, most);
                assert!(span >> shift < most, "{span} {most}");
                assert!(shift == 0 || span >> (shift - 1) >= most, "{span} {most}");
            }
        }
    }
}
