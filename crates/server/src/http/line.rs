//! An enqueue request, validated and converted to the engine's types; and the answer to an accepted one.

use axum::http::StatusCode;
use bytes::Bytes;
use duewheel::core::engine::{Answered, Enqueue, Enqueued, IfExists, InitialState, Past, When};
use duewheel::core::message::{Expiry, Headers, MaxAttempts, Options, QueueLimit, State};
use duewheel::core::policy::{Backoff, OWN_DEDUPE};
use duewheel::core::record::Created;
use duewheel::core::{Key, QueueName};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::strict::{self, Object, Positive, Strings, Text, U32_MAX, Whole, words};
use super::{answer, target};
use crate::error::Problem;
use crate::json::{IdText, InstantText, KeyText, LevelText, QueueText};
use crate::rfc3339;
use crate::schema::{
    AnyJsonSchema, Base64Schema, DelaySchema, InstantSchema, KeySchema, StateSchema, TargetUrlSchema,
};
use crate::span::{self, SpanText};

/// The header that is another way to give the `dedupe_id` of a single message.
pub(super) const IDEMPOTENCY_KEY: &str = "Idempotency-Key";

/// A new message. Exactly one of `body`, `json` and `body_base64`, and exactly one of `delay_ms`, `delay` and `due_at`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Enqueue", transform = crate::schema::enqueue_rules)]
pub(crate) struct EnqueueLine<'a> {
    /// The body, if it is UTF-8 text.
    #[serde(borrow)]
    body: Option<Text<'a>>,
    /// The body as a JSON value: its bytes as they are sent here. The message gets the header `content-type:
    /// application/json`, unless `headers` has a content type.
    #[serde(borrow)]
    #[schemars(with = "Option<AnyJsonSchema>")]
    json: Option<&'a RawValue>,
    /// The body, if it is not UTF-8 text.
    #[schemars(with = "Option<Base64Schema>")]
    body_base64: Option<Text<'a>>,
    /// Due after this number of milliseconds; 0 for now.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    delay_ms: Option<Whole>,
    /// Due after this time.
    #[schemars(with = "Option<DelaySchema>")]
    delay: Option<SpanText>,
    /// Due at this instant.
    #[schemars(with = "Option<InstantSchema>")]
    due_at: Option<Text<'a>>,
    /// The handling of a `due_at` that has passed: refuse it (the default), make it due now (`fire`), or keep it.
    past: Option<PastWord>,
    /// The words from which `due_at` was computed, such as `1 month`: an enqueue that is repeated with its `dedupe_id` is
    /// compared by them, not by the instant.
    #[schemars(length(min = 1, max = 256))]
    due_words: Option<Text<'a>>,
    #[schemars(with = "Option<KeySchema>")]
    key: Option<Text<'a>>,
    /// What happens if the key is taken: reject, which is the default, keep the existing message, replace it unless it is
    /// leased, or supersede it: a leased one ends with its lease.
    if_exists: Option<IfExistsWord>,
    /// Makes a repeated enqueue return the first answer, as long as the queue remembers it.
    #[schemars(length(min = 1, max = 256), extend("format" = "duewheel-key"))]
    dedupe_id: Option<Text<'a>>,
    /// The answer is remembered for this number of milliseconds, in place of the queue's `dedupe_window_ms`; not longer
    /// than that. It needs a `dedupe_id`, or the header `Idempotency-Key`.
    #[schemars(extend("x-limit" = "max_dedupe_window_ms"))]
    dedupe_window_ms: Option<Positive>,
    /// `dedupe_window_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    dedupe_window: Option<SpanText>,
    /// Priority; lower is granted first.
    priority: Option<Whole<0, U32_MAX>>,
    #[schemars(extend("x-limit" = "max_lease_ms"))]
    lease_ms: Option<Positive>,
    /// `lease_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    lease: Option<SpanText>,
    /// Number of grants after which the message is dead; 4294967295 for never.
    max_attempts: Option<Whole<1, U32_MAX>>,
    headers: Option<Strings>,
    /// The message is sent to this URL instead of to the target of its queue, which must have one. Needs the scope
    /// `push-any`.
    #[schemars(with = "Option<TargetUrlSchema>")]
    target_url: Option<Text<'a>>,
    backoff: Option<Object<BackoffFields>>,
    /// The message is due at an instant of its own within this number of milliseconds from the due time on: `due_at` of
    /// the answer. It depends on the key, or else on the dedupe id, or else on the message.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    spread_ms: Option<Whole>,
    /// `spread_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    spread: Option<SpanText>,
    /// The message expires this number of milliseconds after its due time, and moves with it.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    expires_in_ms: Option<Positive>,
    /// `expires_in_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    expires_in: Option<SpanText>,
    /// The message expires at this instant, which is not before its due time; instead of `expires_in`.
    #[schemars(with = "Option<InstantSchema>")]
    expires_at: Option<Text<'a>>,
    /// The initial state of the message, if it differs from the one that the due time determines: for programs that
    /// move messages here from elsewhere.
    state: Option<StateWord>,
}

