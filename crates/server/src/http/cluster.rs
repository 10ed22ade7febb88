//! `GET /v1/cluster`: the nodes, and the owners of shards, as this node sees them.

use axum::http::StatusCode;
use duewheel::ShardView;
use duewheel::core::store::Node;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::Call;
use super::{Answer, reply};
use crate::error::{ErrorCode, Problem};
use crate::json::Elements;
use crate::schema::StageSchema;

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
        shards: Elements::new(&view.shards, ShardAnswer::of),
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

/// A shard of the cluster.
#[derive(Debug, JsonSchema, Serialize)]
#[schemars(rename = "Shard")]
pub(crate) struct ShardAnswer<'a> {
    pub(super) shard: u32,
    /// The node that owns it, while its lease runs.
    pub(super) owner: Option<&'a str>,
    /// Why it is not known whether it has an owner. Absent when it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unknown: Option<&'a str>,
    /// The node that should own it.
    pub(super) wanted: Option<&'a str>,
    /// The epoch of the owner.
    pub(super) epoch: Option<u32>,
    #[schemars(with = "StageSchema")]
    pub(super) here: &'static str,
}

impl<'a> ShardAnswer<'a> {
    fn of(shard: &'a ShardView) -> Self {
        ShardAnswer {
            shard: shard.shard.0,
            owner: shard.owner.as_deref(),
            unknown: shard.unknown.as_deref(),
            wanted: shard.wanted.as_deref(),
            epoch: shard.epoch.map(|epoch| epoch.0),
            here: shard.here.as_str(),
        }
    }
}
