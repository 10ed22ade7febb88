//! A file's bytes: the visible ones, and those after a power loss.

use std::ops::Range;

use duewheel_core::store::conformance::Dice;

const SECTOR: usize = 512;

/// A file's content. Everything since the last sync is kept call by call, so that any part of it can be lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Oldest first.
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Bytes(usize, Box<[u8]>),
    /// The file has got this length by an allocation without data.
    Length(usize),
}

/// The pieces in which the disk writes back data that is lost in part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pieces {
    /// Aligned pieces of this number of bytes.
    Of(usize),
    /// Pieces of any length, as in a torn sector.
    Torn,
}

impl Inode {
    pub(crate) fn with(bytes: &[u8]) -> Self {
        Inode { cached: bytes.to_vec(), durable: bytes.to_vec(), unsynced: Vec::new() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.cached
    }

    pub(crate) fn len(&self) -> usize {
        self.cached.len()
    }

    pub(crate) fn write(&mut self, bytes: &[u8], at: usize) {
        put(&mut self.cached, bytes, at);
        if !bytes.is_empty() {
            self.unsynced.push(Change::Bytes(at, bytes.into()));
        }
    }

    /// Extends the file to at least this length; new bytes read as zeros.
    pub(crate) fn allocate(&mut self, len: usize) {
        if len > self.cached.len() {
            self.cached.resize(len, 0);
            self.unsynced.push(Change::Length(len));
        }
    }

    pub(crate) fn sync(&mut self) {
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Bytes(at, bytes) => put(&mut self.durable, &bytes, at),
                Change::Length(len) => self.lengthen(len),
            }
        }
    }

    /// Writes a part of the unsynced data to the disk, and forgets that the rest has to be written: it is in the cache
    /// only, and no later sync brings it to the disk. Linux behaves like this after a write-back that failed (Rebello
    /// et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020). Returns the number of these bytes.
    pub(crate) fn sync_in_part(&mut self, dice: &mut Dice) -> u64 {
        let mut lost = 0;
        let pieces = Pieces::any(dice);
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::Length(len) if dice.once_in(2) => self.lengthen(len),
                Change::Length(_) => {}
                Change::Bytes(at, bytes) => {
                    for piece in pieces.cut(at, bytes.len(), dice) {
                        if dice.once_in(2) {
                            put(&mut self.durable, &bytes[piece.clone()], at + piece.start);
                        } else {
                            lost += piece.len() as u64;
                        }
                    }
                }
            }
        }
        lost
    }

    /// Simulates a power loss: all, none or any part of the unsynced data is kept. Returns the number of lost bytes.
    pub(crate) fn lose(&mut self, keep: Keep, dice: &mut Dice) -> u64 {
        let lost = match keep {
            Keep::Nothing => {
                let lost = self.unsynced.iter().map(Change::bytes).sum();
                self.unsynced.clear();
                lost
            }
            Keep::Some => self.sync_in_part(dice),
        };
        self.cached.clone_from(&self.durable);
        lost
    }

    /// The number of unsynced sectors.
    pub(crate) fn unsynced_sectors(&self) -> usize {
        let mut sectors: Vec<usize> = Vec::new();
        for change in &self.unsynced {
            if let Change::Bytes(at, bytes) = change {
                sectors.extend(at / SECTOR..=(at + bytes.len() - 1) / SECTOR);
            }
        }
        sectors.sort_unstable();
        sectors.dedup();
        sectors.len()
    }

    fn lengthen(&mut self, len: usize) {
        if len > self.durable.len() {
            self.durable.resize(len, 0);
        }
    }
}

/// The part of the unsynced data that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    Some,
}

impl Change {
    fn bytes(&self) -> u64 {
        match self {
            Change::Bytes(_, bytes) => bytes.len() as u64,
            Change::Length(_) => 0,
        }
    }
}

impl Pieces {
    pub(crate) fn any(dice: &mut Dice) -> Self {
        match dice.below(4) {
            0 => Pieces::Of(4096),
            1 | 2 => Pieces::Of(SECTOR),
            _ => Pieces::Torn,
        }
    }

    /// Cuts what lies at `at`; ranges within it.
    fn cut(self, at: usize, len: usize, dice: &mut Dice) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < len {
            let end = match self {
                Pieces::Of(size) => ((at + start) / size + 1) * size - at,
                // Sometimes a byte, sometimes most of it.
                Pieces::Torn => {
                    let most = 1 << dice.below(12);
                    start + 1 + usize::try_from(dice.below(most)).unwrap_or(0)
                }
            };
            pieces.push(start..end.min(len));
            start = end;
        }
        pieces
    }
}

fn put(into: &mut Vec<u8>, bytes: &[u8], at: usize) {
    let end = at + bytes.len();
    if into.len() < end {
        into.resize(end, 0);
    }
    into[at..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unsynced_parts_may_be_lost() {
        let (mut whole, mut none, mut first, mut second) = (0, 0, 0, 0);
        for seed in 0..400 {
            let mut dice = Dice::new(seed);
            let mut inode = Inode::default();
            inode.allocate(4096);
            inode.write(&[1; 4096], 0);
            inode.sync();
            inode.write(&[2; 1024], 512);
            inode.write(&[3; 512], 1024);
            inode.lose(Keep::Some, &mut dice);
            let bytes = inode.bytes();
            assert!(bytes[..512].iter().chain(&bytes[1536..]).all(|b| *b == 1));
            let has = |b: u8| bytes.contains(&b);
            whole += u32::from(bytes[512..1024] == [2; 512] && bytes[1024..1536] == [3; 512]);
            none += u32::from(bytes[512..1536] == [1; 1024]);
            first += u32::from(has(2) && !has(3));
            second += u32::from(has(3) && !has(2));
        }
        assert!(whole > 10 && none > 10 && first > 10 && second > 10, "{whole} {none} {first} {second}");
    }

    #[test]
    fn failed_sync_loss_is_permanent() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut dice = Dice::new(seed);
            let mut inode = Inode::with(&[1; 2048]);
            inode.write(&[2; 2048], 0);
            lost += inode.sync_in_part(&mut dice);
            assert_eq!(inode.bytes(), [2; 2048], "the cache still has it");
            inode.sync();
            inode.lose(Keep::Nothing, &mut dice);
            lost -= inode.bytes().iter().filter(|b| **b == 1).count() as u64;
        }
        assert_eq!(lost, 0, "exactly what was lost is missing");
    }

    #[test]
    fn length_and_data_are_lost_independently() {
        let mut lengths = Vec::new();
        for seed in 0..100 {
            let mut dice = Dice::new(seed);
            let mut inode = Inode::default();
            inode.allocate(8192);
            inode.write(&[1; 512], 1024);
            inode.lose(Keep::Some, &mut dice);
            lengths.push((inode.len(), inode.bytes().contains(&1)));
        }
        for expected in [(0, false), (8192, false), (8192, true), (1536, true)] {
            assert!(lengths.contains(&expected), "{expected:?}");
        }
    }
}
