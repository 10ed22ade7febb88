//! Records one after the other, at fixed offsets; the offset of the newest record of each message; ids by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use duewheel_core::growing::{PieceVec, SplitTable};

/// The offset of a record, in units of eight bytes; 0 means none.
pub(crate) type ArenaOffset = u32;

/// Bytes in a chunk. A longer record has its own chunk, which uses the numbers of several.
const CHUNK: usize = 1024 * 1024;
/// The number of offsets in a chunk, eight bytes each.
const PLACES: usize = CHUNK / 8;

/// An arena grows by chunks, so that only the first one is ever moved, while it is small.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Vec<u8>>,
    bytes: usize,
    /// Chunks of an earlier use.
    spare: Vec<Vec<u8>>,
}

impl Arena {
    /// Bytes in it.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the parts, one behind the other; `None` when there are no offsets left (at 32 GiB).
    pub(crate) fn push(&mut self, parts: &[&[u8]]) -> Option<ArenaOffset> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.chunks.is_empty() {
            self.chunks.push(vec![0; 8]); // place 0 is nowhere
        }
        let fits = self.chunks.last().is_some_and(|last| last.len().next_multiple_of(8) + length <= CHUNK);
        if !fits {
            let spans = self.chunks.last().map_or(0, |last| last.len().div_ceil(CHUNK).max(1));
            self.chunks.extend((1..spans).map(|_| Vec::new()));
            let spare = if length <= CHUNK { self.spare.pop() } else { None };
            self.chunks.push(spare.unwrap_or_else(|| Vec::with_capacity(CHUNK.max(length))));
        }
        let no = self.chunks.len() - 1;
        let chunk = self.chunks.last_mut()?;
        chunk.resize(chunk.len().next_multiple_of(8), 0);
        let place = ArenaOffset::try_from(no * PLACES + chunk.len() / 8).ok()?;
        for part in parts {
            chunk.extend_from_slice(part);
        }
        self.bytes += length;
        Some(place)
    }

    /// The bytes from an offset on.
    pub(crate) fn at(&self, place: ArenaOffset) -> &[u8] {
        let place = place as usize;
        &self.chunks[place / PLACES][place % PLACES * 8..]
    }

    /// The first offset, or the one behind a record of this length; `None` behind the last one.
    pub(crate) fn next(&self, behind: Option<(ArenaOffset, usize)>) -> Option<ArenaOffset> {
        let (mut no, mut at) = match behind {
            None => (0, 8),
            Some((place, length)) => {
                let place = place as usize;
                (place / PLACES, (place % PLACES * 8 + length).next_multiple_of(8))
            }
        };
        while at >= self.chunks.get(no)?.len() {
            no += 1;
            at = 0;
        }
        ArenaOffset::try_from(no * PLACES + at / 8).ok()
    }

    /// Empties the arena and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes = 0;
        for mut chunk in std::mem::take(&mut self.chunks) {
            if chunk.capacity() == CHUNK {
                chunk.clear();
                self.spare.push(chunk);
            }
        }
    }
}

// The newest record of each message.
//
// Ids are given in ascending order, and one of n shards gives every n-th id. The ids that were given in a memtable's
// own time are a dense range of these, with four bytes for each. The others, older messages whose life has changed,
// are *strays* in a hash table.

/// A larger gap in the ids is not filled.
const GAP: u64 = 1024;

#[derive(Debug)]
pub(crate) struct IdTable {
    /// A lower bound of new ids, and the first of them once there is one.
    base: u64,
    /// The distance of new ids.
    step: u64,
    dense: PieceVec<ArenaOffset>,
    strays: SplitTable<(u64, ArenaOffset)>,
}

