//! A frame: one group, whole or not at all; or a mark, which proves how far the journal was durable.
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
//! | 56 | | payload: the records, then zeros up to a multiple of 8 |

use std::ops::Range;

use bytes::Bytes;
use crc32c::crc32c;
use duewheel_core::Lsn;
use duewheel_core::record::{ClockPair, Reader, Record, Writer};
use duewheel_core::time::{EngineMs, WallMs};

use crate::folder::Incarnation;
use crate::le::{align8, set_u32, set_u64, u32_at, u64_at};

/// Bytes before the payload. A mark has nothing else.
pub(crate) const HEAD: usize = 56;

const GROUP: u8 = 1;
const MARK: u8 = 2;

/// What the head of a frame says besides its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) incarnation: Incarnation,
    /// LSN of the first record; of a mark, the one that comes next.
    pub(crate) first: Lsn,
    /// 0 for a mark.
    pub(crate) records: u32,
    pub(crate) watermark: Lsn,
    pub(crate) clock: ClockPair,
}

/// A frame that was found whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) head: Head,
    pub(crate) at: usize,
    pub(crate) payload: Range<usize>,
    /// Where the next one starts.
    pub(crate) end: usize,
}

/// Why there is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFrame {
    /// The file ends before one could.
    End,
    /// The bytes are not of this segment: unused, or from another life of the file.
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

/// Completes the frame in the buffer.
pub(crate) fn finish(buffer: &mut Writer, head: Head) {
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

impl Frame {
    /// Reads the frame at an offset.
    pub(crate) fn read(bytes: &[u8], at: usize, incarnation: Incarnation) -> Result<Frame, NoFrame> {
        let Some(frame) = bytes.get(at..).filter(|rest| rest.len() >= HEAD) else { return Err(NoFrame::End) };
        if u64_at(frame, 16) != incarnation.0 {
            return Err(NoFrame::Foreign);
        }
        let payload = u32_at(frame, 4) as usize;
        let Some(frame) = frame.get(..align8(HEAD + payload)) else { return Err(NoFrame::Length) };
        if u32_at(frame, 0) != crc32c(&frame[4..]) {
            return Err(NoFrame::Checksum);
        }
        let head = Head {
            incarnation,
            first: Lsn(u64_at(frame, 24)),
            records: u32_at(frame, 12),
            watermark: Lsn(u64_at(frame, 32)),
            clock: ClockPair { engine: EngineMs(u64_at(frame, 40)), wall: WallMs(u64_at(frame, 48)) },
        };
        let sound = match frame[8] {
            GROUP => head.records > 0 && head.first.0.checked_add(u64::from(head.records)).is_some(),
            MARK => head.records == 0 && payload == 0,
            _ => false,
        };
        if !sound || frame[9..12] != [0; 3] {
            return Err(NoFrame::Unknown);
        }
        Ok(Frame { head, at, payload: at + HEAD..at + HEAD + payload, end: at + frame.len() })
    }

    /// The LSN that follows its records.
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.head.first.0 + u64::from(self.head.records))
    }

    /// Its records, one by one, with their positions. The error names the offset in the segment.
    pub(crate) fn records(&self, segment: &Bytes) -> Records {
        Records {
            reader: Reader::new(segment.slice(self.payload.clone())),
            base: self.payload.start,
            lsn: self.head.first,
            left: self.head.records,
        }
    }
}

/// The records of a frame.
#[derive(Debug)]
pub(crate) struct Records {
    reader: Reader,
    base: usize,
    lsn: Lsn,
    left: u32,
}

impl Iterator for Records {
    type Item = Result<(Lsn, Record), (usize, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.base + self.reader.position();
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
                Some(Ok((lsn, record)))
            }
            Err(error) => {
                self.left = 0;
                self.reader = Reader::new(Bytes::new());
                Some(Err((at, format!("a record cannot be read: {error}"))))
            }
        }
    }
}

/// The highest watermark of all whole frames from an offset on, and where it stands. This looks at every place where a
/// frame could start: behind damage nothing says where the next one does.
pub(crate) fn evidence(bytes: &[u8], from: usize, incarnation: Incarnation) -> Option<(Lsn, usize)> {
    let mut best = None;
    let mut at = align8(from);
    while at + HEAD <= bytes.len() {
        match Frame::read(bytes, at, incarnation) {
            Ok(frame) => {
                best = best.max(Some((frame.head.watermark, frame.at)));
                at = frame.end;
            }
            Err(_) => at += 8,
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Incarnation = Incarnation(0x1234_5678_9abc_def0);

    fn mark(first: u64, watermark: u64) -> Vec<u8> {
        let mut buffer = Writer::default();
        begin(&mut buffer);
        let head = Head {
            incarnation: HERE,
            first: Lsn(first),
            records: 0,
            watermark: Lsn(watermark),
            clock: ClockPair { engine: EngineMs(5), wall: WallMs(6) },
        };
        finish(&mut buffer, head);
        buffer.bytes
    }

    #[test]
    fn every_flipped_bit_of_a_frame_shows() {
        let mut buffer = Writer::default();
        begin(&mut buffer);
        buffer.record(&Record::Removed {
            id: duewheel_core::MessageId(300),
            why: duewheel_core::record::Gone::Acked,
        });
        let clock = ClockPair::default();
        finish(&mut buffer, Head { incarnation: HERE, first: Lsn(1), records: 1, watermark: Lsn(0), clock });
        let bytes = buffer.bytes;
        assert_eq!(bytes.len() % 8, 0);
        let frame = Frame::read(&bytes, 0, HERE).unwrap();
        assert_eq!(frame.records(&Bytes::from(bytes.clone())).count(), 1);
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::read(&bytes, 0, HERE).is_err(), "bit {bit}");
        }
        assert_eq!(Frame::read(&bytes, 0, Incarnation(1)), Err(NoFrame::Foreign));
    }

    #[test]
    fn evidence_is_found_behind_damage() {
        let mut bytes = vec![0; 24];
        bytes.extend(mark(10, 9));
        bytes.extend([0xff; 40]);
        bytes.extend(mark(12, 11));
        bytes.extend(mark(11, 10));
        assert_eq!(evidence(&bytes, 0, HERE), Some((Lsn(11), 24 + HEAD + 40)));
        assert_eq!(evidence(&bytes, 0, Incarnation(3)), None);
        assert_eq!(evidence(&bytes[..60], 0, HERE), None);
    }
}
