//! The live rows of a run.

use std::collections::BTreeMap;

use duewheel_core::MessageId;
use roaring::RoaringTreemap;

use super::opened::Run;

/// A snapshot for one run: replaced as a whole, never changed while it is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// The live ids, apart from masks.
    pub(crate) ids: RoaringTreemap,
    /// Purges that were not applied to `ids` yet, by the run's number of the queue.
    masks: BTreeMap<u32, Vec<Mask>>,
}

/// One purge of a queue: rows with an id below `before` are removed, except for those kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) before: MessageId,
    /// The ids that it kept, ascending.
    pub(crate) keep: Vec<MessageId>,
}

impl Live {
    /// All rows of a run.
    pub(crate) fn all(run: &Run) -> Self {
        Live { ids: run.ids().clone(), masks: BTreeMap::new() }
    }

    /// Whether a row is live.
    #[inline]
    pub(crate) fn has(&self, id: MessageId, queue: u32) -> bool {
        self.ids.contains(id.0) && (self.masks.is_empty() || !self.is_masked(id, queue))
    }

    /// Whether the id may be live, as far as this is known without its queue.
    #[inline]
    pub(crate) fn may_have(&self, id: MessageId) -> bool {
        self.ids.contains(id.0)
    }

    /// Removes a row.
    #[cfg(test)]
    pub(crate) fn remove(&mut self, id: MessageId) -> bool {
        self.ids.remove(id.0)
    }

    /// Records a purge of a queue. A purge includes whatever an earlier one took: the messages that the earlier one
    /// kept were alive or have been removed since.
    pub(crate) fn mask(&mut self, queue: u32, mask: Mask) {
        let masks = self.masks.entry(queue).or_default();
        masks.retain(|earlier| earlier.before > mask.before);
        masks.push(mask);
    }

    /// Purges by the run's number of the queue.
    pub(crate) fn masks(&self) -> impl Iterator<Item = (u32, &Mask)> {
        self.masks.iter().flat_map(|(queue, masks)| masks.iter().map(|mask| (*queue, mask)))
    }

    fn is_masked(&self, id: MessageId, queue: u32) -> bool {
        let Some(masks) = self.masks.get(&queue) else { return false };
        masks.iter().any(|mask| id < mask.before && mask.keep.binary_search(&id).is_err())
    }

    /// The live rows of a merge's output: `inputs` are the runs, their live rows when the merge began, and their
    /// present ones.
    ///
    /// Purges that were masked when it began have been applied. They are dropped, because otherwise a queue would stay
    /// purged forever.
    pub(crate) fn of_merged(output: &Run, inputs: &[(&Run, &Live, &Live)]) -> Live {
        let mut ids = RoaringTreemap::new();
        for (_, _, live) in inputs {
            ids |= &live.ids;
        }
        ids &= output.ids();
        let mut merged = Live { ids, masks: BTreeMap::new() };
        for (run, then, now) in inputs {
            for (queue, mask) in now.masks() {
                if then.masks().any(|applied| applied == (queue, mask)) {
                    continue;
                }
                let Some(queue) = run.queues().get(queue as usize) else { continue };
                let Some(queue) = output.queue_no(&queue.name) else { continue };
                let known = merged.masks.entry(queue).or_default();
                if !known.contains(mask) {
                    known.push(mask.clone());
                }
            }
        }
        merged
    }
}
