//! Listings by page: the messages of a queue in due order, and all queues by name.

use std::borrow::Cow;

use axum::http::StatusCode;
use duewheel::core::engine::{Op, QueueView, View};
use duewheel::core::message::DeadReason;
use duewheel::core::{QueueName, State};
use duewheel_delivery::{BulkFilter, DeadByReason, dead_reasons, filtered_page};
use duewheel_shard::listing::ListPositions;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::message::MessageAnswer;
use super::queue_view::QueueAnswer;
use super::{Answer, App, answer, held, queue, reply, write_large};
use crate::beanstalk::exists;
use crate::error::Problem;
use crate::json::{self, Elements};
use crate::rfc3339;
use crate::schema::DeadReasonSchema;

/// The number of messages of a page by default.
pub(crate) const MESSAGES: usize = 100;
/// The query parameter of a header: the header's name stands in the place of `NAME`.
pub(crate) const HEADER: &str = "header.NAME";
/// The number of messages that are looked at together when they are counted.
const MOST_AT_ONCE: usize = 1_000;
/// The number of queues of a page by default.
pub(crate) const QUEUES: usize = 1_000;

pub(crate) async fn messages(call: Call) -> Answer {
    let queue = call.queue()?;
    let filter = filter_of(&call)?;
    let after = position(&call)?;
    let limit = call.count_param("limit", MESSAGES, call.app.policy.max_page)?;
    let most = call.app.policy.load_bytes;
    let room = call.app.rooms.take(most.saturating_mul(2)).await?;
    let page = filtered_page(&call.app.client, &queue, &filter, after, (limit, most)).await?;
    let bytes: usize = page.views.iter().map(|v| v.message.weight() + 512).sum();
    let write = move || {
        let next = page.next.map(|next| next.to_string());
        json::line(bytes + 128, &MessagesAnswer { messages: Elements(&page.views, MessageAnswer::of), next })
    };
    Ok(held(StatusCode::OK, room, write_large(bytes, write).await?))
}

/// Where a page begins: `after`.
fn position(call: &Call) -> Result<Option<ListPositions>, Problem> {
    let bad = || Problem::field("after", "must be the `next` of an earlier page");
    let shards = call.app.client.shards();
    let after = call.param("after")?;
    after.map(|text| ListPositions::parse(&text, shards).ok_or_else(bad)).transpose()
}

/// Dead messages by reason. Notes are what consumers have written, so it takes the permission of a list of messages.
pub(crate) async fn dead(call: Call) -> Answer {
    let queue = call.queue()?;
    let filter = filter_of(&call)?;
    let after = position(&call)?;
    let policy = &call.app.policy;
    let room = call.app.rooms.take(policy.load_bytes).await?;
    let page =
        dead_reasons(&call.app.client, &queue, &filter, after, policy.max_page.min(MOST_AT_ONCE)).await?;
    let next = page.next.map(|next| next.to_string());
    let reasons = page.reasons.iter().map(DeadReasonAnswer::of).collect();
    let answer = DeadAnswer { reasons, counted: page.counted, next };
    Ok(held(StatusCode::OK, room, json::line(4_096, &answer)))
}

pub(crate) async fn queues(call: Call) -> Answer {
    let after = call.param("after")?.map(|name| QueueName::new(&name)).transpose();
    let after = after.map_err(|what| Problem::field("after", what))?;
    let limit = call.count_param("limit", QUEUES, call.app.policy.max_page)?;
    let mut queues = match call.caller.limits() {
        None => page(&call.app, after, limit).await?,
        Some(prefixes) => page_within(&call.app, prefixes, after, limit).await?,
    };
    // A full page may be the last one; then the next is empty.
    let next = if queues.len() < limit { None } else { queues.last().map(|q| q.name.clone()) };
    queues.retain(|queue| !queue::is_unused_default(queue));
    let now = call.app.client.now().wall;
    let answer = QueuesAnswer {
        queues: queues.iter().map(|queue| QueueAnswer::of(queue, now)).collect(),
        next: next.as_ref().map(QueueName::as_str),
    };
    Ok(reply(StatusCode::OK, &answer))
}

/// A page of messages.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Messages")]
pub(crate) struct MessagesAnswer<'a> {
    pub(super) messages: Elements<'a, View, MessageAnswer<'a>>,
    /// The `after` of the next page; `null` on the last one. A page may be short although there are more.
    pub(super) next: Option<String>,
}

/// A page of counts of dead messages.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "DeadByReason")]
pub(crate) struct DeadAnswer<'a> {
    /// The most frequent first.
    pub(super) reasons: Vec<DeadReasonAnswer<'a>>,
    /// The dead messages of this page: the sum of `messages`.
    pub(super) counted: u64,
    /// The `after` of the next page, whose counts are to be added; `null` on the last one.
    pub(super) next: Option<String>,
}

