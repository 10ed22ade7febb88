//! The background worker: flushes, and merges between them.

use crate::flush::flush;
use crate::merging::merge;
use crate::shared::{StoreShared, Worked};

/// The worker's loop.
pub(crate) fn run(shared: &StoreShared) {
    loop {
        let worked = match flush(shared) {
            Worked::Nothing => merge(shared),
            // A merge may free the space that the flush did not find.
            Worked::Later if merge(shared) == Worked::Done => Worked::Done,
            other => other,
        };
        if shared.is_stopping() {
            return;
        }
        match worked {
            Worked::Done => {}
            Worked::Nothing => shared.background_bell.wait(None),
            Worked::Later => shared.background_bell.wait(Some(shared.options.retry_after)),
        }
    }
}
