//! Fetches what look-ups need from the medium, away from the owner's thread.
//!
//! A look-up that would have to wait for the medium is made here first, and its result is dropped: the data that it has
//! read is then in memory (the page cache of the system, or the blocks that a medium keeps). The owner makes the same
//! look-up again, as of that moment, so no later change is missed.

use std::sync::atomic::Ordering::Relaxed;

use duewheel_core::store::Found;

use crate::find::Finder;
use crate::readers::ReadPriority;
use crate::run::Blocking;
use crate::shared::{StoreShared, Worked};

/// Fetches what one look-up needs. An error is the owner's to see, when it makes the look-up itself.
pub(crate) fn step(shared: &StoreShared) -> Worked {
    let Some((ticket, lookups)) = shared.fetches.next() else { return Worked::Nothing };
    let view = shared.view();
    let finder = Finder {
        view: &view,
        active: None,
        readers: &shared.readers,
        whom: ReadPriority::Page,
        blocking: Blocking::Allowed,
    };
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
