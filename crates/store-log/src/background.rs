//! The background work: a frozen memtable becomes a run, and runs are merged.
//!
//! A flush comes before everything else; a merge is done in slices, so that a flush need not wait for it. Every step is
//! safe to crash in. New files are written under names that nobody lists; one replaced manifest makes them count, in
//! place of the old ones; only then are those removed.
//!
//! | | |
//! |---|---|
//! | 1 | the ledger takes the frozen records in |
//! | 2 | what counts of the frozen memtable is written to a run |
//! | 3 | what it says of older messages is taken out of the runs' sets of live ids (of copies of them) |
//! | 4 | the state file says all that |
//! | 5 | the journal is known to be durable up to the cut |
//! | 6 | the manifest lists the run and the state, and no segment that lies before the cut |
//! | 7 | readers see the run in place of the memtable |

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use duewheel_core::store::{ErrorKind, Ledger, Sequence, StoreError, Which};
use duewheel_core::{EngineMs, MessageId, QueueName};
use roaring::RoaringTreemap;

use crate::fault::Trouble;
use crate::figures::micros;
use crate::find::Finder;
use crate::folder::{FileNo, Incarnation};
use crate::manifest::{RunEntry, StateEntry};
use crate::mem::{Mem, Step};
use crate::merge::policy::{self, Limits, Plan, Size};
use crate::merge::{self, Merge};
use crate::names::Interner;
use crate::readers::For;
use crate::run::{Live, Mask, Run, RunWriter, hash};
use crate::shared::{Shared, Space, Worked, lock};
use crate::state;
use crate::view::{Part, View};

/// Rows of the frozen memtable are resolved together, so many.
const TOGETHER: usize = 512;
/// A merge goes on for about so many bytes at a time.
const SLICE: u64 = 4 * 1024 * 1024;

/// What the background worker has for itself.
pub(crate) struct Work {
    /// The books as of the last cut that was taken in.
    pub(crate) ledger: Ledger,
    pub(crate) names: Interner,
    /// What the manifest lists.
    pub(crate) state: Option<StateEntry>,
    pub(crate) merging: Option<Merging>,
}

/// A merge that is under way.
#[derive(Debug)]
pub(crate) struct Merging {
    no: FileNo,
    merge: Merge,
    why: Why,
    began: Instant,
}

/// What a merge is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Fewer and fuller runs. It keeps off the room of the flushes to come.
    Order,
    /// The disk is full, and this makes room: it takes less than it gives back, or finds no room itself.
    Room,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("state", &self.state).finish_non_exhaustive()
    }
}

/// The worker's life.
pub(crate) fn run(shared: &Shared) {
    loop {
        let worked = match flush(shared) {
            Worked::Nothing => merge(shared),
            // A merge may make the room that the flush has not found.
            Worked::Later if merge(shared) == Worked::Done => Worked::Done,
            other => other,
        };
        if shared.is_stopping() {
            return;
        }
        match worked {
            Worked::Done => {}
            Worked::Nothing => shared.background_bell.wait(None),
            Worked::Later => shared.background_bell.wait(Some(shared.options.retry_after)),
        }
    }
}

/// Writes the frozen memtable to a run, if there is one.
pub(crate) fn flush(shared: &Shared) -> Worked {
    let work = &mut *lock(&shared.work);
    let Some(frozen) = shared.view().frozen.clone() else { return Worked::Nothing };
    if shared.is_stopping() {
        return Worked::Nothing;
    }
    // Once begun, it is the next thing to be done: while it would not fit, runs that are mostly gone make room first.
    let is_begun = work.ledger.applied() >= frozen.last();
    if !is_begun && !is_free_for_flush(shared, &frozen) && squeeze_next(shared, work) != Plan::Nothing {
        return Worked::Later;
    }
    let began = Instant::now();
    let (run, state) = (shared.new_file(), shared.new_file());
    let flushed = Flush { shared, frozen: &frozen, run, state }.flush(work);
    if let Err(trouble) = flushed {
        shared.counters.flush_failures.fetch_add(1, Relaxed);
        if let Trouble::Failed(error) = &trouble
            && error.kind() == ErrorKind::Full
        {
            // What a merge has written so far may be what is missing.
            drop_merge(shared, work);
        }
        return give_up(shared, trouble, || {
            RunWriter::discard(&*shared.disk, run);
            state::discard(&*shared.disk, state);
        });
    }
    shared.counters.flushes.fetch_add(1, Relaxed);
    shared.counters.flush_micros.fetch_add(micros(began.elapsed()), Relaxed);
    let less = |bytes: u64| Some(bytes.saturating_sub(frozen.bytes()));
    let _ = shared.mem_bytes.fetch_update(Relaxed, Relaxed, less); // the owner notes it anew with each group
    shared.recycle(frozen);
    shared.preparer_bell.ring();
    (shared.waker)();
    Worked::Done
}

