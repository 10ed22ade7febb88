//! The part of a queue with many messages that is in memory.

use crate::store::Cursor;

/// The part of a queue with a backlog that is in memory, in one clock class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Everything up to here is in memory. `None`: the horizon applies.
    pub(super) limit: Option<Cursor>,
    /// The end time and ticket of the page that is loading.
    pub(super) catching: Option<(u64, u64)>,
    /// The lowest position of a message that was turned away while that page was loading.
    pub(super) dropped: Option<Cursor>,
}

impl Backlog {
    /// Whether a page of it may be requested, because none is loading.
    pub(super) fn lacks_a_page(&self) -> bool {
        self.limit.is_some() && self.catching.is_none()
    }
}
