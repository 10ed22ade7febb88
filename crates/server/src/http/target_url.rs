//! `target_url` of a message: who may give one, and which queues take one.

use duewheel::core::engine::{ChangeRefusal, Edit, Enqueue, Op, Target};
use duewheel::core::message::Headers;
use duewheel::core::{MessageContent, QueueName};
use duewheel_delivery::MessageUrl;

use super::App;
use super::message::{changed, room};
use super::target::targets;
use super::{Answer, strict::Text};
use crate::auth::{Caller, Scope};
use crate::error::Problem;

/// How often a change of headers is tried whose message is changed by others at the same time.
const TRIES: u32 = 5;

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

/// A change of headers, of the URL, which is one of them, or of both.
pub(super) struct UrlChange {
    /// The other changes, and the headers that replace all but the URL.
    pub(super) edit: Edit,
    pub(super) if_generation: Option<u32>,
    /// `None`: it stays as it is. `Some(None)`: the message has none any more.
    pub(super) url: Option<Option<MessageUrl>>,
}

/// Applies it. What it does not change is taken from the message as it is.
pub(super) async fn change(
    (app, caller): (&App, &Caller),
    target: Target,
    asked: &UrlChange,
    time: &'static str,
) -> Answer {
    if asked.url.is_some() {
        caller.need(Scope::PushAny)?;
    }
    let mut last = ChangeRefusal::NotFound;
    for _ in 0..TRIES {
        let room = room(app).await?;
        let found = app.ask(Op::get(target.clone())).await?.ok_or_else(Problem::message_not_found)?;
        let message = &found.message;
        if let Some(Some(_)) = asked.url {
            check(app, caller, &message.queue).await?;
        }
        let expected = asked.if_generation.unwrap_or(found.generation);
        if expected != found.generation {
            let refusal = ChangeRefusal::GenerationMismatch(found.generation);
            return changed(Err(refusal), time);
        }
        let edit = Edit { headers: Some(asked.headers(message)), ..asked.edit.clone() };
        let id = Target::Id(message.id);
        drop((found, room));
        match app.ask(Op::postpone(id, Box::new(edit), Some(expected))).await? {
            Err(refusal @ ChangeRefusal::GenerationMismatch(_)) if asked.if_generation.is_none() => {
                last = refusal;
            }
            done => return changed(done, time),
        }
    }
    changed(Err(last), time)
}

impl UrlChange {
    /// The headers of the changed message.
    fn headers(&self, message: &MessageContent) -> Headers {
        let is_other = |(name, _): &&(Box<str>, Box<str>)| !MessageUrl::is_its_header(name);
        let mut headers = match &self.edit.headers {
            Some(headers) => headers.clone(),
            None => message.headers.iter().filter(is_other).cloned().collect(),
        };
        match &self.url {
            Some(Some(url)) => put(&mut headers, url),
            Some(None) => {}
            None => headers.extend(message.headers.iter().filter(|header| !is_other(header)).cloned()),
        }
        headers
    }
}
