//! A budget of bytes that all connections share: tasks wait in order of arrival until enough is free.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A number of bytes that may be in use at a time. Clones share one budget.
#[derive(Clone, Debug)]
pub(crate) struct ByteBudget(Arc<Semaphore>);

/// Bytes of a [`ByteBudget`] that are in use; dropping it releases them.
#[derive(Debug)]
pub(crate) struct BytePermit {
    of: ByteBudget,
    held: Option<OwnedSemaphorePermit>,
}

impl ByteBudget {
    /// A budget of this number of bytes, and at least one.
    pub(crate) fn new(bytes: usize) -> Self {
        ByteBudget(Arc::new(Semaphore::new(bytes.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Bytes that are not in use.
    pub(crate) fn free(&self) -> usize {
        self.0.available_permits()
    }

    /// A permit without bytes; [`BytePermit::grow`] adds some.
    pub(crate) fn nothing(&self) -> BytePermit {
        BytePermit { of: self.clone(), held: None }
    }

    /// A permit for as many bytes as are free, up to this number. It never waits.
    pub(crate) fn take_left(&self, bytes: usize) -> BytePermit {
        let mut permit = self.nothing();
        // Another task may take them in between: then the permit has none.
        let _ = permit.try_grow(bytes.min(self.free()));
        permit
    }
}

impl BytePermit {
    /// Bytes in use.
    pub(crate) fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Takes this number of further bytes, if they are free and no other task waits for them; returns whether it did.
    pub(crate) fn try_grow(&mut self, by: usize) -> bool {
        let taken = Arc::clone(&self.of.0).try_acquire_many_owned(permits(by));
        taken.map(|taken| self.merge(taken)).is_ok()
    }

    /// Waits until this number of bytes is free, and takes them. It never ends for more than the whole budget.
    ///
    /// # Cancel safety
    /// When the future is dropped, the permit keeps its former bytes, and the position in the queue is lost.
    pub(crate) async fn grow(&mut self, by: usize) {
        // The semaphore is never closed.
        if let Ok(taken) = Arc::clone(&self.of.0).acquire_many_owned(permits(by)).await {
            self.merge(taken);
        }
    }

    /// Releases the bytes above this number.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes().saturating_sub(bytes);
        if let Some(held) = &mut self.held {
            drop(held.split(surplus));
        }
    }

    fn merge(&mut self, taken: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(taken),
            None => self.held = Some(taken),
        }
    }
}

/// A semaphore hands out less than 4 GiB at a time; no single body or answer comes near it.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn bytes_are_exact_and_come_back() {
        let budget = ByteBudget::new(1_000);
        let mut permit = budget.nothing();
        assert!(permit.try_grow(600));
        permit.grow(100).await;
        assert_eq!((permit.bytes(), budget.free()), (700, 300));
        assert!(!permit.try_grow(301));
        permit.shrink_to(250);
        permit.shrink_to(800);
        assert_eq!((permit.bytes(), budget.free()), (250, 750));
        let left = budget.take_left(usize::MAX);
        assert_eq!((left.bytes(), budget.free()), (750, 0));
        assert_eq!(budget.take_left(1).bytes(), 0);
        drop((permit, left));
        assert_eq!(budget.free(), 1_000);
    }

    #[tokio::test]
    async fn byte_budget_is_granted_in_order() {
        let budget = ByteBudget::new(100);
        let mut all = budget.take_left(100);
        let (mut first, mut second) = (budget.nothing(), budget.nothing());
        let poll = |future: std::pin::Pin<&mut dyn Future<Output = ()>>| {
            future.poll(&mut Context::from_waker(Waker::noop()))
        };
        {
            let (mut large, mut small) = (pin!(first.grow(80)), pin!(second.grow(10)));
            assert_eq!((poll(large.as_mut()), poll(small.as_mut())), (Poll::Pending, Poll::Pending));
            all.shrink_to(50);
            // The small request would fit, but the large one came first.
            assert_eq!((poll(large.as_mut()), poll(small.as_mut())), (Poll::Pending, Poll::Pending));
            assert!(!budget.nothing().try_grow(1), "nobody overtakes those that wait");
        }
        assert_eq!((first.bytes(), second.bytes(), budget.free()), (0, 0, 50));
    }
}
