//! A view: a snapshot of everything behind the active memtable, that is frozen memtables and runs.

use std::sync::Arc;

use duewheel_core::QueueName;

use crate::mem::Mem;
use crate::run::hash::NameHasher;
use crate::run::{Live, Mask, Run, RunQueue, share};

/// A view; replaced as a whole. Its holder can read all of it, whatever happens to the files.
#[derive(Clone, Debug)]
pub(crate) struct StoreView {
    /// The hashes of keys and dedupe ids in all of it.
    pub(crate) hasher: NameHasher,
    /// The memtables that are written to a run together, oldest first. There is more than one only while the disk has
    /// no room for the run: later removals make it smaller.
    pub(crate) frozen: Vec<Arc<Mem>>,
    /// Runs, oldest first.
    pub(crate) parts: Vec<LiveRun>,
}

/// A run, and its live rows.
#[derive(Clone, Debug)]
pub(crate) struct LiveRun {
    pub(crate) run: Arc<Run>,
    pub(crate) live: Arc<Live>,
}

impl LiveRun {
    /// Whether it has no live messages, answers apart.
    pub(crate) fn is_gone(&self) -> bool {
        if self.live.ids.is_empty() {
            return true;
        }
        let last = self.run.ids().max().unwrap_or(0);
        let is_whole =
            |mask: &Mask| mask.before.0 > last && !mask.keep.iter().any(|id| self.live.may_have(*id));
        // In order of the queues.
        let mut purged: Vec<u32> =
            self.live.masks().filter(|(_, mask)| is_whole(mask)).map(|(queue, _)| queue).collect();
        purged.dedup();
        purged.len() == self.run.queues().len()
    }

    /// Approximate number of its live messages; 0 only if there are none.
    pub(crate) fn messages(&self) -> u64 {
        if self.is_gone() {
            return 0;
        }
        let purged = self.purged().map(|queue| queue.rows).sum();
        self.live.ids.len().saturating_sub(purged).max(1)
    }

    /// The approximate number of bytes that its live messages take in its file, indexes apart. It is not computed from
    /// their number, because rows differ in size.
    pub(crate) fn message_bytes(&self) -> u64 {
        let (run, messages) = (&self.run, self.messages());
        // Lengths, past attempts and other data in addition to a body: an average for each row.
        let beside = run.message_bytes().saturating_sub(run.weight());
        let gone = self.live.gone() + self.purged().map(|queue| queue.weight).sum::<u64>();
        let live = run.weight().saturating_sub(gone) + share(beside, messages, run.rows());
        share(run.message_bytes(), live, run.weight() + beside)
    }

    /// Queues of which purges were not applied to the ids yet.
    fn purged(&self) -> impl Iterator<Item = &RunQueue> {
        let mut masked: Vec<u32> = self.live.masks().map(|(queue, _)| queue).collect();
        masked.dedup();
        masked.into_iter().filter_map(|no| self.run.queues().get(no as usize))
    }

    /// Whether a row of this run is live, as far as the run knows.
    pub(crate) fn counts(&self, id: duewheel_core::MessageId, queue: &QueueName) -> bool {
        self.run.queue_no(queue).is_some_and(|no| self.live.has(id, no))
    }
}
