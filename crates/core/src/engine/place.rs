//! Moves messages between wheel, ready sets, leases and the dead. No other file changes these structures, so the counts
//! stay right.
//!
//! A purge is one record, and is answered at once. Purged messages are dropped from memory when the engine reaches
//! them.

use std::sync::Arc;

use crate::id::{Lsn, MessageId, SessionId};
use crate::message::{
    DeadReason, Died, Ended, Lease, Life, MessageContent, PastAttempt, QueueLimit, Row, Stage,
};
use crate::mutant::{self, Mutant};
use crate::name::QueueName;
use crate::policy::{Backoff, ReadyOrder};
use crate::record::{Gone, Record, Was};
use crate::store::ALL_COLUMNS;
use crate::tally::columns_per_queue;
use crate::time::{Due, EngineMs};

use super::done::EndedMessage;
use super::effect::{Effect, Notice};
use super::input::Target;
use super::question::PurgedMessages;
use super::queue::URGENT;
use super::reply::Attended;
use super::rows::{GrantRank, MessageEntry, QueueIdx, RowIdx, RowLocation};
use super::{Engine, push_history};

/// Returns of a message to its queue, in a row, that follow the loss of its session at once.
const IMMEDIATE_RETURNS: u32 = 2;

impl Engine {
    /// Takes a row into memory and puts it into the structure of its state.
    pub(super) fn insert_row(&mut self, row: Row, born: Lsn, changed: Lsn) -> RowIdx {
        let slot = self.insert_nowhere(row, born, changed);
        self.put_in_place(slot);
        slot
    }

    /// Takes a row into memory for this batch, as one that is in the store alone.
    pub(super) fn insert_far(&mut self, row: Row, born: Lsn, changed: Lsn) -> RowIdx {
        let slot = self.insert_nowhere(row, born, changed);
        self.leave_to_store(slot);
        slot
    }

    /// Leaves a row that is in no structure to the store. It stays until the end of the batch: an operation may have
    /// found it in memory, so it was not looked up.
    pub(super) fn leave_to_store(&mut self, slot: RowIdx) {
        let entry = self.rows.get_mut(slot);
        entry.place = RowLocation::Far;
        self.far.push((slot, entry.message.id));
    }

    fn insert_nowhere(&mut self, row: Row, born: Lsn, changed: Lsn) -> RowIdx {
        let queue = self.queues.find_or_make(&row.message.queue);
        let entry = MessageEntry {
            message: row.message,
            life: row.life,
            queue,
            born,
            changed,
            place: RowLocation::Nowhere,
        };
        self.queues.get_mut(queue).resident += 1;
        self.rows.insert(entry)
    }

    /// Drops a row from memory that is in no structure. It may be in the store.
    pub(super) fn forget(&mut self, slot: RowIdx) -> MessageEntry {
        let live = self.is_live(slot);
        let entry = self.rows.remove(slot);
        let queue = self.queues.get_mut(entry.queue);
        if live {
            queue.resident -= 1;
        } else {
            queue.purged_here -= 1;
            self.purged_here -= 1;
        }
        entry
    }

    /// Puts a row that is in no structure into the one that its stage and due time require.
    pub(super) fn put_in_place(&mut self, slot: RowIdx) {
        let entry = self.rows.get(slot);
        let (idx, id, due, weight) = (entry.queue, entry.message.id, entry.life.due, entry.weight());
        let place = match &entry.life.stage {
            Stage::Waiting { .. } if self.now.is_due(due) => {
                let fits = self.withheld.weight + weight <= self.policy.near_bytes as u64 / 4;
                if fits && self.withheld.holds(self.now, &entry.message, &entry.life) {
                    self.near_weight += weight;
                    self.withheld.weight += weight;
                    self.withheld.rows.insert(id, slot);
                    RowLocation::Withheld
                } else if self.admits(slot) {
                    let rank = self.rank(slot);
                    let queue = self.queues.get_mut(idx);
                    queue.urgent += u64::from(rank.0 < URGENT);
                    self.urgent += u64::from(rank.0 < URGENT);
                    queue.ready.insert((rank, id), slot);
                    queue.ready_weight += weight;
                    self.count_ready(idx, weight);
                    self.became_ready(idx);
                    RowLocation::Ready(rank)
                } else {
                    RowLocation::Far
                }
            }
            Stage::Waiting { .. } if self.is_near(idx, due, id) => {
                self.near_weight += weight;
                self.count_near(slot);
                self.horizon.note_scheduled(due, id);
                RowLocation::Scheduled(self.schedule.insert(due, id, slot))
            }
            Stage::Waiting { .. } => RowLocation::Far,
            Stage::Leased(lease) => {
                let (until, session) = (lease.until, lease.session);
                let queue = self.queues.get_mut(idx);
                queue.leased.insert(id);
                queue.leased_weight += weight;
                queue.leased_by_due[due.class() as usize].insert((due.raw(), id));
                self.leased_weight += weight;
                if session != SessionId::NONE {
                    self.bound.insert((session, until, id));
                }
                RowLocation::Leased(self.schedule.insert_lease(until, id, slot))
            }
            Stage::Dead { at, .. } => {
                let at = *at;
                self.plan_dead_check(idx, at);
                RowLocation::Far
            }
        };
        if matches!(place, RowLocation::Far) {
            self.leave_to_store(slot);
        } else {
            self.rows.get_mut(slot).place = place;
        }
    }

