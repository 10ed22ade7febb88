//! The memory for ready messages and the leases that all queues share, and the share of each queue.

use std::collections::BTreeSet;

use crate::time::EngineMs;

use super::index::QueueIdx;

/// A queue's share of the memory for ready messages.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) demand: HasDemand,
    pub(super) ends: Option<EngineMs>,
    /// The magnitude under which it is listed among the holders of memory.
    pub(super) magnitude: Option<u32>,
    pub(super) is_busy: bool,
    /// The largest page of its backlog: less than this size fitted last time.
    pub(super) page_rows: Option<usize>,
    pub(super) load_order: Option<(LoadOrder, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HasDemand {
    #[default]
    No,
    Yes,
}

/// The orders in which backlogs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadOrder {
    /// Queues in demand that have little in memory, and for which there is memory.
    Served,
    /// All other queues: they get the rest.
    Idle,
}

/// The exhausted limit of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scarce {
    Leases,
    Bytes,
}

/// The shares of all queues, and the next queues to load.
#[derive(Debug, Default)]
pub(super) struct ReadyMemory {
    pub(super) rows: usize,
    pub(super) weight: u64,
    /// Queues with ready messages in memory, by the magnitude of what they hold: without demand, and with demand.
    pub(super) holders: [BTreeSet<(u32, QueueIdx)>; 2],
    /// Queues in demand that have a backlog.
    pub(super) busy: usize,
    /// When demand ends, unless a reserve waits then.
    pub(super) ends: BTreeSet<(EngineMs, QueueIdx)>,
    pub(super) to_load: [BTreeSet<(u64, QueueIdx)>; 2],
    pub(super) places: u64,
    /// Rows and bytes that loading pages of backlogs may bring.
    pub(super) coming_rows: usize,
    pub(super) coming_weight: u64,
    /// Number of queues that were examined, to serve or to load them.
    pub(super) visited: u64,
}
