//! Changes by the producer: cancel, postpone, fire. Also redrive and removal of dead messages.

use std::sync::Arc;

use crate::id::MessageId;
use crate::message::{Life, MessageContent, QueueLimit, Stage, State, is_own_header};
use crate::name::{Key, QueueName};
use crate::random::{SpreadBy, offset_ms};
use crate::record::{Gone, Record};
use crate::store::Capacity;
use crate::time::{Due, Now, WallMs};

use super::Engine;
use super::enqueue::BadWhen;
use super::input::{DedupeId, Edit, KeptFor, Past, Target, When};
use super::reply::{ChangeRefusal, KeyHolder, Limit, Outline, RefusedPart};
use super::rows::RowIdx;

type Changed = Result<Box<Outline>, ChangeRefusal>;

impl Engine {
    pub(super) fn cancel(&mut self, target: &Target, dedupe_id: DedupeId, keep: Option<KeptFor>) -> Changed {
        let slot = self.resolve(target).ok_or(ChangeRefusal::NotFound)?;
        if self.rows.get(slot).state(self.now) == State::Leased {
            return Err(ChangeRefusal::Leased);
        }
        let ended = match keep {
            Some(keep) => Some(self.kept_for(slot, &keep)?),
            None => self.ended(slot, Gone::Cancelled),
        };
        let (was, queue) = (self.outline(slot), self.rows.get(slot).queue);
        let message = self.end(slot, Gone::Cancelled, ended, 0);
        self.release(queue);
        if dedupe_id == DedupeId::Freed {
            self.free_dedupe_id(&message);
        }
        Ok(Box::new(was))
    }

    /// Removes a message that has died at `died` and is dead since. One that was redriven is another's again, also when it
    /// has died once more.
    pub(super) fn remove_dead(&mut self, id: MessageId, died: WallMs, keep: Option<KeptFor>) -> Changed {
        let slot = self.shown(id).ok_or(ChangeRefusal::NotFound)?;
        if !self.has_died_at(slot, died) {
            return Err(ChangeRefusal::NotDead);
        }
        self.cancel(&Target::Id(id), DedupeId::Stays, keep)
    }

    /// Whether a message is dead since this instant.
    fn has_died_at(&self, slot: RowIdx, died: WallMs) -> bool {
        matches!(&self.rows.get(slot).life.stage, Stage::Dead { at, .. } if at.wall() == died)
    }

    pub(super) fn postpone(&mut self, target: &Target, edit: Edit, if_generation: Option<u32>) -> Changed {
        self.check_edit(&edit)?;
        let slot = self.waiting(target)?;
        let generation = self.rows.get(slot).life.generation;
        if if_generation.is_some_and(|wanted| wanted != generation) {
            return Err(ChangeRefusal::GenerationMismatch(generation));
        }
        let due = edit.when.map(|when| self.due(when)).transpose().map_err(|bad| match bad {
            BadWhen::InThePast => ChangeRefusal::InThePast,
            BadWhen::TooFar(max) => ChangeRefusal::TooFar(max),
        })?;
        // What is fired by an instant that has passed is asked for again now, as by `fire`.
        let fires =
            matches!(edit.when, Some(When::At { due_at, past: Past::Fire }) if due_at < self.now.wall);
        let due = due.map(|due| self.spread_again(slot, due, fires)).transpose()?;
        let asked = due.filter(|_| fires).and_then(|due| self.past_expiry(slot, due));
        if edit.rewrites() && !self.takes_puts() {
            return Err(ChangeRefusal::DiskFull);
        }
        let (now, priority) = (self.now, edit.priority);
        let change = |life: &mut Life| {
            if let Some(due) = due {
                life.due = due;
                life.marks.delay_ms = Some(delay_to(now, due));
                life.marks.asked = asked;
            }
            changed(life);
            life.priority = priority.or(life.priority);
        };
        if edit.rewrites() {
            let message = edited(&self.rows.get(slot).message, edit);
            let more = message.weight().saturating_sub(self.rows.get(slot).message.weight());
            let max = self.policy.max_message_bytes as u64;
            if self.tally.weight().saturating_add(more as u64) > max {
                return Err(ChangeRefusal::Overloaded(Limit::Bytes(max)));
            }
            if self.room == Capacity::Busy {
                return Err(ChangeRefusal::Busy);
            }
            let queue = self.rows.get(slot).queue;
            let tenant = self.queues.get(queue).tenant;
            self.forget_for_quota(tenant, None, more as u64);
            self.tenants.grow(tenant, more as u64)?;
            self.rewrite(slot, Arc::new(message), change);
        } else {
            self.change_life(slot, change);
        }
        Ok(Box::new(self.outline(slot)))
    }

