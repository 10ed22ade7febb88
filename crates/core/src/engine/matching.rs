//! The queues that have ready messages and waiting consumers, by the reason why these are not matched yet.

use std::collections::BTreeSet;

use crate::time::EngineMs;

use super::queue::QueueIdx;

/// Queues with ready messages and waiting consumers.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Queues to be matched: nothing is in the way.
    pub(super) dirty: BTreeSet<QueueIdx>,
    /// Queues that the limit of leases holds back: by the exhausted limit and the queue's own use of it.
    pub(super) starved: [BTreeSet<(u64, QueueIdx)>; 2],
    /// Queues that wait until the store accepts more than removals.
    pub(super) barred: BTreeSet<QueueIdx>,
    /// When the rates of queues allow grants again.
    pub(super) rate_wakes: BTreeSet<(EngineMs, QueueIdx)>,
}
