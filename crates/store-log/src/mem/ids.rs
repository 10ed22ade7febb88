//! The newest record of each message.
//!
//! Ids are given in ascending order: those of a memtable's own time are a dense range, with four bytes for each. The
//! others, older messages whose life has changed, are *strays* in a hash table.

use duewheel_core::growing::{PieceVec, SplitTable};

use super::arena::ArenaOffset;

/// A larger gap in the ids is not filled.
const GAP: u64 = 1024;

#[derive(Debug, Default)]
pub(crate) struct IdTable {
    base: u64,
    dense: PieceVec<ArenaOffset>,
    strays: SplitTable<(u64, ArenaOffset)>,
}

/// Fibonacci hashing: ids differ in their low bits, and the table uses the high ones, too.
pub(super) fn spread(id: u64) -> u64 {
    let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

impl IdTable {
    /// Sets the first id of new messages.
    pub(crate) fn start(&mut self, base: u64) {
        self.base = base;
        self.dense.clear();
        self.strays.clear();
    }

    /// The offset of an id, or 0.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> ArenaOffset {
        let at = usize::try_from(id.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        if let Some(place) = self.dense.get(at) {
            return *place;
        }
        if self.strays.is_empty() {
            return 0;
        }
        self.strays.find(spread(id), |(stray, _)| *stray == id).map_or(0, |(_, place)| *place)
    }

    pub(crate) fn set(&mut self, id: u64, place: ArenaOffset) {
        if id >= self.base && id - self.base < self.dense.len() as u64 + GAP {
            let at = usize::try_from(id - self.base).unwrap_or(usize::MAX);
            while self.dense.len() <= at {
                let joins = self.base + self.dense.len() as u64;
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
        let split = strays.partition_point(|(id, _)| *id < self.base);
        let above = strays.split_off(split);
        let dense = (self.base..).zip(self.dense.iter()).filter(|(_, place)| **place != 0);
        strays.into_iter().chain(dense.map(|(id, place)| (id, *place))).chain(above)
    }

    /// Bytes in memory.
    pub(crate) fn memory(&self) -> usize {
        self.dense.capacity() * size_of::<ArenaOffset>()
            + self.strays.capacity() * (size_of::<(u64, ArenaOffset)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use duewheel_core::store::conformance::Dice;

    use super::*;

    #[test]
    fn strays_and_dense_ones_are_one_map() {
        let mut dice = Dice::new(1);
        let mut ids = IdTable::default();
        ids.start(1_000);
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
}