    /// Removes a row from its structure.
    pub(super) fn take_out(&mut self, slot: RowIdx) {
        let entry = self.rows.get(slot);
        let (idx, id, due, weight) = (entry.queue, entry.message.id, entry.life.due, entry.weight());
        self.turn_window(idx);
        let place = std::mem::replace(&mut self.rows.get_mut(slot).place, RowLocation::Nowhere);
        match place {
            RowLocation::Scheduled(handle) => {
                self.schedule.cancel(due.class(), handle);
                self.near_weight -= weight;
                self.uncount_near(slot);
            }
            RowLocation::Ready(rank) => {
                let queue = self.queues.get_mut(idx);
                queue.ready.remove(&(rank, id));
                queue.urgent -= u64::from(rank.0 < URGENT);
                self.urgent -= u64::from(rank.0 < URGENT);
                queue.ready_weight -= weight;
                self.uncount_ready(idx, 1, weight);
                if self.queues.get(idx).has_backlog() {
                    self.note_hunger(idx);
                }
            }
            RowLocation::Leased(handle) => {
                self.schedule.cancel_lease(handle);
                if let Some(lease) = self.rows.get(slot).life.lease() {
                    self.bound.remove(&(lease.session, lease.until, id));
                }
                self.before_grant.remove(&id);
                self.leased_weight -= weight;
                let queue = self.queues.get_mut(idx);
                let born = &mut self.rows.get_mut(slot).born;
                *born = (*born).max(queue.purged);
                queue.leased.remove(id);
                queue.leased_weight -= weight;
                queue.leased_by_due[due.class() as usize].remove(&(due.raw(), id));
                self.end_starving(idx);
                self.end_lease_wait(idx);
            }
            RowLocation::Withheld => {
                self.near_weight -= weight;
                self.withheld.weight -= weight;
                self.withheld.rows.remove(&id);
            }
            RowLocation::Far | RowLocation::Nowhere => {}
        }
    }

    /// Changes a message's life: removes it from its structure, applies `change`, with the detail of the settlement that is
    /// decided, puts it into the structure of its new state, and appends the record.
    pub(super) fn change_life(&mut self, slot: RowIdx, change: impl FnOnce(&mut Life)) {
        let was = self.was(slot);
        self.take_out(slot);
        let detail = self.detail.take();
        let life = &mut self.rows.get_mut(slot).life;
        change(life);
        life.detail = detail.or(life.detail.take());
        self.put_in_place(slot);
        let entry = self.rows.get(slot);
        let record = Record::Changed { id: entry.message.id, life: entry.life.clone(), was };
        self.record(slot, record);
    }

    /// Appends a record about a row and counts it for its queue.
    pub(super) fn record(&mut self, slot: RowIdx, record: Record) -> Lsn {
        self.count(self.rows.get(slot).queue, &record);
        let lsn = self.append(record);
        self.rows.get_mut(slot).changed = lsn;
        lsn
    }

