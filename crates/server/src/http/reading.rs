//! Memory for bodies that are being read: bounded over all connections.
//!
//! A sender that is faster than the store is slowed down: its bytes stay in its socket until there is memory, up to ten
//! seconds long. One request at a time need not wait for the others: however many have sent a part of their bodies, one
//! of them is completed, and releases its memory.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::budget::{ByteBudget, BytePermit};
use crate::error::{Problem, overloaded};

/// How long a request waits in total, for memory to read its body and then until its lines are accepted.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The bytes that a request may hold even if others use up the budget: many small requests are not delayed by a few
/// large and slow ones.
const SMALL_BYTES: usize = 16 * 1024;
/// The largest number of bytes that are reserved for a body at a time, and copied while other requests wait for the
/// thread.
const PART_BYTES: usize = 256 * 1024;

/// Bytes of bodies that are being read, all connections together.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    /// The memory for all requests.
    pool: ByteBudget,
    /// The memory for the one request that continues without the pool.
    lane: Arc<Semaphore>,
    max: usize,
    small: usize,
    time_limit: Duration,
}

impl BodyBudget {
    /// A budget of `max` bytes; of these `largest`, which a request may have, but at most half, are for the one that
    /// need not wait.
    pub(crate) fn new(max: usize, largest: usize, time_limit: Duration) -> Arc<BodyBudget> {
        let pool = max.saturating_sub(largest).max(max / 2);
        Arc::new(BodyBudget {
            pool: ByteBudget::new(pool),
            lane: Arc::new(Semaphore::new(1)),
            max,
            small: SMALL_BYTES.min(max / 64),
            time_limit,
        })
    }

    /// Bytes that are free.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.pool.free()
    }

    /// The share of a request of which nothing has been read.
    pub(crate) fn share(self: &Arc<Self>) -> BodyShare {
        BodyShare {
            of: Arc::clone(self),
            bytes: 0,
            held: self.pool.nothing(),
            lane: None,
            left: self.time_limit,
        }
    }
}

/// The share of one request in a [`BodyBudget`].
#[derive(Debug)]
pub(crate) struct BodyShare {
    of: Arc<BodyBudget>,
    bytes: usize,
    held: BytePermit,
    lane: Option<OwnedSemaphorePermit>,
    /// The time that the request may still wait.
    left: Duration,
}

impl BodyShare {
    /// Waits until there is memory for this number of further bytes; returns how long that took.
    ///
    /// # Errors
    /// `overloaded` when there was none during the longest wait of a request.
    ///
    /// # Cancel safety
    /// When the future is dropped, the share keeps its former bytes.
    pub(super) async fn grow(&mut self, by: usize) -> Result<Duration, Problem> {
        self.bytes += by;
        if self.lane.is_some() || by == 0 {
            return Ok(Duration::ZERO);
        }
        if self.held.try_grow(by) {
            return Ok(Duration::ZERO);
        }
        if self.bytes <= self.of.small {
            return Ok(Duration::ZERO);
        }
        let began = Instant::now();
        let lane = Arc::clone(&self.of.lane);
        tokio::select! {
            biased;
            () = self.held.grow(by) => {}
            Ok(permit) = lane.acquire_owned() => self.lane = Some(permit),
            () = tokio::time::sleep(self.left) => return Err(self.full()),
        }
        let waited = began.elapsed();
        self.left = self.left.saturating_sub(waited);
        Ok(waited)
    }

    fn full(&self) -> Problem {
        let max = self.of.max;
        overloaded(format!(
            "the bodies of requests that are being read have {max} bytes together, as many as are allowed, and none came to its \
             end for as long as a request waits; nothing of this one was applied: send it again, in smaller batches or over \
             fewer connections at a time"
        ))
    }

    /// The time that the request may still wait.
    pub(super) fn time_limit(&self) -> Duration {
        self.left
    }
}

/// A body of which a part has arrived. The memory reserved for it counts, not only the bytes that have arrived.
///
/// The parts are joined when the body is complete: one growing buffer would be copied again and again, megabytes at a
/// time, while other requests wait for the thread.
#[derive(Debug)]
pub(super) struct Coming {
    share: BodyShare,
    /// Most bodies arrive in one piece, which is then not copied.
    first: Bytes,
    rest: VecDeque<BytesMut>,
    length: usize,
    most: usize,
}

impl Coming {
    /// A body of at most `most` bytes, none of which has arrived yet.
    pub(super) fn new(share: BodyShare, most: u64) -> Coming {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Coming { share, first: Bytes::new(), rest: VecDeque::new(), length: 0, most }
    }

    /// The number of bytes that have arrived.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds a piece when there is memory for it; returns how long that took.
    ///
    /// # Errors
    /// See [`BodyShare::grow`].
    pub(super) async fn add(&mut self, piece: Bytes) -> Result<Duration, Problem> {
        let length = self.length + piece.len();
        if self.length == 0 {
            let waited = self.share.grow(length.saturating_sub(self.share.bytes)).await?;
            (self.first, self.length) = (piece, length);
            return Ok(waited);
        }
        let spare = self.rest.back().map_or(0, |part| part.capacity() - part.len());
        let (now, later) = piece.split_at(piece.len().min(spare));
        let mut waited = Duration::ZERO;
        if !later.is_empty() {
            // Doubles the memory, up to the announced size.
            let set_aside = self.share.bytes;
            let capacity =
                set_aside.min(PART_BYTES).min(self.most.saturating_sub(set_aside)).max(later.len());
            waited = self.share.grow(capacity).await?;
            let mut part = BytesMut::with_capacity(capacity);
            part.extend_from_slice(later);
            self.fill(now);
            self.rest.push_back(part);
        } else {
            self.fill(now);
        }
        self.length = length;
        Ok(waited)
    }

