//! A message by its id or its key: get, cancel, postpone, fire, replay; and its present state in JSON.

use axum::http::StatusCode;
use duewheel::core::engine::{Applied, ChangeRefusal, DedupeId, Edit, Op, Outline, Target, View};
use duewheel::core::message::{DeadReason, Expiry, Headers, MaxAttempts, Options, PastAttempt};
use duewheel::core::policy::Backoff;
use duewheel::core::{Key, MessageContent};
use duewheel_delivery::{MessageUrl, deliveries};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::answer::AnswerPermit;
use super::call::Call;
use super::enqueue::{accepted, idempotency_key};
use super::line::{PastWord, body, dedupe_id, headers, when};
use super::queue_view::BackoffAnswer;
use super::strict::{self, Given, Positive, Strings, Text, U32_MAX, Whole};
use super::target::DeliveryAnswer;
use super::{Answer, App, held, reply, target};
use crate::auth::{Caller, Scope};
use crate::error::{ErrorCode, Problem};
use crate::json::{Base64Text, Elements, HeaderPairs, IdText, InstantText, line};
use crate::schema::{
    AnyJsonSchema, Base64Schema, DeadReasonSchema, DelaySchema, DoneOutcomeSchema, EndedSchema,
    InstantSchema, KeySchema, LevelSchema, MessageStateSchema, QueueSchema, StateSchema, TargetUrlSchema,
};
use crate::span::SpanText;

/// How often a change of headers is tried whose message is changed by others at the same time.
const TRIES: u32 = 5;

pub(crate) async fn get(call: Call) -> Answer {
    let target = call.message()?;
    let room = room(&call.app).await?;
    let found = recall(&call.app, &call.caller, target).await?;
    let mut answer = MessageAnswer::of(&found);
    answer.deliveries = Some(deliveries(&found).into_iter().map(DeliveryAnswer::of).collect());
    let json = line(found.weight() + 512, &answer);
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
    /// Makes a repeated replay return the first answer, as long as the queue remembers it.
    #[schemars(length(min = 1, max = 256), extend("format" = "duewheel-key"))]
    dedupe_id: Option<String>,
}

pub(crate) async fn replay(mut call: Call) -> Answer {
    call.caller.need(Scope::Enqueue)?;
    call.app.accepts()?;
    let id = call.id()?;
    let idempotency_key = idempotency_key(call.headers(), call.app.policy.max_dedupe_id)?;
    let asked: ReplayRequest = call.json(call.app.policy.max_batch_bytes).await?;
    let dedupe_id = dedupe_id(asked.dedupe_id.as_deref(), idempotency_key)?;
    let key = asked.key.map(|key| Key::new(&key)).transpose();
    let key = key.map_err(|what| Problem::field("key", what))?;
    let _room = room(&call.app).await?;
    let found = recall(&call.app, &call.caller, Target::Id(id)).await?;
    let Some(mut message) = duewheel::replay_of(&found, key.clone(), call.app.client.now().wall) else {
        return Err(Problem::new(
            ErrorCode::NotDone,
            "only a done or dead message can be replayed; this one is pending",
        ));
    };
    message.dedupe_id = dedupe_id;
    let queue = message.queue.clone();
    if target::has_url(&message) {
        target::check_url(&call.app, &call.caller, &queue).await?;
    }
    let done = call.app.ask(message).await?.map_err(|refusal| Problem::from_enqueue(refusal, "id"))?;
    Ok(accepted(&done, &queue, key.as_ref()))
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
pub(super) fn fate_of_id(forget: Option<bool>) -> DedupeId {
    if forget == Some(true) { DedupeId::Freed } else { DedupeId::Stays }
}

pub(crate) async fn cancel(mut call: Call) -> Answer {
    let target = call.message()?;
    let asked: CancelRequest = call.json(call.app.policy.max_batch_bytes).await?;
    let was = call.app.ask(Op::cancel_with(target, fate_of_id(asked.forget_dedupe), None)).await?;
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
    #[serde(default)]
    #[schemars(with = "Option<TargetUrlSchema>")]
    target_url: Given<Text<'a>>,
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

pub(crate) async fn postpone(mut call: Call) -> Answer {
    let target = call.message()?;
    let (asked, time) = {
        let bytes = call.json_bytes(call.app.max_single_bytes()).await?;
        let asked: PostponeRequest<'_> = strict::parse(&bytes)?;
        let (when, time) = when(asked.delay_ms, asked.delay, asked.due_at, asked.past)?.unzip();
        let headers = asked.headers.map(|given| headers(given.0, asked.json));
        headers.as_ref().map_or(Ok(()), target::check_headers)?;
        let url = asked.target_url.0.as_ref();
        let url = url.map(|url| url.as_ref().map(target::read_url).transpose()).transpose()?;
        let edit = Edit {
            when,
            body: body(asked.body, asked.json, asked.body_base64)?,
            headers,
            priority: asked.priority.map(Whole::get),
            max_attempts: asked.max_attempts.and_then(|n| MaxAttempts::new(n.get())),
            lease_ms: strict::either(asked.lease_ms, asked.lease, "lease")?,
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
            target::check_url(app, caller, &message.queue).await?;
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
            Some(Some(url)) => target::put_url(&mut headers, url),
            Some(None) => {}
            None => headers.extend(message.headers.iter().filter(|header| !is_other(header)).cloned()),
        }
        headers
    }
}

pub(crate) async fn fire(mut call: Call) -> Answer {
    let target = call.message()?;
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

/// The members of a message that only its producer can change.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct ContentAnswer<'a> {
    pub(super) id: IdText,
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    #[schemars(with = "Option<KeySchema>")]
    pub(super) key: Option<&'a str>,
    /// The body, if it is UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<&'a str>,
    /// The body, if it is not UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) body_base64: Option<Base64Text<'a>>,
    pub(super) headers: HeaderPairs<'a>,
    /// Where it is sent instead of to the target of its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TargetUrlSchema>")]
    pub(super) target_url: Option<&'a str>,
}

impl<'a> ContentAnswer<'a> {
    pub(crate) fn of(message: &'a MessageContent) -> Self {
        let (body, body_base64) = match std::str::from_utf8(&message.body) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(Base64Text(&message.body))),
        };
        ContentAnswer {
            id: IdText(message.id),
            queue: message.queue.as_str(),
            key: message.key.as_ref().map(|key| key.as_str()),
            body,
            body_base64,
            headers: HeaderPairs(&message.headers),
            target_url: MessageUrl::of(message),
        }
    }
}