    /// Counts a record about a message.
    pub(super) fn count(&mut self, idx: QueueIdx, record: &Record) {
        self.turn_window(idx);
        let columns = columns_per_queue(self.queues.len());
        let queue = self.queues.get_mut(idx);
        let before = queue.totals;
        queue.totals.count(record);
        let (was, is) = record.moves();
        queue.tally.take(was, is, columns);
        self.count_events(idx, &before);
        let queue = self.queues.get(idx);
        if queue.is_done {
            let is_of_act = queue.name.is_of_act();
            return self.count_done(is_of_act, was.map(|was| was.weight), is.map(|is| is.weight));
        }
        if queue.name.is_history() {
            let stored = self.histories.stored + u64::from(is.is_some());
            self.histories.stored = stored.saturating_sub(u64::from(was.is_some()));
        } else if !queue.name.is_system() {
            self.totals.count(record);
        }
        let tenant = queue.tenant;
        self.tally.take(was, is, ALL_COLUMNS);
        self.tenants.count(tenant, (was, is));
    }

    /// The state of a row, for the record that changes it.
    pub(super) fn was(&self, slot: RowIdx) -> Was {
        let entry = self.rows.get(slot);
        Was::of(&entry.message, &entry.life)
    }

    /// Removes a message permanently.
    pub(super) fn remove(&mut self, slot: RowIdx, why: Gone) -> Arc<MessageContent> {
        let queue = self.rows.get(slot).queue;
        let message = self.remove_from(slot, why, 0);
        self.release(queue);
        message
    }

    /// Removes a message; its queue stays, because another message of `brought` bytes replaces it.
    pub(super) fn remove_from(&mut self, slot: RowIdx, why: Gone, brought: usize) -> Arc<MessageContent> {
        self.end(slot, why, self.ended(slot, why), brought)
    }

    /// Removes a message, and keeps of it what `ended` says.
    pub(super) fn end(
        &mut self,
        slot: RowIdx,
        why: Gone,
        ended: Option<EndedMessage>,
        brought: usize,
    ) -> Arc<MessageContent> {
        let id = self.rows.get(slot).message.id;
        let was = self.was(slot);
        self.record(slot, Record::Removed { id, why, was });
        self.take_out(slot);
        let message = self.forget(slot).message;
        if let Some(ended) = ended {
            self.keep(ended, brought);
        }
        message
    }

    /// Removes a leased message whose key another one has taken, in place of anything else that its lease could end with.
    /// Returns whether it was such a message.
    pub(super) fn end_superseded(&mut self, slot: RowIdx) -> bool {
        let entry = self.rows.get(slot);
        let Some(&Lease { token, .. }) = entry.life.lease() else { return false };
        if entry.life.holds_key() || mutant::is(Mutant::SupersededReturns) {
            return false;
        }
        // A late ack is answered `already`.
        let (id, queue) = (entry.message.id, entry.message.queue.clone());
        self.acked.insert(&self.policy, self.now.engine, id, token, queue);
        self.remove(slot, Gone::Superseded);
        true
    }

    /// Ends a lease without an ack: the message becomes ready again, or dead when its attempts are used up. A superseded
    /// one is removed.
    pub(super) fn end_lease(&mut self, slot: RowIdx, how: Ended) {
        if how == Ended::LeaseExpired && !self.rows.get(slot).message.queue.is_system() {
            self.figures.lease_expired += 1;
        }
        if self.end_superseded(slot) {
            return;
        }
        let Some(lease) = self.rows.get(slot).life.lease().copied() else { return };
        let dead = self.attempts_used_up(slot);
        let held_off = if dead || lease.session == SessionId::NONE { None } else { self.held_off(slot) };
        let (now, asked) = (self.now, self.asked_due(slot));
        let max = self.policy.max_history;
        let at = if dead { self.dies() } else { Died::default() };
        self.change_life(slot, |life| {
            if how == Ended::LeaseExpired {
                life.marks.timeouts = life.marks.timeouts.saturating_add(1);
            }
            if lease.session != SessionId::NONE {
                life.marks.losses = life.marks.losses.saturating_add(1);
            }
            if let Some(delay_ms) = held_off {
                life.due = Due::After(now.after(delay_ms).unwrap_or(EngineMs(u64::MAX)));
                life.marks.delay_ms = Some(delay_ms);
                life.marks.asked = asked;
            }
            let past = PastAttempt {
                attempt: life.attempt,
                granted_at: lease.granted_at,
                ended_at: now.wall,
                how,
                note: "".into(),
            };
            push_history(&mut life.history, past, max);
            // The holder of the lease may still ack or nack until another consumer has the message, or a dead one is
            // redriven. A closed connection cannot.
            let lost = how != Ended::LeaseExpired || (dead && mutant::is(Mutant::LastTokenLost));
            let token = (!lost).then_some(lease.token);
            life.stage = if dead {
                Stage::Dead { reason: DeadReason::MaxAttempts, at, token }
            } else {
                Stage::Waiting { token }
            };
        });
        if dead {
            self.notice_death(slot);
        }
    }

