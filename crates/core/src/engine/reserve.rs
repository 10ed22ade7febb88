//! Reserve: grants ready messages, or waits for some.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::id::{LeaseToken, MessageId, ReplyTo, SessionId};
use crate::message::{Lease, MaxAttempts, Stage, State};
use crate::mutant::{self, Mutant};
use crate::policy::ReadyOrder;
use crate::record::Record;
use crate::store::Capacity;
use crate::time::EngineMs;

use super::Engine;
use super::effect::{After, Effect};
use super::expiry::GrantVerdict;
use super::input::{Reserve, WaiterId};
use super::limits::AtLimit;
use super::queue::Scarce;
use super::reply::{
    Attended, ChangeRefusal, ExpiredCounts, Grant, HeldBack, LATENESS_MS, Limit, Reply, Reserved,
};
use super::rows::QueueIdx;
use super::rows::{GrantRank, RowIdx};
use super::waiters::{LeaseTerms, Waiter};

/// Grants for one consumer, and the condition of their answer.
#[derive(Default)]
struct GrantBatch {
    grants: Vec<Grant>,
    bytes: usize,
    after: After,
}

/// A message, its rank among all requested queues, and its queue.
type ReadyHead = ((GrantRank, MessageId), RowIdx, QueueIdx);

/// The first ready messages of the queues of a reserve.
struct ReadyHeads {
    first: BinaryHeap<Reverse<ReadyHead>>,
    /// Number of the queues with ready messages that are in order of due times.
    by_due: usize,
}

impl Engine {
    pub(super) fn reserve(&mut self, to: ReplyTo, r: Reserve) {
        if r.wait_ms > 0 && self.waiters.len() >= self.policy.max_waiters {
            return self.respond(to, Reply::Reserve(Reserved::Overloaded));
        }
        let soon = r.deadline_margin_ms.and_then(|margin| {
            let first = self.first_bound(r.session)?;
            Some(EngineMs(first.0.saturating_sub(margin)))
        });
        // The consumer that has waited longest is served first. That may end queues, so it is done before an index of a
        // queue is kept.
        for name in &r.queues {
            if let Some(idx) = self.queues.find(name).filter(|idx| self.matching.dirty.remove(idx)) {
                self.granted = 0;
                self.serve_queue(idx);
            }
        }
        let new = r.queues.iter().filter(|name| self.queues.find(name).is_none());
        if r.wait_ms > 0 && self.queues.len() + new.count() > self.policy.max_queues.max(self.queues.len()) {
            return self.respond(to, Reply::Reserve(Reserved::TooManyQueues));
        }
        let mut queues: Vec<QueueIdx> = Vec::with_capacity(r.queues.len());
        let mut known: BTreeSet<QueueIdx> = BTreeSet::new();
        for name in &r.queues {
            // A reserve that does not wait does not create a queue.
            let idx =
                if r.wait_ms > 0 { Some(self.queues.find_or_make(name)) } else { self.queues.find(name) };
            if let Some(idx) = idx.filter(|idx| known.insert(*idx)) {
                self.queues.get_mut(idx).attended = Attended::Yes;
                queues.push(idx);
            }
        }
        let max_of =
            r.max_of.iter().filter_map(|(name, max)| Some((self.queues.find(name)?, *max))).collect();
        let arrival = self.waiters.next_arrival();
        let expects_more = queues.iter().any(|&idx| self.expects_more(self.now, idx) && self.may_lease(idx));
        let may_wait = expects_more && self.waiters.len() < self.policy.max_waiters;
        for &idx in &queues {
            self.note_demand(idx);
        }
        let at = |wait_ms| self.now.after(wait_ms).unwrap_or(EngineMs(u64::MAX));
        let load_deadline = at(self.policy.max_load_wait_ms);
        // A reserve that does not wait still waits for messages that are being loaded.
        let (deadline, over) =
            if r.wait_ms == 0 { (load_deadline, Some(self.now)) } else { (at(r.wait_ms), None) };
        let waiter = Waiter {
            to,
            name: r.waiter,
            arrival,
            queues,
            max_of,
            max: r.max.min(self.policy.max_reserve),
            max_bytes: r.max_bytes.min(self.policy.max_reserve_bytes),
            terms: LeaseTerms {
                session: r.session,
                lease_ms: r.lease_ms.map(|ms| ms.min(self.policy.max_lease_ms)),
                max_attempts: r.max_attempts,
            },
            deadline,
            load_deadline,
            over,
            soon,
        };
        self.granted = 0;
        if self.serve(&waiter) {
            self.drop_empty_queues(&waiter.queues);
            return;
        }
        // More messages had expired than one step may end: it goes on in the next one.
        let may_wait = may_wait || self.is_to_be_served(&waiter);
        if soon.is_some_and(|soon| soon <= self.now.engine_up()) {
            self.respond(to, Reply::Reserve(Reserved::DeadlineSoon));
            self.drop_empty_queues(&waiter.queues);
        } else if r.wait_ms == 0 && !may_wait {
            self.respond_nothing(&waiter);
            self.drop_empty_queues(&waiter.queues);
        } else {
            for &idx in &waiter.queues {
                self.queues.get_mut(idx).waiters.insert(arrival);
                let queue = self.queues.get(idx);
                let has_backlog = queue.has_backlog();
                if has_backlog || !queue.ready.is_empty() {
                    self.note_starved(idx);
                }
                if has_backlog {
                    self.note_hunger(idx);
                }
            }
            if r.wait_ms == 0 {
                self.parked.insert(arrival);
            }
            self.waiters.insert(waiter);
        }
    }

