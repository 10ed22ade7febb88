//! Counts of grants and leases.

use super::reply::{ExpiredCounts, LATENESS_MS};

/// Counts since the engine was made.
#[derive(Debug, Default)]
pub(super) struct GrantFigures {
    pub(super) lease_expired: u64,
    pub(super) lease_lost: u64,
    pub(super) held_back: u64,
    pub(super) expired: ExpiredCounts,
    /// Grants by their lateness; the last column is for all above the greatest bound.
    pub(super) lateness: [u64; LATENESS_MS.len() + 1],
    pub(super) lateness_sum_ms: u64,
}
