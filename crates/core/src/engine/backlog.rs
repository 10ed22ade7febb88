//! How far the messages of a queue with many are in memory.

use crate::store::Cursor;

/// How far a queue with a backlog is in memory, in one clock class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Everything up to here is in memory. `None`: the horizon counts.
    pub(super) limit: Option<Cursor>,
    /// A page up to this time is under way, under this ticket.
    pub(super) catching: Option<(u64, u64)>,
    /// The lowest place that was turned away meanwhile.
    pub(super) dropped: Option<Cursor>,
}

impl Backlog {
    /// Whether a page of it may be asked for: one is not under way.
    pub(super) fn lacks_a_page(&self) -> bool {
        self.limit.is_some() && self.catching.is_none()
    }
}