    /// Grants one message by id: Ready, Scheduled or Dead (as beanstalkd's `reserve-job`).
    pub(super) fn reserve_one(
        &mut self,
        to: ReplyTo,
        id: MessageId,
        session: SessionId,
        lease_ms: Option<u64>,
    ) {
        match self.grant_one(id, session, lease_ms) {
            Err(refusal) => self.respond(to, Reply::ReserveOne(Err(refusal))),
            Ok((grant, after)) => {
                self.fx.push(Effect::Respond { to, reply: Reply::ReserveOne(Ok(Box::new(grant))), after });
            }
        }
    }

    fn grant_one(
        &mut self,
        id: MessageId,
        session: SessionId,
        lease_ms: Option<u64>,
    ) -> Result<(Grant, After), ChangeRefusal> {
        let slot = self.shown(id).ok_or(ChangeRefusal::NotFound)?;
        let (idx, state) = (self.rows.get(slot).queue, self.rows.get(slot).state(self.now));
        if state == State::Leased {
            return Err(ChangeRefusal::Leased);
        }
        if lease_ms.is_some_and(|ms| ms > self.policy.max_lease_ms) {
            return Err(ChangeRefusal::LeaseTooLong(self.policy.max_lease_ms));
        }
        self.tenants.lease(self.queues.get(idx).tenant)?;
        if !self.may_lease(idx) {
            return Err(ChangeRefusal::Overloaded(match self.at_limit(idx) {
                Some(AtLimit::Rate(ms)) => Limit::GrantRate(ms),
                Some(AtLimit::Leases) | None => Limit::Leases,
            }));
        }
        let before = (state != State::Ready).then(|| self.rows.get(slot).life.clone());
        if state == State::Dead {
            // A dead message is granted as after a redrive: its key must be free, and its attempts begin again.
            if let Some(holder) = self.key_taken(slot) {
                return Err(ChangeRefusal::KeyExists(holder));
            }
            self.revive(slot);
        } else if state == State::Scheduled {
            // A message that is taken before it is due counts as due now: when the lease ends it is ready, as in
            // beanstalkd.
            self.take_now(slot);
        }
        let verdict = self.judge_expiry(slot);
        if verdict == GrantVerdict::Ended {
            self.release(idx);
            return Err(ChangeRefusal::NotFound);
        }
        self.queues.get_mut(idx).attended = Attended::Yes;
        let mut batch = GrantBatch::default();
        let terms = LeaseTerms { session, lease_ms, max_attempts: None };
        self.grant(slot, verdict, terms, &mut batch);
        self.before_grant.extend(before.map(|life| (id, life)));
        let grant = batch.grants.pop().ok_or(ChangeRefusal::NotFound)?;
        Ok((grant, batch.after))
    }

