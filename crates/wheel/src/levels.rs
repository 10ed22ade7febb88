//! The entries ahead of the pointer: levels of 64 lists over a number, which is the slot in this turn or the number of
//! the turn.
//!
//! ```text
//! number (64 bits)  | 4 bits | 6 | 6 | ... | 6 | 6 |
//! level               10       9   8         1   0
//! ```
//!
//! The level of a number is that of the highest group of bits in which it differs from the pointer's number, and its
//! list is the value of that group. So level 0 has a list for each single number in the pointer's block of 64, level 1
//! a list for each further block in the pointer's block of 4096, and so on. The position follows from the two numbers
//! alone, which is how a cancel finds the list.
//!
//! When the pointer enters the range of a list, its entries move down by at least one level. So an entry moves at most
//! once for each level, only occupied lists are visited, and a list of a low level always comes before all lists of
//! higher ones.
//!
//! A long ring with one list for each slot would append to thousands of places, which do not fit into the processor's
//! caches and page tables. Sixty-four do, and moving an entry once more is cheaper than one miss.

use crate::list::List;
use crate::list::{Chunk, Entry, Pool};
use crate::liveness::Liveness;
use alloc::vec::Vec;

const GROUP: u32 = 6;
const LISTS: usize = 1 << GROUP;

#[derive(Clone, Debug)]
pub(crate) struct Levels<T> {
    levels: Vec<WheelLevel<T>>,
    /// Bit l is set when level l is occupied.
    occupied: u32,
}

#[derive(Clone, Debug)]
struct WheelLevel<T> {
    /// The 64 lists; empty until the level is used for the first time.
    lists: Vec<List<T>>,
    occupied: u64,
}

/// A list that is not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Occupied {
    level: usize,
    list: usize,
    /// The lowest number that the list stands for.
    pub(crate) first: u64,
}

impl Occupied {
    /// Whether the list stands for one number only.
    pub(crate) fn is_single(&self) -> bool {
        self.level == 0
    }
}

