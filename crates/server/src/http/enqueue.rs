//! `POST /v1/queues/{queue}/messages`: enqueues one message, or one for each line.

use super::call::{BodyFormat, Call};
use super::enqueued::{EnqueuedAnswer, status};
use super::line::EnqueueLine;
use super::{Answer, ndjson, reply, strict};
use crate::error::Problem;

pub(crate) async fn enqueue(mut call: Call) -> Answer {
    call.app.accepts()?;
    let queue = call.queue()?;
    if call.content() == BodyFormat::Lines {
        return ndjson::enqueue(call, queue).await;
    }
    let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
    let (message, time) = strict::parse::<EnqueueLine<'_>>(&bytes)?.into_enqueue(&queue)?;
    drop(bytes);
    let key = message.key.clone();
    let done = call.app.ask(message).await?.map_err(|refusal| Problem::from_enqueue(refusal, time))?;
    Ok(reply(status(&done), &EnqueuedAnswer::of(&done, &queue, key.as_ref())))
}
