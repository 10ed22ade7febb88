//! Memory for answers that are being written: bounded over all connections, because clients may read slowly.

use std::time::Duration;

use bytes::Bytes;

use super::budget::{ByteBudget, BytePermit};
use crate::error::{Problem, overloaded};

/// How long an answer waits until other clients have read theirs.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Bytes of answers that are being written, all connections together.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget(ByteBudget);

/// Memory for one answer; released when the answer has been written.
#[derive(Debug)]
pub(crate) struct AnswerPermit(BytePermit);

impl AnswerBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        AnswerBudget(ByteBudget::new(bytes))
    }

    /// Reserves memory for an answer of up to this number of bytes, before it is made.
    ///
    /// # Errors
    /// `overloaded` when there is none within a second.
    pub(crate) async fn take(&self, bytes: usize) -> Result<AnswerPermit, Problem> {
        let mut permit = self.0.nothing();
        match tokio::time::timeout(TIME_LIMIT, permit.grow(bytes)).await {
            Ok(()) => Ok(AnswerPermit(permit)),
            Err(_) => Err(overloaded(
                "the answers that wait for their clients have as many bytes together as is allowed; read answers faster, or \
                 ask for less at a time",
            )),
        }
    }

    /// Whether there is memory for an answer of this number of bytes.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.0.free() >= bytes
    }

    /// Memory for an answer that has been made: as much of it as is free.
    pub(crate) fn take_left(&self, bytes: usize) -> AnswerPermit {
        AnswerPermit(self.0.take_left(bytes))
    }
}

impl AnswerPermit {
    /// The answer, which holds the memory that it needs until its last byte has been written. The rest is released now.
    pub(crate) fn hold(mut self, answer: Vec<u8>) -> Bytes {
        struct Held {
            bytes: Bytes,
            _permit: AnswerPermit,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        let bytes = Bytes::from(answer);
        self.0.shrink_to(bytes.len());
        Bytes::from_owner(Held { bytes, _permit: self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answer_memory_is_held_until_written() {
        let budget = AnswerBudget::new(1_000);
        let bytes = budget.take(800).await.unwrap().hold(vec![b'x'; 301]);
        assert!(budget.has(699) && !budget.has(700), "301 bytes are held");
        let half = bytes.slice(..10);
        drop(bytes);
        assert!(budget.take(800).await.is_err(), "a part of it is still being written");
        drop(half);
        assert!(budget.has(1_000));
        let all = budget.take_left(100_000);
        assert!(!budget.has(1));
        drop(all);
        assert!(budget.has(1_000));
    }
}
