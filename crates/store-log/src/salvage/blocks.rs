//! The whole blocks of a run or of a state, wherever they are in the file.

use std::sync::Arc;

use bytes::Bytes;
use crc32c::crc32c;
use duewheel_core::store::StoreError;

use crate::disk::DiskFile;
use crate::fault::failed;
use crate::folder::Incarnation;
use crate::le::{align8, u32_at, u64_at};

/// Length of the head, before the blocks, in both kinds of files.
pub(super) const FILE_HEAD: u64 = 64;
/// Length of the head of a block.
pub(super) const HEAD: usize = 32;
const PIECE: usize = 1024 * 1024;

/// A block with a correct checksum, at the place that it names.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) at: u64,
    pub(super) kind: u8,
    pub(super) entries: u32,
    pub(super) payload: Bytes,
}

/// Reads a file forward. Bytes that are in no block are skipped, and their position is recorded.
#[derive(Debug)]
pub(super) struct Blocks {
    file: Arc<dyn DiskFile>,
    name: String,
    size: u64,
    incarnation: Incarnation,
    at: u64,
    piece: Bytes,
    piece_at: u64,
    /// Ranges without a whole block.
    pub(super) gaps: Vec<(u64, u64)>,
}

impl Blocks {
    pub(super) fn new(
        file: Arc<dyn DiskFile>,
        name: String,
        incarnation: Incarnation,
    ) -> Result<Self, StoreError> {
        let size = file.size().map_err(failed("measure", &name))?;
        let (piece, gaps) = (Bytes::new(), Vec::new());
        Ok(Blocks { file, name, size, incarnation, at: FILE_HEAD, piece, piece_at: 0, gaps })
    }

    pub(super) fn next(&mut self) -> Result<Option<Block>, StoreError> {
        let from = self.at;
        while self.at + HEAD as u64 <= self.size {
            if let Some(block) = self.block()? {
                if from < self.at {
                    self.gaps.push((from, self.at));
                }
                self.at += align8(HEAD + block.payload.len()) as u64;
                return Ok(Some(block));
            }
            self.at += 8;
        }
        if from < self.size {
            self.gaps.push((from, self.size));
        }
        self.at = self.size;
        Ok(None)
    }

    fn block(&mut self) -> Result<Option<Block>, StoreError> {
        let at = self.at;
        let head = self.bytes(HEAD)?;
        if u64_at(&head, 16) != self.incarnation.0 || u64_at(&head, 24) != at || head[9..12] != [0; 3] {
            return Ok(None);
        }
        let payload = u32_at(&head, 4) as usize;
        let length = align8(HEAD + payload);
        if length as u64 > self.size - at {
            return Ok(None);
        }
        let bytes = self.bytes(length)?;
        if u32_at(&bytes, 0) != crc32c(&bytes[4..]) {
            return Ok(None);
        }
        let payload = bytes.slice(HEAD..HEAD + payload);
        Ok(Some(Block { at, kind: bytes[8], entries: u32_at(&bytes, 12), payload }))
    }

    /// Reads bytes at the present position; the file must have them.
    fn bytes(&mut self, length: usize) -> Result<Bytes, StoreError> {
        let skip = self.at.checked_sub(self.piece_at).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = skip.filter(|skip| skip + length <= self.piece.len()) {
            return Ok(self.piece.slice(skip..skip + length));
        }
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let mut piece = vec![0; PIECE.max(length).min(left)];
        self.file.read_at(&mut piece, self.at).map_err(failed("read", &self.name))?;
        (self.piece, self.piece_at) = (piece.into(), self.at);
        Ok(self.piece.slice(..length))
    }
}
