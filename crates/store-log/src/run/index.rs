//! An index of a run: sorted entries in leaves on the disk, and the first entry of each leaf, its *fence*, in memory.

use super::block::{self, BLOCK, BlockKind};
use super::file::{Blocking, RunFile};
use super::leaf::{LeafEntry, LeafLayout};
use crate::fault::{Damage, ReadFault};
use crate::le::u64_at;

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