    /// The due time within the spread of a message that is asked for at another time.
    fn spread_again(&self, slot: RowIdx, due: Due, fires: bool) -> Result<Due, ChangeRefusal> {
        let message = &self.rows.get(slot).message;
        match self.check_ahead(&message.options, due) {
            Ok(()) => {}
            Err(RefusedPart::ExpiresAt) if fires => {}
            // The spread was right; it is the new due time that is too far away.
            Err(RefusedPart::Spread) => return Err(ChangeRefusal::TooFar(self.policy.max_delay_ms)),
            Err(part) => return Err(ChangeRefusal::OutOfRange(part)),
        }
        let Some(spread) = message.options.spread_ms else { return Ok(due) };
        let by = message.key.as_ref().map_or(SpreadBy::Id(message.id), SpreadBy::Key);
        Ok(due.plus(offset_ms(&message.queue, by, spread)))
    }

    /// Checks an edit as far as that is possible without its message.
    fn check_edit(&self, edit: &Edit) -> Result<(), ChangeRefusal> {
        let policy = &self.policy;
        if *edit == Edit::default() {
            return Err(ChangeRefusal::NothingToChange);
        }
        if edit.body.as_ref().is_some_and(|body| body.len() > policy.max_body) {
            return Err(ChangeRefusal::TooLarge(RefusedPart::Body, policy.max_body));
        }
        let headers: usize =
            edit.headers.iter().flatten().map(|(name, value)| name.len() + value.len()).sum();
        if headers > policy.max_headers {
            return Err(ChangeRefusal::TooLarge(RefusedPart::Headers, policy.max_headers));
        }
        if edit.headers.iter().flatten().any(|(name, _)| is_own_header(name)) {
            return Err(ChangeRefusal::OutOfRange(RefusedPart::Headers));
        }
        if edit.lease_ms.is_some_and(|ms| ms == 0 || ms > policy.max_lease_ms) {
            return Err(ChangeRefusal::OutOfRange(RefusedPart::Lease));
        }
        Ok(())
    }

    pub(super) fn fire(&mut self, target: &Target) -> Changed {
        let slot = self.waiting(target)?;
        if self.rows.get(slot).state(self.now) == State::Scheduled {
            self.fire_now(slot);
        }
        Ok(Box::new(self.outline(slot)))
    }

    pub(super) fn redrive(&mut self, id: MessageId, delay_ms: Option<u64>, died: Option<WallMs>) -> Changed {
        let slot = self.shown(id).ok_or(ChangeRefusal::NotFound)?;
        let is_other = died.is_some_and(|died| !self.has_died_at(slot, died));
        if is_other || self.rows.get(slot).state(self.now) != State::Dead {
            return Err(ChangeRefusal::NotDead);
        }
        if let Some(holder) = self.key_taken(slot) {
            return Err(ChangeRefusal::KeyExists(holder));
        }
        let later = delay_ms.map(|ms| {
            // A delay is never in the past.
            let too_far = |_| ChangeRefusal::TooFar(self.policy.max_delay_ms);
            let due = self.due(When::After(ms)).map_err(too_far)?;
            Ok::<_, ChangeRefusal>((self.spread_again(slot, due, false)?, ms))
        });
        let later = later.transpose()?;
        self.count_fire(slot);
        match later {
            None => self.revive(slot),
            Some((due, delay_ms)) => self.revive_at(slot, due, delay_ms),
        }
        Ok(Box::new(self.outline(slot)))
    }

    /// Counts that a message was made ready before its time. The count is recorded with the change itself.
    pub(super) fn count_fire(&mut self, slot: RowIdx) {
        let marks = &mut self.rows.get_mut(slot).life.marks;
        marks.fires = marks.fires.saturating_add(1);
    }

    /// Lets a dead message wait until it is due again.
    fn revive_at(&mut self, slot: RowIdx, due: Due, delay_ms: u64) {
        self.change_life(slot, |life| {
            life.forgiven = life.attempt;
            life.stage = Stage::Waiting { token: None };
            life.due = due;
            life.marks.delay_ms = Some(delay_ms);
            life.marks.asked = None;
            life.marks.losses = 0;
        });
    }

    pub(super) fn revive(&mut self, slot: RowIdx) {
        let delay_ms = self.delay_of(slot);
        // A message that has expired was asked for again now, or it would be dead again at once.
        let (now, present) = (self.now, Due::After(self.now.engine));
        let past = self.past_expiry(slot, present);
        let asked = if self.has_expired(slot) { past.or(Some(present)) } else { self.asked_due(slot) };
        self.change_life(slot, |life| {
            life.marks.asked = asked;
            life.marks.losses = 0;
            life.forgiven = life.attempt;
            life.stage = Stage::Waiting { token: None };
            // A message that was buried before it was due (by id) becomes due now: redriven means Ready.
            if !now.is_due(life.due) {
                life.marks.delay_ms = Some(delay_ms);
                life.marks.asked = past;
                life.due = present;
            }
        });
    }

