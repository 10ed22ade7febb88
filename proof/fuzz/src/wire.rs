//! The messages between nodes as bytes: frames, greetings, and the splitting of a stream into frames.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use allocation_counter::measure;
use bytes::Bytes;
use duewheel::testing::wire::{ReadFrame, cut, greetings, limits_of};
use duewheel_core::policy::Policy;
use tokio::io::{AsyncRead, ReadBuf};

use crate::cuts::cuts;

/// The number of bytes of a frame's length in a stream.
const LENGTH: usize = 4;

/// The first byte chooses how the others are read: as a frame under the limits of the default policy, a frame under
/// narrow limits, a part of a greeting, or a stream of frames.
pub fn wire(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    match (first % 4, rest.split_first()) {
        (0, _) => frame(rest, limits_of(&Policy::default())),
        (1, Some((narrow, rest))) => frame(rest, (usize::from(*narrow) * 8, usize::from(narrow % 8))),
        (2, _) => greeting(rest),
        (3, Some((piece, rest))) => stream(rest, usize::from(*piece)),
        _ => {}
    }
}

/// A frame that is read is the same when it is written, and is written in no more bytes; no part of that is a frame,
/// and nothing longer.
fn frame(bytes: &[u8], limits: (usize, usize)) {
    let mut read = None;
    let room = measure(|| read = ReadFrame::new(bytes, limits));
    assert!(room.bytes_max <= most_room(bytes.len()), "{room:?} for {} bytes", bytes.len());
    let Some(read) = read else { return };
    assert!(bytes.len() <= limits.0 && read.parts() <= limits.1, "beyond the limits");
    let written = read.write();
    let written = behind_its_length(&written);
    assert!(written.len() <= bytes.len(), "it grows when it is passed on");
    let again = ReadFrame::new(written, limits).expect("what was written is a frame");
    assert_eq!(again, read, "a frame does not come back");
    assert_eq!(behind_its_length(&again.write()), written);
    for cut in cuts(written) {
        assert!(ReadFrame::new(&written[..cut], limits).is_none(), "a part of a frame is one");
    }
    assert!(ReadFrame::new(&[written, &[0]].concat(), limits).is_none(), "a frame is longer than it is");
}

fn greeting(bytes: &[u8]) {
    let mut all = Default::default();
    let room = measure(|| all = greetings(bytes));
    assert!(room.bytes_max <= most_room(bytes.len()), "{room:?} for {} bytes", bytes.len());
    for (part, written) in all.iter().enumerate() {
        let Some(written) = written else { continue };
        let written = behind_its_length(written);
        assert!(written.len() <= bytes.len());
        let again = &greetings(written)[part];
        assert_eq!(again.as_deref().map(behind_its_length), Some(written), "a greeting does not come back");
    }
}

/// A stream is split into the same frames however it arrives in pieces.
fn stream(bytes: &[u8], piece: usize) {
    let limit = 300;
    let mut whole = Vec::new();
    let room = measure(|| whole = cut(bytes, limit));
    // The reader reads 64 KiB at a time, and keeps incomplete frames.
    assert!(room.bytes_max <= 4 * (64 * 1024 + bytes.len() as u64), "{room:?} for {} bytes", bytes.len());
    assert_eq!(cut(Drip { rest: bytes, piece: piece.max(1) }, limit), whole, "pieces of {piece}");
    let mut rest = bytes;
    for frame in &whole {
        let length = u32::from_le_bytes(*rest.first_chunk().expect("a frame has a length"));
        assert_eq!(length as usize, frame.len());
        assert!(frame.len() <= limit);
        let (head, behind) = rest.split_at(LENGTH + frame.len());
        assert_eq!(frame, &head[LENGTH..]);
        rest = behind;
    }
    whole.iter().for_each(|frame: &Bytes| self::frame(frame, (limit, 10)));
}

/// The largest number of bytes that may be allocated for this number of bytes. A list with a length gets capacity for
/// at most as many elements as there are bytes, and elements may have lists of their own; for longer lists than are
/// made here, serde allocates the first MiB on trust.
fn most_room(bytes: usize) -> u64 {
    1_024 + 512 * bytes as u64
}

fn behind_its_length(frame: &[u8]) -> &[u8] {
    let (length, rest) = frame.split_first_chunk::<LENGTH>().expect("a frame has a length");
    assert_eq!(u32::from_le_bytes(*length) as usize, rest.len());
    rest
}

/// Returns bytes some at a time.
struct Drip<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Drip<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let now = self.rest.len().min(self.piece).min(to.remaining());
        let (head, rest) = self.rest.split_at(now);
        to.put_slice(head);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}