    /// Serves consumers that wait on queues in which a message became ready.
    pub(super) fn serve_dirty(&mut self) {
        self.granted = 0;
        let mut budget = self.budget();
        while self.granted < self.policy.max_step
            && !self.matching.dirty.is_empty()
            && self.spend(&mut budget, 1)
            && let Some(idx) = self.matching.dirty.pop_first()
        {
            self.serve_queue(idx);
        }
        // Waiters are served one by one, because each may take messages that the next needs.
        while self.granted < self.policy.max_step
            && self.spend(&mut budget, 1)
            && let Some(idx) = self.next_starved()
        {
            self.note_hunger(idx);
            self.serve_queue(idx);
        }
        self.unfinished |= !self.matching.dirty.is_empty() || self.granted >= self.policy.max_step;
    }

    /// Serves consumers that wait on a queue, until a share of a step's bytes is decided; the rest is served in the
    /// next step.
    pub(super) fn serve_queue(&mut self, idx: QueueIdx) {
        self.note_visit();
        let until = self.decided.saturating_add(self.share_of_step());
        // The queue may have vanished since a message became ready in it.
        while self.queues.contains(idx) {
            let queue = self.queues.get(idx);
            if queue.is_paused(self.now) {
                return;
            }
            let Some(&arrival) = queue.waiters.first() else { return };
            if queue.ready.is_empty() {
                // The reason why it was not loaded may have ended: memory, a lease, a quota.
                if queue.has_backlog() {
                    self.note_hunger(idx);
                }
                return;
            }
            if self.tenants.is_lease_full(queue.tenant) {
                return self.tenants.wait_for_lease(queue.tenant, idx);
            }
            let Some(waiter) = self.waiters.remove(arrival) else {
                self.queues.get_mut(idx).waiters.remove(&arrival);
                continue;
            };
            if self.serve(&waiter) {
                self.leave_queues(&waiter);
                if self.granted >= self.policy.max_step || self.decided >= until {
                    self.matching.dirty.insert(idx);
                    self.unfinished = true;
                    return;
                }
            } else {
                // The message is not ready any more (the wall clock went back), or the limit of leases is reached; the
                // waiter stays.
                self.waiters.insert(waiter);
                self.note_starved(idx);
                return;
            }
        }
    }

    /// Grants a waiter what is ready for it. Returns whether that was anything.
    fn serve(&mut self, waiter: &Waiter) -> bool {
        let mut heads = self.heads(&waiter.queues);
        if waiter.max == 0 {
            // The waiter is only notified, without a message: the next waiting consumer is served.
            let notified = self.best_ready(&mut heads).is_some();
            if notified {
                self.respond(waiter.to, Reply::Reserve(Reserved::Grants(Vec::new())));
            }
            return notified;
        }
        let mut batch = GrantBatch::default();
        let mut max_of = waiter.max_of.clone();
        // An answer may contain fewer messages than requested: the next reserve gets the rest.
        let most = waiter.max.min(self.policy.max_step.max(1));
        let until = self.decided.saturating_add(self.policy.max_step_bytes as u64);
        while batch.grants.len() < most && (batch.grants.is_empty() || self.decided < until) {
            let Some((slot, verdict)) = self.best_ready(&mut heads) else { break };
            let entry = self.rows.get(slot);
            let (idx, weight) = (entry.queue, entry.message.weight());
            if !batch.grants.is_empty() && batch.bytes + weight > waiter.max_bytes {
                break;
            }
            batch.bytes += weight;
            self.grant(slot, verdict, waiter.terms, &mut batch);
            match max_of.iter_mut().find(|(of, _)| *of == idx) {
                Some((_, left)) if *left > 1 => {
                    *left -= 1;
                    self.next_head(idx, &mut heads);
                }
                Some(_) => self.drop_head(idx, &mut heads),
                None => self.next_head(idx, &mut heads),
            }
        }
        if batch.grants.is_empty() {
            return false;
        }
        self.granted += batch.grants.len();
        let reply = Reply::Reserve(Reserved::Grants(batch.grants));
        self.fx.push(Effect::Respond { to: waiter.to, reply, after: batch.after });
        true
    }

