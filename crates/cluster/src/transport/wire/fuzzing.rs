//! Reading and writing of frames, for the fuzz target alone.

use duewheel_core::policy::Policy;

use super::{FrameLimits, PeerFrame, PeerFrameHead, WireFailure, answers, begin, finish, read, request};

/// The largest number of bytes and of parts of a frame under a policy.
pub fn limits_of(policy: &Policy) -> (usize, usize) {
    let FrameLimits { bytes, parts, .. } = FrameLimits::of(policy);
    (bytes, parts)
}

/// A frame that was read.
#[derive(Debug)]
pub struct ReadFrame {
    frame: PeerFrame,
    limits: FrameLimits,
}

impl ReadFrame {
    /// Reads the bytes behind a length, as a node does; `None` if they are not a valid frame within these limits, or have
    /// a part that this build cannot read.
    pub fn new(bytes: &[u8], (most_bytes, most_parts): (usize, usize)) -> Option<Self> {
        let limits = FrameLimits { bytes: most_bytes, parts: most_parts, body: most_bytes };
        let frame = read(bytes, limits).ok()?;
        let is_known = match &frame {
            PeerFrame::NewerRequest { .. } => false,
            PeerFrame::Answers { answers, .. } => answers.iter().all(Option::is_some),
            _ => true,
        };
        is_known.then_some(ReadFrame { frame, limits })
    }

    /// Writes the frame as a node sends it, with its length, within the limits that it was read with.
    ///
    /// # Panics
    /// When the frame does not fit within these limits.
    pub fn write(&self) -> Vec<u8> {
        let alone = |head| finish(begin(&head)?, self.limits.bytes);
        let written = match &self.frame {
            PeerFrame::Request { id, shard, patience, ops } => {
                request(*id, *shard, *patience, ops, self.limits)
            }
            PeerFrame::NewerRequest { .. } => unreachable!("it was refused"),
            PeerFrame::Answers { id, answers: all } => {
                let all: Vec<_> = all.iter().flatten().cloned().collect();
                answers(*id, &all, self.limits)
            }
            PeerFrame::NotMine { id, why } => alone(PeerFrameHead::NotMine { id: *id, why: why.clone() }),
            PeerFrame::NotKnown { id, why } => alone(PeerFrameHead::NotKnown { id: *id, why: why.clone() }),
            PeerFrame::Ping => alone(PeerFrameHead::Ping),
            PeerFrame::Pong => alone(PeerFrameHead::Pong),
            PeerFrame::Nudge => alone(PeerFrameHead::Nudge),
            PeerFrame::Bye => alone(PeerFrameHead::Bye),
        };
        written.expect("what was read can be written")
    }

    /// The number of operations or answers.
    pub fn parts(&self) -> usize {
        match &self.frame {
            PeerFrame::Request { ops, .. } => ops.len(),
            PeerFrame::Answers { answers, .. } => answers.len(),
            PeerFrame::NewerRequest { .. }
            | PeerFrame::NotMine { .. }
            | PeerFrame::NotKnown { .. }
            | PeerFrame::Ping
            | PeerFrame::Pong
            | PeerFrame::Nudge
            | PeerFrame::Bye => 0,
        }
    }
}

impl PartialEq for ReadFrame {
    fn eq(&self, other: &Self) -> bool {
        match (&self.frame, &other.frame) {
            (
                PeerFrame::Request { id, shard, patience, ops },
                PeerFrame::Request { id: id2, shard: shard2, patience: patience2, ops: ops2 },
            ) => (id, shard, patience, ops) == (id2, shard2, patience2, ops2),
            (PeerFrame::Answers { id, answers }, PeerFrame::Answers { id: id2, answers: answers2 }) => {
                let same = |(a, b): (&Option<Result<_, _>>, &Option<Result<_, _>>)| match (a, b) {
                    (Some(Ok(a)), Some(Ok(b))) => a == b,
                    (Some(Err(a)), Some(Err(b))) => WireFailure::from(a) == WireFailure::from(b),
                    _ => false,
                };
                id == id2 && answers.len() == answers2.len() && answers.iter().zip(answers2).all(same)
            }
            (PeerFrame::NotMine { id, why }, PeerFrame::NotMine { id: id2, why: why2 })
            | (PeerFrame::NotKnown { id, why }, PeerFrame::NotKnown { id: id2, why: why2 }) => {
                (id, why) == (id2, why2)
            }
            (PeerFrame::Ping, PeerFrame::Ping)
            | (PeerFrame::Pong, PeerFrame::Pong)
            | (PeerFrame::Nudge, PeerFrame::Nudge)
            | (PeerFrame::Bye, PeerFrame::Bye) => true,
            (
                PeerFrame::Request { .. }
                | PeerFrame::Answers { .. }
                | PeerFrame::NewerRequest { .. }
                | PeerFrame::NotMine { .. }
                | PeerFrame::NotKnown { .. }
                | PeerFrame::Ping
                | PeerFrame::Pong
                | PeerFrame::Nudge
                | PeerFrame::Bye,
                _,
            ) => false,
        }
    }
}
