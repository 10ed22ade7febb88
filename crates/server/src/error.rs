//! All errors of requests: for each one code, one HTTP status, and one paragraph in `docs/errors.md`.

use std::borrow::Cow;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use duewheel::core::MessageId;
use duewheel::core::engine::{
    ChangeRefusal, EnqueueRefusal, KeyHolder, Limit, OverQuota, RefusedPart, Resource, SettingsRefusal,
    SettleRefusal,
};
use duewheel::core::message::State;
use duewheel::core::store::ErrorKind;
use duewheel::{BackupError, CallError, Outcome};
pub use duewheel_api::error_code::ErrorCode;
use schemars::JsonSchema;
use serde::Serialize;

use crate::json::{self, IdText};
use crate::repeated;
use crate::schema::{ResourceSchema, StateSchema};

/// A failed request, in the form of `application/problem+json` (RFC 9457) or of a line of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The stable code.
    pub code: ErrorCode,
    /// The explanation, for people.
    pub detail: Cow<'static, str>,
    /// The field or parameter of the request that is wrong.
    pub field: Option<Cow<'static, str>>,
    /// Further facts for programs.
    pub extra: Extra,
}

/// Further facts about a problem, for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    #[default]
    None,
    /// The message because of which the request was refused: `existing_id`, and its `state` if it holds the key.
    Existing(MessageId, Option<State>),
    /// The state of the message that was asked for: `state`.
    State(State),
    /// The present generation of the message: `generation`.
    Generation(u32),
    /// The number of messages that the request matches: `matched`.
    Matched(u64),
    /// Whether the request may have been applied: `outcome`.
    Outcome(Outcome),
    /// The quota that is used up: `quota`, `resource`, `limit`, `used`, and `retry_after_ms` if that is known.
    OverQuota(Box<OverQuota>),
    /// A used-up quota that the caller may not see: `resource`, and `retry_after_ms` if that is known.
    SharedQuota(Resource, Option<u64>),
}

impl From<KeyHolder> for Extra {
    fn from(KeyHolder { id, state }: KeyHolder) -> Self {
        Extra::Existing(id, Some(state))
    }
}

impl Problem {
    /// A problem with a sentence for people.
    pub fn new(code: ErrorCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Problem { code, detail: detail.into(), field: None, extra: Extra::None }
    }

    /// A bad request because of one field; the sentence starts with its name.
    pub fn field(field: impl Into<Cow<'static, str>>, what: impl std::fmt::Display) -> Self {
        let field = repeated::name(field.into());
        let detail = format!("{field}: {}", repeated::sentence(what.to_string()));
        Problem { field: Some(field), ..Problem::new(ErrorCode::BadRequest, detail) }
    }

    /// The problem of a member of a list: `place` comes before the field, also in the sentence.
    pub(crate) fn within(self, place: &str) -> Self {
        let Some(field) = &self.field else { return self };
        let field = format!("{place}.{field}");
        let detail = format!("{place}.{}", self.detail);
        Problem { field: Some(field.into()), detail: detail.into(), ..self }
    }

    fn quota(detail: String, over: Box<OverQuota>) -> Self {
        Problem::new(ErrorCode::OverQuota, detail).with(Extra::OverQuota(over))
    }

    fn with(mut self, extra: Extra) -> Self {
        self.extra = extra;
        self
    }

    fn about(mut self, field: &'static str) -> Self {
        self.field = Some(Cow::Borrowed(field));
        self
    }

    /// Nothing is pending under an id or a key.
    pub fn message_not_found() -> Self {
        Problem::new(
            ErrorCode::MessageNotFound,
            "nothing is pending under this id or key: it was delivered, cancelled, or never there",
        )
    }

    /// A change without any field to change.
    pub fn nothing_to_change() -> Self {
        Problem::new(
            ErrorCode::BadRequest,
            "nothing is to be changed: give at least one of delay_ms, delay, due_at, body, json, body_base64, headers, priority, \
             max_attempts and lease_ms; what is left out stays as it is, the due time included",
        )
    }

    /// A bug in duewheel.
    pub fn internal() -> Self {
        Problem::new(ErrorCode::Internal, "this is a bug in duewheel; the server's log may say more")
    }