    /// Whether a step ended before it had looked at all that is ready in a queue of this consumer.
    fn is_to_be_served(&self, waiter: &Waiter) -> bool {
        waiter.queues.iter().any(|idx| self.matching.dirty.contains(idx))
    }

    /// Whether another message of a queue may be leased: leases are in memory, changes are in the store's memory until
    /// they are written, and a tenant may have a quota of leases.
    pub(super) fn may_lease(&self, idx: QueueIdx) -> bool {
        self.room != Capacity::RemoveOnly
            && self.scarce(idx).is_none()
            && self.at_limit(idx).is_none()
            && !self.tenants.is_lease_full(self.queues.get(idx).tenant)
    }

    /// The limit of leases that keeps a queue from one more, and the queue's use of it.
    fn scarce(&self, idx: QueueIdx) -> Option<(Scarce, u64)> {
        let queue = self.queues.get(idx);
        let held = [(Scarce::Leases, queue.leased.len() as u64), (Scarce::Bytes, queue.leased_weight)];
        held.into_iter().find(|&(what, held)| !self.may_hold_more(what, held))
    }

    /// Whether a queue with this use may have more. Half of the limit is given in order of arrival; of the other half a
    /// queue may take more while it holds less than a share of what is still free. So each queue leaves something for
    /// the next one (dynamic thresholds; Choudhury and Hahne, IEEE/ACM Transactions on Networking, 1998).
    fn may_hold_more(&self, what: Scarce, held: u64) -> bool {
        let (all, used) = match what {
            Scarce::Leases => (self.policy.max_leased as u64, self.schedule.leases() as u64),
            Scarce::Bytes => (self.policy.max_leased_bytes as u64, self.leased_weight),
        };
        used.saturating_mul(2) < all || held.saturating_mul(self.policy.lease_part) < all.saturating_sub(used)
    }

    /// Notes that a consumer waits on a queue: if leases are the reason, it is served when some have ended.
    pub(super) fn note_starved(&mut self, idx: QueueIdx) {
        if self.room == Capacity::RemoveOnly {
            self.matching.barred.insert(idx);
        }
        let tenant = self.queues.get(idx).tenant;
        if self.tenants.is_lease_full(tenant) {
            self.tenants.wait_for_lease(tenant, idx);
        }
        self.note_limited(idx);
        let starved = self.scarce(idx);
        let before = std::mem::replace(&mut self.queues.get_mut(idx).starved, starved);
        if starved == before {
            return;
        }
        if let Some((what, held)) = before {
            self.matching.starved[what as usize].remove(&(held, idx));
        }
        if let Some((what, held)) = starved {
            self.matching.starved[what as usize].insert((held, idx));
        }
    }

    /// Ends a queue's wait for leases, because one of its own has ended. Whether that is enough is determined when it
    /// is served.
    pub(super) fn end_starving(&mut self, idx: QueueIdx) {
        if let Some((what, held)) = self.queues.get_mut(idx).starved.take() {
            self.matching.starved[what as usize].remove(&(held, idx));
            self.matching.dirty.insert(idx);
        }
    }

    /// The next queue for which there are leases again.
    fn next_starved(&mut self) -> Option<QueueIdx> {
        while let Some(idx) = self.tenants.next_starved() {
            if self.queues.contains(idx) {
                return Some(idx);
            }
        }
        let first = |what: Scarce| {
            let &(held, idx) = self.matching.starved[what as usize].first()?;
            self.may_hold_more(what, held).then_some((what, held, idx))
        };
        let (what, held, idx) = first(Scarce::Leases).or_else(|| first(Scarce::Bytes))?;
        self.matching.starved[what as usize].remove(&(held, idx));
        self.queues.get_mut(idx).starved = None;
        Some(idx)
    }

