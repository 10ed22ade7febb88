//! Frames, greetings and the splitting of a stream into frames, for the fuzz target alone.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use duewheel_core::engine::{Op, Reply};
use duewheel_core::policy::Policy;
use duewheel_shard::clock::{Clock, SystemClock};
use duewheel_shard::error::CallError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncRead;

use super::handshake::{Hello, Proofs, Welcome};
use super::{FrameReader, LastReceived};
use crate::transport::wire::{
    self, FrameLimits, LENGTH, PeerFrame, WireError, WireFailure, greeting, read_greeting,
};

/// Reads the bytes as each part of a greeting, and writes each part again as it is sent, with its length.
pub fn greetings(bytes: &[u8]) -> [Option<Vec<u8>>; 3] {
    [again::<Hello>(bytes), again::<Proofs>(bytes), again::<Welcome>(bytes)]
}

fn again<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<Vec<u8>> {
    let part: T = read_greeting(bytes).ok()?;
    let written = greeting(&part).expect("what was read can be written");
    assert_eq!(read_greeting(&written[LENGTH..]).as_ref(), Ok(&part), "a greeting does not come back");
    Some(written)
}

/// The frames of a stream without their lengths, up to its end or the first frame that is refused. The stream must not
/// block.
pub fn cut(from: impl AsyncRead + Unpin, limit: usize) -> Vec<Bytes> {
    let (mut frames, heard) =
        (FrameReader::new(from), LastReceived::now(&(Arc::new(SystemClock) as Arc<dyn Clock>)));
    let mut all = Vec::new();
    loop {
        let next = pin!(frames.next(limit, &heard));
        match next.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Some(frame))) => all.push(frame),
            Poll::Ready(Ok(None) | Err(_)) => return all,
            Poll::Pending => panic!("the stream waits"),
        }
    }
}

/// The largest number of bytes and of parts of a frame under a policy.
pub fn limits_of(policy: &Policy) -> (usize, usize) {
    let FrameLimits { bytes, parts, .. } = FrameLimits::of(policy);
    (bytes, parts)
}

/// A frame that was read.
#[derive(Debug)]
pub struct ReadFrame {
    frame: PeerFrame<Vec<Op>, Vec<Result<Reply, CallError>>>,
    limits: FrameLimits,
}

impl ReadFrame {
    /// Reads the bytes behind a length, as a node does; `None` if they are not a valid frame within these limits, or have
    /// a part that this build cannot read.
    pub fn new(bytes: &[u8], (most_bytes, most_parts): (usize, usize)) -> Option<Self> {
        let limits = FrameLimits { bytes: most_bytes, parts: most_parts, body: most_bytes };
        let frame = wire::read(bytes, limits).ok()?;
        let frame = frame.with(
            |ops| ops.ok_or(WireError::Damaged),
            |answers| answers.into_iter().collect::<Option<_>>().ok_or(WireError::Damaged),
        );
        Some(ReadFrame { frame: frame.ok()?, limits })
    }

    /// Writes the frame as a node sends it, with its length, within the limits that it was read with.
    ///
    /// # Panics
    /// When the frame does not fit within these limits.
    pub fn write(&self) -> Vec<u8> {
        let written = match &self.frame {
            PeerFrame::Request { id, shard, patience, ops } => {
                wire::request(*id, *shard, *patience, ops, self.limits)
            }
            PeerFrame::Answers { id, answers } => wire::answers(*id, answers, self.limits),
            _ => wire::begin(&self.as_written()).and_then(|head| wire::finish(head, self.limits.bytes)),
        };
        written.expect("what was read can be written")
    }

    /// The number of operations or answers.
    pub fn parts(&self) -> usize {
        match &self.frame {
            PeerFrame::Request { ops, .. } => ops.len(),
            PeerFrame::Answers { answers, .. } => answers.len(),
            _ => 0,
        }
    }

    /// The frame with errors in their wire format, which can be compared.
    fn as_written(&self) -> PeerFrame<Vec<Op>, Vec<Result<Reply, WireFailure>>> {
        let written = self.frame.clone().with(Ok, |answers| {
            Ok(answers.into_iter().map(|answer| answer.map_err(|e| WireFailure::from(&e))).collect())
        });
        written.expect("both always succeed")
    }
}

impl PartialEq for ReadFrame {
    fn eq(&self, other: &Self) -> bool {
        self.as_written() == other.as_written()
    }
}
