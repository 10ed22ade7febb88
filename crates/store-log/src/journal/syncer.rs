//! Makes the journal durable.
//!
//! The owner writes and requests syncs; one worker syncs, or the owner itself when it has nothing else to do, but never
//! both at a time, because only one of them would learn of a failure. A sync covers everything written before it
//! starts, so requests made while one runs are joined into the next. After a failed sync nothing is synced any more:
//! the kernel may have dropped the pages, and a second sync that "succeeds" would be false.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::{ErrorKind, StoreError};

use crate::disk::DiskFile;
use crate::fault::failed;
use crate::options::{SyncMode, Workers};
use crate::shared::{StoreShared, Worked, lock};

#[derive(Debug)]
pub(crate) struct Syncer {
    state: Mutex<SyncState>,
    work: Condvar,
    done: Condvar,
    /// Duration of the last sync, in µs.
    took: AtomicU64,
    /// A copy of `state.synced.lsn`, for readers that must not wait.
    synced: AtomicU64,
}

#[derive(Debug)]
struct SyncState {
    file: Arc<dyn DiskFile>,
    name: Arc<str>,
    written: Position,
    /// The write up to which a sync is requested.
    asked: u64,
    synced: Position,
    syncing: Syncing,
    /// The time of the oldest unsynced write; only in buffered mode.
    since: Option<Instant>,
}

/// Whether a sync is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syncing {
    Nobody,
    Somebody,
}

/// Longest expected sync that an owner makes on its own thread; where syncs take longer, the worker makes them.
const AWAY_AT_MOST: Duration = Duration::from_millis(1);

/// A position, in writes and in records. A mark is a write without a record.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    writes: u64,
    lsn: Lsn,
}

impl Syncer {
    /// A syncer for which everything up to `synced` is durable; later frames go to `file`.
    pub(crate) fn new(file: Arc<dyn DiskFile>, name: Arc<str>, synced: Lsn) -> Self {
        let position = Position { writes: 0, lsn: synced };
        Syncer {
            state: Mutex::new(SyncState {
                file,
                name,
                written: position,
                asked: 0,
                synced: position,
                syncing: Syncing::Nobody,
                since: None,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            took: AtomicU64::new(0),
            synced: AtomicU64::new(synced.0),
        }
    }

    /// The highest durable LSN.
    pub(crate) fn synced(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire))
    }

    /// Notes a write; `last` is the highest LSN written.
    pub(crate) fn wrote(&self, last: Lsn, mode: SyncMode) {
        let mut state = lock(&self.state);
        state.written = Position { writes: state.written.writes + 1, lsn: last };
        if mode == SyncMode::Buffered && state.since.is_none() {
            state.since = Some(Instant::now());
            drop(state);
            self.work.notify_one();
        }
    }

    /// Requests a sync of everything written so far.
    pub(crate) fn ask(&self) {
        let mut state = lock(&self.state);
        if state.asked < state.written.writes {
            state.asked = state.written.writes;
            drop(state);
            self.work.notify_one();
        }
    }

    /// Syncs everything written so far on this thread, unless the worker is syncing or syncs take long; then the sync
    /// is only requested.
    pub(crate) fn ask_here(&self, shared: &StoreShared) {
        let quick = Duration::from_micros(self.took.load(Ordering::Relaxed)) <= AWAY_AT_MOST;
        if !quick || shared.options.workers == Workers::ByHand {
            return self.ask();
        }
        {
            let mut state = lock(&self.state);
            state.asked = state.written.writes;
        }
        if sync_once(shared) == Worked::Nothing {
            // The worker is at it, and goes on with what was asked now.
            self.work.notify_one();
        }
    }

    /// Waits until everything written so far is durable.
    pub(crate) fn wait(&self, shared: &StoreShared) -> Result<(), StoreError> {
        self.ask();
        if shared.options.workers == Workers::ByHand {
            while step(shared) == Worked::Done {}
        }
        let mut state = lock(&self.state);
        loop {
            shared.check()?;
            if state.synced.writes >= state.written.writes {
                return Ok(());
            }
            by_another(shared)?;
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until everything up to a written position is durable.
    pub(crate) fn wait_until(&self, lsn: Lsn, shared: &StoreShared) -> Result<(), StoreError> {
        self.ask();
        if shared.options.workers == Workers::ByHand {
            while self.synced() < lsn && step(shared) == Worked::Done {}
        }
        let mut state = lock(&self.state);
        loop {
            shared.check()?;
            if state.synced.lsn >= lsn {
                return Ok(());
            }
            if shared.is_stopping() {
                return Err(StoreError::new(ErrorKind::Closed, "the store is being closed"));
            }
            by_another(shared)?;
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether everything written so far is durable.
    pub(crate) fn is_all_synced(&self) -> bool {
        let state = lock(&self.state);
        state.synced.writes >= state.written.writes
    }

    /// The highest written LSN.
    pub(crate) fn written(&self) -> Lsn {
        lock(&self.state).written.lsn
    }

    /// Continues with another file; the one before is durable.
    pub(crate) fn switch(&self, file: Arc<dyn DiskFile>, name: Arc<str>) {
        let mut state = lock(&self.state);
        debug_assert_eq!(state.synced.writes, state.written.writes);
        state.file = file;
        state.name = name;
    }

    pub(crate) fn tell_everybody(&self) {
        drop(lock(&self.state));
        self.work.notify_all();
        self.done.notify_all();
    }

    /// Waits until a sync is requested.
    fn wait_for_work(&self, shared: &StoreShared) {
        let mut state = lock(&self.state);
        while !shared.is_stopping()
            && (state.asked <= state.synced.writes || state.syncing == Syncing::Somebody)
        {
            if state.syncing == Syncing::Somebody {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(since) = state.since else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = shared.options.buffered_for.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The syncer's loop.
pub(crate) fn run(shared: &StoreShared) {
    loop {
        shared.syncer.wait_for_work(shared);
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

/// Syncs once, if there is something to sync and no sync is running.
fn sync_once(shared: &StoreShared) -> Worked {
    let syncer = &shared.syncer;
    let (file, name, target) = {
        let mut state = lock(&syncer.state);
        let nothing = state.asked <= state.synced.writes && state.since.is_none();
        if shared.is_stopping() || nothing || state.syncing == Syncing::Somebody {
            return Worked::Nothing;
        }
        state.syncing = Syncing::Somebody;
        state.since = None;
        (Arc::clone(&state.file), Arc::clone(&state.name), state.written)
    };
    let began = Instant::now();
    let result = file.sync_data().map_err(failed("sync", &name));
    let took = began.elapsed();
    shared.counters.synced(took);
    syncer.took.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    if let Err(error) = result {
        // Before anybody else may sync: that one would be told that all is well.
        shared.poison(error);
        lock(&syncer.state).syncing = Syncing::Nobody;
        syncer.tell_everybody();
        return Worked::Done;
    }
    let more = {
        let mut state = lock(&syncer.state);
        state.synced = target;
        state.syncing = Syncing::Nobody;
        syncer.synced.store(target.lsn.0, Ordering::Release);
        state.asked > target.writes || state.since.is_some()
    };
    syncer.done.notify_all();
    if more {
        syncer.work.notify_one();
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
