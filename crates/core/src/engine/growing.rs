//! Tables that grow in small steps, whatever their size: all callers wait for a step, and a table that doubles moves
//! all that it holds.

use hashbrown::HashTable;

/// Number of values in a piece of [`StableSlab`].
const PIECE: usize = 1 << 12;

/// The average number of entries of a part of [`SplitTable`]: a part has between half and twice as many, which fit into
/// a hash table of 4,096 entries.
const PART: usize = 1_600;

/// Values with stable indices, which are used again. The memory grows by a piece at a time, and only the first piece
/// grows in place: nothing behind it is ever moved.
#[derive(Debug)]
pub(super) struct StableSlab<T> {
    pieces: Vec<Vec<Vacancy<T>>>,
    /// The first free index.
    free: Option<u32>,
    len: usize,
}

#[derive(Debug)]
enum Vacancy<T> {
    Taken(T),
    /// The next free index.
    Free(Option<u32>),
}

impl<T> StableSlab<T> {
    pub(super) const fn new() -> Self {
        StableSlab { pieces: Vec::new(), free: None, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.pieces.get(index as usize / PIECE)?.get(index as usize % PIECE)? {
            Vacancy::Taken(value) => Some(value),
            Vacancy::Free(_) => None,
        }
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.cell(index)? {
            Vacancy::Taken(value) => Some(value),
            Vacancy::Free(_) => None,
        }
    }

    /// Adds a value; `None` when there are no more indices.
    pub(super) fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(index) = self.free {
            let cell = self.cell(index)?;
            let Vacancy::Free(next) = std::mem::replace(cell, Vacancy::Taken(value)) else { return None };
            self.free = next;
            self.len += 1;
            return Some(index);
        }
        let index = u32::try_from(self.len).ok()?; // all before it are full
        if self.len.is_multiple_of(PIECE) {
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        self.pieces.last_mut()?.push(Vacancy::Taken(value));
        self.len += 1;
        Some(index)
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let free = self.free;
        let cell = self.cell(index).filter(|cell| matches!(cell, Vacancy::Taken(_)))?;
        let Vacancy::Taken(value) = std::mem::replace(cell, Vacancy::Free(free)) else { return None };
        self.free = Some(index);
        self.len -= 1;
        Some(value)
    }

    /// All values, by index.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pieces.iter_mut().flatten().filter_map(|cell| match cell {
            Vacancy::Taken(value) => Some(value),
            Vacancy::Free(_) => None,
        })
    }

    fn cell(&mut self, index: u32) -> Option<&mut Vacancy<T>> {
        self.pieces.get_mut(index as usize / PIECE)?.get_mut(index as usize % PIECE)
    }
}

/// A hash table in parts, one of which is split at a time (linear hashing: Litwin, VLDB 1980). An insert moves the
/// entries of one part at most.
#[derive(Debug)]
pub(super) struct SplitTable<T> {
    parts: Vec<HashTable<T>>,
    len: usize,
}

impl<T> SplitTable<T> {
    pub(super) fn new() -> Self {
        SplitTable { parts: vec![HashTable::new()], len: 0 }
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts[self.part(hash)].find(hash, is_it)
    }

    /// The entries with this hash, and perhaps others.
    pub(super) fn iter_hash(&self, hash: u64) -> impl Iterator<Item = &T> {
        self.parts[self.part(hash)].iter_hash(hash)
    }

    /// Adds an entry that is not there. `hasher` returns the hash of any entry.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, entry: T, hasher: impl Fn(&T) -> u64) {
        let part = self.part(hash);
        self.parts[part].insert_unique(hash, entry, &hasher);
        self.len += 1;
        if self.len > self.parts.len() * PART {
            self.split(hasher);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let part = self.part(hash);
        let held = self.parts[part].find_entry(hash, is_it).ok()?;
        self.len -= 1;
        Some(held.remove().0)
    }

    /// The part of a hash. With 2^k parts and some more, k + 1 bits number it, unless that part has not been split off
    /// yet. The bits are others than those that a hash table uses.
    #[inline]
    fn part(&self, hash: u64) -> usize {
        let all = self.parts.len().next_power_of_two();
        let part = (hash >> 32) as usize & (all - 1);
        if part < self.parts.len() { part } else { part - all / 2 }
    }

