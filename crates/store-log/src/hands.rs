//! Runs the background work of a store step by step, and ends a store whose worker panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::{ErrorKind, StoreError};

use crate::journal::{preparer, syncing};
use crate::shared::{StoreShared, Worked};
use crate::{fetching, flush, loading, merging};

/// Runs the background work of a store step by step, for simulations that open it with [`Workers::ByHand`](crate::Workers::ByHand).
///
/// A hand may outlive its store; it then does nothing.
#[derive(Clone, Debug)]
pub struct Hands(pub(crate) Arc<StoreShared>);

impl Hands {
    /// Syncs the journal once, if a sync was requested.
    pub fn sync(&self) -> Worked {
        self.guarded(syncing::step, "duewheel-sync")
    }

    /// Prepares one journal segment, if one is missing.
    pub fn prepare(&self) -> Worked {
        self.guarded(preparer::step, "duewheel-prep")
    }

    /// Writes the frozen memtable to a run, if there is one.
    pub fn flush(&self) -> Worked {
        self.guarded(flush::flush, "duewheel-merge")
    }

    /// Does a slice of a merge, or plans one, if it is worthwhile.
    pub fn merge(&self) -> Worked {
        self.guarded(merging::merge, "duewheel-merge")
    }

    /// Loads one page, if one was requested, or else fetches one look-up. `Store::loaded` and `Store::fetched` do so by
    /// themselves.
    pub fn load(&self) -> Worked {
        match self.guarded(loading::step, "duewheel-load") {
            Worked::Nothing => self.guarded(fetching::step, "duewheel-read"),
            worked => worked,
        }
    }

    /// Bytes that the store believes to be reserved for the next state file.
    pub fn reserved(&self) -> u64 {
        self.0.reserve.reserved.load(Relaxed)
    }

    /// Runs a step like a thread of the store: a panic ends the store before it is passed on.
    fn guarded(&self, step: fn(&StoreShared) -> Worked, name: &str) -> Worked {
        let _guard = PoisonOnPanic(&self.0, name);
        step(&self.0)
    }
}

/// Poisons the store when its worker panics, so that the owner does not wait. The store has ended permanently: a panic
/// would repeat.
pub(crate) struct PoisonOnPanic<'a>(pub(crate) &'a StoreShared, pub(crate) &'a str);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !mutant::is(Mutant::PanicSwallowed) {
            let error = StoreError::new(ErrorKind::Closed, format_args!("a bug: {} has panicked", self.1));
            // The waker itself may have panicked: a second panic here would take the process down.
            let _ = catch_unwind(AssertUnwindSafe(|| self.0.poison(error)));
        }
    }
}
