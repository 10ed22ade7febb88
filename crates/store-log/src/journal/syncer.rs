//! The state of syncs: how far the journal is written and durable, and which syncs are requested.
//! [`syncing`](crate::journal::workers) makes them.
//!
//! A sync covers everything written before it starts, so requests made while one runs are joined into the next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use duewheel_core::Lsn;
use duewheel_core::store::StoreError;

use crate::disk::DiskFile;
use crate::fault::lock;
use crate::options::SyncMode;

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

/// A position, in writes and in records. A mark is a write without a record.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    writes: u64,
    lsn: Lsn,
}

/// A sync that has begun. Only one is at a time, because only one of two would learn of a failure.
#[derive(Debug)]
pub(super) struct BegunSync {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) name: Arc<str>,
    target: Position,
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

    /// Requests a sync of everything written so far by a thread that makes the sync itself: the worker is not woken.
    pub(super) fn ask_for_this_thread(&self) {
        let mut state = lock(&self.state);
        state.asked = state.written.writes;
    }

    pub(super) fn wake_worker(&self) {
        self.work.notify_one();
    }

    /// Duration of the last sync.
    pub(super) fn took(&self) -> Duration {
        Duration::from_micros(self.took.load(Ordering::Relaxed))
    }

    /// Waits until everything written is durable, including writes during the wait. `go_on` is called before each wait.
    ///
    /// # Errors
    /// The error of `go_on`.
    pub(super) fn wait(&self, go_on: impl Fn() -> Result<(), StoreError>) -> Result<(), StoreError> {
        self.wait_for(|state| state.synced.writes >= state.written.writes, go_on)
    }

    /// Waits until everything up to a written position is durable. `go_on` is called before each wait.
    ///
    /// # Errors
    /// The error of `go_on`.
    pub(super) fn wait_until(
        &self,
        lsn: Lsn,
        go_on: impl Fn() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.wait_for(|state| state.synced.lsn >= lsn, go_on)
    }

    fn wait_for(
        &self,
        is_reached: impl Fn(&SyncState) -> bool,
        go_on: impl Fn() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        while !is_reached(&state) {
            go_on()?;
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
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

    /// Continues with another file; the former one is durable.
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

    /// Waits until a sync is requested and none is running, or until the store is stopping. In buffered mode a write
    /// requests a sync after `buffered_for`.
    pub(super) fn wait_for_work(&self, buffered_for: Duration, is_stopping: impl Fn() -> bool) {
        let mut state = lock(&self.state);
        while !is_stopping() && (state.asked <= state.synced.writes || state.syncing == Syncing::Somebody) {
            if state.syncing == Syncing::Somebody {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(since) = state.since else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = buffered_for.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            state = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins a sync of everything written so far; `None` if there is nothing to sync, if one is running, or if the
    /// store is stopping. [`Syncer::finish`] or [`Syncer::abort`] ends it.
    pub(super) fn begin(&self, is_stopping: impl Fn() -> bool) -> Option<BegunSync> {
        let mut state = lock(&self.state);
        let nothing = state.asked <= state.synced.writes && state.since.is_none();
        if is_stopping() || nothing || state.syncing == Syncing::Somebody {
            return None;
        }
        state.syncing = Syncing::Somebody;
        state.since = None;
        Some(BegunSync {
            file: Arc::clone(&state.file),
            name: Arc::clone(&state.name),
            target: state.written,
        })
    }

    /// Ends a sync that succeeded after `took`, and notifies the threads that wait for it.
    pub(super) fn finish(&self, sync: &BegunSync, took: Duration) {
        self.took.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let more = {
            let mut state = lock(&self.state);
            state.synced = sync.target;
            state.syncing = Syncing::Nobody;
            self.synced.store(sync.target.lsn.0, Ordering::Release);
            state.asked > sync.target.writes || state.since.is_some()
        };
        self.done.notify_all();
        if more {
            self.work.notify_one();
        }
    }

    /// Ends a sync that failed. The store must be poisoned before: another sync would report success.
    pub(super) fn abort(&self) {
        lock(&self.state).syncing = Syncing::Nobody;
        self.tell_everybody();
    }
}
