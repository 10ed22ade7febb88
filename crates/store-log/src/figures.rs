//! Figures of the store, for people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) groups: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) marks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) rotations: AtomicU64,
    /// Number of times that the owner had to wait for the next segment.
    pub(crate) segment_waits: AtomicU64,
    /// Groups that have waited for the next segment.
    pub(crate) groups_waited: AtomicU64,
    pub(crate) segments_made: AtomicU64,
    pub(crate) segments_reused: AtomicU64,
    pub(crate) prepare_failures: AtomicU64,
    pub(crate) cuts: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) flush_failures: AtomicU64,
    pub(crate) flush_micros: AtomicU64,
    pub(crate) flush_bytes: AtomicU64,
    /// The number of flushes that wrote more than was computed before.
    pub(crate) flushes_over: AtomicU64,
    pub(crate) merges: AtomicU64,
    pub(crate) merge_failures: AtomicU64,
    pub(crate) merge_micros: AtomicU64,
    pub(crate) merge_bytes: AtomicU64,
    /// Number of pages for which the disk could not read a block.
    pub(crate) page_failures: AtomicU64,
    syncs: AtomicU64,
    sync_micros: AtomicU64,
}

impl Counters {
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.fetch_add(1, Relaxed);
        self.sync_micros.fetch_add(micros(took), Relaxed);
    }

    pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        vec![
            ("groups_total", of(&self.groups)),
            ("records_total", of(&self.records)),
            ("marks_total", of(&self.marks)),
            ("journal_written_bytes_total", of(&self.bytes)),
            ("syncs_total", of(&self.syncs)),
            ("sync_microseconds_total", of(&self.sync_micros)),
            ("segment_rotations_total", of(&self.rotations)),
            ("segment_waits_total", of(&self.segment_waits)),
            ("groups_waited_total", of(&self.groups_waited)),
            ("segments_made_total", of(&self.segments_made)),
            ("segments_reused_total", of(&self.segments_reused)),
            ("segment_failures_total", of(&self.prepare_failures)),
            ("page_failures_total", of(&self.page_failures)),
            ("cuts_total", of(&self.cuts)),
            ("flushes_total", of(&self.flushes)),
            ("flush_failures_total", of(&self.flush_failures)),
            ("flush_microseconds_total", of(&self.flush_micros)),
            ("flush_written_bytes_total", of(&self.flush_bytes)),
            ("flushes_over_reserve_total", of(&self.flushes_over)),
            ("merges_total", of(&self.merges)),
            ("merge_failures_total", of(&self.merge_failures)),
            ("merge_microseconds_total", of(&self.merge_micros)),
            ("merge_written_bytes_total", of(&self.merge_bytes)),
        ]
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
