//! The ends of the journals as this process has last seen them: a server that took the place of another one, or that
//! was restored, may have lost changes that were durable.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use duewheel_core::store::Level;
use duewheel_core::{Epoch, Lsn};

use crate::fence::locked;

/// The newest durable change of each shard that this process has owned.
///
/// # Examples
/// ```
/// use duewheel_core::{Epoch, Lsn};
/// use duewheel_core::store::Level;
/// use duewheel_store_medium::JournalEnds;
///
/// let ends = JournalEnds::default();
/// ends.note(3, Epoch(7), Lsn(100), Level::Fsync);
/// assert_eq!(ends.lost(3, Lsn(100)), None);
/// let lost = ends.lost(3, Lsn(90)).expect("ten changes");
/// assert_eq!((lost.changes, lost.of_quorum), (10, 0));
/// ends.count(3, Lsn(90));
/// assert_eq!((ends.lost(3, Lsn(90)), ends.lost_total(3)), (None, 10), "each is counted once");
/// ```
#[derive(Debug, Default)]
pub struct JournalEnds(Mutex<BTreeMap<u32, JournalEnd>>);

#[derive(Clone, Copy, Debug, Default)]
struct JournalEnd {
    durable: Lsn,
    /// The epoch of the owner.
    epoch: Epoch,
    /// The newest change that was durable at [`Level::Quorum`].
    of_quorum: Lsn,
    lost: u64,
}

/// Changes that were durable, and that the medium has no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostChanges {
    /// The number of all lost changes.
    pub changes: u64,
    /// The number of those that were durable at [`Level::Quorum`].
    pub of_quorum: u64,
    /// The epoch of the owner to whom the changes were reported.
    pub epoch: Epoch,
}

impl JournalEnds {
    /// Notes that the changes of a shard are durable up to this one, at this level, for its owner of this epoch.
    pub fn note(&self, shard: u32, epoch: Epoch, durable: Lsn, level: Level) {
        let mut ends = self.ends();
        let end = ends.entry(shard).or_default();
        end.durable = end.durable.max(durable);
        end.epoch = end.epoch.max(epoch);
        if level == Level::Quorum {
            end.of_quorum = end.of_quorum.max(durable);
        }
    }

    /// Durable changes that a shard has lost, if its last change is this one.
    pub fn lost(&self, shard: u32, last: Lsn) -> Option<LostChanges> {
        let end = self.ends().get(&shard).copied()?;
        let beyond = |end: Lsn| end.0.saturating_sub(last.0);
        let (changes, of_quorum) = (beyond(end.durable), beyond(end.of_quorum));
        let lost = LostChanges { changes, of_quorum, epoch: end.epoch };
        (lost.changes > 0).then_some(lost)
    }

    /// Counts what a shard has lost, whose last change is this one. It goes on from there.
    pub fn count(&self, shard: u32, last: Lsn) {
        let Some(lost) = self.lost(shard, last) else { return };
        let mut ends = self.ends();
        let end = ends.entry(shard).or_default();
        end.lost += lost.changes;
        (end.durable, end.of_quorum) = (last, end.of_quorum.min(last));
    }

    /// The number of changes that were found to be lost since this process began.
    pub fn lost_total(&self, shard: u32) -> u64 {
        self.ends().get(&shard).map_or(0, |end| end.lost)
    }

    fn ends(&self) -> MutexGuard<'_, BTreeMap<u32, JournalEnd>> {
        locked(&self.0)
    }
}
