//! Targets: `/v1/targets`, for tokens without limits only, because a target has secrets, which no answer shows; and
//! `target_url` of a message: which tokens may give one, and which queues take one.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::response::Response;
use duewheel::core::engine::Enqueue;
use duewheel::core::message::Headers;
use duewheel::core::{QueueName, WallMs};
use duewheel_delivery::{
    DeliveryAttempt, MessageUrl, NetworkSettings, PushCounts, PushVerdict, ShownTarget, TargetAttempt,
    TargetError, TargetSettings, TargetState, TargetStatus, TargetView, Targets, TestedTarget, UrlMoves,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::strict::{self, Text};
use super::{Answer, App, answer, reply};
use crate::auth::{Caller, Scope};
use crate::error::{ErrorCode, Problem};
use crate::json::{IdText, InstantText};
use crate::schema::{DelaySchema, HeadersSchema, QueueSchema};

/// The number of targets of a page by default.
const TARGETS: usize = 100;

/// Why a target is paused.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TargetPause")]
pub(crate) struct PauseTargetRequest<'a> {
    /// Words for people, at most 1,024 bytes.
    #[serde(borrow)]
    #[schemars(length(max = 1024))]
    reason: Option<Text<'a>>,
}

/// A target that was removed.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "TargetRemoved")]
pub(crate) struct TargetRemoved {
    pub(super) name: String,
    pub(super) removed: bool,
}

pub(crate) async fn put(mut call: Call) -> Answer {
    let name = call.name()?;
    let settings: TargetRequest = strict::parse(&call.json_bytes(call.app.max_single_bytes()).await?)?;
    let view = targets(&call.app)?.put(&name, &settings.0).await?;
    Ok(changed(&call.app, view))
}

pub(crate) async fn show(call: Call) -> Answer {
    let targets = targets(&call.app)?;
    let view = targets.get(&call.name()?).await?;
    let status = call.app.target_status(&view.name);
    let seen = match status {
        Some(_) => None,
        None => targets.seen(&view.name).await?,
    };
    let attempts = call.app.target_attempts(&view.name);
    let mut answer = TargetAnswer::of(view, status.as_ref(), seen);
    answer.attempts = attempts.map(|all| all.into_iter().map(TargetAttemptAnswer::of).collect());
    Ok(reply(StatusCode::OK, &answer))
}

/// A target that was changed: what was seen of it before says nothing any more, because its breaker begins anew.
fn changed(app: &App, view: TargetView) -> Response {
    app.refresh_targets();
    let status = app.target_status(&view.name);
    reply(StatusCode::OK, &TargetAnswer::changed(view, status.as_ref()))
}

pub(crate) async fn list(call: Call) -> Answer {
    let after = call.param("after")?;
    let limit = call.count_param("limit", TARGETS, call.app.policy.max_page)?;
    let targets = targets(&call.app)?;
    let found = targets.list(after.as_deref(), limit).await?;
    let mut seen = targets.all_seen().await?;
    // A full page may be the last one; then the next is empty.
    let next = if found.len() < limit { None } else { found.last().map(|last| last.name.clone()) };
    let shown = |view: TargetView| {
        let status = call.app.target_status(&view.name);
        let seen = seen.remove(&view.name);
        TargetAnswer::of(view, status.as_ref(), seen)
    };
    let targets = found.into_iter().map(shown).collect();
    Ok(reply(StatusCode::OK, &TargetsAnswer { targets, next }))
}

pub(crate) async fn remove(call: Call) -> Answer {
    let name = call.name()?;
    targets(&call.app)?.remove(&name).await?;
    call.app.refresh_targets();
    Ok(reply(StatusCode::OK, &TargetRemoved { name, removed: true }))
}

pub(crate) async fn pause(mut call: Call) -> Answer {
    let name = call.name()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let asked: PauseTargetRequest<'_> = strict::parse_optional(&bytes)?;
    let reason = asked.reason.as_ref().map(|reason| &*reason.0);
    let is_bad = |reason: &str| {
        reason.len() > duewheel_delivery::limits::MAX_PAUSE_REASON || reason.chars().any(char::is_control)
    };
    if reason.is_some_and(is_bad) {
        return Err(Problem::field("reason", "must be at most 1024 bytes, without control characters"));
    }
    let view = targets(&call.app)?.pause(&name, reason).await?;
    Ok(changed(&call.app, view))
}

