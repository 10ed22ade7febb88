//! Gives back the space of a folder that holds little and is idle, or that is closed.

use std::sync::Arc;

use duewheel_core::record::ClockPair;
use duewheel_core::store::StoreError;

use super::LogStore;
use crate::flush::{drop_dead, flush};
use crate::journal::preparer;
use crate::shared::{DiskSpace, Worked};

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