/// The present state of a message. It has `body`, or `body_base64` if the bytes are not UTF-8 text.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Message")]
pub(crate) struct MessageAnswer<'a> {
    #[serde(flatten)]
    pub(super) content: ContentAnswer<'a>,
    #[schemars(with = "MessageStateSchema")]
    pub(super) state: &'static str,
    /// How it ended, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DoneOutcomeSchema>")]
    pub(super) outcome: Option<&'static str>,
    /// The result that its ack brought, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AnyJsonSchema>")]
    pub(super) result: Option<&'a RawValue>,
    /// When it ended, if it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ended_at: Option<InstantText>,
    pub(super) due_at: InstantText,
    /// Milliseconds until it is due; 0 when it is.
    pub(super) due_in_ms: u64,
    /// Grants so far.
    pub(super) attempt: u32,
    /// Grants of these that do not count against `max_attempts`.
    pub(super) forgiven: u32,
    pub(super) max_attempts: u32,
    /// The generation, which each change by the producer raises.
    pub(super) generation: u32,
    /// Priority; lower is granted first.
    pub(super) priority: u32,
    pub(super) lease_ms: u64,
    pub(super) enqueued_at: InstantText,
    /// The deadline of the lease, while it is leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_until: Option<InstantText>,
    /// The message that has taken its key while it was leased: it is not granted again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) superseded_by: Option<IdText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DeadReasonSchema>")]
    pub(super) dead_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dead_at: Option<InstantText>,
    /// When it expires, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<InstantText>,
    /// Settings that the message has itself. All others are its queue's.
    #[serde(skip_serializing_if = "OwnSettingsAnswer::is_empty")]
    pub(super) own: OwnSettingsAnswer,
    /// The last attempts that have ended.
    pub(super) history: Elements<'a, PastAttempt, PastAttemptAnswer<'a>>,
    /// The last ten attempts to deliver it to a target, as far as they are kept; only where one message is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deliveries: Option<Vec<DeliveryAnswer>>,
}