/// What cannot be written is tried again; damage ends the store before anything is lost by it.
fn give_up(shared: &Shared, trouble: Trouble, discard: impl FnOnce()) -> Worked {
    if shared.is_stopping() {
        return Worked::Nothing; // poisoned or closed: nothing is touched any more
    }
    let error = StoreError::from(trouble);
    if error.kind() == ErrorKind::Corrupt {
        shared.poison(error);
        return Worked::Nothing;
    }
    discard();
    Worked::Later
}

struct Flush<'a> {
    shared: &'a Shared,
    frozen: &'a Arc<Mem>,
    run: FileNo,
    state: FileNo,
}

impl Flush<'_> {
    fn flush(&self, work: &mut Work) -> Result<(), Trouble> {
        let (shared, frozen) = (self.shared, self.frozen);
        shared.syncer.ask();
        // A flush that is tried again finds this done.
        if work.ledger.applied() < frozen.last() {
            frozen.for_each(|lsn, record| {
                work.ledger.apply_bytes(lsn, record).expect("it was encoded here, or was decoded before");
            });
            if let Some(clock) = frozen.clock() {
                work.ledger.note_clock(clock);
            }
        }
        let view = shared.view();
        let run = self.write_run(&view)?;
        let mut parts = self.older_parts(&view)?;
        if let Some(entry) = &run {
            let run = Arc::new(Run::open(&*shared.disk, entry, &mut work.names)?);
            let live = Arc::new(Live::all(&run));
            parts.push(Part { run, live });
        }
        let state = write_state(shared, self.state, &work.ledger, &parts)?;
        shared.syncer.wait_until(frozen.last(), shared)?;

        let covered = {
            let sealed = &shared.journal().sealed;
            let covered = sealed.iter().filter(|s| s.end <= frozen.last().next());
            covered.map(|s| s.entry).collect::<Vec<_>>()
        };
        shared.change_manifest(|manifest| {
            manifest.runs.extend(run);
            manifest.state = Some(state);
            manifest.segments.retain(|segment| !covered.contains(segment));
        })?;
        shared.set_view(|view| View { frozen: view.frozen.filter(|f| !Arc::ptr_eq(f, frozen)), parts });
        let old = work.state.replace(state);
        shared.drop_segments(&covered);
        if let Some(old) = old {
            shared.remove_later(old.no.state());
        }
        let bytes = run.map_or(0, |run| run.bytes) + state.bytes;
        shared.counters.flush_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Writes what counts of the frozen memtable; no run if that is nothing.
    fn write_run(&self, view: &View) -> Result<Option<RunEntry>, Trouble> {
        let (shared, frozen) = (self.shared, self.frozen);
        let mut out = None;
        let finder = Finder { view, active: None, readers: &shared.readers, whom: For::Background };
        for sequence in [Sequence::AllAt, Sequence::AllAfter] {
            let mut scan = frozen.scan(sequence, &Which::All, None);
            loop {
                go_on(shared)?;
                let mut ids: Vec<MessageId> = Vec::with_capacity(TOGETHER);
                while ids.len() < TOGETHER
                    && let Some(step) = scan.step(frozen)
                {
                    if let Step::Here((_, id), _) = step {
                        ids.push(id);
                    }
                }
                if ids.is_empty() {
                    break;
                }
                let mut sorted = ids.clone();
                sorted.sort_unstable();
                let mut rows = finder.rows(&sorted, Default::default())?;
                for id in ids {
                    let row = sorted.binary_search(&id).ok().and_then(|i| rows[i].take());
                    if let Some(row) = row {
                        self.writer(&mut out)?.row(&row)?;
                    }
                }
            }
        }
        let now = frozen.clock().map_or(EngineMs(0), |clock| clock.engine);
        for answer in frozen.answers() {
            // One that is over must still hide an older one that is not.
            let hash = hash::answer(&answer.queue, &answer.dedupe_id);
            if answer.until <= now && !view.parts.iter().any(|part| part.run.may_have(hash)) {
                continue;
            }
            self.writer(&mut out)?.answer(&answer);
        }
        Ok(out.map(RunWriter::finish).transpose()?)
    }

    fn writer<'o>(&self, out: &'o mut Option<RunWriter>) -> Result<&'o mut RunWriter, StoreError> {
        match out {
            Some(out) => Ok(out),
            None => {
                let disk = &self.shared.disk;
                let incarnation = Incarnation(disk.unique());
                Ok(out.insert(RunWriter::create(disk, self.run, incarnation, self.frozen.last())?))
            }
        }
    }

    /// The runs without what the frozen memtable says of their messages.
    fn older_parts(&self, view: &View) -> Result<Vec<Part>, Trouble> {
        let frozen = self.frozen;
        let told = RoaringTreemap::from_sorted_iter(frozen.ids());
        let told = told.map_err(|_| StoreError::new(ErrorKind::Unavailable, "ids are out of order"))?;
        let mut parts = view.parts.clone();
        for part in &mut parts {
            if !part.live.ids.is_disjoint(&told) {
                Arc::make_mut(&mut part.live).ids -= &told;
            }
            for (queue, purge) in frozen.purges() {
                if let Some(no) = part.run.queue_no(queue) {
                    let mask = Mask { before: purge.before, keep: purge.keep.to_vec() };
                    Arc::make_mut(&mut part.live).mask(no, mask);
                }
            }
        }
        Ok(parts)
    }
}

