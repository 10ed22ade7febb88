//! What a server logs of its start and its end.

use std::time::Duration;

use duewheel::Duewheel;
use duewheel::core::engine::Op;

use crate::config::{LevelOption, Settings, StoreChoice};

/// The longest time that the start waits for the figures in its line.
const FIGURES: Duration = Duration::from_secs(2);

/// Logs version, data, durability, what was recovered in `took`, and how the last process on this folder ended.
pub(crate) async fn started(settings: &Settings, wheel: &Duewheel, took: Duration) {
    let version = env!("CARGO_PKG_VERSION");
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let durability = wheel.client().level().as_str();
    match &settings.store {
        StoreChoice::Redis(redis) => {
            tracing::info!(version, store = "redis", node = %redis.node.name, durability, took_ms, "started");
        }
        StoreChoice::Postgres(postgres) => {
            tracing::info!(version, store = "postgres", node = %postgres.node.name, durability, took_ms, "started");
        }
        StoreChoice::Log { .. } if settings.durability == LevelOption::Memory => {
            tracing::info!(version, store = "memory", durability, took_ms, "started");
        }
        StoreChoice::Log { .. } => {
            // An answer behind the request for figures means that these are as of now.
            wheel.client().renew_store_figures();
            let asked = tokio::time::timeout(FIGURES, wheel.client().ask(Op::stats())).await;
            let figures = match asked {
                Ok(Ok(_)) => wheel.client().store_figures(),
                Ok(Err(_)) | Err(_) => Vec::new(),
            };
            let figure =
                |name: &str| figures.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
            let last_end = match (figure("epoch"), figure("start_complete")) {
                (0, _) => "unknown",
                (1, _) => "none: the folder is new",
                (_, 0) => "cut off",
                (_, _) => "complete",
            };
            tracing::info!(
                version,
                data = %settings.data.display(),
                durability,
                messages = figure("messages"),
                journal_records = figure("start_records"),
                took_ms,
                last_end,
                "started"
            );
        }
    }
}

/// Logs the end, of which `clean` tells whether everything accepted is durable as promised.
pub(crate) fn stopped(settings: &Settings, clean: bool, took: Duration) {
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let is_memory =
        matches!(settings.store, StoreChoice::Log { .. }) && settings.durability == LevelOption::Memory;
    if clean && is_memory {
        tracing::info!(took_ms, "stopped: nothing was kept, because the messages were in memory only");
    } else if clean {
        tracing::info!(took_ms, "stopped: everything that was accepted is in the store");
    } else {
        tracing::error!(took_ms, "stopped, and not cleanly; the next start reads the journal to its end");
    }
}
