//! Names and descriptions of the store's figures, for `/metrics`.

/// The kind of a figure: a counter only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
}

impl MetricKind {
    /// The word of Prometheus' text format.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        }
    }
}

/// A histogram of the store: its columns are figures of their own, one for each upper edge.
#[derive(Debug)]
pub(super) struct StoreHistogram {
    /// The family of its columns.
    pub(super) columns: &'static str,
    /// The name of the histogram in `/metrics`, without prefix.
    pub(super) name: &'static str,
    /// The figure that is the sum of all values.
    pub(super) sum: &'static str,
    pub(super) help: &'static str,
}

pub(super) const HISTOGRAMS: [StoreHistogram; 2] = [
    StoreHistogram {
        columns: "sync_duration_bucket_total",
        name: "sync_duration_seconds",
        sum: "sync_microseconds_total",
        help: "How long syncs of the journal have taken, since the start of this process.",
    },
    StoreHistogram {
        columns: "group_records_bucket_total",
        name: "group_records",
        sum: "records_total",
        help: "Records of the groups appended, since the start of this process.",
    },
];

/// Kind and help text of a store's figure, by its name without prefix. A figure that is not in the table is described
/// by its name alone.
pub(super) fn of_store(name: &str) -> (MetricKind, &'static str) {
    let found = COUNTERS.iter().find(|(n, _)| *n == name).map(|(_, help)| (MetricKind::Counter, *help));
    let found = found.or_else(|| {
        let gauge = GAUGES.iter().find(|(n, _)| *n == name);
        gauge.map(|(_, help)| (MetricKind::Gauge, *help))
    });
    found.unwrap_or(if name.ends_with("_total") {
        (MetricKind::Counter, UNNAMED)
    } else {
        (MetricKind::Gauge, UNNAMED)
    })
}

const UNNAMED: &str = "A figure of the store.";

/// Help text of a figure of the cluster, by its name without prefix.
pub(super) fn of_cluster(name: &str) -> &'static str {
    match name {
        "shards_owned" => "Shards that this node owns.",
        "shards_without_owner" => {
            "Shards without an owner, as this node sees it; the maximum over nodes counts."
        }
        "shard_moves_total" => "Shards that this node has taken from another one.",
        "forwarded_again_total" => {
            "Submissions that this node has sent again, because their shard had another owner."
        }
        _ => "A figure of the cluster.",
    }
}

/// Counters of this process, over all openings of the store.
const COUNTERS: [(&str, &str); 38] = [
    ("groups_total", "Groups of records appended."),
    ("records_total", "Records appended."),
    ("marks_total", "Marks of clocks and boots written to the journal."),
    ("journal_written_bytes_total", "Bytes written to the journal."),
    ("syncs_total", "Syncs of the journal."),
    ("sync_microseconds_total", "Time that syncs of the journal have taken."),
    ("segment_rotations_total", "Journal segments begun."),
    ("segment_waits_total", "Times that the driver has waited for the next journal segment."),
    ("groups_waited_total", "Groups that have waited in memory for the next journal segment."),
    ("segments_made_total", "Journal segments made as new files."),
    ("segments_reused_total", "Journal segments made of files that are no longer needed."),
    ("segments_shrunk_total", "Large journal segments that a folder with little in it has given back."),
    ("segment_failures_total", "Journal segments that could not be made; each is tried again."),
    ("page_failures_total", "Pages that could not be read from the disk; each is read again."),
    ("fetches_total", "Look-ups whose blocks were read from the disk or the server beside the driver."),
    ("fetch_failures_total", "Look-ups beside the driver that failed; their requests get the error."),
    ("cuts_total", "Memtables frozen for a flush."),
    ("flushes_total", "Flushes of memtables to runs."),
    ("flush_failures_total", "Flushes that failed; each is tried again."),
    ("flush_microseconds_total", "Time that flushes have taken."),
    ("flush_written_bytes_total", "Bytes that flushes have written to runs."),
    ("flushes_over_reserve_total", "Flushes that wrote more than the space reserved for them."),
    ("merges_total", "Merges of runs."),
    ("merge_failures_total", "Merges that failed; each is tried again."),
    ("merge_microseconds_total", "Time that merges have taken."),
    ("merge_written_bytes_total", "Bytes that merges have written to runs."),
    (
        "append_microseconds_total",
        "Time from sending a write to the journal in Redis until its answer, with the wait for replicas.",
    ),
    ("appends_answered_total", "Writes to the journal that Redis has answered."),
    ("renewals_total", "Renewals of the lease on the shard."),
    ("granted_expired_total", "Grants of messages that had expired, in queues that deliver late."),
    ("died_expired_total", "Messages that are dead because they had expired."),
    (
        "done_not_kept_total",
        "Messages that ended and could not be kept as done: no room, a store that is behind, or a limit.",
    ),
    (
        "done_given_up_total",
        "Done messages that were removed before their time, because of a limit or a lack of room.",
    ),
    ("answers_forgotten_total", "Answers to dedupe ids forgotten before the end of their window, by reason."),
    ("fences_total", "Reigns that ended because this node had lost the shard, by reason."),
    ("wait_failures_total", "Writes to the journal that too few replicas had in time (--redis-wait)."),
    (
        "lost_changes_total",
        "Durable changes that a server of the store had lost when this node opened the shard again.",
    ),
    ("clock_disagreements_total", "Times that two clocks disagreed about a time without an owner."),
];