pub(crate) async fn resume(call: Call) -> Answer {
    let view = targets(&call.app)?.resume(&call.name()?).await?;
    Ok(changed(&call.app, view))
}

/// Sends one signed message that is in no queue.
pub(crate) async fn test(call: Call) -> Answer {
    let tested = targets(&call.app)?.test(&call.name()?).await?;
    Ok(reply(StatusCode::OK, &TestedAnswer::of(tested)))
}

/// The targets of the store.
pub(super) fn targets(app: &App) -> Result<&Targets, Problem> {
    app.targets().ok_or_else(Problem::internal)
}

impl From<TargetError> for Problem {
    fn from(error: TargetError) -> Self {
        let detail = error.to_string();
        match error {
            TargetError::Bad(bad) => Problem::field(bad.field, bad.what),
            TargetError::NeedsKey(field) => Problem::field(
                field,
                "needs the server's option --secrets-key, because the store is on another server",
            ),
            TargetError::NotForQueue(_) => Problem::field("target", detail),
            TargetError::NotFound => Problem::new(ErrorCode::NotFound, detail),
            TargetError::InUse(_) => Problem::new(ErrorCode::InUse, detail),
            TargetError::Unreadable(_) => Problem::new(ErrorCode::KeyExists, detail),
            TargetError::TooMany(..) | TargetError::Busy => Problem::new(ErrorCode::Overloaded, detail),
            TargetError::Refused(refusal) => Problem::from_enqueue(refusal, "due_at"),
            TargetError::RecordRefused(refusal) => Problem::from_change(refusal, "due_at"),
            TargetError::Call(error) => Problem::from(error),
            // The library may get further kinds; each must have an arm above.
            _ => Problem::internal(),
        }
    }
}

/// The settings of a target, as they are sent.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct TargetRequest(pub(super) TargetSettings);

impl JsonSchema for TargetRequest {
    fn schema_name() -> Cow<'static, str> {
        TargetFields::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        TargetFields::json_schema(generator)
    }
}

/// A target: where messages are sent, and how. What is left out has its default.
#[derive(JsonSchema)]
#[schemars(rename = "Target", deny_unknown_fields, transform = crate::schema::target_rules)]
#[expect(dead_code, reason = "only its schema is used; TargetSettings has its fields")]
struct TargetFields {
    /// `http` or `https`, without user information and fragment.
    #[schemars(length(max = 4096))]
    url: String,
    /// `POST` (default), `PUT` or `PATCH`.
    #[schemars(extend("enum" = ["POST", "PUT", "PATCH", null]))]
    method: Option<String>,
    /// Headers of each request, at most 50; not those that belong to the connection, nor `webhook-` and `duewheel-`.
    #[schemars(with = "Option<HeadersSchema>")]
    headers: Option<()>,
    /// `whsec_` and base64 (24 to 64 bytes, HMAC-SHA256) or `whsk_` and base64 (Ed25519). Each of them signs.
    #[schemars(length(max = 3))]
    secrets: Option<Vec<String>>,
    /// How long a request may take; 30,000 by default.
    #[schemars(range(min = 1, max = 900_000))]
    timeout_ms: Option<u64>,
    /// `timeout_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    timeout: Option<()>,
    /// Requests at a time; 10 by default.
    #[schemars(range(min = 1, max = 10_000))]
    concurrency: Option<u32>,
    /// Requests a second; without it there is no limit.
    rate: Option<RateFields>,
    /// When failed attempts are repeated: `delays`, or `min_ms` and `max_ms`.
    retry: Option<RetryFields>,
    /// Attempts after which a message is dead; 10 by default.
    #[schemars(range(min = 1))]
    max_attempts: Option<u32>,
    /// Status codes that make a message dead at once, 300 to 599.
    #[schemars(length(max = 100), inner(range(min = 300, max = 599)))]
    dead_on: Option<Vec<u16>>,
    /// The only authorities that sign the target's certificate, in PEM; by default those of the web.
    ca_pem: Option<String>,
    /// The client certificate of requests with its private key, in PEM.
    client_pem: Option<String>,
    /// The addresses that requests may go to: `public` (default), `any`, or a list of networks.
    networks: Option<NetworkSettings>,
    /// What the names of queues begin with that may be delivered to it; by default all may, and only a token without
    /// limits may choose it.
    #[schemars(length(max = 100))]
    queues: Option<Vec<String>>,
}

