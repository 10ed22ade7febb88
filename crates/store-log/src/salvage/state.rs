//! The books of the damaged folder, block by block.

use std::collections::{BTreeMap, BTreeSet};

use duewheel_core::answers::AnswerLog;
use duewheel_core::record::{BootAnchor, ClockPair, DedupeRow, Record};
use duewheel_core::store::{Ledger, StoreError};
use duewheel_core::tally::{DueCounts, Tally};
use duewheel_core::{Lsn, MessageId, QueueName};

use super::blocks::Blocks;
use super::files::{ListingSource, SalvageFiles};
use super::read_only::ReadOnlyDisk;
use super::report::{Loss, SalvageReport};
use crate::disk::{Disk, FileAccess};
use crate::fault::{Damage, failed};
use crate::folder::FileNo;
use crate::manifest::StateEntry;
use crate::state::{self, Lost, StateEntries, StateFile, StateScope};

/// The readable part of the state, with the journal's records folded in.
#[derive(Debug)]
pub(super) struct SalvagedBooks {
    ledger: Ledger,
    lost: BTreeMap<FileNo, Lost>,
    /// Runs of which more may be removed than is known.
    doubtful: BTreeSet<FileNo>,
    /// The last cut.
    pub(super) cut: Lsn,
    /// The position of the state that was read: the last cut, or a former one.
    told: Lsn,
    /// Queues in the state.
    known: BTreeSet<QueueName>,
    /// Whether the state is complete.
    whole: bool,
    /// Whether the counts of queues are right.
    exact: bool,
    clock: Option<ClockPair>,
    anchor: Option<BootAnchor>,
    applied: Lsn,
    next_id: u64,
}

impl SalvagedBooks {
    pub(super) fn read(
        source: &ReadOnlyDisk<'_>,
        listing: &SalvageFiles,
        report: &mut SalvageReport,
    ) -> Result<Self, StoreError> {
        let mut state = StateFile::default();
        let mut whole = !listing.states.is_empty() || listing.runs.is_empty();
        if !whole {
            report.losses.push(Loss::Settings { file: "state".into() });
        }
        for (i, entry) in listing.states.iter().enumerate() {
            let scope = if i == 0 { StateScope::Whole } else { StateScope::Delta };
            let coverage = read_file(source, entry, scope, &mut state, report)?;
            // A whole delta behind a damaged file has lost nothing itself.
            if coverage == FileCoverage::Part || (coverage == FileCoverage::Gap && whole) {
                report.losses.push(Loss::Settings { file: entry.no.state() });
            }
            whole &= coverage == FileCoverage::All;
        }
        let named: BTreeSet<FileNo> = state.lost.iter().map(|lost| lost.no).collect();
        if !listing.states.is_empty() && !listing.proves_state(&named) {
            let what = "without the manifest it is not certain that the newest file of the state is here";
            report.damage.push(Damage::new("state", 0, what));
            if whole {
                report.losses.push(Loss::Settings { file: "state".into() });
            }
            whole = false;
            state.doubt_runs();
        }
        let StateFile { ledger, lost, doubtful } = state;
        let cut = listing.cut();
        let books = SalvagedBooks {
            known: ledger.rows().map(|row| row.name).collect(),
            told: ledger.applied(),
            clock: ledger.clock(),
            anchor: None,
            next_id: ledger.next_id().0,
            ledger,
            lost: lost.into_iter().map(|lost| (lost.no, lost)).collect(),
            doubtful,
            cut,
            whole,
            exact: whole,
            applied: cut.max(listing.proven),
        };
        Ok(books)
    }

    /// The position behind which records are applied to messages: earlier ones are in the runs, as far as the state
    /// says which of their rows are settled.
    pub(super) fn fold_from(&self) -> Lsn {
        if self.whole { self.cut } else { Lsn(0) }
    }

    /// The runs that the state names.
    pub(super) fn runs(&self) -> impl Iterator<Item = FileNo> {
        self.lost.keys().copied()
    }

    /// The removed rows of a run.
    pub(super) fn lost_of(&self, no: FileNo) -> Option<&Lost> {
        self.lost.get(&no)
    }

    /// Whether all removed rows of a run are known.
    pub(super) fn knows_removed(&self, no: FileNo) -> bool {
        self.lost.contains_key(&no) && !self.doubtful.contains(&no)
    }

    /// Whether a run is valid: without a manifest a complete state lists the valid ones.
    pub(super) fn lists(&self, no: FileNo, by: ListingSource) -> bool {
        by == ListingSource::Manifest || !self.whole || self.lost.contains_key(&no)
    }

