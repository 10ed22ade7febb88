//! The content of the whole blocks of runs and of the state. Tail and indexes of a run are not needed for it, except for
//! the names of queues.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use duewheel_core::answers::AnswerLog;
use duewheel_core::message::Row;
use duewheel_core::record::{BootAnchor, ClockPair, DedupeRow, Reader, Record, varint};
use duewheel_core::store::{Ledger, StoreError};
use duewheel_core::tally::{DueCounts, Tally};
use duewheel_core::time::Class;
use duewheel_core::{Due, Lsn, MessageId, QueueName};
use roaring::RoaringTreemap;

use crate::disk::{Disk, FileAccess};
use crate::fault::{Damage, failed};
use crate::format::{FileNo, open_if_any, u64_at};
use crate::manifest::{RunEntry, StateEntry};
use crate::run::Mask;
use crate::run::block::{BlockKind, FOOTER, Footer, HEAD};
use crate::run::opened::{self, BlockRows};
use crate::salvage::files::{Block, Blocks, ListingSource, ReadOnlyDisk, SalvageFiles};
use crate::salvage::report::{Loss, SalvageReport};
use crate::state::{self, Lost, StateEntries, StateFile, StateScope};

/// The readable parts of a run.
#[derive(Debug, Default)]
pub(super) struct RunContents {
    queues: Vec<QueueName>,
    /// Ids of its messages, if they can be read.
    ids: Option<RoaringTreemap>,
    /// The starts of its spans and their first due times, in order of the starts.
    spans: Vec<(u64, Due)>,
    gaps: Vec<(u64, u64)>,
    removed: RoaringTreemap,
    masks: Vec<(u32, Mask)>,
}

/// An item of a run.
pub(super) enum RunItem {
    /// A message, and the run's number of its queue.
    Message(u32, Row),
    Answer(DedupeRow),
}

/// How much of a run was read.
#[derive(Default)]
struct RunCoverage {
    rows: u64,
    answers: u64,
    told: Option<u64>,
    footer: Option<Footer>,
    last: Option<u8>,
    /// Whether bytes are missing where answers may have been.
    hole: bool,
}

impl RunContents {
    /// Examines all blocks, and reports losses. `None` if the file does not exist.
    pub(super) fn open(
        source: &ReadOnlyDisk<'_>,
        entry: &RunEntry,
        books: &SalvagedBooks,
        report: &mut SalvageReport,
    ) -> Result<Option<RunContents>, StoreError> {
        let name = entry.no.run();
        if let Err(error) = source.open(&name, FileAccess::Read) {
            if error.kind() != std::io::ErrorKind::NotFound {
                return Err(failed("open", &name)(error));
            }
            report.damage.push(Damage::new(&*name, 0, "the run is missing"));
            report.losses.push(Loss::Run { file: name.clone(), messages: None });
            report.losses.push(Loss::Answers { file: name });
            return Ok(None);
        }
        let mut pieces = RunContents::default();
        if let Some(lost) = books.lost_of(entry.no) {
            (pieces.removed, pieces.masks) = (lost.removed.clone(), lost.masks.clone());
        }
        if !books.knows_removed(entry.no) {
            report.losses.push(Loss::Settled { file: name.clone() });
        }
        let mut met = RunCoverage::default();
        let mut blocks = blocks(source, entry)?;
        let mut gaps = 0;
        while let Some(block) = blocks.next()? {
            if blocks.gaps.len() > gaps && met.last.is_none_or(|kind| kind <= BlockKind::Answers as u8) {
                met.hole = true;
            }
            gaps = blocks.gaps.len();
            met.last = Some(block.kind);
            pieces.take(&block, &mut met);
        }
        // Without a footer the file may have been cut short there.
        let is_short = met.footer.is_none() && met.last != Some(BlockKind::Footer as u8);
        if (blocks.gaps.len() > gaps || is_short)
            && met.last.is_none_or(|kind| kind <= BlockKind::Answers as u8)
        {
            met.hole = true;
        }
        if is_short && blocks.gaps.is_empty() {
            report.damage.push(Damage::new(&*name, entry.bytes, "the run is not complete"));
        }
        for (from, to) in &blocks.gaps {
            let what = format!("there is no whole block up to byte {to}");
            report.damage.push(Damage::new(&*name, *from, what));
        }
        pieces.gaps = blocks.gaps;
        let rows = met.footer.map(|footer| footer.rows).or(met.told);
        if pieces.ids.is_none() && (met.hole || rows.is_some_and(|rows| rows > met.rows)) {
            let messages = rows.map(|rows| rows.saturating_sub(met.rows));
            report.losses.push(Loss::Run { file: name.clone(), messages });
        } else if pieces.ids.is_none() && pieces.queues.is_empty() && met.rows > 0 {
            report.losses.push(Loss::Run { file: name.clone(), messages: Some(met.rows) });
        }
        if met.footer.map_or(met.hole, |footer| met.answers < footer.answers) {
            report.losses.push(Loss::Answers { file: name });
        }
        Ok(Some(pieces))
    }

