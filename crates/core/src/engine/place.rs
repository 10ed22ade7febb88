//! Moving messages between their places. The only file that keeps wheel, ready sets and counts in step.

use std::sync::Arc;

use crate::id::{Lsn, MessageId};
use crate::message::{DeadReason, Ended, Life, Message, PastAttempt, Row, Stage, State};
use crate::policy::ReadyOrder;
use crate::record::{Gone, Record, Was};
use crate::time::{Due, Now};

use super::effect::{Effect, Effects, Notice};
use super::input::Target;
use super::queue::{Event, QueueIdx};
use super::reply::Attended;
use super::rows::{Entry, Place, Slot};
use super::{Engine, push_history};

impl Engine {
    /// Takes a row into memory and puts it in its place.
    pub(super) fn insert_row(
        &mut self,
        now: Now,
        row: Row,
        born: Lsn,
        changed: Lsn,
        fx: &mut Effects,
    ) -> Slot {
        let queue = self.queues.find_or_make(&row.message.queue);
        let (due, id) = (row.life.due, row.message.id);
        let entry =
            Entry { message: row.message, life: row.life, queue, born, changed, place: Place::Nowhere };
        let slot = self.rows.insert(entry);
        self.queues.get_mut(queue).by_due_mut(due.class()).insert((due.raw(), id));
        self.put_in_place(now, slot, fx);
        slot
    }

    /// Puts a row that is nowhere into the place that its stage and due time ask for.
    pub(super) fn put_in_place(&mut self, now: Now, slot: Slot, fx: &mut Effects) {
        let entry = self.rows.get(slot);
        let (idx, id, due) = (entry.queue, entry.message.id, entry.life.due);
        let (place, state) = match &entry.life.stage {
            Stage::Waiting { .. } if now.is_due(due) => {
                let rank = self.rank(now, slot);
                self.queues.get_mut(idx).ready.insert((rank, id));
                self.became_ready(now, idx, fx);
                (Place::Ready(rank), State::Ready)
            }
            Stage::Waiting { .. } => {
                (Place::Scheduled(self.schedule.insert(due, id, slot)), State::Scheduled)
            }
            Stage::Leased(lease) => {
                let (until, session) = (lease.until, lease.session);
                self.queues.get_mut(idx).leased.insert(id);
                if session != crate::SessionId::NONE {
                    self.bound.insert((session, until, id));
                }
                (Place::Leased(self.schedule.insert_lease(until, id, slot)), State::Leased)
            }
            Stage::Dead { at, .. } => {
                let at = *at;
                self.queues.get_mut(idx).dead.insert((at.0, id));
                self.plan_dead_check(now, idx);
                (Place::Dead, State::Dead)
            }
        };
        self.rows.get_mut(slot).place = place;
        let queue = self.queues.get_mut(idx);
        *queue.count_mut(state) += 1;
        if matches!(state, State::Scheduled | State::Ready) {
            queue.due_counts.add(due, self.policy.histogram_resolution_ms);
            self.due_counts.add(due, self.policy.histogram_resolution_ms);
        }
    }

    /// Takes a row out of its place.
    pub(super) fn take_out(&mut self, slot: Slot) {
        let entry = self.rows.get_mut(slot);
        let (idx, id, due, state) = (entry.queue, entry.message.id, entry.life.due, entry.state());
        let place = std::mem::replace(&mut entry.place, Place::Nowhere);
        match place {
            Place::Scheduled(handle) => self.schedule.cancel(due.class(), handle),
            Place::Ready(rank) => {
                self.queues.get_mut(idx).ready.remove(&(rank, id));
            }
            Place::Leased(handle) => {
                self.schedule.cancel_lease(handle);
                if let Some(lease) = self.rows.get(slot).life.lease() {
                    self.bound.remove(&(lease.session, lease.until, id));
                }
                self.queues.get_mut(idx).leased.remove(&id);
            }
            Place::Dead => {
                if let Stage::Dead { at, .. } = self.rows.get(slot).life.stage {
                    self.queues.get_mut(idx).dead.remove(&(at.0, id));
                }
            }
            Place::Nowhere => return,
        }
        let queue = self.queues.get_mut(idx);
        *queue.count_mut(state) -= 1;
        if matches!(state, State::Scheduled | State::Ready) {
            queue.due_counts.sub(due, self.policy.histogram_resolution_ms);
            self.due_counts.sub(due, self.policy.histogram_resolution_ms);
        }
    }

