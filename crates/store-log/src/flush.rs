//! The flush: frozen memtables become a run.
//!
//! | | |
//! |---|---|
//! | 1 | the records of the frozen memtables are folded into the ledger, and undone if a later step fails |
//! | 2 | their live rows, and the answers that are not forgotten, are written to a run, or to several if there are many |
//! | 3 | older versions of their messages are removed from the runs' sets of live ids (from copies of them) |
//! | 4 | the state file is written with all of that |
//! | 5 | the journal is known to be durable up to the cut |
//! | 6 | the manifest lists the runs and the state, and no segment before the cut |
//! | 7 | readers get the runs in place of the memtables |
//!
//! When there is no space for that ([`stuck`](StoreShared::is_stuck)), two measures free some. Runs whose rows were all
//! removed by frozen and durable records are unlisted at once: that takes a manifest and no state. And the owner also
//! freezes later removals, so that the next attempt writes less.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::{ErrorKind, Ledger, Sequence, StoreError, Which};
use duewheel_core::{EngineMs, Lsn, MessageId, QueueName};

use crate::budget;
use crate::fault::ReadFault;
use crate::figures::micros;
use crate::find::Finder;
use crate::format::{FileNo, Incarnation};
use crate::journal::workers;
use crate::manifest::{RunEntry, SegmentEntry};
use crate::mem::{Extent, Mem, MemScan, ScanStep};
use crate::merge::Work;
use crate::merge::policy::MergePlan;
use crate::merging::{drop_merge, drop_runs, give_up, list_states, sizes, squeeze, write_state};
use crate::readers::ReadPriority;
use crate::run::{Live, Run, RunWriter};
use crate::shared::{StoreShared, Worked, lock};
use crate::state::write::{StateChange, discard};
use crate::view::{LiveRun, StoreView, sorted, take_away, without_gone};

/// The number of rows of the frozen memtables that are resolved together.
const TOGETHER: usize = 512;

/// Writes the frozen memtables to a run, if there are any.
pub(crate) fn flush(shared: &StoreShared) -> Worked {
    let work = &mut *lock(&shared.work);
    if shared.is_stopping() {
        return Worked::Nothing;
    }
    if shared.view().frozen.is_empty() {
        return drop_covered(shared, work);
    }
    // The owner wakes this thread when it has frozen more.
    let Some(_hold) = shared.hold_frozen() else { return Worked::Later };
    let view = shared.view();
    let Some(last) = view.frozen.last().map(|mem| mem.last()) else { return Worked::Nothing };
    let began = Instant::now();
    let runs = RefCell::default();
    let (first_run, state) = (shared.new_file(), shared.new_file());
    let flush = Flush { shared, tables: &view.frozen, last, runs, first_run, state };
    match flush.make_room(work, &view) {
        Ok(None) => {}
        Ok(Some(worked)) => return worked,
        Err(trouble) => {
            note_failure(shared, &trouble);
            return give_up(shared, trouble, || {});
        }
    }
    if let Err(trouble) = flush.flush(work, &view) {
        shared.reserve.flushing.store(0, Relaxed);
        shared.counters.flush_failures.fetch_add(1, Relaxed);
        note_failure(shared, &trouble);
        if let ReadFault::Failed(error) = &trouble
            && error.kind() == ErrorKind::Full
        {
            shared.set_stuck(true);
            // The output of an unfinished merge may occupy the space that is missing.
            drop_merge(shared, work);
        }
        return give_up(shared, trouble, || {
            for run in flush.runs.borrow().iter() {
                RunWriter::discard(&*shared.disk, *run);
            }
            discard(&*shared.disk, flush.state);
        });
    }
    shared.set_stuck(false);
    shared.set_flush_failure(None);
    if let Ok(free) = shared.disk.free_bytes() {
        shared.free.store(free, Relaxed);
    }
    shared.counters.flushes.fetch_add(1, Relaxed);
    shared.counters.flush_micros.fetch_add(micros(began.elapsed()), Relaxed);
    let flushed: u64 = view.frozen.iter().map(|mem| budget::of_table(mem)).sum();
    let less = |bytes: u64| Some(bytes.saturating_sub(flushed));
    let _ = shared.reserve.to_flush.fetch_update(Relaxed, Relaxed, less); // the owner notes it anew with each group
    shared.reserve.flushing.store(0, Relaxed);
    if let Ok(StoreView { frozen, .. }) = Arc::try_unwrap(view) {
        frozen.into_iter().for_each(|mem| shared.recycle(mem));
    }
    shared.preparer_bell.ring();
    (shared.waker)();
    Worked::Done
}

