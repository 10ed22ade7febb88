//! A segment: one file of the journal. It is a block with its header, followed by frames.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 8 | `dw-segmt` |
//! | 8 | 4 | format version |
//! | 12 | 4 | crc32c of the block, without these four bytes |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | incarnation |
//! | 32 | 8 | size of the file |
//! | 40 | 8 | LSN of the first record: from here on this segment is valid, and not the one before |
//! | 48 | 8 | watermark: the highest LSN durable when the header was written |
//! | 56 | 4 | epoch of the owner |
//! | 60 | 4 | 1 if a clock pair follows, else 0 |
//! | 64 | 8 | engine ms |
//! | 72 | 8 | wall ms |
//! | 80 | 4 | 1 if an anchor follows, else 0 |
//! | 84 | 4 | zero |
//! | 88 | 8 | elapsed ns since the boot at this engine ms |
//! | 96 | 16 | the boot |
//! | 112 | | zeros up to 4096 |
//!
//! The header has a block of its own, so that no write of a frame can tear it.

use std::sync::Arc;

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use duewheel_core::record::{BootAnchor, BootId, ClockPair};
use duewheel_core::store::StoreError;
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_core::{Epoch, Lsn};

use super::frame::{self, Frame, NoFrame};
use crate::disk::{Disk, DiskFile, FileAccess, SEGMENT_HEADER};
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{self, FORMAT};
use crate::le::{set_u32, set_u64, u32_at, u64_at, u128_at};
use crate::manifest::SegmentEntry;

/// Start of the first frame.
pub(crate) const BLOCK: usize = SEGMENT_HEADER;

const MAGIC: [u8; 8] = *b"duewsegm";

/// The fields of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) first: Lsn,
    pub(crate) watermark: Lsn,
    pub(crate) epoch: Epoch,
    pub(crate) clock: Option<ClockPair>,
    /// The anchor, expressed by the clock's engine time; there is none without a clock.
    pub(crate) anchor: Option<BootAnchor>,
}

/// Why a block is not the header of this segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// Unused, torn or damaged: the frames determine which.
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
            if let Some(anchor) = self.anchor.and_then(|anchor| anchor.at(clock.engine)) {
                set_u32(&mut block, 80, 1);
                set_u64(&mut block, 88, anchor.elapsed_ns);
                block[96..112].copy_from_slice(&anchor.boot.0.to_le_bytes());
            }
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
        let clock = (u32_at(block, 60) == 1)
            .then(|| ClockPair { engine: EngineMs(u64_at(block, 64)), wall: WallMs(u64_at(block, 72)) });
        let anchor = clock.filter(|_| u32_at(block, 80) == 1).map(|clock| BootAnchor {
            boot: BootId(u128_at(block, 96)),
            engine: clock.engine,
            elapsed_ns: u64_at(block, 88),
        });
        Ok(Header {
            first: Lsn(u64_at(block, 40)),
            watermark: Lsn(u64_at(block, 48)),
            epoch: Epoch(u32_at(block, 56)),
            clock,
            anchor,
        })
    }
}

/// A segment that is read. A forward scan reads each piece once.
#[derive(Debug)]
pub(crate) struct SegmentReader {
    pub(crate) entry: SegmentEntry,
    file: Arc<dyn DiskFile>,
    name: String,
    /// The piece read last, and where it starts.
    piece: Bytes,
    piece_at: u64,
}

/// Smallest number of bytes read at a time.
const PIECE: u64 = 1024 * 1024;

