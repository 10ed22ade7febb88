//! Prepares segments before they are needed, and decides whether there is room for new messages.
//!
//! Two segments are kept prepared: allocated, filled with zeros or with the remains of an earlier use, synced, named
//! and listed. The writer takes one without waiting for the disk. The last of the two is the **ballast**: while the
//! disk has space the other one is prepared again before the ballast is touched, and when it has none
//! ([`DiskSpace::Short`]), the store asks its owner to settle only, and the ballast takes the records of acks, cancels
//! and purges. So a full disk is detected here, and never inside an append.
//!
//! A start that finds no segment prepared, as in a new folder, writes zeros to a part of its first one
//! ([`Options::filled_at_start`](crate::Options::filled_at_start)), and the writer leaves that one at their end.
//!
//! Segments are small ([`Options::small_segment_bytes`](crate::Options::small_segment_bytes)) until a load has filled one.
//! A folder that holds little again and rests gets small ones in place of the large ones.
//!
//! Space is also short when less is free than the memtables may take as runs: messages that no flush can write would
//! keep the journal from ever being cut. That is why the ballast need not be given up for a flush.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use duewheel_core::store::{ErrorKind, StoreError};

use super::segment::Prepared;
use crate::disk::{Disk, DiskFile, FileAccess, allocate_if_possible};
use crate::fault::failed;
use crate::format::{FileNo, Incarnation, JOURNAL};
use crate::manifest::SegmentEntry;
use crate::pool::TaskPause;
use crate::shared::{DiskSpace, StoreShared, Worked, lock};

/// Number of prepared segments that are reserved for settling.
pub(crate) const BALLAST: usize = 1;
const TARGET: usize = BALLAST + 1;

/// Zeros are written and synced in pieces of this size, so that a sync of the journal never queues behind all of them.
const PIECE: usize = 1024 * 1024;

/// Longest time between two checks of free space.
const LOOK: Duration = Duration::from_millis(250);

/// A step of the preparer's task.
pub(crate) fn serve(shared: &StoreShared) -> TaskPause {
    match step(shared) {
        Worked::Done => TaskPause::None,
        // Another process may fill the disk.
        Worked::Nothing => TaskPause::Within(LOOK),
        Worked::Later => TaskPause::Within(shared.options.retry_after),
    }
}

/// Prepares one segment if one is missing or too large, determines whether the disk has space, and records the durable
/// position in the manifest if that is due.
pub(crate) fn step(shared: &StoreShared) -> Worked {
    let _preparing = lock(&shared.preparing);
    if shared.is_stopping() || !shared.is_preparing() {
        return Worked::Nothing;
    }
    let (prepared, has_large) = {
        let journal = shared.journal();
        let is_too_large = |segment: &Prepared| segment.entry.bytes > shared.segment_bytes();
        let has_space = journal.space == DiskSpace::Enough;
        (journal.prepared.len(), has_space && journal.prepared.iter().any(is_too_large))
    };
    let replaces = has_large && is_affordable(shared);
    let missing = prepared < TARGET || replaces;
    let made = if replaces {
        replace_prepared(shared, shared.segment_bytes()).map(|small| {
            shared.counters.segments_shrunk.fetch_add(prepared as u64, Relaxed);
            keep_prepared(shared, small);
        })
    } else if !missing {
        Ok(())
    } else if is_affordable(shared) {
        prepare_one(shared)
    } else {
        Err(StoreError::new(ErrorKind::Full, "a segment would take the room of the next flush"))
    };
    let upkeep = made.as_ref().map_or(Ok(()), |()| shared.reserve.keep(&*shared.disk));
    let fits = room_for_flush(shared);
    let short = made.is_err() || upkeep.is_err() || !matches!(fits, Ok(true));
    let space = if short { DiskSpace::Short } else { DiskSpace::Enough };
    let has_made = made.is_ok();
    let failure = failure(made.err(), upkeep.err(), fits);
    let before = shared.change_journal(|journal| {
        journal.failure = failure;
        std::mem::replace(&mut journal.space, space)
    });
    remove_surplus(shared, space);
    let positioned = shared.keep_position();
    if before != space || (prepared == 0 && has_made) {
        // The owner waits for space or for a segment; without space it may cut the memtable, so that a flush frees
        // some.
        (shared.waker)();
    }
    if short {
        shared.counters.prepare_failures.fetch_add(u64::from(!has_made), Relaxed);
        shared.background_bell.ring();
        return Worked::Later;
    }
    if missing { Worked::Done } else { positioned }
}