    /// Answers a reserve for which no message was available.
    fn respond_nothing(&mut self, waiter: &Waiter) {
        let held_back = waiter.queues.iter().find(|&&idx| {
            let queue = self.queues.get(idx);
            let has_ready = !queue.ready.is_empty() || self.expects_more(self.now, idx);
            has_ready && !queue.is_paused(self.now) && !self.may_lease(idx)
        });
        let reserved = match held_back {
            Some(&idx) => {
                self.figures.held_back += 1;
                let tenant = self.queues.get(idx).tenant;
                if self.tenants.is_lease_full(tenant) {
                    self.tenants.count_held_back(tenant);
                }
                Reserved::HeldBack(match self.at_limit(idx) {
                    Some(AtLimit::Rate(_)) => HeldBack::Rate,
                    Some(AtLimit::Leases) | None => HeldBack::Leases,
                })
            }
            None => Reserved::Grants(Vec::new()),
        };
        self.respond(waiter.to, Reply::Reserve(reserved));
    }

    /// Answers waiters whose wait is over and who wait for pages, once the pages have brought the messages that were
    /// due then.
    pub(super) fn end_parked(&mut self) {
        for arrival in std::mem::take(&mut self.parked) {
            let Some(waiter) = self.waiters.get(arrival) else { continue };
            let expects =
                |over| waiter.queues.iter().any(|&idx| self.expects_more(over, idx) && self.may_lease(idx));
            if waiter.over.is_some_and(expects) || self.is_to_be_served(waiter) {
                self.parked.insert(arrival);
            } else if let Some(waiter) = self.waiters.remove(arrival) {
                self.respond_nothing(&waiter);
                self.leave_queues(&waiter);
            }
        }
    }

    /// The first ready message of each of these queues, in order: by priority, due time, id. Queues in order of
    /// arrival: by priority and id; between the two kinds, by the time since which a message could be granted.
    fn heads(&self, queues: &[QueueIdx]) -> ReadyHeads {
        let by_due = |idx: &&QueueIdx| {
            !self.queues.get(**idx).ready.is_empty() && self.order_of(**idx) == ReadyOrder::Due
        };
        self.worked(2 * queues.len());
        let mut heads = ReadyHeads { by_due: queues.iter().filter(by_due).count(), first: BinaryHeap::new() };
        let first = queues.iter().filter_map(|&idx| self.head(idx, heads.by_due > 0)).collect();
        heads.first = first;
        heads
    }

    fn head(&self, idx: QueueIdx, mixed: bool) -> Option<Reverse<ReadyHead>> {
        let queue = self.queues.get(idx);
        let (&(rank, id), &slot) = queue.ready.first_key_value()?;
        let rank = match self.order_of(idx) {
            ReadyOrder::Arrival if mixed => (rank.0, self.rows.get(slot).message.enqueued_at.0),
            ReadyOrder::Arrival | ReadyOrder::Due => rank,
        };
        (!queue.is_paused(self.now) && self.may_lease(idx)).then_some(Reverse(((rank, id), slot, idx)))
    }

    /// The first ready message of several queues that is granted, and whether it is late. It stays the head of its queue
    /// until [`Engine::next_head`].
    fn best_ready(&mut self, heads: &mut ReadyHeads) -> Option<(RowIdx, GrantVerdict)> {
        loop {
            self.worked(1);
            let &Reverse((_, slot, idx)) = heads.first.peek()?;
            if !self.may_lease(idx) {
                heads.first.pop(); // grants since then have used up the leases
                continue;
            }
            if self.now.is_due(self.rows.get(slot).life.due) {
                let verdict = self.judge_expiry(slot);
                if verdict != GrantVerdict::Ended {
                    return Some((slot, verdict));
                }
                self.next_head(idx, heads);
                self.granted += 1;
                if self.granted >= self.policy.max_step {
                    self.matching.dirty.insert(idx);
                    self.unfinished = true;
                    return None;
                }
                continue;
            }
            // The wall clock was stepped back since the message became ready: it is not due any more.
            self.take_out(slot);
            self.put_in_place(slot);
            self.next_head(idx, heads);
        }
    }

