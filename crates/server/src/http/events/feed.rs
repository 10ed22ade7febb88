//! Pages of events of all shards, which are read once for all readers.

use std::sync::{Arc, Mutex, PoisonError};

use duewheel::core::engine::ShardEvents;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

/// The largest number of readers.
pub(super) const READERS: usize = 100;
/// Readers that are behind read this many pages at a time, all together.
const OWN_PAGES: usize = 4;

/// Pages of events: while there are readers, each shard is followed once.
#[derive(Debug)]
pub(crate) struct EventFeed {
    readers: Arc<Semaphore>,
    pub(super) own_pages: Semaphore,
    pub(super) running: Mutex<Option<broadcast::Sender<FeedPage>>>,
}

/// A page of a shard, with its position in the order of that shard's pages.
#[derive(Clone, Debug)]
pub(super) struct FeedPage {
    pub(super) shard: usize,
    pub(super) events: Arc<ShardEvents>,
}

impl Default for EventFeed {
    fn default() -> Self {
        EventFeed {
            readers: Arc::new(Semaphore::new(READERS)),
            own_pages: Semaphore::new(OWN_PAGES),
            running: Mutex::new(None),
        }
    }
}

impl EventFeed {
    /// A place for one more reader, if there is one.
    pub(super) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.readers).try_acquire_owned().ok()
    }

    /// Ends the pages of `sender` if nobody reads them; returns whether they have ended.
    pub(super) fn end_unread(&self, sender: &broadcast::Sender<FeedPage>) -> bool {
        // Readers are added under this lock.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.receiver_count() > 0 {
            return false;
        }
        if running.as_ref().is_some_and(|running| running.same_channel(sender)) {
            *running = None;
        }
        true
    }
}
