//! Sorts the entries of an index in bounded memory: sorted pieces are written to a file when there are too many.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use duewheel_core::store::StoreError;

use super::leaf::LeafEntry;
use crate::disk::{Disk, DiskFile};
use crate::fault::failed;
use crate::folder::FileNo;
use crate::le::u64_at;

/// Bytes of entries in memory for one sorter.
const PIECE: usize = 4 * 1024 * 1024;
/// Bytes of each piece that are read at a time.
const READ: usize = 32 * 1024;

/// The file for the sorters' pieces. It is created on demand, never synced, and useless after a crash.
#[derive(Debug)]
pub(crate) struct Spill {
    disk: Arc<dyn Disk>,
    name: String,
    file: Option<Arc<dyn DiskFile>>,
    end: u64,
    piece: usize,
}

#[derive(Debug)]
pub(crate) struct Sorter<const C: usize> {
    entries: Vec<LeafEntry<C>>,
    /// Start and number of entries of each piece in the file.
    pieces: Vec<(u64, u64)>,
}

/// Entries in order.
#[derive(Debug)]
pub(crate) struct SortedEntries<const C: usize> {
    here: std::vec::IntoIter<LeafEntry<C>>,
    file: Option<Arc<dyn DiskFile>>,
    name: String,
    pieces: Vec<SpilledPiece<C>>,
    heads: BinaryHeap<Reverse<(LeafEntry<C>, usize)>>,
}

#[derive(Debug)]
struct SpilledPiece<const C: usize> {
    at: u64,
    left: u64,
    ready: Vec<u8>,
    position: usize,
}

impl Spill {
    pub(crate) fn new(disk: Arc<dyn Disk>, no: FileNo) -> Self {
        Spill { disk, name: no.run_spill(), file: None, end: 0, piece: PIECE }
    }

    /// Writes pieces earlier than usual.
    #[cfg(test)]
    pub(crate) fn set_piece(&mut self, bytes: usize) {
        self.piece = bytes;
    }

    fn write(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.disk.create(&self.name).map_err(failed("create", &self.name))?),
        };
        let at = self.end;
        file.write_at(bytes, at).map_err(failed("write", &self.name))?;
        self.end += bytes.len() as u64;
        Ok(at)
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = self.disk.remove(&self.name); // or it is removed by the next owner
        }
    }
}

impl<const C: usize> Sorter<C> {
    pub(crate) fn new() -> Self {
        Sorter { entries: Vec::new(), pieces: Vec::new() }
    }

    /// Takes the sorter out, and leaves an empty one.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Sorter::new())
    }

    /// Number of entries so far.
    pub(crate) fn len(&self) -> u64 {
        self.entries.len() as u64 + self.pieces.iter().map(|(_, entries)| entries).sum::<u64>()
    }

    pub(crate) fn push(&mut self, entry: LeafEntry<C>, spill: &mut Spill) -> Result<(), StoreError> {
        self.entries.push(entry);
        if self.entries.len() * C * 8 >= spill.piece { self.put_aside(spill) } else { Ok(()) }
    }

    fn put_aside(&mut self, spill: &mut Spill) -> Result<(), StoreError> {
        self.entries.sort_unstable();
        let mut bytes = Vec::with_capacity(self.entries.len() * C * 8);
        for n in self.entries.iter().flatten() {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        let at = spill.write(&bytes)?;
        self.pieces.push((at, self.entries.len() as u64));
        self.entries.clear();
        Ok(())
    }

    pub(crate) fn sorted(mut self, spill: &mut Spill) -> Result<SortedEntries<C>, StoreError> {
        if self.pieces.is_empty() {
            self.entries.sort_unstable();
        } else {
            self.put_aside(spill)?;
            self.entries = Vec::new();
        }
        let mut sorted = SortedEntries {
            here: self.entries.into_iter(),
            file: spill.file.clone(),
            name: spill.name.clone(),
            pieces: Vec::new(),
            heads: BinaryHeap::new(),
        };
        for (i, (at, left)) in self.pieces.into_iter().enumerate() {
            sorted.pieces.push(SpilledPiece { at, left, ready: Vec::new(), position: 0 });
            if let Some(entry) = sorted.next_of(i)? {
                sorted.heads.push(Reverse((entry, i)));
            }
        }
        Ok(sorted)
    }
}

impl<const C: usize> SortedEntries<C> {
    pub(crate) fn next(&mut self) -> Result<Option<LeafEntry<C>>, StoreError> {
        let Some(Reverse((entry, piece))) = self.heads.peek().copied() else { return Ok(self.here.next()) };
        let next = self.next_of(piece)?;
        if let Some(mut top) = self.heads.peek_mut() {
            match next {
                Some(next) => *top = Reverse((next, piece)),
                None => drop(PeekMut::pop(top)),
            }
        }
        Ok(Some(entry))
    }

    fn next_of(&mut self, piece: usize) -> Result<Option<LeafEntry<C>>, StoreError> {
        let piece = &mut self.pieces[piece];
        if piece.position == piece.ready.len() {
            let Some(file) = self.file.as_ref().filter(|_| piece.left > 0) else { return Ok(None) };
            let entries = piece.left.min((READ / (C * 8)) as u64);
            let bytes = usize::try_from(entries).unwrap_or(0) * C * 8;
            piece.ready.resize(bytes, 0);
            file.read_at(&mut piece.ready, piece.at).map_err(failed("read", &self.name))?;
            piece.at += bytes as u64;
            piece.left -= entries;
            piece.position = 0;
        }
        let mut entry = [0; C];
        for n in &mut entry {
            *n = u64_at(&piece.ready, piece.position);
            piece.position += 8;
        }
        Ok(Some(entry))
    }
}
