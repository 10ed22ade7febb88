//! Purge: one record, an answer at once, and the memory comes back step by step.

use std::collections::BTreeSet;

use crate::id::MessageId;
use crate::name::QueueName;
use crate::record::Record;

use super::Engine;
use super::effect::Effects;
use super::queue::{ByDue, QueueIdx};
use super::rows::{Place, Rank};

/// What is left of purged messages, to be swept when there is time.
#[derive(Debug)]
pub(super) struct Grave {
    queue: QueueIdx,
    rows: [ByDue; 2],
    ready: BTreeSet<(Rank, MessageId)>,
    dead: BTreeSet<(u64, MessageId)>,
}

impl Engine {
    /// Removes Scheduled, Ready and Dead messages of a queue; leased ones stay. Answers how many went.
    pub(super) fn purge(&mut self, name: &QueueName, fx: &mut Effects) -> u64 {
        let Some(idx) = self.queues.find(name) else { return 0 };
        let queue = self.queues.get_mut(idx);
        let purged = queue.counts.scheduled + queue.counts.ready + queue.counts.dead;
        if purged == 0 {
            return 0;
        }
        let keep: Vec<MessageId> = queue.leased.iter().copied().collect();
        let record = Record::Purged {
            queue: name.clone(),
            keep: keep.clone(),
            before: MessageId(self.next_id),
            purged,
        };
        queue.totals.count(&record);
        self.totals.count(&record);
        let lsn = self.append(record, fx);

        let queue = self.queues.get_mut(idx);
        let counted = std::mem::take(&mut queue.due_counts);
        self.due_counts.sub_all(&counted);
        let grave = Grave {
            queue: idx,
            rows: std::mem::take(&mut queue.by_due),
            ready: std::mem::take(&mut queue.ready),
            dead: std::mem::take(&mut queue.dead),
        };
        (queue.counts.scheduled, queue.counts.ready, queue.counts.dead) = (0, 0, 0);
        queue.purged = lsn;
        queue.unswept += purged;
        for id in keep {
            let Some(slot) = self.rows.slot(id) else { continue };
            let entry = self.rows.get_mut(slot);
            entry.born = lsn;
            let due = entry.life.due;
            self.queues.get_mut(idx).by_due_mut(due.class()).insert((due.raw(), id));
        }
        self.graves.push(grave);
        purged
    }

    /// Gives the memory of purged messages back, a bounded number a step.
    pub(super) fn sweep_graves(&mut self) {
        let mut steps = self.policy.max_step;
        while let Some(mut grave) = self.graves.pop() {
            while steps > 0 {
                steps -= 1;
                let [at, after] = &mut grave.rows;
                if let Some((_, id)) = at.pop_first().or_else(|| after.pop_first()) {
                    self.sweep_row(id);
                } else if grave.ready.pop_first().is_none() && grave.dead.pop_first().is_none() {
                    break;
                }
            }
            if steps == 0 {
                self.graves.push(grave);
                self.unfinished = true;
                return;
            }
            self.queues.drop_if_empty(grave.queue);
        }
    }

    fn sweep_row(&mut self, id: MessageId) {
        let Some(slot) = self.rows.slot(id) else { return };
        if self.is_live(slot) {
            return; // leased when the queue was purged
        }
        let entry = self.rows.get(slot);
        if let Place::Scheduled(handle) = entry.place {
            self.schedule.cancel(entry.life.due.class(), handle);
        }
        let entry = self.rows.remove(slot);
        self.queues.get_mut(entry.queue).unswept -= 1;
    }
}
