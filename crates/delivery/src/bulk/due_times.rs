//! When the messages are due that a job moves.

use duewheel::core::engine::{Past, When};
use duewheel::core::time::WallMs;

use super::action::{BulkAction, BulkMove};
use super::part::PartEntry;

/// When each message of a slice is due, for the actions that move due times. `created` is the beginning of the job.
///
/// Messages that are shifted into the past are due now. Messages of one millisecond are granted in the order of their
/// ids, so the due time is a millisecond later wherever the former order differs from that.
pub(super) fn due_times(action: &BulkAction, created: u64, entries: &[PartEntry], now: u64) -> Vec<When> {
    let instant = |entry: &PartEntry| match action {
        BulkAction::Postpone(BulkMove::Delay(ms)) => created.saturating_add(*ms),
        BulkAction::Postpone(BulkMove::Shift(ms)) => entry.at.saturating_add_signed(*ms),
        // An instant that has passed: the message is fired, whatever its expiry says.
        BulkAction::Cancel | BulkAction::Fire | BulkAction::Redrive { .. } => 0,
    };
    let at = |entry| When::At { due_at: WallMs(instant(entry)), past: Past::Fire };
    let mut all: Vec<When> = entries.iter().map(at).collect();
    if let BulkAction::Postpone(BulkMove::Shift(_)) = action {
        let mut past: Vec<usize> = (0..entries.len()).filter(|n| instant(&entries[*n]) < now).collect();
        past.sort_by_key(|n| (entries[*n].at, entries[*n].id));
        let mut later = 0;
        for pair in past.windows(2) {
            later += u64::from(entries[pair[1]].id < entries[pair[0]].id);
            if later > 0 {
                all[pair[1]] = When::After(later);
            }
        }
    }
    all
}

/// The longest delay among these due times, in ms.
pub(super) fn last_delay(all: &[When]) -> Option<u64> {
    let delay = |when: &When| match when {
        When::After(ms) => Some(*ms),
        When::Seconds(_) | When::At { .. } => None,
    };
    all.iter().filter_map(delay).max()
}
