//! What a message takes while it is being delivered: a request of the target's, and a place among what is not settled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::PushWorker;
use crate::breaker::Permit;
use crate::target::OriginKind;

/// One of the requests that a target allows at a time, from its beginning until its answer is judged. Settling the
/// message takes a sync of the store; the target has nothing to do with that.
pub(super) struct Hand(Arc<PushWorker>);

impl Hand {
    pub(super) fn new(worker: Arc<PushWorker>) -> Self {
        worker.requests.fetch_add(1, Ordering::SeqCst);
        Hand(worker)
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::SeqCst);
        self.0.hand_free.notify_one();
    }
}

/// A request from its beginning until its message is settled. It is dropped also when the code in between panics.
pub(super) struct UnderWay {
    worker: Arc<PushWorker>,
    /// Where its message goes.
    to: OriginKind,
}

impl UnderWay {
    pub(super) fn new(worker: Arc<PushWorker>) -> Self {
        worker.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay { worker, to: OriginKind::Own }
    }

    /// Its message goes to another origin than the target's: it takes no place of the target's any more.
    pub(super) fn go_elsewhere(&mut self) {
        self.worker.elsewhere.fetch_add(1, Ordering::SeqCst);
        self.end();
        self.to = OriginKind::Foreign;
    }

    fn end(&self) {
        let count = match self.to {
            OriginKind::Own => &self.worker.under_way,
            OriginKind::Foreign => &self.worker.elsewhere,
        };
        count.fetch_sub(1, Ordering::SeqCst);
        self.worker.hand_free.notify_one();
        // The loop may wait for it.
        if self.worker.breaker().permit(self.worker.now(), 0) != Permit::Many {
            self.worker.changed.send_replace(());
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end();
    }
}
