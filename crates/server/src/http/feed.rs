//! A stream of events that is made once for all its readers.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

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
}
