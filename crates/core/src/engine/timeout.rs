//! The work that time causes: leases end, messages come due, waits and pauses end. A step does a bounded part of it:
//! each kind of work has a budget of rows and of bytes of records, and the rest is done in the next step.
//!
//! Two operations take several steps: the end of the leases and waits of closed connections, and the new order of the
//! ready messages of a queue after a change of its settings. Until the latter is answered, messages may be granted in
//! the old order.

use std::ops::Bound::{Excluded, Unbounded};

use duewheel_wheel::FirstDue;

use crate::id::{MessageId, ReplyTo, SessionId};
use crate::message::Ended;
use crate::store::Capacity;
use crate::time::{Class, EngineMs, Now, WallMs};

use super::Engine;
use super::effect::Effects;
use super::horizon::{CLASSES, END, SOON_MS, reached_at};
use super::operation::{Named, OnLease, Op};
use super::reply::Reply;
use super::rows::{GrantRank, QueueIdx, RowIdx};
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
        self.store_points();
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
        [self.next_event(), self.waiters.next_wakeup(), self.next_dead_check(), self.next_points()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When time next changes what consumers get, or a little earlier: a message comes due, a lease or a pause ends, a rate
    /// allows a grant that a consumer waits for.
    pub fn next_event(&self) -> Option<EngineMs> {
        [
            self.schedule.next_wakeup(self.now),
            self.schedule.next_lease_end().filter(|_| self.may_end_leases()),
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

    /// Whether leases end by time or with their connections. The store has no room for their records while it takes
    /// removals alone; until then their messages stay leased, unless an operation names one ([`Engine::end_overdue`]).
    fn may_end_leases(&self) -> bool {
        self.room != Capacity::RemoveOnly
    }

    /// Ends leases that have run out.
    fn expire_leases(&mut self, looks: &mut usize) {
        if !self.may_end_leases() {
            return;
        }
        let mut budget = self.budget();
        while self.spend(&mut budget, 1) {
            match self.turn(looks, Schedule::pop_lease) {
                None => return,
                Some(ScheduleEvent::NotYet) => return self.unfinished = true,
                Some(ScheduleEvent::Of(slot)) => self.end_lease(slot, Ended::LeaseExpired),
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

/// Number of shares into which the bytes of a step are divided, so that no kind of work delays the others.
const SHARES: usize = 4;

/// The remaining budget of one kind of work in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    rows: usize,
    /// The value of the decided bytes at which the budget ends.
    until: u64,
}

impl Engine {
    pub(super) fn budget(&self) -> Budget {
        Budget { rows: self.policy.max_step, until: self.decided.saturating_add(self.share_of_step()) }
    }

    /// Bytes of records that one kind of work may decide in a step.
    pub(super) fn share_of_step(&self) -> u64 {
        (self.policy.max_step_bytes / SHARES).max(1) as u64
    }

    /// Takes rows out of a budget, if anything is left of it. Otherwise the step is unfinished.
    pub(super) fn spend(&mut self, budget: &mut Budget, rows: usize) -> bool {
        let is_left = budget.rows > 0 && self.decided < budget.until;
        budget.rows = budget.rows.saturating_sub(rows);
        self.unfinished |= !is_left;
        is_left
    }
}

impl Engine {
    /// Closes a session. The answer comes when its waits and leases have ended.
    pub(super) fn session_closed(&mut self, to: ReplyTo, session: SessionId) {
        if session == SessionId::NONE {
            return self.respond(to, Reply::Done);
        }
        let is_first = self.closing.is_empty();
        self.closing.sessions.push_back((session, to));
        if is_first {
            self.close_sessions();
        }
    }

    /// Schedules the release of leases of connections of an earlier epoch, which are closed.
    pub(super) fn release_bound(&mut self) {
        let tokens = self.bound.iter().filter_map(|&(_, _, id)| {
            let lease = self.rows.get(self.live(id)?).life.lease()?;
            Some((id, lease.token))
        });
        self.closing.leases = tokens.collect();
        self.close_sessions();
    }

    /// Continues to end leases and waits of closed connections.
    pub(super) fn close_sessions(&mut self) {
        let mut budget = self.budget();
        while let Some(&(id, token)) = self.closing.leases.front() {
            if !self.may_end_leases() || !self.spend(&mut budget, 1) {
                return;
            }
            self.closing.leases.pop_front();
            // The lease may have run out since then, and the message been granted again.
            let slot = self.live(id);
            if let Some(slot) =
                slot.filter(|&s| self.rows.get(s).life.lease().is_some_and(|l| l.token == token))
            {
                self.end_bound(slot);
            }
        }
        while let Some(&(session, to)) = self.closing.sessions.front() {
            while let Some(arrival) = self.waiters.first_of(session) {
                let Some(waiter) = self.waiters.get(arrival) else { break };
                if !self.spend(&mut budget, waiter.queues.len().max(1)) {
                    return;
                }
                let Some(waiter) = self.waiters.remove(arrival) else { break };
                self.end_wait(&waiter);
            }
            while let Some((_, _, id)) = self.first_bound_entry(session) {
                let Some(slot) = self.rows.slot(id) else { break };
                if !self.may_end_leases() || !self.spend(&mut budget, 1) {
                    return;
                }
                self.end_bound(slot);
            }
            self.closing.sessions.pop_front();
            self.respond(to, Reply::Done);
        }
    }

    /// Ends a lease of a connection that is gone. One that had run out before is counted as that.
    fn end_bound(&mut self, slot: RowIdx) {
        let is_overdue = self.rows.get(slot).life.lease().is_some_and(|lease| lease.until <= self.now.engine);
        let how = if is_overdue { Ended::LeaseExpired } else { Ended::Released };
        self.end_lease(slot, how);
    }
}

impl Engine {
    /// Puts the ready messages of a queue into the order of its settings, and answers when that is done.
    pub(super) fn start_rerank(&mut self, idx: QueueIdx, to: ReplyTo, answer: Reply) {
        let is_first = self.reranks.is_empty();
        let rerank = self.reranks.entry(idx).or_default();
        rerank.seen = None;
        rerank.answers.push((to, answer));
        if is_first {
            self.continue_reranks();
        }
    }

    /// Continues with queues that are being put into another order.
    pub(super) fn continue_reranks(&mut self) {
        let mut budget = self.budget();
        while let Some((idx, mut rerank)) = self.reranks.pop_first() {
            while let Some((rank, id)) = self.next_ranked(idx, rerank.seen) {
                if !self.spend(&mut budget, 1) {
                    self.reranks.insert(idx, rerank);
                    return;
                }
                self.worked(1);
                rerank.seen = Some((rank, id));
                if let Some(slot) = self.live(id).filter(|&slot| self.rank(slot) != rank) {
                    self.take_out(slot);
                    self.put_in_place(slot);
                }
            }
            for (to, answer) in rerank.answers {
                self.respond(to, answer);
            }
            if self.queues.contains(idx) {
                self.release(idx);
            }
        }
    }

    fn next_ranked(
        &self,
        idx: QueueIdx,
        seen: Option<(GrantRank, MessageId)>,
    ) -> Option<(GrantRank, MessageId)> {
        if !self.queues.contains(idx) {
            return None;
        }
        let behind = (seen.map_or(Unbounded, Excluded), Unbounded);
        self.queues.get(idx).ready.range(behind).next().map(|(&place, _)| place)
    }
}
