//! A view: everything behind the active memtable, that is frozen memtables and runs.

use std::sync::Arc;

use duewheel_core::QueueName;

use crate::mem::Mem;
use crate::run::{Live, Mask, Run};

/// A snapshot; replaced as a whole. Its holder can read all of it, whatever happens to the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The memtables that are written to a run together, oldest first. There is more than one only while the disk has
    /// no room for the run: later removals make it smaller.
    pub(crate) frozen: Vec<Arc<Mem>>,
    /// Runs, oldest first.
    pub(crate) parts: Vec<Part>,
}

/// A run, and its live rows.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) run: Arc<Run>,
    pub(crate) live: Arc<Live>,
}

impl Part {
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
        let mut masked: Vec<u32> = self.live.masks().map(|(queue, _)| queue).collect();
        masked.dedup();
        let rows = |no: &u32| self.run.queues().get(*no as usize).map_or(0, |queue| queue.rows);
        self.live.ids.len().saturating_sub(masked.iter().map(rows).sum()).max(1)
    }

    /// Whether a row of this run is live, as far as the run knows.
    pub(crate) fn counts(&self, id: duewheel_core::MessageId, queue: &QueueName) -> bool {
        self.run.queue_no(queue).is_some_and(|no| self.live.has(id, no))
    }
}
