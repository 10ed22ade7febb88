//! The unordered heap of entries of a slot, in chunks of a fixed size.
//!
//! ```text
//! full   [ chunk ][ chunk ][ chunk ] ...   each with no room left, oldest first
//! tail   [ chunk....      ]                entries are appended here
//! ```
//!
//! An append touches one place, and never moves existing entries (except in the very first chunk, which starts small so
//! that a list with one entry stays cheap). Reading is sequential. Chunks all have one size, so the allocator finds a
//! freed one at once when the next is needed.
//!
//! A cancelled entry stays until its list is compacted. Compaction takes chunks from the front, appends live entries at
//! the tail and frees the chunk: the oldest chunks have lost most, and a cancel never pays for more than two chunks
//! however long the list is.
//!
//! # Chunks
//!
//! A chunk has room for some entries, filled from the front.
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

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::liveness::{EntryIndex, Liveness};

/// The result of [`Wheel::next_due_within`](crate::Wheel::next_due_within).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstDue {
    /// The exact due time of the next entry.
    At(u64),
    /// The wheel is empty.
    Nothing,
    /// The allowed number of entries was examined without a result. Call again to continue.
    NotYet,
}

impl From<Option<u64>> for FirstDue {
    fn from(due: Option<u64>) -> Self {
        due.map_or(FirstDue::Nothing, FirstDue::At)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct List<T> {
    full: VecDeque<Chunk<T>>,
    tail: Chunk<T>,
    /// Entries in here, live or cancelled.
    len: u32,
    /// Number of entries that are believed to be cancelled. Only a hint for compaction: no entry is handed out or
    /// dropped because of it.
    dead: u32,
}

impl<T> List<T> {
    const FIRST_CHUNK: usize = 4;

    pub(crate) const fn new() -> Self {
        Self { full: VecDeque::new(), tail: Chunk::new(), len: 0, dead: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<&T>> {
        self.full.iter().chain([&self.tail]).flat_map(Chunk::iter)
    }

    /// The due time of the live entry that is due first. Reads a chunk at a time, beginning with the one that may have
    /// it, and takes the entries read off `looks`; the result for a chunk is kept for the next call.
    pub(crate) fn first_due(&mut self, liveness: &Liveness, looks: &mut usize) -> FirstDue {
        loop {
            let chunks = self.full.iter_mut().chain([&mut self.tail]);
            let Some(chunk) = chunks.min_by_key(|chunk| chunk.least()) else { return FirstDue::Nothing };
            let least = chunk.least();
            if *looks == 0 {
                return FirstDue::NotYet;
            }
            *looks = looks.saturating_sub(chunk.len());
            match chunk.first_due(liveness) {
                Some(first) if first <= least => return FirstDue::At(first),
                // No other entry is due before the end of time.
                None if least == u64::MAX => {
                    *looks = looks.saturating_sub(self.len());
                    let live = self.iter().filter(|entry| liveness.is_live(entry.index));
                    return live.map(|entry| entry.due).min().into();
                }
                Some(_) | None => {}
            }
        }
    }

    /// Every so many entries one, from this one on.
    pub(crate) fn sample(&self, first: usize, stride: usize) -> impl Iterator<Item = Entry<&T>> {
        (first..self.len()).step_by(stride).filter_map(|at| {
            let (chunk, at) = (at / Chunk::<T>::SIZE, at % Chunk::<T>::SIZE);
            self.full.get(chunk).unwrap_or(&self.tail).peek(at)
        })
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, entry: Entry<T>, pool: &mut Pool<T>) {
        if self.tail.is_full() {
            self.make_room(pool);
        }
        self.tail.push(entry);
        self.len += 1;
    }

    #[cold]
    fn make_room(&mut self, pool: &mut Pool<T>) {
        let room = self.tail.room();
        if room == Chunk::<T>::SIZE {
            let chunk = core::mem::replace(&mut self.tail, Chunk::new());
            if self.full.len() == self.full.capacity() {
                self.full.reserve_exact(4.max(self.full.len() / 4));
            }
            self.full.push_back(chunk);
        }
        if self.tail.room() == 0
            && let Some(chunk) = pool.take()
        {
            self.tail = chunk;
        } else if self.full.is_empty() {
            self.tail.extend(room.clamp(Self::FIRST_CHUNK, Chunk::<T>::SIZE - room));
        } else {
            self.tail.extend(Chunk::<T>::SIZE);
        }
    }

    /// Takes the oldest chunk out.
    pub(crate) fn take_chunk(&mut self) -> Option<Chunk<T>> {
        if self.len == 0 {
            return None;
        }
        let chunk = self.full.pop_front().unwrap_or_else(|| core::mem::replace(&mut self.tail, Chunk::new()));
        self.len -= u32::try_from(chunk.len()).expect("a chunk is short");
        Some(chunk)
    }

    pub(crate) fn has_dead(&self) -> bool {
        self.dead > 0
    }

    /// Notes that an entry which may be in this list was cancelled; it is dropped when its chunk is taken.
    pub(crate) fn note_cancelled(&mut self) {
        self.dead += u32::from(self.len > 0);
    }

    /// Notes that an entry in this list was cancelled. Afterwards at most about a quarter of the entries are dead,
    /// except for a handful, and none remains if all are.
    #[inline]
    pub(crate) fn entry_cancelled(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        self.dead += 1;
        if self.dead >= self.len {
            // Each entry is checked all the same: dropping a live entry because of a wrong count would lose it.
            self.compact(self.full.len() + 1, liveness, pool);
            self.dead = 0;
        } else if self.dead > 8 + self.len / 4 {
            self.compact(2, liveness, pool);
        }
    }

    #[cold]
    fn compact(&mut self, chunks: usize, liveness: &mut Liveness, pool: &mut Pool<T>) {
        for _ in 0..chunks {
            let before = self.len;
            let Some(mut chunk) = self.take_chunk() else { return };
            chunk.drain(|entry| {
                if liveness.is_live(entry.index) {
                    self.push(entry, pool);
                } else {
                    liveness.release(entry.index);
                }
            });
            pool.put(chunk);
            self.dead = self.dead.saturating_sub(before - self.len);
        }
        if self.full.capacity() > 8 && self.full.len() < self.full.capacity() / 2 {
            self.full.shrink_to(self.full.len() + self.full.len() / 4);
        }
    }
}

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