    /// The problem of a refused enqueue. `time` is the field that determined the due time.
    pub fn from_enqueue(refusal: EnqueueRefusal, time: &'static str) -> Self {
        match refusal {
            EnqueueRefusal::KeyExists(holder) => {
                Problem::new(ErrorCode::KeyExists, "another message has this key").with(holder.into())
            }
            EnqueueRefusal::Leased(id) => Problem::new(
                ErrorCode::Leased,
                "the message that has this key is leased to a consumer and cannot be replaced",
            )
            .with(Extra::Existing(id, Some(State::Leased))),
            EnqueueRefusal::InThePast => in_the_past("due_at"),
            EnqueueRefusal::Expired => in_the_past("expires_at"),
            EnqueueRefusal::TooFar(limit) => too_far(time, limit),
            EnqueueRefusal::DedupeMismatch(id) => Problem::new(
                ErrorCode::DedupeMismatch,
                "this dedupe_id was used for another content in this queue",
            )
            .with(Extra::Existing(id, None)),
            EnqueueRefusal::TooLarge(RefusedPart::Body, limit) => body_too_large(limit),
            EnqueueRefusal::TooLarge(part, limit) => {
                Problem::field(part.as_str(), format_args!("must have at most {limit} bytes"))
            }
            EnqueueRefusal::OutOfRange(part) => Problem::field(part.as_str(), range_of(part)),
            EnqueueRefusal::Overloaded(limit) => at_limit(limit),
            EnqueueRefusal::Busy => busy(),
            EnqueueRefusal::DiskFull => disk_full(),
            EnqueueRefusal::OverQuota(over) => Problem::quota(over_quota(&over), over),
        }
    }

    /// The problem of a request that matches more messages than it expects.
    pub(crate) fn changed(expect: u64, matched: u64) -> Self {
        let detail = format!("{matched} messages match, and {expect} were expected; nothing was done");
        Problem::new(ErrorCode::Changed, detail).with(Extra::Matched(matched))
    }

    /// The problem of a purge over several shards, some of which may have purged before more messages arrived.
    pub(crate) fn changed_in_some(expect: u64, matched: u64) -> Self {
        let detail = format!(
            "{matched} messages match, and {expect} were expected; none are removed, or only those of some shards"
        );
        Problem::new(ErrorCode::Changed, detail).with(Extra::Matched(matched))
    }

    /// The problem of a refused change. `time` is the field that determined the due time, if any.
    pub fn from_change(refusal: ChangeRefusal, time: &'static str) -> Self {
        match refusal {
            ChangeRefusal::NotFound => Problem::message_not_found(),
            ChangeRefusal::Leased => {
                Problem::new(ErrorCode::Leased, "the message is leased to a consumer; it is too late")
                    .with(Extra::State(State::Leased))
            }
            ChangeRefusal::Dead => Problem::new(ErrorCode::Dead, "the message is dead; redrive or cancel it"),
            ChangeRefusal::NotDead => Problem::new(ErrorCode::NotDead, "the message is not dead"),
            ChangeRefusal::KeyExists(holder) => {
                Problem::new(ErrorCode::KeyExists, "another message has taken the key meanwhile")
                    .with(holder.into())
            }
            ChangeRefusal::GenerationMismatch(now) => Problem::new(
                ErrorCode::GenerationMismatch,
                format!("the message was changed meanwhile; its generation is {now}"),
            )
            .with(Extra::Generation(now)),
            ChangeRefusal::InThePast => in_the_past("due_at"),
            ChangeRefusal::TooFar(limit) => too_far(time, limit),
            ChangeRefusal::TooLarge(RefusedPart::Body, limit) => body_too_large(limit),
            ChangeRefusal::TooLarge(part, limit) => {
                Problem::field(part.as_str(), format_args!("must have at most {limit} bytes"))
            }
            ChangeRefusal::OutOfRange(part) => Problem::field(part.as_str(), range_of(part)),
            ChangeRefusal::NothingToChange => Problem::nothing_to_change(),
            ChangeRefusal::LeaseTooLong(limit) => too_long(limit),
            ChangeRefusal::Paused => Problem::new(ErrorCode::Paused, "the queue is paused"),
            ChangeRefusal::DiskFull => disk_full(),
            ChangeRefusal::OverQuota(over) => Problem::quota(over_quota(&over), over),
            ChangeRefusal::Overloaded(limit) => at_limit(limit),
            ChangeRefusal::Busy => busy(),
        }
    }

