//! The producer's change of mind: cancel, postpone, fire. And redrive, its counterpart for the dead.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::MessageId;
use crate::message::{Life, Message, Stage, State};
use crate::record::{Gone, Record};
use crate::store::Room;
use crate::time::{Due, Now};

use super::Engine;
use super::effect::Effects;
use super::enqueue::BadWhen;
use super::input::{Target, When};
use super::reply::{ChangeRefusal, Outline};
use super::rows::Slot;

type Changed = Result<Box<Outline>, ChangeRefusal>;

impl Engine {
    pub(super) fn cancel(&mut self, now: Now, target: &Target, fx: &mut Effects) -> Changed {
        let slot = self.resolve(target).ok_or(ChangeRefusal::NotFound)?;
        if self.rows.get(slot).state(now) == State::Leased {
            return Err(ChangeRefusal::Leased);
        }
        let was = self.outline(now, slot);
        self.remove(slot, Gone::Cancelled, fx);
        Ok(Box::new(was))
    }

    pub(super) fn postpone(
        &mut self,
        now: Now,
        target: &Target,
        when: When,
        body: Option<Bytes>,
        if_generation: Option<u32>,
        fx: &mut Effects,
    ) -> Changed {
        let slot = self.waiting(now, target)?;
        let generation = self.rows.get(slot).life.generation;
        if if_generation.is_some_and(|wanted| wanted != generation) {
            return Err(ChangeRefusal::GenerationMismatch(generation));
        }
        let due = self.due(now, when).map_err(|bad| match bad {
            BadWhen::InThePast => ChangeRefusal::InThePast,
            BadWhen::TooFar(max) => ChangeRefusal::TooFar(max),
        })?;
        if !self.takes_changes() {
            return Err(ChangeRefusal::DiskFull);
        }
        match body {
            None => self.move_to(now, slot, due, fx),
            Some(body) => {
                if body.len() > self.policy.max_body {
                    return Err(ChangeRefusal::BodyTooLarge(self.policy.max_body));
                }
                let entry = self.rows.get(slot);
                let more = body.len().saturating_sub(entry.message.body.len());
                let queue = entry.queue;
                if self.pending.weight.saturating_add(more as u64) > self.policy.max_message_bytes as u64
                    || self.room == Room::Busy
                {
                    return Err(ChangeRefusal::Overloaded);
                }
                self.tenants.grow(self.queues.get(queue).tenant, more as u64)?;
                self.rewrite(now, slot, due, body, fx);
            }
        }
        Ok(Box::new(self.outline(now, slot)))
    }

    pub(super) fn fire(&mut self, now: Now, target: &Target, fx: &mut Effects) -> Changed {
        let slot = self.waiting(now, target)?;
        if self.rows.get(slot).state(now) == State::Scheduled {
            if !self.takes_changes() {
                return Err(ChangeRefusal::DiskFull);
            }
            self.fire_now(now, slot, fx);
        }
        Ok(Box::new(self.outline(now, slot)))
    }

    pub(super) fn redrive(&mut self, now: Now, id: MessageId, fx: &mut Effects) -> Changed {
        let slot = self.live(id).ok_or(ChangeRefusal::NotFound)?;
        if self.rows.get(slot).state(now) != State::Dead {
            return Err(ChangeRefusal::NotDead);
        }
        if let Some(holder) = self.key_taken(slot) {
            return Err(ChangeRefusal::KeyExists(holder));
        }
        self.count_fire(slot);
        self.revive(now, slot, fx);
        Ok(Box::new(self.outline(now, slot)))
    }

    /// Counts that somebody made a message ready before its time. It is recorded with the change itself.
    pub(super) fn count_fire(&mut self, slot: Slot) {
        let marks = &mut self.rows.get_mut(slot).life.marks;
        marks.fires = marks.fires.saturating_add(1);
    }

    pub(super) fn revive(&mut self, now: Now, slot: Slot, fx: &mut Effects) {
        let delay_ms = self.delay_of(now, slot);
        self.change_life(now, slot, fx, |life| {
            life.forgiven = life.attempt;
            life.stage = Stage::Waiting { token: None };
            // A message that was buried before its time (by id) is due now all the same: redriven means Ready.
            if !now.is_due(life.due) {
                life.marks.delay_ms = Some(delay_ms);
                life.due = Due::After(now.engine);
            }
        });
    }

    /// Makes a scheduled message due now; the delay that was asked for is kept for those who look.
    pub(super) fn fire_now(&mut self, now: Now, slot: Slot, fx: &mut Effects) {
        self.count_fire(slot);
        let delay_ms = self.delay_of(now, slot);
        self.change_life(now, slot, fx, |life| moved(life, Due::After(now.engine), delay_ms));
    }

    /// Makes a scheduled message due now for whoever takes it by its id.
    pub(super) fn take_now(&mut self, now: Now, slot: Slot, fx: &mut Effects) {
        let delay_ms = self.delay_of(now, slot);
        self.change_life(now, slot, fx, |life| {
            life.due = Due::After(now.engine);
            life.marks.delay_ms = Some(delay_ms);
        });
    }

    /// The delay that was asked for last, in ms.
    fn delay_of(&self, now: Now, slot: Slot) -> u64 {
        let entry = self.rows.get(slot);
        asked_delay(now, &entry.message, &entry.life)
    }

    pub(super) fn key_taken(&self, slot: Slot) -> Option<MessageId> {
        let entry = self.rows.get(slot);
        let holder = self.holder(entry.queue, entry.message.key.as_ref()?)?;
        Some(self.rows.get(holder).message.id)
    }

    /// The target, if it is Scheduled or Ready.
    fn waiting(&self, now: Now, target: &Target) -> Result<Slot, ChangeRefusal> {
        let slot = self.resolve(target).ok_or(ChangeRefusal::NotFound)?;
        match self.rows.get(slot).state(now) {
            State::Scheduled | State::Ready => Ok(slot),
            State::Leased => Err(ChangeRefusal::Leased),
            State::Dead => Err(ChangeRefusal::Dead),
        }
    }

    pub(super) fn move_to(&mut self, now: Now, slot: Slot, due: Due, fx: &mut Effects) {
        let delay_ms = now.until(due);
        self.change_life(now, slot, fx, |life| moved(life, due, delay_ms));
    }

    /// As `move_to`, with another body: the message is put again under its id.
    fn rewrite(&mut self, now: Now, slot: Slot, due: Due, body: Bytes, fx: &mut Effects) {
        let was = Some(self.was(slot));
        self.take_out(slot);
        let message = Arc::new(Message { body, ..(*self.rows.get(slot).message).clone() });
        self.rows.set_message(slot, message.clone());
        let entry = self.rows.get_mut(slot);
        moved(&mut entry.life, due, now.until(due));
        let life = entry.life.clone();
        self.put_in_place(now, slot, fx);
        let born = self.record(slot, Record::Put { message, life, was }, fx);
        self.rows.get_mut(slot).born = born;
    }
}

/// The delay that was asked for last, in ms: as it was noted, or what the due time tells of a message that was not moved.
pub(super) fn asked_delay(now: Now, message: &Message, life: &Life) -> u64 {
    let told = now.wall_of(life.due).0.saturating_sub(message.enqueued_at.0);
    life.marks.delay_ms.unwrap_or(told)
}

fn moved(life: &mut Life, due: Due, delay_ms: u64) {
    life.due = due;
    life.marks.delay_ms = Some(delay_ms);
    life.generation = life.generation.saturating_add(1);
    life.stage = Stage::Waiting { token: None };
}
