//! The remembered answers of all queues: their number and size, whom they count for, and which ones are forgotten.
//!
//! | limit | at the limit |
//! |---|---|
//! | a tenant's `answers` and `bytes` | the tenant's oldest answers are forgotten |
//! | [`Policy::max_answers`](crate::Policy::max_answers), [`Policy::max_answer_bytes`](crate::Policy::max_answer_bytes), queues with answers | the oldest answers of all queues are forgotten |
//! | room in the store | the oldest answers of all queues are forgotten, after the done messages |
//! | twice the limit of done messages | the oldest ids of done messages are forgotten |
//!
//! Answers younger than [`Policy::min_answer_ms`](crate::Policy::min_answer_ms) are not forgotten for a limit or for
//! room: an enqueue that needs their place is refused.

use std::collections::{BTreeMap, BTreeSet};

use crate::answers::{AnswerLog, AnswerSpan};
use crate::id::Lsn;
use crate::message::MessageContent;
use crate::name::QueueName;
use crate::record::{DedupeRow, Record};
use crate::store::Capacity;
use crate::time::EngineMs;

use super::Engine;
use super::quota::{OverQuota, Resource};
use super::reply::{EnqueueRefusal, Limit};
use super::rows::TenantIdx;

/// Why answers were forgotten before the end of their window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgottenFor {
    /// A limit of the tenant.
    Quota = 0,
    /// A limit of the server.
    Limit = 1,
    /// Room in the store.
    Room = 2,
    /// A purge or the removal of a queue.
    Purge = 3,
}

/// Remembered answers of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AnswerCounts {
    /// Answers that are remembered now, of all queues.
    pub kept: u64,
    /// The size of these answers in bytes.
    pub bytes: u64,
    /// Answers that were forgotten before the end of their window since the engine was made, by [`ForgottenFor`].
    pub forgotten: [u64; 4],
}

/// The logs of all queues that remember answers.
#[derive(Debug, Default)]
pub(super) struct AnswerLogs {
    pub(super) logs: BTreeMap<QueueName, QueueAnswers>,
    /// The logs of each tenant by the time of their oldest span.
    pub(super) by_age: BTreeMap<Option<TenantIdx>, BTreeSet<(EngineMs, QueueName)>>,
    /// When to look for expired spans of each log.
    pub(super) ends: BTreeSet<(EngineMs, QueueName)>,
    pub(super) counts: AnswerCounts,
}

#[derive(Debug, Default)]
pub(super) struct QueueAnswers {
    pub(super) log: AnswerLog,
    pub(super) tenant: Option<TenantIdx>,
    /// The place in `by_age`, and the one in `ends`.
    pub(super) age: Option<EngineMs>,
    end: Option<EngineMs>,
}

impl AnswerLogs {
    pub(super) fn counts(&self) -> AnswerCounts {
        self.counts
    }

    /// The number and the size of a queue's answers.
    pub(super) fn of(&self, name: &QueueName) -> (u64, u64) {
        self.logs.get(name).map_or((0, 0), |of| (of.log.count(), of.log.bytes()))
    }

    /// The tenant for which the log of a queue counts.
    fn tenant_of(&self, name: &QueueName) -> Option<TenantIdx> {
        self.logs.get(name)?.tenant
    }

    pub(super) fn remembers(&self, row: &DedupeRow) -> bool {
        let Some(position) = row.position else { return true };
        self.logs.get(&row.queue).is_some_and(|of| of.log.remembers(position.nth))
    }

    /// The oldest span of the answers of a tenant, or of all tenants, and its queue.
    pub(super) fn oldest(&self, whose: Whose) -> Option<(&QueueName, &AnswerSpan)> {
        let (_, name) = match whose {
            Whose::Tenant(tenant) => self.by_age.get(&Some(tenant))?.first()?,
            Whose::All => self.by_age.values().filter_map(BTreeSet::first).min()?,
        };
        Some((name, self.logs.get(name)?.log.spans().first()?))
    }

    /// Changes a log; returns its former and its present number and size.
    pub(super) fn change(
        &mut self,
        name: &QueueName,
        tenant: Option<TenantIdx>,
        change: impl FnOnce(&mut AnswerLog),
    ) -> [(u64, u64); 2] {
        let of = self
            .logs
            .entry(name.clone())
            .or_insert_with(|| QueueAnswers { tenant, ..QueueAnswers::default() });
        let was = (of.log.count(), of.log.bytes());
        change(&mut of.log);
        let is = (of.log.count(), of.log.bytes());
        self.counts.kept = (self.counts.kept + is.0).saturating_sub(was.0);
        self.counts.bytes = (self.counts.bytes + is.1).saturating_sub(was.1);
        self.place(name);
        [was, is]
    }