/// The error because of which a step has failed, if it was not a lack of space.
fn failure(
    made: Option<StoreError>,
    upkeep: Option<StoreError>,
    fits: Result<bool, StoreError>,
) -> Option<StoreError> {
    if matches!(fits, Ok(false)) {
        return None;
    }
    let mut errors = made.into_iter().chain(upkeep).chain(fits.err());
    let first = errors.next()?;
    let is_full = |error: &StoreError| error.kind() == ErrorKind::Full;
    (!is_full(&first) && !errors.any(|error| is_full(&error))).then_some(first)
}

/// Makes a segment for a group that fits in no other.
pub(crate) fn make_to_measure(shared: &StoreShared, bytes: u64) -> Result<Prepared, StoreError> {
    let _preparing = lock(&shared.preparing);
    replace_prepared(shared, bytes)
}

/// Makes a segment in place of all that are prepared. These have lower numbers and would come after it: they are
/// unlisted and prepared again, or stay when it cannot be made.
fn replace_prepared(shared: &StoreShared, bytes: u64) -> Result<Prepared, StoreError> {
    let early = shared.change_journal(|journal| std::mem::take(&mut journal.prepared));
    let is_early = |segment: &SegmentEntry| early.iter().any(|p| p.entry == *segment);
    let made = make(shared, bytes, |segments| segments.retain(|s| !is_early(s)));
    match &made {
        Ok(_) => shared.drop_segments(&early.iter().map(|p| p.entry).collect::<Vec<_>>()),
        Err(_) => shared.change_journal(|journal| journal.prepared = early),
    }
    shared.preparer_bell.ring();
    made
}

fn prepare_one(shared: &StoreShared) -> Result<(), StoreError> {
    keep_prepared(shared, make(shared, shared.segment_bytes(), |_| {})?);
    Ok(())
}

fn keep_prepared(shared: &StoreShared, prepared: Prepared) {
    shared.change_journal(|journal| journal.prepared.push_back(prepared));
}

/// Makes a segment and lists it.
fn make(
    shared: &StoreShared,
    bytes: u64,
    unlist: impl FnOnce(&mut Vec<SegmentEntry>),
) -> Result<Prepared, StoreError> {
    let disk = &*shared.disk;
    let no = shared.new_file();
    let spare = shared.change_journal(|journal| {
        let fits = |spare: &SegmentEntry| spare.bytes == bytes && !disk.allocates_zeros();
        let fitting = journal.spares.iter().position(fits);
        fitting.map(|i| journal.spares.swap_remove(i))
    });
    let counters = &shared.counters;
    let file = match spare {
        Some(spare) => {
            counters.segments_reused.fetch_add(1, Relaxed);
            reuse(disk, spare, no)?
        }
        None => {
            counters.segments_made.fetch_add(1, Relaxed);
            create(disk, no, bytes, bytes, &|| shared.is_stopping())?.0
        }
    };
    let entry = SegmentEntry { no, incarnation: Incarnation(disk.unique()), bytes };
    let listed = shared.change_manifest(|manifest| {
        unlist(&mut manifest.segments);
        manifest.segments.push(entry);
    });
    if let Err(error) = listed {
        if shared.check().is_ok() {
            shared.change_journal(|journal| journal.spares.push(entry)); // named, but not listed
        }
        return Err(error);
    }
    Ok(Prepared { entry, file })
}

/// Gives an unlisted file its next number. Its bytes stay: earlier frames do not have the new incarnation.
fn reuse(disk: &dyn Disk, spare: SegmentEntry, no: FileNo) -> Result<Arc<dyn DiskFile>, StoreError> {
    let (old, new) = (spare.no.segment(), no.segment());
    disk.rename(&old, &new).map_err(failed("rename", &old))?;
    disk.sync_dir(JOURNAL).map_err(failed("sync the names of", JOURNAL))?;
    disk.open(&new, FileAccess::Write).map_err(failed("open", &new))
}

