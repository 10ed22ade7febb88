//! Pages of events of all shards, which are read once for all readers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duewheel::core::engine::ShardEvents;
use duewheel::core::id::Lsn;
use duewheel::core::store::More;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use super::{App, EventPosition, page};

/// The largest number of readers.
pub(super) const READERS: usize = 100;
/// Readers that are behind read this many pages at a time, all together.
const OWN_PAGES: usize = 4;
/// The number of pages that are kept for readers that are a little slower.
const RING: usize = 64;
/// The pause before a shard is asked again that had nothing new; longer where there are many shards.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_EACH: Duration = Duration::from_millis(2);
/// The pause after a shard has not answered.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// Pages of events: while somebody reads, each shard is followed once.
#[derive(Debug)]
pub(crate) struct EventFeed {
    readers: Arc<Semaphore>,
    pub(super) own_pages: Semaphore,
    running: Mutex<Option<broadcast::Sender<FeedPage>>>,
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
    fn end_unread(&self, sender: &broadcast::Sender<FeedPage>) -> bool {
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

/// Whether the server stops, so that no stream goes on. In drain mode it goes on.
pub(super) fn has_ended(app: &App) -> bool {
    app.refuses_new() && !app.drain.is_on()
}

/// Adds a reader; the first one lets all shards be followed, from this position on, if it is known.
pub(super) fn subscribe(app: &App, now: Option<&EventPosition>) -> broadcast::Receiver<FeedPage> {
    let mut running = app.events.running.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sender) = &*running {
        return sender.subscribe();
    }
    let (sender, receiver) = broadcast::channel(RING);
    for shard in 0..app.client.shards() as usize {
        let after = now.map(|now| now.of(shard));
        tokio::spawn(follow(app.clone(), shard, after, sender.clone()));
    }
    *running = Some(sender);
    receiver
}

/// Follows a shard until nobody reads, or the server stops.
async fn follow(app: App, shard: usize, mut after: Option<Lsn>, sender: broadcast::Sender<FeedPage>) {
    let pause = PAUSE.max(PAUSE_EACH * app.client.shards());
    // What became due earlier is nothing to a reader.
    let mut fired = 0;
    loop {
        if has_ended(&app) {
            *app.events.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
            return;
        }
        if app.events.end_unread(&sender) {
            return;
        }
        let events = match app.ask(page(shard, after, Some(fired))).await {
            Ok(events) => events,
            Err(problem) => {
                tracing::debug!(shard, problem = %problem.detail, "no events; the shard is asked again");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let (more, is_news) = (events.page.more, !events.page.events.is_empty());
        let has_moved = after != Some(events.page.upto);
        (after, fired) = (Some(events.page.upto), events.fired);
        if is_news || has_moved {
            // Without a reader it is for nobody.
            let _ = sender.send(FeedPage { shard, events: Arc::from(events) });
        }
        if more == More::No {
            tokio::time::sleep(pause).await;
        }
    }
}