/// Unlists the runs of which nothing is left.
pub(crate) fn drop_dead(shared: &StoreShared) -> Worked {
    let work = &mut *lock(&shared.work);
    let parts = shared.view().parts.clone();
    let now = work.ledger.clock().map_or(EngineMs(0), |clock| clock.engine);
    let dead: Vec<FileNo> = dead(&parts, &work.ledger, now).collect();
    if dead.is_empty() {
        return Worked::Nothing;
    }
    match drop_runs(shared, work, &dead) {
        Ok(()) => Worked::Done,
        Err(trouble) => give_up(shared, trouble, || {}),
    }
}

/// Unlists full segments that the last flush has covered: the owner left them after it.
fn drop_covered(shared: &StoreShared, work: &Work) -> Worked {
    let covered = covered(shared, work.ledger.applied());
    if covered.is_empty() {
        return Worked::Nothing;
    }
    let listed = shared.change_manifest(|manifest| manifest.segments.retain(|s| !covered.contains(s)));
    match listed {
        Ok(()) => {
            shared.drop_segments(&covered);
            shared.preparer_bell.ring();
            Worked::Done
        }
        Err(_) => Worked::Later, // nothing is lost by it: it is tried again
    }
}

/// Full segments without a record behind the cut.
fn covered(shared: &StoreShared, cut: Lsn) -> Vec<SegmentEntry> {
    let sealed = &shared.journal().sealed;
    sealed.iter().filter(|s| s.end <= cut.next()).map(|s| s.entry).collect()
}

fn note_failure(shared: &StoreShared, fault: &ReadFault) {
    if let ReadFault::Failed(error) = fault {
        shared.set_flush_failure(Some(error.clone()));
    }
}

struct Flush<'a> {
    shared: &'a StoreShared,
    /// The frozen memtables, oldest first.
    tables: &'a [Arc<Mem>],
    last: Lsn,
    /// The runs that were begun.
    runs: RefCell<Vec<FileNo>>,
    first_run: FileNo,
    state: FileNo,
}

