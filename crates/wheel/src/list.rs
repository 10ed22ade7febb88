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

use std::collections::VecDeque;

use crate::chunk::{Chunk, Entry, Pool};
use crate::liveness::Liveness;

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
            let chunk = std::mem::replace(&mut self.tail, Chunk::new());
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
        let chunk = self.full.pop_front().unwrap_or_else(|| std::mem::replace(&mut self.tail, Chunk::new()));
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
