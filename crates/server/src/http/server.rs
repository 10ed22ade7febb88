//! Calls about the server itself: its cluster, tokens, quotas, clock for tests, and backups.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use duewheel::core::QueueName;
use duewheel::core::engine::{Op, QuotaUse, Resource};
use duewheel::core::store::Node;
use duewheel::{AdvanceError, BackupError, BackupReport, Destination, ShardView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::Call;
use super::strict::{self, Text, Whole};
use super::{Answer, answer, reply};
use crate::auth::{Caller, Scope, TokenEntry};
use crate::error::{ErrorCode, Problem};
use crate::json::{Elements, InstantText};
use crate::schema::{DelaySchema, QueueSchema, StageSchema};
use crate::span::SpanText;

pub(crate) async fn cluster(call: Call) -> Answer {
    let Some(view) = call.app.wheel.cluster() else {
        let why = "this server has one shard and is no node of a cluster; --shards or --store redis://… gives it more";
        return Err(Problem::new(ErrorCode::NotFound, why));
    };
    let node = |node: &Node| NodeAnswer {
        name: node.name.to_string(),
        advertise: node.advertise.to_string(),
        shards: view.shards.iter().filter(|shard| shard.owner.as_ref() == Some(&node.name)).count() as u64,
    };
    let answer = ClusterAnswer {
        node: &view.me.name,
        age_ms: u64::try_from(view.age.as_millis()).unwrap_or(u64::MAX),
        nodes: view.nodes.iter().map(node).collect(),
        shards_without_owner: view.shards.iter().filter(|shard| is_free(shard)).count() as u64,
        shards: Elements(&view.shards, ShardAnswer::of),
    };
    Ok(reply(StatusCode::OK, &answer))
}

/// Whether it is known that no node owns the shard.
fn is_free(shard: &ShardView) -> bool {
    shard.owner.is_none() && shard.unknown.is_none()
}

/// The nodes, and the owners of shards, as the answering node sees them.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Cluster")]
pub(crate) struct ClusterAnswer<'a> {
    /// The node that answers.
    pub(super) node: &'a str,
    /// The age of this view in ms.
    pub(super) age_ms: u64,
    pub(super) nodes: Vec<NodeAnswer>,
    pub(super) shards_without_owner: u64,
    pub(super) shards: Elements<'a, ShardView, ShardAnswer<'a>>,
}

/// A node of the cluster.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Node")]
pub(crate) struct NodeAnswer {
    pub(super) name: String,
    /// The address at which the other nodes reach it.
    pub(super) advertise: String,
    /// The number of shards that it owns.
    pub(super) shards: u64,
}

answer! {
    /// A shard of the cluster.
    #[schemars(rename = "Shard")]
    ShardAnswer<'a> of (shard: &'a ShardView) {
        shard: u32 = shard.shard.0,
        /// The node that owns it, while its lease runs.
        owner: Option<&'a str> = shard.owner.as_deref(),
        /// Why it is not known whether it has an owner. Absent when it is known.
        ?unknown: &'a str = shard.unknown.as_deref(),
        /// The node that should own it.
        wanted: Option<&'a str> = shard.wanted.as_deref(),
        /// The epoch of the owner.
        epoch: Option<u32> = shard.epoch.map(|epoch| epoch.0),
        #[schemars(with = "StageSchema")]
        here: &'static str = shard.here.as_str(),
    }
}

/// Returns the caller's permissions to every valid token; an open server answers that all calls are permitted.
pub(crate) async fn token(call: Call) -> Answer {
    let token = match &call.caller {
        Caller::Holder(entry) => Some(TokenAnswer::of(entry)),
        Caller::Trusted | Caller::Stranger(_) => None,
    };
    let answer = IdentityAnswer { open: call.app.guard.is_open(), token };
    Ok(reply(StatusCode::OK, &answer))
}

pub(crate) async fn tokens(call: Call) -> Answer {
    let entries = call.app.guard.entries();
    let tokens = entries.iter().map(|entry| TokenAnswer::of(entry)).collect();
    Ok(reply(StatusCode::OK, &TokensAnswer { tokens }))
}

/// The permissions of the caller.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Identity")]
pub(crate) struct IdentityAnswer<'a> {
    /// Whether the server requires no tokens, so that every caller may make every call.
    pub(super) open: bool,
    /// The caller's token; `null` where none is required.
    pub(super) token: Option<TokenAnswer<'a>>,
}

/// All tokens that the server knows.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Tokens")]
pub(crate) struct TokensAnswer<'a> {
    pub(super) tokens: Vec<TokenAnswer<'a>>,
}

answer! {
    /// The permissions of a token, without the token.
    #[schemars(rename = "Token")]
    TokenAnswer<'a> of (entry: &'a TokenEntry) {
        name: &'a str = &entry.name,
        #[schemars(with = "Vec<String>")]
        scopes: Vec<Scope> = entry.scopes.iter().copied().collect(),
        /// The prefixes of its queues; `null` for all queues.
        #[schemars(with = "Option<Vec<QueueSchema>>")]
        queues: Option<Vec<&'a str>> = entry.queues.as_ref().map(|all| all.iter().map(QueueName::as_str).collect()),
        /// The time from which on it is invalid; `null` for never.
        expires: Option<InstantText> = entry.expires.map(InstantText),
    }
}

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
        strict::either_within(asked.by_ms, asked.by, ("by", "by_ms"), limit)?
            .ok_or_else(|| Problem::field("by", "one of by_ms and by must be given"))?
    };
    let moved = call.app.wheel.advance(&clock, Duration::from_millis(by_ms)).await;
    moved.map_err(|error| match error {
        AdvanceError::Call(error) => Problem::from(error),
        error => Problem::field("by", error.to_string()),
    })?;
    Ok(reply(StatusCode::OK, &AdvancedAnswer { now: InstantText(call.app.client.now().wall) }))
}