    fn fill(&mut self, bytes: &[u8]) {
        if let Some(part) = self.rest.back_mut() {
            part.extend_from_slice(bytes);
        }
    }

    /// Joins the parts of a complete body. Other requests are served in between; the memory of each part is released as
    /// the whole takes its own.
    pub(super) async fn whole(mut self) -> ReadBody {
        if self.rest.is_empty() {
            return ReadBody { bytes: self.first, share: self.share };
        }
        let mut whole = BytesMut::with_capacity(self.length);
        whole.extend_from_slice(&self.first);
        while let Some(part) = self.rest.pop_front() {
            whole.extend_from_slice(&part);
            drop(part);
            tokio::task::yield_now().await;
        }
        ReadBody { bytes: whole.freeze(), share: self.share }
    }
}

/// The body of a request, with its share of the memory for bodies.
#[derive(Debug)]
pub(crate) struct ReadBody {
    bytes: Bytes,
    share: BodyShare,
}

impl ReadBody {
    pub(super) fn new(bytes: Bytes, share: BodyShare) -> ReadBody {
        ReadBody { bytes, share }
    }

    /// The time that the request may still wait.
    pub(super) fn time_limit(&self) -> Duration {
        self.share.time_limit()
    }
}

impl Deref for ReadBody {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::error::ErrorCode;

    const LONG: Duration = Duration::from_secs(3_600);
    const MAX: usize = 64 * 1024;

    fn is_waiting(future: std::pin::Pin<&mut impl Future>) -> bool {
        matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
    }

    /// Story: when the bodies that were being read had as many bytes as is allowed, the next sender got 429 at once,
    /// although memory was free a moment later.
    #[tokio::test]
    async fn sender_waits_for_reading_budget() {
        let reading = BodyBudget::new(MAX, MAX / 4, LONG);
        let (mut first, mut second, mut third) = (reading.share(), reading.share(), reading.share());
        first.grow(MAX * 3 / 4).await.unwrap();
        // The one that need not wait continues with its memory.
        second.grow(10_000).await.unwrap();
        second.grow(MAX).await.unwrap();
        {
            let mut growing = pin!(third.grow(10_000));
            assert!(is_waiting(growing.as_mut()));
            drop(first);
            growing.await.unwrap();
        }
        assert_eq!(third.held.bytes(), 10_000);
        // The next waiting request continues when the one that need not wait is complete.
        let mut fourth = reading.share();
        {
            let mut growing = pin!(fourth.grow(MAX));
            assert!(is_waiting(growing.as_mut()));
            drop(second);
            growing.await.unwrap();
        }
        assert!(fourth.lane.is_some());
        drop((third, fourth));
        assert_eq!(reading.free(), MAX * 3 / 4, "nothing is held for ever");
        assert_eq!(reading.lane.available_permits(), 1);
    }

    /// Story: a body that came in pieces took up to twice the memory that was counted for it; later, megabytes of a
    /// large one were copied at once, which delayed all requests on that thread.
    #[tokio::test]
    async fn body_memory_is_counted_and_chunked() {
        for (pieces, most) in [(100, 100_000), (100, 1 << 24), (4_000, 1 << 24)] {
            let reading = BodyBudget::new(1 << 26, 1 << 24, LONG);
            let pool = reading.free();
            let mut coming = Coming::new(reading.share(), most);
            let mut text = Vec::new();
            for n in 0..pieces {
                let piece = vec![u8::try_from(n % 251).unwrap(); 1_000];
                text.extend_from_slice(&piece);
                coming.add(piece.into()).await.unwrap();
                let set_aside =
                    coming.first.len() + coming.rest.iter().map(BytesMut::capacity).sum::<usize>();
                assert_eq!(coming.len(), text.len());
                assert!(pool - reading.free() >= set_aside, "{set_aside} bytes are set aside");
                assert!(coming.rest.iter().all(|part| part.capacity() <= PART_BYTES));
            }
            assert!(coming.rest.len() < 30, "{} parts", coming.rest.len());
            if most == 100_000 {
                assert_eq!(pool - reading.free(), text.len(), "no more than comes");
            }
            let whole = coming.whole().await;
            assert!(*whole == *text);
            drop(whole);
            assert_eq!(reading.free(), pool);
        }
    }

    #[tokio::test]
    async fn waiting_sender_timeout_names_limit() {
        let reading = BodyBudget::new(MAX, MAX / 4, Duration::from_millis(5));
        let (mut first, mut second, mut third) = (reading.share(), reading.share(), reading.share());
        first.grow(MAX * 3 / 4).await.unwrap();
        second.grow(10_000).await.unwrap();
        // Small bodies are read even then.
        third.grow(MAX / 64).await.unwrap();
        let refused = third.grow(1).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert!(refused.detail.contains("65536 bytes") && refused.detail.contains("smaller batches"));
        // A request that gives up leaves nothing behind.
        drop((third, first));
        assert_eq!(reading.free(), MAX * 3 / 4);
    }
}
