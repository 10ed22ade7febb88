//! Shards of this node whose drivers do not complete their rounds.

use duewheel_core::id::ShardId;
use duewheel_shard::health::{Health, ThreadIn};

/// A driver that completes no round for this long, in ms, counts as hanging.
const HANGS_MS: u64 = 10_000;

/// The number of shards that a message names; further ones are only counted.
const MAX_NAMED: usize = 8;

/// The shards whose drivers hang, and what holds their threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HangingShards {
    /// The state of the threads of all these shards: waiting for a store only if all of them do.
    pub(crate) thread: ThreadIn,
    /// The number of shards of the node that do not hang.
    pub(crate) others: usize,
    shards: Vec<ShardId>,
    longest_ms: u64,
}

impl HangingShards {
    /// The hanging shards among those that a node serves; `None` if none hangs.
    pub(crate) fn among(shards: impl Iterator<Item = (ShardId, Health)>) -> Option<Self> {
        let (hanging, others): (Vec<_>, Vec<_>) =
            shards.partition(|(_, health)| health.tick_age_ms >= HANGS_MS);
        // A driver that has just returned from its store is about to make the next call or to begin the next round.
        let in_store = |health: &Health| health.thread == ThreadIn::Store || health.quiet_ms < HANGS_MS;
        let unreported = |health: &Health| health.thread == ThreadIn::Unreported;
        let all = |of: &dyn Fn(&Health) -> bool| hanging.iter().all(|(_, health)| of(health));
        let thread = if all(&|health| in_store(health) && !unreported(health)) {
            ThreadIn::Store
        } else if all(&in_store) {
            ThreadIn::Unreported
        } else {
            ThreadIn::Ours
        };
        Some(HangingShards {
            thread,
            others: others.len(),
            longest_ms: hanging.iter().map(|(_, health)| health.tick_age_ms).max()?,
            shards: hanging.into_iter().map(|(shard, _)| shard).collect(),
        })
    }

    /// A sentence that names the shards that wait for their store, and for how long; `None` if a thread waits for
    /// something else.
    pub(crate) fn waiting_for_store(&self) -> Option<String> {
        let waits = match self.thread {
            ThreadIn::Ours => return None,
            ThreadIn::Store => "has not returned from a call",
            ThreadIn::Unreported => "has confirmed nothing",
        };
        let (named, more) = self.shards.split_at(self.shards.len().min(MAX_NAMED));
        let named: Vec<String> = named.iter().map(ToString::to_string).collect();
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let (word, up_to) = if self.shards.len() == 1 { ("shard", "") } else { ("shards", "up to ") };
        let others = match self.others {
            0 => "this node serves no other shard".to_owned(),
            others => format!("shards of this node that are served: {others}"),
        };
        Some(format!(
            "{word} {}{more}: the store {waits} for {up_to}{} s; {others}",
            named.join(", "),
            self.longest_ms / 1_000
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: u64 = HANGS_MS - 1;
    const LATE: u64 = 60_000;

    fn among(all: &[(u64, u64, ThreadIn)]) -> Option<HangingShards> {
        let health =
            |&(tick_age_ms, quiet_ms, thread)| Health { tick_age_ms, quiet_ms, thread, ..Health::default() };
        HangingShards::among((0..).map(ShardId).zip(all.iter().map(health)))
    }

    /// Story: a node whose shards hung in their store was killed for it, and its successor hung in the same store.
    #[test]
    fn store_hang_excludes_other_causes() {
        let of = |all: &[(u64, u64, ThreadIn)]| among(all).map(|hanging| (hanging.thread, hanging.others));
        let in_store = (LATE, 0, ThreadIn::Store);
        let well = (WELL, WELL, ThreadIn::Ours);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[well, (WELL, 0, ThreadIn::Store)]), None);
        assert_eq!(of(&[well, in_store, in_store]), Some((ThreadIn::Store, 1)));
        assert_eq!(
            of(&[(LATE, 20, ThreadIn::Ours)]),
            Some((ThreadIn::Store, 0)),
            "back from it a moment ago"
        );
        assert_eq!(of(&[in_store, (LATE, LATE, ThreadIn::Ours)]), Some((ThreadIn::Ours, 0)));
        let unreported = (LATE, 0, ThreadIn::Unreported);
        assert_eq!(of(&[in_store, unreported, well]), Some((ThreadIn::Unreported, 1)));
        assert_eq!(of(&[unreported, (LATE, LATE, ThreadIn::Ours)]), Some((ThreadIn::Ours, 0)));
    }

    #[test]
    fn shards_waiting_for_store_are_named() {
        let well = (0, 0, ThreadIn::Ours);
        let words =
            |all: &[_]| among(all).and_then(|hanging| hanging.waiting_for_store()).unwrap_or_default();
        assert_eq!(
            words(&[well, (12_345, 0, ThreadIn::Store), well]),
            "shard 1: the store has not returned from a call for 12 s; shards of this node that are served: 2"
        );
        assert_eq!(
            words(&[(LATE, 0, ThreadIn::Store); 11]),
            "shards 0, 1, 2, 3, 4, 5, 6, 7 and 3 more: the store has not returned from a call for up to 60 s; \
             this node serves no other shard"
        );
        assert_eq!(
            words(&[(12_345, 0, ThreadIn::Unreported), well]),
            "shard 0: the store has confirmed nothing for 12 s; shards of this node that are served: 1"
        );
        assert_eq!(words(&[(LATE, LATE, ThreadIn::Ours)]), "", "the node itself is stalled");
    }
}