impl Flush<'_> {
    /// Frees space without a flush, if it is uncertain that the flush fits. `None` when the flush is to be tried now.
    fn make_room(&self, work: &mut Work, view: &StoreView) -> Result<Option<Worked>, ReadFault> {
        let shared = self.shared;
        // A disk that cannot report its free space fails when it is full.
        let Ok(free) = shared.reserve.free_for_flush(&*shared.disk) else { return Ok(None) };
        let upper: u64 = self.tables.iter().map(|mem| budget::of_table(mem)).sum();
        if free >= upper {
            return Ok(None);
        }
        let exact = exact_extent(self.tables);
        let beside = self.tables.iter().map(|mem| budget::of_state(mem)).sum::<u64>();
        if free >= exact.most + beside {
            return Ok(None);
        }
        shared.set_stuck(true);
        let now = self.now();
        let parts = without_gone(&view.parts, self.tables)?;
        let dead: Vec<FileNo> = dead(&parts, &work.ledger, now).collect();
        if !dead.is_empty() {
            // The records that remove these rows must be durable before the runs are unlisted.
            workers::wait_until(self.last, shared)?;
            drop_runs(shared, work, &dead)?;
            return Ok(Some(Worked::Done));
        }
        // A merge comes next; one that failed because the disk is full does not prevent the flush from being tried.
        let failures = shared.counters.merge_failures.load(Relaxed);
        let has_failed = std::mem::replace(&mut work.merge_failures, failures) != failures;
        if work.merging.is_some()
            || (!has_failed && squeeze(shared, &sizes(&parts, &work.ledger, now)) != MergePlan::Nothing)
        {
            return Ok(Some(Worked::Later));
        }
        if free >= exact.least {
            return Ok(None); // what it takes at most is reckoned with a margin
        }
        shared.counters.flush_failures.fetch_add(1, Relaxed);
        (shared.waker)(); // the owner may have more to freeze
        Ok(Some(Worked::Later))
    }

    /// The queues of all records.
    fn queues(&self) -> impl Iterator<Item = &QueueName> {
        self.tables.iter().flat_map(|mem| mem.queues())
    }

    fn now(&self) -> EngineMs {
        self.tables.iter().rev().find_map(|mem| mem.clock()).map_or(EngineMs(0), |clock| clock.engine)
    }

    fn flush(&self, work: &mut Work, view: &StoreView) -> Result<(), ReadFault> {
        let shared = self.shared;
        shared.syncer.ask();
        let before = work.ledger.remember(self.queues());
        for mem in self.tables {
            mem.for_each(|lsn, record| {
                work.ledger.apply_bytes(lsn, record).expect("it was encoded here, or was decoded before");
            });
            if let Some(clock) = mem.clock() {
                work.ledger.note_clock(clock);
            }
        }
        let (parts, covered) = match self.write(work, view) {
            Ok(written) => written,
            Err(trouble) => {
                if !mutant::is(Mutant::BooksFolded) {
                    work.ledger.take_back(before);
                }
                return Err(trouble);
            }
        };
        shared.set_view(|view| {
            let is_new = |mem: &Arc<Mem>| !self.tables.iter().any(|flushed| Arc::ptr_eq(flushed, mem));
            let frozen = view.frozen.into_iter().filter(is_new).collect();
            StoreView { frozen, parts, ..view }
        });
        shared.drop_segments(&covered);
        Ok(())
    }

    /// Writes the new runs and the state, and lists them. Returns all runs, and the segments that are no longer needed.
    fn write(
        &self,
        work: &mut Work,
        view: &StoreView,
    ) -> Result<(Vec<LiveRun>, Vec<SegmentEntry>), ReadFault> {
        let entries = self.write_runs(view, &work.ledger)?;
        let mut parts = self.older_parts(view)?;
        for entry in &entries {
            let run = Arc::new(Run::open(&*self.shared.disk, entry, self.shared.hasher, &work.names)?);
            let live = Arc::new(Live::all(&run));
            parts.push(LiveRun { run, live });
        }
        let covered = self.list(work, (&view.parts, &parts), &entries)?;
        Ok((parts, covered))
    }

    /// Lists the new runs and books in the manifest. Returns the segments that are no longer needed.
    fn list(
        &self,
        work: &mut Work,
        (before, parts): (&[LiveRun], &[LiveRun]),
        entries: &[RunEntry],
    ) -> Result<Vec<SegmentEntry>, ReadFault> {
        let shared = self.shared;
        let change = StateChange { ledger: &work.ledger, queues: self.queues().collect(), before, parts };
        let states = write_state(shared, self.state, &work.states, &change)?;
        workers::wait_until(self.last, shared)?;
        let covered = covered(shared, self.last);
        if mutant::is(Mutant::CutBeforeManifest) {
            for segment in &covered {
                let _ = shared.disk.remove(&segment.no.segment()); // the manifest still lists it
            }
        }
        shared.change_manifest(|manifest| {
            manifest.runs.extend(entries);
            manifest.states.clone_from(&states);
            manifest.segments.retain(|segment| !covered.contains(segment));
        })?;
        let of_state = states.last().map_or(0, |file| file.bytes);
        list_states(shared, work, states);
        let of_runs = entries.iter().map(|run| run.bytes).sum::<u64>();
        let reckoned = self.tables.iter().map(|mem| mem.extent().most).sum::<u64>();
        let is_over = of_runs > reckoned + entries.len() as u64 * budget::RUN;
        shared.counters.flushes_over.fetch_add(u64::from(is_over), Relaxed);
        let bytes = of_runs + of_state;
        shared.counters.flush_bytes.fetch_add(bytes, Relaxed);
        Ok(covered)
    }

    /// Writes the live rows of the frozen memtables: no run if there are none, and several if there are too many for
    /// one.
    fn write_runs(&self, view: &StoreView, books: &Ledger) -> Result<Vec<RunEntry>, ReadFault> {
        let shared = self.shared;
        let mut out = FlushOutput { flush: self, writer: None, done: Vec::new() };
        let finder = Finder::new(view, &shared.readers, ReadPriority::Background);
        for sequence in [Sequence::AllAt, Sequence::AllAfter] {
            let mut scan = Scan::new(self.tables, sequence);
            loop {
                if shared.is_stopping() {
                    return Err(StoreError::new(ErrorKind::Closed, "the store is being closed").into());
                }
                // Most are as they were put: their rows are made of the records, without decoding them.
                let here = |(table, id): (usize, MessageId)| (id, self.tables[table].new_put(id));
                let some: Vec<_> = std::iter::from_fn(|| scan.next()).map(here).take(TOGETHER).collect();
                if some.is_empty() {
                    break;
                }
                let mut others: Vec<MessageId> =
                    some.iter().filter(|(_, put)| put.is_none()).map(|(id, _)| *id).collect();
                others.sort_unstable();
                let mut rows = finder.rows(&others, Default::default())?;
                shared.reserve.flushing.store(out.bytes(), Relaxed);
                for (id, put) in some {
                    if let Some((queue, put)) = put {
                        out.writer()?.new_put(queue, &put)?;
                    } else if let Ok(i) = others.binary_search(&id)
                        && let Some(row) = rows[i].take()
                    {
                        out.writer()?.row(&row)?;
                    }
                }
            }
        }
        let now = self.now();
        for (i, mem) in self.tables.iter().enumerate() {
            for answer in mem.answers().filter(|answer| books.remembers(answer)) {
                let hash = shared.hasher.answer(&answer.queue, &answer.dedupe_id);
                let is_older =
                    |newer: &Arc<Mem>| newer.find_answer(hash, &answer.queue, &answer.dedupe_id).is_some();
                // An expired answer must still hide an older one that has not expired.
                let hides = || view.parts.iter().any(|part| part.run.may_have(hash));
                if self.tables[i + 1..].iter().any(is_older) || (answer.until <= now && !hides()) {
                    continue;
                }
                out.writer()?.answer(&answer);
            }
        }
        out.end()
    }

    /// The runs without the rows that the frozen memtables replace.
    fn older_parts(&self, view: &StoreView) -> Result<Vec<LiveRun>, ReadFault> {
        let mut parts = view.parts.clone();
        for mem in self.tables {
            take_away(&mut parts, mem, sorted(mem.ids())?);
        }
        Ok(parts)
    }
}

