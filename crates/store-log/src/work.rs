//! State that only the background worker uses.

use std::fmt;
use std::time::Instant;

use duewheel_core::store::Ledger;

use crate::folder::FileNo;
use crate::manifest::StateEntry;
use crate::merge::Merge;
use crate::names::Interner;

/// The state of the background worker.
pub(crate) struct Work {
    /// The books as of the last cut that was flushed.
    pub(crate) ledger: Ledger,
    pub(crate) names: Interner,
    /// The state file that the manifest lists.
    pub(crate) state: Option<StateEntry>,
    pub(crate) merging: Option<Merging>,
    /// Number of failed merges when a flush last found no room.
    pub(crate) merge_failures: u64,
}

/// A merge in progress.
#[derive(Debug)]
pub(crate) struct Merging {
    pub(crate) no: FileNo,
    pub(crate) merge: Merge,
    pub(crate) why: MergePurpose,
    pub(crate) began: Instant,
}

/// The purpose of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergePurpose {
    /// The merge makes fewer and fuller runs, and leaves space for the next flushes.
    Order,
    /// The merge frees space on a full disk: it takes less than it frees, or fails for lack of space itself.
    Room,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("state", &self.state).finish_non_exhaustive()
    }
}
