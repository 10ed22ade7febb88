//! The work that time causes: leases end, messages come due, waits and pauses end. A step does a bounded part of it.

use duewheel_wheel::FirstDue;

use crate::message::Ended;
use crate::time::{Class, EngineMs, Now, WallMs};

use super::Engine;
use super::effect::Effects;
use super::horizon::{CLASSES, END, SOON_MS, reached_at};
use super::input::Op;
use super::operation::{Named, OnLease};
use super::reply::Reply;
use super::schedule::{Schedule, ScheduleEvent};

impl Engine {
    /// Does the work that time causes: ends leases, fires due messages, serves waiting consumers, ends waits. The work
    /// is bounded; when more is left, [`Engine::next_wakeup`] returns "at once".
    pub fn handle_timeout(&mut self, now: Now, fx: &mut Effects) {
        self.advance(now);
        self.step(fx, Engine::do_due_work);
    }

    fn do_due_work(&mut self) {
        self.unfinished = false;
        // A run is sorted as a whole: the other half of the rows is for that.
        let mut looks = (self.policy.max_step / 2).max(1);
        self.expire_leases(&mut looks);
        self.close_sessions();
        self.fire_due(&mut looks);
        self.end_withholding();
        self.end_pauses();
        self.end_rate_waits();
        self.expire_dead();
        self.finish_manys();
        self.continue_reranks();
        self.start_gathers();
        self.sweep_graves();
        self.serve_dirty();
        self.end_waits();
        self.end_queues();
        self.end_rests();
        self.give_up_done();
        self.end_answers();
        self.give_up_answers();
        self.end_demand();
        self.trim_ready();
        self.plan_loads();
        self.end_parked();
        self.answer_next_due();
    }

    /// When [`Engine::handle_timeout`] must be called at the latest, if no input arrives before.
    pub fn next_wakeup(&self) -> Option<EngineMs> {
        let at_once = self.unfinished || !self.matching.dirty.is_empty() || !self.leaving.is_empty();
        if at_once || !self.graves.is_empty() {
            return Some(self.now.engine);
        }
        [self.next_event(), self.waiters.next_wakeup(), self.next_dead_check()].into_iter().flatten().min()
    }