answer! {
    /// How many messages died for one reason.
    #[schemars(rename = "DeadReasonCount")]
    DeadReasonAnswer<'a> of (one: &'a DeadByReason) {
        #[schemars(with = "DeadReasonSchema")]
        dead_reason: &'static str = one.reason.as_str(),
        /// The note of the last attempt; empty if there is none.
        dead_note: &'a str = &one.note,
        messages: u64 = one.messages,
    }
}

/// A page of queues.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Queues")]
pub(crate) struct QueuesAnswer<'a> {
    pub(super) queues: Vec<QueueAnswer<'a>>,
    /// The `after` of the next page; `null` on the last one.
    pub(super) next: Option<&'a str>,
}

async fn page(app: &App, after: Option<QueueName>, limit: usize) -> Result<Vec<QueueView>, Problem> {
    app.ask(Op::queues(after, limit)).await
}

/// A page of the queues whose names have a prefix of the token. They are looked up by prefix, so other queues cost
/// nothing.
async fn page_within(
    app: &App,
    prefixes: &[QueueName],
    after: Option<QueueName>,
    limit: usize,
) -> Result<Vec<QueueView>, Problem> {
    let mut prefixes: Vec<&QueueName> = prefixes.iter().collect();
    prefixes.sort_unstable();
    // A prefix that begins with another one follows it directly, or others of that kind.
    prefixes.dedup_by(|longer, shorter| longer.as_str().starts_with(shorter.as_str()));
    let mut found = Vec::new();
    for prefix in prefixes {
        let begins = |name: &QueueName| name.as_str().starts_with(prefix.as_str());
        let from = match &after {
            Some(after) if after > prefix && !begins(after) => continue,
            Some(after) if begins(after) => after.clone(),
            Some(_) | None => {
                // A start behind the prefix would leave out the queue whose name is the prefix.
                found.extend(app.ask(Op::queue(prefix.clone())).await?.filter(exists));
                prefix.clone()
            }
        };
        let wanted = limit.saturating_sub(found.len());
        if wanted > 0 {
            let more = page(app, Some(from), wanted).await?;
            found.extend(more.into_iter().take_while(|queue| begins(&queue.name)));
        }
        found.truncate(limit);
        if found.len() == limit {
            break;
        }
    }
    Ok(found)
}

/// The filter of a list's query.
fn filter_of(call: &Call) -> Result<BulkFilter, Problem> {
    let instant = |name| match call.param(name)? {
        None => Ok(None),
        Some(text) => rfc3339::parse(&text).map(|at| Some(at.0)).map_err(|bad| Problem::field(name, bad)),
    };
    let filter = BulkFilter {
        due_from: instant("due_from")?,
        due_to: instant("due_to")?,
        key_prefix: call.param("key_prefix")?.map(Cow::into_owned),
        headers: call.params_of(HEADER)?.into_iter().collect(),
        state: call.param("state")?.map(|word| any_state(&word)).transpose()?,
        dead_reason: dead_reason(call.param("reason")?.as_deref(), call.param("dead_reason")?.as_deref())?,
        dead_note: call.param("dead_note")?.map(Cow::into_owned),
        note: call.param("note")?.map(Cow::into_owned),
    };
    if filter.state.is_some_and(|state| state != State::Dead) {
        for field in ["reason", "note", "dead_reason", "dead_note"] {
            if call.param(field)?.is_some() {
                return Err(Problem::field(field, "is for dead messages alone"));
            }
        }
    }
    Ok(filter)
}

/// The reason of a filter, by either of its names.
pub(super) fn dead_reason(
    reason: Option<&str>,
    dead_reason: Option<&str>,
) -> Result<Option<DeadReason>, Problem> {
    let (field, word) = match (reason, dead_reason) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err(Problem::field("reason", "is dead_reason; give one of them")),
        (Some(word), None) => ("reason", word),
        (None, Some(word)) => ("dead_reason", word),
    };
    let found = DeadReason::ALL.into_iter().find(|reason| reason.as_str() == word);
    let what = "must be max_attempts, buried or expired; what a nack said is its note";
    found.map(Some).ok_or_else(|| Problem::field(field, what))
}

/// A state of messages that a list may have: also that of done ones.
fn any_state(word: &str) -> Result<State, Problem> {
    if word == State::Done.as_str() {
        return Ok(State::Done);
    }
    state(word).map_err(|_| Problem::field("state", "must be scheduled, ready, leased, dead or done"))
}

pub(super) fn state(word: &str) -> Result<State, Problem> {
    State::ALL
        .into_iter()
        .find(|state| state.as_str() == word)
        .ok_or_else(|| Problem::field("state", "must be scheduled, ready, leased or dead"))
}
