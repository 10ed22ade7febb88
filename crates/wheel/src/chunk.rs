//! A piece of a list: room for some entries, filled from the front.
//!
//! ```text
//! packed   [ low half of due | index | tie | value ] ...   None from `len` on
//! high     the high half of due, once for all
//! highs    or, if they differ, once for each
//! ```
//!
//! Entries of one list are due close to each other, so the high half of their due times is nearly always the same. An
//! entry with an eight-byte value takes 24 bytes instead of 32 because that half is not stored in each. Only lists that
//! span more than 2³² units, or that happen to cross such a boundary, need `highs`.
//!
//! The memory is written (as `None`) when it is allocated: one sequential pass that brings it into the caches.
//! Otherwise each cache line would be missed separately, because some sixty chunks are filled at the same time.

use crate::liveness::{EntryIndex, Liveness};

/// A timer, or with `T = &V` a view of it.
#[derive(Clone, Debug)]
pub(crate) struct Entry<T> {
    pub(crate) due: u64,
    pub(crate) tie: u64,
    pub(crate) value: T,
    pub(crate) index: EntryIndex,
}

impl<T> Entry<T> {
    #[inline]
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.due, self.tie)
    }

    pub(crate) fn as_ref(&self) -> Entry<&T> {
        Entry { due: self.due, tie: self.tie, value: &self.value, index: self.index }
    }
}

#[derive(Clone, Debug)]
struct Packed<T> {
    tie: u64,
    value: T,
    low: u32,
    index: EntryIndex,
}

#[derive(Clone, Debug)]
pub(crate) struct Chunk<T> {
    packed: Vec<Option<Packed<T>>>,
    highs: Vec<u32>,
    high: u32,
    len: u32,
    /// No live entry is due before it.
    least: u64,
}

impl<T> Chunk<T> {
    /// The number of entries in a chunk of full size, a power of two: some kilobytes, which is enough for sequential
    /// reading, little waste in a chunk that is not full, and little work for the cancel that compacts it.
    pub(crate) const SIZE: usize = {
        let fitting = 4096 / size_of::<Option<Packed<T>>>();
        if fitting < 4 { 4 } else { 1 << fitting.ilog2() }
    };

    pub(crate) const fn new() -> Self {
        Self { packed: Vec::new(), highs: Vec::new(), high: 0, len: 0, least: u64::MAX }
    }

    pub(crate) fn extend(&mut self, more: usize) {
        self.packed.reserve_exact(more);
        self.packed.resize_with(self.packed.len() + more, || None);
    }

    pub(crate) fn room(&self) -> usize {
        self.packed.len()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.packed.len()
    }

    /// Appends an entry. The chunk must have capacity.
    #[inline(always)]
    pub(crate) fn push(&mut self, Entry { due, tie, value, index }: Entry<T>) {
        let (high, low) = halves(due);
        if self.len == 0 {
            self.high = high;
        } else if self.high != high || !self.highs.is_empty() {
            self.push_high(high);
        }
        self.packed[self.len as usize] = Some(Packed { tie, value, low, index });
        self.len += 1;
        self.least = self.least.min(due);
    }

    #[cold]
    fn push_high(&mut self, high: u32) {
        if self.highs.is_empty() {
            self.highs.reserve_exact(self.packed.len());
            self.highs.resize(self.len(), self.high);
        }
        self.highs.push(high);
    }

    /// Takes every entry out, in the order of insertion; the memory stays allocated.
    #[inline]
    pub(crate) fn drain(&mut self, mut to: impl FnMut(Entry<T>)) {
        for at in 0..self.len() {
            if let Some(entry) = self.take(at) {
                to(entry);
            }
        }
        self.reset();
    }

    /// Makes an emptied chunk usable again.
    pub(crate) fn reset(&mut self) {
        self.highs = Vec::new();
        self.len = 0;
        self.least = u64::MAX;
    }

    #[inline]
    pub(crate) fn take(&mut self, at: usize) -> Option<Entry<T>> {
        let Packed { tie, value, low, index } = self.packed[at].take()?;
        Some(Entry { due: self.whole(at, low), tie, value, index })
    }

    #[inline]
    pub(crate) fn peek(&self, at: usize) -> Option<Entry<&T>> {
        let Packed { tie, value, low, index } = self.packed[at].as_ref()?;
        Some(Entry { due: self.whole(at, *low), tie: *tie, value, index: *index })
    }

    /// A time before which no live entry is due; [`Chunk::first_due`] makes it exact.
    pub(crate) fn least(&self) -> u64 {
        self.least
    }

    /// The due time of the live entry that is due first. Reads all entries.
    pub(crate) fn first_due(&mut self, liveness: &Liveness) -> Option<u64> {
        let live = self.iter().filter(|entry| liveness.is_live(entry.index));
        let first = live.map(|entry| entry.due).min();
        self.least = first.unwrap_or(u64::MAX);
        first
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<&T>> {
        (0..self.len()).filter_map(|at| self.peek(at))
    }

    #[inline]
    fn whole(&self, at: usize, low: u32) -> u64 {
        let high = self.highs.get(at).copied().unwrap_or(self.high);
        u64::from(high) << u32::BITS | u64::from(low)
    }
}

/// A few emptied chunks for reuse. When a list is moved down, its chunks become those of the lists below, without the
/// allocator.
#[derive(Clone, Debug)]
pub(crate) struct Pool<T> {
    spare: Vec<Chunk<T>>,
}

impl<T> Pool<T> {
    /// The largest number of chunks that a pool keeps: some 200 kilobytes.
    const MOST: usize = 64;

    pub(crate) const fn new() -> Self {
        Self { spare: Vec::new() }
    }

    pub(crate) fn take(&mut self) -> Option<Chunk<T>> {
        self.spare.pop()
    }

    pub(crate) fn put(&mut self, chunk: Chunk<T>) {
        if chunk.room() == Chunk::<T>::SIZE && self.spare.len() < Self::MOST {
            self.spare.push(chunk);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn halves(due: u64) -> (u32, u32) {
    ((due >> u32::BITS) as u32, due as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_high_half_saves_bytes() {
        assert_eq!(size_of::<Option<Packed<u64>>>(), 24);
        assert_eq!(size_of::<Option<Packed<()>>>(), 16);
    }

    #[test]
    fn due_times_round_trip() {
        let mut liveness = Liveness::new();
        for dues in [
            vec![7, 8, 9],
            vec![u64::MAX, u64::MAX - 1],
            vec![u64::from(u32::MAX), 1 << 32, 5, u64::MAX],
            vec![1 << 40, 1 << 40, (1 << 40) - 1],
        ] {
            let mut chunk = Chunk::new();
            chunk.extend(dues.len());
            for due in &dues {
                chunk.push(Entry { due: *due, tie: !due, value: *due, index: liveness.admit().0 });
            }
            assert!(chunk.is_full());
            assert!(chunk.iter().all(|entry| entry.due == *entry.value && entry.tie == !entry.due));
            let mut drained = Vec::new();
            chunk.drain(|entry| drained.push(entry.due));
            assert_eq!(drained, dues);
            assert!(chunk.iter().next().is_none() && chunk.room() == dues.len());
        }
    }
}
