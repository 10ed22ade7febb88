//! Tables that grow in small steps, whatever their size: all callers wait for a step, and a table that doubles moves
//! all that it holds. For the memory of one thread; nothing of them survives a crash.

use hashbrown::HashTable;

/// The number of values in a piece of [`StableSlab`] and of [`PieceVec`].
const PIECE: usize = 1 << 12;

/// The average number of entries of a part of [`SplitTable`]: a part has between half and twice as many, which fit into
/// a hash table of 4,096 entries.
const PART: usize = 1_600;

/// Values with stable indices, which are used again. The memory grows by a piece at a time, and only the first piece
/// grows in place: nothing behind it is ever moved.
///
/// ```
/// use duewheel_core::growing::StableSlab;
///
/// let mut slab = StableSlab::new();
/// let first = slab.insert("order-42").expect("an index");
/// assert_eq!(slab.get(first), Some(&"order-42"));
/// assert_eq!(slab.remove(first), Some("order-42"));
/// assert_eq!(slab.insert("order-43"), Some(first));
/// ```
#[derive(Debug)]
pub struct StableSlab<T> {
    cells: PieceVec<Vacancy<T>>,
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

impl<T> Default for StableSlab<T> {
    fn default() -> Self {
        StableSlab::new()
    }
}

impl<T> StableSlab<T> {
    /// An empty one, without memory.
    pub const fn new() -> Self {
        StableSlab { cells: PieceVec::new(), free: None, len: 0 }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of an index, if there is one.
    pub fn get(&self, index: u32) -> Option<&T> {
        match self.cells.get(index as usize)? {
            Vacancy::Taken(value) => Some(value),
            Vacancy::Free(_) => None,
        }
    }

    /// The value of an index, to be changed.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.cells.get_mut(index as usize)? {
            Vacancy::Taken(value) => Some(value),
            Vacancy::Free(_) => None,
        }
    }

    /// Adds a value; `None` when there are no more indices.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(index) = self.free {
            let cell = self.cells.get_mut(index as usize)?;
            let Vacancy::Free(next) = std::mem::replace(cell, Vacancy::Taken(value)) else { return None };
            self.free = next;
            self.len += 1;
            return Some(index);
        }
        let index = u32::try_from(self.len).ok()?; // all before it are full
        self.cells.push(Vacancy::Taken(value));
        self.len += 1;
        Some(index)
    }

    /// Takes a value out; its index is used again.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let free = self.free;
        let cell = self.cells.get_mut(index as usize).filter(|cell| matches!(cell, Vacancy::Taken(_)))?;
        let Vacancy::Taken(value) = std::mem::replace(cell, Vacancy::Free(free)) else { return None };
        self.free = Some(index);
        self.len -= 1;
        Some(value)
    }

    /// All values, by index, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.cells.pieces.iter_mut().flatten().filter_map(|cell| match cell {
            Vacancy::Taken(value) => Some(value),
            Vacancy::Free(_) => None,
        })
    }
}

/// A hash table in parts, one of which is split at a time (linear hashing: Litwin, VLDB 1980). An insert moves the
/// entries of one part at most.
///
/// The caller hashes; both halves of a hash must be spread well, because its lower bits find an entry in a part and its
/// upper ones the part.
///
/// ```
/// use std::hash::BuildHasher;
///
/// use duewheel_core::growing::SplitTable;
/// use foldhash::fast::FixedState;
///
/// let hasher = FixedState::with_seed(1);
/// let hash = |key: &u64| hasher.hash_one(key);
/// let mut table = SplitTable::new();
/// for key in 0..10_000u64 {
///     table.insert(hash(&key), (key, key * 2), |(key, _)| hash(key));
/// }
/// assert_eq!(table.find(hash(&21), |(key, _)| *key == 21), Some(&(21, 42)));
/// ```
#[derive(Debug)]
pub struct SplitTable<T> {
    parts: Vec<HashTable<T>>,
    len: usize,
    capacity: usize,
}

impl<T> Default for SplitTable<T> {
    fn default() -> Self {
        SplitTable::new()
    }
}

impl<T> SplitTable<T> {
    /// An empty table.
    pub fn new() -> Self {
        SplitTable { parts: vec![HashTable::new()], len: 0, capacity: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of entries for which it has memory. Each takes the size of an entry and one byte.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Empties the table, and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
        self.capacity = 0;
        for part in &mut self.parts {
            part.clear(); // and marks of removed entries
            self.capacity += part.capacity();
        }
    }

    /// An entry with this hash that is the wanted one.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&T> {
        self.parts[self.part(hash)].find(hash, is_it)
    }

    /// Finds an entry to be changed; its hash must stay.
    #[inline]
    pub fn find_mut(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let part = self.part(hash);
        self.parts[part].find_mut(hash, is_it)
    }

    /// The entries with this hash, and perhaps others.
    pub fn iter_hash(&self, hash: u64) -> impl Iterator<Item = &T> {
        self.parts[self.part(hash)].iter_hash(hash)
    }