    /// Updates the heads after the first message of a queue has been taken out.
    fn next_head(&self, idx: QueueIdx, heads: &mut ReadyHeads) {
        if self.queues.get(idx).ready.is_empty() {
            return self.drop_head(idx, heads);
        }
        heads.first.pop();
        heads.first.extend(self.head(idx, heads.by_due > 0));
    }

    /// Updates the heads after the first message of a queue has been taken out, of which no more are wanted.
    fn drop_head(&self, idx: QueueIdx, heads: &mut ReadyHeads) {
        heads.first.pop();
        if self.order_of(idx) != ReadyOrder::Due {
            return;
        }
        heads.by_due -= 1;
        if heads.by_due == 0 {
            // The remaining queues are all in order of arrival: from now on the id alone decides between them.
            self.worked(heads.first.len());
            let left = std::mem::take(&mut heads.first).into_iter();
            heads.first = left.filter_map(|Reverse((.., idx))| self.head(idx, false)).collect();
        }
    }

    #[allow(clippy::too_many_arguments)] // what a grant depends on
    fn grant(&mut self, slot: RowIdx, verdict: GrantVerdict, terms: LeaseTerms, batch: &mut GrantBatch) {
        let entry = self.rows.get(slot);
        let lease_ms = terms.lease_ms.unwrap_or_else(|| self.lease_ms(entry.queue, &entry.message));
        let limit = self.new_limit(slot, terms);
        let priority = self.priority(entry.queue, &entry.life);
        let lease = Lease {
            token: self.new_token(),
            until: self.now.after(lease_ms).unwrap_or(EngineMs(u64::MAX)),
            session: terms.session,
            granted_at: self.now.wall,
        };
        let was = self.was(slot);
        let before = self.rows.get(slot).changed;
        self.take_out(slot);
        let entry = self.rows.get_mut(slot);
        if limit.is_some() || matches!(entry.life.stage, Stage::Waiting { token: Some(_) }) {
            self.before_grant.insert(entry.message.id, entry.life.clone());
        }
        let attempt = entry.life.attempt.saturating_add(1);
        if !mutant::is(Mutant::AttemptAtNack) {
            entry.life.attempt = attempt;
        }
        entry.life.stage = Stage::Leased(lease);
        entry.life.marks.limit = limit.or(entry.life.marks.limit);
        let (id, idx, due) = (entry.message.id, entry.queue, entry.life.due);
        let lateness_ms = self.now.since(due);
        batch.grants.push(Grant {
            message: entry.message.clone(),
            attempt,
            priority,
            due_at: self.now.wall_of(due),
            token: lease.token,
            lease_until: self.now.wall_of_engine(lease.until),
            lease_ms,
            lateness_ms,
            generation: entry.life.generation,
            late: verdict == GrantVerdict::Late,
        });
        self.use_rate(idx, lateness_ms);
        if verdict == GrantVerdict::Late {
            self.count_expired(idx, ExpiredCounts { late: 1, dead: 0 });
        }
        self.put_in_place(slot);
        let life = &self.rows.get(slot).life;
        let record = match limit {
            None => Record::Granted { id, attempt: life.attempt, lease, was },
            // The short form does not have it.
            Some(_) => Record::Changed { id, life: life.clone(), was },
        };
        let written = self.record(slot, record);
        batch.after = After { durable: batch.after.durable.max(before), written };
        if attempt == 1 && !self.queues.get(idx).name.is_system() {
            let column = LATENESS_MS.partition_point(|&edge| edge < lateness_ms);
            self.figures.lateness[column] += 1;
            self.figures.lateness_sum_ms = self.figures.lateness_sum_ms.saturating_add(lateness_ms);
            self.queues.get_mut(idx).lateness.get_or_insert_default().count(lateness_ms);
            self.count_late(idx, lateness_ms);
        }
    }

