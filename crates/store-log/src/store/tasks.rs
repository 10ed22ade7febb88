//! The threads of a store: one of its own, which syncs the journal, and those that it may share with others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use duewheel_core::record::ClockPair;
use duewheel_core::store::StoreError;

use super::LogStore;
use crate::background::{self, PoisonOnPanic};
use crate::fault::failed;
use crate::flush::{drop_dead, flush};
use crate::journal::{preparer, workers};
use crate::options::WorkMode;
use crate::pool::{LaneKind, TaskBell, TaskPause};
use crate::shared::{DiskSpace, StoreShared, Worked};

/// The name of the thread that syncs.
const SYNCER: &str = "duewheel-sync";

impl LogStore {
    /// Starts the background work.
    pub(super) fn start_workers(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let syncer = thread::Builder::new().name(SYNCER.into()).spawn(move || {
            let _guard = PoisonOnPanic(&shared, SYNCER);
            workers::run(&shared);
        });
        self.syncer = Some(syncer.map_err(failed("start", SYNCER))?);
        let shared = &self.shared;
        shared.readers.allow(shared.options.readers)?;
        self.add_task(LaneKind::Prepare, &shared.preparer_bell, preparer::serve)?;
        self.add_task(LaneKind::Merge, &shared.background_bell, background::serve)?;
        self.add_task(LaneKind::Load, &shared.loader.bell, background::serve_loads)
    }

    /// Adds a task for the threads that the store may share with others. A panic ends the store, and no thread.
    fn add_task(
        &self,
        kind: LaneKind,
        bell: &TaskBell,
        step: fn(&StoreShared) -> TaskPause,
    ) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let guarded = move || {
            let pause = catch_unwind(AssertUnwindSafe(|| {
                let _guard = PoisonOnPanic(&shared, kind.name());
                if shared.is_stopping() { TaskPause::Forever } else { step(&shared) }
            }));
            if shared.is_stopping() { TaskPause::Forever } else { pause.unwrap_or(TaskPause::Forever) }
        };
        self.shared.options.pool.add(kind, bell, guarded)
    }

    /// Adds the task that reads events, at the first request for some.
    pub(super) fn start_event_reader(&mut self) -> Result<(), StoreError> {
        if self.shared.options.workers == WorkMode::Threads
            && !std::mem::replace(&mut self.reads_events, true)
        {
            self.add_task(LaneKind::Events, &self.shared.events.bell, workers::serve)?;
        }
        Ok(())
    }

    /// Stops the background work, waits for what is at work, and releases the folder.
    pub(super) fn end(&mut self) {
        self.shared.stop();
        self.shared.memory.set_active(0);
        self.shared.end_tasks();
        if let Some(syncer) = self.syncer.take() {
            let _ = syncer.join(); // a panic has poisoned the store
        }
        self.shared.memory.set_frozen(0);
        self.shared.memory.tell();
        self.lock = None;
    }
}

impl LogStore {
    /// Gives large segments back when nothing was appended for a while and the folder holds little. The records in memory
    /// are written to a run if full segments stay because of them.
    pub(super) fn rest(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        let since = *self.rests_since.get_or_insert(clock.engine);
        let shared = Arc::clone(&self.shared);
        let options = &shared.options;
        let is_short = clock.engine.0.saturating_sub(since.0) < options.rest_ms;
        if is_short || options.small_segment_bytes == options.segment_bytes || self.writer.is_turning() {
            return Ok(());
        }
        let view = shared.view();
        let in_runs: u64 = view.parts.iter().map(|part| part.run.entry().bytes).sum();
        let (space, has_full) = {
            let journal = shared.journal();
            (journal.space, !journal.sealed.is_empty())
        };
        let (in_memory, small) = (self.active.extent().most, options.small_segment_bytes);
        if !view.frozen.is_empty() || space == DiskSpace::Short || in_memory > small {
            return Ok(());
        }
        if in_runs.saturating_add(in_memory) <= small {
            shared.set_segment_bytes(small);
            self.writer.leave_large_segment(clock)?;
        }
        // Its flush gives full segments back, and runs that have no messages left.
        let gives_back = has_full || (self.messages == 0 && in_runs > 0);
        if gives_back && !self.active.is_empty() && !self.writer.is_turning() {
            self.cut();
        }
        Ok(())
    }

    /// Makes a folder that is being closed small: the records in memory are written to a run, and the journal is left with
    /// one segment that has room for the last mark. Without room on the disk the folder stays as it is.
    pub(super) fn pack(&mut self, clock: ClockPair) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let is_short = shared.journal().space == DiskSpace::Short;
        if is_short || shared.options.small_segment_bytes == shared.options.segment_bytes {
            return Ok(());
        }
        if shared.disk.allocates_zeros() || !self.writer.begin_last_segment(clock)? {
            return Ok(());
        }
        if !self.active.is_empty() {
            self.cut();
        }
        while flush(&shared) == Worked::Done {}
        drop_dead(&shared);
        preparer::remove_spares(&shared, 0);
        Ok(())
    }
}