const GAUGES: [(&str, &str); 23] = [
    ("disk_reserve_bytes", "Bytes of the disk that must be free for new messages."),
    ("done_messages", "Messages that have ended and are kept as done."),
    ("done_bytes", "Weight of the messages that are kept as done."),
    ("answers", "Answers remembered for the dedupe ids of callers."),
    ("answer_bytes", "Size of these answers in bytes, as quotas count it."),
    ("messages", "Messages in the store: pending ones, those that are kept as done, and the server's own."),
    ("memory_bytes", "Memory of the memtables."),
    ("memory_records", "Records in the memtables."),
    ("journal_bytes", "Bytes of records in journal segments that are still needed."),
    ("journal_segments", "Journal segments that are in use or ready to be used."),
    ("journal_spare_segments", "Journal segments that are no longer needed and kept to be used again."),
    ("runs", "Runs: sorted files of messages."),
    ("run_bytes", "Bytes of all runs."),
    ("run_messages", "Messages in runs, settled ones that are not merged away yet included."),
    ("run_messages_live", "Unsettled messages in runs."),
    ("epoch", "The owner's epoch; each start and each new owner raises it."),
    ("start_records", "Records that the start has read from the journal."),
    ("start_complete", "1 when the last owner of the folder had closed it, as a regular stop does; else 0."),
    ("under_way_bytes", "Bytes that were sent to Redis and not answered yet."),
    ("unsent_records", "Records that were appended and are not durable yet."),
    ("lease_left_ms", "Milliseconds until the lease on the shard ends."),
    ("server_memory_bytes", "Memory that the shard's Redis uses; shards of one server say the same."),
    (
        "server_memory_max_bytes",
        "Memory that the shard's Redis may use (maxmemory); shards of one server say the same.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use duewheel::core::store::Store;
    use duewheel_store_log::LogStore;

    #[test]
    fn every_log_figure_has_help_text() {
        let dir = tempfile::tempdir().unwrap();
        let options = duewheel_store_log::Options { segment_bytes: 65_536, ..Default::default() };
        let store = LogStore::open(dir.path(), options, Arc::new(|| {})).unwrap();
        for (name, _) in store.figures() {
            if let Some((columns, _)) = name.split_once('.') {
                assert!(HISTOGRAMS.iter().any(|histogram| histogram.columns == columns), "{name}");
                continue;
            }
            let (kind, help) = of_store(name);
            assert_ne!(help, UNNAMED, "{name}");
            assert_eq!(kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
        }
    }

    #[test]
    fn no_text_is_used_twice() {
        let mut all: Vec<&(&str, &str)> = COUNTERS.iter().chain(&GAUGES).collect();
        let n = all.len();
        all.sort_by_key(|(_, help)| *help);
        all.dedup_by_key(|(_, help)| *help);
        assert_eq!(all.len(), n);
    }
}