    /// The limit of attempts that a consumer brings, if another one has held so far.
    fn new_limit(&self, slot: RowIdx, terms: LeaseTerms) -> Option<MaxAttempts> {
        let limit = terms.max_attempts?;
        let entry = self.rows.get(slot);
        let so_far = self.max_attempts(entry.queue, &entry.message, &entry.life);
        (entry.message.options.max_attempts.is_none() && limit.count() != so_far).then_some(limit)
    }

    /// Takes back grants that reached no consumer. They count as if they had not happened: the attempt is not counted,
    /// and the message is ready at once, or scheduled or dead as it was before.
    pub(super) fn undelivered(&mut self, leases: &[(MessageId, LeaseToken)]) {
        for &(id, token) in leases {
            let Some(slot) = self.live(id) else { continue };
            let is_held = self.rows.get(slot).life.lease().is_some_and(|lease| lease.token == token);
            if is_held && !self.end_superseded(slot) {
                let before = self.before_grant.remove(&id);
                self.change_life(slot, |life| match before {
                    Some(before) => *life = before,
                    None => {
                        life.attempt -= 1;
                        life.stage = Stage::Waiting { token: None };
                    }
                });
            }
        }
    }

    pub(super) fn cancel_reserve(&mut self, name: WaiterId) {
        if let Some(waiter) = self.waiters.remove_named(name) {
            self.end_wait(&waiter);
        }
    }

    /// Ends a wait without a message.
    pub(super) fn end_wait(&mut self, waiter: &Waiter) {
        self.leave_queues(waiter);
        self.respond(waiter.to, Reply::Reserve(Reserved::Grants(Vec::new())));
    }

    /// Ends waits whose time is over.
    pub(super) fn end_waits(&mut self) {
        let mut left = self.policy.max_step;
        while let Some(mut waiter) = self.waiters.pop_due(self.now.engine) {
            if left == 0 {
                self.unfinished = true;
                return self.waiters.insert(waiter);
            }
            left = left.saturating_sub(waiter.queues.len().max(1));
            let soon = waiter.soon.is_some_and(|soon| soon <= self.now.engine);
            if soon && self.first_bound(waiter.terms.session).is_some() {
                self.leave_queues(&waiter);
                self.respond(waiter.to, Reply::Reserve(Reserved::DeadlineSoon));
            } else if waiter.deadline <= self.now.engine {
                if waiter.over.is_none()
                    && waiter.load_deadline > self.now.engine
                    && waiter
                        .queues
                        .iter()
                        .any(|&idx| self.expects_more(self.now, idx) && self.may_lease(idx))
                {
                    for &idx in &waiter.queues {
                        self.note_hunger(idx);
                    }
                    self.parked.insert(waiter.arrival);
                    (waiter.deadline, waiter.over) = (waiter.load_deadline, Some(self.now));
                    self.waiters.insert(waiter);
                    continue;
                }
                self.respond_nothing(&waiter);
                self.leave_queues(&waiter);
            } else {
                waiter.soon = None;
                self.waiters.insert(waiter);
            }
        }
    }

    pub(super) fn session_deadline(&self, session: SessionId) -> Option<u64> {
        self.first_bound(session).map(|until| until.0.saturating_sub(self.now.engine_up().0))
    }

    fn first_bound(&self, session: SessionId) -> Option<EngineMs> {
        self.first_bound_entry(session).map(|(_, until, _)| until)
    }

    pub(super) fn first_bound_entry(&self, session: SessionId) -> Option<(SessionId, EngineMs, MessageId)> {
        let first = self.bound.range((session, EngineMs(0), MessageId(0))..).next()?;
        (first.0 == session && session != SessionId::NONE).then_some(*first)
    }

    /// Removes a waiter from the lists of its queues.
    pub(super) fn leave_queues(&mut self, waiter: &Waiter) {
        for &idx in &waiter.queues {
            self.queues.get_mut(idx).waiters.remove(&waiter.arrival);
            self.note_demand(idx);
        }
        self.drop_empty_queues(&waiter.queues);
    }

    fn drop_empty_queues(&mut self, queues: &[QueueIdx]) {
        for &idx in queues {
            self.release(idx);
        }
    }
}