words! {
    /// The initial state of a message.
    #[schemars(inline)]
    StateWord { Dead "dead" }
}

words! {
    /// What happens with a due time that has passed.
    #[schemars(rename = "Past")]
    PastWord = Past { Refuse "refuse", Fire "fire", Keep "keep" }

    /// What happens if the key is taken.
    #[schemars(rename = "IfExists")]
    IfExistsWord = IfExists { Reject "reject", Keep "keep", Replace "replace", Supersede "supersede" }
}

/// The delay before the next attempt: it doubles from `min` to `max`, with jitter. Both are given, each as a number of
/// milliseconds or as text.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Backoff", transform = crate::schema::backoff_rules)]
pub(crate) struct BackoffFields {
    /// The delay after the first failed attempt.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    pub(super) min_ms: Option<Whole>,
    /// `min_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    pub(super) min: Option<SpanText>,
    /// The longest delay.
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    pub(super) max_ms: Option<Whole>,
    /// `max_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    pub(super) max: Option<SpanText>,
}

impl BackoffFields {
    pub(crate) fn check(self) -> Result<Backoff, Problem> {
        let end = |ms, text, name: &'static str| {
            let read = span::either(ms, text, name);
            let read = read.map_err(|what| Problem::field(format!("backoff.{name}"), what))?;
            read.ok_or_else(|| Problem::field(format!("backoff.{name}_ms"), "is missing"))
        };
        let min_ms = end(self.min_ms.map(|ms: Whole| ms.0), self.min, "min")?;
        let max_ms = end(self.max_ms.map(|ms: Whole| ms.0), self.max, "max")?;
        if min_ms > max_ms {
            return Err(Problem::field("backoff", "min_ms must not be above max_ms"));
        }
        Ok(Backoff { min_ms, max_ms })
    }
}

/// The field that determined the due time: a refusal names it.
pub(crate) type TimeField = &'static str;

impl EnqueueLine<'_> {
    /// Validates everything that does not need the engine. The `dedupe_id` may also be in the header of the request.
    pub(crate) fn into_enqueue(
        self,
        queue: &QueueName,
        idempotency_key: Option<Box<str>>,
    ) -> Result<(Enqueue, TimeField), Problem> {
        let body = body(self.body, self.json, self.body_base64)?
            .ok_or_else(|| Problem::field("body", "is missing; an empty one is \"\""))?;
        let (when, time) = when(self.delay_ms, self.delay, self.due_at, self.past)?
            .ok_or_else(|| Problem::field("delay_ms", "one of delay_ms, delay and due_at must be given"))?;
        let mut headers = headers(self.headers.map(|h| h.0).unwrap_or_default(), self.json);
        target::check_headers(&headers)?;
        if let Some(url) = &self.target_url {
            target::put_url(&mut headers, &target::read_url(url)?);
        }
        let window = if self.dedupe_window_ms.is_some() { "dedupe_window_ms" } else { "dedupe_window" };
        let dedupe_window_ms = strict::either(self.dedupe_window_ms, self.dedupe_window, "dedupe_window")?;
        let dedupe_id = dedupe_id(self.dedupe_id.as_ref().map(|id| &*id.0), idempotency_key)?;
        if dedupe_window_ms.is_some() && dedupe_id.is_none() {
            return Err(Problem::field(window, "needs a dedupe_id, which is remembered for so long"));
        }
        let enqueue = Enqueue {
            queue: queue.clone(),
            key: self.key.map(|k| Key::new(&k.0)).transpose().map_err(|what| Problem::field("key", what))?,
            body,
            headers,
            when,
            due_words: self.due_words.map(|words| due_words(words, time)).transpose()?,
            if_exists: self.if_exists.map(IfExists::from).unwrap_or_default(),
            dedupe_id,
            dedupe_window_ms,
            priority: self.priority.map(Whole::get),
            options: Options {
                lease_ms: strict::either(self.lease_ms, self.lease, "lease")?,
                max_attempts: self.max_attempts.and_then(|n| MaxAttempts::new(n.get())),
                queue_limit: QueueLimit::Yields,
                backoff: self.backoff.map(|b| b.0.check()).transpose()?,
                spread_ms: strict::either(self.spread_ms, self.spread, "spread")?,
                expiry: expiry(self.expires_in_ms, self.expires_in, self.expires_at.as_ref())?,
            },
            begins: match self.state {
                None => InitialState::Waiting,
                Some(StateWord::Dead) => InitialState::Dead,
            },
            order_if_new: None,
        };
        Ok((enqueue, time))
    }
}