/// Plans a merge, or goes on with the one that is under way for a slice.
pub(crate) fn merge(shared: &Shared) -> Worked {
    let work = &mut *lock(&shared.work);
    if shared.is_stopping() {
        return Worked::Nothing;
    }
    // A flush that has failed halfway has taken the books further than the manifest; its next attempt comes first.
    if work.ledger.applied() > work.state.map_or(work.ledger.applied(), |state| state.last) {
        return Worked::Later;
    }
    let no = work.merging.as_ref().map(|merging| merging.no);
    let worked = match &mut work.merging {
        None => begin(shared, work),
        Some(merging) if merging.why == Why::Order && !is_free(shared, SLICE) => {
            drop_merge(shared, work);
            Ok(Worked::Later)
        }
        Some(merging) => match merging.merge.step(SLICE) {
            Ok(None) => Ok(Worked::Done),
            Ok(Some(entry)) => install(shared, work, entry).map(|()| Worked::Done),
            Err(trouble) => Err(trouble),
        },
    };
    match worked {
        Ok(worked) => worked,
        Err(trouble) => {
            shared.counters.merge_failures.fetch_add(1, Relaxed);
            work.merging = None;
            give_up(shared, trouble, || {
                if let Some(no) = no {
                    merge::discard(&*shared.disk, no);
                }
            })
        }
    }
}

fn begin(shared: &Shared, work: &mut Work) -> Result<Worked, Trouble> {
    let parts = shared.view().parts.clone();
    let now = work.ledger.clock().map_or(EngineMs(0), |clock| clock.engine);
    let sizes = sizes(&parts, now);
    let options = &shared.options;
    let limits = Limits { rows: options.run_rows, small: options.small_runs, ..Limits::default() };
    match policy::plan(&sizes, &limits) {
        Plan::Nothing => Ok(Worked::Nothing),
        Plan::Drop(i) => {
            let gone = parts[i].run.entry().no;
            replace(shared, work, &[gone], None)?;
            Ok(Worked::Done)
        }
        Plan::Merge(range) => {
            let bytes = sizes[range.clone()].iter().map(|run| run.bytes).sum();
            let (range, why) = match is_free(shared, bytes) {
                true => (range, Why::Order),
                false => match squeeze(shared, &sizes) {
                    Plan::Merge(range) => (range, Why::Room),
                    Plan::Nothing | Plan::Drop(_) => return Ok(Worked::Later),
                },
            };
            let older = parts[..range.start].iter().map(|part| Arc::clone(&part.run)).collect();
            let inputs = parts[range].iter().map(|part| (Arc::clone(&part.run), Arc::clone(&part.live)));
            let inputs: Vec<_> = inputs.collect();
            let no = shared.new_file();
            let incarnation = Incarnation(shared.disk.unique());
            match Merge::new(&shared.disk, no, incarnation, inputs, older, now) {
                Ok(merge) => {
                    work.merging = Some(Merging { no, merge, why, began: Instant::now() });
                    Ok(Worked::Done)
                }
                Err(trouble) => {
                    if !shared.is_stopping() {
                        merge::discard(&*shared.disk, no);
                    }
                    Err(trouble)
                }
            }
        }
    }
}

fn is_free_for_flush(shared: &Shared, frozen: &Mem) -> bool {
    // A disk that cannot say how much is free says so when it is full.
    shared.disk.free_bytes().map_or(true, |free| free >= frozen.newest_bytes())
}

fn squeeze_next(shared: &Shared, work: &Work) -> Plan {
    let now = work.ledger.clock().map_or(EngineMs(0), |clock| clock.engine);
    squeeze(shared, &sizes(&shared.view().parts, now))
}

/// What helps when there is no room for the merge that is due.
fn squeeze(shared: &Shared, sizes: &[Size]) -> Plan {
    if shared.journal().space == Space::Enough {
        return Plan::Nothing;
    }
    policy::squeeze(sizes, shared.counters.merge_failures.load(Relaxed))
}

