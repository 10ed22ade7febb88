//! A message by its id or its key: get, cancel, postpone, fire, replay; and its present state in JSON.

use axum::http::StatusCode;
use duewheel::core::engine::{Applied, ChangeRefusal, DedupeId, Edit, Op, Outline, Target, View};
use duewheel::core::message::{DeadReason, Expiry, Headers, MaxAttempts, Options, PastAttempt};
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
use super::{Answer, App, answer, held, reply, target};
use crate::auth::{Caller, Scope};
use crate::error::{ErrorCode, Problem};
use crate::json::{
    Base64Text, Elements, HeaderPairs, IdText, InstantText, KeyText, LevelText, QueueText, line,
};
use crate::schema::{
    AnyJsonSchema, Base64Schema, DeadReasonSchema, DelaySchema, DoneOutcomeSchema, EndedSchema,
    InstantSchema, KeySchema, MessageStateSchema, StateSchema, TargetUrlSchema,
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
    Ok(reply(StatusCode::OK, &CancelledAnswer::of(&was)))
}

answer! {
    /// A cancelled message.
    #[schemars(rename = "Cancelled")]
    CancelledAnswer<'a> of (was: &'a Applied<Box<Outline>>) {
        result: CancelledWord = CancelledWord::Cancelled,
        id: IdText = IdText(was.id),
        queue: QueueText<'a> = QueueText(was.queue.as_str()),
        key: Option<KeyText<'a>> = was.key.as_ref().map(|key| KeyText(key.as_str())),
        durability: LevelText = LevelText(was.level),
    }
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

answer! {
    /// The members of a message that only its producer can change.
    ContentAnswer<'a> of (message: &'a MessageContent) with {
        let (body, body_base64) = match std::str::from_utf8(&message.body) {
            Ok(text) => (Some(text), None),
            Err(_) => (None, Some(Base64Text(&message.body))),
        };
    } {
        id: IdText = IdText(message.id),
        queue: QueueText<'a> = QueueText(message.queue.as_str()),
        key: Option<KeyText<'a>> = message.key.as_ref().map(|key| KeyText(key.as_str())),
        /// The body, if it is UTF-8 text.
        ?body: &'a str = body,
        /// The body, if it is not UTF-8 text.
        ?body_base64: Base64Text<'a> = body_base64,
        headers: HeaderPairs<'a> = HeaderPairs(&message.headers),
        /// Where it is sent instead of to the target of its queue.
        #[schemars(with = "Option<TargetUrlSchema>")]
        ?target_url: &'a str = MessageUrl::of(message),
    }
}

answer! {
    /// The present state of a message. It has `body`, or `body_base64` if the bytes are not UTF-8 text.
    #[schemars(rename = "Message")]
    MessageAnswer<'a> of (view: &'a View) with {
        let (done, dead) = match view.dead {
            Some((DeadReason::Done(outcome), at)) => (Some((outcome, at)), None),
            dead => (None, dead),
        };
    } {
        #[serde(flatten)]
        content: ContentAnswer<'a> = ContentAnswer::of(&view.message),
        #[schemars(with = "MessageStateSchema")]
        state: &'static str = view.state.as_str(),
        /// How it ended, if it is done.
        #[schemars(with = "Option<DoneOutcomeSchema>")]
        ?outcome: &'static str = done.map(|(outcome, _)| outcome.as_str()),
        /// The result that its ack brought, if it is done.
        #[schemars(with = "Option<AnyJsonSchema>")]
        ?result: &'a RawValue = done.and(view.message.result()).and_then(|result| serde_json::from_str(result).ok()),
        /// When it ended, if it is done.
        ?ended_at: InstantText = done.map(|(_, at)| InstantText(at)),
        due_at: InstantText = InstantText(view.due_at),
        /// Milliseconds until it is due; 0 when it is.
        due_in_ms: u64 = view.due_in_ms,
        /// Grants so far.
        attempt: u32 = view.attempt,
        /// Grants of these that do not count against `max_attempts`.
        forgiven: u32 = view.forgiven,
        max_attempts: u32 = view.max_attempts,
        /// The generation, which each change by the producer raises.
        generation: u32 = view.generation,
        /// Priority; lower is granted first.
        priority: u32 = view.priority,
        lease_ms: u64 = view.lease_ms,
        enqueued_at: InstantText = InstantText(view.message.enqueued_at),
        /// The deadline of the lease, while it is leased.
        ?lease_until: InstantText = view.lease_until.map(InstantText),
        /// The message that has taken its key while it was leased: it is not granted again.
        ?superseded_by: IdText = view.marks.superseded_by.map(IdText),
        #[schemars(with = "Option<DeadReasonSchema>")]
        ?dead_reason: &'static str = dead.map(|(reason, _)| reason.as_str()),
        ?dead_at: InstantText = dead.map(|(_, at)| InstantText(at)),
        /// When it expires, if it does.
        ?expires_at: InstantText = view.expires_at.map(InstantText),
        /// Settings that the message has itself. All others are its queue's.
        #[serde(skip_serializing_if = "OwnSettingsAnswer::is_empty")]
        own: OwnSettingsAnswer = OwnSettingsAnswer::of(&view.message.options),
        /// The last attempts that have ended.
        history: Elements<'a, PastAttempt, PastAttemptAnswer<'a>> = Elements(&view.history, PastAttemptAnswer::of),
        /// The last ten attempts to deliver it to a target, as far as they are kept; only where one message is asked
        /// for.
        ?deliveries: Vec<DeliveryAnswer> = None,
    }
}