/// When a message expires, given by at most one field.
fn expiry(
    expires_in_ms: Option<Positive>,
    expires_in: Option<SpanText>,
    expires_at: Option<&Text<'_>>,
) -> Result<Option<Expiry>, Problem> {
    let after = strict::either(expires_in_ms, expires_in, "expires_in")?;
    match (after, expires_at) {
        (Some(_), Some(_)) => Err(Problem::field("expires_at", "goes instead of expires_in, not with it")),
        (after, None) => Ok(after.map(Expiry::In)),
        (None, Some(text)) => {
            let at = rfc3339::parse(&text.0).map_err(|what| Problem::field("expires_at", what))?;
            Ok(Some(Expiry::At(at)))
        }
    }
}

/// Longest words of a due time, in bytes.
const MAX_DUE_WORDS: usize = 256;

fn due_words(words: Text<'_>, time: TimeField) -> Result<Box<str>, Problem> {
    if time != "due_at" {
        return Err(Problem::field("due_words", "goes with due_at, which is not given"));
    }
    if words.0.is_empty() || words.0.len() > MAX_DUE_WORDS {
        return Err(Problem::field("due_words", format_args!("must have 1 to {MAX_DUE_WORDS} bytes")));
    }
    Ok(words.0.into())
}

/// The `dedupe_id` of a request, from its field or its header.
pub(super) fn dedupe_id(
    field: Option<&str>,
    idempotency_key: Option<Box<str>>,
) -> Result<Option<Box<str>>, Problem> {
    let Some(id) = field else { return Ok(idempotency_key) };
    if id.is_empty() {
        return Err(Problem::field("dedupe_id", "must not be empty"));
    }
    if id.starts_with(OWN_DEDUPE) {
        return Err(Problem::field("dedupe_id", "must not begin with U+0001: such ids are the server's own"));
    }
    if idempotency_key.is_some_and(|key| *key != *id) {
        return Err(Problem::field(IDEMPOTENCY_KEY, "differs from dedupe_id; give one of the two"));
    }
    Ok(Some(id.into()))
}

/// The body, given as text, as JSON, or in base64, by at most one field.
pub(crate) fn body(
    text: Option<Text<'_>>,
    json: Option<&RawValue>,
    base64: Option<Text<'_>>,
) -> Result<Option<Bytes>, Problem> {
    // Copies: a slice would keep the whole request in memory as long as the message waits.
    match (text, json, base64) {
        (Some(_), Some(_), _) => Err(Problem::field("json", "goes instead of body, not with it")),
        (Some(_), None, Some(_)) => Err(Problem::field("body_base64", "goes instead of body, not with it")),
        (None, Some(_), Some(_)) => Err(Problem::field("body_base64", "goes instead of json, not with it")),
        (Some(text), None, None) => Ok(Some(Bytes::copy_from_slice(text.0.as_bytes()))),
        (None, Some(json), None) => Ok(Some(Bytes::copy_from_slice(json.get().as_bytes()))),
        (None, None, Some(text)) => {
            use base64::Engine as _;
            let decoded = base64::engine::general_purpose::STANDARD.decode(text.0.as_bytes());
            let bytes = decoded
                .map_err(|e| Problem::field("body_base64", format_args!("is no padded base64: {e}")))?;
            Ok(Some(bytes.into()))
        }
        (None, None, None) => Ok(None),
    }
}

