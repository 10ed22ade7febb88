//! The remembered answers of all queues: whom they count for, and which ones are forgotten ([`super::dedupe`]).
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

use crate::answers::AnswerLog;
use crate::id::Lsn;
use crate::message::MessageContent;
use crate::name::QueueName;
use crate::policy::OWN_DEDUPE;
use crate::record::{DedupeRow, Record};
use crate::store::Capacity;

use super::Engine;
use super::dedupe::{AnswerCounts, ForgottenFor, Whose};
use super::quota::{OverQuota, Resource};
use super::reply::{EnqueueRefusal, Limit};
use super::rows::TenantIdx;

/// Number of spans that one enqueue may have forgotten to make place.
const SPANS_PER_ENQUEUE: usize = 32;

/// The `dedupe_id` that a cancel of this message may free. One of duewheel's own stays: the occurrence that it names would
/// enter again.
pub(super) fn id_to_free(message: &MessageContent) -> Option<&str> {
    message.dedupe_id.as_deref().filter(|id| !id.starts_with(OWN_DEDUPE))
}

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
        let Some(id) = id_to_free(message) else { return };
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
