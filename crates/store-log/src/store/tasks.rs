//! The threads of a store: one of its own, which syncs the journal, and those that it may share with others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use duewheel_core::store::StoreError;

use super::LogStore;
use crate::fault::failed;
use crate::hands::PoisonOnPanic;
use crate::journal::{events, preparer, syncing};
use crate::options::Workers;
use crate::pool::{LaneKind, TaskBell, TaskPause};
use crate::shared::StoreShared;
use crate::{background, loading};

/// The name of the thread that syncs.
const SYNCER: &str = "duewheel-sync";

impl LogStore {
    /// Starts the background work.
    pub(super) fn start_workers(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let syncer = thread::Builder::new().name(SYNCER.into()).spawn(move || {
            let _guard = PoisonOnPanic(&shared, SYNCER);
            syncing::run(&shared);
        });
        self.syncer = Some(syncer.map_err(failed("start", SYNCER))?);
        let shared = &self.shared;
        shared.readers.allow(shared.options.readers)?;
        self.add_task(LaneKind::Prepare, &shared.preparer_bell, preparer::serve)?;
        self.add_task(LaneKind::Merge, &shared.background_bell, background::serve)?;
        self.add_task(LaneKind::Load, &shared.loader.bell, loading::serve)
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
        if self.shared.options.workers == Workers::Threads && !std::mem::replace(&mut self.reads_events, true)
        {
            self.add_task(LaneKind::Events, &self.shared.events.bell, events::serve)?;
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
