//! The live rows of a run.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Sum of the weights of the rows that were removed from `ids`, in bytes. An estimate, for the choice of merges.
    gone: u64,
}

/// A purge of a queue: rows with an id below `before` are removed, except for those kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) before: MessageId,
    /// The ids that it kept and that were live in the run then, ascending. (Others may be among them.)
    pub(crate) keep: Vec<MessageId>,
}

impl Mask {
    /// Adds what the same purge kept of another run.
    fn keep_also(&mut self, ids: &[MessageId]) {
        self.keep.extend_from_slice(ids);
        self.keep.sort_unstable();
        self.keep.dedup();
    }
}

impl Live {
    /// All rows of a run.
    pub(crate) fn all(run: &Run) -> Self {
        Live { ids: run.ids().clone(), masks: BTreeMap::new(), gone: 0 }
    }

    /// The rows of a run without the removed ones, whose weights sum up to `gone`.
    pub(crate) fn without(run: &Run, removed: &RoaringTreemap, gone: u64) -> Self {
        Live { ids: run.ids() - removed, masks: BTreeMap::new(), gone }
    }

    /// Removes rows whose weights sum up to `weight`.
    pub(crate) fn take(&mut self, ids: &RoaringTreemap, weight: u64) {
        self.ids -= ids;
        self.gone = self.gone.saturating_add(weight);
    }

    /// Sum of the weights of the rows that were removed, apart from masks.
    pub(crate) fn gone(&self) -> u64 {
        self.gone
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
        let gone = inputs.iter().map(|(_, then, now)| now.gone.saturating_sub(then.gone)).sum();
        let mut merged = Live { ids, masks: BTreeMap::new(), gone };
        let of_output = |run: &Run, queue: u32| output.queue_no(&run.queues().get(queue as usize)?.name);
        // A purge is new as a whole when it is new for one of the runs: each has its own part of what the purge kept.
        let mut new = BTreeSet::new();
        for (run, then, now) in inputs {
            let came = now.masks().filter(|mask| !then.masks().any(|applied| applied == *mask));
            new.extend(came.filter_map(|(queue, mask)| Some((of_output(run, queue)?, mask.before))));
        }
        for (run, _, now) in inputs {
            for (queue, mask) in now.masks() {
                let Some(queue) = of_output(run, queue).filter(|queue| new.contains(&(*queue, mask.before)))
                else {
                    continue;
                };
                let known = merged.masks.entry(queue).or_default();
                match known.iter_mut().find(|known| known.before == mask.before) {
                    Some(known) => known.keep_also(&mask.keep),
                    None => known.push(mask.clone()),
                }
            }
        }
        merged
    }
}

/// `of` times `part` divided by `whole`, rounded down; `of` at most.
pub(crate) fn share(of: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(of) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(of)
}
