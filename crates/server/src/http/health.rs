//! Three questions. `GET /livez`: would a restart of the process help? `GET /readyz`: should it be sent requests? `GET /healthz`: is all
//! well, the store and the cluster included? The first two are for whoever restarts processes and shares out requests, and say nothing else.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::testing;
use schemars::JsonSchema;
use serde::Serialize;

use super::App;
use super::call::Call;
use super::{Answer, reply};
use crate::auth::Caller;
use crate::schema::LevelSchema;

/// The driver comes round at least every second; five of them without it are a fault.
const MAX_TICK_AGE_MS: u64 = 5_000;

/// A thread that has not come round for so long never will. Longer than any call of a store over the network takes until it gives up, as
/// a restart gives back no store; and `/healthz` has been red for long.
const MAX_STALL_MS: u64 = 120_000;

/// What the probes are answered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signs {
    /// Whether there was a bug of ours.
    failing: bool,
    /// Whether it was told to stop.
    leaves: bool,
    tick_age_ms: u64,
}

impl Signs {
    fn of(app: &App) -> Signs {
        Signs {
            failing: app.failing.get().is_some(),
            leaves: app.leaving.load(Ordering::Relaxed) || app.draining.load(Ordering::Relaxed),
            tick_age_ms: app.client.health().tick_age_ms,
        }
    }

    /// Why only a restart helps, if it is so.
    fn dead(self) -> Option<StatusWord> {
        match self {
            Signs { failing: true, .. } => Some(StatusWord::Failing),
            Signs { tick_age_ms, .. } if tick_age_ms > MAX_STALL_MS => Some(StatusWord::Stalled),
            Signs { .. } => None,
        }
    }

    /// Why it should be sent no requests, if it is so.
    fn unready(self) -> Option<StatusWord> {
        self.dead().or(match self {
            Signs { leaves: true, .. } => Some(StatusWord::Draining),
            Signs { tick_age_ms, .. } if tick_age_ms > MAX_TICK_AGE_MS => Some(StatusWord::Stalled),
            Signs { .. } => None,
        })
    }
}

/// `GET /livez`.
pub(crate) async fn live(call: Call) -> Answer {
    probe(Signs::of(&call.app).dead())
}

/// `GET /readyz`. The troubles of a store that all nodes share make none of them unready: if all were taken away, nobody would hear of it.
pub(crate) async fn ready(call: Call) -> Answer {
    probe(Signs::of(&call.app).unready())
}

fn probe(trouble: Option<StatusWord>) -> Answer {
    let status = trouble.map_or(StatusCode::OK, |_| StatusCode::SERVICE_UNAVAILABLE);
    Ok(reply(status, &ProbeAnswer { status: trouble.unwrap_or(StatusWord::Ok) }))
}

/// How the server is.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Status")]
pub(crate) enum StatusWord {
    Ok,
    Draining,
    Stalled,
    Failing,
}

/// The answer to a probe.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Probe")]
pub(crate) struct ProbeAnswer {
    pub(super) status: StatusWord,
}

/// How the server is, its store and its cluster included.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Health")]
pub(crate) struct HealthAnswer<'a> {
    pub(super) status: StatusWord,
    /// How long ago the driver's loop last came round.
    pub(super) tick_age_ms: u64,
    #[schemars(with = "LevelSchema")]
    pub(super) durability: &'static str,
    /// Whether new messages are refused: since SIGUSR1, and while the server stops.
    pub(super) drain_mode: bool,
    /// Shards of the cluster that no node owns; for longer than a lease and 2 s, `status` is `failing`. Only where there is
    /// a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shards_without_owner: Option<u64>,
    /// What is wrong, in words; not for strangers to a server with tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trouble: Option<&'a str>,
}

/// `GET /healthz`.
pub(crate) async fn health(call: Call) -> Answer {
    testing::place("http request");
    let health = call.app.client.health();
    let draining = call.app.draining.load(Ordering::Relaxed);
    let trouble = call.app.failing.get().or(health.trouble.as_ref());
    let (status, word) = match trouble {
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, StatusWord::Failing),
        None if health.tick_age_ms > MAX_TICK_AGE_MS => {
            (StatusCode::SERVICE_UNAVAILABLE, StatusWord::Stalled)
        }
        None if draining => (StatusCode::SERVICE_UNAVAILABLE, StatusWord::Draining),
        None => (StatusCode::OK, StatusWord::Ok),
    };
    let cluster = call.app.wheel.cluster();
    let answer = HealthAnswer {
        status: word,
        tick_age_ms: health.tick_age_ms,
        durability: call.app.client.level().as_str(),
        drain_mode: call.app.refuses_new(),
        shards_without_owner: cluster
            .map(|view| view.shards.iter().filter(|shard| shard.owner.is_none()).count() as u64),
        // It may name files; a stranger learns that there is trouble, and no more.
        trouble: trouble.filter(|_| !matches!(call.caller, Caller::Stranger(_))).map(String::as_str),
    };
    Ok(reply(status, &answer))
}

#[cfg(test)]
mod tests {
    use super::StatusWord::{Draining, Failing, Stalled};
    use super::*;

    #[test]
    fn a_stall_takes_requests_away_soon_and_the_process_late() {
        for (tick_age_ms, unready, dead) in [
            (0, None, None),
            (5_000, None, None),
            (5_001, Some(Stalled), None),
            (120_000, Some(Stalled), None),
            (120_001, Some(Stalled), Some(Stalled)),
        ] {
            let signs = Signs { failing: false, leaves: false, tick_age_ms };
            assert_eq!((signs.unready(), signs.dead()), (unready, dead), "{signs:?}");
            // A server that drains is not killed for it.
            let leaves = Signs { leaves: true, ..signs };
            assert_eq!((leaves.unready(), leaves.dead()), (dead.or(Some(Draining)), dead), "{leaves:?}");
            let failing = Signs { failing: true, ..leaves };
            assert_eq!((failing.unready(), failing.dead()), (Some(Failing), Some(Failing)), "{failing:?}");
        }
    }
}
