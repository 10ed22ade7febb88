//! The counts of one run: they include only what the store has confirmed, because the rest may have been refused.

use std::collections::VecDeque;

use duewheel_core::engine::RecordedCounts;
use duewheel_core::id::Lsn;

/// The counts up to the last group that the store has confirmed, and those of the later groups.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    counts: RecordedCounts,
    /// The last position of each group that was appended since, and the counts up to there.
    open: VecDeque<(Lsn, RecordedCounts)>,
}

impl Confirmed {
    /// Notes a group that ends at this position.
    pub(super) fn append(&mut self, last: Lsn, counts: RecordedCounts) {
        self.open.push_back((last, counts));
    }

    /// Notes that the store has confirmed everything up to this position.
    pub(super) fn report(&mut self, upto: Lsn) {
        while let Some((last, counts)) = self.open.front()
            && *last <= upto
        {
            self.counts = *counts;
            self.open.pop_front();
        }
    }

    pub(super) fn counts(&self) -> RecordedCounts {
        self.counts
    }

    /// The groups that the store has not confirmed when it failed; it has certainly applied nothing from `nothing_from`
    /// on.
    pub(super) fn into_doubtful(self, nothing_from: Option<Lsn>) -> Doubtful {
        let mut groups = self.open;
        if let Some(first) = nothing_from {
            groups.retain(|(last, _)| *last < first);
        }
        Doubtful { since: self.counts, groups }
    }
}

/// The groups of a failed run that the store may have applied or not.
#[derive(Debug, Default)]
pub(crate) struct Doubtful {
    since: RecordedCounts,
    groups: VecDeque<(Lsn, RecordedCounts)>,
}

impl Doubtful {
    /// The counts of the groups that the store had applied. The position of the next record shows which, once the store
    /// is open again.
    pub(crate) fn applied(&self, next: Lsn) -> RecordedCounts {
        let applied = self.groups.iter().rev().find(|(last, _)| *last < next);
        applied.map_or_else(RecordedCounts::default, |(_, counts)| counts.since(&self.since))
    }
}