    /// Gives a row that is nowhere another due time.
    pub(super) fn set_due(&mut self, slot: Slot, due: Due) {
        let entry = self.rows.get_mut(slot);
        let old = std::mem::replace(&mut entry.life.due, due);
        let (idx, id) = (entry.queue, entry.message.id);
        let queue = self.queues.get_mut(idx);
        queue.by_due_mut(old.class()).remove(&(old.raw(), id));
        queue.by_due_mut(due.class()).insert((due.raw(), id));
    }

    /// Changes a message's life: takes it out of its place, lets `change` work on it, puts it where it belongs then, and
    /// appends the record.
    pub(super) fn change_life(
        &mut self,
        now: Now,
        slot: Slot,
        fx: &mut Effects,
        change: impl FnOnce(&mut Life),
    ) {
        let was = self.was(slot);
        self.take_out(slot);
        let mut life = self.rows.get(slot).life.clone();
        change(&mut life);
        let due = life.due;
        let old = self.rows.get(slot).life.due;
        self.rows.get_mut(slot).life = Life { due: old, ..life.clone() };
        if old != due {
            self.set_due(slot, due);
        }
        self.put_in_place(now, slot, fx);
        let id = self.rows.get(slot).message.id;
        self.record(slot, Record::Changed { id, life, was }, fx);
    }

    /// Appends a record about a row and counts it for its queue.
    pub(super) fn record(&mut self, slot: Slot, record: Record, fx: &mut Effects) -> Lsn {
        let idx = self.rows.get(slot).queue;
        self.queues.get_mut(idx).totals.count(&record);
        self.totals.count(&record);
        let lsn = self.append(record, fx);
        self.rows.get_mut(slot).changed = lsn;
        lsn
    }

    /// Where a row stands, for the record that moves it.
    pub(super) fn was(&self, slot: Slot) -> Was {
        let entry = self.rows.get(slot);
        Was {
            queue: self.queues.get(entry.queue).name.clone(),
            kind: entry.life.stage.kind(),
            due: entry.life.due,
            weight: entry.message.weight() as u64,
        }
    }

    /// Ends a message for good.
    pub(super) fn remove(&mut self, slot: Slot, why: Gone, fx: &mut Effects) -> Arc<Message> {
        let queue = self.rows.get(slot).queue;
        let message = self.remove_from(slot, why, fx);
        self.queues.drop_if_empty(queue);
        message
    }

    /// Ends a message; its queue stays, because another takes its place.
    pub(super) fn remove_from(&mut self, slot: Slot, why: Gone, fx: &mut Effects) -> Arc<Message> {
        let id = self.rows.get(slot).message.id;
        let was = self.was(slot);
        self.record(slot, Record::Removed { id, why, was }, fx);
        self.take_out(slot);
        let entry = self.rows.remove(slot);
        let due = entry.life.due;
        self.queues.get_mut(entry.queue).by_due_mut(due.class()).remove(&(due.raw(), id));
        entry.message
    }

    /// Ends a lease without an ack: the message is ready again, or dead when its attempts are used up.
    pub(super) fn end_lease(&mut self, now: Now, slot: Slot, how: Ended, fx: &mut Effects) {
        let Some(lease) = self.rows.get(slot).life.lease().copied() else { return };
        let dead = self.attempts_used_up(slot);
        let max = self.policy.max_history;
        self.change_life(now, slot, fx, |life| {
            let past = PastAttempt {
                attempt: life.attempt,
                granted_at: lease.granted_at,
                ended_at: now.wall,
                how,
                note: "".into(),
            };
            push_history(&mut life.history, past, max);
            life.stage = if dead {
                Stage::Dead { reason: DeadReason::MaxAttempts, at: now.wall }
            } else {
                // Whoever held the lease may still ack or nack until somebody else has the message; a connection that
                // is gone will not.
                let token = (how == Ended::LeaseExpired).then_some(lease.token);
                Stage::Waiting { token }
            };
        });
        if dead {
            self.say_died(slot, fx);
        }
    }