impl SegmentReader {
    /// Opens a listed segment. It always has its full size: any other size is damage.
    pub(crate) fn open(disk: &dyn Disk, entry: &SegmentEntry) -> Result<Self, ReadFault> {
        let name = entry.no.segment();
        let file = match disk.open(&name, FileAccess::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let what = "the manifest lists this segment, which is missing";
                return Err(Damage::new(name, 0, what).into());
            }
            Err(error) => return Err(failed("open", &name)(error).into()),
        };
        let size = file.size().map_err(failed("measure", &name))?;
        if size != entry.bytes || size < BLOCK as u64 {
            let what = format!("the file has {size} bytes, and should have {}", entry.bytes);
            return Err(Damage::new(name, size.min(entry.bytes), what).into());
        }
        Ok(SegmentReader { entry: *entry, file, name, piece: Bytes::new(), piece_at: 0 })
    }

    /// The header of the segment, if it has one.
    pub(crate) fn header(&self) -> Result<Option<Header>, ReadFault> {
        self.header_as(&self.entry)
    }

    /// The header of this entry's segment, whatever the length of the file.
    pub(crate) fn header_as(&self, entry: &SegmentEntry) -> Result<Option<Header>, ReadFault> {
        let mut block = [0; BLOCK];
        self.file.read_at(&mut block, 0).map_err(failed("read", &self.name))?;
        match Header::decode(&block, entry) {
            Ok(header) => Ok(Some(header)),
            Err(NoHeader::Absent) => Ok(None),
            Err(NoHeader::Format(version)) => Err(self.problem(8, format::unknown(version)).into()),
        }
    }

    /// The frame at an offset, or why there is none.
    pub(crate) fn frame(&mut self, at: u64) -> Result<Result<Frame, NoFrame>, StoreError> {
        if at + frame::HEAD as u64 > self.entry.bytes {
            return Ok(Err(NoFrame::End));
        }
        let incarnation = self.entry.incarnation;
        let length = match frame::length(&self.from(at, frame::HEAD)?, incarnation) {
            Ok(length) => length,
            Err(no) => return Ok(Err(no)),
        };
        if at + length as u64 > self.entry.bytes {
            return Ok(Err(NoFrame::Length));
        }
        Ok(Frame::read(&self.from(at, length)?, at, incarnation))
    }

    /// The first whole frame at or behind an offset. Every possible start of a frame is tried, because behind damage
    /// the start of the next frame is not known.
    pub(crate) fn find_frame(&mut self, from: u64) -> Result<Option<Frame>, StoreError> {
        let mut at = from.next_multiple_of(8);
        while at + frame::HEAD as u64 <= self.entry.bytes {
            let piece = self.from(at, frame::HEAD)?;
            let places = (piece.len() - frame::HEAD) / 8 + 1;
            let is_ours = |place: &usize| frame::length(&piece[place * 8..], self.entry.incarnation).is_ok();
            let Some(place) = (0..places).find(is_ours) else {
                at += places as u64 * 8;
                continue;
            };
            at += place as u64 * 8;
            match self.frame(at)? {
                Ok(frame) => return Ok(Some(frame)),
                Err(_) => at += 8,
            }
        }
        Ok(None)
    }

    /// The highest watermark of all whole frames from an offset on, and its offset.
    pub(crate) fn evidence(&mut self, from: u64) -> Result<Option<(Lsn, u64)>, StoreError> {
        let mut best = None;
        let mut at = from;
        while let Some(frame) = self.find_frame(at)? {
            best = best.max(Some((frame.head.watermark, frame.at)));
            at = frame.end;
        }
        Ok(best)
    }

    pub(crate) fn problem(&self, offset: u64, what: impl Into<String>) -> Damage {
        Damage::new(&*self.name, offset, what)
    }

    /// The bytes from an offset on: at least `least`, which the file has, and any others that were read with them.
    fn from(&mut self, at: u64, least: usize) -> Result<Bytes, StoreError> {
        let inside = at.checked_sub(self.piece_at).and_then(|skip| usize::try_from(skip).ok());
        if let Some(skip) = inside.filter(|skip| skip + least <= self.piece.len()) {
            return Ok(self.piece.slice(skip..));
        }
        let length = PIECE.max(least as u64).min(self.entry.bytes - at);
        let mut piece = vec![0; usize::try_from(length).unwrap_or(least)];
        self.file.read_at(&mut piece, at).map_err(failed("read", &self.name))?;
        self.piece = piece.into();
        self.piece_at = at;
        Ok(self.piece.clone())
    }
}

/// A segment that takes no more frames; everything in it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) entry: SegmentEntry,
    /// The position of the first record; the segment has those before `end`.
    pub(crate) first: Lsn,
    pub(crate) end: Lsn,
    /// Bytes of the valid frames.
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
    fn segment_header_round_trips_detecting_flips() {
        let entry = SegmentEntry { no: FileNo(4), incarnation: Incarnation(77), bytes: 8192 };
        let clock = Some(ClockPair { engine: EngineMs(8), wall: WallMs(9) });
        let anchor = BootAnchor { boot: BootId(u128::MAX - 5), engine: EngineMs(8), elapsed_ns: 70_000_001 };
        for (clock, anchor) in [(None, None), (clock, None), (clock, Some(anchor))] {
            let header = Header { first: Lsn(12), watermark: Lsn(11), epoch: Epoch(3), clock, anchor };
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
        let header = Header { first: Lsn(1), watermark: Lsn(0), epoch: Epoch(1), clock: None, anchor: None };
        let mut block = header.encode(&entry);
        set_u32(&mut block, 8, 9);
        let crc = checksum(&block);
        set_u32(&mut block, 12, crc);
        assert_eq!(Header::decode(&block, &entry), Err(NoHeader::Format(9)));
    }

    #[test]
    fn evidence_is_found_behind_damage() {
        use crate::disk::RealDisk;
        use duewheel_core::record::Writer;
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(folder.path());
        disk.make_dir("journal").unwrap();
        let entry = SegmentEntry { no: FileNo(1), incarnation: Incarnation(77), bytes: 3 * 1024 * 1024 };
        let file = disk.create(&entry.no.segment()).unwrap();
        file.allocate(entry.bytes).unwrap();
        let mark = |at: u64, watermark: u64| {
            let mut buffer = Writer::default();
            frame::begin(&mut buffer);
            let (watermark, first, clock) = (Lsn(watermark), Lsn(watermark + 1), ClockPair::default());
            let incarnation = entry.incarnation;
            frame::finish(&mut buffer, frame::FrameHead { incarnation, first, records: 0, watermark, clock });
            file.write_at(&buffer.bytes, at).unwrap();
        };
        let mut reader = SegmentReader::open(&disk, &entry).unwrap();
        assert_eq!(reader.evidence(4096).unwrap(), None);
        mark(5_000, 9);
        file.write_at(&[0xff; 400], 5_056).unwrap();
        mark(1_048_560, 12); // across the pieces
        mark(entry.bytes - 56, 11);
        let mut reader = SegmentReader::open(&disk, &entry).unwrap();
        assert_eq!(reader.evidence(4096).unwrap(), Some((Lsn(12), 1_048_560)));
        assert_eq!(reader.evidence(1_048_568).unwrap(), Some((Lsn(11), entry.bytes - 56)));
        assert_eq!(reader.find_frame(0).unwrap().map(|f| f.at), Some(5_000));
        let other = SegmentEntry { incarnation: Incarnation(3), ..entry };
        assert_eq!(SegmentReader::open(&disk, &other).unwrap().evidence(0).unwrap(), None);
    }
}
