//! Shards that are all in this process and in memory, behind a router: for tests of front ends.

use std::sync::Arc;

use duewheel_core::engine::{Config, Ids, Op};
use duewheel_core::id::ShardId;
use duewheel_core::policy::Policy;
use duewheel_core::store::{MemoryStore, Store};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::Shards;
use super::router::Router;
use crate::Duewheel;
use crate::backup::Copier;
use crate::builder::OpenError;
use crate::client::{Client, Pending};
use crate::clock::Clock;
use crate::inbox::Patience;
use crate::local::{Counted, LocalShard};
use crate::quotas::QuotaSource;
use crate::shard::Shard;
use crate::shared::Wish;

/// Names of reserves and sessions of this node.
const NAMES: u64 = 1 << 40;

/// Shards of this process.
#[derive(Debug)]
struct Here(Vec<Client>);

/// A wheel of so many shards in memory. What a shutdown ends is a shard of its own, which nobody asks anything.
pub(crate) fn open(
    shards: u32,
    policy: &Policy,
    seed: u64,
    quotas: QuotaSource,
    clock: &Arc<dyn Clock>,
) -> Result<Duewheel, OpenError> {
    let start = |ids| {
        let config = Config { policy: policy.clone(), seed, ids, ..Config::default() };
        let opener = |waker| Ok(Box::new(MemoryStore::with_waker(waker)) as Box<dyn Store>);
        Shard::start(
            Box::new(opener),
            config,
            quotas.clone(),
            clock.clone(),
            crate::runner::WhenFenced::OpenAgain,
        )
        .map(Shard::hand_on)
    };
    let mut here = Here(Vec::new());
    for shard in 0..shards {
        let (inbox, shared) = start(Ids::of(ShardId(shard), shards))?;
        here.0.push(Client::new(inbox, shared));
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
    Ok(Duewheel::new(Client::routed(inbox, shared, router, NAMES), Copier::None, policy.clone(), quotas))
}

impl Shards for Here {
    fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn here(&self) -> Vec<ShardId> {
        (0..self.count()).map(ShardId).collect()
    }

    fn local_shards(&self) -> Vec<LocalShard> {
        let local = |(shard, client): (ShardId, &Client)| LocalShard {
            shard: Some(shard),
            past: Counted::default(),
            reign: Some((client.inbox.clone(), client.shared.clone())),
        };
        self.here().into_iter().zip(&self.0).map(local).collect()
    }

    fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: Patience) -> Pending {
        let n = ops.len();
        match self.0[shard.0 as usize].offer(ops, patience) {
            Ok(pending) => pending,
            Err((error, _)) => {
                let (to, answers) = oneshot::channel();
                drop(to.send((0..n).map(|_| Err(error.clone())).collect()));
                Pending::new(answers, n)
            }
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        for client in &self.0 {
            client.shared.wish(Wish::Stop, &client.inbox);
        }
    }
}
