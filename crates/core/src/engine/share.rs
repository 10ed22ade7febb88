//! What a queue has of what all queues share: memory for ready messages, and leases.

use crate::time::EngineMs;

/// What a queue has to do with the memory for ready messages.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) demand: Demand,
    pub(super) ends: Option<EngineMs>,
    /// The magnitude under which it is listed among the holders.
    pub(super) magnitude: Option<u32>,
    pub(super) is_busy: bool,
    /// Largest page of its backlog: less than that found room last time.
    pub(super) page_rows: Option<usize>,
    pub(super) line: Option<(Line, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Demand {
    #[default]
    None,
    Some,
}

/// Backlogs to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Queues in demand that are low, and for which there is room.
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
