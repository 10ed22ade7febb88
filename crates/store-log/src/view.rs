//! A view: a snapshot of everything behind the active memtable, that is frozen memtables and runs, and what is
//! subtracted from runs when newer tables have removed rows.

use std::sync::Arc;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_core::{MessageId, QueueName};
use roaring::RoaringTreemap;

use crate::fault::ReadFault;
use crate::mem::Mem;
use crate::run::filter::NameHasher;
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

// Subtracts from runs the rows that newer tables have removed.

/// The runs without the rows that these tables remove. Rows that they change stay, because the rest of these messages
/// is in the runs alone.
pub(crate) fn without_gone(parts: &[LiveRun], tables: &[Arc<Mem>]) -> Result<Vec<LiveRun>, ReadFault> {
    let mut parts = parts.to_vec();
    for mem in tables {
        take_away(&mut parts, mem, sorted(mem.ids().filter(|id| mem.is_gone(MessageId(*id))))?);
    }
    Ok(parts)
}

/// A set of the ids, which are in ascending order.
pub(crate) fn sorted(ids: impl Iterator<Item = u64>) -> Result<RoaringTreemap, ReadFault> {
    let ids = RoaringTreemap::from_sorted_iter(ids);
    Ok(ids.map_err(|_| StoreError::new(ErrorKind::Unavailable, "ids are out of order"))?)
}

/// Removes ids from the parts, and the rows that the table's purges took.
pub(crate) fn take_away(parts: &mut [LiveRun], mem: &Mem, ids: RoaringTreemap) {
    for part in parts {
        let removed = &part.live.ids & &ids;
        if !removed.is_empty() {
            let weight = removed.iter().map(|id| mem.weight_before(MessageId(id))).sum();
            Arc::make_mut(&mut part.live).take(&removed, weight);
        }
        for (queue, purge) in mem.purges() {
            if let Some(no) = part.run.queue_no(queue) {
                let live = Arc::make_mut(&mut part.live);
                // The kept ids that are in this run: each id is in one run, and is stored once.
                let keep = purge.keep.iter().filter(|id| live.may_have(*id)).collect();
                live.mask(no, Mask { before: purge.before, keep });
            }
        }
    }
}
