//! The file of a run, read in whole blocks with correct checksums.

use std::io;
use std::sync::Arc;

use duewheel_core::record::DecodeError;

use super::block::{self, BLOCK, BlockHead, BlockKind, FILE_HEAD};
use crate::disk::{Disk, DiskFile, FileAccess};
use crate::fault::{Damage, ReadFault, failed};
use crate::manifest::RunEntry;

/// Whether a read may wait for the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// The read takes as long as it takes.
    #[default]
    Allowed,
    /// The read fails with [`ReadFault::NotAtHand`] rather than wait.
    Never,
}

#[derive(Debug)]
pub(crate) struct RunFile {
    file: Arc<dyn DiskFile>,
    name: String,
    pub(crate) run: RunEntry,
}

impl RunFile {
    /// Opens a run's file and checks its length and head.
    pub(crate) fn open(disk: &dyn Disk, run: &RunEntry) -> Result<Self, ReadFault> {
        let name = run.no.run();
        let file = match disk.open(&name, FileAccess::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Damage::new(name, 0, "the manifest lists this run, which is missing").into());
            }
            Err(error) => return Err(failed("open", &name)(error).into()),
        };
        let size = file.size().map_err(failed("measure", &name))?;
        if size != run.bytes
            || size < (FILE_HEAD + block::FOOTER) as u64
            || size > block::MAX_BYTES
            || size % 8 != 0
        {
            let what = format!("the file has {size} bytes, and should have {}", run.bytes);
            return Err(Damage::new(name, size.min(run.bytes), what).into());
        }
        let opened = RunFile { file, name, run: *run };
        let mut head = [0; FILE_HEAD];
        opened.read(&mut head, 0)?;
        block::check_file_head(&head, run).map_err(|what| opened.problem(0, what))?;
        Ok(opened)
    }

    /// Fills `buffer` from an offset, however long the medium takes.
    pub(crate) fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), ReadFault> {
        self.read_as(buffer, at, Blocking::Allowed)
    }

    fn read_as(&self, buffer: &mut [u8], at: u64, blocking: Blocking) -> Result<(), ReadFault> {
        let read = match blocking {
            Blocking::Allowed => self.file.read_at(buffer, at),
            Blocking::Never => match self.file.read_at_hand(buffer, at) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(ReadFault::NotAtHand),
                read => read,
            },
        };
        Ok(read.map_err(failed("read", &self.name))?)
    }

    /// Reads the block from `at` to `end` to the start of `buffer`, which only grows.
    pub(crate) fn block(
        &self,
        kind: BlockKind,
        at: u64,
        end: u64,
        buffer: &mut Vec<u8>,
        blocking: Blocking,
    ) -> Result<BlockHead, ReadFault> {
        let length = bytes_between(at, end);
        grow(buffer, length);
        self.read_as(&mut buffer[..length], at, blocking)?;
        self.check(&buffer[..length], kind, at)
    }

    /// Reads the block that starts at `at` and ends somewhere up to `end` to the start of `buffer`, which only grows.
    pub(crate) fn block_within(
        &self,
        kind: BlockKind,
        at: u64,
        end: u64,
        buffer: &mut Vec<u8>,
        blocking: Blocking,
    ) -> Result<BlockHead, ReadFault> {
        if at >= end || bytes_between(at, end) < block::HEAD {
            return Err(self.problem(at, "there is no room for a block").into());
        }
        let first = bytes_between(at, end).min(BLOCK);
        grow(buffer, first);
        self.read_as(&mut buffer[..first], at, blocking)?;
        let length = block::length(&buffer[..block::HEAD]);
        if length > bytes_between(at, end) {
            return Err(self.problem(at, "the block's length points behind its part of the run").into());
        }
        if length > first {
            grow(buffer, length);
            self.read_as(&mut buffer[first..length], at + first as u64, blocking)?;
        }
        self.check(&buffer[..length], kind, at)
    }

    /// Checks the block at the start of `bytes`, which ends there or before.
    pub(crate) fn first_block(&self, bytes: &[u8], kind: BlockKind, at: u64) -> Result<BlockHead, ReadFault> {
        let length = if bytes.len() < block::HEAD { usize::MAX } else { block::length(bytes) };
        match bytes.get(..length) {
            Some(bytes) => self.check(bytes, kind, at),
            None => Err(self.problem(at, "the block's length points behind its part of the run").into()),
        }
    }

    /// Checks a block that is exactly these bytes.
    pub(crate) fn whole_block(&self, bytes: &[u8], kind: BlockKind, at: u64) -> Result<BlockHead, ReadFault> {
        self.check(bytes, kind, at)
    }

    fn check(&self, bytes: &[u8], kind: BlockKind, at: u64) -> Result<BlockHead, ReadFault> {
        Ok(block::check(bytes, kind, self.run.incarnation, at).map_err(|what| self.problem(at, what))?)
    }

    /// Damage in the block at an offset.
    pub(crate) fn problem(&self, at: u64, what: impl Into<String>) -> Damage {
        Damage::new(&*self.name, at, what)
    }

    /// The problem of an unreadable row in the block at an offset.
    pub(crate) fn unreadable(&self, at: u64) -> impl Fn(DecodeError) -> ReadFault + '_ {
        move |error| self.problem(at, format!("an entry cannot be read: {error}")).into()
    }
}

/// The length of a part of a file whose bounds are known to be within it.
pub(crate) fn bytes_between(from: u64, to: u64) -> usize {
    usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX)
}

fn grow(buffer: &mut Vec<u8>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
}
