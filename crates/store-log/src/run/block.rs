//! The bytes of heads, blocks and footer of a run, and its file, read in whole blocks. `docs/format.md` describes them.

use std::io;
use std::sync::Arc;

use duewheel_core::record::DecodeError;

use crate::disk::{Disk, DiskFile};
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{self, FORMAT, Incarnation, align8, set_u32, set_u64, u32_at, u64_at};
use crate::manifest::RunEntry;

pub(crate) const FILE_HEAD: usize = 64;
/// Length of the head of a block.
pub(crate) const HEAD: usize = 32;
/// Largest size of a block, its head included; a longer row has its own block.
pub(crate) const BLOCK: usize = 4096;
/// Length of the last block of a run.
pub(crate) const FOOTER: usize = HEAD + Footer::FIELDS * 8 + 8;
/// Blocks are named by their start divided by 8, in 32 bits.
pub(crate) const MAX_BYTES: u64 = 8 << 32;

const MAGIC: [u8; 8] = *b"duewrunf";
const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"duewrune");

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum BlockKind {
    Messages = 1,
    Answers = 2,
    IdLeaf = 3,
    KeyLeaf = 4,
    SpanLeaf = 5,
    LeasedLeaf = 6,
    DeadLeaf = 7,
    GraveLeaf = 8,
    Queues = 16,
    Spans = 17,
    Fences = 18,
    Filter = 19,
    Ids = 20,
    Footer = 21,
}

/// The fields of the head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHead {
    pub(crate) entries: u32,
    /// Bytes of the payload, without the zeros behind it.
    pub(crate) payload: usize,
    /// Bytes of the block.
    pub(crate) length: usize,
}

/// The positions of the parts of a run, and their sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    /// End of the blocks of messages, and start of those of answers.
    pub(crate) messages_end: u64,
    /// End of the blocks of answers, and start of the leaves.
    pub(crate) answers_end: u64,
    /// End of the leaves, and start of the tail.
    pub(crate) leaves_end: u64,
    pub(crate) rows: u64,
    pub(crate) weight: u64,
    pub(crate) answers: u64,
    /// The engine time at which the last of the answers expires.
    pub(crate) answers_until: u64,
    pub(crate) queues: u64,
}

pub(crate) fn file_head(run: &RunEntry) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..8].copy_from_slice(&MAGIC);
    set_u32(&mut head, 8, FORMAT);
    set_u64(&mut head, 16, run.no.0);
    set_u64(&mut head, 24, run.incarnation.0);
    set_u64(&mut head, 32, run.last.0);
    let crc = format::checksum(&head);
    set_u32(&mut head, 12, crc);
    head
}

pub(crate) fn check_file_head(head: &[u8; FILE_HEAD], run: &RunEntry) -> Result<(), String> {
    format::check(&head[..12], MAGIC, "a run").map_err(|(_, what)| what)?;
    if *head != file_head(run) {
        return Err("the head is damaged, or of another run than the manifest lists".into());
    }
    Ok(())
}

/// Completes the block at the end of `bytes`, from `start`: space for its head, then the payload.
pub(crate) fn finish(
    bytes: &mut Vec<u8>,
    start: usize,
    kind: BlockKind,
    entries: u32,
    incarnation: Incarnation,
    at: u64,
) {
    let payload = u32::try_from(bytes.len() - start - HEAD).expect("a block has less than 4 GiB");
    bytes.resize(start + align8(bytes.len() - start), 0);
    format::seal_block(&mut bytes[start..], payload, kind as u8, entries, (incarnation, at));
}

/// The length of the block with this head.
pub(crate) fn block_length(head: &[u8]) -> usize {
    align8(HEAD + u32_at(head, 4) as usize)
}

/// Checks a whole block, which must be exactly as long as its head says.
pub(crate) fn check(
    bytes: &[u8],
    kind: BlockKind,
    incarnation: Incarnation,
    at: u64,
) -> Result<BlockHead, &'static str> {
    if bytes.len() < HEAD || bytes.len() != block_length(bytes) {
        return Err("the block does not end where it should");
    }
    let (of, entries) = format::check_block(bytes, incarnation, at)?;
    if of != kind as u8 {
        return Err("the block is of another kind than its place");
    }
    let payload = u32_at(bytes, 4) as usize;
    if bytes[HEAD + payload..].iter().any(|&b| b != 0) {
        return Err("the block is not filled with zeros");
    }
    Ok(BlockHead { entries, payload, length: bytes.len() })
}

impl Footer {
    const FIELDS: usize = 8;

    fn fields(&mut self) -> [&mut u64; Self::FIELDS] {
        [
            &mut self.messages_end,
            &mut self.answers_end,
            &mut self.leaves_end,
            &mut self.rows,
            &mut self.weight,
            &mut self.answers,
            &mut self.answers_until,
            &mut self.queues,
        ]
    }

    /// Writes the payload of its block.
    pub(crate) fn write(mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&FOOTER_MAGIC.to_le_bytes());
        for field in self.fields() {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    /// Reads the payload of its block, whose checksum is right. `at` is the start of the block.
    pub(crate) fn read(payload: &[u8], at: u64) -> Result<Self, &'static str> {
        if payload.len() != FOOTER - HEAD || u64_at(payload, 0) != FOOTER_MAGIC {
            return Err("this is not the footer of a run");
        }
        let mut footer = Footer::default();
        for (i, field) in footer.fields().into_iter().enumerate() {
            *field = u64_at(payload, 8 + i * 8);
        }
        let places = [FILE_HEAD as u64, footer.messages_end, footer.answers_end, footer.leaves_end, at];
        if !places.is_sorted() || places.iter().any(|place| place % 8 != 0) {
            return Err("the parts of the run are out of order");
        }
        Ok(footer)
    }
}

// The file of a run, read in whole blocks with correct checksums.

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
        let is_possible = |size| size >= (FILE_HEAD + FOOTER) as u64 && size <= MAX_BYTES && size % 8 == 0;
        let file = format::open_listed(disk, &name, "run", run.bytes, is_possible)?;
        let opened = RunFile { file, name, run: *run };
        let mut head = [0; FILE_HEAD];
        opened.read(&mut head, 0)?;
        check_file_head(&head, run).map_err(|what| opened.problem(0, what))?;
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
        if at >= end || bytes_between(at, end) < HEAD {
            return Err(self.problem(at, "there is no room for a block").into());
        }
        let first = bytes_between(at, end).min(BLOCK);
        grow(buffer, first);
        self.read_as(&mut buffer[..first], at, blocking)?;
        let length = block_length(&buffer[..HEAD]);
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
        let length = if bytes.len() < HEAD { usize::MAX } else { block_length(bytes) };
        match bytes.get(..length) {
            Some(bytes) => self.check(bytes, kind, at),
            None => Err(self.problem(at, "the block's length points behind its part of the run").into()),
        }
    }

    /// Checks a block that is exactly these bytes.
    pub(crate) fn check(&self, bytes: &[u8], kind: BlockKind, at: u64) -> Result<BlockHead, ReadFault> {
        Ok(check(bytes, kind, self.run.incarnation, at).map_err(|what| self.problem(at, what))?)
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