    /// Renews the places of a log in the orders, and drops it if it is empty.
    pub(super) fn place(&mut self, name: &QueueName) {
        // Done ids are the server's own, and are forgotten by their own limit.
        let is_done = *name == QueueName::done_ids();
        let Some(of) = self.logs.get_mut(name) else { return };
        let spans = of.log.spans();
        let age = spans.first().filter(|_| !is_done).map(|span| span.last.at);
        let end = spans.iter().map(|span| span.until).min();
        if age != of.age {
            let order = self.by_age.entry(of.tenant).or_default();
            if let Some(age) = std::mem::replace(&mut of.age, age) {
                order.remove(&(age, name.clone()));
            }
            order.extend(age.map(|age| (age, name.clone())));
            if order.is_empty() {
                self.by_age.remove(&of.tenant);
            }
        }
        if end != of.end {
            if let Some(end) = std::mem::replace(&mut of.end, end) {
                self.ends.remove(&(end, name.clone()));
            }
            self.ends.extend(end.map(|end| (end, name.clone())));
        }
        if of.log.is_empty() {
            self.logs.remove(name);
        }
    }
}

/// The tenants of which answers are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Tenant(TenantIdx),
    All,
}

/// Number of spans that one enqueue may have forgotten to make place.
const SPANS_PER_ENQUEUE: usize = 32;

impl Engine {
    /// Takes over the log of a queue from the store.
    pub(super) fn restore_answers(&mut self, name: &QueueName, log: AnswerLog) {
        if !log.is_empty() {
            self.answers.change(name, None, |own| *own = log);
        }
    }

    /// Assigns all logs to the tenants of new quotas, and counts them.
    pub(super) fn renew_answers(&mut self) {
        let mut logs = std::mem::take(&mut self.answers.logs);
        self.answers.by_age.clear();
        for (name, of) in &mut logs {
            of.tenant = self.queues.tenant_of(name);
            of.age = None;
            self.tenants.count_answers(of.tenant, [(0, 0), (of.log.count(), of.log.bytes())]);
        }
        let names: Vec<QueueName> = logs.keys().cloned().collect();
        self.answers.logs = logs;
        names.iter().for_each(|name| self.answers.place(name));
    }

    /// Counts of remembered answers.
    pub fn answer_counts(&self) -> AnswerCounts {
        self.answers.counts()
    }

    /// Whether an answer that was found is remembered.
    pub(super) fn remembers(&self, row: &DedupeRow) -> bool {
        self.answers.remembers(row)
    }

    /// Remembers an answer, whose position is that of the next record, or of the answer that it frees.
    pub(super) fn append_answer(&mut self, row: DedupeRow) {
        if let Some(position) = row.position {
            let tenant = self.queues.tenant_of(&row.queue);
            self.change_answers(&row.queue, tenant, |log| log.add(position, row.until, row.size()));
        }
        self.append(Record::Deduped(row.clone()));
        self.dedupe.insert(row);
    }

    /// Forgets the answer to the `dedupe_id` of a message, unless the id has got another answer since. An answer that
    /// has expired takes its place and its position, and hides it.
    pub(super) fn free_dedupe_id(&mut self, message: &MessageContent) {
        let Some(id) = &message.dedupe_id else { return };
        let found = self.dedupe.find(&message.queue, id, self.now.engine);
        let Some(row) = found.filter(|row| row.id == message.id && self.remembers(row)) else { return };
        self.append_answer(DedupeRow { until: self.now.engine, ..row.clone() });
    }

    /// Changes the log of a queue, and counts that for its tenant; returns its former and its present number and size.
    fn change_answers(
        &mut self,
        name: &QueueName,
        tenant: Option<TenantIdx>,
        change: impl FnOnce(&mut AnswerLog),
    ) -> [(u64, u64); 2] {
        let change = self.answers.change(name, tenant, change);
        self.tenants.count_answers(tenant, change);
        change
    }

    /// Forgets answers of a queue.
    fn forget_answers(&mut self, name: &QueueName, upto: Lsn) -> u64 {
        let [was, is] = self.change_answers(name, self.answers.tenant_of(name), |log| log.forget(upto));
        self.append(Record::AnswersForgotten { queue: name.clone(), upto });
        was.0.saturating_sub(is.0)
    }

    /// Forgets all answers that callers of this queue were given.
    pub(super) fn purge_answers(&mut self, name: &QueueName) {
        if self.answers.logs.contains_key(name) {
            let forgotten = self.forget_answers(name, self.last);
            self.answers.counts.forgotten[ForgottenFor::Purge as usize] += forgotten;
        }
    }

