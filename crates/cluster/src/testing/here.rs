//! Shards in memory of this process behind a router, for tests of front ends.

use std::sync::Arc;

use duewheel_core::engine::{Config, Ids, Op};
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{MemoryStore, Store};
use duewheel_shard::client::Client;
use duewheel_shard::clock::Clock;
use duewheel_shard::inbox::{Inbox, WhenBusy};
use duewheel_shard::lifecycle::Lifecycle;
use duewheel_shard::local::LocalShard;
use duewheel_shard::pending::Pending;
use duewheel_shard::quotas::QuotaSource;
use duewheel_shard::runner::{StartError, WhenFenced};
use duewheel_shard::shared::DriverShared;
use duewheel_shard::thread::Shard;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::routing::router::Router;
use crate::shards::Shards;

/// The first name of reserves and sessions of this node.
const NAMES: u64 = 1 << 40;

/// Shards of this process.
#[derive(Debug)]
struct InMemoryShards(Vec<One>);

#[derive(Debug)]
struct One {
    client: Client,
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
}

/// A client of this number of shards in memory. Commands that end it go to a shard of their own that takes no
/// operations.
///
/// # Errors
/// See [`StartError`].
pub fn open(
    shards: u32,
    policy: &Policy,
    seed: u64,
    quotas: QuotaSource,
    clock: &Arc<dyn Clock>,
) -> Result<(Client, Lifecycle), StartError> {
    let start = |ids| {
        let config = Config { policy: policy.clone(), seed, ids, ..Config::default() };
        let opener = |waker| Ok(Box::new(MemoryStore::with_waker(waker)) as Box<dyn Store>);
        Shard::start(Box::new(opener), config, quotas.clone(), clock.clone(), WhenFenced::OpenAgain)
            .map(Shard::hand_on)
    };
    let mut here = InMemoryShards(Vec::new());
    for shard in 0..shards {
        let (inbox, shared) = start(Ids::of(ShardId(shard), shards))?;
        here.0.push(One { client: Client::new(inbox.clone(), shared.clone()), inbox, shared });
    }
    let (inbox, shared) = start(Ids::default())?;
    let router = Router::new(
        Arc::new(here),
        policy.clone(),
        &inbox,
        &shared,
        quotas.clone(),
        NAMES,
        Handle::current(),
    );
    let life = Lifecycle::new(inbox.clone(), shared.clone());
    Ok((Client::routed(inbox, shared, router, NAMES), life))
}

impl Shards for InMemoryShards {
    fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn here(&self) -> Vec<ShardId> {
        (0..self.count()).map(ShardId).collect()
    }

    fn local_shards(&self) -> Vec<LocalShard> {
        let local = |(shard, one): (ShardId, &One)| {
            LocalShard::new(Some(shard), Some((one.inbox.clone(), one.shared.clone())))
        };
        self.here().into_iter().zip(&self.0).map(local).collect()
    }

    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending {
        let n = ops.len();
        match self.0[shard.0 as usize].client.offer(ops, patience) {
            Ok(pending) => pending,
            Err((error, _)) => {
                let (to, answers) = oneshot::channel();
                drop(to.send((0..n).map(|_| Err(error.clone())).collect()));
                Pending::new(answers, n)
            }
        }
    }
}

impl Drop for InMemoryShards {
    fn drop(&mut self) {
        for one in &self.0 {
            Lifecycle::new(one.inbox.clone(), one.shared.clone()).stop();
        }
    }
}