    /// The problem of a refused settlement or extension.
    pub fn from_settle(refusal: SettleRefusal) -> Self {
        match refusal {
            SettleRefusal::LeaseLost => Problem::new(
                ErrorCode::LeaseLost,
                "this lease is over: the message was settled, redriven or changed, or another consumer has it or had it since",
            ),
            SettleRefusal::NeverIssued => {
                Problem::new(ErrorCode::MessageNotFound, "no message ever had this id")
            }
            SettleRefusal::TooLong(limit) => too_long(limit),
            SettleRefusal::KeyExists(holder) => {
                Problem::from_change(ChangeRefusal::KeyExists(holder), "due_at")
            }
        }
    }

    /// The problem of refused settings.
    pub fn from_settings(refusal: SettingsRefusal) -> Self {
        match refusal {
            SettingsRefusal::OutOfRange(field, limit) => {
                Problem::field(field, format_args!("must be at most {limit}"))
            }
            SettingsRefusal::BelowShards(field, least) => Problem::field(
                field,
                format_args!("must be at least {least}, the number of shards: each allows an even part"),
            ),
            SettingsRefusal::OverQuota(over) => Problem::quota(over_settings(&over), over),
            SettingsRefusal::Overloaded => overloaded(
                "as many queues exist as are allowed; use one that exists, or let others become empty",
            ),
        }
    }

    /// The problem of a backup that was not made.
    pub fn from_backup(error: &BackupError) -> Self {
        let detail = error.to_string();
        match error {
            BackupError::InMemory => Problem::new(ErrorCode::BadRequest, detail),
            BackupError::Busy => Problem::new(ErrorCode::Overloaded, detail),
            BackupError::Folder { what, .. } => Problem::field("dest", what),
            BackupError::Store(error) if error.kind() == ErrorKind::Full => {
                Problem::new(ErrorCode::DiskFull, detail)
            }
            BackupError::Store(_) | BackupError::Closed => {
                Problem::new(ErrorCode::StorageUnavailable, detail).with(Extra::Outcome(Outcome::NotApplied))
            }
            // The library may get further kinds; each must have an arm above.
            _ => Problem::new(ErrorCode::Internal, detail),
        }
    }

    /// The time in whole seconds after which a retry may succeed.
    fn retry_after_s(&self) -> u64 {
        match &self.extra {
            Extra::OverQuota(over) => whole_seconds(over.retry_ms),
            Extra::SharedQuota(_, retry_ms) => whole_seconds(*retry_ms),
            Extra::None
            | Extra::Existing(..)
            | Extra::State(_)
            | Extra::Generation(_)
            | Extra::Matched(_)
            | Extra::Outcome(_) => 1,
        }
    }
}

/// A problem as one of many results.
#[derive(Debug, JsonSchema, Serialize)]
pub(crate) struct ItemProblem<'a> {
    /// The status of the same call with this message alone.
    status: u16,
    #[schemars(with = "ErrorCode")]
    code: &'static str,
    /// What went wrong, for people.
    detail: &'a str,
    /// The field, path segment or query parameter that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    /// The message because of which the request was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    existing_id: Option<IdText>,
    /// The state of the message that has the key, or of the one that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<StateSchema>")]
    state: Option<&'static str>,
    /// The present generation of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<u32>,
    /// With `changed`: the number of messages that match.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<u64>,
    /// Whether the request may have been applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<OutcomeWord>,
    /// With `over_quota`: the prefix of the quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<ResourceSchema>")]
    resource: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<u64>,
    /// When the same request may be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// Whether a request that failed may have been applied.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Outcome")]
enum OutcomeWord {
    Unknown,
    NotApplied,
}

