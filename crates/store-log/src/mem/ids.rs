//! The newest record of each message.
//!
//! Ids are given in ascending order, and one of n shards gives every n-th id. The ids that were given in a memtable's
//! own time are a dense range of these, with four bytes for each. The others, older messages whose life has changed,
//! are *strays* in a hash table.

use duewheel_core::growing::{PieceVec, SplitTable};

use super::arena::ArenaOffset;

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

#[cfg(test)]
mod tests {
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