    /// The delay before a message returns that a session has lost, if it is lost too often in a row; otherwise it
    /// returns at once.
    fn held_off(&self, slot: RowIdx) -> Option<u64> {
        let entry = self.rows.get(slot);
        let losses = entry.life.marks.losses.saturating_add(1);
        let held_off = losses.saturating_sub(IMMEDIATE_RETURNS);
        let random = self.random(entry.message.id.0, u64::from(entry.life.attempt));
        (held_off > 0).then(|| self.backoff(slot).delay_ms(held_off, random))
    }

    /// The time stamp of a death that happens now.
    pub(super) fn dies(&mut self) -> Died {
        self.last_death = self.last_death.next(self.now.wall).since(self.now.engine);
        self.last_death
    }

    pub(super) fn attempts_used_up(&self, slot: RowIdx) -> bool {
        let entry = self.rows.get(slot);
        let max = self.max_attempts(entry.queue, &entry.message, &entry.life);
        entry.life.attempt.saturating_sub(entry.life.forgiven) >= max
    }

    /// Reports a message that has become dead to the operator.
    pub(super) fn notice_death(&mut self, slot: RowIdx) {
        let entry = self.rows.get(slot);
        let Stage::Dead { reason, .. } = entry.life.stage else { return };
        let (queue, message) = (&self.queues.get(entry.queue).name, &entry.message);
        let (queue, key) = (queue.clone(), message.key.clone());
        self.fx.push(Effect::Notice(Notice::Died { queue, id: message.id, key, reason }));
    }

    /// Notes that a message is ready in a queue: its waiting consumers are served at the end of the step.
    fn became_ready(&mut self, idx: QueueIdx) {
        let queue = self.queues.get_mut(idx);
        if !queue.waiters.is_empty() && !queue.is_paused(self.now) {
            self.matching.dirty.insert(idx);
        } else if queue.attended == Attended::No && !queue.noticed_unattended && !queue.name.is_system() {
            queue.noticed_unattended = true;
            self.fx.push(Effect::Notice(Notice::Unattended(queue.name.clone())));
        }
    }

    /// The rank of a ready message among those of its queue.
    pub(super) fn rank(&self, slot: RowIdx) -> GrantRank {
        let entry = self.rows.get(slot);
        let priority = self.priority(entry.queue, &entry.life);
        match self.order_of(entry.queue) {
            ReadyOrder::Due => (priority, self.now.wall_of(entry.life.due).0),
            ReadyOrder::Arrival => (priority, 0), // the id decides
        }
    }

    pub(super) fn order_of(&self, idx: QueueIdx) -> ReadyOrder {
        self.queues.get(idx).settings.order.unwrap_or_default()
    }

    pub(super) fn priority(&self, queue: QueueIdx, life: &Life) -> u32 {
        let settings = &self.queues.get(queue).settings;
        life.priority.or(settings.priority).unwrap_or(self.policy.defaults.priority)
    }

    pub(super) fn lease_ms(&self, queue: QueueIdx, message: &MessageContent) -> u64 {
        let settings = &self.queues.get(queue).settings;
        message.options.lease_ms.or(settings.lease_ms).unwrap_or(self.policy.defaults.lease_ms)
    }

    pub(super) fn backoff(&self, slot: RowIdx) -> Backoff {
        let entry = self.rows.get(slot);
        let backoff = entry.message.options.backoff.or(self.queues.get(entry.queue).settings.backoff);
        backoff.unwrap_or(self.policy.defaults.backoff)
    }

    pub(super) fn max_attempts(&self, queue: QueueIdx, message: &MessageContent, life: &Life) -> u32 {
        let of_queue = self.queues.get(queue).settings.max_attempts;
        let own = message.options.max_attempts;
        let own = match message.options.queue_limit {
            QueueLimit::Yields => own,
            QueueLimit::Wins => of_queue.or(own),
        };
        let max = own.or(life.marks.limit).or(of_queue);
        max.unwrap_or(self.policy.defaults.max_attempts).count()
    }