impl<'a> MessageAnswer<'a> {
    pub(crate) fn of(view: &'a View) -> Self {
        let (done, dead) = match view.dead {
            Some((DeadReason::Done(outcome), at)) => (Some((outcome, at)), None),
            dead => (None, dead),
        };
        MessageAnswer {
            content: ContentAnswer::of(&view.message),
            state: view.state.as_str(),
            outcome: done.map(|(outcome, _)| outcome.as_str()),
            result: done.and(view.message.result()).and_then(|result| serde_json::from_str(result).ok()),
            ended_at: done.map(|(_, at)| InstantText(at)),
            due_at: InstantText(view.due_at),
            due_in_ms: view.due_in_ms,
            attempt: view.attempt,
            forgiven: view.forgiven,
            max_attempts: view.max_attempts,
            generation: view.generation,
            priority: view.priority,
            lease_ms: view.lease_ms,
            enqueued_at: InstantText(view.message.enqueued_at),
            lease_until: view.lease_until.map(InstantText),
            superseded_by: view.marks.superseded_by.map(IdText),
            dead_reason: dead.map(|(reason, _)| reason.as_str()),
            dead_at: dead.map(|(_, at)| InstantText(at)),
            expires_at: view.expires_at.map(InstantText),
            own: OwnSettingsAnswer::of(&view.message.options),
            history: Elements(&view.history, PastAttemptAnswer::of),
            deliveries: None,
        }
    }
}

/// The settings that a message has itself.
#[derive(Debug, Default, JsonSchema, Serialize)]
#[schemars(rename = "OwnSettings")]
pub(crate) struct OwnSettingsAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backoff: Option<BackoffAnswer>,
    /// The due time was drawn from this many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) spread_ms: Option<u64>,
    /// The message expires this long after its due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_in_ms: Option<u64>,
    /// The message expires at this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<InstantText>,
}

impl OwnSettingsAnswer {
    fn of(options: &Options) -> Self {
        OwnSettingsAnswer {
            lease_ms: options.lease_ms,
            max_attempts: options.max_attempts.map(|n| n.count()),
            backoff: options.backoff.map(|Backoff { min_ms, max_ms }| BackoffAnswer { min_ms, max_ms }),
            spread_ms: options.spread_ms,
            expires_in_ms: match options.expiry {
                Some(Expiry::In(ms)) => Some(ms),
                Some(Expiry::At(_)) | None => None,
            },
            expires_at: match options.expiry {
                Some(Expiry::At(at)) => Some(InstantText(at)),
                Some(Expiry::In(_)) | None => None,
            },
        }
    }

    fn is_empty(&self) -> bool {
        let OwnSettingsAnswer { lease_ms, max_attempts, backoff, spread_ms, expires_in_ms, expires_at } =
            self;
        [lease_ms, spread_ms, expires_in_ms].into_iter().all(Option::is_none)
            && max_attempts.is_none()
            && backoff.is_none()
            && expires_at.is_none()
    }
}

/// An attempt that has ended.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "PastAttempt")]
pub(crate) struct PastAttemptAnswer<'a> {
    pub(super) attempt: u32,
    pub(super) granted_at: InstantText,
    pub(super) ended_at: InstantText,
    #[schemars(with = "EndedSchema")]
    pub(super) how: &'static str,
    /// The reason that the consumer gave.
    pub(super) note: &'a str,
}

impl<'a> PastAttemptAnswer<'a> {
    fn of(past: &'a PastAttempt) -> Self {
        PastAttemptAnswer {
            attempt: past.attempt,
            granted_at: InstantText(past.granted_at),
            ended_at: InstantText(past.ended_at),
            how: past.how.as_str(),
            note: &past.note,
        }
    }
}

/// The state of a message after a change, without its body, headers and history.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Outline")]
pub(crate) struct OutlineAnswer<'a> {
    pub(super) id: IdText,
    #[schemars(with = "QueueSchema")]
    pub(super) queue: &'a str,
    #[schemars(with = "Option<KeySchema>")]
    pub(super) key: Option<&'a str>,
    #[schemars(with = "StateSchema")]
    pub(super) state: &'static str,
    pub(super) due_at: InstantText,
    /// Milliseconds until it is due; 0 when it is.
    pub(super) due_in_ms: u64,
    /// Grants so far.
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    /// The generation, which each change by the producer raises.
    pub(super) generation: u32,
    /// Priority; lower is granted first.
    pub(super) priority: u32,
    pub(super) lease_ms: u64,
    pub(super) enqueued_at: InstantText,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
}

impl<'a> OutlineAnswer<'a> {
    pub(crate) fn of(changed: &'a Applied<Box<Outline>>) -> Self {
        let outline = &changed.what;
        OutlineAnswer {
            id: IdText(outline.id),
            queue: outline.queue.as_str(),
            key: outline.key.as_ref().map(|key| key.as_str()),
            state: outline.state.as_str(),
            due_at: InstantText(outline.due_at),
            due_in_ms: outline.due_in_ms,
            attempt: outline.attempt,
            max_attempts: outline.max_attempts,
            generation: outline.generation,
            priority: outline.priority,
            lease_ms: outline.lease_ms,
            enqueued_at: InstantText(outline.enqueued_at),
            durability: changed.level.as_str(),
        }
    }
}
