//! The roles of a client, for `stats`.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Whether the client has put or reserved jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Not,
    Counted,
}

impl Role {
    pub(super) fn begin(&mut self, counter: &AtomicUsize) {
        if *self == Role::Not {
            *self = Role::Counted;
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn end(&mut self, counter: &AtomicUsize) {
        if *self == Role::Counted {
            *self = Role::Not;
            counter.fetch_sub(1, Relaxed);
        }
    }
}
