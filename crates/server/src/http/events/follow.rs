//! Follows the shards, for all readers together.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use duewheel::core::engine::{Op, ShardEvents, Typed};
use duewheel::core::id::{Lsn, ShardId};
use duewheel::core::store::More;
use tokio::sync::broadcast;

use super::feed::FeedPage;
use super::position::EventPosition;
use crate::http::App;

/// The number of pages that are kept for readers that are a little slower.
const RING: usize = 64;
/// The pause before a shard is asked again that had nothing new; longer where there are many shards.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_EACH: Duration = Duration::from_millis(2);
/// The pause after a shard has not answered.
const AFTER_ERROR: Duration = Duration::from_millis(500);
/// The largest number of events of a page.
const PAGE: usize = 250;

/// The events of a shard behind a position. Events that only those see who follow are wanted behind the number `fired`.
pub(super) fn page(shard: usize, after: Option<Lsn>, fired: Option<u64>) -> Typed<Box<ShardEvents>> {
    Op::events(ShardId(u32::try_from(shard).unwrap_or(u32::MAX)), after, PAGE, fired)
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
    // Starts with all that the shard still has; readers skip messages that became due before they began.
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
