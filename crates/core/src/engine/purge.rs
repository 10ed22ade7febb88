//! Purge: one record, and an answer at once. Purged messages are dropped from memory when the engine reaches them.

use crate::id::MessageId;
use crate::message::Kind;
use crate::name::QueueName;
use crate::record::Record;

use super::Engine;
use super::rows::RowLocation;
use super::unfinished::PurgedMessages;

impl Engine {
    /// Removes Scheduled, Ready and Dead messages of a queue; leased ones stay. The answer is their number.
    pub(super) fn purge(&mut self, name: &QueueName) -> u64 {
        let Some(idx) = self.queues.find(name) else { return 0 };
        let queue = self.queues.get_mut(idx);
        let purged = queue.tally.count() - queue.leased.len() as u64;
        if purged == 0 {
            return 0;
        }
        let (kept, keep) = (queue.leased.len() as u64, queue.leased.clone());
        let before = MessageId(self.next_id);
        let record = Record::Purged { queue: name.clone(), keep, before, purged };
        queue.totals.count(&record);
        let gone = queue.tally.purge();
        if queue.is_done {
            self.done.kept -= gone.count();
            self.done.bytes = self.done.bytes.saturating_sub(gone.weight());
        } else {
            self.totals.count(&record);
            self.tenants.count_purge(queue.tenant, &gone);
            self.due_counts.sub_all(&gone.due);
            for kind in Kind::ALL {
                self.kinds[kind as usize] -= gone.part(kind).count;
            }
            self.pending.count -= gone.count();
            self.pending.weight = self.pending.weight.saturating_sub(gone.weight());
        }
        let lsn = self.append(record);

        let queue = self.queues.get_mut(idx);
        self.near_counts.sub_all(&std::mem::take(&mut queue.near));
        let ready = std::mem::take(&mut queue.ready);
        let weight = std::mem::take(&mut queue.ready_weight);
        self.ready_here -= ready.len() as u64;
        self.urgent -= queue.urgent;
        queue.urgent = 0;
        queue.purged = lsn;
        let gone = queue.resident - kept;
        queue.resident -= gone;
        queue.purged_here += gone;
        self.purged_here += gone;
        self.fresh.purge(name);
        self.uncount_ready(idx, ready.len(), weight);
        self.graves.push(PurgedMessages { queue: idx, ready });
        self.note_hunger(idx);
        self.release(idx);
        purged
    }

    /// Frees the memory of purged messages, a bounded number a step.
    pub(super) fn sweep_graves(&mut self) {
        let mut steps = self.policy.max_step;
        while let Some(mut grave) = self.graves.pop() {
            while let Some(((rank, id), slot)) = grave.ready.pop_first() {
                if steps == 0 {
                    self.unfinished = true;
                    grave.ready.insert((rank, id), slot);
                    self.graves.push(grave);
                    return;
                }
                steps -= 1;
                self.sweep(id);
            }
            if self.queues.contains(grave.queue) {
                self.release(grave.queue);
            }
        }
    }

    fn sweep(&mut self, id: MessageId) {
        if let Some(slot) = self.rows.slot(id)
            && !self.is_live(slot)
            && matches!(self.rows.get(slot).place, RowLocation::Ready(_))
        {
            self.forget(slot);
        }
    }
}
