//! Chooses the thread that syncs what a step has appended: the store's worker, or the driver's own thread.

use duewheel_core::store::{Store, StoreError};
use duewheel_core::time::{EngineMs, Now};

use super::{Driver, clock};

/// The driver syncs on its own thread only while nothing is due for this time, in ms: a few times the longest sync that a
/// store makes there.
const SYNC_AHEAD_MS: u64 = 3;

impl<S: Store> Driver<S> {
    /// Asks for a sync of what was appended. `alone`: the step had one caller, and nobody waited.
    ///
    /// Such a caller can be no faster than its sync, which keeps no other caller waiting, so the driver's thread makes
    /// it. If something becomes due soon, the store's worker does, because a sync may take longer than usual.
    pub(super) fn ask_for_sync(&mut self, now: Now, alone: bool) -> Result<(), StoreError> {
        if self.asked < self.appended {
            let soon = EngineMs(now.engine.0.saturating_add(SYNC_AHEAD_MS));
            let is_calm = self.engine.next_wakeup().is_none_or(|next| next > soon);
            if alone && is_calm && self.undecided.is_empty() {
                self.store.sync_here()?;
            } else {
                self.store.sync()?;
            }
            self.asked = self.appended;
        } else if self.is_open() {
            self.store.idle(clock(now))?;
        }
        Ok(())
    }
}
