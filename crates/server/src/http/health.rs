//! The three probes. `GET /livez`: would a restart of the process help? `GET /readyz`: should the server get requests?
//! `GET /healthz`: is everything well, including the store and the cluster? The first two are for process supervisors
//! and load balancers, and report nothing else.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel_shard::shared::{Health, ThreadIn};
use duewheel_shard::testing;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, App, reply};
use crate::json::LevelText;

/// Longest time without a round of the driver, which has one at least every second.
const MAX_TICK_AGE_MS: u64 = 5_000;

/// A thread that has shown no activity for this long has stopped for ever. Time in a call of the store does not count,
/// because a restart does not bring the store back; `/healthz` reports it much earlier.
const MAX_STALL_MS: u64 = 120_000;

/// The state that decides the answers to the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProbeState {
    /// Whether there was a bug in duewheel.
    failing: bool,
    /// Whether the server is about to stop.
    leaves: bool,
    tick_age_ms: u64,
    quiet_ms: u64,
    thread: ThreadIn,
}

impl ProbeState {
    fn of(app: &App) -> ProbeState {
        let Health { tick_age_ms, quiet_ms, thread, .. } = app.client.health();
        ProbeState {
            failing: app.failing.get().is_some(),
            leaves: app.leaving.load(Ordering::Relaxed) || app.draining.load(Ordering::Relaxed),
            tick_age_ms,
            quiet_ms,
            thread,
        }
    }

    /// Why only a restart helps; `None` if none is needed.
    fn dead(self) -> Option<StatusWord> {
        match self {
            ProbeState { failing: true, .. } => Some(StatusWord::Failing),
            ProbeState { quiet_ms, .. } if quiet_ms > MAX_STALL_MS => Some(StatusWord::Stalled),
            ProbeState { .. } => None,
        }
    }

    /// Why the server should get no requests; `None` if it should.
    fn unready(self) -> Option<StatusWord> {
        self.dead().or(match self {
            ProbeState { leaves: true, .. } => Some(StatusWord::Draining),
            ProbeState { tick_age_ms, thread, .. } => stall(tick_age_ms, thread),
        })
    }
}

/// The status for a thread that does not complete its rounds, by what delays it.
fn stall(tick_age_ms: u64, thread: ThreadIn) -> Option<StatusWord> {
    (tick_age_ms > MAX_TICK_AGE_MS).then_some(match thread {
        ThreadIn::Ours => StatusWord::Stalled,
        ThreadIn::Store | ThreadIn::Unreported => StatusWord::StoreHangs,
    })
}

impl App {
    /// Whether no restart is needed, as `GET /livez` answers.
    pub(crate) fn is_alive(&self) -> bool {
        ProbeState::of(self).dead().is_none()
    }
}

/// `GET /livez`.
pub(crate) async fn live(call: Call) -> Answer {
    probe(ProbeState::of(&call.app).dead())
}

/// `GET /readyz`. Faults of a store that all nodes share make no node unready: if all were removed, no client would
/// learn of the fault.
pub(crate) async fn ready(call: Call) -> Answer {
    probe(ProbeState::of(&call.app).unready())
}

fn probe(trouble: Option<StatusWord>) -> Answer {
    let status = trouble.map_or(StatusCode::OK, |_| StatusCode::SERVICE_UNAVAILABLE);
    Ok(reply(status, &ProbeAnswer { status: trouble.unwrap_or(StatusWord::Ok) }))
}

/// How the server is. `starting`: the store is not open yet. `stalled`: for 5 s a thread of the server has not come round,
/// or has decided nothing of what waits. `store_hangs`: neither, and the store has not returned from a call, or has reported
/// nothing of what calls wait for.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Status")]
pub(crate) enum StatusWord {
    Ok,
    Starting,
    Draining,
    Stalled,
    StoreHangs,
    Failing,
}

/// The answer to a probe.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Probe")]
pub(crate) struct ProbeAnswer {
    pub(super) status: StatusWord,
}

/// The state of the server, including its store and its cluster.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Health")]
pub(crate) struct HealthAnswer<'a> {
    pub(super) status: StatusWord,
    /// Time since the last round of the driver that came on with what waits, in ms.
    pub(super) tick_age_ms: u64,
    pub(super) durability: LevelText,
    /// Whether new messages are refused: since SIGUSR1, and while the server stops.
    pub(super) drain_mode: bool,
    /// Shards of the cluster that no node owns; for longer than a lease and 2 s, `status` is `failing`. Only where
    /// there is a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shards_without_owner: Option<u64>,
    /// The failure as a sentence; on a server with tokens only for callers with a token, on another one only under a
    /// name of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trouble: Option<&'a str>,
}

