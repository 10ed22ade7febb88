//! A batch: messages that it names and that are not in memory are looked up before it is decided, and dropped after it.

use crate::id::MessageId;
use crate::message::{Kind, Row};
use crate::name::{Key, QueueName};
use crate::store::{Found, Lookups};

use super::Engine;
use super::answers::id_to_free;
use super::fresh::FreshRow;
use super::input::DedupeId;
use super::operation::{Named, Op};
use super::rows::{RowIdx, RowLocation};

impl Engine {
    /// Adds the look-ups that the operations of a batch need before they can be decided; [`Engine::adopt`] takes the
    /// results. Call it for each operation, and once with `None` for the engine's own work. Some operations need a second
    /// look-up by what the first one has found ([`Op::looks_twice`]): call it again for them after
    /// [`Engine::adopt`], and adopt again.
    pub fn look_up(&mut self, op: Option<&Op>, lookups: &mut Lookups) {
        lookups.bytes = self.policy.found_bytes;
        let Some(op) = op else { return self.look_up_own(lookups) };
        if let Some((source, id)) = op.row()
            && !self.dedupe.knows(source, id)
        {
            lookups.answers.push((source.clone(), id.into()));
        }
        let op = op.inner();
        if let Op::Confirm { source, rows } = op {
            let unknown = rows.iter().take(self.policy.max_step).filter(|id| !self.dedupe.knows(source, id));
            lookups.answers.extend(unknown.map(|id| (source.clone(), id.clone())));
        }
        if let Some((queue, id)) = op.dedupe_id()
            && !self.dedupe.knows(queue, id)
        {
            lookups.answers.push((queue.clone(), id.into()));
        }
        if let Op::Recall { target } = op {
            self.look_up_done(target, lookups);
        }
        if let Op::Restore { id } = op
            && self.live(*id).is_none()
        {
            lookups.answers.push((QueueName::done_ids(), id.0.to_string().into()));
        }
        if let Op::Cancel { target, dedupe_id: DedupeId::Freed, .. } = op
            && let Some(message) = self.resolve(target).map(|slot| &self.rows.get(slot).message)
            && let Some(id) = id_to_free(message)
            && !self.dedupe.knows(&message.queue, id)
        {
            lookups.answers.push((message.queue.clone(), id.into()));
        }
        match op.names() {
            Named::Nothing => {}
            Named::Key(queue, key) => self.look_up_key(queue, key, lookups),
            Named::Id(id) => match self.live(id) {
                None => self.look_up_id(id, lookups),
                Some(slot) if op.operation().revives => self.look_up_key_of(slot, lookups),
                Some(_) => {}
            },
        }
    }

    /// Takes messages and answers that were found in the store into memory, until [`Engine::end_batch`]. They must
    /// reflect every group appended so far; rows in memory take precedence. A store may have made only a part of the
    /// look-ups: [`Engine::is_looked_up`] says which operations can be decided.
    pub fn adopt(&mut self, lookups: &Lookups, found: Found) {
        self.unmade.note(lookups, found.left);
        for row in found.rows {
            // Records of the engine's own are no messages, and are not counted as such.
            let queue = &row.message.queue;
            if self.rows.slot(row.message.id).is_none() && !queue.is_of_acts() && !queue.is_history() {
                self.insert_far(row, self.last, self.last);
            }
        }
        for answer in found.answers {
            if !self.dedupe.knows(&answer.queue, &answer.dedupe_id) {
                self.dedupe.insert(answer);
            }
        }
    }

    /// Whether everything that an operation names has been looked up. Otherwise it waits for the next batch.
    pub fn is_looked_up(&self, op: &Op) -> bool {
        if self.unmade.is_empty() {
            return true;
        }
        if let Op::Recall { target } = op
            && !self.is_done_looked_up(target)
        {
            return false;
        }
        match op.names() {
            Named::Nothing => true,
            Named::Key(queue, key) => !self.unmade.has_key(queue, key),
            Named::Id(id) if self.unmade.has_id(id) => false,
            Named::Id(id) if op.operation().revives => {
                let key = self.live(id).and_then(|slot| self.key_to_return(slot));
                key.is_none_or(|(queue, key)| !self.unmade.has_key(&queue, &key))
            }
            Named::Id(_) => true,
        }
    }

    /// Ends a batch: rows that belong to the store alone leave memory. Every record decided must be appended before the
    /// next look-up.
    pub fn end_batch(&mut self) {
        for (slot, id) in std::mem::take(&mut self.far) {
            if self.rows.is_at(slot, id) && matches!(self.rows.get(slot).place, RowLocation::Far) {
                let entry = self.forget(slot);
                self.release(entry.queue);
            }
        }
        self.dedupe.clear();
        self.fresh.clear();
        self.unmade.clear();
        self.gathers.looked_up = 0;
    }

    pub(super) fn look_up_id(&self, id: MessageId, lookups: &mut Lookups) {
        let all =
            (self.tally.count() + self.done.kept).saturating_sub(self.acts.stored + self.histories.stored);
        let all_here = self.rows.len() as u64 - self.purged_here == all;
        if !all_here && id.0 > 0 && id.0 < self.next_id && self.rows.slot(id).is_none() {
            lookups.ids.push(id);
        }
    }

    pub(super) fn look_up_key(&self, queue: &QueueName, key: &Key, lookups: &mut Lookups) {
        let Some(idx) = self.queues.find(queue) else { return };
        if !self.queues.get(idx).is_all_here() && self.holder(idx, key).is_none() {
            lookups.keys.push((queue.clone(), key.clone()));
        }
    }

    /// Looks up the holder of the key of a dead message that may come back.
    fn look_up_key_of(&self, slot: RowIdx, lookups: &mut Lookups) {
        if self.rows.get(slot).life.stage.kind() == Kind::Dead
            && let Some((queue, key)) = self.key_to_return(slot)
        {
            self.look_up_key(&queue, &key, lookups);
        }
    }

    /// Brings a message of this batch into memory if the operation names it.
    pub(super) fn meet_fresh(&mut self, op: &Op) {
        if self.fresh.is_empty() {
            return;
        }
        if let Op::Recall { target } = op {
            self.meet_done(target);
        }
        match op.names() {
            Named::Id(id) => self.meet(self.fresh.by_id(id)),
            Named::Key(queue, key) => self.meet(self.fresh.by_key(queue, key)),
            Named::Nothing => {}
        }
        if let Named::Id(id) = op.names()
            && op.operation().revives
            && let Some((queue, key)) = self.live(id).and_then(|slot| self.key_to_return(slot))
        {
            self.meet(self.fresh.by_key(&queue, &key));
        }
    }

    pub(super) fn meet(&mut self, found: Option<usize>) {
        if let Some(FreshRow { message, life, born }) = found.and_then(|row| self.fresh.take(row)) {
            self.insert_far(Row { message, life }, born, born);
        }
    }
}
