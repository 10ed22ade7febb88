//! What must stay free on the disk, so that what is in memory finds its room there.
//!
//! | what | where its room comes from |
//! |---|---|
//! | the run of the next flush: rows, bodies that are written again, indexes, and what sorting these takes meanwhile | counted as free space ([`wanted`]): new messages are refused before it is used up |
//! | the next group, which becomes a part of that run | the same ([`cushion`]) |
//! | the next state file and the next manifest | the file `RESERVE`, which is given up for them and made again |
//! | acks, cancels, purges | the ballast of the journal ([`crate::journal::preparer`]) |
//!
//! So a flush that has only removals to tell needs no free space at all.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use duewheel_core::store::StoreError;

use crate::disk::Access;
use crate::fault::failed;
use crate::folder::{RESERVE, RESERVE_BYTES};
use crate::mem::Mem;
use crate::options::Options;
use crate::shared::Shared;

/// Bytes of a run besides its messages: its head, its footer, its list of queues. The cushion has room for them.
pub(crate) const RUN: u64 = 2048;
/// Largest size of a queue in the state file in bytes, without its histogram.
const QUEUE: u64 = 512;
/// Largest number of bytes that a record adds to the state file: a column of a histogram, or a removed id of a run.
const RECORD: u64 = 12;
/// The reserve grows in steps of this size.
const STEP: u64 = 64 * 1024;

/// Largest size of the flush of a memtable in bytes, besides the present state file.
pub(crate) fn of_table(mem: &Mem) -> u64 {
    mem.extent().most + of_state(mem)
}

/// Largest number of bytes that it adds to the state file.
pub(crate) fn of_state(mem: &Mem) -> u64 {
    mem.queues().len() as u64 * QUEUE + mem.records() * RECORD
}

/// Largest number of bytes that the memtables gain before the owner asks for room again, as a flush writes them.
pub(crate) fn cushion(options: &Options) -> u64 {
    2 * options.max_group_bytes
}

/// Bytes that must be free for all that is in memory and for the next group.
pub(crate) fn wanted(shared: &Shared) -> u64 {
    // What a flush that goes on has written is not free any more, and need not be.
    let tables = shared.to_flush.load(Relaxed).saturating_sub(shared.flushing.load(Relaxed));
    tables.saturating_add(beside(shared)).saturating_add(cushion(&shared.options))
}

/// Bytes that a flush may take.
pub(crate) fn free_for_flush(shared: &Shared) -> io::Result<u64> {
    Ok(shared.disk.free_bytes()?.saturating_sub(beside(shared)))
}

/// What the reserve lacks to take the state file as it is.
fn beside(shared: &Shared) -> u64 {
    shared.state_bytes.load(Relaxed).saturating_sub(shared.reserved.load(Relaxed))
}

/// Keeps blocks aside for the next state file and the next manifest.
pub(crate) fn keep(shared: &Shared) -> Result<(), StoreError> {
    let disk = &*shared.disk;
    let state = shared.state_bytes.load(Relaxed);
    // The least of it is the manifest's.
    let wanted =
        if state > RESERVE_BYTES / 2 { RESERVE_BYTES + state.next_multiple_of(STEP) } else { RESERVE_BYTES };
    let there = match disk.open(RESERVE, Access::Read) {
        Ok(file) => file.size().unwrap_or(0),
        Err(_) => 0,
    };
    shared.reserved.store(there.saturating_sub(RESERVE_BYTES / 2), Relaxed);
    if there >= wanted {
        return Ok(());
    }
    // What is there is not given up for what would not fit.
    if there > 0 && disk.free_bytes().is_ok_and(|free| free.saturating_add(there) < wanted + STEP) {
        return Ok(());
    }
    let _ = disk.remove(RESERVE); // or it is not there
    shared.reserved.store(0, Relaxed);
    let file = disk.create(RESERVE).map_err(failed("create", RESERVE))?;
    let zeros = vec![0; 64 * 1024];
    let mut kept = file.allocate(wanted);
    let mut at = 0;
    while kept.is_ok() && at < wanted {
        kept = file.write_at(&zeros, at);
        at += zeros.len() as u64;
    }
    if let Err(error) = kept {
        let _ = disk.remove(RESERVE);
        return Err(failed("allocate", RESERVE)(error));
    }
    shared.reserved.store(wanted - RESERVE_BYTES / 2, Relaxed);
    Ok(())
}

/// Gives the reserve up for what it is kept for. False if there is none.
pub(crate) fn give_up(shared: &Shared) -> bool {
    shared.reserved.store(0, Relaxed);
    shared.disk.remove(RESERVE).is_ok()
}
