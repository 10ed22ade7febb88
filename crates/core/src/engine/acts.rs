//! The records of acts: each in the group of the act's own records, and in a bounded number ([`crate::act`]).
//!
//! The records are in the store alone. Memory has an index of them, which is read at the start.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::act::{Act, Acting, KeptAct};
use crate::id::{MessageId, ReplyTo};
use crate::message::{DeadReason, Life, Stage};
use crate::name::QueueName;
use crate::record::{Gone, Record};
use crate::store::{ALL_COLUMNS, Loaded, More};
use crate::tally::columns_per_queue;
use crate::time::Due;

use super::Engine;
use super::operation::Op;
use super::reply::{Enqueued, Reply};

impl Engine {
    /// Makes the request that begins part of an act.
    pub(super) fn begin_acting(&mut self, act: Option<Arc<Act>>, to: ReplyTo, op: &Op) {
        let (is_note, is_of_one) = (!op.operation().audited, op.is_of_one());
        self.acting = act.map(|act| Acting { act, to, before: self.last, is_note, is_of_one });
    }

    /// Records the act that the request is part of if the request has changed something, with the number of messages
    /// in the answer.
    pub(super) fn end_acting(&mut self, reply: Option<&Reply>) {
        let Some(Acting { act, before, is_note, is_of_one, .. }) = self.acting.take() else { return };
        let count = match reply {
            Some(Reply::Count(count)) => Some(count.what),
            // It may have made room for an answer before it was refused, or kept the message that there was.
            Some(Reply::Enqueue(entered)) if is_of_one && !entered.as_ref().is_ok_and(Enqueued::is_new) => {
                return;
            }
            _ => is_of_one.then_some(1).or(act.count),
        };
        if is_note || self.last > before {
            self.record_act(&act, count);
        }
    }

    /// The act of the present request, which is answered after more steps and records its act itself.
    pub(super) fn take_act(&mut self) -> Option<Arc<Act>> {
        self.acting.take().map(|acting| acting.act)
    }

    /// Records an act, or that a former step of it has changed more. A full store has no room for it. Of a job that has
    /// ended without a change, and was refused none, no record is left.
    pub(super) fn record_act(&mut self, act: &Act, count: Option<u64>) {
        if !self.takes_puts() {
            return;
        }
        let former = self.acts.kept.iter().rev().find(|(_, kept)| kept.nonce == act.nonce);
        let former = former.map(|(id, kept)| (*id, kept.clone()));
        if act.job.is_some() && count == Some(0) && act.refused.is_none() && !self.acts.is_loading {
            return former.into_iter().for_each(|(id, _)| self.forget_act(id));
        }
        if former.is_some() && count.is_none() {
            return;
        }
        let (is_new, was) = (former.is_none(), former.as_ref().map(|(_, kept)| kept.was()));
        let (id, due, died, before) = match former {
            Some((id, kept)) => (id, kept.due, kept.died, kept.count),
            None => {
                let id = MessageId(self.next_id);
                self.next_id = self.ids.after(self.next_id);
                self.acts.stored += 1;
                (id, Due::At(act.at), self.dies(), None)
            }
        };
        let count = count.map(|count| count.saturating_add(before.unwrap_or(0))).or(before);
        let message = Act { count, ..act.clone() }.message(id);
        let (nonce, token, weight) = (act.nonce, act.token.clone(), message.weight() as u64);
        self.acts.kept.insert(id, KeptAct { nonce, token, count, due, died, weight });
        let stage = Stage::Dead { reason: DeadReason::Buried, at: died, token: None };
        let life = Life { stage, ..Life::new(due, None) };
        self.append_of_act(Record::Put { message, life, was });
        if is_new {
            self.forget_acts();
        }
    }

    /// Removes the oldest records above the limits.
    fn forget_acts(&mut self) {
        if self.acts.is_loading {
            return;
        }
        let mut of_token: BTreeMap<&str, usize> = BTreeMap::new();
        let mut gone = Vec::new();
        for (at, (id, kept)) in self.acts.kept.iter().rev().enumerate() {
            let of_token = of_token.entry(kept.token.as_deref().unwrap_or_default()).or_default();
            *of_token += 1;
            let is_above = kept.token.is_some() && *of_token > self.policy.max_acts_of_token;
            if is_above || at - gone.len() >= self.policy.max_acts {
                gone.push(*id);
            }
        }
        gone.into_iter().for_each(|id| self.forget_act(id));
    }

    fn forget_act(&mut self, id: MessageId) {
        let Some(kept) = self.acts.kept.remove(&id) else { return };
        self.acts.stored = self.acts.stored.saturating_sub(1);
        self.append_of_act(Record::Removed { id, why: Gone::Expired, was: kept.was() });
    }

    /// Appends a record about an act. No total of the engine counts it.
    fn append_of_act(&mut self, record: Record) {
        let idx = self.queues.find_or_make(&QueueName::of_acts());
        let columns = columns_per_queue(self.queues.len());
        let (was, is) = record.moves();
        let queue = self.queues.get_mut(idx);
        queue.totals.count(&record);
        queue.tally.take(was, is, columns);
        self.tally.take(was, is, ALL_COLUMNS);
        self.append(record);
    }

    /// Begins to read the records of earlier owners.
    pub(super) fn load_acts(&mut self) {
        if self.acts.stored > 0 {
            self.acts.is_loading = true;
            self.ask_dead(QueueName::of_acts(), None);
        }
    }

    pub(super) fn take_acts(&mut self, loaded: Loaded) {
        for row in loaded.rows {
            let (id, Stage::Dead { at: died, .. }) = (row.message.id, row.life.stage) else { continue };
            let Act { nonce, token, count, .. } = Act::of(&row.message.headers);
            let weight = row.message.weight() as u64;
            let kept = KeptAct { nonce, token, count, due: row.life.due, died, weight };
            self.acts.kept.entry(id).or_insert(kept);
        }
        if loaded.more == More::Yes {
            return self.ask_dead(QueueName::of_acts(), loaded.upto);
        }
        self.acts.is_loading = false;
        self.forget_acts();
    }
}
