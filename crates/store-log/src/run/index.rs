//! An index of a run: sorted entries in leaves on the disk, and the first entry of each leaf, its *fence*, in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

use duewheel_core::store::StoreError;

use crate::disk::{Disk, DiskFile};
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{FileNo, u64_at};
use crate::run::block::{self, BLOCK, BlockKind, Blocking, HEAD, RunFile};

#[derive(Debug)]
pub(crate) struct RunIndex<const C: usize> {
    kind: BlockKind,
    fences: Vec<LeafEntry<C>>,
    /// The start of each leaf, divided by 8; then the end of the last one.
    starts: Vec<u32>,
    pub(crate) entries: u64,
}

/// A position in an index. It keeps its leaf, so that neighbours are found without another read.
#[derive(Debug, Default)]
pub(crate) struct IndexScan<const C: usize> {
    leaf: Option<(usize, LeafLayout<C>)>,
    buffer: Vec<u8>,
    position: usize,
    blocking: Blocking,
}

impl<const C: usize> RunIndex<C> {
    /// Writes the payload of the fences: kind of the leaves, number of entries, end of the last leaf, then of each leaf
    /// its start and first entry.
    pub(crate) fn write(
        kind: BlockKind,
        entries: u64,
        leaves: &[(u64, LeafEntry<C>)],
        end: u64,
        out: &mut Vec<u8>,
    ) {
        for n in [kind as u64, entries, end] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for (at, first) in leaves {
            out.extend_from_slice(&at.to_le_bytes());
            for n in first {
                out.extend_from_slice(&n.to_le_bytes());
            }
        }
    }

    /// Reads the fences; the leaves must lie behind `from` without a gap.
    pub(crate) fn read(kind: BlockKind, payload: &[u8], leaves: u32, from: u64, until: u64) -> Option<Self> {
        let stride = 8 + 8 * C;
        let rest = payload.get(24..)?;
        if rest.len() != stride.checked_mul(leaves as usize)? || u64_at(payload, 0) != kind as u64 {
            return None;
        }
        let (entries, end) = (u64_at(payload, 8), u64_at(payload, 16));
        let mut index = RunIndex {
            kind,
            fences: Vec::with_capacity(leaves as usize),
            starts: Vec::with_capacity(leaves as usize + 1),
            entries,
        };
        let mut places = Vec::with_capacity(leaves as usize + 1);
        for leaf in rest.chunks_exact(stride) {
            places.push(u64_at(leaf, 0));
            let mut first = [0; C];
            for (i, n) in first.iter_mut().enumerate() {
                *n = u64_at(leaf, 8 + 8 * i);
            }
            index.fences.push(first);
        }
        places.push(end);
        let long = (block::HEAD as u64)..=(BLOCK as u64);
        let whole = places[0] == from
            && end <= until
            && places.windows(2).all(|w| w[1].checked_sub(w[0]).is_some_and(|length| long.contains(&length)))
            && places.iter().all(|place| place % 8 == 0)
            && index.fences.is_sorted();
        for place in places {
            index.starts.push(u32::try_from(place / 8).ok()?);
        }
        whole.then_some(index)
    }

    pub(crate) fn end(&self) -> u64 {
        u64::from(self.starts.last().copied().unwrap_or(0)) * 8
    }

    fn bounds(&self, leaf: usize) -> (u64, u64) {
        (u64::from(self.starts[leaf]) * 8, u64::from(self.starts[leaf + 1]) * 8)
    }
}

impl<const C: usize> IndexScan<C> {
    /// A scan that waits for the medium.
    pub(crate) fn new() -> Self {
        IndexScan::with(Blocking::Allowed)
    }

    pub(crate) fn with(blocking: Blocking) -> Self {
        IndexScan { leaf: None, buffer: Vec::new(), position: 0, blocking }
    }

    /// Moves to the first entry that is not below `wanted`.
    pub(crate) fn seek(
        &mut self,
        file: &RunFile,
        index: &RunIndex<C>,
        wanted: &LeafEntry<C>,
    ) -> Result<(), ReadFault> {
        if index.fences.is_empty() {
            return Ok(());
        }
        let leaf = index.fences.partition_point(|fence| fence < wanted).saturating_sub(1);
        let shape = self.enter(file, index, leaf)?;
        self.position = shape.lower_bound(self.payload(), wanted);
        Ok(())
    }

    /// The entry that [`IndexScan::next`] has returned last.
    pub(crate) fn here(&self) -> Option<LeafEntry<C>> {
        let (_, shape) = self.leaf?;
        Some(shape.entry(self.payload(), self.position.checked_sub(1)?))
    }

    /// Returns the present entry, and moves behind it.
    pub(crate) fn next(
        &mut self,
        file: &RunFile,
        index: &RunIndex<C>,
    ) -> Result<Option<LeafEntry<C>>, ReadFault> {
        if index.fences.is_empty() {
            return Ok(None);
        }
        let (mut leaf, mut shape) = match self.leaf {
            Some(here) => here,
            None => (0, self.enter(file, index, 0)?),
        };
        while self.position >= shape.len {
            leaf += 1;
            if leaf == index.fences.len() {
                return Ok(None);
            }
            shape = self.enter(file, index, leaf)?;
        }
        let entry = shape.entry(self.payload(), self.position);
        self.position += 1;
        Ok(Some(entry))
    }

    fn payload(&self) -> &[u8] {
        &self.buffer[block::HEAD..]
    }

