//! The resources that a message holds while it is being delivered: one of its target's concurrent requests, and one of
//! the deliveries that are not settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::target::OriginKind;

/// Counters of a target's unfinished requests and unsettled messages.
#[derive(Debug, Default)]
pub(super) struct PlaceCounts {
    /// Notified when a request has ended or a message gives its place back.
    pub(super) hand_free: Notify,
    /// Messages for the target that were granted and are not settled.
    pub(super) under_way: AtomicUsize,
    /// The number of requests under way for messages of other origins, which take no place of the target's.
    pub(super) elsewhere: AtomicUsize,
    /// Requests of those for the target that have not ended.
    pub(super) requests: AtomicUsize,
}

/// The owner of the places of requests.
pub(super) trait PlaceOwner: Send + Sync {
    fn places(&self) -> &PlaceCounts;

    /// A message is settled, or takes no place of the target's any more.
    fn place_is_free(&self);
}

/// A slot for one of a target's concurrent requests, held from the request's beginning until its answer is judged. The
/// message is settled afterwards: that takes a sync of the store, which does not concern the target.
pub(super) struct Hand(Arc<dyn PlaceOwner>);

impl Hand {
    pub(super) fn new(owner: Arc<dyn PlaceOwner>) -> Self {
        owner.places().requests.fetch_add(1, Ordering::SeqCst);
        Hand(owner)
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let places = self.0.places();
        places.requests.fetch_sub(1, Ordering::SeqCst);
        places.hand_free.notify_one();
    }
}

/// A request from its beginning until its message is settled. It is dropped also when the code in between panics.
pub(super) struct UnderWay {
    owner: Arc<dyn PlaceOwner>,
    /// Where its message goes.
    to: OriginKind,
}

impl UnderWay {
    pub(super) fn new(owner: Arc<dyn PlaceOwner>) -> Self {
        owner.places().under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay { owner, to: OriginKind::Own }
    }

    /// Gives the place of the target back: the message goes to another origin.
    pub(super) fn go_elsewhere(&mut self) {
        self.owner.places().elsewhere.fetch_add(1, Ordering::SeqCst);
        self.end();
        self.to = OriginKind::Foreign;
    }

    fn end(&self) {
        let places = self.owner.places();
        let count = match self.to {
            OriginKind::Own => &places.under_way,
            OriginKind::Foreign => &places.elsewhere,
        };
        count.fetch_sub(1, Ordering::SeqCst);
        places.hand_free.notify_one();
        self.owner.place_is_free();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.end();
    }
}