    fn take(&mut self, block: &Block, met: &mut RunCoverage) {
        match block.kind {
            kind if kind == BlockKind::Messages as u8 => met.rows += u64::from(block.entries),
            kind if kind == BlockKind::Answers as u8 => met.answers += u64::from(block.entries),
            kind if kind == BlockKind::Queues as u8 => {
                if let Some((queues, rows)) = read_queues(&block.payload, block.entries) {
                    (self.queues, met.told) = (queues, Some(rows));
                }
            }
            kind if kind == BlockKind::Spans as u8 => {
                let spans = block.payload.chunks_exact(32).map(|span| {
                    let class = if u64_at(span, 8) == Class::At as u64 { Class::At } else { Class::After };
                    (u64_at(span, 0), Due::from_raw(class, u64_at(span, 16)))
                });
                self.spans = spans.collect();
            }
            kind if kind == BlockKind::Ids as u8 => {
                self.ids = RoaringTreemap::deserialize_from(&block.payload[..]).ok();
            }
            kind if kind == BlockKind::Footer as u8 && block.payload.len() == FOOTER - HEAD => {
                met.footer = Footer::read(&block.payload, block.at).ok();
            }
            _ => {}
        }
    }

    /// The greatest id that it may have.
    pub(super) fn greatest_id(&self) -> Option<u64> {
        self.ids.as_ref().and_then(RoaringTreemap::max)
    }

    /// Whether a row is live, according to the state.
    pub(super) fn counts(&self, id: MessageId, queue: u32) -> bool {
        !self.removed.contains(id.0) && !self.is_purged(id, queue)
    }

    /// Whether a purge has removed it, according to the state: that is final in every run.
    pub(super) fn is_purged(&self, id: MessageId, queue: u32) -> bool {
        self.masks.iter().any(|(of, mask)| *of == queue && mask.takes(id))
    }

    /// Live messages of the run, except for those that were read.
    pub(super) fn unread(&self, read: &RoaringTreemap) -> RoaringTreemap {
        match &self.ids {
            Some(ids) => &(ids - read) - &self.removed,
            None => RoaringTreemap::new(),
        }
    }

    /// The ranges of due times with unreadable parts.
    pub(super) fn unread_spans(&self, file: &str) -> Vec<Loss> {
        let ends = self.spans.iter().skip(1).map(Some).chain([None]);
        let stretches = self.spans.iter().zip(ends).filter(|((at, _), end)| {
            let is_before_end = |from: u64| end.is_none_or(|(end, _)| from < *end);
            self.gaps.iter().any(|(from, to)| to > at && is_before_end(*from))
        });
        let lost = stretches.map(|((_, from), end)| Loss::Due {
            file: file.to_owned(),
            from: *from,
            until: end.map(|(_, until)| *until).filter(|until| until.class() == from.class()),
        });
        lost.collect()
    }

    /// Returns the messages and the answers of the whole blocks.
    pub(super) fn visit(
        &self,
        source: &ReadOnlyDisk<'_>,
        entry: &RunEntry,
        mut visit: impl FnMut(RunItem) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut blocks = blocks(source, entry)?;
        while let Some(block) = blocks.next()? {
            match block.kind {
                kind if kind == BlockKind::Messages as u8 => {
                    for (queue, row) in self.rows(&block) {
                        visit(RunItem::Message(queue, row))?;
                    }
                }
                kind if kind == BlockKind::Answers as u8 => {
                    for row in answers(&block) {
                        visit(RunItem::Answer(row))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The rows of a block; unreadable ones are missing, and are reported by their ids.
    fn rows(&self, block: &Block) -> Vec<(u32, Row)> {
        let mut found = Vec::new();
        let mut rows = BlockRows::new(&block.payload, block.entries);
        while let Ok(Some(row)) = rows.next() {
            let Some(queue) = self.queues.get(row.queue as usize) else { continue };
            let decoded = opened::decode_row(Bytes::copy_from_slice(row.bytes), queue.clone());
            found.extend(decoded.ok().map(|decoded| (row.queue, decoded)));
        }
        found
    }
}

fn blocks(source: &ReadOnlyDisk<'_>, entry: &RunEntry) -> Result<Blocks, StoreError> {
    let name = entry.no.run();
    let file = source.open(&name, FileAccess::Read).map_err(failed("open", &name))?;
    Blocks::new(file, name, entry.incarnation)
}

fn answers(block: &Block) -> Vec<DedupeRow> {
    let mut rest = Reader::new(block.payload.clone());
    let answers = (0..block.entries).map_while(|_| rest.blob().ok());
    answers.filter_map(|answer| Reader::new(answer).dedupe().ok()).collect()
}

/// Names of queues, and how many messages there are in all.
fn read_queues(mut bytes: &[u8], count: u32) -> Option<(Vec<QueueName>, u64)> {
    let (mut queues, mut rows) = (Vec::new(), 0u64);
    for _ in 0..count {
        let length = usize::try_from(varint(&mut bytes).ok()?).ok()?;
        let (name, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        queues.push(QueueName::stored(std::str::from_utf8(name).ok()?).ok()?);
        rows = rows.saturating_add(varint(&mut bytes).ok()?);
        varint(&mut bytes).ok()?;
    }
    Some((queues, rows))
}

// The books of the damaged folder, block by block.

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
        let next = record.message().map_or(0, |id| id.0.saturating_add(1));
        self.next_id = self.next_id.max(next).max(self.ledger.next_id().0);
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
    let Some(file) = open_if_any(source, &name)? else {
        report.damage.push(Damage::new(&*name, 0, "the state is missing"));
        state.doubt_runs();
        return Ok(FileCoverage::Part);
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
