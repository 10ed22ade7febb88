//! The background work: frozen memtables become runs ([`crate::flush`]), and runs are merged.
//!
//! A flush comes before everything else; a merge is done in slices, so that a flush need not wait for it. A crash is
//! safe at every step. New files are written under names that no manifest lists; replacing the manifest makes them
//! valid in place of the old ones; only then are those removed.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use duewheel_core::store::{ErrorKind, Ledger, StoreError};
use duewheel_core::{EngineMs, QueueName};

use crate::fault::ReadFault;
use crate::figures::micros;
use crate::format::{FileNo, Incarnation};
use crate::journal::workers;
use crate::manifest::{RunEntry, StateEntry};
use crate::merge::policy::{self, MergeLimits, MergePlan, Size};
use crate::merge::{Merge, MergePurpose, Merging, Work};
use crate::run::{Live, Run, RunAnswers, RunWriter, share};
use crate::shared::{DiskSpace, StoreShared, Worked, lock};
use crate::state;
use crate::state::write::{StateChange, discard};
use crate::view::{LiveRun, StoreView, without_gone};

/// Approximate number of bytes in one slice of a merge.
const SLICE: u64 = 4 * 1024 * 1024;

/// Handles a failure: a failed write is tried again; damage ends the store before anything is lost because of it.
pub(crate) fn give_up(shared: &StoreShared, trouble: ReadFault, discard: impl FnOnce()) -> Worked {
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

/// Plans a merge, or continues the present one for a slice.
pub(crate) fn merge(shared: &StoreShared) -> Worked {
    let work = &mut *lock(&shared.work);
    if shared.is_stopping() {
        return Worked::Nothing;
    }
    let no = work.merging.as_ref().map(|merging| merging.no);
    let worked = match &mut work.merging {
        None => begin(shared, work),
        Some(merging) if merging.why == MergePurpose::Order && !is_free(shared, SLICE) => {
            drop_merge(shared, work);
            Ok(Worked::Later)
        }
        Some(merging) => match merging.merge.step(SLICE, &|row| work.ledger.remembers(row)) {
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
                    RunWriter::discard(&*shared.disk, no);
                }
            })
        }
    }
}

fn begin(shared: &StoreShared, work: &mut Work) -> Result<Worked, ReadFault> {
    let view = shared.view();
    let parts = view.parts.clone();
    let now = work.ledger.clock().map_or(EngineMs(0), |clock| clock.engine);
    let known = sizes(&parts, &work.ledger, now);
    let options = &shared.options;
    let limits = MergeLimits { rows: options.run_rows, small: options.small_runs, ..MergeLimits::default() };
    let planned = policy::plan(&known, &limits);
    match planned {
        MergePlan::Nothing if view.frozen.is_empty() => Ok(Worked::Nothing),
        MergePlan::Drop(i) => {
            drop_runs(shared, work, &[parts[i].run.entry().no])?;
            Ok(Worked::Done)
        }
        MergePlan::Merge(range)
            if is_free(shared, known[range.clone()].iter().map(|run| run.bytes).sum()) =>
        {
            start(shared, work, parts, range, MergePurpose::Order, now)
        }
        MergePlan::Nothing | MergePlan::Merge(_) => {
            let nothing = if planned == MergePlan::Nothing { Worked::Nothing } else { Worked::Later };
            if shared.journal().space == DiskSpace::Enough {
                return Ok(nothing);
            }
            // Rows that frozen memtables have removed are also left out; their flush may wait for this merge.
            let parts = without_gone(&parts, &view.frozen)?;
            let MergePlan::Merge(range) = squeeze(shared, &sizes(&parts, &work.ledger, now)) else {
                return Ok(nothing);
            };
            if let Some(frozen) = view.frozen.last() {
                workers::wait_until(frozen.last(), shared)?;
            }
            start(shared, work, parts, range, MergePurpose::Room, now)
        }
    }
}

