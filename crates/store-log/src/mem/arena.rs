//! Records one after the other, at fixed offsets.

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