    /// Forgets the oldest span of answers, if it is old enough.
    fn forget_oldest(&mut self, whose: Whose, why: ForgottenFor) -> bool {
        let Some((name, span)) = self.answers.oldest(whose) else { return false };
        if self.now.engine.0.saturating_sub(span.last.at.0) < self.policy.min_answer_ms {
            return false;
        }
        let (name, upto) = (name.clone(), span.last.nth);
        let forgotten = self.forget_answers(&name, upto);
        self.answers.counts.forgotten[why as usize] += forgotten;
        true
    }

    /// Makes place for an answer of this size among those of all tenants: the oldest ones go.
    ///
    /// # Errors
    /// A limit of the server, if the oldest answers are too young.
    pub(super) fn make_place_for_answer(
        &mut self,
        name: &QueueName,
        size: Option<u64>,
    ) -> Result<(), EnqueueRefusal> {
        let Some(size) = size else { return Ok(()) };
        for _ in 0..SPANS_PER_ENQUEUE {
            let Some(full) = self.full_answers(name, size) else { break };
            if !self.forget_oldest(Whose::All, ForgottenFor::Limit) {
                return Err(EnqueueRefusal::Overloaded(full));
            }
        }
        Ok(())
    }

    /// Forgets the oldest answers of a tenant if an answer of this size, or `more` bytes of a message, would not fit
    /// into its quota otherwise.
    pub(super) fn forget_for_quota(&mut self, tenant: Option<TenantIdx>, size: Option<u64>, more: u64) {
        let Some(tenant) = tenant else { return };
        for _ in 0..SPANS_PER_ENQUEUE {
            if !self.tenants.gains_by_forgetting(tenant, size, more)
                || !self.forget_oldest(Whose::Tenant(tenant), ForgottenFor::Quota)
            {
                return;
            }
        }
    }

    /// The limit of the server that one more answer of this size would exceed.
    fn full_answers(&self, name: &QueueName, size: u64) -> Option<Limit> {
        let (policy, counts) = (&self.policy, self.answers.counts);
        let (most, most_bytes) = (policy.max_answers as u64, policy.max_answer_bytes as u64);
        if counts.kept >= most || counts.bytes.saturating_add(size) > most_bytes {
            return Some(Limit::Answers(most));
        }
        let is_new = self.answers.logs.len() >= policy.max_queues && !self.answers.logs.contains_key(name);
        is_new.then_some(Limit::Queues(policy.max_queues as u64))
    }

    /// Adds to a refusal for answers when the oldest of them may be forgotten.
    pub(super) fn note_retry(&self, name: &QueueName, mut over: Box<OverQuota>) -> Box<OverQuota> {
        let tenant = self.answers.tenant_of(name);
        if over.resource == Resource::Answers
            && let Some((_, span)) = tenant.and_then(|tenant| self.answers.oldest(Whose::Tenant(tenant)))
        {
            let since = self.now.engine.0.saturating_sub(span.last.at.0);
            over.retry_ms = Some(self.policy.min_answer_ms.saturating_sub(since).max(1));
        }
        over
    }

    /// Ends the counting of expired answers.
    pub(super) fn end_answers(&mut self) {
        let mut budget = self.budget();
        while let Some((_, name)) = self.answers.ends.first().filter(|(end, _)| *end <= self.now.engine) {
            let name = name.clone();
            if !self.spend(&mut budget, 1) {
                return;
            }
            let log = self.answers.logs.get(&name).map(|of| of.log.spans()).unwrap_or_default();
            let expired = log.iter().take_while(|span| span.until <= self.now.engine).last();
            match expired.map(|span| span.last.nth) {
                Some(upto) => {
                    self.forget_answers(&name, upto);
                }
                // Behind one that has not expired.
                None => {
                    let now = self.now.engine;
                    self.change_answers(&name, self.answers.tenant_of(&name), |log| log.expire(now));
                }
            }
        }
    }

    /// While the store has no room, the oldest answers go after the done messages; and the ids of done messages go
    /// beyond their limit.
    pub(super) fn give_up_answers(&mut self) {
        let done = QueueName::done_ids();
        let most = (self.policy.max_done as u64).saturating_mul(2);
        while self.answers.of(&done).0 > most
            && let Some(upto) = self.answers.logs.get(&done).map(|of| of.log.spans()[0].last.nth)
        {
            let forgotten = self.forget_answers(&done, upto);
            self.answers.counts.forgotten[ForgottenFor::Limit as usize] += forgotten;
        }
        if !matches!(self.room, Capacity::SettleOnly | Capacity::RemoveOnly) || self.done.kept > 0 {
            return;
        }
        let mut budget = self.budget();
        while self.forget_oldest(Whose::All, ForgottenFor::Room) {
            if !self.spend(&mut budget, 1) {
                return;
            }
        }
    }
}