/// Starts a merge of these parts.
fn start(
    shared: &StoreShared,
    work: &mut Work,
    parts: Vec<LiveRun>,
    range: Range<usize>,
    why: MergePurpose,
    now: EngineMs,
) -> Result<Worked, ReadFault> {
    let older = parts[..range.start].iter().map(|part| Arc::clone(&part.run)).collect();
    let inputs = parts[range].iter().map(|part| (Arc::clone(&part.run), Arc::clone(&part.live)));
    let no = shared.new_file();
    let incarnation = Incarnation(shared.disk.unique());
    match Merge::new(&shared.disk, no, incarnation, inputs.collect(), older, now, shared.hasher) {
        Ok(merge) => {
            work.merging = Some(Merging { no, merge, why, began: Instant::now() });
            Ok(Worked::Done)
        }
        Err(trouble) => {
            if !shared.is_stopping() {
                RunWriter::discard(&*shared.disk, no);
            }
            Err(trouble)
        }
    }
}

/// The plan when there is no space for the merge that is due.
pub(crate) fn squeeze(shared: &StoreShared, sizes: &[Size]) -> MergePlan {
    if shared.journal().space == DiskSpace::Enough {
        return MergePlan::Nothing;
    }
    policy::squeeze(sizes, shared.counters.merge_failures.load(Relaxed))
}

/// Whether a merge may write this many bytes, so that the next flushes still find space.
fn is_free(shared: &StoreShared, bytes: u64) -> bool {
    let kept = shared.reserve.wanted(shared.options.max_group_bytes);
    // A disk that cannot report its free space fails when it is full.
    shared.disk.free_bytes().is_ok_and(|free| free >= kept.saturating_add(bytes))
}

/// Abandons the merge in progress.
pub(crate) fn drop_merge(shared: &StoreShared, work: &mut Work) {
    if let Some(merging) = work.merging.take()
        && !shared.is_stopping()
    {
        let no = merging.no;
        drop(merging);
        RunWriter::discard(&*shared.disk, no);
    }
}

pub(crate) fn sizes(parts: &[LiveRun], books: &Ledger, now: EngineMs) -> Vec<Size> {
    // Expired answers still hide older ones that have not expired.
    let mut hides = false;
    let mut size = |part: &LiveRun| {
        hides |= part.run.answers_until() > now.0;
        let (answers, answer_bytes) = if hides { remembered(&part.run, books) } else { (0, 0) };
        let bytes = part.run.entry().bytes;
        let content = part.run.message_bytes() + part.run.answer_bytes();
        Size {
            live: part.messages() + answers,
            bytes,
            live_bytes: share(bytes, part.message_bytes() + answer_bytes, content),
        }
    };
    parts.iter().map(&mut size).collect()
}

/// The number and the bytes of a run's answers, without the queues all of whose answers are forgotten.
fn remembered(run: &Run, books: &Ledger) -> (u64, u64) {
    let is_gone = |of: &&RunAnswers| books.answers(&of.queue).is_none_or(|log| !log.remembers(of.last));
    let gone = run.answers_by_queue().iter().filter(is_gone);
    let (count, bytes) = gone.fold((0, 0), |sum: (u64, u64), of| (sum.0 + of.count, sum.1 + of.bytes));
    match run.answers().saturating_sub(count) {
        0 => (0, 0),
        left => (left, run.answer_bytes().saturating_sub(bytes)),
    }
}

