//! Records which entries are still wanted, wherever they are stored: two bits for each, and a generation for each group
//! of eight.
//!
//! ```text
//!            live  cancelled
//! free        0        0      no entry
//! live        1        0      the entry waits in some list
//! cancelled   0        1      the entry still lies in some list, and will be dropped when it is met there
//!
//! word (64 bits)    | group 0 | group 1 | ... | group 7 |
//! generation         u32       u32             u32
//! ```
//!
//! The bits are not in the entries, because entries are moved (from level to level, into the sorted slot): a handle
//! cannot say where its entry is, but it can name the entry's index.
//!
//! Two rules keep indexes apart:
//! - An index is free only when its *entry* has been taken out of its list. So the lists never hold two entries of one
//!   index, and the bits of an index are those of its entry.
//! - The indexes of a group are given out one by one, each once, and then not again before all eight are free, with the
//!   next generation. So a handle, which carries both, is never taken for another one before the generations of its
//!   group have wrapped around, all 2³² of them.
//!
//! A generation for each index would take four times as much memory. The price of groups is that one long-lived entry
//! keeps seven indexes unused, which are worth less than a byte each.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::occupancy::Occupancy;

const WORD: usize = u64::BITS as usize;
const GROUP: usize = 8;
const GROUPS: usize = WORD / GROUP;

/// Identifies an entry. Never zero, so that `Option<EntryIndex>` takes no additional memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryIndex(NonZeroU32);

impl EntryIndex {
    #[inline]
    const fn word(self) -> usize {
        self.0.get() as usize / WORD
    }

    #[inline]
    const fn bit(self) -> u64 {
        1 << (self.0.get() % u64::BITS)
    }

    #[inline]
    const fn group(self) -> usize {
        self.0.get() as usize / GROUP
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    live: Vec<u64>,
    cancelled: Vec<u64>,
    generations: Vec<u32>,
    /// Words that may have a free group. It contains every word that has one, except for those in `open_groups`.
    vacant: Occupancy,
    /// The next index to give out. A multiple of `GROUP` means that another group must be opened first.
    next: usize,
    /// The word that groups are taken from, and its groups that are still to be taken. Taking groups word by word keeps
    /// entries close together that were inserted one after the other.
    open_word: usize,
    open_groups: u64,
    /// The first generation of a new group: the latest that any group has had.
    first_generation: u32,
    latest_generation: u32,
}

impl Liveness {
    pub(crate) const fn new() -> Self {
        Self {
            live: Vec::new(),
            cancelled: Vec::new(),
            generations: Vec::new(),
            vacant: Occupancy::new(),
            next: 0,
            open_word: 0,
            open_groups: 0,
            first_generation: 0,
            latest_generation: 0,
        }
    }

    /// Makes a new live index with its generation.
    ///
    /// # Panics
    ///
    /// When the indexes run out, which cannot happen below 2²⁹ entries: a collection panics in the same way when its
    /// capacity is exhausted.
    #[inline]
    pub(crate) fn admit(&mut self) -> (EntryIndex, u32) {
        if self.next.is_multiple_of(GROUP) {
            self.open_group();
        }
        #[expect(clippy::cast_possible_truncation, reason = "`extend` lets no index be longer")]
        let index = EntryIndex(NonZeroU32::new(self.next as u32).expect("index 0 is never given out"));
        self.next += 1;
        self.live[index.word()] |= index.bit();
        (index, self.generations[index.group()])
    }

    /// Marks a live entry as cancelled; returns `false` if the handle's entry is not live any more.
    #[inline]
    pub(crate) fn cancel(&mut self, index: EntryIndex, generation: u32) -> bool {
        let holds = self.holds(index, generation);
        if holds {
            self.live[index.word()] &= !index.bit();
            self.cancelled[index.word()] |= index.bit();
        }
        holds
    }

    #[inline]
    pub(crate) fn holds(&self, index: EntryIndex, generation: u32) -> bool {
        self.generations.get(index.group()) == Some(&generation) && self.is_live(index)
    }

    #[inline]
    pub(crate) fn is_live(&self, index: EntryIndex) -> bool {
        self.live[index.word()] & index.bit() != 0
    }

    /// Whether all of these entries are live. All are checked in any case, without a branch, so that the memory
    /// accesses overlap.
    #[inline]
    pub(crate) fn are_live(&self, indexes: impl Iterator<Item = EntryIndex>) -> bool {
        indexes.fold(true, |all, index| all & self.is_live(index))
    }

    /// The generation of an entry that is live.
    pub(crate) fn generation(&self, index: EntryIndex) -> Option<u32> {
        self.is_live(index).then(|| self.generations[index.group()])
    }

    /// Releases the index, because its entry has left its list. Returns whether the entry was live.
    #[inline]
    pub(crate) fn release(&mut self, index: EntryIndex) -> bool {
        let (word, bit) = (index.word(), index.bit());
        let live = self.live[word] & bit != 0;
        if live {
            self.live[word] &= !bit;
        } else {
            self.cancelled[word] &= !bit;
        }
        // Whether the group has no cancelled entries either is checked when a group is needed.
        if self.live[word] & group_of(bit) == 0 {
            self.vacant.set(word);
        }
        live
    }

    /// Releases all indexes, because no list holds an entry any more. Generations continue, so that old handles stay
    /// refused.
    pub(crate) fn clear(&mut self) {
        let generation = self.latest_generation.wrapping_add(1);
        *self = Self { first_generation: generation, latest_generation: generation, ..Self::new() };
    }

