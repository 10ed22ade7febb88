//! The background work: flushes, and merges between them.

use crate::flush::flush;
use crate::merging::merge;
use crate::pool::TaskPause;
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