    /// Iterates over the entries of a hash, which may be changed; their hashes must stay.
    pub fn iter_hash_mut(&mut self, hash: u64) -> impl Iterator<Item = &mut T> {
        let part = self.part(hash);
        self.parts[part].iter_hash_mut(hash)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flat_map(HashTable::iter)
    }

    /// Adds an entry that is not there. `hasher` returns the hash of any entry.
    #[inline]
    pub fn insert(&mut self, hash: u64, entry: T, hasher: impl Fn(&T) -> u64) {
        let part = self.part(hash);
        let part = &mut self.parts[part];
        let before = part.capacity();
        part.insert_unique(hash, entry, &hasher);
        self.capacity += part.capacity() - before;
        self.len += 1;
        if self.len > self.parts.len() * PART {
            self.split(hasher);
        }
    }

    /// Takes an entry out; the memory stays.
    #[inline]
    pub fn remove(&mut self, hash: u64, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let part = self.part(hash);
        let part = &mut self.parts[part];
        let before = part.capacity();
        let removed = part.find_entry(hash, is_it).ok()?.remove().0;
        // A removed entry may leave a mark in its place: the place counts as taken until the part is emptied or grows.
        self.capacity = self.capacity + part.capacity() - before;
        self.len -= 1;
        Some(removed)
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
        self.capacity -= both.capacity();
        self.parts.push(HashTable::new());
        for part in [old, new] {
            self.parts[part] = HashTable::with_capacity(both.len() / 2);
        }
        for entry in both {
            let hash = hasher(&entry);
            let part = self.part(hash);
            self.parts[part].insert_unique(hash, entry, &hasher);
        }
        self.capacity += self.parts[old].capacity() + self.parts[new].capacity();
    }
}

/// A vector in pieces: nothing but the first one is ever moved when it grows.
///
/// ```
/// use duewheel_core::growing::PieceVec;
///
/// let mut offsets = PieceVec::new();
/// (0..100_000u32).for_each(|n| offsets.push(n));
/// assert_eq!(offsets.get(70_000), Some(&70_000));
/// ```
#[derive(Debug)]
pub struct PieceVec<T> {
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for PieceVec<T> {
    fn default() -> Self {
        PieceVec::new()
    }
}

impl<T> PieceVec<T> {
    /// An empty one, without memory.
    pub const fn new() -> Self {
        PieceVec { pieces: Vec::new(), len: 0 }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of values for which it has memory.
    pub fn capacity(&self) -> usize {
        let first = self.pieces.first().map_or(0, Vec::capacity);
        first + self.pieces.len().saturating_sub(1) * PIECE
    }

    /// Empties it, and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
        for piece in &mut self.pieces {
            piece.clear();
        }
    }

    /// The value at a place, if there is one.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }

    /// The value at a place, to be changed.
    #[inline]
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pieces.get_mut(at / PIECE)?.get_mut(at % PIECE)
    }

    /// Adds a value behind the others.
    #[inline]
    pub fn push(&mut self, value: T) {
        let no = self.len / PIECE;
        if no == self.pieces.len() {
            let room = if no == 0 { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        self.pieces[no].push(value);
        self.len += 1;
    }

    /// All values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
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
    fn table_insert_moves_few_entries() {
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
    fn split_table_matches_map_model() {
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
            assert_eq!(table.len(), model.len());
            let there: Vec<_> = table.iter_hash(hash).filter(|entry| is_it(entry)).map(|(_, n)| n).collect();
            assert_eq!(there, model.get(&id).into_iter().collect::<Vec<_>>());
        }
        assert!(table.parts.len() > 4, "{} parts", table.parts.len());
        assert_eq!(table.capacity(), table.parts.iter().map(HashTable::capacity).sum::<usize>());
        assert_eq!(table.iter().copied().collect::<BTreeMap<_, _>>(), model);
        let (parts, memory) = (table.parts.len(), table.capacity());
        table.clear();
        assert!(table.is_empty() && table.iter().next().is_none());
        for id in 0..5_000 {
            table.insert(hasher.hash_one(id), (id, 1), |(id, _)| hasher.hash_one(id));
        }
        assert_eq!((table.len(), table.parts.len()), (5_000, parts));
        let sum = table.parts.iter().map(HashTable::capacity).sum::<usize>();
        assert!(table.capacity() == sum && sum >= memory, "{memory} were kept of {sum}");
    }

    #[test]
    fn piece_vec_behaves_like_vec() {
        let mut vec = PieceVec::new();
        for round in 0..2 {
            assert!(vec.is_empty() && vec.get(0).is_none());
            (0..3 * PIECE + 7).for_each(|n| vec.push(n + round));
            *vec.get_mut(2 * PIECE).unwrap() = 9;
            let expected = |n: usize| if n == 2 * PIECE { 9 } else { n + round };
            assert!(vec.iter().copied().eq((0..vec.len()).map(expected)));
            assert_eq!((vec.get(vec.len()), vec.len()), (None, 3 * PIECE + 7));
            assert_eq!(vec.capacity(), vec.pieces.iter().map(Vec::capacity).sum::<usize>());
            vec.clear();
        }
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
