//! Memory for answers that are being written: bounded over all connections, because clients may read slowly.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Problem, overloaded};

/// What is counted, in bytes.
const UNIT: usize = 1024;
/// For others to take their answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of answers that are being written, all connections together.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBudget(Arc<Semaphore>);

/// Room for one answer; free again when the answer has been written.
#[derive(Debug)]
pub(crate) struct AnswerPermit(Option<OwnedSemaphorePermit>);

impl AnswerBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        AnswerBudget(Arc::new(Semaphore::new((bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Room for an answer of up to so many bytes, before it is made.
    ///
    /// # Errors
    /// `overloaded` when there is none within a second.
    pub(crate) async fn take(&self, bytes: usize) -> Result<AnswerPermit, Problem> {
        let waits = Arc::clone(&self.0).acquire_many_owned(units(bytes));
        match tokio::time::timeout(PATIENCE, waits).await {
            Ok(Ok(permit)) => Ok(AnswerPermit(Some(permit))),
            Ok(Err(_)) | Err(_) => Err(overloaded(
                "the answers that wait for their clients have as many bytes together as is allowed; read answers faster, or \
                 ask for less at a time",
            )),
        }
    }

    /// Whether there is room for an answer of so many bytes.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.0.available_permits() >= units(bytes) as usize
    }

    /// Room for an answer that has been made: as much as there is.
    pub(crate) fn take_left(&self, bytes: usize) -> AnswerPermit {
        let some = self.0.available_permits().min(units(bytes) as usize);
        let permit = Arc::clone(&self.0).try_acquire_many_owned(u32::try_from(some).unwrap_or(u32::MAX));
        AnswerPermit(permit.ok())
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl AnswerPermit {
    /// The answer. It keeps the room that it needs until its last byte has been written, and gives the rest back now.
    pub(crate) fn hold(mut self, answer: Vec<u8>) -> Bytes {
        struct Held {
            bytes: Bytes,
            _room: AnswerPermit,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        let bytes = Bytes::from(answer);
        if let Some(permit) = &mut self.0 {
            let surplus = permit.num_permits().saturating_sub(units(bytes.len()) as usize);
            drop(permit.split(surplus));
        }
        Bytes::from_owner(Held { bytes, _room: self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_is_held_until_the_answer_is_gone() {
        let rooms = AnswerBudget::new(10 * UNIT);
        let bytes = rooms.take(8 * UNIT).await.unwrap().hold(vec![b'x'; 3 * UNIT + 1]);
        assert!(rooms.has(6 * UNIT) && !rooms.has(7 * UNIT), "four units are held");
        let half = bytes.slice(..10);
        drop(bytes);
        assert!(rooms.take(8 * UNIT).await.is_err(), "a part of it is still being written");
        drop(half);
        assert!(rooms.has(10 * UNIT));
        let all = rooms.take_left(100 * UNIT);
        assert!(!rooms.has(1));
        drop(all);
        assert!(rooms.has(10 * UNIT));
    }
}
