//! Three questions. `GET /livez`: would a restart of the process help? `GET /readyz`: should it be sent requests? `GET /healthz`: is all
//! well, the store and the cluster included? The first two are for whoever restarts processes and shares out requests, and say nothing else.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::testing;

use super::App;
use super::call::Call;
use super::{Answer, object};
use crate::auth::Caller;

/// The driver comes round at least every second; five of them without it are a fault.
const MAX_TICK_AGE_MS: u64 = 5_000;

/// A thread that has not come round for so long never will. Longer than any call of a store over the network takes until it gives up, as
/// a restart gives back no store; and `/healthz` has been red for long.
const MAX_STALL_MS: u64 = 120_000;

/// `GET /livez`.
pub(crate) async fn live(call: Call) -> Answer {
    Ok(answer(dead(&call.app, call.app.client.health().tick_age_ms)))
}

/// `GET /readyz`. The troubles of a store that all nodes share make none of them unready: if all were taken away, nobody would hear of it.
pub(crate) async fn ready(call: Call) -> Answer {
    let app = &call.app;
    let tick_age_ms = app.client.health().tick_age_ms;
    let leaves = app.leaving.load(Ordering::Relaxed) || app.draining.load(Ordering::Relaxed);
    let word = match dead(app, tick_age_ms) {
        Some(word) => Some(word),
        None if leaves => Some("draining"),
        None if tick_age_ms > MAX_TICK_AGE_MS => Some("stalled"),
        None => None,
    };
    Ok(answer(word))
}

/// Why only a restart helps, if it is so.
fn dead(app: &App, tick_age_ms: u64) -> Option<&'static str> {
    let failing = app.failing.get().map(|_| "failing");
    failing.or_else(|| (tick_age_ms > MAX_STALL_MS).then_some("stalled"))
}

fn answer(trouble: Option<&'static str>) -> super::Response {
    let status = trouble.map_or(StatusCode::OK, |_| StatusCode::SERVICE_UNAVAILABLE);
    object(status, |out| out.plain("status", trouble.unwrap_or("ok")))
}

/// `GET /healthz`.
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
        if let Some(view) = call.app.wheel.cluster() {
            let lost = view.shards.iter().filter(|shard| shard.owner.is_none()).count();
            out.number("shards_without_owner", lost as u64);
        }
        // It may name files; a stranger learns that there is trouble, and no more.
        if let Some(trouble) = trouble
            && !matches!(call.caller, Caller::Stranger(_))
        {
            out.text("trouble", trouble);
        }
    }))
}