    /// When time next changes what consumers get, or a little earlier: a message comes due, a lease or a pause ends, a rate
    /// allows a grant that a consumer waits for.
    pub fn next_event(&self) -> Option<EngineMs> {
        [
            self.schedule.next_wakeup(self.now),
            self.withheld.next_wakeup(),
            self.pauses.first().map(|(t, _)| *t),
            self.matching.rate_wakes.first().map(|(t, _)| *t),
            self.next_load(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Makes messages ready that are due.
    fn fire_due(&mut self, looks: &mut usize) {
        for _ in 0..self.policy.max_step {
            match self.turn(looks, Schedule::pop_due) {
                None => return,
                Some(ScheduleEvent::NotYet) => break,
                Some(ScheduleEvent::Of(slot)) => {
                    // The handle is no longer valid; taking the row out only corrects the counts.
                    self.take_out(slot);
                    if self.is_live(slot) {
                        self.note_fired(slot);
                        self.put_in_place(slot);
                    } else {
                        let entry = self.forget(slot);
                        self.release(entry.queue);
                    }
                }
            }
        }
        self.unfinished = true;
    }

    /// Makes the occurrences ready that were withheld for long enough.
    fn end_withholding(&mut self) {
        if self.now.engine < self.withheld.until {
            return;
        }
        for _ in 0..self.policy.max_step {
            let Some((_, &slot)) = self.withheld.rows.first_key_value() else { return };
            self.take_out(slot);
            if self.is_live(slot) {
                self.put_in_place(slot);
            } else {
                let entry = self.forget(slot);
                self.release(entry.queue);
            }
        }
        self.unfinished |= !self.withheld.rows.is_empty();
    }

    /// Ends leases that have run out.
    fn expire_leases(&mut self, looks: &mut usize) {
        let mut budget = self.budget();
        while self.spend(&mut budget, 1) {
            match self.turn(looks, Schedule::pop_lease) {
                None => return,
                Some(ScheduleEvent::NotYet) => return self.unfinished = true,
                Some(ScheduleEvent::Of(slot)) => {
                    self.figures.lease_expired += 1;
                    self.end_lease(slot, Ended::LeaseExpired);
                }
            }
        }
    }

    /// The next event of the pointer; counts the entries that were examined for it.
    fn turn(
        &mut self,
        looks: &mut usize,
        pop: impl FnOnce(&mut Schedule, Now, &mut usize) -> Option<ScheduleEvent>,
    ) -> Option<ScheduleEvent> {
        let before = *looks;
        let turn = pop(&mut self.schedule, self.now, looks);
        self.worked(before - *looks);
        turn
    }

    /// Ends the lease of the message that an operation names, if it has run out and was not ended yet: when many run
    /// out together, that takes more than one step. A caller that proves that it had the lease still settles the
    /// message itself. For an operation on a queue or on all queues, as many leases are ended as in a step.
    pub(super) fn end_overdue(&mut self, op: &Op) {
        match op.operation().lease {
            OnLease::Extends | OnLease::Ends => return,
            OnLease::Nothing | OnLease::Begins | OnLease::EndsOwn => {}
        }
        if !self.schedule.has_overdue_leases(self.now) {
            return;
        }
        if op.operation().surveys {
            let mut looks = (self.policy.max_step / 2).max(1);
            self.expire_leases(&mut looks);
        }
        let slot = match op.names() {
            Named::Nothing => None,
            Named::Id(id) => self.live(id),
            Named::Key(queue, key) => self.queues.find(queue).and_then(|queue| self.holder(queue, key)),
        };
        let Some(slot) = slot else { return };
        let Some(lease) = self.rows.get(slot).life.lease() else { return };
        let is_own = matches!(op, Op::Delete { session, .. } if lease.is_of(*session));
        if lease.until <= self.now.engine && !is_own {
            self.figures.lease_expired += 1;
            self.end_lease(slot, Ended::LeaseExpired);
        }
    }

    /// Answers the request for the next due time, once it is known: everything behind the horizon is due later than
    /// everything before it.
    fn answer_next_due(&mut self) {
        if self.horizon.asked.is_empty() {
            return;
        }
        let mut next = None;
        for class in CLASSES {
            let mut looks = (self.policy.max_step / 4).max(1);
            let most = looks;
            let first = self.schedule.next_due(class, &mut looks);
            self.worked(most - looks);
            let first = match first {
                FirstDue::At(first) => Some(first),
                FirstDue::Nothing => None,
                FirstDue::NotYet => {
                    self.unfinished = true;
                    return;
                }
            };
            if !self.horizon.is_first_known(class, first) {
                return;
            }
            let wall = first.map(|time| match class {
                Class::At => WallMs(time),
                Class::After => self.now.wall_of_engine(EngineMs(time)),
            });
            next = [next, wall].into_iter().flatten().min();
        }
        for to in std::mem::take(&mut self.horizon.asked) {
            self.respond(to, Reply::NextDue(next));
        }
    }

    /// When loads must be planned again although the wheel has no room: before time reaches the horizon, and when it
    /// does.
    fn next_load(&self) -> Option<EngineMs> {
        let engine_time = |class: Class, time: u64| match class {
            Class::At => self.now.engine_of_wall(WallMs(time)),
            Class::After => EngineMs(time),
        };
        let rested = CLASSES.into_iter().filter_map(|class| {
            self.horizon.resting[class as usize].first().map(|&(time, _)| engine_time(class, time))
        });
        let rested = rested.min();
        if self.has_room() {
            return rested; // the others are planned already
        }
        let ahead = CLASSES.into_iter().any(|class| self.horizon.is_ahead(self.now, class));
        let wake = |class: Class| {
            let c = class as usize;
            let reached = self.horizon.known[c].filter(|h| *h != END).map(reached_at)?;
            if self.horizon.near[c].is_some() {
                return None;
            }
            let at = if ahead { reached.saturating_sub(SOON_MS) } else { reached };
            Some(engine_time(class, at))
        };
        CLASSES.into_iter().filter_map(wake).chain(rested).min()
    }
}
