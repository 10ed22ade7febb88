//! A frame contains one group, which is written as a whole or not at all, or a mark, which proves how far the journal
//! was durable.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | crc32c of everything from byte 4 to the end of the frame |
//! | 4 | 4 | length of the payload |
//! | 8 | 1 | kind: 1 group, 2 mark |
//! | 9 | 3 | zero |
//! | 12 | 4 | number of records |
//! | 16 | 8 | incarnation of the segment |
//! | 24 | 8 | LSN of the first record; of a mark, the next one |
//! | 32 | 8 | watermark: the highest LSN known durable before this frame was written |
//! | 40 | 8 | engine ms |
//! | 48 | 8 | wall ms |
//! | 56 | | payload: the records, then zeros up to a multiple of 8; of a mark nothing, or where engine time lies in a boot |
//!
//! | at | bytes | payload of a mark |
//! |---|---|---|
//! | 0 | 16 | the boot |
//! | 16 | 8 | elapsed ns since that boot at the mark's engine ms |

use bytes::Bytes;
use crc32c::crc32c;
use duewheel_core::Lsn;
use duewheel_core::record::{BootAnchor, BootId, ClockPair, Reader, Record, Writer};
use duewheel_core::time::{EngineMs, WallMs};

use crate::folder::Incarnation;
use crate::le::{align8, set_u32, set_u64, u32_at, u64_at, u128_at};

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
