//! Restores a backup to Redis.
//!
//! The format of the cluster's key says that a restore has begun, from before the first shard is made until the last is
//! complete. A restore that has not ended is begun anew, under a new id of the cluster: an earlier restore that still
//! runs acquires no further shard, and cannot end.

use std::sync::Arc;

use duewheel_core::ShardId;
use duewheel_core::store::{ErrorKind, MAX_SHARDS, Node, PLACEMENT, StoreError, Waker};
use duewheel_store_medium::{FillFolder, MediumStore, RestoreTarget, random};
use redis::Pipeline;

use crate::cluster::CoordinatorInner;
use crate::coordinator::RedisCoordinator;
use crate::keys::Keys;
use crate::reign::{self, ClusterIdentity, FORMAT, RESTORING, unknown_format};
use crate::wire::wait_for;
use crate::{fault, script, value};

impl RestoreTarget for RedisCoordinator {
    fn begin_restore(&self, shards: u32) -> Result<(), StoreError> {
        let inner = Arc::clone(self.inner());
        wait_for(async move { inner.begin_restore(shards).await })
    }

    fn restore_shard(
        &self,
        shard: ShardId,
        waker: Waker,
        fill: FillFolder<'_>,
    ) -> Result<MediumStore, StoreError> {
        let node = Node { name: "duewheel restore".into(), advertise: "".into(), number: 0 };
        let (medium, acquired) = self.acquire(&node, shard, Arc::clone(&waker))?;
        let options = self.options();
        MediumStore::restore(medium, &options.shared, options.log.clone(), &acquired, waker, fill)
    }

    fn end_restore(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(self.inner());
        wait_for(async move {
            match inner.restore_step("end", &inner.restored()?).await?.as_str() {
                "OK" => inner.replicas_know().await,
                "OTHER" => {
                    let what = "another restore of the store has begun since, or its keys were removed";
                    Err(StoreError::new(ErrorKind::Fenced, what))
                }
                _ => Err(fault::odd("restore")),
            }
        })
    }
}

impl CoordinatorInner {
    /// The cluster that is being restored.
    fn restored(&self) -> Result<ClusterIdentity, StoreError> {
        let closed = || StoreError::new(ErrorKind::Closed, "no restore has begun");
        self.joined().ok_or_else(closed)
    }

    async fn begin_restore(&self, shards: u32) -> Result<(), StoreError> {
        let living = self.living().await?;
        let is_restoring = self.is_restoring().await?;
        let heads = self.heads(MAX_SHARDS).await?;
        if let (Some(head), false) = (heads.first(), is_restoring) {
            return Err(there(&format!("its shard {}", head.shard), &living));
        }
        for head in &heads {
            self.wipe("look", head.shard).await?;
        }
        let id = reign::hex(&random::<16>()?);
        let cluster = ClusterIdentity { id, shards, secret: random::<32>()?, made: false };
        if let Some((_, shards)) = self.restore_step("begin", &cluster).await?.split_once(' ') {
            return Err(there(&format!("a cluster with shards: {shards}"), &living));
        }
        // Only now: whatever an earlier restore still makes belongs to another cluster.
        for head in &heads {
            self.wipe("wipe", head.shard).await?;
        }
        self.note_joined(cluster);
        self.replicas_know().await
    }

    /// Whether the key of the cluster says that a restore has not ended.
    async fn is_restoring(&self) -> Result<bool, StoreError> {
        let mut call = redis::cmd("HGET");
        call.arg(self.cluster_key()).arg("format");
        let reply = value::some(self.of_cluster(call).await?.into_iter().next(), "HGET")?;
        match value::text(reply, "HGET")?.as_deref() {
            Some(RESTORING) => Ok(true),
            Some(FORMAT) | None => Ok(false),
            Some(other) => Err(unknown_format(self.cluster_key(), other)),
        }
    }

    /// The answer of the script that begins and ends a restore.
    async fn restore_step(&self, verb: &str, cluster: &ClusterIdentity) -> Result<String, StoreError> {
        let mut call = redis::cmd("EVAL");
        call.arg(script::restore()).arg(1).arg(self.cluster_key());
        call.arg(verb).arg(RESTORING).arg(FORMAT).arg(&cluster.id);
        call.arg(cluster.shards).arg(reign::hex(&cluster.secret)).arg(PLACEMENT);
        let reply = self.of_cluster(call).await?.into_iter().next();
        value::some(value::text(value::some(reply, "restore")?, "restore")?, "restore")
    }

    /// Removes what an unfinished restore has left of a shard, or only looks whether that may be done.
    async fn wipe(&self, verb: &str, shard: ShardId) -> Result<(), StoreError> {
        let keys = Keys::new(&self.options().prefix, shard);
        let mut call = redis::cmd("EVAL");
        call.arg(script::wipe()).arg(4).arg(&keys.owner).arg(&keys.head).arg(&keys.files).arg(&keys.blocks);
        call.arg(verb).arg(&keys.block);
        let mut ask = Pipeline::new();
        ask.add_command(call);
        script::answered(self.of_key(&keys.owner, ask).await?).map(drop)
    }
}

/// The refusal of a restore to a store that exists.
fn there(what: &str, living: &[String]) -> StoreError {
    let nodes = match living {
        [] => String::new(),
        names => format!(", living nodes: {}", names.join(", ")),
    };
    let what = format_args!(
        "there is a store already: {what}{nodes}. A backup is restored to an empty Redis, or under a --redis-prefix of \
         its own"
    );
    StoreError::new(ErrorKind::Corrupt, what)
}
