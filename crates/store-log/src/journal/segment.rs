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
use crc32c::crc32c;
use duewheel_core::record::{BootAnchor, BootId, ClockPair, Reader, Record, Writer};
use duewheel_core::store::StoreError;
use duewheel_core::time::{EngineMs, WallMs};
use duewheel_core::{Epoch, Lsn};

use crate::disk::{Disk, DiskFile, SEGMENT_HEADER};
use crate::fault::{Damage, ReadFault, failed};
use crate::format::{self, FORMAT, Incarnation, align8, set_u32, set_u64, u32_at, u64_at, u128_at};
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
        let crc = format::checksum(&block);
        set_u32(&mut block, 12, crc);
        block
    }

    pub(crate) fn decode(block: &[u8], entry: &SegmentEntry) -> Result<Self, NoHeader> {
        if block.len() < BLOCK
            || block[..8] != MAGIC
            || u32_at(block, 12) != format::checksum(&block[..BLOCK])
        {
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
        let file = format::open_listed(disk, &name, "segment", entry.bytes, |size| size >= BLOCK as u64)?;
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
        if at + HEAD as u64 > self.entry.bytes {
            return Ok(Err(NoFrame::End));
        }
        let incarnation = self.entry.incarnation;
        let length = match length(&self.from(at, HEAD)?, incarnation) {
            Ok(length) => length,
            Err(no) => return Ok(Err(no)),
        };
        if at + length as u64 > self.entry.bytes {
            return Ok(Err(NoFrame::Length));
        }
        Ok(Frame::read(&self.from(at, length)?, at, incarnation))
    }

    /// The first whole frame behind the damage at an offset that does not begin with records before `next`.
    pub(crate) fn find_further(&mut self, at: u64, next: Lsn) -> Result<Option<Frame>, StoreError> {
        let mut from = at + 8;
        loop {
            match self.find_frame(from)? {
                Some(frame) if frame.head.first < next => from = frame.end,
                found => return Ok(found),
            }
        }
    }

    /// The first whole frame at or behind an offset. Every possible start of a frame is tried, because behind damage
    /// the start of the next frame is not known.
    pub(crate) fn find_frame(&mut self, from: u64) -> Result<Option<Frame>, StoreError> {
        let mut at = from.next_multiple_of(8);
        while at + HEAD as u64 <= self.entry.bytes {
            let piece = self.from(at, HEAD)?;
            let places = (piece.len() - HEAD) / 8 + 1;
            let is_ours = |place: &usize| length(&piece[place * 8..], self.entry.incarnation).is_ok();
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

// A frame contains one group, which is written as a whole or not at all, or a mark, which proves how far the journal
// was durable.
//
// | at | bytes | |
// |---|---|---|
// | 0 | 4 | crc32c of everything from byte 4 to the end of the frame |
// | 4 | 4 | length of the payload |
// | 8 | 1 | kind: 1 group, 2 mark |
// | 9 | 3 | zero |
// | 12 | 4 | number of records |
// | 16 | 8 | incarnation of the segment |
// | 24 | 8 | LSN of the first record; of a mark, the next one |
// | 32 | 8 | watermark: the highest LSN known durable before this frame was written |
// | 40 | 8 | engine ms |
// | 48 | 8 | wall ms |
// | 56 | | payload: the records, then zeros up to a multiple of 8; of a mark nothing, or where engine time lies in a boot |
//
// | at | bytes | payload of a mark |
// |---|---|---|
// | 0 | 16 | the boot |
// | 16 | 8 | elapsed ns since that boot at the mark's engine ms |

/// Bytes before the payload.
pub(crate) const HEAD: usize = 56;
/// The payload of a mark that has one.
const ANCHOR: usize = 24;
/// The longest mark.
pub(crate) const MARK_BYTES: usize = HEAD + ANCHOR;

const GROUP: u8 = 1;
const MARK: u8 = 2;

/// The fields of the head of a frame besides its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) incarnation: Incarnation,
    /// LSN of the first record; of a mark, the next one.
    pub(crate) first: Lsn,
    /// 0 for a mark.
    pub(crate) records: u32,
    pub(crate) watermark: Lsn,
    pub(crate) clock: ClockPair,
}

/// A frame that was read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) head: FrameHead,
    /// The start of the frame in the segment.
    pub(crate) at: u64,
    /// The start of the next frame.
    pub(crate) end: u64,
    /// The records of the frame.
    pub(crate) payload: Bytes,
}

/// Why there is no frame at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFrame {
    /// The file ends before a frame could.
    End,
    /// The bytes are not of this segment: unused, or from an earlier use of the file.
    Foreign,
    /// The length points behind the end of the file.
    Length,
    /// The checksum does not match.
    Checksum,
    /// The checksum matches, but a field has a value that is not written by this version.
    Unknown,
}

