//! Bridges: `/v1/bridges`, for tokens without limits only.

use std::time::Duration;

use axum::http::StatusCode;
use duewheel_bridge::{BridgeFigures, BridgeService, BridgeView, PauseError, ProbeStep};
use duewheel_delivery::NotWritten;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::RwLockReadGuard;

use super::call::Call;
use super::strict::{self, Text};
use super::{Answer, App, answer, reply};
use crate::error::{ErrorCode, Problem};
use crate::schema::QueueSchema;

/// The time for a test of a bridge.
const PROBE: Duration = Duration::from_secs(20);
/// Why a bridge is paused that was given no reason.
const BY_HAND: &str = "paused by hand";

/// Why a bridge is paused.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "BridgePause")]
pub(crate) struct PauseBridgeRequest<'a> {
    /// Words for people, at most 1,024 bytes.
    #[serde(borrow)]
    #[schemars(length(max = 1024))]
    reason: Option<Text<'a>>,
}

/// The bridges of the configuration.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Bridges")]
pub(crate) struct BridgesAnswer {
    bridges: Vec<BridgeAnswer>,
}

answer! {
    /// A bridge as the node that answers sees it.
    #[schemars(rename = "Bridge")]
    BridgeAnswer of (view: BridgeView) with {
        let BridgeView { settings, paused, is_owner, figures } = view;
        let state = match (&paused, is_owner, figures.is_open) {
            (Some(_), _, _) => "paused",
            (None, false, _) => "standby",
            (None, true, true) => "open",
            (None, true, false) => "running",
        };
        let source = settings.source();
    } {
        name: String = settings.name,
        /// The kind of the other side.
        kind: &'static str = "rabbitmq",
        /// The state: `running`; `open` while the other side is away; `paused` until it is resumed; `standby` where
        /// another node runs it, or none yet.
        state: &'static str = state,
        /// Why it is paused.
        ?reason: String = paused.map(|pause| pause.reason),
        /// The last error of an open bridge.
        ?last_error: String = figures.last_error.clone(),
        /// The queue that messages wait in.
        #[schemars(with = "QueueSchema")]
        queue: String = settings.queue,
        /// The exchange of publishers.
        exchange: String = settings.exchange,
        /// The queue of the broker that messages are taken from.
        source: String = source,
        /// How late the message is that has been due for longest.
        lag_ms: u64 = figures.lag_ms,
        /// Figures of this node since its start.
        counts: BridgeFigures = figures,
    }
}

/// The steps of a test.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "TestedBridge")]
pub(crate) struct TestedBridgeAnswer {
    /// Whether none has failed.
    ok: bool,
    steps: Vec<ProbeStep>,
}

pub(crate) async fn list(call: Call) -> Answer {
    let views = bridges(&call.app).await?.views().await?;
    let bridges = views.into_iter().map(BridgeAnswer::of).collect();
    Ok(reply(StatusCode::OK, &BridgesAnswer { bridges }))
}

pub(crate) async fn show(call: Call) -> Answer {
    let view = bridges(&call.app).await?.view(&call.name()?).await?;
    Ok(reply(StatusCode::OK, &BridgeAnswer::of(view)))
}

pub(crate) async fn plan(call: Call) -> Answer {
    let plan = bridges(&call.app).await?.plan(&call.name()?)?;
    Ok(reply(StatusCode::OK, &plan))
}

pub(crate) async fn pause(mut call: Call) -> Answer {
    let name = call.name()?;
    let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
    let asked: PauseBridgeRequest<'_> = strict::parse_optional(&bytes)?;
    let reason = asked.reason.as_ref().map_or(BY_HAND, |reason| &*reason.0);
    if reason.len() > duewheel_delivery::limits::MAX_PAUSE_REASON || reason.chars().any(char::is_control) {
        return Err(Problem::field("reason", "must be at most 1024 bytes, without control characters"));
    }
    let view = bridges(&call.app).await?.set_pause(&name, Some(reason)).await?;
    Ok(reply(StatusCode::OK, &BridgeAnswer::of(view)))
}

pub(crate) async fn resume(call: Call) -> Answer {
    let view = bridges(&call.app).await?.set_pause(&call.name()?, None).await?;
    Ok(reply(StatusCode::OK, &BridgeAnswer::of(view)))
}

pub(crate) async fn test(call: Call) -> Answer {
    let name = call.name()?;
    // A broker that is short of memory confirms nothing, and nothing may wait for it at the end of the server.
    let probing = async { bridges(&call.app).await?.probe(&name).await.map_err(Problem::from) };
    let steps = tokio::time::timeout(PROBE, probing).await.unwrap_or_else(|_| {
        let late = ProbeStep {
            step: "out",
            ok: Some(false),
            detail: "the other side does not answer in time".into(),
        };
        Ok(vec![late])
    })?;
    let ok = steps.iter().all(|step| step.ok != Some(false));
    Ok(reply(StatusCode::OK, &TestedBridgeAnswer { ok, steps }))
}

/// The bridges of this node. A call keeps them until it has its answer.
async fn bridges(app: &App) -> Result<RwLockReadGuard<'_, BridgeService>, Problem> {
    let running = app.bridges.read().await;
    RwLockReadGuard::try_map(running, Option::as_ref)
        .map_err(|_| Problem::new(ErrorCode::Draining, "the bridges have been stopped"))
}

impl From<PauseError> for Problem {
    fn from(error: PauseError) -> Self {
        let detail = error.to_string();
        match error {
            PauseError::NotFound => Problem::new(ErrorCode::NotFound, detail),
            PauseError::NotWritten(NotWritten::Lost) => Problem::new(ErrorCode::Overloaded, detail),
            PauseError::NotWritten(NotWritten::Refused(refusal)) => Problem::from_change(refusal, "due_at"),
            PauseError::NotWritten(NotWritten::NewRefused(refusal)) => {
                Problem::from_enqueue(refusal, "due_at")
            }
            PauseError::NotWritten(NotWritten::Unknown(error)) | PauseError::Call(error) => {
                Problem::from(error)
            }
        }
    }
}