/// Creates a file of full size under a temporary name, and renames it once it is complete and durable.
///
/// Zeros are really written: into a file that is only allocated, each sync would first have to convert extents. The
/// first `filled` bytes have them, and all bytes where a file system cannot allocate. Returns the number of bytes that
/// have.
pub(crate) fn create(
    disk: &dyn Disk,
    no: FileNo,
    bytes: u64,
    filled: u64,
    stop: &dyn Fn() -> bool,
) -> Result<(Arc<dyn DiskFile>, u64), StoreError> {
    let (temp, name) = (no.segment_temp(), no.segment());
    let made = fill(disk, &temp, bytes, filled, stop).and_then(|made| {
        disk.rename(&temp, &name).map_err(failed("rename", &temp))?;
        disk.sync_dir(JOURNAL).map_err(failed("sync the names of", JOURNAL))?;
        Ok(made)
    });
    if made.is_err() {
        let _ = disk.remove(&temp); // or it is removed by the next owner
    }
    made
}

fn fill(
    disk: &dyn Disk,
    name: &str,
    bytes: u64,
    filled: u64,
    stop: &dyn Fn() -> bool,
) -> Result<(Arc<dyn DiskFile>, u64), StoreError> {
    let file = disk.create(name).map_err(failed("create", name))?;
    let is_allocated = allocate_if_possible(&*file, bytes).map_err(failed("allocate", name))?;
    let end = if is_allocated { filled } else { bytes };
    if disk.allocates_zeros() {
        return Ok((file, bytes));
    }
    let zeros = vec![0; PIECE.min(usize::try_from(end).unwrap_or(PIECE))];
    let mut at = 0;
    while at < end {
        if stop() {
            return Err(StoreError::new(ErrorKind::Closed, "the store is being closed"));
        }
        let piece = zeros.len().min(usize::try_from(end - at).unwrap_or(PIECE));
        file.write_at(&zeros[..piece], at).map_err(failed("fill", name))?;
        file.sync_data().map_err(failed("sync", name))?;
        at += piece as u64;
    }
    Ok((file, end))
}

/// Whether a new segment leaves enough space to write the memtables as runs. Existing files cost nothing, and the
/// ballast is prepared in any case unless a flush waits for space.
fn is_affordable(shared: &StoreShared) -> bool {
    let segment = shared.segment_bytes();
    let journal = shared.journal();
    let is_ballast = journal.prepared.len() < BALLAST;
    let is_free = journal.spares.iter().any(|spare| spare.bytes == segment);
    drop(journal);
    let needed = shared.reserve.wanted(shared.options.max_group_bytes).saturating_add(segment);
    is_free
        || (is_ballast && !shared.is_stuck())
        || shared.disk.free_bytes().map_or(true, |free| free >= needed)
}

fn room_for_flush(shared: &StoreShared) -> Result<bool, StoreError> {
    let free = shared.disk.free_bytes().map_err(failed("measure the free space of", ""))?;
    shared.free.store(free, Relaxed);
    Ok(free >= shared.reserve.wanted(shared.options.max_group_bytes))
}

/// Removes files that are not needed any more: as many spares are kept as the journal's budget allows, and none in a
/// folder that holds little.
fn remove_surplus(shared: &StoreShared, space: DiskSpace) {
    let segment = shared.segment_bytes();
    let keep = match space {
        DiskSpace::Enough if segment < shared.options.segment_bytes || shared.disk.allocates_zeros() => 0,
        DiskSpace::Enough => {
            usize::try_from(shared.options.journal_bytes / segment + 1).unwrap_or(usize::MAX)
        }
        DiskSpace::Short => 0,
    };
    remove_spares(shared, keep);
}

/// Removes the files that are not listed any more, except so many that fit.
pub(crate) fn remove_spares(shared: &StoreShared, keep: usize) {
    let segment = shared.segment_bytes();
    loop {
        let surplus = shared.change_journal(|journal| {
            let misfit = journal.spares.iter().position(|spare| spare.bytes != segment);
            let too_many = (journal.spares.len() > keep).then_some(0);
            misfit.or(too_many).map(|i| journal.spares.swap_remove(i))
        });
        match surplus {
            Some(spare) => {
                let _ = shared.disk.remove(&spare.no.segment());
            }
            None => return,
        }
    }
}