    /// Makes a scheduled message due now; the delay that was asked for stays visible.
    pub(super) fn fire_now(&mut self, slot: RowIdx) {
        self.count_fire(slot);
        self.make_due(slot, changed);
    }

    /// Makes a scheduled message due now for a reserve by id.
    pub(super) fn take_now(&mut self, slot: RowIdx) {
        self.make_due(slot, |_| ());
    }

    fn make_due(&mut self, slot: RowIdx, change: impl FnOnce(&mut Life)) {
        let (due, delay_ms) = (Due::After(self.now.engine), self.delay_of(slot));
        let asked = self.past_expiry(slot, due);
        self.change_life(slot, |life| {
            change(life);
            life.due = due;
            life.marks.delay_ms = Some(delay_ms);
            life.marks.asked = asked;
        });
    }

    /// The delay that was asked for last, in ms.
    fn delay_of(&self, slot: RowIdx) -> u64 {
        let entry = self.rows.get(slot);
        asked_delay(self.now, &entry.message, &entry.life)
    }

    /// The message that has the key of a dead or done one now.
    pub(super) fn key_taken(&self, slot: RowIdx) -> Option<KeyHolder> {
        let (queue, key) = self.key_to_return(slot)?;
        let holder = self.holder(self.queues.find(&queue)?, &key)?;
        Some(self.key_holder(holder))
    }

    /// The key that a message needs to come back, and the queue that it comes back to: for a done message the one that it
    /// was in.
    pub(super) fn key_to_return(&self, slot: RowIdx) -> Option<(QueueName, Key)> {
        let message = &self.rows.get(slot).message;
        let was_in = message.queue.done_of().and_then(|name| QueueName::stored(name).ok());
        Some((was_in.unwrap_or_else(|| message.queue.clone()), message.key.clone()?))
    }

    pub(super) fn key_holder(&self, slot: RowIdx) -> KeyHolder {
        KeyHolder { id: self.rows.get(slot).message.id, state: self.shown_state(slot) }
    }

    /// The target, if it is Scheduled or Ready.
    fn waiting(&self, target: &Target) -> Result<RowIdx, ChangeRefusal> {
        let slot = self.resolve(target).ok_or(ChangeRefusal::NotFound)?;
        match self.rows.get(slot).state(self.now) {
            State::Scheduled | State::Ready => Ok(slot),
            State::Leased => Err(ChangeRefusal::Leased),
            State::Dead => Err(ChangeRefusal::Dead),
            State::Done => Err(ChangeRefusal::NotFound),
        }
    }

    /// Changes the life and the content of a message: it is put again under its id.
    fn rewrite(&mut self, slot: RowIdx, message: Arc<MessageContent>, change: impl FnOnce(&mut Life)) {
        let was = Some(self.was(slot));
        self.take_out(slot);
        self.rows.set_message(slot, message.clone());
        let entry = self.rows.get_mut(slot);
        change(&mut entry.life);
        let life = entry.life.clone();
        self.put_in_place(slot);
        let born = self.record(slot, Record::Put { message, life, was });
        self.rows.get_mut(slot).born = born;
    }
}

/// The message with the changes of an edit.
fn edited(message: &MessageContent, edit: Edit) -> MessageContent {
    let mut message = message.clone();
    let Edit { when: _, body, headers, priority: _, max_attempts, lease_ms } = edit;
    message.body = body.unwrap_or(message.body);
    message.headers = headers.unwrap_or(message.headers);
    if max_attempts.is_some() {
        message.options.max_attempts = max_attempts;
        message.options.queue_limit = QueueLimit::Yields;
    }
    message.options.lease_ms = lease_ms.or(message.options.lease_ms);
    message
}

/// The delay from now on that leads to this due time: without the part of a millisecond by which elapsed time was
/// rounded up.
fn delay_to(now: Now, due: Due) -> u64 {
    match due {
        Due::After(due) => due.0.saturating_sub(now.engine_up().0),
        Due::At(_) => now.until(due),
    }
}

/// The delay that was asked for last, in ms: the recorded one, or the one that the due time of an unmoved message
/// implies.
pub(super) fn asked_delay(now: Now, message: &MessageContent, life: &Life) -> u64 {
    let implied = now.wall_of(life.due).0.saturating_sub(message.enqueued_at.0);
    life.marks.delay_ms.unwrap_or(implied)
}

/// Invalidates former leases after a change by the producer: their holders cannot settle the message any more.
fn changed(life: &mut Life) {
    life.generation = life.generation.saturating_add(1);
    life.marks.losses = 0;
    life.stage = Stage::Waiting { token: None };
}