/// A limit of requests a second.
#[derive(JsonSchema)]
#[schemars(rename = "TargetRateSettings", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct RateFields {
    /// Requests a second.
    #[schemars(range(min = 1, max = 1_000_000))]
    per_second: u32,
    /// Requests that may go at once after a pause; by default a second's worth.
    #[schemars(range(min = 1, max = 1_000_000))]
    burst: Option<u32>,
}

/// When failed attempts are repeated.
#[derive(JsonSchema)]
#[schemars(rename = "TargetRetrySettings", deny_unknown_fields, transform = crate::schema::retry_rules)]
#[expect(dead_code, reason = "only its schema is used")]
struct RetryFields {
    /// The delay after the first, second, … failed attempt, such as `5s`; the last one repeats.
    #[schemars(length(min = 1, max = 100))]
    delays: Option<Vec<String>>,
    /// The first of delays that double.
    min_ms: Option<u64>,
    /// `min_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    min: Option<()>,
    /// The longest of them.
    max_ms: Option<u64>,
    /// `max_ms` as text, in place of the number.
    #[schemars(with = "Option<DelaySchema>")]
    max: Option<()>,
}

/// A target as it is.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "TargetAnswer")]
pub(crate) struct TargetAnswer {
    pub(super) name: String,
    /// The state: `active`; `slowed` while it answers with a `Retry-After`; `open` while its breaker lets messages
    /// wait; `paused` until it is resumed.
    pub(super) state: &'static str,
    /// Why it is paused, or how the last attempt to an open or slowed one has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// The time at which the state began, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<InstantText>,
    /// Why nothing is delivered until it is put anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// The queues that are delivered to it.
    #[schemars(with = "Vec<QueueSchema>")]
    pub(super) delivers: Vec<String>,
    /// The settings of the target; left out if they cannot be read.
    #[serde(flatten)]
    pub(super) settings: Option<ShownTarget>,
    pub(super) created_at: InstantText,
    /// What the node that answers has delivered since it began to; only the node that delivers has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counts: Option<PushCountsAnswer>,
    /// The newest attempts of the node that answers, at most 50, the one that has ended last first. Only where one
    /// target is asked for; left out if the node has made none since it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) attempts: Option<Vec<TargetAttemptAnswer>>,
}

/// How attempts to deliver have ended.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "PushCounts")]
pub(crate) struct PushCountsAnswer {
    #[serde(flatten)]
    pub(super) counts: PushCounts,
    /// Requests under way.
    pub(super) in_flight: u64,
}

impl TargetAnswer {
    /// A target. `status`: what this node sees of it, if it delivers; `seen`: what the node has recorded that does.
    pub(super) fn of(view: TargetView, status: Option<&TargetStatus>, seen: Option<TargetState>) -> Self {
        let here = status.map(|status| TargetState {
            stage: status.stage,
            reason: status.reason.clone(),
            since: Some(status.since),
        });
        TargetAnswer::in_state(TargetState::of(&view, here.or(seen)), view, status)
    }

    /// A target that was changed now, of which nobody has seen anything yet.
    pub(super) fn changed(view: TargetView, status: Option<&TargetStatus>) -> Self {
        TargetAnswer::in_state(TargetState::of(&view, None), view, status)
    }

    fn in_state(state: TargetState, view: TargetView, status: Option<&TargetStatus>) -> Self {
        let TargetState { stage, reason, since } = state;
        TargetAnswer {
            state: stage.as_str(),
            reason,
            since: since.map(|since| InstantText(WallMs::from_system_time_up(since))),
            error: view.error,
            delivers: view.queues.iter().map(|queue| queue.as_str().to_owned()).collect(),
            settings: view.shown.map(with_marks),
            created_at: InstantText(WallMs(view.created_ms)),
            counts: status
                .map(|status| PushCountsAnswer { counts: status.counts, in_flight: status.in_flight as u64 }),
            attempts: None,
            name: view.name,
        }
    }
}

/// The settings with `…` before the ends of secrets.
fn with_marks(mut shown: ShownTarget) -> ShownTarget {
    shown.secrets.iter_mut().for_each(|end| end.insert(0, '…'));
    shown
}

/// A page of targets, by name.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Targets")]
pub(crate) struct TargetsAnswer {
    pub(super) targets: Vec<TargetAnswer>,
    /// The `after` of the next page; `null` on the last one.
    pub(super) next: Option<String>,
}

