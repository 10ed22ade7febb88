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

mod feed;
mod follow;
mod position;
mod reader;
mod view;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use duewheel::core::QueueName;
use duewheel::core::engine::Op;
use duewheel::core::id::ShardId;
use http_body_util::channel::Channel;

pub(crate) use feed::EventFeed;
pub(crate) use position::EventPosition;
pub(crate) use view::EventAnswer;

use super::call::Call;
use super::{Answer, App};
use crate::error::{ErrorCode, Problem};
use reader::EventStream;

/// The header in which a client that connects again says what it has.
const LAST_EVENT_ID: &str = "last-event-id";

pub(crate) async fn events(call: Call) -> Answer {
    let queue = queue(&call)?;
    let since = since(&call)?;
    let app = call.app.clone();
    let place = app.events.admit().ok_or_else(|| {
        let what = format!("{} clients follow events already", feed::READERS);
        Problem::new(ErrorCode::Overloaded, what)
    })?;
    let began = app.client.now().wall;
    let now = now(&app).await;
    let pages = follow::subscribe(&app, now.as_ref().ok());
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