/// Whether so much may be written for a merge: the flushes to come must find their room.
fn is_free(shared: &Shared, bytes: u64) -> bool {
    let kept = shared.mem_bytes.load(Relaxed).saturating_mul(2);
    // A disk that cannot say how much is free says so when it is full.
    shared.disk.free_bytes().is_ok_and(|free| free >= kept.saturating_add(bytes))
}

/// Gives the merge that is under way up.
fn drop_merge(shared: &Shared, work: &mut Work) {
    if let Some(merging) = work.merging.take()
        && !shared.is_stopping()
    {
        let no = merging.no;
        drop(merging);
        merge::discard(&*shared.disk, no);
    }
}

fn sizes(parts: &[Part], now: EngineMs) -> Vec<Size> {
    // Answers that are over still hide older ones that are not.
    let mut hides = false;
    let mut size = |part: &Part| {
        hides |= part.run.answers_until() > now.0;
        let answers = if hides { part.run.answers() } else { 0 };
        Size {
            rows: part.run.rows() + part.run.answers(),
            live: part.messages() + answers,
            bytes: part.run.entry().bytes,
        }
    };
    parts.iter().map(&mut size).collect()
}

/// A merge is written: it takes the place of its inputs.
fn install(shared: &Shared, work: &mut Work, entry: RunEntry) -> Result<(), Trouble> {
    let Some(merging) = &work.merging else { return Ok(()) };
    let inputs: Vec<FileNo> = merging.merge.inputs().map(|(run, _)| run.entry().no).collect();
    let began = merging.began;
    let run = Run::open(&*shared.disk, &entry, &mut work.names)?;
    let parts = shared.view().parts.clone();
    let since: Vec<(&Run, &Live, &Live)> = merging
        .merge
        .inputs()
        .filter_map(|(run, then)| {
            let now = parts.iter().find(|part| Arc::ptr_eq(&part.run, run))?;
            Some((&**run, &**then, &*now.live))
        })
        .collect();
    let live = Live::of_merged(&run, &since);
    let is_empty = run.rows() == 0 && run.answers() == 0;
    let part = (!is_empty).then(|| Part { run: Arc::new(run), live: Arc::new(live) });
    replace(shared, work, &inputs, part)?;
    work.merging = None;
    if is_empty {
        shared.remove_later(entry.no.run());
    }
    let counters = &shared.counters;
    counters.merges.fetch_add(1, Relaxed);
    counters.merge_bytes.fetch_add(entry.bytes, Relaxed);
    counters.merge_micros.fetch_add(micros(began.elapsed()), Relaxed);
    Ok(())
}

/// Lists a run in the place of others, which are neighbours.
fn replace(shared: &Shared, work: &mut Work, old: &[FileNo], new: Option<Part>) -> Result<(), Trouble> {
    let is_old = |no: FileNo| old.contains(&no);
    let mut parts = shared.view().parts.clone();
    let place = parts.iter().position(|part| is_old(part.run.entry().no)).unwrap_or(0);
    parts.retain(|part| !is_old(part.run.entry().no));
    parts.splice(place..place, new);
    let no = shared.new_file();
    let listed = write_state(shared, no, &work.ledger, &parts).and_then(|state| {
        shared.change_manifest(|manifest| {
            manifest.runs = parts.iter().map(|part| *part.run.entry()).collect();
            manifest.state = Some(state);
        })?;
        Ok(state)
    });
    let state = match listed {
        Ok(state) => state,
        Err(error) => {
            if !shared.is_stopping() {
                state::discard(&*shared.disk, no);
            }
            return Err(error.into());
        }
    };
    let names: HashSet<QueueName> =
        parts.iter().flat_map(|part| part.run.queues()).map(|queue| queue.name.clone()).collect();
    work.names.keep(|name| names.contains(name));
    shared.set_view(|view| View { frozen: view.frozen, parts });
    for no in old {
        shared.remove_later(no.run());
    }
    if let Some(old) = work.state.replace(state) {
        shared.remove_later(old.no.state());
    }
    shared.preparer_bell.ring();
    Ok(())
}

fn write_state(
    shared: &Shared,
    no: FileNo,
    ledger: &Ledger,
    parts: &[Part],
) -> Result<StateEntry, StoreError> {
    let runs: Vec<(&Run, &Live)> = parts.iter().map(|part| (&*part.run, &*part.live)).collect();
    state::write(&*shared.disk, no, ledger, &runs)
}

fn go_on(shared: &Shared) -> Result<(), StoreError> {
    if shared.is_stopping() {
        return Err(StoreError::new(ErrorKind::Closed, "the store is being closed"));
    }
    Ok(())
}
