//! Where the rows of a table live: numbered places in blocks, so that growing never moves what is there.

use std::ops::{Index, IndexMut};

const BLOCK: usize = 1024;

/// The number of a place; used again after its value was taken.
pub(super) type Slot = u32;

/// Values at numbered places.
#[derive(Debug)]
pub(super) struct Slab<T> {
    /// All but the last are full.
    blocks: Vec<Vec<Option<T>>>,
    free: Vec<Slot>,
    /// Places used so far, free ones included.
    used: Slot,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { blocks: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Slab<T> {
    /// Puts a value somewhere.
    #[inline]
    pub(super) fn insert(&mut self, value: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.blocks[slot as usize / BLOCK][slot as usize % BLOCK] = Some(value);
            return slot;
        }
        let slot = self.used;
        if slot as usize / BLOCK == self.blocks.len() {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        self.blocks[slot as usize / BLOCK].push(Some(value));
        self.used = slot.checked_add(1).expect("fewer than 2^32 rows fit in memory");
        slot
    }

    /// Takes the value at a place out.
    #[inline]
    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.blocks.get_mut(slot as usize / BLOCK)?.get_mut(slot as usize % BLOCK)?.take()?;
        self.free.push(slot);
        if self.free.len() == self.used as usize {
            *self = Self::default(); // nothing is left: give the memory back
        }
        Some(value)
    }

    /// All values, in order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flat_map(|block| block.iter().flatten())
    }
}

impl<T> Index<Slot> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: Slot) -> &T {
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK]
            .as_ref()
            .expect("an index names a used place")
    }
}

impl<T> IndexMut<Slot> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK]
            .as_mut()
            .expect("an index names a used place")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_an_empty_slab_gives_its_memory_back() {
        let mut slab = Slab::default();
        let slots: Vec<Slot> = (0..3 * BLOCK).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.remove(slots[5]), Some(5));
        assert_eq!(slab.remove(slots[5]), None);
        assert_eq!(slab.insert(77), slots[5]);
        slab[slots[5]] += 1;
        assert_eq!(slab[slots[5]], 78);
        assert_eq!(slab.iter().count(), 3 * BLOCK);
        for slot in slots {
            assert!(slab.remove(slot).is_some());
        }
        assert!(slab.blocks.is_empty());
        assert_eq!(slab.insert(1), 0);
    }
}
