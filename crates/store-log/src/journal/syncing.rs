//! Makes the journal durable.
//!
//! The owner writes and requests syncs; one worker syncs, or the owner itself when it has nothing else to do, but never
//! both at a time. After a failed sync nothing is synced any more: the kernel may have dropped the pages, and a second
//! sync that "succeeds" would be false.

use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, StoreError};

use crate::fault::failed;
use crate::options::Workers;
use crate::shared::{StoreShared, Worked};

/// The longest expected sync that an owner makes on its own thread; where syncs take longer, the worker makes them.
const AWAY_AT_MOST: Duration = Duration::from_millis(1);

/// The syncer's loop.
pub(crate) fn run(shared: &StoreShared) {
    loop {
        shared.syncer.wait_for_work(shared.options.buffered_for, || shared.is_stopping());
        if shared.is_stopping() {
            return;
        }
        step(shared);
    }
}

/// Syncs once, if there is something to sync, and notifies the owner.
pub(crate) fn step(shared: &StoreShared) -> Worked {
    let worked = sync_once(shared);
    if worked == Worked::Done {
        (shared.waker)();
    }
    worked
}

/// Syncs everything written so far on this thread, unless the worker is syncing or syncs take long; then the sync is
/// only requested.
pub(crate) fn sync_here(shared: &StoreShared) {
    let syncer = &shared.syncer;
    if syncer.took() > AWAY_AT_MOST || shared.options.workers == Workers::ByHand {
        return syncer.ask();
    }
    syncer.ask_for_this_thread();
    if sync_once(shared) == Worked::Nothing {
        // The worker is syncing; it makes the sync that was just requested afterwards.
        syncer.wake_worker();
    }
}

/// Waits until everything written so far is durable.
pub(crate) fn wait(shared: &StoreShared) -> Result<(), StoreError> {
    shared.syncer.ask();
    if shared.options.workers == Workers::ByHand {
        while step(shared) == Worked::Done {}
    }
    shared.syncer.wait(|| {
        shared.check()?;
        by_another(shared)
    })?;
    shared.check()
}

/// Waits until everything up to a written position is durable.
pub(crate) fn wait_until(lsn: Lsn, shared: &StoreShared) -> Result<(), StoreError> {
    let syncer = &shared.syncer;
    syncer.ask();
    if shared.options.workers == Workers::ByHand {
        while syncer.synced() < lsn && step(shared) == Worked::Done {}
    }
    syncer.wait_until(lsn, || {
        shared.check()?;
        if shared.is_stopping() {
            return Err(StoreError::new(ErrorKind::Closed, "the store is being closed"));
        }
        by_another(shared)
    })?;
    shared.check()
}

/// Syncs once, if there is something to sync and no sync is running.
fn sync_once(shared: &StoreShared) -> Worked {
    let Some(sync) = shared.syncer.begin(|| shared.is_stopping()) else { return Worked::Nothing };
    let began = Instant::now();
    let result = sync.file.sync_data().map_err(failed("sync", &sync.name));
    let took = began.elapsed();
    shared.counters.synced(took);
    match result {
        Ok(()) => shared.syncer.finish(&sync, took),
        Err(error) => {
            shared.poison(error);
            shared.syncer.abort();
        }
    }
    Worked::Done
}

/// Fails where the work is done step by step, because waiting for another thread would deadlock.
fn by_another(shared: &StoreShared) -> Result<(), StoreError> {
    if shared.options.workers == Workers::ByHand {
        return Err(StoreError::new(ErrorKind::Unavailable, "the journal cannot be synced by hand now"));
    }
    Ok(())
}
