//! Frames for those outside of the crate who read and write them and do nothing else: the fuzz target.

use duewheel_core::policy::Policy;

use super::dialect::{DIALECTS, Dialect};
use super::{Failure, Frame, Head, Limits, answers, begin, finish, read, request};

/// Most bytes and most parts of a frame under a policy.
pub fn limits_of(policy: &Policy) -> (usize, usize) {
    let Limits { bytes, parts, .. } = Limits::of(policy);
    (bytes, parts)
}

/// The version that two nodes of this build speak.
fn newest() -> &'static Dialect {
    DIALECTS.last().expect("there is a version")
}

/// A frame that was read.
#[derive(Debug)]
pub struct Read {
    frame: Frame,
    limits: Limits,
}

impl Read {
    /// Reads the bytes behind a length, as a node does; `None` if they are no frame within these limits.
    pub fn new(bytes: &[u8], (most_bytes, most_parts): (usize, usize)) -> Option<Self> {
        let limits = Limits { bytes: most_bytes, parts: most_parts, body: most_bytes };
        let frame = read(bytes, limits, newest()).ok()?;
        Some(Read { frame, limits })
    }

    /// As a node sends it, with its length, within the limits that it was read with.
    ///
    /// # Panics
    /// When it has no bytes within them.
    pub fn write(&self) -> Vec<u8> {
        let alone = |head| finish(begin(&head)?, self.limits.bytes);
        let written = match &self.frame {
            Frame::Request { id, shard, patience, ops } => {
                request(*id, *shard, *patience, ops, self.limits, newest())
            }
            Frame::Answers { id, answers: all } => answers(*id, all, self.limits, newest()),
            Frame::NotMine { id, why } => alone(Head::NotMine { id: *id, why: why.clone() }),
            Frame::Ping => alone(Head::Ping),
            Frame::Pong => alone(Head::Pong),
            Frame::Nudge => alone(Head::Nudge),
            Frame::Bye => alone(Head::Bye),
        };
        written.expect("what was read can be written")
    }

    /// Operations, or answers.
    pub fn parts(&self) -> usize {
        match &self.frame {
            Frame::Request { ops, .. } => ops.len(),
            Frame::Answers { answers, .. } => answers.len(),
            Frame::NotMine { .. } | Frame::Ping | Frame::Pong | Frame::Nudge | Frame::Bye => 0,
        }
    }
}

impl PartialEq for Read {
    fn eq(&self, other: &Self) -> bool {
        match (&self.frame, &other.frame) {
            (
                Frame::Request { id, shard, patience, ops },
                Frame::Request { id: id2, shard: shard2, patience: patience2, ops: ops2 },
            ) => (id, shard, patience, ops) == (id2, shard2, patience2, ops2),
            (Frame::Answers { id, answers }, Frame::Answers { id: id2, answers: answers2 }) => {
                let same = |(a, b): (&Result<_, _>, &Result<_, _>)| match (a, b) {
                    (Ok(a), Ok(b)) => a == b,
                    (Err(a), Err(b)) => Failure::from(a) == Failure::from(b),
                    (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
                };
                id == id2 && answers.len() == answers2.len() && answers.iter().zip(answers2).all(same)
            }
            (Frame::NotMine { id, why }, Frame::NotMine { id: id2, why: why2 }) => (id, why) == (id2, why2),
            (Frame::Ping, Frame::Ping)
            | (Frame::Pong, Frame::Pong)
            | (Frame::Nudge, Frame::Nudge)
            | (Frame::Bye, Frame::Bye) => true,
            (
                Frame::Request { .. }
                | Frame::Answers { .. }
                | Frame::NotMine { .. }
                | Frame::Ping
                | Frame::Pong
                | Frame::Nudge
                | Frame::Bye,
                _,
            ) => false,
        }
    }
}