    /// Frees memory, once all indexes are free.
    pub(crate) fn release_memory(&mut self) {
        const KEEP: usize = 64;
        if self.live.len() > KEEP {
            self.clear();
        }
    }

    /// Sets `next` to the first index of a free group, of a new one if there is none.
    #[cold]
    fn open_group(&mut self) {
        if self.next > 0 {
            // The former group may have been freed while it was given out.
            self.vacant.set((self.next - 1) / WORD);
        }
        while self.open_groups == 0 {
            match self.vacant.next(self.open_word).or_else(|| self.vacant.next(0)) {
                Some(word) => {
                    self.vacant.unset(word);
                    self.open_word = word;
                    self.open_groups = free_groups(self.live[word] | self.cancelled[word]);
                }
                None => self.extend(),
            }
        }
        let first = self.open_groups.trailing_zeros() as usize;
        self.open_groups &= self.open_groups - 1;

        let group = self.open_word * GROUPS + first / GROUP;
        let generation = self.generations[group].wrapping_add(1);
        self.generations[group] = generation;
        if generation.wrapping_sub(self.latest_generation) < 1 << 31 {
            self.latest_generation = generation;
        }
        // Index 0 does not exist.
        self.next = (group * GROUP).max(1);
    }

    fn extend(&mut self) {
        let words = self.live.len() + 1;
        assert!(words * WORD <= u32::MAX as usize, "a wheel holds fewer than {} entries", u32::MAX);
        grow(&mut self.live, 1);
        grow(&mut self.cancelled, 1);
        grow(&mut self.generations, GROUPS);
        self.live.push(0);
        self.cancelled.push(0);
        self.generations.resize(words * GROUPS, self.first_generation);
        self.vacant.extend(words);
        self.vacant.set(words - 1);
    }

    #[cfg(test)]
    pub(crate) fn stored(&self) -> usize {
        self.live.iter().chain(&self.cancelled).map(|word| word.count_ones() as usize).sum()
    }
}

/// All bits of the group that a bit belongs to.
#[inline]
const fn group_of(bit: u64) -> u64 {
    let first = bit.trailing_zeros() / 8 * 8;
    0xFF << first
}

/// The lowest bit of each group in which no bit is set.
const fn free_groups(word: u64) -> u64 {
    const LOWEST: u64 = u64::MAX / 0xFF;
    // Each group's bits are folded onto its lowest, which cannot be reached by those of another group.
    let halves = word | ((word >> 4) & (LOWEST * 0x0F));
    let quarters = halves | ((halves >> 2) & (LOWEST * 0x03));
    let any = quarters | ((quarters >> 1) & LOWEST);
    !any & LOWEST
}

/// Grows a vector by an eighth, not to double its size: unused capacity counts for each entry.
fn grow<V>(vec: &mut Vec<V>, more: usize) {
    if vec.capacity() - vec.len() < more {
        let len = vec.len();
        vec.reserve_exact(if len < 4096 { len.max(more) } else { len / 8 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn free_groups_have_no_bit(word: u64, mask: u64) {
            let word = word & mask;
            let expected = (0..GROUPS)
                .filter(|group| word.to_le_bytes()[*group] == 0)
                .fold(0_u64, |groups, group| groups | 1 << (group * GROUP));
            prop_assert_eq!(free_groups(word), expected);
        }

        #[test]
        fn index_is_unique_per_generation(
            steps in prop::collection::vec((0u8..5, any::<prop::sample::Index>()), 1..1000)
        ) {
            let mut liveness = Liveness::new();
            let mut stored: Vec<(EntryIndex, u32, bool)> = Vec::new();
            let mut gone: Vec<(EntryIndex, u32)> = Vec::new();
            for (step, which) in steps {
                match step {
                    0 | 1 => {
                        let (index, generation) = liveness.admit();
                        prop_assert!(stored.iter().all(|(other, ..)| *other != index));
                        prop_assert!(!gone.contains(&(index, generation)));
                        stored.push((index, generation, true));
                    }
                    2 if !stored.is_empty() => {
                        let (index, generation, live) = which.get_mut(&mut stored);
                        prop_assert_eq!(liveness.cancel(*index, *generation), *live);
                        *live = false;
                    }
                    3 | 4 if !stored.is_empty() => {
                        let (index, generation, live) = stored.swap_remove(which.index(stored.len()));
                        prop_assert_eq!(liveness.release(index), live);
                        gone.push((index, generation));
                    }
                    _ if which.index(20) == 0 => {
                        liveness.clear();
                        gone.extend(stored.drain(..).map(|(index, generation, _)| (index, generation)));
                    }
                    _ => {}
                }
                prop_assert_eq!(liveness.stored(), stored.len());
                for (index, generation, live) in &stored {
                    prop_assert_eq!(liveness.is_live(*index), *live);
                    prop_assert_eq!(liveness.holds(*index, *generation), *live);
                }
                prop_assert!(gone.iter().all(|(index, generation)| !liveness.holds(*index, *generation)));
            }
            // All are found again before new ones are made.
            let words = liveness.live.len();
            for (index, ..) in stored.drain(..) {
                liveness.release(index);
            }
            for _ in 0..(words * WORD).saturating_sub(2 * GROUP) {
                liveness.admit();
            }
            prop_assert_eq!(liveness.live.len(), words);
        }
    }
}
