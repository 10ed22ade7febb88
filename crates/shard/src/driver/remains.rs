//! The state that a failed run leaves to the next one.

use std::collections::VecDeque;

use duewheel_core::engine::{Named, Op, RecordedCounts};
use duewheel_core::id::{Lsn, ReplyTo};

use super::calls::Calls;
use crate::error::CallError;

/// The state that a driver leaves when its store has failed.
#[derive(Debug, Default)]
pub struct Remains {
    /// Counts of groups that the store has reported with its failure.
    pub(crate) confirmed: RecordedCounts,
    /// Counts of groups whose outcome is not known yet.
    pub(crate) doubtful: Doubtful,
    pub(super) calls: Calls,
    /// Operations that were certainly not applied, in order: the next driver decides them again.
    pub(super) again: VecDeque<(ReplyTo, Op)>,
    /// The operations that the failure concerns.
    pub(super) scope: RefusalScope,
}

/// The operations that a failure of the store concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RefusalScope {
    /// Only operations that need room.
    NeedsRoom,
    #[default]
    Everything,
}

impl Remains {
    /// Whether waiting requests are also left to the next driver, instead of being refused.
    pub(crate) fn goes_on(&self) -> bool {
        self.scope == RefusalScope::NeedsRoom
    }

    /// Answers with this error all operations that were to be decided again, because there is no next driver yet. The
    /// counts stay.
    #[must_use]
    pub(crate) fn refuse(mut self, error: &CallError) -> Remains {
        self.calls.fail(error, &VecDeque::new());
        Remains { doubtful: self.doubtful, ..Remains::default() }
    }
}

/// Operations that end leases or cancel, in groups that the store has not confirmed. A store without memory refuses a
/// whole group, and operations that free memory must be repeated.
#[derive(Debug, Default)]
pub(super) struct Settling(VecDeque<(Lsn, ReplyTo, Op)>);

impl Settling {
    /// A copy of an operation that is kept until its group is confirmed; `None`: the operation is of another kind.
    pub(super) fn copy(op: &Op) -> Option<Op> {
        (op.operation().settles && op.names() != Named::Nothing).then(|| op.clone())
    }

    /// Keeps an operation whose records end at this position.
    pub(super) fn decided(&mut self, last: Lsn, to: ReplyTo, op: Op) {
        self.0.push_back((last, to, op));
    }

    /// Notes that the store has confirmed everything up to this position.
    pub(super) fn report(&mut self, upto: Lsn) {
        while self.0.front().is_some_and(|(last, ..)| *last <= upto) {
            self.0.pop_front();
        }
    }

    /// The operations that are to be decided again, in order.
    pub(super) fn into_again(self, mut is_refused: impl FnMut(ReplyTo) -> bool) -> VecDeque<(ReplyTo, Op)> {
        self.0.into_iter().filter(|(_, to, _)| is_refused(*to)).map(|(_, to, op)| (to, op)).collect()
    }
}

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
