//! The refusal of a store in another format.

use std::fmt::Debug;

use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_store_log::OF_AN_EARLIER_BUILD;

/// The error of a store that this build does not serve, because the marker of its format is not `current`. `of` names
/// the thing with that marker, `earlier` are the markers that builds before 0.1.0 have written.
pub fn refused_format<T: PartialEq + Debug>(
    of: &str,
    stored: T,
    [current, restoring]: [T; 2],
    earlier: &[T],
) -> StoreError {
    let what = if stored == restoring {
        format!("{of}: the restore of a backup to this store has not ended: run `duewheel restore` again")
    } else if earlier.contains(&stored) {
        format!("{of} has format {stored:?}: {OF_AN_EARLIER_BUILD}")
    } else {
        format!("{of} has format {stored:?}; this version knows {current:?}")
    };
    StoreError::new(ErrorKind::Corrupt, what)
}