/// The answer of `GET /healthz` if something is wrong.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
#[schemars(inline)]
pub(crate) enum TroubledAnswer<'a> {
    #[expect(dead_code, reason = "only its schema is used; a server that runs answers with what is in it")]
    Running(HealthAnswer<'a>),
    Starting(StartingAnswer<'a>),
}

/// The store is not open yet. Every other call but `/livez` is answered with 503 `storage_unavailable` until then.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Starting")]
pub(crate) struct StartingAnswer<'a> {
    pub(super) status: StartingWord,
    /// The reason why the start is not complete.
    pub(super) trouble: &'a str,
}

/// The status of a server that starts.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(crate) enum StartingWord {
    Starting,
}

/// `GET /healthz`.
pub(crate) async fn health(call: Call) -> Answer {
    testing::place("http request");
    let health = call.app.client.health();
    let draining = call.app.draining.load(Ordering::Relaxed);
    let stall = stall(health.tick_age_ms, health.thread);
    // A node whose other shards are served completes its rounds.
    let stall = stall.or(health.hanging.is_some().then_some(StatusWord::StoreHangs));
    let hangs = health.hanging.or_else(|| {
        (stall == Some(StatusWord::StoreHangs)).then(|| {
            let seconds = health.tick_age_ms / 1_000;
            format!("the store has not returned from a call, or has reported nothing of what calls wait for; they have waited for {seconds} s")
        })
    });
    let trouble = call.app.failing.get().or(health.trouble.as_ref());
    let (status, word) = match (trouble, stall) {
        (Some(_), _) => (StatusCode::SERVICE_UNAVAILABLE, StatusWord::Failing),
        (None, Some(word)) => (StatusCode::SERVICE_UNAVAILABLE, word),
        (None, None) if draining => (StatusCode::SERVICE_UNAVAILABLE, StatusWord::Draining),
        (None, None) => (StatusCode::OK, StatusWord::Ok),
    };
    let trouble = trouble.or(hangs.as_ref());
    let cluster = call.app.wheel.cluster();
    let answer = HealthAnswer {
        status: word,
        tick_age_ms: health.tick_age_ms,
        durability: LevelText(call.app.client.level()),
        drain_mode: call.app.refuses_new(),
        shards_without_owner: cluster
            .map(|view| view.shards.iter().filter(|shard| shard.owner.is_none()).count() as u64),
        // The text may name files; strangers learn only that something is wrong.
        trouble: trouble.filter(|_| call.may_read_trouble()).map(String::as_str),
    };
    Ok(reply(status, &answer))
}

#[cfg(test)]
mod tests {
    use super::StatusWord::{Draining, Failing, Stalled, StoreHangs};
    use super::*;

    #[test]
    fn stall_fails_readiness_before_liveness() {
        let ours = |ms| (ms, ms, ThreadIn::Ours);
        // A thread that is in its store does not count as inactive, and neither does a node that supervises such
        // threads.
        let store = |ms| (ms, 0, ThreadIn::Store);
        for ((tick_age_ms, quiet_ms, thread), unready, dead) in [
            (ours(0), None, None),
            (ours(5_000), None, None),
            (ours(5_001), Some(Stalled), None),
            (ours(120_000), Some(Stalled), None),
            (ours(120_001), Some(Stalled), Some(Stalled)),
            ((500_000, 3, ThreadIn::Ours), Some(Stalled), None),
            (store(5_000), None, None),
            (store(5_001), Some(StoreHangs), None),
            (store(86_400_000), Some(StoreHangs), None),
        ] {
            let signs = ProbeState { failing: false, leaves: false, tick_age_ms, quiet_ms, thread };
            assert_eq!((signs.unready(), signs.dead()), (unready, dead), "{signs:?}");
            // A server that drains must not be killed for it.
            let leaves = ProbeState { leaves: true, ..signs };
            assert_eq!((leaves.unready(), leaves.dead()), (dead.or(Some(Draining)), dead), "{leaves:?}");
            let failing = ProbeState { failing: true, ..leaves };
            assert_eq!((failing.unready(), failing.dead()), (Some(Failing), Some(Failing)), "{failing:?}");
        }
    }
}
