//! The steps of the background work, and their order: flushes, and merges between them; pages; look-ups that are fetched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use duewheel_core::mutant::{self, Mutant};
use duewheel_core::store::{ErrorKind, Found, StoreError};

use crate::find::Finder;
use crate::flush::{self, flush};
use crate::journal::{preparer, workers};
use crate::load::LoadResult;
use crate::merging::{self, merge};
use crate::pool::TaskPause;
use crate::readers::ReadPriority;
use crate::shared::{StoreShared, Worked};

/// A step of the task: a flush if there is something to flush, or else a slice of a merge.
pub(crate) fn serve(shared: &StoreShared) -> TaskPause {
    let worked = match flush(shared) {
        Worked::Nothing => merge(shared),
        // A merge may free the space that the flush did not find.
        Worked::Later if merge(shared) == Worked::Done => Worked::Done,
        other => other,
    };
    match worked {
        Worked::Done => TaskPause::None,
        Worked::Nothing => TaskPause::UntilRung,
        Worked::Later => TaskPause::Within(shared.options.retry_after),
    }
}

// Runs the background work of a store step by step, and ends a store whose worker panics.

/// Runs the background work of a store step by step, for simulations that open it with
/// [`WorkMode::ByHand`](crate::WorkMode::ByHand).
///
/// A hand may outlive its store; it then does nothing.
#[derive(Clone, Debug)]
pub struct Hands(pub(crate) Arc<StoreShared>);

impl Hands {
    /// Syncs the journal once, if a sync was requested.
    pub fn sync(&self) -> Worked {
        self.guarded(workers::step, "duewheel-sync")
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

    /// Loads one page, if one was requested, or else fetches one look-up. `Store::arrived` does so by itself.
    pub fn load(&self) -> Worked {
        match self.guarded(load_step, "duewheel-load") {
            Worked::Nothing => self.guarded(fetch_step, "duewheel-read"),
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

// The loader: the task that loads pages, one after the other.

/// A step of the loader's task.
pub(crate) fn serve_loads(shared: &StoreShared) -> TaskPause {
    match load_step(shared) {
        Worked::Nothing => TaskPause::UntilRung,
        Worked::Done | Worked::Later => TaskPause::None,
    }
}

/// Loads one page.
pub(crate) fn load_step(shared: &StoreShared) -> Worked {
    let Some(request) = shared.loader.next() else { return Worked::Nothing };
    let asked = request.load.clone();
    let page = shared.loader.load(&shared.readers, request, || shared.view());
    let outcome = match page.map_err(StoreError::from) {
        Ok(page) => LoadResult::Loaded(page),
        // Nothing was changed, and data elsewhere is not affected.
        Err(error) if error.kind() == ErrorKind::Unavailable && shared.check().is_ok() => {
            shared.counters.page_failures.fetch_add(1, Relaxed);
            LoadResult::Unread(asked, error)
        }
        Err(error) => {
            shared.poison(error.clone());
            LoadResult::Ended(error)
        }
    };
    shared.loader.done(outcome);
    (shared.waker)();
    Worked::Done
}

// Fetches what look-ups need from the medium, away from the owner's thread.
//
// A look-up that would have to wait for the medium is made here first, and its result is dropped: the data that it has
// read is then in memory (the page cache of the system, or the blocks that a medium keeps). The owner makes the same
// look-up again, as of that moment, so no later change is missed.

/// Serves one request of the owner, if there is one, for a store whose work is done by hand.
pub(crate) fn serve_request(shared: &StoreShared) {
    let steps = [workers::read_step, load_step, fetch_step];
    let _ = steps.into_iter().any(|step| step(shared) == Worked::Done);
}

/// Fetches what one look-up needs. An error is the owner's to see, when it makes the look-up itself.
pub(crate) fn fetch_step(shared: &StoreShared) -> Worked {
    let Some((ticket, lookups)) = shared.fetches.next() else { return Worked::Nothing };
    let view = shared.view();
    let finder = Finder::new(&view, &shared.readers, ReadPriority::Page);
    // The active memtable is missing here: a message that only it has is looked for in the runs.
    let fetched = finder.find(&lookups, &mut Found::default());
    shared.counters.fetches.fetch_add(1, Relaxed);
    if fetched.is_err() {
        shared.counters.fetch_failures.fetch_add(1, Relaxed);
    }
    shared.fetches.end(ticket);
    (shared.waker)();
    Worked::Done
}