/// Installs a finished merge in place of its inputs.
fn install(shared: &StoreShared, work: &mut Work, entry: RunEntry) -> Result<(), ReadFault> {
    let Some(merging) = &work.merging else { return Ok(()) };
    let inputs: Vec<FileNo> = merging.merge.inputs().map(|(run, _)| run.entry().no).collect();
    let began = merging.began;
    let run = Run::open(&*shared.disk, &entry, shared.hasher, &work.names)?;
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
    let part = (!is_empty).then(|| LiveRun { run: Arc::new(run), live: Arc::new(live) });
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

/// Lists a run in place of others, which are neighbours.
fn replace(
    shared: &StoreShared,
    work: &mut Work,
    old: &[FileNo],
    new: Option<LiveRun>,
) -> Result<(), ReadFault> {
    let is_old = |no: FileNo| old.contains(&no);
    let before = shared.view().parts.clone();
    let mut parts = before.clone();
    let place = parts.iter().position(|part| is_old(part.run.entry().no)).unwrap_or(0);
    parts.retain(|part| !is_old(part.run.entry().no));
    parts.splice(place..place, new);
    let no = shared.new_file();
    let change =
        StateChange { ledger: &work.ledger, queues: BTreeSet::new(), before: &before, parts: &parts };
    let listed = write_state(shared, no, &work.states, &change).and_then(|states| {
        shared.change_manifest(|manifest| {
            manifest.runs = parts.iter().map(|part| *part.run.entry()).collect();
            manifest.states.clone_from(&states);
        })?;
        Ok(states)
    });
    let states = match listed {
        Ok(states) => states,
        Err(error) => {
            if !shared.is_stopping() {
                discard(&*shared.disk, no);
            }
            return Err(error.into());
        }
    };
    forget_names(work, &parts);
    shared.set_view(|view| StoreView { parts, ..view });
    for no in old {
        shared.remove_later(no.run());
    }
    list_states(shared, work, states);
    shared.preparer_bell.ring();
    Ok(())
}

/// Notes the files of the state that the manifest lists now, and removes the others.
pub(crate) fn list_states(shared: &StoreShared, work: &mut Work, states: Vec<StateEntry>) {
    for old in std::mem::replace(&mut work.states, states) {
        if !work.states.contains(&old) {
            shared.remove_later(old.no.state());
        }
    }
}

/// Writes the next file of the state. Returns the files that the manifest must list.
pub(crate) fn write_state(
    shared: &StoreShared,
    no: FileNo,
    states: &[StateEntry],
    change: &StateChange<'_>,
) -> Result<Vec<StateEntry>, StoreError> {
    let written = state::write::write(&*shared.disk, no, states, change);
    let written = match written {
        // The reserve is also kept for this.
        Err(error) if error.kind() == ErrorKind::Full && shared.reserve.give_up(&*shared.disk) => {
            discard(&*shared.disk, no);
            state::write::write(&*shared.disk, no, states, change)
        }
        other => other,
    };
    if let Ok(states) = &written {
        shared.reserve.state_bytes.store(states.iter().map(|file| file.bytes).sum(), Relaxed);
    }
    written
}

/// Unlists runs without live rows. That takes a new manifest and no new state: readers ignore the state's entries of
/// these runs.
pub(crate) fn drop_runs(shared: &StoreShared, work: &mut Work, gone: &[FileNo]) -> Result<(), ReadFault> {
    let is_gone = |no: FileNo| gone.contains(&no);
    drop_merge_of(shared, work, gone);
    shared.change_manifest(|manifest| manifest.runs.retain(|run| !is_gone(run.no)))?;
    let mut parts = shared.view().parts.clone();
    parts.retain(|part| !is_gone(part.run.entry().no));
    forget_names(work, &parts);
    shared.set_view(|view| StoreView { parts, ..view });
    for no in gone {
        shared.remove_later(no.run());
    }
    shared.preparer_bell.ring();
    Ok(())
}

fn forget_names(work: &mut Work, parts: &[LiveRun]) {
    let names: HashSet<QueueName> =
        parts.iter().flat_map(|part| part.run.queues()).map(|queue| queue.name.clone()).collect();
    work.names.keep(|name| names.contains(name));
}

/// Abandons a merge of runs that are no longer listed, because its output would bring them back.
pub(crate) fn drop_merge_of(shared: &StoreShared, work: &mut Work, runs: &[FileNo]) {
    let is_input = |merging: &Merging| merging.merge.inputs().any(|(run, _)| runs.contains(&run.entry().no));
    if work.merging.as_ref().is_some_and(is_input) {
        drop_merge(shared, work);
    }
}