impl NoFrame {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            NoFrame::End => "there is no room for a frame",
            NoFrame::Foreign => "there is no frame of this segment",
            NoFrame::Length => "the frame's length points behind the end of the file",
            NoFrame::Checksum => "the frame's checksum does not match",
            NoFrame::Unknown => "the frame is of an unknown kind",
        }
    }
}

/// Starts a frame in an empty buffer; the records follow.
pub(crate) fn begin(buffer: &mut Writer) {
    buffer.bytes.clear();
    buffer.bytes.resize(HEAD, 0);
}

/// Sets the payload of the mark in the buffer; the anchor is expressed by the mark's engine ms.
pub(crate) fn push_anchor(buffer: &mut Writer, anchor: &BootAnchor) {
    buffer.bytes.extend_from_slice(&anchor.boot.0.to_le_bytes());
    buffer.bytes.extend_from_slice(&anchor.elapsed_ns.to_le_bytes());
}

/// Completes the frame in the buffer.
pub(crate) fn finish(buffer: &mut Writer, head: FrameHead) {
    let bytes = &mut buffer.bytes;
    let payload = u32::try_from(bytes.len() - HEAD).expect("a group has less than 4 GiB");
    bytes.resize(align8(bytes.len()), 0);
    set_u32(bytes, 4, payload);
    bytes[8] = if head.records == 0 { MARK } else { GROUP };
    set_u32(bytes, 12, head.records);
    set_u64(bytes, 16, head.incarnation.0);
    set_u64(bytes, 24, head.first.0);
    set_u64(bytes, 32, head.watermark.0);
    set_u64(bytes, 40, head.clock.engine.0);
    set_u64(bytes, 48, head.clock.wall.0);
    let crc = crc32c(&bytes[4..]);
    set_u32(bytes, 0, crc);
}

/// The length of the frame whose head this is, if it is of this segment.
pub(crate) fn length(head: &[u8], incarnation: Incarnation) -> Result<usize, NoFrame> {
    if u64_at(head, 16) != incarnation.0 {
        return Err(NoFrame::Foreign);
    }
    Ok(align8(HEAD + u32_at(head, 4) as usize))
}

impl Frame {
    /// Reads the frame at the start of `bytes`, which start at `at` in the segment and hold it whole, as [`length`]
    /// returns.
    pub(crate) fn read(bytes: &Bytes, at: u64, incarnation: Incarnation) -> Result<Frame, NoFrame> {
        let length = length(bytes, incarnation)?;
        let payload = u32_at(bytes, 4) as usize;
        let frame = &bytes[..length];
        if u32_at(frame, 0) != crc32c(&frame[4..]) {
            return Err(NoFrame::Checksum);
        }
        let head = FrameHead {
            incarnation,
            first: Lsn(u64_at(frame, 24)),
            records: u32_at(frame, 12),
            watermark: Lsn(u64_at(frame, 32)),
            clock: ClockPair { engine: EngineMs(u64_at(frame, 40)), wall: WallMs(u64_at(frame, 48)) },
        };
        let sound = match frame[8] {
            GROUP => head.records > 0 && head.first.0.checked_add(u64::from(head.records)).is_some(),
            MARK => head.records == 0 && (payload == 0 || payload == ANCHOR),
            _ => false,
        };
        if !sound || frame[9..12] != [0; 3] {
            return Err(NoFrame::Unknown);
        }
        Ok(Frame { head, at, end: at + length as u64, payload: bytes.slice(HEAD..HEAD + payload) })
    }

