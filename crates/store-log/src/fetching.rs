//! Fetches what look-ups need from the medium, away from the owner's thread.
//!
//! A look-up that would have to wait for the medium is made here first, and its result is dropped: what it has read is in
//! memory then (the page cache of the system, or the blocks that a medium keeps). The owner makes the same look-up again,
//! as of that moment, so nothing that has changed meanwhile is missed.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use duewheel_core::store::{Found, Lookups};

use crate::find::Finder;
use crate::readers::ReadPriority;
use crate::run::Blocking;
use crate::shared::{StoreShared, Worked};
use crate::sync::lock;

/// Look-ups that wait to be fetched, and the tickets of those that are.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    asked: Mutex<VecDeque<(u64, Lookups)>>,
    done: Mutex<VecDeque<u64>>,
}

impl Fetches {
    pub(crate) fn ask(&self, ticket: u64, lookups: Lookups) {
        lock(&self.asked).push_back((ticket, lookups));
    }

    /// The ticket of a look-up that was fetched.
    pub(crate) fn done(&self) -> Option<u64> {
        lock(&self.done).pop_front()
    }
}

/// Fetches what one look-up needs. An error is the owner's to see, when it makes the look-up itself.
pub(crate) fn step(shared: &StoreShared) -> Worked {
    let Some((ticket, lookups)) = lock(&shared.fetches.asked).pop_front() else { return Worked::Nothing };
    let view = shared.view();
    let finder = Finder {
        view: &view,
        active: None,
        readers: &shared.readers,
        whom: ReadPriority::Page,
        blocking: Blocking::Allowed,
    };
    // What the active memtable says is missing here: a message that only it has is looked for in the runs.
    let fetched = finder.find(&lookups, &mut Found::default());
    shared.counters.fetches.fetch_add(1, Relaxed);
    if fetched.is_err() {
        shared.counters.fetch_failures.fetch_add(1, Relaxed);
    }
    lock(&shared.fetches.done).push_back(ticket);
    (shared.waker)();
    Worked::Done
}
