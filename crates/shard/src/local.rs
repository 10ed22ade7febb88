//! Reports of a node about its shards: counters that never decrease, and the states of the shards it owns.

use std::sync::Arc;
use std::time::Duration;

use duewheel_core::engine::{Op, QuotaUse, Stats};
use duewheel_core::id::ShardId;
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::figures::{Counted, is_counter};
use crate::inbox::{Inbox, Submission, WhenBusy};
use crate::pending::Pending;
use crate::shared::DriverShared;

/// A shard that this node owns or has owned.
#[derive(Clone, Debug)]
pub struct LocalShard {
    shard: Option<ShardId>,
    /// The counts of earlier runs in this process.
    past: Counted,
    /// The current run.
    reign: Option<(Arc<Inbox>, Arc<DriverShared>)>,
}

impl LocalShard {
    /// A shard without counts so far; `reign` is the current run, if this node owns the shard.
    pub fn new(shard: Option<ShardId>, reign: Option<(Arc<Inbox>, Arc<DriverShared>)>) -> Self {
        LocalShard { shard, past: Counted::default(), reign }
    }

    /// Starts a run on this node. The one before must have been folded.
    pub fn begin(&mut self, inbox: Arc<Inbox>, shared: Arc<DriverShared>) {
        self.reign = Some((inbox, shared));
    }

    /// Ends the current run, if there is one: its counts are kept.
    pub fn fold(&mut self) {
        if let Some((_, shared)) = self.reign.take() {
            self.past.add(&shared.counted());
        }
    }

    /// Adds the time in ms in which nobody owned the shard before this node took it.
    pub fn add_unowned(&mut self, ms: u64) {
        self.past.unowned_ms += ms;
    }

    /// Whether the shard has done everything that was to be done by now; true for one that this node does not own. For a
    /// clock that stands: on any other it is true only for moments.
    pub fn has_caught_up(&self) -> bool {
        // In this order: what was taken out of the inbox is work until the driver sleeps again.
        self.reign.as_ref().is_none_or(|(inbox, shared)| inbox.is_empty() && shared.has_caught_up())
    }

    /// How long it takes until time next changes a message of a shard that has caught up; `None`: never.
    pub fn next_event_in(&self) -> Option<Duration> {
        self.reign.as_ref().and_then(|(_, shared)| shared.next_event_in())
    }

    /// The number of the shard; `None` without a cluster.
    pub fn shard(&self) -> Option<ShardId> {
        self.shard
    }

    /// Everything this process has counted for the shard.
    pub fn counted(&self) -> Counted {
        let mut counted = self.past.clone();
        if let Some((_, shared)) = &self.reign {
            counted.add(&shared.counted());
        }
        counted
    }

    /// The state of the shard, as its driver last reported it: at most a second ago, or since [`LocalShard::renew`].
    /// `None` when this node does not own it.
    pub fn stats(&self) -> Option<Stats> {
        self.reign.as_ref().map(|(_, shared)| shared.figures().stats)
    }

    /// Use of quotas by tenants, in this shard.
    pub fn quotas(&self) -> Vec<QuotaUse> {
        self.reign.as_ref().map(|(_, shared)| shared.figures().quotas).unwrap_or_default()
    }

    /// The store's figures that are not counters.
    pub fn states(&self) -> Vec<(&'static str, u64)> {
        let store = self.reign.as_ref().map(|(_, shared)| shared.figures().store).unwrap_or_default();
        store.into_iter().filter(|(name, _)| !is_counter(name)).collect()
    }

    /// Submits an operation to this shard directly, and to no other node.
    ///
    /// # Errors
    /// This node does not own the shard, or it accepts nothing.
    pub fn ask(&self, op: Op) -> Result<Pending, CallError> {
        let Some((inbox, _)) = &self.reign else {
            return Err(CallError::Closed("this node does not own the shard"));
        };
        let (answer, answers) = oneshot::channel();
        match inbox.offer(Submission { ops: vec![op], answer, patience: WhenBusy::Refuse, has_waited: false })
        {
            Ok(()) => Ok(Pending::new(answers, 1)),
            Err((error, _)) => Err(error),
        }
    }

    /// Requests figures as of now or later: they are available once an operation submitted later has been answered.
    pub fn renew(&self) {
        if let Some((_, shared)) = &self.reign {
            shared.want_figures();
        }
    }
}
