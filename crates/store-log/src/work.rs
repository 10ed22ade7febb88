//! What the background worker has for itself.

use std::fmt;
use std::time::Instant;

use duewheel_core::store::Ledger;

use crate::folder::FileNo;
use crate::manifest::StateEntry;
use crate::merge::Merge;
use crate::names::Interner;

/// What the background worker has for itself.
pub(crate) struct Work {
    /// The books as of the last cut that was taken in.
    pub(crate) ledger: Ledger,
    pub(crate) names: Interner,
    /// What the manifest lists.
    pub(crate) state: Option<StateEntry>,
    pub(crate) merging: Option<Merging>,
    /// Merges that had failed when a flush found no room last.
    pub(crate) merge_failures: u64,
}

/// A merge that is under way.
#[derive(Debug)]
pub(crate) struct Merging {
    pub(crate) no: FileNo,
    pub(crate) merge: Merge,
    pub(crate) why: Why,
    pub(crate) began: Instant,
}

/// What a merge is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Fewer and fuller runs. It keeps off the room of the flushes to come.
    Order,
    /// The disk is full, and this makes room: it takes less than it gives back, or finds no room itself.
    Room,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("state", &self.state).finish_non_exhaustive()
    }
}
