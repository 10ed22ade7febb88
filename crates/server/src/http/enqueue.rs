//! `POST /v1/queues/{queue}/messages`: one message, or a message a line.

use axum::http::StatusCode;
use duewheel::core::engine::{Enqueued, Op, Reply};
use duewheel::core::record::Created;
use duewheel::core::{Key, QueueName};

use super::call::{Call, Content};
use super::line::Line;
use super::{Answer, Json, json, ndjson, strict};
use crate::error::Problem;

pub(crate) async fn enqueue(mut call: Call) -> Answer {
    call.app.accepts()?;
    let queue = call.queue()?;
    if call.content() == Content::Lines {
        return ndjson::enqueue(call, queue).await;
    }
    let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
    let (message, time) = strict::parse::<Line<'_>>(&bytes)?.into_enqueue(&queue)?;
    drop(bytes);
    let key = message.key.clone();
    match call.app.ask(Op::Enqueue(Box::new(message))).await? {
        Reply::Enqueue(Ok(done)) => {
            let mut out = Json::with_capacity(256);
            out.open();
            write(&mut out, &done, &queue, key.as_ref());
            out.close();
            Ok(json(status(&done), out))
        }
        Reply::Enqueue(Err(refusal)) => Err(Problem::from_enqueue(refusal, time)),
        _ => Err(Problem::internal()),
    }
}

/// 201 for a new message, 200 for one that was there.
pub(crate) fn status(done: &Enqueued) -> StatusCode {
    match done.created {
        Created::New | Created::Replacing(_) => StatusCode::CREATED,
        Created::Kept => StatusCode::OK,
    }
}

/// The members of an accepted enqueue's answer.
pub(crate) fn write(out: &mut Json, done: &Enqueued, queue: &QueueName, key: Option<&Key>) {
    out.id("id", done.id);
    out.text("queue", queue.as_str());
    out.text_or_null("key", key.map(Key::as_str));
    out.instant("due_at", done.due_at);
    out.number("generation", u64::from(done.generation));
    out.truth("created", done.created != Created::Kept);
    if let Created::Replacing(old) = done.created {
        out.id("replaced", old);
    }
    out.plain("durability", done.level.as_str());
}
