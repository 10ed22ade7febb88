//! The producer's change of mind: cancel, postpone, fire. And redrive, its counterpart for the dead.

use std::sync::Arc;

use bytes::Bytes;

use crate::id::MessageId;
use crate::message::{Life, Message, Stage, State};
use crate::name::QueueName;
use crate::record::{Gone, Record};
use crate::time::{Class, Due, Now, WallMs};

use super::Engine;
use super::effect::Effects;
use super::enqueue::BadWhen;
use super::input::{Target, When};
use super::reply::{ChangeRefusal, View};
use super::rows::Slot;

type Changed = Result<Box<View>, ChangeRefusal>;

impl Engine {
    pub(super) fn cancel(&mut self, now: Now, target: &Target, fx: &mut Effects) -> Changed {
        let slot = self.resolve(target).ok_or(ChangeRefusal::NotFound)?;
        if self.rows.get(slot).state() == State::Leased {
            return Err(ChangeRefusal::Leased);
        }
        let view = self.view(now, slot);
        self.remove(slot, Gone::Cancelled, fx);
        Ok(Box::new(view))
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
        let slot = self.waiting(target)?;
        let generation = self.rows.get(slot).life.generation;
        if if_generation.is_some_and(|wanted| wanted != generation) {
            return Err(ChangeRefusal::GenerationMismatch(generation));
        }
        let due = self.due(now, when).map_err(|bad| match bad {
            BadWhen::InThePast => ChangeRefusal::InThePast,
            BadWhen::TooFar(max) => ChangeRefusal::TooFar(max),
        })?;
        if !self.has_room() {
            return Err(ChangeRefusal::DiskFull);
        }
        match body {
            None => self.move_to(now, slot, due, fx),
            Some(body) => {
                if body.len() > self.policy.max_body {
                    return Err(ChangeRefusal::BodyTooLarge(self.policy.max_body));
                }
                let more = body.len().saturating_sub(self.rows.get(slot).message.body.len());
                if self.rows.bytes().saturating_add(more as u64) > self.policy.max_message_bytes as u64 {
                    return Err(ChangeRefusal::Overloaded);
                }
                self.rewrite(now, slot, due, body, fx);
            }
        }
        Ok(Box::new(self.view(now, slot)))
    }

    pub(super) fn fire(&mut self, now: Now, target: &Target, fx: &mut Effects) -> Changed {
        let slot = self.waiting(target)?;
        if self.rows.get(slot).state() == State::Scheduled {
            if !self.has_room() {
                return Err(ChangeRefusal::DiskFull);
            }
            self.move_to(now, slot, Due::After(now.engine), fx);
        }
        Ok(Box::new(self.view(now, slot)))
    }

    pub(super) fn fire_many(&mut self, now: Now, queue: &QueueName, max: usize, fx: &mut Effects) -> u64 {
        let mut fired = 0;
        while fired < max.min(self.policy.max_step) as u64 {
            let Some(slot) = self.first_scheduled(now, queue) else { break };
            self.move_to(now, slot, Due::After(now.engine), fx);
            fired += 1;
        }
        fired
    }

    pub(super) fn redrive(&mut self, now: Now, id: MessageId, fx: &mut Effects) -> Changed {
        let slot = self.live(id).ok_or(ChangeRefusal::NotFound)?;
        if self.rows.get(slot).state() != State::Dead {
            return Err(ChangeRefusal::NotDead);
        }
        if let Some(holder) = self.key_taken(slot) {
            return Err(ChangeRefusal::KeyExists(holder));
        }
        self.revive(now, slot, fx);
        Ok(Box::new(self.view(now, slot)))
    }

    pub(super) fn redrive_many(&mut self, now: Now, queue: &QueueName, max: usize, fx: &mut Effects) -> u64 {
        let Some(idx) = self.queues.find(queue) else { return 0 };
        let mut redriven = 0;
        let mut seen = None;
        while redriven < max.min(self.policy.max_step) as u64 {
            use std::ops::Bound::{Excluded, Unbounded};
            let from = seen.map_or(Unbounded, Excluded);
            let Some(&place) = self.queues.get(idx).dead.range((from, Unbounded)).next() else { break };
            seen = Some(place);
            if let Some(slot) = self.live(place.1).filter(|&slot| self.key_taken(slot).is_none()) {
                self.revive(now, slot, fx);
                redriven += 1;
            }
        }
        redriven
    }

    /// The first scheduled message of a queue, by due time on the present offset of the clocks.
    pub(super) fn first_scheduled(&self, now: Now, queue: &QueueName) -> Option<Slot> {
        let queue = self.queues.get(self.queues.find(queue)?);
        let next = |class: Class| {
            let from = match class {
                Class::At => now.wall.0,
                Class::After => now.engine.0,
            };
            let ids = queue.by_due[class as usize].range((from, MessageId(0))..);
            let mut slots = ids.filter_map(|&(raw, id)| {
                let slot = self.live(id).filter(|&s| self.rows.get(s).state() == State::Scheduled)?;
                Some((now.wall_of(Due::from_raw(class, raw)), id, slot))
            });
            slots.next()
        };
        let first: Option<(WallMs, MessageId, Slot)> =
            [next(Class::At), next(Class::After)].into_iter().flatten().min();
        first.map(|(_, _, slot)| slot)
    }

    pub(super) fn revive(&mut self, now: Now, slot: Slot, fx: &mut Effects) {
        self.change_life(now, slot, fx, |life| {
            life.forgiven = life.attempt;
            life.stage = Stage::Waiting { token: None };
            // A message that was buried before its time (by id) is due now all the same: redriven means Ready.
            if !now.is_due(life.due) {
                life.due = Due::After(now.engine);
            }
        });
    }

    pub(super) fn key_taken(&self, slot: Slot) -> Option<MessageId> {
        let entry = self.rows.get(slot);
        let holder = self.holder(entry.queue, entry.message.key.as_ref()?)?;
        Some(self.rows.get(holder).message.id)
    }

    /// The target, if it is Scheduled or Ready.
    fn waiting(&self, target: &Target) -> Result<Slot, ChangeRefusal> {
        let slot = self.resolve(target).ok_or(ChangeRefusal::NotFound)?;
        match self.rows.get(slot).state() {
            State::Scheduled | State::Ready => Ok(slot),
            State::Leased => Err(ChangeRefusal::Leased),
            State::Dead => Err(ChangeRefusal::Dead),
        }
    }

    fn move_to(&mut self, now: Now, slot: Slot, due: Due, fx: &mut Effects) {
        self.change_life(now, slot, fx, |life| moved(life, due));
    }

    /// As `move_to`, with another body: the message is put again under its id.
    fn rewrite(&mut self, now: Now, slot: Slot, due: Due, body: Bytes, fx: &mut Effects) {
        let was = Some(self.was(slot));
        self.take_out(slot);
        let message = Arc::new(Message { body, ..(*self.rows.get(slot).message).clone() });
        self.rows.set_message(slot, message.clone());
        if self.rows.get(slot).life.due != due {
            self.set_due(slot, due);
        }
        let entry = self.rows.get_mut(slot);
        moved(&mut entry.life, due);
        let life = entry.life.clone();
        self.put_in_place(now, slot, fx);
        let born = self.record(slot, Record::Put { message, life, was }, fx);
        self.rows.get_mut(slot).born = born;
    }
}

fn moved(life: &mut Life, due: Due) {
    life.due = due;
    life.generation = life.generation.saturating_add(1);
    life.stage = Stage::Waiting { token: None };
}
