//! Done messages: messages that have ended, with their result, kept for a while if the settings of their queue say so.
//!
//! A done message is a dead message of the system queue of its queue ([`QueueName::of_done`]). It has an id of its own
//! and the key, content and life of the message that has ended, whose id is in a header. An answer that is remembered
//! under this id, as for a `dedupe_id`, leads from the id to the done message. So stores treat done messages as they
//! treat all others, and every operation but [`super::Op::Recall`] and a list of done messages treats them as gone.

use std::sync::Arc;

use crate::answers::AnswerPosition;
use crate::history::HistoryStep;
use crate::id::MessageId;
use crate::message::{DeadReason, Died, DoneOutcome, Kind, Life, MessageContent, Row, Stage, State};
use crate::name::QueueName;
use crate::policy::OF_RECORD;
use crate::record::{Created, DedupeRow, Gone, Record};
use crate::store::{Capacity, Lookups};
use crate::time::{EngineMs, WallMs};

use super::Engine;
use super::input::Target;
use super::reply::View;
use super::rows::QueueIdx;
use super::rows::RowIdx;

/// The header of a done message with the id that it had. No caller's header has this name: `#` is in no name of HTTP.
const ID_HEADER: &str = "#id";

/// A message that ends and is to be kept.
#[derive(Debug)]
pub(super) struct EndedMessage {
    message: Arc<MessageContent>,
    life: Life,
    outcome: DoneOutcome,
    keep_ms: u64,
}

/// How much of done messages an engine has kept and given up since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoneCounts {
    /// Done messages that are kept now, of all queues.
    pub kept: u64,
    /// The weight of kept done messages, in bytes.
    pub bytes: u64,
    /// Messages that ended and were not kept, because the store had no room or was behind, or a limit was reached.
    pub not_kept: u64,
    /// Done messages that were given up before their time, because of a limit or because the store had no room.
    pub given_up: u64,
}

impl Engine {
    /// The data to be kept of a message that is about to be removed; `None` if its queue keeps none.
    pub(super) fn ended(&self, slot: RowIdx, why: Gone) -> Option<EndedMessage> {
        let entry = self.rows.get(slot);
        let keep_ms = self.queues.get(entry.queue).settings.keep_done_ms?;
        let outcome = match why {
            Gone::Acked => DoneOutcome::Acked,
            Gone::Cancelled => DoneOutcome::Cancelled,
            Gone::Replaced => DoneOutcome::Replaced,
            Gone::Expired => DoneOutcome::Expired,
            Gone::Superseded => DoneOutcome::Superseded,
        };
        Some(EndedMessage { message: entry.message.clone(), life: entry.life.clone(), outcome, keep_ms })
    }

    /// Keeps a message that was removed. `brought` is the size of what the same operation puts besides.
    pub(super) fn keep(&mut self, ended: EndedMessage, brought: usize) {
        let EndedMessage { message, life, outcome, keep_ms } = ended;
        let (now, name) = (self.now, message.queue.of_done());
        if !self.may_keep(&name, message.weight().saturating_add(brought)) {
            self.done.not_kept += 1;
            return;
        }
        let (id, was_id) = (MessageId(self.next_id), message.id);
        self.next_id = self.ids.after(self.next_id);
        let key = life.key_of(&message).cloned();
        let mut content = MessageContent { id, queue: name, key, ..(*message).clone() };
        content.headers.push((ID_HEADER.into(), was_id.0.to_string().into()));
        let (message, at) = (Arc::new(content), self.dies());
        let life = Life { stage: Stage::Dead { reason: DeadReason::Done(outcome), at, token: None }, ..life };
        let record = Record::Put { message: message.clone(), life: life.clone(), was: None };
        let idx = self.queues.find_or_make(&message.queue);
        self.count(idx, &record);
        let lsn = self.append(record);
        self.remember_done(was_id, id, keep_ms);
        if self.has_too_many_done() {
            self.check_dead_at(now.engine, idx);
        } else {
            self.plan_dead_check(idx, at);
        }
        self.fresh.push(message, life, lsn);
    }