/// Fibonacci hashing: ids differ in their low bits, and the table also uses the high ones.
pub(super) fn spread(id: u64) -> u64 {
    let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

impl Default for IdTable {
    fn default() -> Self {
        IdTable { base: 0, step: 1, dense: PieceVec::default(), strays: SplitTable::default() }
    }
}

impl IdTable {
    /// Sets a lower bound of the ids of new messages, and their distance.
    pub(crate) fn start(&mut self, base: u64, step: u64) {
        self.base = base;
        self.step = step.max(1);
        self.dense.clear();
        self.strays.clear();
    }

    /// The distance of new ids.
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// The offset of an id, or 0.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> ArenaOffset {
        if let Some(place) = self.place(id).and_then(|at| self.dense.get(at)) {
            return *place;
        }
        if self.strays.is_empty() {
            return 0;
        }
        self.strays.find(spread(id), |(stray, _)| *stray == id).map_or(0, |(_, place)| *place)
    }

    /// The place of an id in the dense range, which may be behind its end.
    #[inline]
    fn place(&self, id: u64) -> Option<usize> {
        let ahead = id.checked_sub(self.base)?;
        let at = if self.step == 1 {
            ahead
        } else if ahead.is_multiple_of(self.step) {
            ahead / self.step
        } else {
            return None;
        };
        usize::try_from(at).ok()
    }

    pub(crate) fn set(&mut self, id: u64, place: ArenaOffset) {
        if self.step > 1 && self.dense.is_empty() && id >= self.base && self.strays.is_empty() {
            self.base = id; // the bound was of another shard
        }
        let dense = self.place(id).filter(|at| (*at as u64) < self.dense.len() as u64 + GAP);
        if let Some(at) = dense {
            while self.dense.len() <= at {
                let joins = self.base + self.dense.len() as u64 * self.step;
                let stray = self.strays.remove(spread(joins), |(stray, _)| *stray == joins);
                self.dense.push(stray.map_or(0, |(_, place)| place));
            }
            if let Some(known) = self.dense.get_mut(at) {
                *known = place;
            }
            return;
        }
        match self.strays.find_mut(spread(id), |(stray, _)| *stray == id) {
            Some(known) => known.1 = place,
            None => self.strays.insert(spread(id), (id, place), |(stray, _)| spread(*stray)),
        }
    }

    /// All of them, ascending.
    pub(crate) fn sorted(&self) -> impl Iterator<Item = (u64, ArenaOffset)> + '_ {
        let mut strays: Vec<(u64, ArenaOffset)> = self.strays.iter().copied().collect();
        strays.sort_unstable();
        // Strays behind the first new id may stand between others of another distance.
        let split = strays.partition_point(|(id, _)| *id < self.base);
        let above = strays.split_off(split);
        let ids = (0..).map(|at: u64| self.base.wrapping_add(at.wrapping_mul(self.step)));
        let dense =
            ids.zip(self.dense.iter()).filter(|(_, place)| **place != 0).map(|(id, place)| (id, *place));
        strays.into_iter().chain(merged(dense, above))
    }

    /// Bytes in memory.
    pub(crate) fn memory(&self) -> usize {
        self.dense.capacity() * size_of::<ArenaOffset>()
            + self.strays.capacity() * (size_of::<(u64, ArenaOffset)>() + 1)
    }
}

/// Both in one order.
fn merged(
    dense: impl Iterator<Item = (u64, ArenaOffset)>,
    strays: Vec<(u64, ArenaOffset)>,
) -> impl Iterator<Item = (u64, ArenaOffset)> {
    let (mut dense, mut strays) = (dense.peekable(), strays.into_iter().peekable());
    std::iter::from_fn(move || match (dense.peek(), strays.peek()) {
        (Some((id, _)), Some((stray, _))) if stray < id => strays.next(),
        (Some(_), _) => dense.next(),
        (None, _) => strays.next(),
    })
}

// Ids by time. Entries are only added: the newest record of an id determines whether an entry is still valid.

/// A time and an id.
pub(crate) type TimedId = (u64, u64);

/// A chunk is sorted once it has this length.
const SORTED: usize = 16 * 1024;

#[derive(Debug, Default)]
pub(crate) struct TimeOrder {
    /// Chunks, each of them sorted.
    chunks: Vec<Vec<TimedId>>,
    tail: Vec<TimedId>,
    /// Length of the part of the tail that is known to be sorted.
    sorted: usize,
}

impl TimeOrder {
    pub(crate) fn push(&mut self, entry: TimedId) {
        if self.sorted == self.tail.len() && self.tail.last().is_none_or(|last| *last <= entry) {
            self.sorted += 1;
        }
        self.tail.push(entry);
        if self.tail.len() == SORTED {
            self.settle();
            self.chunks.push(std::mem::take(&mut self.tail));
            self.sorted = 0;
        }
    }

    /// Sorts all entries; required before [`TimeOrder::scan`].
    pub(crate) fn settle(&mut self) {
        if self.sorted < self.tail.len() {
            self.tail.sort(); // finds the part that is sorted already
            self.sorted = self.tail.len();
        }
    }

    /// All entries behind a position, in order, each once.
    pub(crate) fn scan(&self, after: Option<TimedId>) -> Merged {
        debug_assert_eq!(self.sorted, self.tail.len(), "settled");
        let mut heap = BinaryHeap::with_capacity(self.chunks.len() + 1);
        for no in 0..=self.chunks.len() {
            let chunk = self.chunk(no);
            let from = after.map_or(0, |after| chunk.partition_point(|entry| *entry <= after));
            if let Some(entry) = chunk.get(from) {
                heap.push(Reverse((*entry, no, from)));
            }
        }
        Merged { heap, last: None }
    }

    /// Bytes in memory.
    pub(crate) fn memory(&self) -> usize {
        (self.chunks.len() * SORTED + self.tail.capacity()) * size_of::<TimedId>()
    }

