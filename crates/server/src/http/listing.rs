//! Listings by page: the messages of a queue in due order, and all queues by name.

use axum::http::StatusCode;
use duewheel::core::engine::{ListCursor, Op, QueueView, View};
use duewheel::core::store::Cursor;
use duewheel::core::{MessageId, QueueName, State};
use duewheel::{ListPosition, ListPositions};
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::queue_view::QueueAnswer;
use super::view::MessageAnswer;
use super::{Answer, App, held, queue, reply, write_large};
use crate::error::Problem;
use crate::json::{Elements, written};

/// The number of messages of a page by default.
pub(crate) const MESSAGES: usize = 100;
/// The number of queues of a page by default.
pub(crate) const QUEUES: usize = 1_000;

pub(crate) async fn messages(call: Call) -> Answer {
    let queue = call.queue()?;
    let state = call.param("state")?.map(|word| state(&word)).transpose()?;
    let bad = || Problem::field("after", "must be the `next` of an earlier page");
    let shards = call.app.client.shards();
    let after = call.param("after")?.map(|text| read_positions(&text, shards).ok_or_else(bad)).transpose()?;
    let limit = call.count_param("limit", MESSAGES, call.app.policy.max_page)?;
    let room = call.app.rooms.take(call.app.policy.load_bytes.saturating_mul(2)).await?;
    let page = call.app.client.list(queue, state, after, limit).await?;
    let bytes: usize = page.views.iter().map(|v| v.message.weight() + 512).sum();
    let write = move || {
        let next = page.next.map(|next| write_positions(&next));
        written(
            bytes + 128,
            &MessagesAnswer { messages: Elements::new(&page.views, MessageAnswer::of), next },
        )
    };
    Ok(held(StatusCode::OK, room, write_large(bytes, write).await?))
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
                found.extend(app.ask(Op::queue(prefix.clone())).await?);
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

fn state(word: &str) -> Result<State, Problem> {
    State::ALL
        .into_iter()
        .find(|state| state.as_str() == word)
        .ok_or_else(|| Problem::field("state", "must be scheduled, ready, leased or dead"))
}

/// The text of a cursor, which clients only send back: a position for each shard, with `~` between them. A position is
/// two halves, each `-` or `time.id`; or `.` at the end of a shard.
fn write_positions(positions: &ListPositions) -> String {
    let half = |half: Option<Cursor>| half.map_or("-".to_owned(), |(time, id)| format!("{time}.{id}"));
    let position = |position: &ListPosition| match position {
        ListPosition::Behind(cursor) => format!("{}_{}", half(cursor.at), half(cursor.after)),
        ListPosition::End => ".".to_owned(),
    };
    positions.as_slice().iter().map(position).collect::<Vec<_>>().join("~")
}

/// The positions of this number of shards; `None` when the text is not a cursor.
fn read_positions(text: &str, shards: u32) -> Option<ListPositions> {
    fn digits(s: &str) -> Option<u64> {
        if s.bytes().all(|b| b.is_ascii_digit()) { s.parse().ok() } else { None }
    }
    fn half(s: &str) -> Option<Option<Cursor>> {
        if s == "-" {
            return Some(None);
        }
        let (time, id) = s.split_once('.')?;
        Some(Some((digits(time)?, MessageId(digits(id)?))))
    }
    fn position(s: &str) -> Option<ListPosition> {
        if s == "." {
            return Some(ListPosition::End);
        }
        let (at, after) = s.split_once('_')?;
        Some(ListPosition::Behind(ListCursor { at: half(at)?, after: half(after)? }))
    }
    let shards = usize::try_from(shards).ok()?;
    if text.split('~').take(shards + 1).count() != shards {
        return None;
    }
    text.split('~').map(position).collect::<Option<Vec<_>>>().map(ListPositions::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back() {
        let all = [
            ListPosition::START,
            ListPosition::Behind(ListCursor { at: Some((5, MessageId(7))), after: None }),
            ListPosition::Behind(ListCursor {
                at: Some((0, MessageId(0))),
                after: Some((u64::MAX, MessageId(u64::MAX))),
            }),
            ListPosition::End,
        ];
        for n in 1..=all.len() {
            let positions = ListPositions::new(all[..n].to_vec());
            let text = write_positions(&positions);
            for shards in 0..6 {
                let wanted = (shards as usize == n).then(|| positions.clone());
                assert_eq!(read_positions(&text, shards), wanted, "{text}, {shards} shards");
            }
        }
        let one = ListPositions::new(vec![all[1]]);
        assert_eq!(write_positions(&one), "5.7_-", "as it has always been with one shard");
        for bad in
            ["", "_", "-", "5.7", "5.7_", "5_7", "a.b_-", "+1.2_-", "-_-_-", "1.2.3_-", "-_-~", "~", ".."]
        {
            assert_eq!(read_positions(bad, 1), None, "{bad}");
            assert_eq!(read_positions(&format!("{bad}~-_-"), 2), None, "{bad}");
        }
    }
}
