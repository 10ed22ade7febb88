//! `target_url` of a message: which tokens may give one, and which queues take one.

use duewheel::core::QueueName;
use duewheel::core::engine::Enqueue;
use duewheel::core::message::Headers;
use duewheel_delivery::{MessageUrl, UrlMoves};

use super::App;
use super::strict::Text;
use super::target::targets;
use crate::auth::{Caller, Scope};
use crate::error::Problem;

/// Checks a URL.
pub(super) fn read(text: &Text<'_>) -> Result<MessageUrl, Problem> {
    MessageUrl::new(&text.0).map_err(|bad| Problem::field(bad.field, bad.what))
}

/// Refuses the header that holds the URL, which has a field of its own.
pub(super) fn check_headers(headers: &Headers) -> Result<(), Problem> {
    match headers.iter().find(|(name, _)| MessageUrl::is_its_header(name)) {
        Some((name, _)) => {
            Err(Problem::field(format!("headers.{name}"), "is set by duewheel; give target_url"))
        }
        None => Ok(()),
    }
}

/// Adds the URL to headers.
pub(super) fn put(headers: &mut Headers, url: &MessageUrl) {
    let (name, value) = url.header();
    headers.push((name.into(), value.into()));
}

/// Whether a new message has a URL.
pub(super) fn is_in(message: &Enqueue) -> bool {
    MessageUrl::in_headers(&message.headers).is_some()
}

/// Whether this caller may put messages with URLs into this queue.
///
/// # Errors
/// `forbidden` without the scope; `bad_request` if the queue has no target, whose worker would send them.
pub(super) async fn check(app: &App, caller: &Caller, queue: &QueueName) -> Result<(), Problem> {
    caller.need(Scope::PushAny)?;
    if targets(app)?.target_of(queue).await?.is_some() {
        return Ok(());
    }
    let why = format_args!("the queue {queue} has no target, whose worker would send the message there");
    Err(Problem::field("target_url", why))
}

/// Whether a job of this caller may move messages with URLs into this queue, by the same rules as [`check`].
pub(super) async fn moves(app: &App, caller: &Caller, queue: &QueueName) -> Result<UrlMoves, Problem> {
    let may = caller.need(Scope::PushAny).is_ok() && targets(app)?.target_of(queue).await?.is_some();
    Ok(if may { UrlMoves::Allowed } else { UrlMoves::Refused })
}
