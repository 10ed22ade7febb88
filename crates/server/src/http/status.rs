//! `GET /v1/status`: the state of this server on one page.

use std::time::Duration;

use axum::http::StatusCode;
use duewheel::core::WallMs;
use duewheel_bridge::outbox::{OutboxFigures, OutboxService};
use duewheel_delivery::TargetStage;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, App, answer, audit, metrics, reply};
use crate::json::{InstantText, LevelText};

/// The time for a look into the audit trail.
const LOOK_UP: Duration = Duration::from_secs(5);

impl App {
    /// When the last copy was made, as far as it is recorded.
    async fn last_backup(&self) -> Option<WallMs> {
        let known = *self.last_backup.lock().await;
        if known.is_some() {
            return known;
        }
        // The trail is in all shards, and the state is also shown while some are away.
        let found = tokio::time::timeout(LOOK_UP, audit::last(self, "createBackup")).await;
        let found = found.ok()?.ok()??;
        Some(*self.last_backup.lock().await.get_or_insert(found))
    }
}

/// `GET /v1/status`.
pub(crate) async fn status(call: Call) -> Answer {
    let app = &call.app;
    let last_backup = app.last_backup().await.map(InstantText);
    let start = app.start.get();
    let facts = start.map(|start| &start.facts);
    let folder = facts.and_then(|facts| facts.folder.as_ref());
    let local = app.client.local_shards();
    let figures = |wanted: &'static [&str]| {
        let all = local.iter().flat_map(|shard| shard.states());
        all.filter(|(name, _)| wanted.contains(name)).map(|(_, value)| value)
    };
    let disk = folder.and_then(|folder| metrics::free_of(folder)).map(|free_bytes| DiskAnswer {
        used_bytes: figures(&["run_bytes", "journal_bytes"]).sum(),
        free_bytes,
        // Each shard compares its own with the same disk.
        reserve_bytes: figures(&["disk_reserve_bytes"]).max().unwrap_or(0),
    });
    let statuses = app.delivery().as_ref().map(|service| service.statuses()).unwrap_or_default();
    let open = statuses.into_iter().filter(|(_, status)| status.stage == TargetStage::Open);
    let breakers = open.map(|(target, status)| BreakerAnswer {
        target,
        since: InstantText(WallMs::from_system_time_up(status.since)),
        because: status.reason,
    });
    let answer = ServerStatusAnswer {
        version: env!("CARGO_PKG_VERSION"),
        started_at: start.map(|start| InstantText(start.at)),
        uptime_ms: start.map(|start| u64::try_from(start.since.elapsed().as_millis()).unwrap_or(u64::MAX)),
        store: StoreAnswer {
            kind: facts.map_or("memory", |facts| facts.store),
            level: LevelText(app.client.level()),
            folder: folder.map(|folder| folder.display().to_string()),
        },
        disk,
        memory: MemoryAnswer {
            used_bytes: figures(&["memory_bytes"]).sum(),
            limit_bytes: facts.map(|facts| facts.memory),
        },
        shards: shards(app),
        breakers: breakers.collect(),
        databases: app.outboxes().iter().flat_map(OutboxService::figures).map(DatabaseAnswer::of).collect(),
        last_backup,
        warnings: facts.map(|facts| facts.warnings.clone()).unwrap_or_default(),
    };
    Ok(reply(StatusCode::OK, &answer))
}

fn shards(app: &App) -> Vec<OwnedShardAnswer> {
    if let Some(view) = app.wheel.cluster() {
        let shard = |shard: &duewheel::ShardView| OwnedShardAnswer {
            shard: shard.shard.0,
            owner: shard.owner.as_deref().map(str::to_owned),
            open: shard.here == duewheel::ShardStage::Serving,
        };
        return view.shards.iter().map(shard).collect();
    }
    vec![OwnedShardAnswer { shard: 0, owner: None, open: app.client.health().trouble.is_none() }]
}

/// The state of this server.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ServerStatus")]
pub(crate) struct ServerStatusAnswer {
    pub(super) version: &'static str,
    pub(super) started_at: Option<InstantText>,
    pub(super) uptime_ms: Option<u64>,
    pub(super) store: StoreAnswer,
    /// The disk of the data folder; `null` without one.
    pub(super) disk: Option<DiskAnswer>,
    pub(super) memory: MemoryAnswer,
    pub(super) shards: Vec<OwnedShardAnswer>,
    /// The targets of this node whose breaker is open.
    pub(super) breakers: Vec<BreakerAnswer>,
    /// The databases whose outboxes this node drains, or stands by for.
    pub(super) databases: Vec<DatabaseAnswer>,
    /// The last `POST /v1/backup`, as far as the audit trail has it.
    pub(super) last_backup: Option<InstantText>,
    /// The warnings of the start.
    pub(super) warnings: Vec<String>,
}

/// The store of a server.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "StoreStatus")]
pub(crate) struct StoreAnswer {
    /// `log`, `memory`, `redis` or `postgres`.
    pub(super) kind: &'static str,
    pub(super) level: LevelText,
    /// The data folder; `null` without one.
    pub(super) folder: Option<String>,
}

/// The disk of the data folder.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "DiskStatus")]
pub(crate) struct DiskAnswer {
    /// Bytes of runs and of needed journal segments.
    pub(super) used_bytes: u64,
    /// Bytes that the server's user may still write.
    pub(super) free_bytes: u64,
    /// With fewer free bytes new messages are refused.
    pub(super) reserve_bytes: u64,
}

/// The memory for recent changes.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "MemoryStatus")]
pub(crate) struct MemoryAnswer {
    pub(super) used_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
}

/// A shard, as the answering node sees it.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "ShardStatus")]
pub(crate) struct OwnedShardAnswer {
    pub(super) shard: u32,
    /// The node that owns it; `null` without a cluster, or if no node does.
    pub(super) owner: Option<String>,
    /// Whether this server serves it.
    pub(super) open: bool,
}

/// A target whose breaker is open: its messages wait.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "OpenBreaker")]
pub(crate) struct BreakerAnswer {
    pub(super) target: String,
    pub(super) since: InstantText,
    /// The class of the last failure.
    pub(super) because: Option<String>,
}

answer! {
    /// A database with an outbox, as the answering node sees it.
    #[schemars(rename = "OutboxDatabase")]
    DatabaseAnswer of (figures: &OutboxFigures) with {
        let (waiting, oldest) = figures.waiting();
    } {
        name: String = figures.database().to_owned(),
        /// Whether it answers.
        up: bool = figures.is_up(),
        /// Rows that wait, up to 100,001; 0 where another node drains.
        waiting: u64 = waiting,
        /// The age of the oldest row that waits.
        oldest_ms: u64 = u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX),
        /// Rows that were refused for good since this node's start: they are in `duewheel.rejected`.
        rejected: u64 = figures.rejected(),
        /// The error that stops the drain.
        last_error: Option<String> = figures.last_error(),
    }
}
