//! Purges of queues, as a memtable keeps them.

use duewheel_core::{IdSet, MessageId};

use super::arena::ArenaOffset;

/// A purge of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Purge {
    pub(super) place: ArenaOffset,
    /// The first id that the purge does not concern.
    pub(crate) before: MessageId,
    /// The ids that it kept: those of the leased messages.
    pub(crate) keep: IdSet,
}

impl Purge {
    /// Whether it removed this message, if the message is older.
    pub(crate) fn takes(&self, id: MessageId) -> bool {
        id < self.before && !self.keep.contains(id)
    }
}