    /// Bytes of this order when it is cleared.
    pub(crate) fn memory_when_empty(&self) -> usize {
        self.tail.capacity() * size_of::<TimedId>()
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.tail.clear();
        self.sorted = 0;
    }

    fn chunk(&self, no: usize) -> &[TimedId] {
        self.chunks.get(no).unwrap_or(&self.tail)
    }
}

/// A position in an order.
#[derive(Debug)]
pub(crate) struct Merged {
    heap: BinaryHeap<Reverse<(TimedId, usize, usize)>>,
    last: Option<TimedId>,
}

impl Merged {
    /// The next entry of this order, which must not have changed since.
    pub(crate) fn next(&mut self, order: &TimeOrder) -> Option<TimedId> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let Reverse((entry, no, at)) = *top;
            match order.chunk(no).get(at + 1) {
                Some(next) => *top = Reverse((*next, no, at + 1)),
                None => {
                    std::collections::binary_heap::PeekMut::pop(top);
                }
            }
            if self.last != Some(entry) {
                self.last = Some(entry);
                return Some(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_items_come_back_in_order() {
        let mut arena = Arena::default();
        for round in 0u8..2 {
            let lengths = [1, 8, 700_000, 400_000, 3_000_000, 5, CHUNK - 8, 16, CHUNK, 9];
            let items: Vec<Vec<u8>> = (round..).zip(lengths).map(|(n, length)| vec![n; length]).collect();
            let places: Vec<ArenaOffset> =
                items.iter().map(|item| arena.push(&[&item[..1], &item[1..]]).unwrap()).collect();
            let mut behind = None;
            for (item, place) in items.iter().zip(&places) {
                assert_eq!(arena.next(behind), Some(*place));
                assert_eq!(&arena.at(*place)[..item.len()], item);
                behind = Some((*place, item.len()));
            }
            assert_eq!(arena.next(behind), None);
            assert_eq!(arena.bytes(), lengths.iter().sum::<usize>());
            arena.clear();
            assert_eq!(arena.next(None), None);
        }
    }
}

#[cfg(test)]
mod ids_tests {
    use std::collections::BTreeMap;

    use duewheel_core::store::conformance::Dice;

    use super::*;

    #[test]
    fn sparse_and_dense_ids_share_map() {
        let mut dice = Dice::new(1);
        let mut ids = IdTable::default();
        ids.start(1_000, 1);
        let mut model = BTreeMap::new();
        for place in 1..20_000u32 {
            let id = match dice.below(4) {
                0 => dice.below(1_000),
                1 => 1_000 + dice.below(20_000),
                2 => 1_000 + u64::from(place) / 4,
                _ => u64::MAX - dice.below(9),
            };
            ids.set(id, place);
            model.insert(id, place);
        }
        assert!(ids.sorted().eq(model.iter().map(|(id, place)| (*id, *place))));
        for id in (0..25_000).chain(u64::MAX - 20..=u64::MAX) {
            assert_eq!(ids.get(id), model.get(&id).copied().unwrap_or(0));
        }
    }

    /// The shard 5 of 16 gives the ids 5, 21, 37, …; whatever else is asked for or changed is found as well.
    #[test]
    fn every_nth_id_takes_one_place() {
        let (mut dice, mut model, mut ids) = (Dice::new(2), BTreeMap::new(), IdTable::default());
        ids.start(1_000, 16);
        for place in 1..20_000u32 {
            let id = match dice.below(20) {
                0 => 5 + 16 * dice.below(60),
                1 => 1_000 + dice.below(400_000),
                _ => 1_013 + 16 * u64::from(place),
            };
            ids.set(id, place);
            model.insert(id, place);
        }
        assert!(ids.sorted().eq(model.iter().map(|(id, place)| (*id, *place))));
        for id in 0..500_000 {
            assert_eq!(ids.get(id), model.get(&id).copied().unwrap_or(0), "{id}");
        }
        assert!(ids.dense.len() < 30_000, "{} places for 19,000 new ids", ids.dense.len());
    }
}

#[cfg(test)]
mod order_tests {
    use std::collections::BTreeSet;

    use duewheel_core::store::conformance::Dice;

    use super::*;

    #[test]
    fn entries_come_in_order_and_once() {
        let mut dice = Dice::new(1);
        let (mut order, mut model) = (TimeOrder::default(), BTreeSet::new());
        for n in 0..50_000 {
            let entry = (dice.below(3_000), dice.below(40));
            order.push(entry);
            model.insert(entry);
            if n % 9_000 == 0 {
                order.settle();
                let after = Some((dice.below(3_000), 7)).filter(|_| n % 2 == 0);
                let mut scan = order.scan(after);
                let seen: Vec<TimedId> = std::iter::from_fn(|| scan.next(&order)).collect();
                assert!(seen.iter().eq(model.iter().filter(|entry| after.is_none_or(|a| **entry > a))));
            }
        }
    }
}
