//! `/v1/targets`: put, look, remove, pause, resume, test. For tokens without limits only: a target has secrets.

use axum::http::StatusCode;
use axum::response::Response;
use duewheel_delivery::{TargetError, TargetView, Targets};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::strict::{self, Text};
use super::target_view::{TargetAnswer, TargetAttemptAnswer, TargetRequest, TargetsAnswer, TestedAnswer};
use super::{Answer, App, reply};
use crate::error::{ErrorCode, Problem};

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
