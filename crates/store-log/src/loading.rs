//! The loader: the task that loads pages, one after the other.

use std::sync::atomic::Ordering::Relaxed;

use duewheel_core::store::{ErrorKind, StoreError};

use crate::load::LoadResult;
use crate::pool::TaskPause;
use crate::shared::{StoreShared, Worked};

/// A step of the loader's task.
pub(crate) fn serve(shared: &StoreShared) -> TaskPause {
    match step(shared) {
        Worked::Nothing => TaskPause::UntilRung,
        Worked::Done | Worked::Later => TaskPause::None,
    }
}

/// Loads one page.
pub(crate) fn step(shared: &StoreShared) -> Worked {
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
