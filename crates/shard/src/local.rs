//! What a node tells of the shards that it has to do with: counters that never fall, and the states of those that it owns.

use std::sync::Arc;

use duewheel_core::engine::{Op, QuotaUse, Stats};
use duewheel_core::id::ShardId;
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::figures::{Counted, is_counter};
use crate::inbox::{Inbox, Patience, Submission};
use crate::pending::Pending;
use crate::shared::Shared;

/// A shard that this node owns, or has owned.
#[derive(Clone, Debug)]
pub struct LocalShard {
    shard: Option<ShardId>,
    /// What earlier reigns of this process have counted.
    past: Counted,
    /// The reign under way.
    reign: Option<(Arc<Inbox>, Arc<Shared>)>,
}

impl LocalShard {
    /// A shard of which nothing has been counted so far; `reign` is the one under way, if this node owns it.
    pub fn new(shard: Option<ShardId>, reign: Option<(Arc<Inbox>, Arc<Shared>)>) -> Self {
        LocalShard { shard, past: Counted::default(), reign }
    }

    /// A reign of this node begins. The one before must have been folded.
    pub fn begin(&mut self, inbox: Arc<Inbox>, shared: Arc<Shared>) {
        self.reign = Some((inbox, shared));
    }

    /// The reign under way is over, if there is one: what it has counted stays.
    pub fn fold(&mut self) {
        if let Some((_, shared)) = self.reign.take() {
            self.past.add(&shared.counted());
        }
    }

    /// Nobody owned it for so many ms before this node took it.
    pub fn add_unowned(&mut self, ms: u64) {
        self.past.unowned_ms += ms;
    }

    /// Which; `None` where there is one, and no cluster.
    pub fn shard(&self) -> Option<ShardId> {
        self.shard
    }

    /// What this process has counted of it.
    pub fn counted(&self) -> Counted {
        let mut counted = self.past.clone();
        if let Some((_, shared)) = &self.reign {
            counted.add(&shared.counted());
        }
        counted
    }

    /// How it is, as its driver has told last: at most a second ago, or since [`LocalShard::renew`]. `None` when this node does not own it.
    pub fn stats(&self) -> Option<Stats> {
        self.reign.as_ref().map(|(_, shared)| shared.figures().stats)
    }

    /// What tenants use of their quotas in it.
    pub fn quotas(&self) -> Vec<QuotaUse> {
        self.reign.as_ref().map(|(_, shared)| shared.figures().quotas).unwrap_or_default()
    }

    /// The store's figures that are no counters.
    pub fn states(&self) -> Vec<(&'static str, u64)> {
        let store = self.reign.as_ref().map(|(_, shared)| shared.figures().store).unwrap_or_default();
        store.into_iter().filter(|(name, _)| !is_counter(name)).collect()
    }

    /// Asks the shard itself, and no other node.
    ///
    /// # Errors
    /// This node does not own it, or it takes nothing.
    pub fn ask(&self, op: Op) -> Result<Pending, CallError> {
        let Some((inbox, _)) = &self.reign else {
            return Err(CallError::Closed("this node does not own the shard"));
        };
        let (answer, answers) = oneshot::channel();
        match inbox.offer(Submission { ops: vec![op], answer, patience: Patience::None, has_waited: false }) {
            Ok(()) => Ok(Pending::new(answers, 1)),
            Err((error, _)) => Err(error),
        }
    }

    /// Asks for figures of a moment from now on: they are there once a question that is asked later is answered.
    pub fn renew(&self) {
        if let Some((_, shared)) = &self.reign {
            shared.want_figures();
        }
    }
}
