//! `GET /v1/events`: server-sent events of messages' lives, from a position on.
//!
//! ```text
//!   shards ──▶ follower of each ──▶ ring of pages, one for all readers ──▶ reader ──▶ its connection
//!     └──────────────── pages of its own, while it is behind ─────────────────┘
//! ```
//!
//! A reader takes pages out of the ring as fast as its connection takes them. When the ring has gone on without it, or
//! when it asked for an earlier position, it reads pages of its own until it has caught up. So a reader delays
//! neither other readers nor shards, and its memory is bounded.

use std::fmt::Write as _;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use duewheel::core::engine::{Op, ShardEvents, Typed};
use duewheel::core::event::{EventKind, MessageEvent};
use duewheel::core::id::{Lsn, ShardId};
use duewheel::core::store::{EventPage, More};
use duewheel::core::{QueueName, WallMs};
use http_body_util::channel::{Channel, Sender};
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use super::call::Call;
use super::feed::{EventPosition, FeedPage, READERS};
use super::{Answer, App, answer};
use crate::auth::{Caller, Scope};
use crate::error::{ErrorCode, Problem};
use crate::json::{InstantText, written};

/// The header in which a client that connects again says what it has.
const LAST_EVENT_ID: &str = "last-event-id";

pub(crate) async fn events(call: Call) -> Answer {
    let queue = queue(&call)?;
    let since = since(&call)?;
    let app = call.app.clone();
    let place = app.events.admit().ok_or_else(|| {
        let what = format!("{} clients follow events already", READERS);
        Problem::new(ErrorCode::Overloaded, what)
    })?;
    let began = app.client.now().wall;
    let now = now(&app).await;
    let pages = subscribe(&app, now.as_ref().ok());
    let position = match since {
        Some(since) => since,
        None => now?,
    };
    let (sender, body) = Channel::<Bytes>::new(1);
    let stream = EventStream::new(app, call.headers().clone(), queue, (began, position), sender);
    tokio::spawn(async move {
        stream.run(pages).await;
        drop(place);
    });
    let mut response: Response = Body::new(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The queue whose events are wanted, which the token must cover.
fn queue(call: &Call) -> Result<Option<QueueName>, Problem> {
    let Some(name) = call.param("queue")? else { return Ok(None) };
    let queue = QueueName::new(&name).map_err(|what| Problem::field("queue", what))?;
    call.caller.need_queue(&queue)?;
    Ok(Some(queue))
}

/// The position that the client has. A client that connects again repeats the address of its first request, so the header
/// counts.
fn since(call: &Call) -> Result<Option<EventPosition>, Problem> {
    let shards = call.app.client.shards() as usize;
    let header = call.headers().get(LAST_EVENT_ID).filter(|value| !value.is_empty());
    if let Some(value) = header {
        let text = value.to_str().unwrap_or_default();
        let position = EventPosition::parse(text, shards);
        return position.map(Some).map_err(|what| Problem::field(LAST_EVENT_ID, what));
    }
    let Some(text) = call.param("since")? else { return Ok(None) };
    EventPosition::parse(&text, shards).map(Some).map_err(|what| Problem::field("since", what))
}

/// The position behind everything that is durable.
async fn now(app: &App) -> Result<EventPosition, Problem> {
    let shards = (0..app.client.shards()).map(|shard| Op::events(ShardId(shard), None, 1, None)).collect();
    let mut position = Vec::new();
    for events in app.ask_many(shards).await? {
        position.push(events?.page.upto);
    }
    Ok(EventPosition::new(position))
}

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
fn page(shard: usize, after: Option<Lsn>, fired: Option<u64>) -> Typed<Box<ShardEvents>> {
    Op::events(ShardId(u32::try_from(shard).unwrap_or(u32::MAX)), after, PAGE, fired)
}

/// Whether the server stops, so that no stream goes on. In drain mode it goes on.
fn has_ended(app: &App) -> bool {
    app.refuses_new() && !app.drain.is_on()
}

/// Adds a reader; the first one lets all shards be followed, from this position on, if it is known.
fn subscribe(app: &App, now: Option<&EventPosition>) -> broadcast::Receiver<FeedPage> {
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

/// A reader that hears nothing else gets its position this often, so that the connection stays in use.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often a reader that waits for its client looks whether the server stops.
const STOP_POLL: Duration = Duration::from_millis(100);

/// A reader: what it wants, and how far it is.
#[derive(Debug)]
struct EventStream {
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
    fn new(
        app: App,
        headers: HeaderMap,
        queue: Option<QueueName>,
        (began, position): (WallMs, EventPosition),
        sender: Sender<Bytes>,
    ) -> Self {
        EventStream { app, headers, queue, began, position, sender, sent: Instant::now() }
    }

    /// Sends events until the stream ends.
    async fn run(mut self, pages: Receiver<FeedPage>) {
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

answer! {
    /// An event of a message's life.
    #[schemars(rename = "Event")]
    EventAnswer<'a> of (event: &'a MessageEvent) {
        /// What happened.
        event: &'static str = event.kind.as_str(),
        /// The message; missing where several are meant.
        ?id: String = event.id.map(|id| id.to_string()),
        queue: &'a str = event.queue.as_str(),
        /// The key, where the event has it: in `accepted`, and where the content was changed.
        ?key: &'a str = event.key.as_ref().map(|key| key.as_str()),
        at: InstantText = InstantText(event.at),
        /// When the message is due, if it waits.
        ?due_at: InstantText = event.due_at.map(InstantText),
        /// The number of its attempts so far, if there were any.
        ?attempt: u32 = event.attempt,
        ?reason: &'static str = event.reason.map(|reason| reason.as_str()),
        /// The number of messages, where several are meant.
        ?count: u64 = event.count,
    }
}

/// Events that were not kept.
#[derive(Debug, Serialize)]
struct MissedAnswer {
    event: &'static str,
    from: String,
    to: String,
}

/// Adds an event. One without a position does not change that of its reader.
fn push_event(text: &mut String, event: &MessageEvent, position: Option<&EventPosition>) {
    push(text, event.kind.as_str(), position, &EventAnswer::of(event));
}

/// Adds the event that says that those between two positions were not kept.
fn push_missed(text: &mut String, from: &EventPosition, to: &EventPosition) {
    let missed = MissedAnswer { event: "missed", from: from.to_string(), to: to.to_string() };
    push(text, missed.event, Some(to), &missed);
}

/// Adds a comment, and the position: it is no event, and a client that connects again begins there.
fn push_position(text: &mut String, position: &EventPosition) {
    // Writing to a string does not fail.
    let _ = write!(text, ": here\nid: {position}\n\n");
}

fn push(text: &mut String, name: &str, position: Option<&EventPosition>, data: &impl Serialize) {
    let _ = writeln!(text, "event: {name}");
    if let Some(position) = position {
        let _ = writeln!(text, "id: {position}");
    }
    // JSON has no line break.
    let data = written(256, data);
    let _ = write!(text, "data: {}\n\n", String::from_utf8_lossy(&data));
}