    /// Leads from the id that a done message had to it.
    fn remember_done(&mut self, was: MessageId, id: MessageId, keep_ms: u64) {
        let row = DedupeRow {
            queue: QueueName::done_ids(),
            dedupe_id: was.0.to_string().into(),
            content: 0,
            defaults: None,
            until: self.now.after(keep_ms).unwrap_or(EngineMs(u64::MAX)),
            id,
            key: None,
            due_at: WallMs(0),
            generation: 0,
            created: Created::Kept,
            position: Some(AnswerPosition { nth: self.last.next(), at: self.now.engine }),
        };
        self.append_answer(row);
    }

    fn may_keep(&self, name: &QueueName, bytes: usize) -> bool {
        let policy = &self.policy;
        // Messages above the limit are given up page by page, so there may be a page more.
        let most = policy.max_done.saturating_add(policy.max_step) as u64;
        let most_bytes = policy.max_done_bytes.saturating_add(policy.load_bytes) as u64;
        self.room == Capacity::Enough
            && bytes.saturating_add(2 * OF_RECORD) <= policy.max_op_bytes
            && self.done.kept < most
            && self.done.bytes < most_bytes
            && self.has_room_for(name)
    }

    /// Whether more done messages are kept than allowed, so that the oldest of a queue go before their time.
    pub(super) fn has_too_many_done(&self) -> bool {
        let policy = &self.policy;
        self.done.kept > policy.max_done as u64 || self.done.bytes > policy.max_done_bytes as u64
    }

    /// After which time dead messages of a queue are removed, in ms; `None`: never. Done messages follow the present
    /// setting of the queue in which they were.
    pub(super) fn dead_ttl_ms(&self, idx: QueueIdx) -> Option<u64> {
        let queue = self.queues.get(idx);
        if queue.name.is_history() {
            return Some(HistoryStep::FiveMinutes.kept_ms());
        }
        if !queue.is_done {
            return queue.settings.dead_ttl_ms;
        }
        let of = self.done_of(queue.name.done_of()?);
        Some(of.and_then(|of| self.queues.get(of).settings.keep_done_ms).unwrap_or(0))
    }

    fn done_of(&self, name: &str) -> Option<QueueIdx> {
        self.queues.find(&QueueName::stored(name).ok()?)
    }

    /// Lets a changed setting of a queue take effect on its done messages.
    pub(super) fn renew_done(&mut self, name: &QueueName) {
        let done = name.of_done();
        let Some(idx) = self.queues.find(&done) else { return };
        if self.dead_ttl_ms(idx) == Some(0) {
            self.purge(&done);
        } else {
            self.forget_dead_check(idx);
            self.plan_dead_check(idx, Died::default());
        }
    }

    /// While the store has no room, done messages are the first to go: a bounded number of queues a step.
    pub(super) fn give_up_done(&mut self) {
        if !matches!(self.room, Capacity::SettleOnly | Capacity::RemoveOnly) || self.done.kept == 0 {
            return;
        }
        let mut budget = self.budget();
        while let Some(name) = self.queues.first_with_done() {
            if !self.spend(&mut budget, 1) {
                return;
            }
            self.done.given_up += self.purge(&name);
        }
    }

    /// The done message that a caller names. It must be in memory, or have been looked up.
    pub(super) fn resolve_done(&self, target: &Target) -> Option<RowIdx> {
        match target {
            Target::Id(id) => {
                let found = self.live(self.done_id(*id)?);
                found.filter(|&slot| self.is_still_done(slot))
            }
            Target::Own(_) => None,
            Target::Key(queue, key) => {
                let idx = self.queues.find(&queue.of_done())?;
                let done = self.rows.with_key(idx, key).filter(|&slot| self.is_live(slot));
                let newest = done.max_by_key(|&slot| self.rows.get(slot).message.id)?;
                self.is_still_done(newest).then_some(newest)
            }
        }
    }