/// The headers of a message: those that were given, and the content type of a body that was given as JSON.
pub(crate) fn headers(mut given: Headers, json: Option<&RawValue>) -> Headers {
    let has_type = given.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    if json.is_some() && !has_type {
        given.push(("content-type".into(), "application/json".into()));
    }
    given
}

/// The due time of a message, given by at most one field.
pub(crate) fn when(
    delay_ms: Option<Whole>,
    delay: Option<SpanText>,
    due_at: Option<Text<'_>>,
    past: Option<PastWord>,
) -> Result<Option<(When, TimeField)>, Problem> {
    // Where there are several times, the refusal is of these.
    let is_twice = delay_ms.is_some() && delay.is_some();
    if past.is_some() && due_at.is_none() && !is_twice {
        return Err(Problem::field("past", "goes with due_at, which is not given"));
    }
    let when = match (delay_ms, delay, due_at) {
        (Some(ms), None, None) => (When::After(ms.0), "delay_ms"),
        (None, Some(SpanText(ms)), None) => (When::After(ms), "delay"),
        (None, None, Some(text)) => {
            let due_at = rfc3339::parse(&text.0).map_err(|what| Problem::field("due_at", what))?;
            (When::At { due_at, past: past.map(Past::from).unwrap_or_default() }, "due_at")
        }
        (None, None, None) => return Ok(None),
        (_, Some(_), Some(_)) | (Some(_), _, Some(_)) => {
            return Err(Problem::field("due_at", "only one of delay_ms, delay and due_at may be given"));
        }
        (Some(_), Some(_), None) => {
            return Err(Problem::field("delay", "only one of delay_ms, delay and due_at may be given"));
        }
    };
    Ok(Some(when))
}

/// 201 for a new message, 200 for an existing one.
pub(crate) fn status(done: &Enqueued) -> StatusCode {
    match done.created {
        Created::New | Created::Replacing(_) | Created::Superseding(_) => StatusCode::CREATED,
        Created::Kept => StatusCode::OK,
    }
}

answer! {
    /// A message that was accepted, or that existed already.
    #[schemars(rename = "Enqueued")]
    EnqueuedAnswer<'a> of (done: &Enqueued, queue: &'a QueueName, key: Option<&'a Key>) with {
        let (replaced, superseded) = match done.created {
            Created::New | Created::Kept => (None, None),
            Created::Replacing(old) => (Some(IdText(old)), None),
            Created::Superseding(old) => (None, Some(IdText(old))),
        };
    } {
        id: IdText = IdText(done.id),
        queue: QueueText<'a> = QueueText(queue.as_str()),
        key: Option<KeyText<'a>> = key.map(|key| KeyText(key.as_str())),
        due_at: InstantText = InstantText(done.due_at),
        /// The generation, which each change by the producer raises.
        generation: u32 = done.generation,
        /// Whether the message is new.
        created: bool = done.created != Created::Kept,
        /// The state that the message which was kept had then.
        #[schemars(with = "Option<StateSchema>")]
        ?state: &'static str = done.kept.map(State::as_str),
        /// The message that it has replaced.
        ?replaced: IdText = replaced,
        /// The leased message whose key it has taken: that one ends with its lease.
        ?superseded: IdText = superseded,
        /// The `dedupe_id` was remembered: this is the answer to an earlier enqueue, which nothing was added to. Its
        /// message may have ended since.
        #[serde(skip_serializing_if = "is_false")]
        #[schemars(default)]
        replayed: bool = done.answered == Answered::Before,
        durability: LevelText = LevelText(done.level),
    }
}

pub(super) fn is_false(flag: &bool) -> bool {
    !flag
}