impl<'a> ItemProblem<'a> {
    pub(crate) fn of(problem: &'a Problem) -> Self {
        let mut item = ItemProblem {
            status: problem.code.status().as_u16(),
            code: problem.code.as_str(),
            detail: &problem.detail,
            field: problem.field.as_deref(),
            existing_id: None,
            state: None,
            generation: None,
            matched: None,
            outcome: None,
            quota: None,
            resource: None,
            limit: None,
            used: None,
            retry_after_ms: None,
        };
        match &problem.extra {
            Extra::None => {}
            Extra::Existing(id, state) => {
                item.existing_id = Some(IdText(*id));
                item.state = state.map(State::as_str);
            }
            Extra::State(state) => item.state = Some(state.as_str()),
            Extra::Generation(generation) => item.generation = Some(*generation),
            Extra::Matched(matched) => item.matched = Some(*matched),
            Extra::Outcome(Outcome::Unknown) => item.outcome = Some(OutcomeWord::Unknown),
            Extra::Outcome(Outcome::NotApplied) => item.outcome = Some(OutcomeWord::NotApplied),
            Extra::OverQuota(over) => {
                item.quota = Some(&over.quota);
                item.resource = Some(over.resource.as_str());
                item.limit = Some(over.limit);
                item.used = Some(over.used);
                item.retry_after_ms = over.retry_ms;
            }
            Extra::SharedQuota(resource, retry_ms) => {
                item.resource = Some(resource.as_str());
                item.retry_after_ms = *retry_ms;
            }
        }
        item
    }
}

/// A request that was refused or has failed, in the form of RFC 9457.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Problem")]
pub(crate) struct ProblemAnswer<'a> {
    /// Where this server describes the code, relative to its address.
    r#type: String,
    title: &'static str,
    #[serde(flatten)]
    item: ItemProblem<'a>,
}

impl<'a> ProblemAnswer<'a> {
    pub(crate) fn of(problem: &'a Problem) -> Self {
        ProblemAnswer {
            r#type: problem.code.reference(),
            title: problem.code.status().canonical_reason().unwrap_or("Error"),
            item: ItemProblem::of(problem),
        }
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        let outcome = error.outcome();
        let detail = error.to_string();
        match error {
            CallError::Overloaded => Problem::new(ErrorCode::Overloaded, detail),
            CallError::Draining => Problem::new(ErrorCode::Draining, detail),
            CallError::Store { error, outcome: Outcome::NotApplied } if error.kind() == ErrorKind::Full => {
                disk_full()
            }
            CallError::Bug(what) => {
                tracing::error!(what, "an answer of another kind");
                Problem::internal()
            }
            // The store's other errors, a driver that has ended, and whatever else leaves a call without an answer.
            _ => Problem::new(ErrorCode::StorageUnavailable, detail).with(Extra::Outcome(outcome)),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let json = json::line(256, &ProblemAnswer::of(&self));
        let mut response = (status, json).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code.is_passing() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_s()));
        }
        if self.code == ErrorCode::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code == ErrorCode::RequestTimeout {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A message is larger than its limit.
pub fn body_too_large(limit: usize) -> Problem {
    Problem::new(ErrorCode::BodyTooLarge, format!("the body of a message may have at most {limit} bytes"))
        .about("body")
}

/// A request is larger than its limit.
pub fn request_too_large(limit: usize, max_body: usize) -> Problem {
    let detail = format!(
        "this request may have at most {limit} bytes, and the body of a message in it at most {max_body} bytes"
    );
    Problem::new(ErrorCode::BodyTooLarge, detail).about("body")
}

/// A limit is reached, perhaps only for a moment.
pub fn overloaded(what: impl Into<Cow<'static, str>>) -> Problem {
    Problem::new(ErrorCode::Overloaded, what)
}

/// A limit is reached.
fn at_limit(limit: Limit) -> Problem {
    overloaded(match limit {
        Limit::Messages(max) => format!(
            "{max} messages are held, as many as --max-messages allows; consume, cancel or purge some, or raise the limit"
        ),
        Limit::Bytes(max) => format!(
            "the messages held would have more than the {max} bytes that --max-message-bytes allows; consume, cancel or \
             purge some, or raise the limit"
        ),
        Limit::Queues(max) => format!(
            "{max} queues exist, as many as are allowed; use one that exists, or let others become empty"
        ),
        Limit::Answers(max) => format!(
            "{max} answers to enqueues with a dedupe_id, or as many bytes of them as are allowed, are remembered, and all are \
             young; wait, give a shorter dedupe_window, or send without a dedupe_id"
        ),
        Limit::Leases => {
            "as many messages are leased, or as many bytes of them, as are allowed; settle some first"
                .to_owned()
        }
        Limit::GrantRate(ms) => format!("the rate of the queue allows the next message in {ms} ms"),
    })
}

fn busy() -> Problem {
    overloaded(
        "the store is behind with writing to the disk, and catches up by itself: no limit is reached; send the same again a \
         little later",
    )
}

fn in_the_past(field: &'static str) -> Problem {
    Problem::new(
        ErrorCode::InThePast,
        format!("{field}: this instant has passed by the server's clock; give a later one"),
    )
    .about(field)
}

fn too_far(field: &'static str, limit_ms: u64) -> Problem {
    let years = limit_ms / 31_557_600_000;
    Problem::field(field, format_args!("must be at most {limit_ms} ms ({years} years) from now"))
}

fn too_long(limit_ms: u64) -> Problem {
    Problem::field("lease_ms", format_args!("must be at most {limit_ms}"))
}

fn disk_full() -> Problem {
    Problem::new(
        ErrorCode::DiskFull,
        "the disk has no room for new or changed messages; ack, cancel and purge still work, and make room",
    )
}

/// The rule that a refused value breaks.
fn range_of(part: RefusedPart) -> &'static str {
    match part {
        RefusedPart::DedupeWindow => {
            "must be longer than 0 and at most the dedupe_window of the queue; configure a longer one there first"
        }
        RefusedPart::Spread => "must not end later than the longest delay from now",
        RefusedPart::ExpiresIn => "must be longer than 0 and at most the longest delay",
        RefusedPart::ExpiresAt => "must not be before the due time, nor before the end of its spread",
        RefusedPart::Headers => "must have no name that begins with #: such names are duewheel's own",
        RefusedPart::Body
        | RefusedPart::DedupeId
        | RefusedPart::Lease
        | RefusedPart::MaxAttempts
        | RefusedPart::Backoff => "is outside of its range",
    }
}

