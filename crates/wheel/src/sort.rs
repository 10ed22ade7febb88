//! Sorts the entries of a slot when the pointer reaches it.
//!
//! Positions of four bytes are sorted, not entries. A slot's entries are due within one tick, so most of the order is
//! decided by few bits, and positions are distributed to runs by those: each entry is read once, in sequence. If a run
//! is a single due time, and its ties came in order as growing ids do, nothing else is needed. Otherwise the runs are
//! sorted by comparison.

use alloc::vec::Vec;
use core::cmp::Reverse;

/// Up to this many entries, a comparison sort is faster than counting.
const FEW: usize = 64;
const MAX_RUNS: u64 = 4096;
/// The mark of a cancelled position, in place of the number of its run.
const LEFT_OUT: u16 = u16::MAX;

/// Sorts the entries of one slot after the other, and keeps its buffers in between.
#[derive(Clone, Debug)]
pub(crate) struct SlotSorter {
    /// The latest possible due time. Runs are numbered from there, so that the latest comes first.
    last: u64,
    shift: u32,
    /// The number of the run of each position.
    run_of: Vec<u16>,
    /// The number of entries of each run; later, the start of the run.
    counts: Vec<u32>,
    /// The last tie that was added to a run, if there is one.
    ties: Vec<u64>,
    runs_in_order: bool,
    previous: (u64, u64),
    all_in_order: bool,
}

impl SlotSorter {
    pub(crate) const fn new() -> Self {
        Self {
            last: 0,
            shift: 0,
            run_of: Vec::new(),
            counts: Vec::new(),
            ties: Vec::new(),
            runs_in_order: true,
            previous: (0, 0),
            all_in_order: true,
        }
    }

    /// Begins a slot with up to `count` entries, all of them due in `start..=last`.
    pub(crate) fn begin(&mut self, count: usize, start: u64, last: u64) {
        let span = last - start;
        let most = if count <= FEW {
            1
        } else if span < MAX_RUNS {
            MAX_RUNS
        } else {
            (count.next_power_of_two() as u64).min(MAX_RUNS)
        };
        self.last = last;
        self.shift = shift_for(span, most);
        let runs = self.run(start) + 1;
        self.run_of.clear();
        self.run_of.reserve_exact(count);
        self.counts.clear();
        self.counts.resize(runs, 0);
        self.ties.resize(runs.max(self.ties.len()), 0);
        self.runs_in_order = self.shift == 0;
        self.previous = (0, 0);
        self.all_in_order = true;
    }

    /// Adds the next position, of an entry with these values.
    #[inline]
    pub(crate) fn add(&mut self, due: u64, tie: u64) {
        let run = self.run(due);
        let count = &mut self.counts[run];
        let latest = &mut self.ties[run];
        self.runs_in_order &= (*count == 0) | (*latest <= tie);
        *count += 1;
        *latest = tie;
        // Compared only while the answer is likely to be yes; an unpredictable comparison costs more than all the rest.
        if self.all_in_order {
            self.all_in_order = self.previous <= (due, tie);
            self.previous = (due, tie);
        }
        #[expect(clippy::cast_possible_truncation, reason = "below MAX_RUNS")]
        self.run_of.push(run as u16);
    }

    /// Leaves the next position out.
    pub(crate) fn leave_out(&mut self) {
        self.run_of.push(LEFT_OUT);
    }

    /// Puts all positions into `order`, by (due, tie), the latest first. `key` gives due time and tie of a position.
    pub(crate) fn finish(&mut self, order: &mut Vec<u32>, key: impl Fn(u32) -> (u64, u64)) {
        order.clear();
        let positions = (0..).zip(&self.run_of).filter(|(_, run)| **run != LEFT_OUT);
        if self.all_in_order {
            order.extend(positions.map(|(position, _)| position));
            order.reverse();
            return;
        }
        let mut sum = 0;
        for count in &mut self.counts {
            sum += *count;
            *count = sum;
        }
        // From each run's end downwards, so that what was inserted last comes first in it.
        order.resize(sum as usize, 0);
        for (position, run) in positions {
            let place = &mut self.counts[usize::from(*run)];
            *place -= 1;
            order[*place as usize] = position;
        }
        if !self.runs_in_order {
            let mut end = order.len();
            for begin in self.counts.iter().rev() {
                let run = &mut order[*begin as usize..end];
                run.sort_unstable_by_key(|position| Reverse(key(*position)));
                end = *begin as usize;
            }
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
    // A shift by all 64 bits is not possible; two runs instead of one do no harm.
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
            left_out in 0usize..9,
        ) {
            let last = start.saturating_add(span);
            for (at, (due, tie)) in keys.iter_mut().enumerate() {
                *due = start + if last - start == u64::MAX { *due } else { *due % (last - start + 1) };
                if ties_in_order {
                    *tie = at as u64;
                }
            }
            let mut sorter = SlotSorter::new();
            sorter.begin(1, 0, 7);
            sorter.add(3, 3);
            sorter.begin(keys.len(), start, last);
            for (at, (due, tie)) in keys.iter().enumerate() {
                if at % 7 == left_out {
                    sorter.leave_out();
                } else {
                    sorter.add(*due, *tie);
                }
            }
            let mut order = vec![7];
            sorter.finish(&mut order, |position| keys[position as usize]);
            let result: Vec<_> = order.iter().map(|position| keys[*position as usize]).collect();
            order.sort_unstable();
            order.dedup();
            prop_assert_eq!(order.len(), result.len());

            let mut at = 0;
            keys.retain(|_| {
                at += 1;
                (at - 1) % 7 != left_out
            });
            keys.sort_unstable();
            keys.reverse();
            prop_assert_eq!(result, keys);
        }
    }

    #[test]
    fn sort_shift_is_minimal() {
        for span in [0, 1, 2, 63, 64, 65, 999, 1000, 4095, 4096, u64::MAX - 1, u64::MAX] {
            for most in [64, 128, 4096] {
                let shift = shift_for(span, most);
                assert!(span >> shift < most, "{span} {most}");
                assert!(shift == 0 || span >> (shift - 1) >= most, "{span} {most}");
            }
        }
    }
}