answer! {
    /// The settings that a message has itself.
    #[schemars(rename = "OwnSettings")]
    OwnSettingsAnswer of (options: &Options) with {
        let (expires_in_ms, expires_at) = match options.expiry {
            Some(Expiry::In(ms)) => (Some(ms), None),
            Some(Expiry::At(at)) => (None, Some(InstantText(at))),
            None => (None, None),
        };
    } {
        ?lease_ms: u64 = options.lease_ms,
        ?max_attempts: u32 = options.max_attempts.map(|n| n.count()),
        ?backoff: BackoffAnswer = options.backoff.map(BackoffAnswer::of),
        /// The due time was drawn from this many milliseconds.
        ?spread_ms: u64 = options.spread_ms,
        /// The message expires this long after its due time.
        ?expires_in_ms: u64 = expires_in_ms,
        /// The message expires at this instant.
        ?expires_at: InstantText = expires_at,
    }
}

impl OwnSettingsAnswer {
    fn is_empty(&self) -> bool {
        let OwnSettingsAnswer { lease_ms, max_attempts, backoff, spread_ms, expires_in_ms, expires_at } =
            self;
        [lease_ms, spread_ms, expires_in_ms].into_iter().all(Option::is_none)
            && max_attempts.is_none()
            && backoff.is_none()
            && expires_at.is_none()
    }
}

answer! {
    /// An attempt that has ended.
    #[schemars(rename = "PastAttempt")]
    PastAttemptAnswer<'a> of (past: &'a PastAttempt) {
        attempt: u32 = past.attempt,
        granted_at: InstantText = InstantText(past.granted_at),
        ended_at: InstantText = InstantText(past.ended_at),
        #[schemars(with = "EndedSchema")]
        how: &'static str = past.how.as_str(),
        /// The reason that the consumer gave.
        note: &'a str = &past.note,
    }
}

answer! {
    /// The state of a message after a change, without its body, headers and history.
    #[schemars(rename = "Outline")]
    OutlineAnswer<'a> of (changed: &'a Applied<Box<Outline>>) with {
        let outline = &changed.what;
    } {
        id: IdText = IdText(outline.id),
        queue: QueueText<'a> = QueueText(outline.queue.as_str()),
        key: Option<KeyText<'a>> = outline.key.as_ref().map(|key| KeyText(key.as_str())),
        #[schemars(with = "StateSchema")]
        state: &'static str = outline.state.as_str(),
        due_at: InstantText = InstantText(outline.due_at),
        /// Milliseconds until it is due; 0 when it is.
        due_in_ms: u64 = outline.due_in_ms,
        /// Grants so far.
        attempt: u32 = outline.attempt,
        max_attempts: u32 = outline.max_attempts,
        /// The generation, which each change by the producer raises.
        generation: u32 = outline.generation,
        /// Priority; lower is granted first.
        priority: u32 = outline.priority,
        lease_ms: u64 = outline.lease_ms,
        enqueued_at: InstantText = InstantText(outline.enqueued_at),
        durability: LevelText = LevelText(changed.level),
    }
}
