//! One message by its id or its key: look, cancel, postpone, fire.

use axum::http::StatusCode;
use axum::response::Response;
use duewheel::core::engine::{Edit, Op, Reply, Target, View};
use duewheel::core::message::MaxAttempts;
use serde::Deserialize;

use super::call::Call;
use super::line::{PastWord, body, when};
use super::room::Room;
use super::strict::{self, Positive, Strings, Text, U32_MAX, Whole};
use super::{Answer, App, Json, held, object, view};
use crate::error::Problem;

pub(crate) async fn get_by_id(call: Call) -> Answer {
    let target = Target::Id(call.id()?);
    get(call, target).await
}

pub(crate) async fn get_by_key(call: Call) -> Answer {
    let target = call.key()?;
    get(call, target).await
}

pub(crate) async fn cancel_by_id(call: Call) -> Answer {
    let target = Target::Id(call.id()?);
    cancel(call, target).await
}

pub(crate) async fn cancel_by_key(call: Call) -> Answer {
    let target = call.key()?;
    cancel(call, target).await
}

pub(crate) async fn postpone_by_id(call: Call) -> Answer {
    let target = Target::Id(call.id()?);
    postpone(call, target).await
}

pub(crate) async fn postpone_by_key(call: Call) -> Answer {
    let target = call.key()?;
    postpone(call, target).await
}

pub(crate) async fn fire_by_id(call: Call) -> Answer {
    let target = Target::Id(call.id()?);
    fire(call, target).await
}

pub(crate) async fn fire_by_key(call: Call) -> Answer {
    let target = call.key()?;
    fire(call, target).await
}

async fn get(call: Call, target: Target) -> Answer {
    let room = room(&call.app).await?;
    match call.app.ask(Op::Get { target }).await? {
        Reply::View(Some(found)) => Ok(shown(room, &found)),
        Reply::View(None) => Err(Problem::message_not_found()),
        _ => Err(Problem::internal()),
    }
}

async fn cancel(call: Call, target: Target) -> Answer {
    match call.app.ask(Op::Cancel { target }).await? {
        Reply::Change(Ok(was)) => Ok(object(StatusCode::OK, |out| {
            out.plain("result", "cancelled");
            out.id("id", was.id);
            out.text("queue", was.queue.as_str());
            out.text_or_null("key", was.key.as_ref().map(|k| k.as_str()));
            out.plain("durability", was.level.as_str());
        })),
        Reply::Change(Err(refusal)) => Err(Problem::from_change(refusal, "due_at")),
        _ => Err(Problem::internal()),
    }
}

/// The body of a PATCH.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Postpone<'a> {
    delay_ms: Option<Whole>,
    #[serde(borrow)]
    delay: Option<Text<'a>>,
    due_at: Option<Text<'a>>,
    past: Option<PastWord>,
    body: Option<Text<'a>>,
    body_base64: Option<Text<'a>>,
    headers: Option<Strings>,
    priority: Option<Whole<0, U32_MAX>>,
    max_attempts: Option<Whole<1, U32_MAX>>,
    lease_ms: Option<Positive>,
    if_generation: Option<Whole<0, U32_MAX>>,
}

async fn postpone(mut call: Call, target: Target) -> Answer {
    let (op, time) = {
        let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
        let asked: Postpone<'_> = strict::parse(&bytes)?;
        let (when, time) = when(asked.delay_ms, asked.delay, asked.due_at, asked.past)?.unzip();
        let edit = Box::new(Edit {
            when,
            body: body(asked.body, asked.body_base64)?,
            headers: asked.headers.map(|headers| headers.0),
            priority: asked.priority.map(Whole::get),
            max_attempts: asked.max_attempts.and_then(|n| MaxAttempts::new(n.get())),
            lease_ms: asked.lease_ms.map(|n| n.0),
        });
        let if_generation = asked.if_generation.map(Whole::get);
        (Op::Postpone { target, edit, if_generation }, time.unwrap_or("due_at"))
    };
    changed(call.app.ask(op).await?, time)
}

async fn fire(mut call: Call, target: Target) -> Answer {
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    changed(call.app.ask(Op::Fire { target }).await?, "due_at")
}

/// A body that may be empty, and says nothing if it is not.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// For an answer with one message in it.
async fn room(app: &App) -> Result<Room, Problem> {
    app.rooms.take(app.policy.max_body + app.policy.max_headers).await
}

fn shown(room: Room, view: &View) -> Response {
    let mut out = Json::with_capacity(view.message.weight() + 512);
    out.open();
    view::write(&mut out, view);
    out.close();
    held(StatusCode::OK, room, out)
}

fn changed(reply: Reply, time: &'static str) -> Answer {
    match reply {
        Reply::Change(Ok(now)) => Ok(object(StatusCode::OK, |out| {
            view::write_outline(out, &now);
            out.plain("durability", now.level.as_str());
        })),
        Reply::Change(Err(refusal)) => Err(Problem::from_change(refusal, time)),
        _ => Err(Problem::internal()),
    }
}