answer! {
    /// What came back from a test.
    #[schemars(rename = "TargetTested")]
    TestedAnswer of (tested: TestedTarget) with {
        let TestedTarget { at, webhook_id, outcome, .. } = tested;
    } {
        /// When the request was sent.
        at: InstantText = InstantText(WallMs::from_system_time_up(at)),
        /// Whether a message would be acked.
        delivered: bool = outcome.verdict == PushVerdict::Delivered,
        /// The status of the answer; `null` if there was none.
        status: Option<u16> = outcome.class.status(),
        /// How it ended: `status_200`, `timeout`, `dns_error`, …
        class: String = outcome.class.to_string(),
        /// How long it took.
        ms: u64 = u64::try_from(outcome.took.as_millis()).unwrap_or(u64::MAX),
        /// The first KiB of the answer, without control characters, behind a remark in parentheses if it was cut or is
        /// a redirect. Of a failure of TLS, the reason.
        answer: String = outcome.answer,
        /// The `webhook-id` of the request.
        webhook_id: String = webhook_id,
    }
}

answer! {
    /// An attempt to deliver a message to a target.
    #[schemars(rename = "DeliveryAttempt")]
    DeliveryAnswer of (attempt: DeliveryAttempt) {
        /// When it began.
        at: InstantText = InstantText(WallMs(attempt.at_ms)),
        /// How long it took.
        ms: u64 = attempt.ms,
        /// The status of the answer; `null` if there was none.
        status: Option<u16> = attempt.status,
        /// How it ended: `status_500`, `timeout`, `dns_error`, …
        class: String = attempt.class,
        /// The first KiB of the answer, in the list of its target 200 bytes, without control characters, behind a
        /// remark in parentheses if it was cut or is a redirect. Of a failure of TLS, the reason.
        answer: String = attempt.answer,
    }
}

answer! {
    /// An attempt to deliver a message, in the list of its target.
    #[schemars(rename = "TargetAttempt")]
    TargetAttemptAnswer of (one: TargetAttempt) {
        /// The message.
        message: IdText = IdText(one.id),
        /// The queue of the message.
        #[schemars(with = "QueueSchema")]
        queue: String = one.queue.as_str().to_owned(),
        /// Which attempt of the message it was.
        attempt: u32 = one.number,
        #[serde(flatten)]
        delivery: DeliveryAnswer = DeliveryAnswer::of(one.attempt),
    }
}

/// Checks a URL.
pub(super) fn read_url(text: &Text<'_>) -> Result<MessageUrl, Problem> {
    MessageUrl::new(&text.0).map_err(|bad| Problem::field(bad.field, bad.what))
}

/// Refuses the header that holds the URL, which has a field of its own.
pub(super) fn check_headers(headers: &Headers) -> Result<(), Problem> {
    match headers.iter().find(|(name, _)| MessageUrl::is_its_header(name)) {
        Some((name, _)) => {
            Err(Problem::field(format!("headers.{name}"), "is set by duewheel; give target_url"))
        }
        None => Ok(()),
    }
}

/// Adds the URL to headers.
pub(super) fn put_url(headers: &mut Headers, url: &MessageUrl) {
    let (name, value) = url.header();
    headers.push((name.into(), value.into()));
}

/// Whether a new message has a URL.
pub(super) fn has_url(message: &Enqueue) -> bool {
    MessageUrl::in_headers(&message.headers).is_some()
}

/// Whether this caller may put messages with URLs into this queue.
///
/// # Errors
/// `forbidden` without the scope; `bad_request` if the queue has no target, whose worker would send them.
pub(super) async fn check_url(app: &App, caller: &Caller, queue: &QueueName) -> Result<(), Problem> {
    caller.need(Scope::PushAny)?;
    if targets(app)?.target_of(queue).await?.is_some() {
        return Ok(());
    }
    let why = format_args!("the queue {queue} has no target, whose worker would send the message there");
    Err(Problem::field("target_url", why))
}

/// Whether a job of this caller may move messages with URLs into this queue, by the same rules as [`check_url`].
pub(super) async fn url_moves(app: &App, caller: &Caller, queue: &QueueName) -> Result<UrlMoves, Problem> {
    let may = caller.need(Scope::PushAny).is_ok() && targets(app)?.target_of(queue).await?.is_some();
    Ok(if may { UrlMoves::Allowed } else { UrlMoves::Refused })
}
