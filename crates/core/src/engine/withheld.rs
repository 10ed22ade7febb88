//! Occurrences of schedules that became due while the shard was closed. For a few seconds no consumer gets them, so that
//! the scheduler decides first which of them were missed.

use std::collections::BTreeMap;

use crate::id::MessageId;
use crate::message::{Life, MessageContent};
use crate::policy::{ON_TIME_MS, OWN_OCCURRENCE, WITHHELD_MS};
use crate::time::{Due, EngineMs, Now, WallMs};

use super::index::RowIdx;

/// Which occurrences are withheld, and those of them in memory.
#[derive(Debug)]
pub(super) struct Withheld {
    /// The last instant at which the shard is known to have been open before.
    closed: WallMs,
    opened: WallMs,
    /// Messages from this id on are new.
    first_new: MessageId,
    /// When they are granted; the end of time until the shard is open.
    pub(super) until: EngineMs,
    pub(super) rows: BTreeMap<MessageId, RowIdx>,
    /// The weight of these.
    pub(super) weight: u64,
}

impl Withheld {
    /// The state for a shard that is being opened and was last open at `closed`; a new one withholds nothing.
    pub(super) fn new(closed: Option<WallMs>, now: Now, first_new: u64) -> Self {
        let (closed, first_new) = (closed.unwrap_or(now.wall), MessageId(first_new));
        let (until, rows) = (EngineMs(u64::MAX), BTreeMap::new());
        Withheld { closed, opened: now.wall, first_new, until, rows, weight: 0 }
    }

    /// The shard is open: its occurrences are withheld for a while from now on.
    pub(super) fn open(&mut self, now: Now) {
        self.until = now.after(WITHHELD_MS).unwrap_or(now.engine);
    }

    /// Whether no consumer may get this message yet, which is due.
    pub(super) fn holds(&self, now: Now, message: &MessageContent, life: &Life) -> bool {
        let is_old = |due: WallMs| due > self.closed && due.0.saturating_add(ON_TIME_MS) < self.opened.0;
        now.engine < self.until
            && message.id < self.first_new
            && life.attempt == 0
            && matches!(life.due, Due::At(due) if is_old(due))
            && message.dedupe_id.as_deref().is_some_and(|id| id.starts_with(OWN_OCCURRENCE))
    }

    pub(super) fn next_wakeup(&self) -> Option<EngineMs> {
        (!self.rows.is_empty()).then_some(self.until)
    }
}