    pub(super) fn attempts_used_up(&self, slot: Slot) -> bool {
        let life = &self.rows.get(slot).life;
        life.attempt.saturating_sub(life.forgiven) >= self.max_attempts(slot)
    }

    /// A log line for the first dead message of a queue.
    pub(super) fn say_died(&mut self, slot: Slot, fx: &mut Effects) {
        let queue = self.queues.get_mut(self.rows.get(slot).queue);
        if !queue.said_died {
            queue.said_died = true;
            fx.push(Effect::Notice(Notice::Died(queue.name.clone())));
        }
    }

    /// Something is ready in a queue: whoever waits there is served at the end of the step.
    fn became_ready(&mut self, now: Now, idx: QueueIdx, fx: &mut Effects) {
        let queue = self.queues.get_mut(idx);
        if !queue.waiters.is_empty() && !queue.is_paused(now) {
            self.dirty.insert(idx);
        } else if queue.attended == Attended::No && !queue.said_unattended {
            queue.said_unattended = true;
            fx.push(Effect::Notice(Notice::Unattended(queue.name.clone())));
        }
    }

    /// Where a ready message stands among those of its queue.
    fn rank(&mut self, now: Now, slot: Slot) -> (u32, u64) {
        let priority = self.priority(slot);
        let entry = self.rows.get(slot);
        let due_at = now.wall_of(entry.life.due).0;
        let queue = self.queues.get_mut(entry.queue);
        match queue.settings.order.unwrap_or_default() {
            ReadyOrder::Due => (priority, due_at),
            ReadyOrder::Arrival => {
                queue.arrivals += 1;
                (priority, queue.arrivals)
            }
        }
    }

    pub(super) fn priority(&self, slot: Slot) -> u32 {
        let entry = self.rows.get(slot);
        let queue = &self.queues.get(entry.queue).settings;
        entry.life.priority.or(queue.priority).unwrap_or(self.policy.defaults.priority)
    }

    pub(super) fn lease_ms(&self, slot: Slot) -> u64 {
        let entry = self.rows.get(slot);
        let queue = &self.queues.get(entry.queue).settings;
        entry.message.options.lease_ms.or(queue.lease_ms).unwrap_or(self.policy.defaults.lease_ms)
    }

    pub(super) fn max_attempts(&self, slot: Slot) -> u32 {
        let entry = self.rows.get(slot);
        let queue = &self.queues.get(entry.queue).settings;
        let max = entry.message.options.max_attempts.or(queue.max_attempts);
        max.unwrap_or(self.policy.defaults.max_attempts).count()
    }

    pub(super) fn count_rate(&mut self, now: Now, idx: QueueIdx, event: Event) {
        self.queues.get_mut(idx).rates[event as usize].count(now);
    }

    /// The row of an id, unless it was purged.
    pub(super) fn live(&self, id: MessageId) -> Option<Slot> {
        self.rows.slot(id).filter(|&slot| self.is_live(slot))
    }

    pub(super) fn is_live(&self, slot: Slot) -> bool {
        let entry = self.rows.get(slot);
        entry.born >= self.queues.get(entry.queue).purged
    }

    /// The message that holds a key: the unsettled one that is not dead.
    pub(super) fn holder(&self, queue: QueueIdx, key: &crate::Key) -> Option<Slot> {
        let alive = |slot: &Slot| {
            self.is_live(*slot) && !matches!(self.rows.get(*slot).life.stage, Stage::Dead { .. })
        };
        self.rows.with_key(queue, key).find(alive)
    }

    /// What a caller names. A key names its holder, or else the dead message that had it last.
    pub(super) fn resolve(&self, target: &Target) -> Option<Slot> {
        match target {
            Target::Id(id) => self.live(*id),
            Target::Key(queue, key) => {
                let queue = self.queues.find(queue)?;
                self.holder(queue, key).or_else(|| {
                    let dead = self.rows.with_key(queue, key).filter(|&slot| self.is_live(slot));
                    dead.max_by_key(|&slot| self.rows.get(slot).message.id)
                })
            }
        }
    }
}