    /// The anchor in a mark: engine time and boot.
    pub(crate) fn anchor(&self) -> Option<BootAnchor> {
        (self.head.records == 0 && self.payload.len() == ANCHOR).then(|| BootAnchor {
            boot: BootId(u128_at(&self.payload, 0)),
            engine: self.head.clock.engine,
            elapsed_ns: u64_at(&self.payload, 16),
        })
    }

    /// The LSN that follows its records.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.head.first.0 + u64::from(self.head.records))
    }

    /// The length of the frame.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - self.at
    }

    /// The records of the frame, one by one, with their positions and bytes. The error names the offset in the segment.
    pub(crate) fn records(&self) -> Records {
        // The payload of a mark is no record.
        let payload = if self.head.records == 0 { Bytes::new() } else { self.payload.clone() };
        Records {
            reader: Reader::new(payload.clone()),
            payload,
            base: self.at + HEAD as u64,
            lsn: self.head.first,
            left: self.head.records,
        }
    }
}

/// The records of a frame.
#[derive(Debug)]
pub(crate) struct Records {
    payload: Bytes,
    reader: Reader,
    base: u64,
    lsn: Lsn,
    left: u32,
}

impl Iterator for Records {
    type Item = Result<(Lsn, Record, Bytes), (u64, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        let from = self.reader.position();
        let at = self.base + from as u64;
        if self.left == 0 {
            if self.reader.is_empty() {
                return None;
            }
            self.reader = Reader::new(Bytes::new()); // said once
            return Some(Err((at, "bytes are left behind the last record".into())));
        }
        match self.reader.record() {
            Ok(record) => {
                let lsn = self.lsn;
                self.lsn = lsn.next();
                self.left -= 1;
                let bytes = self.payload.slice(from..self.reader.position());
                Some(Ok((lsn, record, bytes)))
            }
            Err(error) => {
                self.left = 0;
                self.reader = Reader::new(Bytes::new());
                Some(Err((at, format!("a record cannot be read: {error}"))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FileNo, Incarnation};

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
        let crc = format::checksum(&block);
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
            begin(&mut buffer);
            let (watermark, first, clock) = (Lsn(watermark), Lsn(watermark + 1), ClockPair::default());
            let incarnation = entry.incarnation;
            finish(&mut buffer, FrameHead { incarnation, first, records: 0, watermark, clock });
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

#[cfg(test)]
mod frame_tests {
    use super::*;

    const HERE: Incarnation = Incarnation(0x1234_5678_9abc_def0);

    #[test]
    fn frame_detects_every_flipped_bit() {
        let mut buffer = Writer::default();
        begin(&mut buffer);
        buffer.record(&Record::Removed {
            id: duewheel_core::MessageId(300),
            why: duewheel_core::record::Gone::Acked,
            was: duewheel_core::record::Was {
                queue: duewheel_core::QueueName::new("q").unwrap(),
                kind: duewheel_core::message::Kind::Waiting,
                due: duewheel_core::Due::At(WallMs(5)),
                weight: 0,
                detail: 0,
                past: 0,
                unweighed: 0,
            },
        });
        let clock = ClockPair::default();
        finish(
            &mut buffer,
            FrameHead { incarnation: HERE, first: Lsn(1), records: 1, watermark: Lsn(0), clock },
        );
        let bytes = buffer.bytes;
        let read = |bytes: Vec<u8>, incarnation| {
            let bytes = Bytes::from(bytes);
            match length(&bytes, incarnation) {
                Ok(length) if length > bytes.len() => Err(NoFrame::Length),
                Ok(_) => Frame::read(&bytes, 4096, incarnation),
                Err(no) => Err(no),
            }
        };
        let frame = read(bytes.clone(), HERE).unwrap();
        assert_eq!((frame.at, frame.end, frame.records().count()), (4096, 4096 + bytes.len() as u64, 1));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(bytes, HERE).is_err(), "bit {bit}");
        }
        assert_eq!(read(bytes, Incarnation(1)), Err(NoFrame::Foreign));
    }
}
