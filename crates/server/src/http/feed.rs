//! Streams that are made once for all their readers: figures, and pages of events; and the positions of readers.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use duewheel::core::engine::ShardEvents;
use duewheel::core::id::Lsn;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};

/// The readers of a stream; while there are some, a task publishes. A reader gets only the latest event.
#[derive(Debug, Default)]
pub(super) struct Feed(Mutex<Option<watch::Sender<Bytes>>>);

impl Feed {
    /// Adds a reader, and returns whether it is the first one: then the caller begins to publish.
    pub(super) fn subscribe(&self) -> (watch::Receiver<Bytes>, bool) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*running {
            let mut receiver = sender.subscribe();
            // A new reader has not seen the last event.
            receiver.mark_changed();
            return (receiver, false);
        }
        let (sender, receiver) = watch::channel(Bytes::new());
        *running = Some(sender);
        (receiver, true)
    }

    /// Sends an event to the readers; returns whether there are any. If there are none the stream has ended.
    pub(super) fn publish(&self, event: Bytes) -> bool {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if running.as_ref().is_none_or(|sender| sender.receiver_count() == 0) {
            *running = None;
            return false;
        }
        if let Some(sender) = &*running {
            sender.send_replace(event);
        }
        true
    }

    /// Ends the stream for its readers.
    pub(super) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

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

/// How far a reader has got, for each shard. As text the numbers of all shards in their order, with dots in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventPosition(Vec<Lsn>);

impl EventPosition {
    pub(super) fn new(shards: Vec<Lsn>) -> Self {
        EventPosition(shards)
    }

    /// Reads the `id` of an event of a server with this number of shards.
    pub(super) fn parse(text: &str, shards: usize) -> Result<Self, String> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            if digits { part.parse().ok().map(Lsn) } else { None }
        };
        let parts: Option<Vec<Lsn>> = text.split('.').map(number).collect();
        let parts = parts.ok_or("must be the id of an event: numbers with dots in between")?;
        if parts.len() != shards {
            let is = parts.len();
            return Err(format!("is a position in {is} shards, and this server has {shards}"));
        }
        Ok(EventPosition(parts))
    }

    pub(super) fn of(&self, shard: usize) -> Lsn {
        self.0.get(shard).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, shard: usize, to: Lsn) {
        if let Some(position) = self.0.get_mut(shard) {
            *position = to;
        }
    }

    pub(super) fn shards(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, position) in self.0.iter().enumerate() {
            let dot = if n == 0 { "" } else { "." };
            write!(f, "{dot}{}", position.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn feed_runs_while_it_has_readers() {
        let feed = Feed::default();
        assert!(!feed.publish(Bytes::from_static(b"for nobody")));
        let (mut one, first) = feed.subscribe();
        assert!(first);
        let (mut two, first) = feed.subscribe();
        assert!(!first, "one stream for all");
        assert!(feed.publish(Bytes::from_static(b"a")));
        one.changed().await.unwrap();
        assert_eq!(&*one.borrow_and_update(), &b"a"[..]);
        drop(one);
        assert!(feed.publish(Bytes::from_static(b"b")), "one is left");
        two.changed().await.unwrap();
        assert_eq!(&*two.borrow_and_update(), &b"b"[..], "the latest alone");
        feed.end();
        assert!(two.changed().await.is_err(), "it has ended");
        let (three, first) = feed.subscribe();
        assert!(first, "a new one");
        drop(three);
        assert!(!feed.publish(Bytes::from_static(b"c")), "nobody reads");
        assert!(feed.subscribe().1, "and it has ended");
    }

    #[test]
    fn a_position_comes_back() {
        for (text, shards) in [("0", 1), ("17.0.18446744073709551615", 3)] {
            assert_eq!(EventPosition::parse(text, shards).unwrap().to_string(), text);
        }
        for bad in ["", ".", "1.", "x", "-1", "+1", "1.18446744073709551616", " 1.1", "1,1"] {
            assert!(EventPosition::parse(bad, 2).is_err_and(|what| what.contains("id of an event")), "{bad}");
        }
        let other = EventPosition::parse("1.2.3", 2).unwrap_err();
        assert_eq!(other, "is a position in 3 shards, and this server has 2");
    }
}