    /// Splits the part whose turn it is.
    fn split(&mut self, hasher: impl Fn(&T) -> u64) {
        let new = self.parts.len();
        let old = new - (1 << new.ilog2());
        let both = std::mem::take(&mut self.parts[old]);
        self.parts.push(HashTable::new());
        for part in [old, new] {
            self.parts[part] = HashTable::with_capacity(both.len() / 2);
        }
        for entry in both {
            let hash = hasher(&entry);
            let part = self.part(hash);
            self.parts[part].insert_unique(hash, entry, &hasher);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell as Counter;
    use std::collections::BTreeMap;
    use std::hash::BuildHasher;

    use foldhash::fast::FixedState;

    use super::*;

    /// Story: a table of ten million ids that doubled moved all of them in one step.
    #[test]
    fn an_insert_moves_few_entries_however_many_there_are() {
        for apart in [1, 16, 1_000] {
            let hasher = FixedState::with_seed(apart);
            let (mut table, looked, mut most) = (SplitTable::new(), Counter::new(0), 0);
            for id in (0..200_000).map(|n| n * apart) {
                looked.set(0);
                table.insert(hasher.hash_one(id), id, |id| {
                    looked.set(looked.get() + 1);
                    hasher.hash_one(*id)
                });
                most = most.max(looked.get());
            }
            assert!((PART..4 * PART).contains(&most), "{most} entries were moved by one insert");
            let largest = table.parts.iter().map(HashTable::len).max();
            assert!(largest.is_some_and(|largest| largest < 3 * PART), "{largest:?} entries in a part");
            for id in (0..200_000).map(|n| n * apart) {
                assert_eq!(table.find(hasher.hash_one(id), |known| *known == id), Some(&id));
            }
        }
    }

    #[test]
    fn a_table_in_parts_is_a_table() {
        let hasher = FixedState::with_seed(5);
        let (mut table, mut model, mut dice) = (SplitTable::new(), BTreeMap::new(), 1u64);
        for n in 0..60_000u64 {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(n);
            let id = (dice >> 40) % 20_000;
            let (hash, is_it) = (hasher.hash_one(id), |entry: &(u64, u64)| entry.0 == id);
            if dice >> 62 == 0 {
                assert_eq!(table.remove(hash, is_it).map(|(_, n)| n), model.remove(&id));
            } else if table.find(hash, is_it).is_none() {
                table.insert(hash, (id, n), |(id, _)| hasher.hash_one(id));
                assert_eq!(model.insert(id, n), None);
            }
            let there: Vec<_> = table.iter_hash(hash).filter(|entry| is_it(entry)).map(|(_, n)| n).collect();
            assert_eq!(there, model.get(&id).into_iter().collect::<Vec<_>>());
        }
        assert!(table.parts.len() > 4, "{} parts", table.parts.len());
    }

    /// Story: a vector of a million rows that doubled copied 200 MB in one step.
    #[test]
    fn values_stay_where_they_are() {
        let mut pieces = StableSlab::new();
        let mut all: Vec<u32> = (0..=PIECE as u64).map(|n| pieces.insert(n).unwrap()).collect();
        let at = |pieces: &StableSlab<u64>, n: usize| std::ptr::from_ref(pieces.get(all[n]).unwrap());
        let (second, first) = (at(&pieces, PIECE), at(&pieces, 0));
        let more: Vec<u32> =
            (all.len() as u64..5 * PIECE as u64).map(|n| pieces.insert(n).unwrap()).collect();
        assert_eq!((at(&pieces, PIECE), at(&pieces, 0)), (second, first));
        all.extend(more);
        assert_eq!(pieces.len(), all.len());
        for (n, index) in (0..).zip(&all) {
            assert_eq!(pieces.get(*index), Some(&n));
        }
        for index in all.iter().step_by(2) {
            assert!(pieces.remove(*index).is_some() && pieces.remove(*index).is_none());
            assert!(pieces.get(*index).is_none() && pieces.get_mut(*index).is_none());
        }
        assert_eq!(pieces.iter_mut().count(), pieces.len());
        let again: Vec<u32> = all.iter().step_by(2).map(|_| pieces.insert(7).unwrap()).collect();
        assert!(again.iter().all(|index| all.contains(index)), "indices are used again");
        assert_eq!(pieces.len(), all.len());
        assert!(pieces.get(u32::MAX).is_none() && pieces.remove(u32::MAX).is_none());
    }
}
