//! Shrinking: when the wheel holds too much, the horizon moves back at once, and the messages behind it leave memory, a
//! bounded number a step.
//!
//! Until then they are in memory by chance, like any message behind the horizon. A page that moves the horizon forward
//! over them again ends the removal.

use crate::id::MessageId;
use crate::store::Cursor;
use crate::time::Class;

use super::Engine;
use super::horizon::CLASSES;
use super::rows::{RowIdx, RowLocation};

/// The approximate number of messages that are examined to find the new horizon.
const SAMPLE: usize = 2_048;

impl Engine {
    /// Moves the horizon back when the wheel holds too much: to where about half of the messages are kept, by a sample.
    pub(super) fn shrink(&mut self) {
        if self.continue_cut() {
            return;
        }
        let (most, bytes) = (self.policy.near_messages as u64, self.policy.near_bytes as u64);
        if self.near_weight <= bytes {
            self.near_surplus = 0;
        }
        if self.schedule.len() as u64 <= most && self.near_weight <= bytes + self.near_surplus {
            return;
        }
        let stride = self.schedule.len().div_ceil(SAMPLE).max(1);
        let mut waiting: Vec<(u64, Class, Cursor, u64)> = Vec::new();
        for class in CLASSES {
            for slot in self.schedule.sample(class, stride) {
                let entry = self.rows.get(slot);
                let place = (entry.life.due.raw(), entry.message.id);
                waiting.push((self.now.until(entry.life.due), class, place, entry.message.weight() as u64));
            }
        }
        self.worked(waiting.len());
        waiting.sort_unstable();
        let stride = stride as u64;
        let (mut kept, mut weight) = (0, 0);
        for (.., w) in &waiting {
            weight += w * stride;
            if kept > 0 && (kept as u64 * stride >= most / 2 || weight > bytes / 2) {
                break;
            }
            kept += 1;
        }
        // A sample may miss the few large bodies that fill the wheel.
        kept = if kept == waiting.len() { kept / 2 } else { kept };
        for class in CLASSES {
            let first_gone = waiting[kept..].iter().filter(|w| w.1 == class).map(|w| w.2).min();
            if let Some((due, id)) = first_gone {
                self.move_back(class, (due, MessageId(id.0 - 1)));
            }
        }
        self.continue_cut();
    }

    /// Schedules the removal of all messages behind a position from memory, over several steps.
    pub(super) fn move_back(&mut self, class: Class, to: Cursor) {
        self.horizon.move_back(class, to);
        self.unfinished = true;
    }

    /// Removes more of the messages behind the horizon from memory. Returns whether that has to be continued.
    fn continue_cut(&mut self) -> bool {
        let mut left = self.policy.max_step;
        for class in CLASSES {
            let c = class as usize;
            let Some(mut cut) = self.horizon.cuts[c].take_if(|_| left > 0) else { continue };
            let mut gone = Vec::new();
            let more = self.schedule.cut(class, &mut cut, left, &mut gone);
            self.worked(left);
            left = left.saturating_sub(gone.len().max(1));
            for slot in gone {
                self.limit_reach(class, slot);
            }
            if more {
                self.horizon.cuts[c] = Some(cut);
                left = 0;
            }
        }
        let is_cutting = self.horizon.cuts.iter().any(Option::is_some);
        self.unfinished |= is_cutting;
        is_cutting
    }

    /// Handles a scheduled message behind the horizon that was removed from the wheel. If the limit of its queue is
    /// further ahead, it moves back.
    fn limit_reach(&mut self, class: Class, slot: RowIdx) {
        self.uncount_near(slot);
        let entry = self.rows.get_mut(slot);
        self.near_weight -= entry.message.weight() as u64;
        // The row stays until the end of the batch: an operation may have found it in memory, so it was not looked up.
        entry.place = RowLocation::Far;
        let (idx, id, due) = (entry.queue, entry.message.id, entry.life.due.raw());
        self.far.push((slot, id));
        let backlog = &mut self.queues.get_mut(idx).backlog[class as usize];
        let Some(limit) = backlog.limit else { return };
        let before = (due, MessageId(id.0 - 1));
        backlog.limit = Some(limit.min(before));
        if backlog.catching.is_some() {
            backlog.dropped = Some(backlog.dropped.map_or(before, |dropped| dropped.min(before)));
        }
        if limit > before {
            self.note_hunger(idx);
        }
    }
}
