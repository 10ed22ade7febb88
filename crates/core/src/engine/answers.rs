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
use crate::name::QueueName;
use crate::record::DedupeRow;
use crate::time::EngineMs;

use super::index::TenantIdx;

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