/// The runs that a flush writes. Only the last one may have remembered answers.
struct FlushOutput<'a> {
    flush: &'a Flush<'a>,
    writer: Option<RunWriter>,
    done: Vec<RunEntry>,
}

impl FlushOutput<'_> {
    fn bytes(&self) -> u64 {
        let done: u64 = self.done.iter().map(|run| run.bytes).sum();
        done + self.writer.as_ref().map_or(0, RunWriter::bytes)
    }

    fn writer(&mut self) -> Result<&mut RunWriter, StoreError> {
        let Flush { shared, runs, first_run, last, .. } = self.flush;
        if let Some(full) = self.writer.take_if(|writer| writer.bytes() >= shared.options.run_bytes) {
            self.done.push(full.finish()?);
        }
        if self.writer.is_none() {
            let no = if runs.borrow().is_empty() { *first_run } else { shared.new_file() };
            runs.borrow_mut().push(no);
            let incarnation = Incarnation(shared.disk.unique());
            self.writer = Some(RunWriter::create(&shared.disk, no, incarnation, *last, shared.hasher)?);
        }
        Ok(self.writer.as_mut().expect("made above"))
    }

    fn end(mut self) -> Result<Vec<RunEntry>, ReadFault> {
        if let Some(writer) = self.writer.take() {
            self.done.push(writer.finish()?);
        }
        Ok(self.done)
    }
}

/// The ids of frozen memtables in due order, each once.
struct Scan<'a> {
    tables: &'a [Arc<Mem>],
    scans: Vec<(MemScan, Option<(u64, MessageId)>)>,
}

impl<'a> Scan<'a> {
    fn new(tables: &'a [Arc<Mem>], sequence: Sequence) -> Self {
        let scans = tables.iter().map(|mem| (mem.scan(sequence, &Which::All, None), None)).collect();
        let mut scan = Scan { tables, scans };
        (0..tables.len()).for_each(|i| scan.step(i));
        scan
    }

    fn step(&mut self, i: usize) {
        let (scan, head) = &mut self.scans[i];
        let newer = &self.tables[i + 1..];
        *head = loop {
            match scan.step(&self.tables[i]) {
                Some(ScanStep::Here((_, id), queue)) if newer.iter().any(|mem| mem.hides(id, &queue)) => {}
                Some(ScanStep::Here(cursor, _)) => break Some(cursor),
                Some(ScanStep::Stale(_)) => {}
                None => break None,
            }
        };
    }

    /// The next message, and the newest table that has it.
    fn next(&mut self) -> Option<(usize, MessageId)> {
        let heads = self.scans.iter().enumerate();
        let (i, id) =
            heads.filter_map(|(i, (_, head))| head.map(|head| (head, i))).min().map(|(h, i)| (i, h.1))?;
        self.step(i);
        Some((i, id))
    }
}

/// The exact extent of the live rows of these tables, the newest of which is the last.
fn exact_extent(tables: &[Arc<Mem>]) -> Extent {
    let mut sum = Extent::default();
    for (i, mem) in tables.iter().enumerate() {
        let newer = &tables[i + 1..];
        if newer.is_empty() {
            sum.add(mem.extent());
            continue;
        }
        for id in mem.ids().map(MessageId) {
            let Some(queue) = mem.queue_of(id) else { continue };
            if let Some(extent) = mem.extent_of(id)
                && !newer.iter().any(|mem| mem.hides(id, queue))
            {
                sum.add(extent);
            }
        }
    }
    sum
}

/// The runs without live rows.
fn dead(parts: &[LiveRun], books: &Ledger, now: EngineMs) -> impl Iterator<Item = FileNo> {
    let sizes = sizes(parts, books, now);
    parts.iter().zip(sizes).filter(|(_, size)| size.live == 0).map(|(part, _)| part.run.entry().no)
}
