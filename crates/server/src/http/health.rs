//! Three questions. `GET /livez`: would a restart of the process help? `GET /readyz`: should it be sent requests? `GET /healthz`: is all
//! well, the store and the cluster included? The first two are for whoever restarts processes and shares out requests, and say nothing else.

use std::sync::atomic::Ordering;

use axum::http::StatusCode;
use duewheel::{Health, ThreadIn, testing};

use super::App;
use super::call::Call;
use super::{Answer, object};
use crate::auth::Caller;

/// The driver comes round at least every second; five of them without it are a fault.
const MAX_TICK_AGE_MS: u64 = 5_000;

/// A thread that has shown no sign of life for so long never will. Time in a call of the store does not count: a restart gives back no
/// store, and `/healthz` has been red for long.
const MAX_STALL_MS: u64 = 120_000;

/// What the probes are answered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signs {
    /// Whether there was a bug of ours.
    failing: bool,
    /// Whether it was told to stop.
    leaves: bool,
    tick_age_ms: u64,
    quiet_ms: u64,
    thread: ThreadIn,
}

impl Signs {
    fn of(app: &App) -> Signs {
        let Health { tick_age_ms, quiet_ms, thread, trouble: _ } = app.client.health();
        Signs {
            failing: app.failing.get().is_some(),
            leaves: app.leaving.load(Ordering::Relaxed) || app.draining.load(Ordering::Relaxed),
            tick_age_ms,
            quiet_ms,
            thread,
        }
    }

    /// Why only a restart helps, if it is so.
    fn dead(self) -> Option<&'static str> {
        match self {
            Signs { failing: true, .. } => Some("failing"),
            Signs { quiet_ms, .. } if quiet_ms > MAX_STALL_MS => Some("stalled"),
            Signs { .. } => None,
        }
    }

    /// Why it should be sent no requests, if it is so.
    fn unready(self) -> Option<&'static str> {
        self.dead().or(match self {
            Signs { leaves: true, .. } => Some("draining"),
            Signs { tick_age_ms, thread, .. } => stall(tick_age_ms, thread),
        })
    }
}

/// The word for a thread that does not come round, by what has it.
fn stall(tick_age_ms: u64, thread: ThreadIn) -> Option<&'static str> {
    (tick_age_ms > MAX_TICK_AGE_MS).then_some(match thread {
        ThreadIn::Ours => "stalled",
        ThreadIn::Store => "store_hangs",
    })
}

/// `GET /livez`.
pub(crate) async fn live(call: Call) -> Answer {
    probe(Signs::of(&call.app).dead())
}

/// `GET /readyz`. The troubles of a store that all nodes share make none of them unready: if all were taken away, nobody would hear of it.
pub(crate) async fn ready(call: Call) -> Answer {
    probe(Signs::of(&call.app).unready())
}

fn probe(trouble: Option<&'static str>) -> Answer {
    let status = trouble.map_or(StatusCode::OK, |_| StatusCode::SERVICE_UNAVAILABLE);
    Ok(object(status, |out| out.plain("status", trouble.unwrap_or("ok"))))
}

/// `GET /healthz`.
pub(crate) async fn health(call: Call) -> Answer {
    testing::place("http request");
    let health = call.app.client.health();
    let draining = call.app.draining.load(Ordering::Relaxed);
    let stall = stall(health.tick_age_ms, health.thread);
    let hangs = (stall == Some("store_hangs")).then(|| {
        let seconds = health.tick_age_ms / 1_000;
        format!("the store has not returned from a call; the driver has waited for {seconds} s")
    });
    let trouble = call.app.failing.get().or(health.trouble.as_ref());
    let (status, word) = match (trouble, stall) {
        (Some(_), _) => (StatusCode::SERVICE_UNAVAILABLE, "failing"),
        (None, Some(word)) => (StatusCode::SERVICE_UNAVAILABLE, word),
        (None, None) if draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (None, None) => (StatusCode::OK, "ok"),
    };
    let trouble = trouble.or(hangs.as_ref());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_takes_requests_away_soon_and_the_process_late() {
        let ours = |ms| (ms, ms, ThreadIn::Ours);
        // A thread in its store is not quiet, and neither is a node that looks after such threads.
        let store = |ms| (ms, 0, ThreadIn::Store);
        for ((tick_age_ms, quiet_ms, thread), unready, dead) in [
            (ours(0), None, None),
            (ours(5_000), None, None),
            (ours(5_001), Some("stalled"), None),
            (ours(120_000), Some("stalled"), None),
            (ours(120_001), Some("stalled"), Some("stalled")),
            ((500_000, 3, ThreadIn::Ours), Some("stalled"), None),
            (store(5_000), None, None),
            (store(5_001), Some("store_hangs"), None),
            (store(86_400_000), Some("store_hangs"), None),
        ] {
            let signs = Signs { failing: false, leaves: false, tick_age_ms, quiet_ms, thread };
            assert_eq!((signs.unready(), signs.dead()), (unready, dead), "{signs:?}");
            // A server that drains is not killed for it.
            let leaves = Signs { leaves: true, ..signs };
            assert_eq!((leaves.unready(), leaves.dead()), (dead.or(Some("draining")), dead), "{leaves:?}");
            let failing = Signs { failing: true, ..leaves };
            assert_eq!(
                (failing.unready(), failing.dead()),
                (Some("failing"), Some("failing")),
                "{failing:?}"
            );
        }
    }
}
