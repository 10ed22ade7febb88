//! The entries that the pointer has reached: the only part of the wheel that is sorted.
//!
//! ```text
//! first    a run: some entries of the slot under the pointer, put in order when they were taken in
//! others   the other runs of a crowded slot, by their heads
//! late     entries inserted since then with a due time in that tick or before it: a binary heap
//! ```
//!
//! A run has at most [`RUN`] entries, so that no call sorts more than that: a crowded slot becomes several runs, which
//! are merged as they are handed out. A heap of late entries that has grown as large as a run becomes one.
//!
//! The next entry is the smaller of both heads. Both heads are live: a call that cancels or takes a head removes the
//! dead ones behind it. So the next due time can be read without a change.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};

use crate::list::List;
use crate::list::{Chunk, Entry, Pool};
use crate::liveness::{EntryIndex, Liveness};
use crate::sort::SlotSorter;

/// The largest number of entries that are sorted at once.
pub(crate) const RUN: usize = if cfg!(test) { 256 } else { 2048 };
/// A buffer for this many entries or fewer is never freed.
const KEEP: usize = 1024;
/// The average number of entries that a cancel may examine to free memory.
const LOOKS_PER_CANCEL: usize = 8;

/// The rank of an entry: when it is due, and the tie.
pub(crate) type EntryRank = (u64, u64);

#[derive(Clone, Debug)]
pub(crate) struct Current<T> {
    first: SortedRun<T>,
    others: Vec<SortedRun<T>>,
    /// The heads of `others`, or former heads that were cancelled; the earliest on top.
    heads: BinaryHeap<Reverse<(EntryRank, usize)>>,
    /// Indexes in `others` that hold nothing.
    vacant: Vec<usize>,
    late: BinaryHeap<Late<T>>,
    sorter: SlotSorter,
    /// Entries in this part of the wheel, live or cancelled.
    stored: usize,
    /// The number of entries that are believed to be cancelled; a hint, as in [`List`].
    dead: usize,
    /// The number of entries that compaction may examine, and the part that is next.
    looks: usize,
    next_compacted: usize,
}

impl<T> Current<T> {
    pub(crate) fn new() -> Self {
        Self {
            first: SortedRun::new(),
            others: Vec::new(),
            heads: BinaryHeap::new(),
            vacant: Vec::new(),
            late: BinaryHeap::new(),
            sorter: SlotSorter::new(),
            stored: 0,
            dead: 0,
            looks: 0,
            next_compacted: 0,
        }
    }

