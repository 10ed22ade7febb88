//! A reader of events, which writes them to its connection.

use std::time::Duration;

use axum::http::HeaderMap;
use bytes::Bytes;
use duewheel::core::event::{EventKind, MessageEvent};
use duewheel::core::id::Lsn;
use duewheel::core::store::{EventPage, More};
use duewheel::core::{QueueName, WallMs};
use http_body_util::channel::Sender;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::feed::FeedPage;
use super::follow::{has_ended, page};
use super::position::EventPosition;
use super::view::{push_event, push_missed, push_position};
use crate::auth::{Caller, Scope};
use crate::http::App;

/// A reader that hears nothing else gets its position this often, so that the connection stays in use.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often a reader that waits for its client looks whether the server stops.
const STOP_POLL: Duration = Duration::from_millis(100);
/// The pause before a shard is asked again that has not answered.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// A reader: what it wants, and how far it is.
#[derive(Debug)]
pub(super) struct EventStream {
    app: App,
    /// The headers of its request, whose token must stay valid.
    headers: HeaderMap,
    queue: Option<QueueName>,
    /// When it began: what became due before is not live.
    began: WallMs,
    position: EventPosition,
    sender: Sender<Bytes>,
    /// When something was sent last.
    sent: Instant,
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    /// The client has gone.
    Gone,
    /// The token of the reader is no longer valid.
    Unauthorized,
    /// The server stops.
    Stopped,
}

impl EventStream {
    pub(super) fn new(
        app: App,
        headers: HeaderMap,
        queue: Option<QueueName>,
        (began, position): (WallMs, EventPosition),
        sender: Sender<Bytes>,
    ) -> Self {
        EventStream { app, headers, queue, began, position, sender, sent: Instant::now() }
    }

    /// Sends events until the stream ends.
    pub(super) async fn run(mut self, pages: Receiver<FeedPage>) {
        let end = match self.send_all(pages).await {
            Err(end) => end,
            Ok(never) => match never {},
        };
        tracing::debug!(?end, "a stream of events has ended");
    }

    async fn send_all(
        &mut self,
        mut pages: Receiver<FeedPage>,
    ) -> Result<std::convert::Infallible, StreamEnd> {
        self.send_position().await?;
        for shard in 0..self.position.shards() {
            self.catch_up(shard).await?;
        }
        loop {
            let silent_at = self.sent + HEARTBEAT;
            // Also while there are events that this reader does not want.
            if Instant::now() >= silent_at {
                self.send_position().await?;
                continue;
            }
            match tokio::time::timeout_at(silent_at, pages.recv()).await {
                Ok(Ok(FeedPage { shard, events })) => {
                    if events.page.from > self.position.of(shard) {
                        self.catch_up(shard).await?;
                    }
                    self.send_page(shard, &events.page).await?;
                }
                // Pages have gone by, which shows in those that follow.
                Ok(Err(RecvError::Lagged(_))) => {}
                Ok(Err(RecvError::Closed)) => return Err(StreamEnd::Stopped),
                Err(_) => {}
            }
        }
    }

    /// Reads pages of a shard until there are no more.
    async fn catch_up(&mut self, shard: usize) -> Result<(), StreamEnd> {
        loop {
            if has_ended(&self.app) {
                return Err(StreamEnd::Stopped);
            }
            let at = self.position.of(shard);
            let events = {
                let _turn = self.app.events.own_pages.acquire().await;
                self.app.ask(page(shard, Some(at), None)).await
            };
            let Ok(events) = events else {
                self.send_position().await?;
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            };
            let page = events.page;
            if page.from != at {
                self.send_missed(shard, page.from).await?;
            }
            self.send_page(shard, &page).await?;
            if page.more == More::No {
                return Ok(());
            }
        }
    }

    /// Sends what is new of a page, and moves on.
    async fn send_page(&mut self, shard: usize, page: &EventPage) -> Result<(), StreamEnd> {
        let caller = self.caller()?;
        let mut text = String::new();
        for event in &page.events {
            let at = self.position.of(shard);
            if is_live_only(event) {
                if event.position >= at && event.at >= self.began && self.wants(&caller, event) {
                    push_event(&mut text, event, None);
                }
            } else if event.position > at {
                self.position.set(shard, event.position);
                if self.wants(&caller, event) {
                    push_event(&mut text, event, Some(&self.position));
                }
            }
        }
        self.position.set(shard, page.upto.max(self.position.of(shard)));
        if text.is_empty() { Ok(()) } else { self.send(text).await }
    }

    async fn send_missed(&mut self, shard: usize, to: Lsn) -> Result<(), StreamEnd> {
        let from = self.position.clone();
        self.position.set(shard, to);
        let mut text = String::new();
        push_missed(&mut text, &from, &self.position);
        self.send(text).await
    }

    async fn send_position(&mut self) -> Result<(), StreamEnd> {
        self.caller()?;
        let mut text = String::new();
        push_position(&mut text, &self.position);
        self.send(text).await
    }

    /// Sends, as fast as the client reads.
    async fn send(&mut self, text: String) -> Result<(), StreamEnd> {
        self.sent = Instant::now();
        let app = self.app.clone();
        let stops = async {
            while !has_ended(&app) {
                tokio::time::sleep(STOP_POLL).await;
            }
        };
        tokio::select! {
            biased;
            sent = self.sender.send_data(Bytes::from(text)) => sent.map_err(|_| StreamEnd::Gone),
            () = stops => Err(StreamEnd::Stopped),
        }
    }

    /// The caller, as long as the token is valid and allows the stream.
    fn caller(&self) -> Result<Caller, StreamEnd> {
        let caller = self.app.guard.caller(&self.headers, self.app.client.now().wall);
        let allowed = caller.need(Scope::Admin).and_then(|()| match &self.queue {
            Some(queue) => caller.need_queue(queue),
            None => Ok(()),
        });
        allowed.map_err(|_| StreamEnd::Unauthorized)?;
        Ok(caller)
    }

    fn wants(&self, caller: &Caller, event: &MessageEvent) -> bool {
        let is_asked_for = self.queue.as_ref().is_none_or(|queue| *queue == event.queue);
        is_asked_for && !event.queue.is_system() && caller.reaches(&event.queue)
    }
}

/// Whether an event has no record, so that it cannot be read again.
fn is_live_only(event: &MessageEvent) -> bool {
    event.kind == EventKind::Fired && event.reason.is_none()
}
