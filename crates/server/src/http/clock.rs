//! `POST /v1/clock/advance`: time for tests, on a server with `--virtual-clock`.

use std::time::Duration;

use axum::http::StatusCode;
use duewheel::AdvanceError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::limits;
use super::strict::{self, Whole};
use super::{Answer, reply};
use crate::error::{ErrorCode, Problem};
use crate::json::InstantText;
use crate::schema::DelaySchema;
use crate::span::SpanText;

/// How much time is to pass.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Advance", transform = crate::schema::advance_rules)]
pub(crate) struct AdvanceRequest {
    #[schemars(extend("x-limit" = "max_delay_ms"))]
    by_ms: Option<Whole>,
    #[schemars(with = "Option<DelaySchema>")]
    by: Option<SpanText>,
}

/// What time it is now.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Advanced")]
pub(crate) struct AdvancedAnswer {
    pub(super) now: InstantText,
}

/// Moves the clock from event to event, and answers when what is due by then is granted to the next reserve.
pub(crate) async fn advance(mut call: Call) -> Answer {
    let Some(clock) = call.app.clock.get().cloned() else {
        let why = "this server uses the machine's clock; start it with --virtual-clock to move its time";
        return Err(Problem::new(ErrorCode::NotFound, why));
    };
    let limit = call.app.policy.max_delay_ms;
    let by_ms = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        let asked: AdvanceRequest = strict::parse(&bytes)?;
        limits::either_within(asked.by_ms, asked.by, ("by", "by_ms"), limit)?
            .ok_or_else(|| Problem::field("by", "one of by_ms and by must be given"))?
    };
    let moved = call.app.wheel.advance(&clock, Duration::from_millis(by_ms)).await;
    moved.map_err(|error| match error {
        AdvanceError::Call(error) => Problem::from(error),
        error => Problem::field("by", error.to_string()),
    })?;
    Ok(reply(StatusCode::OK, &AdvancedAnswer { now: InstantText(call.app.client.now().wall) }))
}