impl<T> Levels<T> {
    /// Levels for numbers up to `last`.
    pub(crate) fn new(last: u64) -> Self {
        let levels = (u64::BITS - last.leading_zeros()).div_ceil(GROUP);
        let levels = (0..levels).map(|_| WheelLevel { lists: Vec::new(), occupied: 0 }).collect();
        Self { levels, occupied: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Stores an entry under `number`, which must be greater than `present`, the pointer's number.
    // Inlined all the way down to the chunk, because an entry that is handed over in memory stalls there: it is read in
    // pieces of other sizes than it was written in.
    #[inline(always)]
    pub(crate) fn push(&mut self, number: u64, present: u64, entry: Entry<T>, pool: &mut Pool<T>) {
        let (at, list) = locate(number, present);
        self.occupied |= 1 << at;
        let level = &mut self.levels[at];
        level.occupied |= 1 << list;
        if level.lists.is_empty() {
            level.make_lists();
        }
        level.lists[list].push(entry, pool);
    }

    /// Notes that an entry under `number` was cancelled.
    #[inline]
    pub(crate) fn entry_cancelled(
        &mut self,
        number: u64,
        present: u64,
        liveness: &mut Liveness,
        pool: &mut Pool<T>,
    ) {
        let (level, list) = locate(number, present);
        if let Some(entries) = self.levels[level].lists.get_mut(list) {
            entries.entry_cancelled(liveness, pool);
            if entries.is_empty() {
                self.unset(level, list);
            }
        }
    }

    /// The list that comes next after the pointer.
    pub(crate) fn first(&self, present: u64) -> Option<Occupied> {
        if self.is_empty() {
            return None;
        }
        let level = self.occupied.trailing_zeros();
        // Lists before the pointer's own have been taken, so the lowest is the next.
        let list = self.levels[level as usize].occupied.trailing_zeros();
        Some(Occupied { level: level as usize, list: list as usize, first: first_of(level, list, present) })
    }

    /// The list that comes last after the pointer.
    pub(crate) fn last(&self, present: u64) -> Option<Occupied> {
        let level = self.occupied.checked_ilog2()?;
        let list = self.levels[level as usize].occupied.checked_ilog2()?;
        Some(Occupied { level: level as usize, list: list as usize, first: first_of(level, list, present) })
    }

    /// The list that contains `number`, if it is not empty; `number` must be greater than `present`, the pointer's.
    pub(crate) fn list_of(&self, number: u64, present: u64) -> Option<Occupied> {
        let (level, list) = locate(number, present);
        let is_occupied = self.levels[level].occupied & 1 << list != 0;
        is_occupied.then_some(Occupied { level, list, first: number })
    }

    /// Takes the oldest chunk out of a list.
    pub(crate) fn take_chunk(&mut self, at: Occupied) -> Option<Chunk<T>> {
        let list = &mut self.levels[at.level].lists[at.list];
        let chunk = list.take_chunk();
        if list.is_empty() {
            *list = List::new();
            self.unset(at.level, at.list);
        }
        chunk
    }

    pub(crate) fn list(&self, at: Occupied) -> &List<T> {
        &self.levels[at.level].lists[at.list]
    }

    pub(crate) fn list_mut(&mut self, at: Occupied) -> &mut List<T> {
        &mut self.levels[at.level].lists[at.list]
    }

    pub(crate) fn take(&mut self, at: Occupied) -> List<T> {
        self.unset(at.level, at.list);
        core::mem::replace(&mut self.levels[at.level].lists[at.list], List::new())
    }

    pub(crate) fn clear(&mut self) {
        for level in &mut self.levels {
            *level = WheelLevel { lists: Vec::new(), occupied: 0 };
        }
        self.occupied = 0;
    }

    /// Every `stride`-th entry, as if all lists were one.
    pub(crate) fn sample(&self, stride: usize) -> impl Iterator<Item = Entry<&T>> {
        let mut skip = 0;
        self.levels.iter().flat_map(|level| &level.lists).flat_map(move |list| {
            let first = skip;
            skip = match list.len().checked_sub(skip) {
                Some(rest) => (stride - rest % stride) % stride,
                None => skip - list.len(),
            };
            list.sample(first, stride)
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<&T>> {
        self.levels.iter().flat_map(|level| &level.lists).flat_map(List::iter)
    }

    fn unset(&mut self, level: usize, list: usize) {
        self.levels[level].occupied &= !(1 << list);
        if self.levels[level].occupied == 0 {
            self.occupied &= !(1 << level);
        }
    }
}

impl<T> WheelLevel<T> {
    #[cold]
    fn make_lists(&mut self) {
        self.lists.resize_with(LISTS, List::new);
    }
}

/// The lowest number that a list stands for.
fn first_of(level: u32, list: u32, present: u64) -> u64 {
    let shift = level * GROUP;
    let above = (present >> shift) & !(LISTS as u64 - 1);
    (above | u64::from(list)) << shift
}

#[inline]
fn locate(number: u64, present: u64) -> (usize, usize) {
    debug_assert!(number > present, "{number} is not ahead of {present}");
    let level = (number ^ present).ilog2() / GROUP;
    let list = (number >> (level * GROUP)) % LISTS as u64;
    #[expect(clippy::cast_possible_truncation, reason = "below LISTS")]
    let list = list as usize;
    (level as usize, list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_follows_highest_difference() {
        assert_eq!(locate(1, 0), (0, 1));
        assert_eq!(locate(63, 62), (0, 63));
        assert_eq!(locate(64, 63), (1, 1));
        assert_eq!(locate(64 * 64, 0), (2, 1));
        assert_eq!(locate(u64::MAX, 0), (10, 15));
        assert_eq!(locate(u64::MAX, u64::MAX - 1), (0, 63));
    }

    #[test]
    fn level_count_fits_last_number() {
        let levels = |last| Levels::<()>::new(last).levels.len();
        assert_eq!([0, 1, 63, 64, 3599, u64::MAX].map(levels), [0, 1, 1, 2, 2, 11]);
    }
}