/// The explanation for people.
fn over_quota(over: &OverQuota) -> String {
    let OverQuota { quota, resource, limit, used, retry_ms } = over;
    match (resource, retry_ms) {
        (Resource::Enqueues, Some(ms)) => {
            format!("quota {quota:?} allows {limit} enqueues a second; the next one is accepted in {ms} ms")
        }
        (Resource::Enqueues, None) => format!("quota {quota:?} allows {limit} enqueues a second"),
        (Resource::Messages, _) => format!(
            "quota {quota:?} allows {limit} unsettled messages, and {used} are held; ack, cancel or purge makes room"
        ),
        (Resource::Bytes, _) => format!(
            "quota {quota:?} allows {limit} bytes, {used} are held, remembered answers included, and this does not fit; ack, cancel or \
             purge makes room"
        ),
        (Resource::Answers, _) => format!(
            "quota {quota:?} allows {limit} remembered answers, and {used} are held, the oldest of them young; wait, give a \
             shorter dedupe_window, or send without a dedupe_id"
        ),
        (Resource::Leases, _) => {
            format!("quota {quota:?} allows {limit} leases, and {used} are held; ack or nack ends one")
        }
    }
}

/// The explanation for people, of a queue that may get no settings.
fn over_settings(over: &OverQuota) -> String {
    let OverQuota { quota, limit, used, .. } = over;
    format!(
        "quota {quota:?} allows {limit} messages, and as many queues with settings or a pause, of which there are {used}; \
         remove such a queue first"
    )
}

/// The whole seconds after which a retry may succeed, at least one.
fn whole_seconds(retry_ms: Option<u64>) -> u64 {
    retry_ms.map_or(1, |ms| ms.div_ceil(1_000).max(1))
}

#[cfg(test)]
mod tests;
