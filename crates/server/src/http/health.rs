//! `GET /healthz`: whether the driver still turns.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::testing;

use super::call::Call;
use super::{Answer, object};
use crate::auth::Caller;

/// The driver comes round at least every second; five of them without it are a fault.
const MAX_TICK_AGE_MS: u64 = 5_000;

pub(crate) async fn health(call: Call) -> Answer {
    testing::place("http request");
    let health = call.app.client.health();
    let draining = call.app.draining.load(Ordering::Relaxed);
    let trouble = call.app.failing.get().or(health.trouble.as_ref());
    let (status, word) = match trouble {
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "failing"),
        None if health.tick_age_ms > MAX_TICK_AGE_MS => (StatusCode::SERVICE_UNAVAILABLE, "stalled"),
        None if draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        None => (StatusCode::OK, "ok"),
    };
    Ok(object(status, |out| {
        out.plain("status", word);
        out.number("tick_age_ms", health.tick_age_ms);
        out.plain("durability", call.app.client.level().as_str());
        out.truth("drain_mode", call.app.refuses_new());
        // It may name files; a stranger learns that there is trouble, and no more.
        if let Some(trouble) = trouble
            && !matches!(call.caller, Caller::Stranger(_))
        {
            out.text("trouble", trouble);
        }
    }))
}