    /// The id that a done message has now, by the one that it had, if this batch has looked it up.
    fn done_id(&self, was: MessageId) -> Option<MessageId> {
        let row = self.dedupe.find(&QueueName::done_ids(), &was.0.to_string(), self.now.engine)?;
        self.remembers(row).then_some(row.id)
    }

    /// Whether a row is a done message whose time is not over.
    fn is_still_done(&self, slot: RowIdx) -> bool {
        let entry = self.rows.get(slot);
        self.queues.get(entry.queue).is_done && !self.is_done_over(entry.queue, &entry.life)
    }

    /// Whether a done message is to be removed. It may still be there, because that takes a page from the store.
    pub(super) fn is_done_over(&self, idx: QueueIdx, life: &Life) -> bool {
        let Stage::Dead { at, .. } = life.stage else { return false };
        self.dead_ttl_ms(idx).is_some_and(|ttl| at.is_older(ttl, self.now))
    }

    /// Adds the look-ups for a look at a message that may be done. It is called again once the first ones were made.
    pub(super) fn look_up_done(&self, target: &Target, lookups: &mut Lookups) {
        match target {
            Target::Id(id) if self.done.kept > 0 && self.live(*id).is_none() => match self.done_id(*id) {
                None => lookups.answers.push((QueueName::done_ids(), id.0.to_string().into())),
                Some(done) if self.rows.slot(done).is_none() => self.look_up_id(done, lookups),
                Some(_) => {}
            },
            Target::Key(queue, key) if self.done.kept > 0 => self.look_up_key(&queue.of_done(), key, lookups),
            Target::Id(_) | Target::Own(_) | Target::Key(..) => {}
        }
    }

    /// Whether what [`Engine::look_up_done`] has asked for was looked up.
    pub(super) fn is_done_looked_up(&self, target: &Target) -> bool {
        match target {
            Target::Id(id) => self.done_id(*id).is_none_or(|done| !self.unmade.has_id(done)),
            Target::Own(_) => true,
            Target::Key(queue, key) => !self.unmade.has_key(&queue.of_done(), key),
        }
    }

    /// Brings a done message of this batch into memory if a look names it.
    pub(super) fn meet_done(&mut self, target: &Target) {
        let found = match target {
            Target::Id(id) => self.done_id(*id).and_then(|done| self.fresh.by_id(done)),
            Target::Own(_) => None,
            Target::Key(queue, key) => self.fresh.by_key(&queue.of_done(), key),
        };
        self.meet(found);
    }

    /// A done message as it was, with the id and the queue that it had.
    pub(super) fn view_of_done(&self, idx: QueueIdx, row: &Row) -> View {
        let message = &row.message;
        let mut content = (**message).clone();
        if let Some((_, id)) = content.headers.pop_if(|(name, _)| **name == *ID_HEADER)
            && let Ok(id) = id.parse()
        {
            content.id = MessageId(id);
        }
        let mut settings_of = idx;
        if let Some(name) = message.queue.done_of() {
            settings_of = self.done_of(name).unwrap_or(idx);
            content.queue = QueueName::stored(name).unwrap_or(content.queue);
        }
        self.view_of(settings_of, &Arc::new(content), &row.life, State::Done)
    }

    /// Counts done messages that are put or removed.
    pub(super) fn count_done(&mut self, was: Option<u64>, is: Option<u64>) {
        if let Some(weight) = was {
            self.done.kept -= 1;
            self.done.bytes = self.done.bytes.saturating_sub(weight);
        }
        if let Some(weight) = is {
            self.done.kept += 1;
            self.done.bytes = self.done.bytes.saturating_add(weight);
        }
    }

    /// Counts of done messages.
    pub fn done_counts(&self) -> DoneCounts {
        self.done
    }

    /// The number of done messages of a queue.
    pub(super) fn done_in(&self, name: &QueueName) -> u64 {
        let idx = self.queues.find(&name.of_done());
        idx.map_or(0, |idx| self.queues.get(idx).tally.part(Kind::Dead).count)
    }
}
