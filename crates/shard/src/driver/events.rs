//! Events that the engine wants to read, and those that the store has read.

use std::mem;

use duewheel_core::engine::Input;
use duewheel_core::store::{Store, StoreError};
use duewheel_core::time::Now;

use super::Driver;

impl<S: Store> Driver<S> {
    /// Asks the store for events. What it has at hand is answered at once.
    pub(super) fn ask_for_events(&mut self, now: Now) -> Result<(), StoreError> {
        for asked in mem::take(&mut self.event_requests) {
            if let Some(page) = self.store.read_events(asked)? {
                self.engine.handle(now, Input::Events(page), &mut self.effects);
                self.carry_out();
            }
        }
        Ok(())
    }

    /// Takes events that the store has read.
    pub(super) fn take_events(&mut self, now: Now) -> Result<(), StoreError> {
        while let Some(read) = self.store.events_read() {
            match read {
                Ok(page) => self.engine.handle(now, Input::Events(page), &mut self.effects),
                Err(error) => {
                    // An error of the store itself, and not of this page, ends it.
                    self.progress()?;
                    if let Some(given_up) = error.page().and_then(|ticket| self.engine.give_up_events(ticket))
                    {
                        self.tell_given_up(given_up, &error);
                    }
                }
            }
        }
        Ok(())
    }
}
