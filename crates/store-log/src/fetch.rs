//! The look-ups that are fetched outside the owner's thread.

use std::collections::VecDeque;
use std::sync::Mutex;

use duewheel_core::store::Lookups;

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

    /// The look-up that was asked for first.
    pub(crate) fn next(&self) -> Option<(u64, Lookups)> {
        lock(&self.asked).pop_front()
    }

    /// A look-up was fetched, well or not.
    pub(crate) fn end(&self, ticket: u64) {
        lock(&self.done).push_back(ticket);
    }

    /// The ticket of a look-up that was fetched.
    pub(crate) fn done(&self) -> Option<u64> {
        lock(&self.done).pop_front()
    }
}
