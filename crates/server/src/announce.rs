//! Log lines about the start and the end of a server.

use std::time::Duration;

use duewheel::Duewheel;
use duewheel::core::engine::Op;
use duewheel_shard::client::LocalShard;

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
            let (node, shards) = (&redis.node.name, wheel.client().shards());
            tracing::info!(version, store = "redis", %node, shards, durability, took_ms, "started");
        }
        StoreChoice::Postgres(postgres) => {
            let (node, shards) = (&postgres.node.name, wheel.client().shards());
            tracing::info!(version, store = "postgres", %node, shards, durability, took_ms, "started");
        }
        StoreChoice::Log { .. } if settings.durability == LevelOption::Memory => {
            tracing::info!(version, store = "memory", durability, took_ms, "started");
        }
        StoreChoice::Log { .. } => {
            let recovered = Recovery::of(wheel).await;
            tracing::info!(
                version,
                data = %settings.data.display(),
                durability,
                messages = recovered.as_ref().map(|recovered| recovered.messages),
                journal_records = recovered.as_ref().map(|recovered| recovered.journal_records),
                took_ms,
                last_end = recovered.as_ref().map(|recovered| recovered.last_end),
                "started"
            );
        }
    }
}

/// The state in which a start has found a folder, over all of its shards.
struct Recovery {
    messages: u64,
    journal_records: u64,
    last_end: &'static str,
}

impl Recovery {
    /// The figures of all shards; `None` if they do not come soon: nothing is said of what is not known.
    async fn of(wheel: &Duewheel) -> Option<Recovery> {
        let shards = wheel.client().local_shards();
        shards.iter().for_each(LocalShard::renew);
        // An answer of each shard behind the request for figures means that these are as of now.
        let asked = tokio::time::timeout(FIGURES, wheel.client().ask(Op::stats())).await;
        match asked {
            Ok(Ok(stats)) => {
                let counts = &stats.counts;
                let messages = counts.scheduled + counts.ready + counts.leased + counts.dead;
                Some(Recovery::new(messages, &shards.iter().map(LocalShard::states).collect::<Vec<_>>()))
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// The state with these pending messages of users and these figures of each shard.
    fn new(messages: u64, shards: &[Vec<(&'static str, u64)>]) -> Recovery {
        let figure = |shard: &[(&'static str, u64)], name: &str| {
            shard.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value)
        };
        let sum = |name: &str| shards.iter().map(|shard| figure(shard, name)).sum();
        let all = |is: &dyn Fn(u64, u64) -> bool| {
            !shards.is_empty() && shards.iter().all(|s| is(figure(s, "epoch"), figure(s, "start_complete")))
        };
        let last_end = if !all(&|epoch, _| epoch > 0) {
            "unknown"
        } else if all(&|epoch, _| epoch == 1) {
            "none: the folder is new"
        } else if all(&|epoch, is_complete| epoch == 1 || is_complete > 0) {
            "complete"
        } else {
            "cut off"
        };
        Recovery { messages, journal_records: sum("start_records"), last_end }
    }
}

/// Logs the end of a server that a signal stopped before its store was open.
pub(crate) fn never_started() {
    tracing::info!("stopped while starting: nothing was accepted");
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
