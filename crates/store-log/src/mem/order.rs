//! Ids by time. Entries are only added: the newest record of an id determines whether an entry is still valid.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A time and an id.
pub(crate) type TimedId = (u64, u64);

/// A chunk is sorted once it has this length.
const CHUNK: usize = 16 * 1024;

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
        if self.tail.len() == CHUNK {
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
        (self.chunks.len() * CHUNK + self.tail.capacity()) * size_of::<TimedId>()
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
