//! The roles of a client, for `stats`.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Whether the client has put or reserved jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientRole {
    Not,
    Counted,
}

impl ClientRole {
    pub(super) fn begin(&mut self, counter: &AtomicUsize) {
        if *self == ClientRole::Not {
            *self = ClientRole::Counted;
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn end(&mut self, counter: &AtomicUsize) {
        if *self == ClientRole::Counted {
            *self = ClientRole::Not;
            counter.fetch_sub(1, Relaxed);
        }
    }
}
