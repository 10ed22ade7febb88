//! Indices into the engine's structures, and the order of grants: what the structures know of each other.

/// Index of a row in memory. Valid until the row is removed.
pub(super) type RowIdx = u32;

/// Index of a queue. Valid until the queue vanishes.
pub(super) type QueueIdx = u32;

/// Index of a tenant among the quotas.
pub(super) type TenantIdx = usize;

/// Order of grants: priority, then due time; the id decides between equals, and alone where the order is that of
/// arrival.
pub(super) type GrantRank = (u32, u64);