    /// Reads a leaf, unless it is the present one.
    fn enter(
        &mut self,
        file: &RunFile,
        index: &RunIndex<C>,
        leaf: usize,
    ) -> Result<LeafLayout<C>, ReadFault> {
        self.position = 0;
        if let Some((here, shape)) = self.leaf
            && here == leaf
        {
            return Ok(shape);
        }
        self.leaf = None;
        let (at, end) = index.bounds(leaf);
        let bad = || -> Damage { file.problem(at, "the leaf's entries do not fit its length") };
        let head = file.block(index.kind, at, end, &mut self.buffer, self.blocking)?;
        self.buffer.truncate(block::HEAD + head.payload);
        let shape: LeafLayout<C> = LeafLayout::read(self.payload(), head.entries).ok_or_else(bad)?;
        if shape.len == 0 || shape.entry(self.payload(), 0) != index.fences[leaf] {
            return Err(file.problem(at, "the leaf does not start as the table of leaves says").into());
        }
        self.leaf = Some((leaf, shape));
        Ok(shape)
    }
}

// A leaf of an index: sorted entries of `C` numbers, each column as wide as its largest difference from its least
// value needs, so that an entry is found by halving without decoding the others.
//
// | at | bytes | |
// |---|---|---|
// | 0 | 8 *C* | the least value of each column |
// | 8 *C* | *C* | bytes of each column, 0 to 8 |
// | 9 *C* | | entries: of each column, value minus least value |

/// An entry of an index.
pub(crate) type LeafEntry<const C: usize> = [u64; C];

/// Collects entries for a leaf.
#[derive(Debug)]
pub(crate) struct LeafWriter<const C: usize> {
    entries: Vec<LeafEntry<C>>,
    least: LeafEntry<C>,
    most: LeafEntry<C>,
}

/// The layout of the entries in the payload of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafLayout<const C: usize> {
    least: LeafEntry<C>,
    width: [usize; C],
    stride: usize,
    pub(crate) len: usize,
}

impl<const C: usize> LeafWriter<C> {
    pub(crate) fn new() -> Self {
        LeafWriter { entries: Vec::new(), least: [u64::MAX; C], most: [0; C] }
    }

    pub(crate) fn first(&self) -> Option<&LeafEntry<C>> {
        self.entries.first()
    }

    /// Adds an entry if it fits.
    pub(crate) fn push(&mut self, entry: LeafEntry<C>) -> bool {
        let (mut least, mut most, mut stride) = (self.least, self.most, 0);
        for ((n, least), most) in entry.iter().zip(&mut least).zip(&mut most) {
            *least = *n.min(least);
            *most = *n.max(most);
            stride += width(*most - *least);
        }
        if HEAD + 9 * C + stride * (self.entries.len() + 1) > BLOCK || self.entries.len() == BLOCK {
            return false;
        }
        (self.least, self.most) = (least, most);
        self.entries.push(entry);
        true
    }

    /// Writes the payload, and resets the writer. Returns the number of entries.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> u32 {
        let widths: [usize; C] = std::array::from_fn(|i| width(self.most[i].saturating_sub(self.least[i])));
        for least in self.least {
            out.extend_from_slice(&least.to_le_bytes());
        }
        for width in widths {
            out.push(u8::try_from(width).unwrap_or(8));
        }
        for entry in &self.entries {
            for ((n, least), width) in entry.iter().zip(self.least).zip(widths) {
                out.extend_from_slice(&(n - least).to_le_bytes()[..width]);
            }
        }
        let count = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.clear();
        (self.least, self.most) = ([u64::MAX; C], [0; C]);
        count
    }
}

impl<const C: usize> LeafLayout<C> {
    /// Reads the layout of a payload, and checks its length.
    pub(crate) fn read(payload: &[u8], entries: u32) -> Option<Self> {
        let widths = payload.get(8 * C..9 * C)?;
        let mut shape = LeafLayout { least: [0; C], width: [0; C], stride: 0, len: entries as usize };
        for (i, width) in widths.iter().enumerate() {
            shape.least[i] = u64_at(payload, 8 * i);
            shape.width[i] = usize::from(*width);
            shape.stride += shape.width[i];
        }
        let fits = shape.width.iter().all(|width| *width <= 8)
            && shape.len <= BLOCK
            && 9 * C + shape.stride * shape.len == payload.len();
        fits.then_some(shape)
    }

    /// The entry at this position, which is below `len`.
    #[inline]
    pub(crate) fn entry(&self, payload: &[u8], position: usize) -> LeafEntry<C> {
        let mut at = 9 * C + position * self.stride;
        let mut entry = self.least;
        for (n, width) in entry.iter_mut().zip(self.width) {
            // A damaged leaf has no such sum; whatever comes of it is checked against the row it leads to.
            *n = n.wrapping_add(number(payload, at, width));
            at += width;
        }
        entry
    }

    /// The first position whose entry is not below `wanted`.
    #[inline]
    pub(crate) fn lower_bound(&self, payload: &[u8], wanted: &LeafEntry<C>) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low.midpoint(high);
            if self.entry(payload, middle) < *wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Number of bytes of a number.
#[inline]
fn width(n: u64) -> usize {
    (64 - n.leading_zeros()).div_ceil(8) as usize
}

/// A number of `width` bytes.
#[inline]
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    if width == 0 {
        return 0;
    }
    if at + 8 <= bytes.len() {
        return u64_at(bytes, at) & (u64::MAX >> (64 - 8 * width));
    }
    bytes[at..at + width].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

// Sorts the entries of an index in bounded memory: sorted pieces are written to a file when there are too many.

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
