//! Checkpoints: they keep the journal from growing with what is settled.
//!
//! A checkpoint reads the last run and the sealed segments from the disk, folds them into a new run, and lists that one
//! in their place. It runs beside the owner and takes nothing from it. Every step is safe to crash in: until the manifest
//! is replaced the new run is a file that nobody lists, and from then on the old files are.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use duewheel_core::store::{ErrorKind, StoreError};

use crate::fault::Trouble;
use crate::folder::Incarnation;
use crate::journal::segment::Sealed;
use crate::run_v1::writer::RunWriter;
use crate::shared::{Journal, Shared, Space, Worked};

pub(crate) mod merge;

/// The checkpointer's life.
pub(crate) fn run(shared: &Shared) {
    loop {
        let worked = step(shared);
        if shared.is_stopping() {
            return;
        }
        match worked {
            Worked::Done => {}
            Worked::Nothing => shared.checkpointer_bell.wait(None),
            Worked::Later => shared.checkpointer_bell.wait(Some(shared.options.retry_after)),
        }
    }
}

/// Makes a checkpoint, if one is due.
pub(crate) fn step(shared: &Shared) -> Worked {
    let (base, sealed) = {
        let journal = shared.journal();
        if shared.is_stopping() || !is_due(shared, &journal) {
            return Worked::Nothing;
        }
        (journal.run, journal.sealed.clone())
    };
    let began = Instant::now();
    let disk = &*shared.disk;
    let no = shared.new_file();
    let incarnation = Incarnation(disk.unique());
    let merged = merge::merge(disk, base.as_ref(), &sealed, no, incarnation, &|| shared.is_stopping());
    let (run, counts) = match merged {
        Ok(merged) => merged,
        Err(trouble) => return give_up(shared, trouble, || RunWriter::discard(disk, no)),
    };
    let swapped = shared.change_manifest(|manifest| {
        manifest.run = Some(run);
        manifest.segments.retain(|segment| !sealed.iter().any(|s| s.entry == *segment));
    });
    if let Err(error) = swapped {
        return give_up(shared, error.into(), || RunWriter::discard(disk, no));
    }
    shared.change_journal(|journal| {
        journal.run = Some(run);
        journal.run_rows = counts.messages;
        journal.sealed.retain(|s| s.end > run.last.next());
        journal.spares.extend(sealed.iter().map(|s| s.entry));
    });
    if let Some(base) = base {
        let _ = disk.remove(&base.no.run()); // or it is removed by the next owner
    }
    let counters = &shared.counters;
    counters.checkpoints.fetch_add(1, Relaxed);
    counters.checkpoint_bytes.fetch_add(run.bytes, Relaxed);
    counters.checkpoint_micros.fetch_add(crate::figures::micros(began.elapsed()), Relaxed);
    shared.preparer_bell.ring();
    Worked::Done
}

/// A checkpoint that cannot be written is tried again; damage ends the store before anything is lost by it.
fn give_up(shared: &Shared, trouble: Trouble, discard: impl FnOnce()) -> Worked {
    if shared.is_stopping() {
        return Worked::Nothing; // poisoned or closed: nothing is touched any more
    }
    shared.counters.checkpoint_failures.fetch_add(1, Relaxed);
    match trouble {
        Trouble::Damaged(problem) => {
            shared.poison(StoreError::new(ErrorKind::Corrupt, problem));
            Worked::Nothing
        }
        Trouble::Failed(_) => {
            discard();
            Worked::Later
        }
    }
}

/// Whether a checkpoint is worth its while. The journal may grow to its budget, or to half of the last run if that is
/// more: so a checkpoint writes at most about three times what the journal has taken in since the last one.
fn is_due(shared: &Shared, journal: &Journal) -> bool {
    let options = &shared.options;
    let sum = |of: fn(&Sealed) -> u64| journal.sealed.iter().map(of).sum::<u64>();
    let run_bytes = journal.run.map_or(0, |run| run.bytes);
    let budget = options.journal_bytes.max(run_bytes / 2);
    let files = sum(|s| s.entry.bytes);
    if journal.sealed.is_empty() {
        return false;
    }
    if journal.space == Space::Short {
        // What it gives back must be worth it, or a full disk would be kept busy for nothing.
        let gain = (files + run_bytes).saturating_sub(shared.live_bytes.load(Relaxed));
        return gain >= options.segment_bytes;
    }
    sum(|s| s.frames) > budget
        || sum(Sealed::records) > options.journal_records.max(journal.run_rows / 2)
        // Segments that crashes have cut short hold little, and take a file each.
        || files > budget.saturating_mul(2)
}