    /// Between calls the first run is empty only if all are.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.order.is_empty() && self.late.is_empty()
    }

    pub(crate) fn push_late(&mut self, entry: Entry<T>, liveness: &mut Liveness, pool: &mut Pool<T>) {
        self.late.push(Late(entry));
        self.stored += 1;
        if self.late.len() >= RUN {
            self.late_to_run(liveness, pool);
        }
    }

    #[cold]
    fn late_to_run(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        let (mut list, mut start, mut last) = (List::new(), u64::MAX, 0);
        let others = self.stored - self.late.len();
        let before = core::mem::replace(&mut self.stored, others) - others;
        for Late(entry) in core::mem::take(&mut self.late) {
            (start, last) = (start.min(entry.due), last.max(entry.due));
            list.push(entry, pool);
        }
        while !list.is_empty() {
            self.load(&mut list, start, last, liveness, pool);
        }
        self.dead = self.dead.saturating_sub(before - (self.stored - others));
    }

    /// Takes in a part of a list, all of whose entries are due in `start..=last`, as one run. Returns the number of
    /// entries examined.
    pub(crate) fn load(
        &mut self,
        list: &mut List<T>,
        start: u64,
        last: u64,
        liveness: &mut Liveness,
        pool: &mut Pool<T>,
    ) -> usize {
        if self.stored == 0 {
            self.dead = 0;
        }
        if self.first.order.is_empty() {
            self.first.release_memory(list.len().min(RUN), pool);
        }
        let mut run = match self.first.order.is_empty() {
            true => core::mem::replace(&mut self.first, SortedRun::new()),
            false => SortedRun::new(),
        };
        let looked = run.load(list, start, last, &mut self.sorter, liveness);
        self.stored += run.order.len();
        if self.first.order.is_empty() && self.heads.is_empty() {
            self.first = run;
        } else if let Some(head) = run.first_key() {
            self.put_aside(run, head);
            self.first_is_first();
        }
        self.clear_heads(liveness);
        looked
    }

    fn put_aside(&mut self, run: SortedRun<T>, head: EntryRank) {
        let at = match self.vacant.pop() {
            Some(at) => {
                self.others[at] = run;
                at
            }
            None => {
                self.others.push(run);
                self.others.len() - 1
            }
        };
        self.heads.push(Reverse((head, at)));
    }

    /// Makes the run with the earliest head the first one.
    #[inline]
    fn first_is_first(&mut self) {
        if !self.heads.is_empty() {
            self.change_first();
        }
    }

    fn change_first(&mut self) {
        loop {
            let head = self.first.first_key();
            let is_first = |other: &Reverse<(EntryRank, usize)>| head.is_some_and(|head| head <= other.0.0);
            let Some(&Reverse((_, at))) = self.heads.peek().filter(|other| !is_first(other)) else { break };
            self.heads.pop();
            core::mem::swap(&mut self.first, &mut self.others[at]);
            match head {
                Some(head) => self.heads.push(Reverse((head, at))),
                None => {
                    self.others[at] = SortedRun::new();
                    self.vacant.push(at);
                }
            }
        }
        if self.heads.is_empty() {
            (self.others, self.vacant) = (Vec::new(), Vec::new());
        }
    }

    /// Frees the buffers of a crowded slot.
    pub(crate) fn release_memory(&mut self, needed: usize, pool: &mut Pool<T>) {
        if self.first.order.is_empty() {
            self.first.release_memory(needed, pool);
        }
        if self.late.is_empty() && self.late.capacity() > KEEP {
            self.late = BinaryHeap::new();
        }
    }

    pub(crate) fn first_due(&self) -> Option<u64> {
        let sorted = self.first.first_key().map(|(due, _)| due);
        let late = self.late.peek().map(|late| late.0.due);
        match (sorted, late) {
            (Some(sorted), Some(late)) => Some(sorted.min(late)),
            (one, other) => one.or(other),
        }
    }

    /// The next live entry that is due at `to` or before. Its index has been released.
    #[inline]
    pub(crate) fn pop(&mut self, to: u64, liveness: &mut Liveness) -> Option<Entry<T>> {
        loop {
            let entry = self.pop_any(to)?;
            let live = liveness.release(entry.index);
            self.stored -= 1;
            self.first_is_first();
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
            && self.first.first_key().is_none_or(|sorted| late.0.key() < sorted)
        {
            if late.0.due > to {
                return None;
            }
            return self.late.pop().map(|late| late.0);
        }
        self.first.pop_if(|due, _| due <= to)
    }

    /// Notes that an entry in this part was cancelled. Memory is freed run by run, so that a cancel examines few
    /// entries on average.
    pub(crate) fn entry_cancelled(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        self.dead += 1;
        self.looks = (self.looks + LOOKS_PER_CANCEL).min(2 * RUN);
        self.clear_heads(liveness);
        if self.dead > 64 && self.dead > self.stored / 2 {
            self.compact(liveness, pool);
        }
    }

    fn clear_heads(&mut self, liveness: &mut Liveness) {
        while let Some(entry) = self.first.pop_if(|_, index| !liveness.is_live(index)) {
            self.note_cleared(entry.index, liveness);
            self.first_is_first();
        }
        while self.late.peek().is_some_and(|late| !liveness.is_live(late.0.index))
            && let Some(late) = self.late.pop()
        {
            self.note_cleared(late.0.index, liveness);
        }
    }

    fn note_cleared(&mut self, index: EntryIndex, liveness: &mut Liveness) {
        liveness.release(index);
        self.stored -= 1;
        self.dead = self.dead.saturating_sub(1);
    }

    /// Drops cancelled entries in the parts whose turn it is, within the number of entries that cancels have earned.
    fn compact(&mut self, liveness: &mut Liveness, pool: &mut Pool<T>) {
        let parts = self.parts();
        for _ in 0..parts {
            let part = self.next_compacted % parts;
            let len = self.part_len(part);
            if len > self.looks {
                break;
            }
            self.looks -= len;
            self.next_compacted = part + 1;
            match part {
                0 => self.first.compact(liveness, pool),
                1 => {
                    self.late.retain(|l| liveness.is_live(l.0.index) || liveness.release(l.0.index));
                    self.late.shrink_to(KEEP.max(self.late.len() * 2));
                }
                other => self.others[other - 2].compact(liveness, pool),
            }
            let dropped = len - self.part_len(part);
            self.stored -= dropped;
            self.dead = self.dead.saturating_sub(dropped);
            if self.dead <= self.stored / 2 {
                break;
            }
        }
        if self.stored == 0 {
            self.dead = 0;
        }
        self.first_is_first();
        self.clear_heads(liveness);
    }

    /// The parts that compaction and [`Current::cut`] take one by one: the first run, the late ones, the other runs.
    pub(crate) fn parts(&self) -> usize {
        self.others.len() + 2
    }

    fn part_len(&self, part: usize) -> usize {
        match part {
            0 => self.first.order.len(),
            1 => self.late.len(),
            other => self.others.get(other - 2).map_or(0, |run| run.order.len()),
        }
    }

    /// Takes the entries behind a rank out of one part. Returns the number of entries examined.
    pub(crate) fn cut(
        &mut self,
        part: usize,
        after: EntryRank,
        liveness: &mut Liveness,
        mut out: impl FnMut(Entry<T>),
    ) -> usize {
        let len = self.part_len(part);
        match part {
            0 => self.first.cut(after, &mut out),
            1 => {
                let (gone, kept): (Vec<_>, Vec<_>) =
                    core::mem::take(&mut self.late).into_iter().partition(|late| late.0.key() > after);
                self.late = kept.into();
                gone.into_iter().for_each(|late| out(late.0));
            }
            other => {
                if let Some(run) = self.others.get_mut(other - 2) {
                    run.cut(after, &mut out);
                }
            }
        }
        self.stored -= len - self.part_len(part);
        self.first_is_first();
        self.clear_heads(liveness);
        len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Entry<&T>> {
        let runs = core::iter::once(&self.first).chain(&self.others);
        let sorted = runs.flat_map(|run| &run.chunks).flat_map(Chunk::iter);
        sorted.chain(self.late.iter().map(|late| late.0.as_ref()))
    }

    /// Every `stride`-th entry of each run, and of the late entries.
    pub(crate) fn sample(&self, stride: usize) -> impl Iterator<Item = Entry<&T>> {
        let runs = core::iter::once(&self.first).chain(&self.others);
        let sorted =
            runs.flat_map(move |run| run.order.iter().step_by(stride).filter_map(|at| run.peek(*at)));
        sorted.chain(self.late.as_slice().iter().step_by(stride).map(|late| late.0.as_ref()))
    }
}

/// A run: entries of a slot in order. The entries stay in their chunks; what is sorted is their positions, which go on
/// from chunk to chunk: all but the last are full.
#[derive(Clone, Debug)]
struct SortedRun<T> {
    chunks: Vec<Chunk<T>>,
    /// Positions in descending order, so that the next one is at the end.
    order: Vec<u32>,
}

impl<T> SortedRun<T> {
    const fn new() -> Self {
        Self { chunks: Vec::new(), order: Vec::new() }
    }

    /// Takes the chunks of one run out of a list. Returns the number of entries examined.
    fn load(
        &mut self,
        list: &mut List<T>,
        start: u64,
        last: u64,
        sorter: &mut SlotSorter,
        liveness: &mut Liveness,
    ) -> usize {
        let most = (RUN / Chunk::<T>::SIZE).max(1);
        let mut looked = 0;
        sorter.begin(list.len().min(most * Chunk::<T>::SIZE), start, last);
        while self.chunks.len() < most
            && let Some(mut chunk) = list.take_chunk()
        {
            looked += chunk.len();
            // This also brings the words into the cache that will be written when the entries are taken: many
            // at once in this short loop, instead of one by one then.
            let all_live = liveness.are_live(chunk.iter().map(|entry| entry.index));
            for at in 0..chunk.len() {
                match chunk.peek(at) {
                    Some(entry) if all_live || liveness.is_live(entry.index) => {
                        sorter.add(entry.due, entry.tie);
                    }
                    Some(entry) => {
                        liveness.release(entry.index);
                        chunk.take(at);
                        sorter.leave_out();
                    }
                    None => sorter.leave_out(),
                }
            }
            self.chunks.push(chunk);
        }
        let Self { chunks, order } = self;
        sorter.finish(order, |position| key(chunks, position));
        looked
    }

    /// Returns the chunks to the pool when everything in them has been taken.
    fn release_memory(&mut self, needed: usize, pool: &mut Pool<T>) {
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
    fn pop_if(&mut self, condition: impl FnOnce(u64, EntryIndex) -> bool) -> Option<Entry<T>> {
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

    fn peek(&self, position: u32) -> Option<Entry<&T>> {
        let (chunk, at) = split::<T>(position);
        self.chunks[chunk].peek(at)
    }

    /// Takes out the entries behind a rank.
    fn cut(&mut self, after: EntryRank, mut out: impl FnMut(Entry<T>)) {
        let gone = self.order.partition_point(|position| key(&self.chunks, *position) > after);
        for position in self.order.drain(..gone) {
            let (chunk, at) = split::<T>(position);
            if let Some(entry) = self.chunks[chunk].take(at) {
                out(entry);
            }
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
        self.release_memory(list.len(), pool);
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