    pub(super) fn apply(&mut self, lsn: Lsn, record: &Record) {
        let is_new = |name| lsn > self.told || !self.known.contains(name);
        let is_setting = matches!(record, Record::Queue { name, .. } if is_new(name));
        if lsn > self.cut || (!self.whole && (self.known.is_empty() || is_setting)) {
            self.ledger.apply(lsn, record);
        }
        let id = match record {
            Record::Put { message, .. } => message.id.0,
            Record::Changed { id, .. } | Record::Granted { id, .. } | Record::Removed { id, .. } => id.0,
            Record::Queue { .. }
            | Record::Purged { .. }
            | Record::Deduped(_)
            | Record::AnswersForgotten { .. } => 0,
        };
        self.next_id = self.next_id.max(id.saturating_add(1)).max(self.ledger.next_id().0);
    }

    /// Records the end of the journal, and the clocks there.
    pub(super) fn note(
        &mut self,
        next: Lsn,
        clocks: impl IntoIterator<Item = ClockPair>,
        anchor: Option<BootAnchor>,
    ) {
        self.anchor = anchor;
        self.applied = self.applied.max(Lsn(next.0.saturating_sub(1)));
        self.clock = self.clock.into_iter().chain(clocks).max_by_key(|clock| clock.engine);
    }

    /// Marks the counts of queues as unreliable, because records are missing.
    pub(super) fn doubt(&mut self) {
        self.exact = false;
    }

    /// The anchor of the last owner's boot.
    pub(super) fn anchor(&self) -> Option<BootAnchor> {
        self.anchor
    }

    pub(super) fn clock(&self) -> Option<ClockPair> {
        self.clock
    }

    /// Skips ids behind the greatest known one, which is `found` or a greater one.
    pub(super) fn leave_out_ids(&mut self, found: MessageId, ahead: u64) {
        self.next_id = self.next_id.max(found.0.saturating_add(1)).saturating_add(ahead);
    }

    /// Whether an answer is remembered, as far as the books are whole.
    pub(super) fn remembers(&self, row: &DedupeRow) -> bool {
        !self.whole || self.ledger.remembers(row)
    }

    /// The number of messages that each queue should have; empty where that is not known.
    pub(super) fn counts(&self) -> Vec<(QueueName, u64)> {
        let rows = self.ledger.rows().filter(|_| self.exact);
        rows.map(|row| (row.name, row.tally.count())).collect()
    }

    /// The present books without messages. Each message that is put into them is counted as enqueued, so that number is
    /// subtracted.
    pub(super) fn without_messages(&self) -> Ledger {
        let mut ledger = Ledger::resume(self.applied, self.next_id, self.clock, DueCounts::default());
        // The answers are put again, with new positions.
        for mut row in self.ledger.rows().filter(|row| !row.is_over()) {
            row.totals.enqueued = row.totals.enqueued.saturating_sub(row.tally.count());
            (row.tally, row.answers) = (Tally::default(), AnswerLog::default());
            ledger.restore(row);
        }
        ledger
    }
}

/// How much of a file of the state was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileCoverage {
    /// All of it, and it fits the files before.
    All,
    /// All of it, but something is missing in the files before.
    Gap,
    /// Not all of it.
    Part,
}

/// Reads the whole blocks of a file of the state.
fn read_file(
    source: &ReadOnlyDisk<'_>,
    entry: &StateEntry,
    scope: StateScope,
    state: &mut StateFile,
    report: &mut SalvageReport,
) -> Result<FileCoverage, StoreError> {
    let name = entry.no.state();
    let file = match source.open(&name, FileAccess::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report.damage.push(Damage::new(&*name, 0, "the state is missing"));
            state.doubt_runs();
            return Ok(FileCoverage::Part);
        }
        Err(error) => return Err(failed("open", &name)(error)),
    };
    let noted = report.damage.len();
    let mut blocks = Blocks::new(file, name.clone(), entry.incarnation)?;
    let mut seen = StateEntries::default();
    while let Some(block) = blocks.next()? {
        let taken = state::take(block.kind, block.entries, block.payload, entry.last, &mut seen, state);
        if let Err(what) = taken {
            report.damage.push(Damage::new(&*name, block.at, what));
        }
    }
    for (from, to) in &blocks.gaps {
        let what = format!("there is no whole block up to byte {to}");
        report.damage.push(Damage::new(&*name, *from, what));
    }
    if state.end_file(&seen, scope) {
        return Ok(FileCoverage::All);
    }
    if seen.are_told(scope) && report.damage.len() == noted {
        return Ok(FileCoverage::Gap);
    }
    if report.damage.len() == noted {
        report.damage.push(Damage::new(&*name, entry.bytes, "the state is not complete"));
    }
    Ok(FileCoverage::Part)
}
