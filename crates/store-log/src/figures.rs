//! Figures of the store, for people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper edges of the columns of the durations of syncs in microseconds, each with the name of its figure, whose word is
/// the edge in seconds. A last column has what takes longer.
const SYNC_COLUMNS: [(u64, &str); 15] = [
    (100, "sync_duration_bucket_total.0.0001"),
    (250, "sync_duration_bucket_total.0.00025"),
    (500, "sync_duration_bucket_total.0.0005"),
    (1_000, "sync_duration_bucket_total.0.001"),
    (2_500, "sync_duration_bucket_total.0.0025"),
    (5_000, "sync_duration_bucket_total.0.005"),
    (10_000, "sync_duration_bucket_total.0.01"),
    (25_000, "sync_duration_bucket_total.0.025"),
    (50_000, "sync_duration_bucket_total.0.05"),
    (100_000, "sync_duration_bucket_total.0.1"),
    (250_000, "sync_duration_bucket_total.0.25"),
    (500_000, "sync_duration_bucket_total.0.5"),
    (1_000_000, "sync_duration_bucket_total.1"),
    (5_000_000, "sync_duration_bucket_total.5"),
    (u64::MAX, "sync_duration_bucket_total.+Inf"),
];

/// Bounds and names of the columns for the records of a group.
const GROUP_COLUMNS: [(u64, &str); 11] = [
    (1, "group_records_bucket_total.1"),
    (3, "group_records_bucket_total.3"),
    (10, "group_records_bucket_total.10"),
    (30, "group_records_bucket_total.30"),
    (100, "group_records_bucket_total.100"),
    (300, "group_records_bucket_total.300"),
    (1_000, "group_records_bucket_total.1000"),
    (3_000, "group_records_bucket_total.3000"),
    (10_000, "group_records_bucket_total.10000"),
    (30_000, "group_records_bucket_total.30000"),
    (u64::MAX, "group_records_bucket_total.+Inf"),
];

/// Adds one to the column of a value. An edge belongs to its column.
fn count(columns: &[AtomicU64], edges: &[(u64, &str)], value: u64) {
    if let Some(column) = edges.iter().position(|(edge, _)| value <= *edge) {
        columns[column].fetch_add(1, Relaxed);
    }
}

/// Makes [`Counters`] of fields, each with the name of its figure.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident: $name:literal,)*) => {
        /// Counters since the store was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $field: AtomicU64,)*
            sync_durations: [AtomicU64; SYNC_COLUMNS.len()],
            group_records: [AtomicU64; GROUP_COLUMNS.len()],
        }

        impl Counters {
            pub(crate) fn figures(&self) -> Vec<(&'static str, u64)> {
                let of = |counter: &AtomicU64| counter.load(Relaxed);
                let columns = SYNC_COLUMNS.iter().zip(&self.sync_durations);
                let columns = columns.chain(GROUP_COLUMNS.iter().zip(&self.group_records));
                let columns = columns.map(|((_, name), counter)| (*name, of(counter)));
                columns.chain([$(($name, of(&self.$field)),)*]).collect()
            }
        }
    };
}

counters! {
    groups: "groups_total",
    records: "records_total",
    marks: "marks_total",
    bytes: "journal_written_bytes_total",
    syncs: "syncs_total",
    sync_micros: "sync_microseconds_total",
    rotations: "segment_rotations_total",
    /// Number of times that the owner had to wait for the next segment.
    segment_waits: "segment_waits_total",
    /// Groups that have waited for the next segment.
    groups_waited: "groups_waited_total",
    segments_made: "segments_made_total",
    segments_reused: "segments_reused_total",
    /// Large segments that a folder at rest gave back.
    segments_shrunk: "segments_shrunk_total",
    prepare_failures: "segment_failures_total",
    /// Number of pages for which the disk could not read a block.
    page_failures: "page_failures_total",
    /// Look-ups that were fetched from the medium outside the owner's thread.
    fetches: "fetches_total",
    /// Number of fetches that met an error.
    fetch_failures: "fetch_failures_total",
    cuts: "cuts_total",
    flushes: "flushes_total",
    flush_failures: "flush_failures_total",
    flush_micros: "flush_microseconds_total",
    flush_bytes: "flush_written_bytes_total",
    /// The number of flushes that wrote more than was computed before.
    flushes_over: "flushes_over_reserve_total",
    merges: "merges_total",
    merge_failures: "merge_failures_total",
    merge_micros: "merge_microseconds_total",
    merge_bytes: "merge_written_bytes_total",
}

impl Counters {
    pub(crate) fn synced(&self, took: Duration) {
        self.syncs.fetch_add(1, Relaxed);
        self.sync_micros.fetch_add(micros(took), Relaxed);
        count(&self.sync_durations, &SYNC_COLUMNS, micros(took));
    }

    /// A group of so many records was appended.
    pub(crate) fn appended(&self, records: u32) {
        self.groups.fetch_add(1, Relaxed);
        self.records.fetch_add(u64::from(records), Relaxed);
        count(&self.group_records, &GROUP_COLUMNS, u64::from(records));
    }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_land_in_their_histogram_column() {
        let counters = Counters::default();
        for us in [0, 100, 101, 1_000_000, 5_000_001, u64::MAX] {
            counters.synced(Duration::from_micros(us));
        }
        for records in [1, 2, 3, 30_001] {
            counters.appended(records);
        }
        let figures = counters.figures();
        let of = |name: &str| figures.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        let syncs = ["0.0001", "0.00025", "0.0005", "1", "5", "+Inf"];
        let syncs = syncs.map(|edge| of(&format!("sync_duration_bucket_total.{edge}")));
        assert_eq!(syncs, [2, 1, 0, 1, 0, 2].map(Some));
        let groups = ["1", "3", "10", "+Inf"].map(|edge| of(&format!("group_records_bucket_total.{edge}")));
        assert_eq!(groups, [1, 2, 0, 1].map(Some));
        assert_eq!((of("groups_total"), of("records_total")), (Some(4), Some(30_007)));
    }

    /// The word of a column's figure is its edge, and the edges ascend.
    #[test]
    fn column_names_match_their_edges() {
        let edge = |name: &str| name.split_once('.').unwrap().1.parse::<f64>().unwrap();
        for (columns, scale) in [(&SYNC_COLUMNS[..], 1e6), (&GROUP_COLUMNS[..], 1.0)] {
            let (last, finite) = columns.split_last().unwrap();
            assert!(edge(last.1).is_infinite() && columns.is_sorted());
            for (value, name) in finite {
                assert!((edge(name) * scale - *value as f64).abs() < 1e-6, "{name}");
            }
        }
    }
}