    /// The row of an id, unless it was purged.
    pub(super) fn live(&self, id: MessageId) -> Option<RowIdx> {
        self.rows.slot(id).filter(|&slot| self.is_live(slot))
    }

    /// The row of an id that a caller names: none of a system queue.
    pub(super) fn shown(&self, id: MessageId) -> Option<RowIdx> {
        self.live(id).filter(|&slot| !self.rows.get(slot).message.queue.is_system())
    }

    pub(super) fn is_live(&self, slot: RowIdx) -> bool {
        let entry = self.rows.get(slot);
        // A purge spares leased messages; the row shows that when the lease ends.
        matches!(entry.place, RowLocation::Leased(_)) || entry.born >= self.queues.get(entry.queue).purged
    }

    /// The message that holds a key: the unsettled one that is not dead. It must be in memory, or have been looked up.
    pub(super) fn holder(&self, queue: QueueIdx, key: &crate::Key) -> Option<RowIdx> {
        self.worked(1);
        let alive = |slot: &RowIdx| {
            self.is_live(*slot) && !matches!(self.rows.get(*slot).life.stage, Stage::Dead { .. })
        };
        self.rows.with_key(queue, key).find(alive)
    }

    /// The message that a caller names. A key stands for its holder, or else for the dead message that had it last.
    pub(super) fn resolve(&self, target: &Target) -> Option<RowIdx> {
        match target {
            Target::Id(id) => self.shown(*id),
            Target::Own(id) => self.live(*id),
            Target::Key(queue, key) => {
                let queue = self.queues.find(queue)?;
                self.holder(queue, key).or_else(|| {
                    let dead = self.rows.with_key(queue, key).filter(|&slot| self.is_live(slot));
                    dead.max_by_key(|&slot| self.rows.get(slot).message.id)
                })
            }
        }
    }

    /// Whether a message with this due time is within the part of its queue that is in memory.
    pub(super) fn is_near(&self, idx: QueueIdx, due: Due, id: MessageId) -> bool {
        self.reach(idx, due.class()).is_some_and(|reach| (due.raw(), id) <= reach)
    }
}

impl Engine {
    /// Purges a queue with its done messages and remembered answers, unless it has more than `most` to remove. The
    /// answer is their number.
    pub(super) fn purge_at_most(&mut self, name: &QueueName, most: Option<u64>) -> u64 {
        let there = self.queues.find(name).map_or(0, |idx| {
            let queue = self.queues.get(idx);
            queue.tally.count() - queue.leased.len() as u64
        });
        if most.is_some_and(|most| there > most) {
            return there;
        }
        self.purge(&name.of_done());
        self.purge_answers(name);
        self.purge(name)
    }

    /// Removes Scheduled, Ready and Dead messages of a queue; leased ones stay. The answer is their number.
    pub(super) fn purge(&mut self, name: &QueueName) -> u64 {
        let Some(idx) = self.queues.find(name) else { return 0 };
        let queue = self.queues.get_mut(idx);
        let purged = queue.tally.count() - queue.leased.len() as u64;
        if purged == 0 {
            return 0;
        }
        self.turn_window(idx);
        let queue = self.queues.get_mut(idx);
        let (kept, keep) = (queue.leased.len() as u64, queue.leased.clone());
        let before = MessageId(self.next_id);
        let record = Record::Purged { queue: name.clone(), keep, before, purged };
        let totals = queue.totals;
        queue.totals.count(&record);
        let gone = queue.tally.purge();
        if queue.is_done {
            let is_of_act = queue.name.is_of_act();
            self.done.sub(&gone, is_of_act);
        } else {
            if !name.is_system() {
                self.totals.count(&record);
            }
            self.tenants.count_purge(queue.tenant, &gone);
            self.tally.sub_all(&gone);
            self.tally.due.sub_all(&gone.due);
        }
        self.count_events(idx, &totals);
        let lsn = self.append(record);

        let queue = self.queues.get_mut(idx);
        self.near_counts.sub_all(&std::mem::take(&mut queue.near));
        let ready = std::mem::take(&mut queue.ready);
        let weight = std::mem::take(&mut queue.ready_weight);
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
