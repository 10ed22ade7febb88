//! A segment: one file of the journal. A block with its header, then frames.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | `dw-segmt` |
//! | 8 | 4 | format version |
//! | 12 | 4 | crc32c of the block, without these four bytes |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | incarnation |
//! | 32 | 8 | size of the file |
//! | 40 | 8 | LSN of the first record: from here on this segment counts, and not the one before |
//! | 48 | 8 | watermark: the highest LSN durable when the header was written |
//! | 56 | 4 | epoch of the owner |
//! | 60 | 4 | 1 if a clock pair follows, else 0 |
//! | 64 | 8 | engine ms |
//! | 72 | 8 | wall ms |
//! | 80 | | zeros up to 4096 |
//!
//! The header has a block of its own, so that no write of a frame can tear it.

use std::sync::Arc;

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use duewheel_core::record::ClockPair;
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_core::{Epoch, Lsn};

use crate::disk::{Access, Disk, DiskFile};
use crate::fault::{Problem, Trouble, failed};
use crate::le::{set_u32, set_u64, u32_at, u64_at};
use crate::manifest::{FORMAT, SegmentEntry, unknown_format};

/// Where the first frame starts.
pub(crate) const BLOCK: usize = 4096;

const MAGIC: [u8; 8] = *b"dw-segmt";

/// What a segment says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) first: Lsn,
    pub(crate) watermark: Lsn,
    pub(crate) epoch: Epoch,
    pub(crate) clock: Option<ClockPair>,
}

/// Why a block is not the header of this segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// Unused, torn or damaged: which of these, the frames must tell.
    Absent,
    /// Whole, but of a format that this program does not know.
    Format(u32),
}

impl Header {
    pub(crate) fn encode(&self, entry: &SegmentEntry) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&MAGIC);
        set_u32(&mut block, 8, FORMAT);
        set_u64(&mut block, 16, entry.no.0);
        set_u64(&mut block, 24, entry.incarnation.0);
        set_u64(&mut block, 32, entry.bytes);
        set_u64(&mut block, 40, self.first.0);
        set_u64(&mut block, 48, self.watermark.0);
        set_u32(&mut block, 56, self.epoch.0);
        if let Some(clock) = self.clock {
            set_u32(&mut block, 60, 1);
            set_u64(&mut block, 64, clock.engine.0);
            set_u64(&mut block, 72, clock.wall.0);
        }
        let crc = checksum(&block);
        set_u32(&mut block, 12, crc);
        block
    }

    pub(crate) fn decode(block: &[u8], entry: &SegmentEntry) -> Result<Self, NoHeader> {
        if block.len() < BLOCK || block[..8] != MAGIC || u32_at(block, 12) != checksum(&block[..BLOCK]) {
            return Err(NoHeader::Absent);
        }
        let names = (u64_at(block, 16), u64_at(block, 24), u64_at(block, 32));
        if names != (entry.no.0, entry.incarnation.0, entry.bytes) {
            return Err(NoHeader::Absent); // left from another life of the file
        }
        let version = u32_at(block, 8);
        if version != FORMAT {
            return Err(NoHeader::Format(version));
        }
        Ok(Header {
            first: Lsn(u64_at(block, 40)),
            watermark: Lsn(u64_at(block, 48)),
            epoch: Epoch(u32_at(block, 56)),
            clock: (u32_at(block, 60) == 1)
                .then(|| ClockPair { engine: EngineMs(u64_at(block, 64)), wall: WallMs(u64_at(block, 72)) }),
        })
    }
}

/// Reads a whole segment.
pub(crate) fn read(disk: &dyn Disk, entry: &SegmentEntry) -> Result<Bytes, Trouble> {
    let bytes = usize::try_from(entry.bytes)
        .map_err(|_| Problem::new(entry.no.segment(), 0, "the segment is longer than memory"))?;
    read_start(disk, entry, bytes)
}

/// Reads the header of a segment, if it has one.
pub(crate) fn read_header(disk: &dyn Disk, entry: &SegmentEntry) -> Result<Option<Header>, Trouble> {
    let block = read_start(disk, entry, BLOCK)?;
    match Header::decode(&block, entry) {
        Ok(header) => Ok(Some(header)),
        Err(NoHeader::Absent) => Ok(None),
        Err(NoHeader::Format(version)) => {
            Err(Problem::new(entry.no.segment(), 8, unknown_format(version)).into())
        }
    }
}

/// A listed segment always has its full size: anything else is damage.
fn read_start(disk: &dyn Disk, entry: &SegmentEntry, length: usize) -> Result<Bytes, Trouble> {
    let name = entry.no.segment();
    let file = match disk.open(&name, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Problem::new(name, 0, "the manifest lists this segment, and it is not there").into());
        }
        Err(error) => return Err(failed("open", &name)(error).into()),
    };
    let size = file.size().map_err(failed("measure", &name))?;
    if size != entry.bytes || size < length as u64 {
        let what = format!("the file has {size} bytes, and should have {}", entry.bytes);
        return Err(Problem::new(name, size.min(entry.bytes), what).into());
    }
    let mut bytes = vec![0; length];
    file.read_at(&mut bytes, 0).map_err(failed("read", &name))?;
    Ok(bytes.into())
}

/// A segment that takes no more frames; everything in it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) entry: SegmentEntry,
    /// Its records are those from `first` to before `end`.
    pub(crate) first: Lsn,
    pub(crate) end: Lsn,
    /// Bytes of the frames that count.
    pub(crate) frames: u64,
}

impl Sealed {
    pub(crate) fn records(&self) -> u64 {
        self.end.0 - self.first.0
    }
}

/// A segment that the manifest lists and that has held no frame in this incarnation.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) entry: SegmentEntry,
    pub(crate) file: Arc<dyn DiskFile>,
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..12]), &block[16..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::{FileNo, Incarnation};

    #[test]
    fn a_header_comes_back_and_every_flipped_bit_shows() {
        let entry = SegmentEntry { no: FileNo(4), incarnation: Incarnation(77), bytes: 8192 };
        for clock in [None, Some(ClockPair { engine: EngineMs(8), wall: WallMs(9) })] {
            let header = Header { first: Lsn(12), watermark: Lsn(11), epoch: Epoch(3), clock };
            let block = header.encode(&entry);
            assert_eq!(Header::decode(&block, &entry), Ok(header));
            for bit in 0..block.len() * 8 {
                let mut block = block.clone();
                block[bit / 8] ^= 1 << (bit % 8);
                assert!(Header::decode(&block, &entry).is_err(), "bit {bit}");
            }
            let other = SegmentEntry { incarnation: Incarnation(78), ..entry };
            assert_eq!(Header::decode(&block, &other), Err(NoHeader::Absent));
        }
    }

    #[test]
    fn a_newer_format_is_named() {
        let entry = SegmentEntry { no: FileNo(4), incarnation: Incarnation(77), bytes: 8192 };
        let header = Header { first: Lsn(1), watermark: Lsn(0), epoch: Epoch(1), clock: None };
        let mut block = header.encode(&entry);
        set_u32(&mut block, 8, 9);
        let crc = checksum(&block);
        set_u32(&mut block, 12, crc);
        assert_eq!(Header::decode(&block, &entry), Err(NoHeader::Format(9)));
    }
}
