//! A message by its id or its key: get, cancel, postpone, fire, replay.

use axum::http::StatusCode;
use duewheel::core::engine::{Applied, ChangeRefusal, DedupeId, Edit, Op, Outline, Target, View};
use duewheel::core::message::{Headers, MaxAttempts};
use duewheel::core::{Key, MessageContent};
use duewheel_delivery::{MessageUrl, deliveries};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer_budget::AnswerPermit;
use super::call::Call;
use super::enqueued::{EnqueuedAnswer, status};
use super::limits;
use super::line::{PastWord, body, headers, when};
use super::strict::{self, Positive, Strings, Text, U32_MAX, Whole};
use super::target_url;
use super::target_view::DeliveryAnswer;
use super::view::{MessageAnswer, OutlineAnswer};
use super::{Answer, App, held, reply};
use crate::auth::{Caller, Scope};
use crate::error::{ErrorCode, Problem};
use crate::json::{IdText, written};
use crate::schema::{
    AnyJsonSchema, Base64Schema, DelaySchema, InstantSchema, KeySchema, LevelSchema, QueueSchema,
    TargetUrlSchema,
};
use crate::span::SpanText;

/// How often a change of headers is tried whose message is changed by others at the same time.
const TRIES: u32 = 5;

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
    let found = recall(&call.app, &call.caller, target).await?;
    let mut answer = MessageAnswer::of(&found);
    let attempts = match found.attempt {
        0 => Vec::new(),
        _ => deliveries(&call.app.client, found.message.id).await?,
    };
    answer.deliveries = Some(attempts.into_iter().map(DeliveryAnswer::of).collect());
    let json = written(found.message.weight() + 512, &answer);
    Ok(held(StatusCode::OK, room, json))
}

/// A message that is pending, or else one that is done, if the caller's token covers its queue.
async fn recall(app: &App, caller: &Caller, target: Target) -> Result<Box<View>, Problem> {
    let found = app.ask(Op::recall(target)).await?;
    found.filter(|found| caller.reaches(&found.message.queue)).ok_or_else(Problem::message_not_found)
}

/// How a message is replayed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Replay")]
pub(crate) struct ReplayRequest {
    /// The key of the new message; without it, it has none.
    #[schemars(with = "Option<KeySchema>")]
    key: Option<String>,
}

pub(crate) async fn replay(mut call: Call) -> Answer {
    call.caller.need(Scope::Enqueue)?;
    call.app.accepts()?;
    let id = call.id()?;
    let asked: ReplayRequest = call.json(call.app.policy.max_batch_bytes).await?;
    let key = asked.key.map(|key| Key::new(&key)).transpose();
    let key = key.map_err(|what| Problem::field("key", what))?;
    let _room = room(&call.app).await?;
    let found = recall(&call.app, &call.caller, Target::Id(id)).await?;
    let Some(message) = duewheel::replay_of(&found, key.clone(), call.app.client.now().wall) else {
        return Err(Problem::new(
            ErrorCode::NotDone,
            "only a done or dead message can be replayed; this one is pending",
        ));
    };
    let queue = message.queue.clone();
    if target_url::is_in(&message) {
        target_url::check(&call.app, &call.caller, &queue).await?;
    }
    let done = call.app.ask(message).await?.map_err(|refusal| Problem::from_enqueue(refusal, "id"))?;
    Ok(reply(status(&done), &EnqueuedAnswer::of(&done, &queue, key.as_ref())))
}

/// How a message is cancelled.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Cancel")]
pub(crate) struct CancelRequest {
    /// The answer that is remembered for the `dedupe_id` of the message is forgotten, if the message is cancelled.
    forget_dedupe: Option<bool>,
}

/// The fate of a dedupe id by `forget_dedupe`.
pub(super) fn dedupe_id(forget: Option<bool>) -> DedupeId {
    if forget == Some(true) { DedupeId::Freed } else { DedupeId::Stays }
}

async fn cancel(mut call: Call, target: Target) -> Answer {
    let asked: CancelRequest = call.json(call.app.policy.max_batch_bytes).await?;
    let was = call.app.ask(Op::cancel_with(target, dedupe_id(asked.forget_dedupe))).await?;
    let was = was.map_err(|refusal| Problem::from_change(refusal, "due_at"))?;
    let answer = CancelledAnswer {
        result: CancelledWord::Cancelled,
        id: IdText(was.id),
        queue: was.queue.as_str(),
        key: was.key.as_ref().map(|key| key.as_str()),
        durability: was.level.as_str(),
    };
    Ok(reply(StatusCode::OK, &answer))
}

/// A cancelled message.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Cancelled")]
pub(crate) struct CancelledAnswer<'a> {
    pub(super) result: CancelledWord,
    pub(super) id: IdText,
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    #[schemars(with = "Option<KeySchema>")]
    pub(super) key: Option<&'a str>,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

/// The status of a cancelled message.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum CancelledWord {
    Cancelled,
}

