//! Gives up data that Redis has lost, so that the rest, or a new cluster, can be served.

use std::fmt;

use duewheel_core::ShardId;
use duewheel_core::store::{ErrorKind, MAX_SHARDS, PLACEMENT, StoreError};
use duewheel_store_medium::{hex, random};
use redis::Pipeline;

use crate::cluster::CoordinatorInner;
use crate::fault;
use crate::keys::Keys;
use crate::reign::{ClusterIdentity, FORMAT, unknown_format};

/// The result of [`RedisCoordinator::reset`](crate::RedisCoordinator::reset).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Shards that existed, and stay unchanged.
    pub kept: Vec<ShardId>,
    /// Shards that were missing, and are empty now. They give no id that a lost shard may have given.
    pub made: Vec<ShardId>,
}

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} shards kept, {} shards made anew", self.kept.len(), self.made.len())
    }
}

/// The head of an existing shard.
pub(crate) struct ShardHead {
    pub(crate) shard: ShardId,
    /// The cluster of the shard, empty if a single owner has made it, and the number of shards of that.
    cluster: (String, u32),
}

impl CoordinatorInner {
    /// Creates what is missing. Nothing that exists is changed or deleted.
    pub(crate) async fn reset(&self, shards_if_new: u32) -> Result<Reset, StoreError> {
        self.nobody_lives().await?;
        let stored = self.stored().await?;
        let shards = stored.as_ref().map_or(shards_if_new.max(1), |cluster| cluster.shards);
        // Without the cluster's key, only the remaining shards show how many there were.
        let heads = self.heads(if stored.is_some() { shards } else { MAX_SHARDS }).await?;
        let cluster = match stored {
            Some(cluster) => cluster,
            None => {
                let known = heads.iter().map(|head| head.cluster.clone()).find(|(id, _)| !id.is_empty());
                let (id, shards) = match known {
                    Some(known) => known,
                    None => (hex(&random::<16>()?), shards),
                };
                ClusterIdentity { id, shards, secret: random::<32>()?, made: true }
            }
        };
        if cluster.shards != shards {
            let what = format_args!(
                "the shards that are left are of a cluster of {}: say --shards {0}",
                cluster.shards
            )
            .to_string();
            return Err(StoreError::new(ErrorKind::Corrupt, what));
        }
        if let Some(head) = heads.iter().find(|head| head.cluster.0 != cluster.id) {
            let what =
                format_args!("shard {} belongs to another cluster than the others", head.shard).to_string();
            return Err(StoreError::new(ErrorKind::Corrupt, what));
        }
        let kept: Vec<ShardId> = heads.iter().map(|head| head.shard).collect();
        let made: Vec<ShardId> = (0..shards).map(ShardId).filter(|shard| !kept.contains(shard)).collect();
        for shard in &made {
            self.make_shard(&cluster, *shard).await?;
        }
        let mut call = redis::cmd("HSET");
        call.arg(self.cluster_key()).arg("format").arg(FORMAT).arg("id").arg(&cluster.id);
        call.arg("shards").arg(shards).arg("secret").arg(hex(&cluster.secret));
        call.arg("placement").arg(PLACEMENT).arg("made").arg("1");
        self.of_cluster(call).await?;
        Ok(Reset { kept, made })
    }

    async fn nobody_lives(&self) -> Result<(), StoreError> {
        let lives = self.living().await?;
        if lives.is_empty() {
            return Ok(());
        }
        let what =
            format_args!("nodes take part, or did until a moment ago: {}; stop them first", lives.join(", "));
        Err(StoreError::new(ErrorKind::Fenced, what.to_string()))
    }

    /// The heads of the shards below a number that exist.
    pub(crate) async fn heads(&self, shards: u32) -> Result<Vec<ShardHead>, StoreError> {
        let mut heads = Vec::new();
        for shard in (0..shards).map(ShardId) {
            let key = Keys::new(&self.options().prefix, shard).head;
            let mut ask = Pipeline::new();
            ask.cmd("HMGET").arg(&key).arg(&["format", "cluster", "shards"]);
            let of = "HMGET";
            let reply = fault::some(self.of_key(&key, ask).await?.into_iter().next(), of)?;
            let mut words = fault::list(reply, of)?.into_iter();
            let mut next = || fault::text(words.next().unwrap_or_default(), of);
            let (format, cluster, count) = (next()?, next()?, next()?);
            let Some(format) = format else { continue };
            if format != FORMAT {
                return Err(unknown_format(&key, &format));
            }
            let cluster = cluster.zip(count.and_then(|count| count.parse().ok()));
            let cluster = cluster.ok_or_else(|| fault::damaged(&key, "cluster", "there is none"))?;
            heads.push(ShardHead { shard, cluster });
        }
        Ok(heads)
    }

    pub(crate) async fn has_been_written(&self, shard: ShardId) -> Result<bool, StoreError> {
        let key = Keys::new(&self.options().prefix, shard).head;
        let mut ask = Pipeline::new();
        ask.cmd("HGET").arg(&key).arg("journal");
        let reply = fault::some(self.of_key(&key, ask).await?.into_iter().next(), "HGET")?;
        match fault::number(reply, "HGET")? {
            Some(writes) => Ok(writes > 0),
            None => Ok(self.stored().await?.is_some_and(|cluster| cluster.made)),
        }
    }

    /// Creates a shard whose mark of ids is not that of a new one, so that its first owner begins behind all ids that
    /// were ever given.
    async fn make_shard(&self, cluster: &ClusterIdentity, shard: ShardId) -> Result<(), StoreError> {
        let key = Keys::new(&self.options().prefix, shard).head;
        let mut ask = Pipeline::new();
        let call =
            ask.cmd("HSET").arg(&key).arg("format").arg(FORMAT).arg("journal").arg(0).arg("ids").arg(2);
        call.arg("cluster")
            .arg(&cluster.id)
            .arg("shards")
            .arg(cluster.shards)
            .arg("placement")
            .arg(PLACEMENT);
        self.of_key(&key, ask).await?;
        Ok(())
    }
}
