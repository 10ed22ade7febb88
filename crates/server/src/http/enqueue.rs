//! `POST /v1/queues/{queue}/messages`: enqueues one message, or one for each line.

use axum::http::{HeaderMap, HeaderValue};
use duewheel::core::engine::{Answered, Enqueued};
use duewheel::core::{Key, QueueName};

use super::call::{BodyFormat, Call};
use super::enqueued::{EnqueuedAnswer, status};
use super::line::EnqueueLine;
use super::traced::Sending;
use super::{Answer, ndjson, reply, strict, target_url};
use crate::error::Problem;

/// The header that is another way to give the `dedupe_id` of a single message.
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

pub(crate) async fn enqueue(mut call: Call) -> Answer {
    call.app.accepts()?;
    let queue = call.queue()?;
    let idempotency_key = idempotency_key(call.headers(), call.app.policy.max_dedupe_id)?;
    if call.content() == BodyFormat::Lines {
        if idempotency_key.is_some() {
            let why = "is for a single message; a message on a line has dedupe_id";
            return Err(Problem::field(IDEMPOTENCY_KEY, why));
        }
        return ndjson::enqueue(call, queue).await;
    }
    let mut sending = Sending::begin(&call, &queue);
    let done = enqueue_one(&mut call, &queue, idempotency_key, &mut sending).await;
    match &done {
        Ok((done, _)) => sending.accepted(done.id),
        Err(problem) => sending.refused(problem),
    }
    let (done, key) = done?;
    let mut response = reply(status(&done), &EnqueuedAnswer::of(&done, &queue, key.as_ref()));
    if done.answered == Answered::Before {
        response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Enqueues a single message; also gives its key.
async fn enqueue_one(
    call: &mut Call,
    queue: &QueueName,
    idempotency_key: Option<Box<str>>,
    sending: &mut Sending,
) -> Result<(Enqueued, Option<Key>), Problem> {
    let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
    let (mut message, time) = strict::parse::<EnqueueLine<'_>>(&bytes)?.into_enqueue(queue)?;
    drop(bytes);
    sending.mark(&mut message);
    if let Some(id) = idempotency_key {
        if message.dedupe_id.as_ref().is_some_and(|given| *given != id) {
            return Err(Problem::field(IDEMPOTENCY_KEY, "differs from dedupe_id; give one of the two"));
        }
        message.dedupe_id = Some(id);
    }
    if target_url::is_in(&message) {
        target_url::check(&call.app, &call.caller, queue).await?;
    }
    let key = message.key.clone();
    let done = call.app.ask(message).await?.map_err(|refusal| Problem::from_enqueue(refusal, time))?;
    Ok((done, key))
}

/// The value of the header `Idempotency-Key`, as it is: quotes are a part of it.
fn idempotency_key(headers: &HeaderMap, max: usize) -> Result<Option<Box<str>>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let no = |what: &str| Err(Problem::field(IDEMPOTENCY_KEY, what));
    if values.next().is_some() {
        return no("is there twice");
    }
    match std::str::from_utf8(value.as_bytes()) {
        Err(_) => no("is not UTF-8"),
        Ok("") => no("must not be empty"),
        Ok(text) if text.len() > max => no(&format!("must have at most {max} bytes")),
        Ok(text) => Ok(Some(text.into())),
    }
}