/// The changes of a message that waits; at least one of its members besides `past` and `if_generation`. Members that
/// are left out stay as they are, including the due time. At most one of `delay_ms`, `delay` and `due_at`, and of
/// `body`, `json` and `body_base64`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Postpone", transform = crate::schema::postpone_rules)]
pub(crate) struct PostponeRequest<'a> {
    /// Due after this number of milliseconds from now; 0 for now.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    delay_ms: Option<Whole>,
    /// Due after this time from now.
    #[schemars(with = "Option<DelaySchema>")]
    delay: Option<SpanText>,
    /// Due at this instant.
    #[schemars(with = "Option<InstantSchema>")]
    due_at: Option<Text<'a>>,
    /// The handling of a `due_at` that has passed: refuse it (the default), make it due now (`fire`), or keep it.
    #[serde(default, deserialize_with = "strict::word")]
    past: Option<PastWord>,
    /// The body, if it is UTF-8 text.
    body: Option<Text<'a>>,
    /// The body as a JSON value: its bytes as they are sent here. `headers`, if they are given, get `content-type:
    /// application/json`, unless they have a content type; else the headers stay.
    #[serde(borrow)]
    #[schemars(with = "Option<AnyJsonSchema>")]
    json: Option<&'a RawValue>,
    /// The body, if it is not UTF-8 text.
    #[schemars(with = "Option<Base64Schema>")]
    body_base64: Option<Text<'a>>,
    /// Headers that replace all others; an empty object removes them. `target_url` is not one of them.
    headers: Option<Strings>,
    /// The URL that the message is sent to instead of to the target of its queue; `null`: it goes to the target. Needs
    /// the scope `push-any`.
    #[serde(default, deserialize_with = "strict::given")]
    #[schemars(with = "Option<TargetUrlSchema>")]
    target_url: Option<Option<Text<'a>>>,
    /// Priority; lower is granted first.
    priority: Option<Whole<0, U32_MAX>>,
    max_attempts: Option<Whole<1, U32_MAX>>,
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    lease_ms: Option<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    lease: Option<SpanText>,
    /// The change is refused unless the message has this generation.
    if_generation: Option<Whole<0, U32_MAX>>,
}

async fn postpone(mut call: Call, target: Target) -> Answer {
    let (asked, time) = {
        let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
        let asked: PostponeRequest<'_> = strict::parse(&bytes)?;
        let (when, time) = when(asked.delay_ms, asked.delay, asked.due_at, asked.past)?.unzip();
        let headers = asked.headers.map(|given| headers(given.0, asked.json));
        headers.as_ref().map_or(Ok(()), target_url::check_headers)?;
        let url = asked.target_url.as_ref();
        let url = url.map(|url| url.as_ref().map(target_url::read).transpose()).transpose()?;
        let edit = Edit {
            when,
            body: body(asked.body, asked.json, asked.body_base64)?,
            headers,
            priority: asked.priority.map(Whole::get),
            max_attempts: asked.max_attempts.and_then(|n| MaxAttempts::new(n.get())),
            lease_ms: limits::either(asked.lease_ms, asked.lease, "lease")?,
        };
        let if_generation = asked.if_generation.map(Whole::get);
        (UrlChange { edit, if_generation, url }, time.unwrap_or("due_at"))
    };
    if asked.url.is_some() || asked.edit.headers.is_some() {
        return change_headers((&call.app, &call.caller), target, &asked, time).await;
    }
    let UrlChange { edit, if_generation, url: _ } = asked;
    changed(call.app.ask(Op::postpone(target, Box::new(edit), if_generation)).await?, time)
}

/// A change of headers, of the URL, which is one of them, or of both.
struct UrlChange {
    /// The other changes, and the headers that replace all but the URL.
    edit: Edit,
    if_generation: Option<u32>,
    /// `None`: it stays as it is. `Some(None)`: the message has none any more.
    url: Option<Option<MessageUrl>>,
}

/// Applies it. What it does not change is taken from the message as it is.
async fn change_headers(
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
            target_url::check(app, caller, &message.queue).await?;
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
            Some(Some(url)) => target_url::put(&mut headers, url),
            Some(None) => {}
            None => headers.extend(message.headers.iter().filter(|header| !is_other(header)).cloned()),
        }
        headers
    }
}

async fn fire(mut call: Call, target: Target) -> Answer {
    let Nothing {} = call.json(call.app.policy.max_batch_bytes).await?;
    changed(call.app.ask(Op::fire(target)).await?, "due_at")
}

/// Nothing: the body may be left out.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Memory for an answer with one message.
pub(super) async fn room(app: &App) -> Result<AnswerPermit, Problem> {
    app.rooms.take(app.policy.max_body + app.policy.max_headers).await
}

fn changed(done: Result<Applied<Box<Outline>>, ChangeRefusal>, time: &'static str) -> Answer {
    let now = done.map_err(|refusal| Problem::from_change(refusal, time))?;
    Ok(reply(StatusCode::OK, &OutlineAnswer::of(&now)))
}