/// The destination of a copy of the data folder.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Backup")]
pub(crate) struct BackupRequest<'a> {
    /// A path on the server's machine: an absolute path of an empty folder of the server's user; or, with
    /// `--backup-root`, a path below that folder.
    #[serde(borrow)]
    dest: Text<'a>,
}

pub(crate) async fn backup(mut call: Call) -> Answer {
    let dest = {
        let bytes = call.json_bytes(call.app.policy.max_batch_bytes).await?;
        strict::parse::<BackupRequest<'_>>(&bytes)?.dest.0.into_owned()
    };
    let dest = &*dest;
    let destination = destination(dest, call.app.limits.backup_root.as_deref())?;
    let copied = call.app.wheel.backup_into(destination).await.map_err(|error| {
        let draining = call.app.draining.load(Ordering::Relaxed);
        match error {
            BackupError::Closed if draining => Problem::new(ErrorCode::Draining, error.to_string()),
            error => Problem::from_backup(&error),
        }
    })?;
    *call.app.last_backup.lock().await = Some(call.app.client.now().wall);
    let made = call.app.limits.backup_root.as_deref().map_or_else(|| dest.into(), |root| root.join(dest));
    let dest = made.to_string_lossy();
    tracing::info!(%dest, files = copied.files, bytes = copied.bytes, "backup made");
    let BackupReport { files, bytes, linked, last } = copied;
    Ok(reply(StatusCode::OK, &BackedUpAnswer { dest: &dest, files, bytes, linked, last_lsn: last.0 }))
}

/// A complete copy of the data folder.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "BackedUp")]
pub(crate) struct BackedUpAnswer<'a> {
    pub(super) dest: &'a str,
    /// Files of the copy.
    pub(super) files: u64,
    /// Bytes in them.
    pub(super) bytes: u64,
    /// Files that are hard links of the server's own: they take no space as long as the server has them, too.
    pub(super) linked: u64,
    /// The last record in the copy.
    pub(super) last_lsn: u64,
}

/// A client names the destination, and the server writes with rights that the client may not have. So the server
/// accepts a folder that its own user has prepared, or creates one below the root of all backups.
fn destination(dest: &str, root: Option<&Path>) -> Result<Destination, Problem> {
    if dest.contains('\0') {
        return Err(Problem::field("dest", "must not have a zero byte in it"));
    }
    let path = Path::new(dest);
    match root {
        // Clients do not know the server's working directory.
        None if !path.is_absolute() => {
            Err(Problem::field("dest", "must be an absolute path, on the machine of the server"))
        }
        None => Ok(Destination::Prepared(path.to_owned())),
        Some(root) => {
            let name = path.strip_prefix(root).unwrap_or(path);
            Ok(Destination::Below { root: root.to_owned(), name: name.to_owned() })
        }
    }
}

/// Returns the quotas. A token that is limited to queues sees only the quotas of these queues, and none that it shares
/// with others.
pub(crate) async fn quotas(call: Call) -> Answer {
    let mut uses = call.app.ask(Op::quotas()).await?;
    uses.retain(|one| call.caller.sees_quota(&one.quota.prefix));
    Ok(reply(StatusCode::OK, &QuotasAnswer { quotas: Elements(&uses, QuotaAnswer::of) }))
}

/// All quotas.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Quotas")]
pub(crate) struct QuotasAnswer<'a> {
    pub(super) quotas: Elements<'a, QuotaUse, QuotaAnswer<'a>>,
}

answer! {
    /// Limits and use of a tenant.
    #[schemars(rename = "Quota")]
    QuotaAnswer<'a> of (one: &'a QuotaUse) {
        /// The prefix of the tenant's queues.
        prefix: &'a str = &one.quota.prefix,
        messages: ResourceAnswer = ResourceAnswer::of(one, Resource::Messages),
        bytes: ResourceAnswer = ResourceAnswer::of(one, Resource::Bytes),
        leases: ResourceAnswer = ResourceAnswer::of(one, Resource::Leases),
        /// Remembered answers to enqueues with a `dedupe_id`.
        answers: ResourceAnswer = ResourceAnswer::of(one, Resource::Answers),
        enqueues_per_second: RateAnswer = RateAnswer::of(one),
    }
}

answer! {
    /// A limit, and its use.
    #[schemars(rename = "QuotaResource")]
    ResourceAnswer of (one: &QuotaUse, resource: Resource) {
        /// `null` where there is no limit.
        limit: Option<u64> = one.quota.limit(resource),
        used: u64 = one.used[resource as usize],
        /// Refusals since the start; of leases: reserves that were held back.
        refused: u64 = one.refused[resource as usize],
    }
}

answer! {
    /// A rate, and its use.
    #[schemars(rename = "QuotaRate")]
    RateAnswer of (one: &QuotaUse) {
        /// Enqueues a second; `null` where there is no limit.
        limit: Option<u64> = one.quota.limit(Resource::Enqueues),
        /// Enqueues at once.
        burst: Option<u64> = one.quota.burst.or(one.quota.enqueues_per_second),
        /// The used part of the burst.
        used: u64 = one.used[Resource::Enqueues as usize],
        /// Refusals since the start.
        refused: u64 = one.refused[Resource::Enqueues as usize],
    }
}
