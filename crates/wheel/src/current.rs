//! What the pointer has reached: the only part of the wheel that is in order.
//!
//! ```text
//! sorted   the slot under the pointer, put in order when it was reached
//! late     entries inserted since then with a due time in that tick or before it: a binary heap
//! ```
//!
//! The next one to go is the smaller of both heads. Both heads are live: whoever cancels or takes a head
//! clears the dead ones behind it. So the next due time can be read without touching anything.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::chunk::{Chunk, Entry, Pool};
use crate::list::List;
use crate::liveness::{Index, Liveness};
use crate::sort::Sorter;

/// Room for this many entries is never worth giving back.
const KEEP: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Current<T> {
    sorted: Sorted<T>,
    late: BinaryHeap<Late<T>>,
    /// How many of both are believed to be cancelled; a hint, as in [`List`].
    dead: usize,
}

impl<T> Current<T> {
    pub(crate) fn new() -> Self {
        Self { sorted: Sorted::new(), late: BinaryHeap::new(), dead: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sorted.order.is_empty() && self.late.is_empty()
    }

    pub(crate) fn push_late(&mut self, entry: Entry<T>) {
        self.late.push(Late(entry));
    }

    /// Takes in the slot that the pointer has reached, whose entries are due in `start..=last`.
    pub(crate) fn load(
        &mut self,
        list: List<T>,
        start: u64,
        last: u64,
        liveness: &mut Liveness,
        pool: &mut Pool<T>,
    ) {
        debug_assert!(self.sorted.order.is_empty(), "the pointer moved on before the slot was handed out");
        self.give_back_room(list.len(), pool);
        self.sorted.load(list, start, last, liveness);
    }

    /// Frees the buffers of a crowded slot.
    pub(crate) fn give_back_room(&mut self, needed: usize, pool: &mut Pool<T>) {
        if self.sorted.order.is_empty() {
            self.sorted.give_back_room(needed, pool);
        }
        if self.late.is_empty() && self.late.capacity() > KEEP {
            self.late = BinaryHeap::new();
        }
    }

    pub(crate) fn first_due(&self) -> Option<u64> {
        let sorted = self.sorted.first_key().map(|(due, _)| due);
        let late = self.late.peek().map(|late| late.0.due);
        match (sorted, late) {
            (Some(sorted), Some(late)) => Some(sorted.min(late)),
            (one, other) => one.or(other),
        }
    }

    /// The next live entry that is due at `to` or before. Its index has been given back.
    #[inline]
    pub(crate) fn pop(&mut self, to: u64, liveness: &mut Liveness) -> Option<Entry<T>> {
        loop {
            let entry = self.pop_any(to)?;
            let live = liveness.release(entry.index);
            if self.dead > 0 {
                self.dead -= usize::from(!live);
                self.clear_heads(liveness);
            }
            if live {
                return Some(entry);
            }
        }
    }

    #[inline]
    fn pop_any(&mut self, to: u64) -> Option<Entry<T>> {
        if let Some(late) = self.late.peek()
            && self.sorted.first_key().is_none_or(|sorted| late.0.key() < sorted)
        {
            if late.0.due > to {
                return None;
            }
            return self.late.pop().map(|late| late.0);
        }
        self.sorted.pop_if(|due, _| due <= to)
    }

    /// An entry in here has been cancelled.
    pub(crate) fn entry_cancelled(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        self.dead += 1;
        self.clear_heads(liveness);
        if self.dead > 64 && self.dead > (self.sorted.order.len() + self.late.len()) / 2 {
            self.compact(liveness, pool);
        }
    }

    fn clear_heads(&mut self, liveness: &mut Liveness) {
        while let Some(entry) = self.sorted.pop_if(|_, index| !liveness.is_live(index)) {
            liveness.release(entry.index);
            self.dead = self.dead.saturating_sub(1);
        }
        while self.late.peek().is_some_and(|late| !liveness.is_live(late.0.index))
            && let Some(late) = self.late.pop()
        {
            liveness.release(late.0.index);
            self.dead = self.dead.saturating_sub(1);
        }
    }

    fn compact(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        self.sorted.compact(liveness, pool);
        self.late.retain(|late| liveness.is_live(late.0.index) || liveness.release(late.0.index));
        self.late.shrink_to(KEEP.max(self.late.len() * 2));
        self.dead = 0;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<&T>> {
        let sorted = self.sorted.chunks.iter().flat_map(Chunk::iter);
        sorted.chain(self.late.iter().map(|late| late.0.as_ref()))
    }
}

/// A slot in order. The entries stay in their chunks; what is sorted is their positions, which go on from
/// chunk to chunk: all but the last are full.
#[derive(Clone, Debug)]
struct Sorted<T> {
    chunks: Vec<Chunk<T>>,
    /// Positions in descending order, so that the next one is at the end.
    order: Vec<u32>,
    sorter: Sorter,
}

impl<T> Sorted<T> {
    const fn new() -> Self {
        Self { chunks: Vec::new(), order: Vec::new(), sorter: Sorter::new() }
    }

    fn load(&mut self, mut list: List<T>, start: u64, last: u64, liveness: &mut Liveness) {
        self.sorter.begin(list.len(), start, last);
        while let Some(mut chunk) = list.take_chunk() {
            // This also brings the words into the cache that will be written when the entries are taken: many
            // at once in this short loop, instead of one by one then.
            let all_live = liveness.are_live(chunk.iter().map(|entry| entry.index));
            for at in 0..chunk.len() {
                match chunk.peek(at) {
                    Some(entry) if all_live || liveness.is_live(entry.index) => {
                        self.sorter.add(entry.due, entry.tie);
                    }
                    Some(entry) => {
                        liveness.release(entry.index);
                        chunk.take(at);
                        self.sorter.leave_out();
                    }
                    None => self.sorter.leave_out(),
                }
            }
            self.chunks.push(chunk);
        }
        let Self { chunks, order, sorter } = self;
        sorter.finish(order, |position| key(chunks, position));
    }

    /// Returns the chunks to the pool when everything in them has been taken.
    fn give_back_room(&mut self, needed: usize, pool: &mut Pool<T>) {
        for mut chunk in self.chunks.drain(..) {
            chunk.reset();
            pool.put(chunk);
        }
        if self.order.capacity() > KEEP.max(needed * 4) {
            *self = Self::new();
        }
    }

    #[inline]
    fn first_key(&self) -> Option<(u64, u64)> {
        Some(key(&self.chunks, *self.order.last()?))
    }

    #[inline]
    fn pop_if(&mut self, condition: impl FnOnce(u64, Index) -> bool) -> Option<Entry<T>> {
        let position = *self.order.last()?;
        let (chunk, at) = split::<T>(position);
        let chunk = &mut self.chunks[chunk];
        if chunk.peek(at).is_some_and(|entry| condition(entry.due, entry.index)) {
            self.order.pop();
            chunk.take(at)
        } else {
            None
        }
    }

    fn compact(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        let mut list = List::new();
        for position in self.order.drain(..) {
            let (chunk, at) = split::<T>(position);
            if let Some(entry) = self.chunks[chunk].take(at)
                && (liveness.is_live(entry.index) || liveness.release(entry.index))
            {
                list.push(entry, pool);
            }
        }
        self.give_back_room(list.len(), pool);
        while let Some(chunk) = list.take_chunk() {
            let first = self.chunks.len() * Chunk::<T>::SIZE;
            let first = u32::try_from(first).expect("a list counts in 32 bits");
            self.order.extend((first..).zip(0..chunk.len()).map(|(position, _)| position));
            self.chunks.push(chunk);
        }
    }
}

#[inline]
fn key<T>(chunks: &[Chunk<T>], position: u32) -> (u64, u64) {
    let (chunk, at) = split::<T>(position);
    chunks[chunk].peek(at).map_or((0, 0), |entry| entry.key())
}

#[inline]
const fn split<T>(position: u32) -> (usize, usize) {
    (position as usize / Chunk::<T>::SIZE, position as usize % Chunk::<T>::SIZE)
}

/// Ordered so that the earliest is on top of a max-heap.
#[derive(Clone, Debug)]
struct Late<T>(Entry<T>);

impl<T> Ord for Late<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.key().cmp(&self.0.key())
    }
}

impl<T> PartialOrd for Late<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Late<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Late<T> {}
