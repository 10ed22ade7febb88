//! Done messages: messages that have ended, with their result, kept for a while if the settings of their queue say so.
//!
//! A done message is a dead message of the system queue of its queue ([`QueueName::of_done`]). It has an id of its own
//! and the key, content and life of the message that has ended, whose id is in a header. An answer that is remembered
//! under this id, as for a `dedupe_id`, leads from the id to the done message. So stores treat done messages as they
//! treat all others, and every operation but [`super::Op::Recall`] and a list of done messages treats them as gone.
//!
//! A message that an act has removed and keeps ([`KeptFor`]) is a done message of a system queue of its own
//! act ([`QueueName::of_act`]), whose `dead_ttl_ms` says how long. [`super::Op::Restore`] puts it back and removes the kept
//! one in the same group, so it comes back once. The id of the kept one then leads to the message that was put back.

use std::sync::Arc;

use crate::answers::AnswerPosition;
use crate::history::HistoryStep;
use crate::id::MessageId;
use crate::message::{
    DeadReason, Died, DoneOutcome, Kind, Life, MessageContent, RESULT_HEADER, Row, Stage, State,
};
use crate::mutant::{self, Mutant};
use crate::name::QueueName;
use crate::policy::{Lasting, OF_RECORD, QueueSettings};
use crate::record::{Created, DedupeRow, Gone, Record};
use crate::store::{Capacity, Lookups};
use crate::tally::Tally;
use crate::time::{EngineMs, WallMs};

use super::Engine;
use super::input::{Enqueue, KeptFor, Target};
use super::reply::{ChangeRefusal, EnqueueRefusal, Limit, Outline, View};
use super::rows::QueueIdx;
use super::rows::RowIdx;

/// The header of a done message with the id that it had, and with reason and time of its death if it was dead. No caller's
/// header has this name: `#` is in no name of HTTP.
const ID_HEADER: &str = "#id";

/// The part of all queues that may keep the messages of acts, each those of one act and queue: one in so many.
const PART_OF_ACTS: usize = 8;

/// How long the id of a kept message leads to the one that was put back, in ms: for a job that another node continues.
const RESTORED_MS: u64 = 7 * 86_400_000;

/// The value of [`ID_HEADER`].
fn origin(id: MessageId, stage: &Stage) -> Box<str> {
    match stage {
        Stage::Dead { reason, at, .. } => {
            let engine = at.engine().map_or(String::new(), |engine| format!(" {}", engine.0));
            format!("{} {} {}{engine}", id.0, reason.as_str(), at.raw()).into()
        }
        Stage::Waiting { .. } | Stage::Leased(_) => id.0.to_string().into(),
    }
}

/// The id and the stage that [`origin`] has written.
fn read_origin(text: &str) -> Option<(MessageId, Stage)> {
    let mut words = text.split(' ');
    let id = MessageId(words.next()?.parse().ok()?);
    let Some(reason) = words.next() else { return Some((id, Stage::Waiting { token: None })) };
    let died = Died::from_raw(words.next()?.parse().ok()?);
    let engine = words.next().and_then(|engine| engine.parse().ok());
    let at = engine.map_or(died, |engine| died.since(EngineMs(engine)));
    Some((id, Stage::Dead { reason: DeadReason::named(reason)?, at, token: None }))
}

/// A done message as it was, with the id, the queue and the stage that it had.
fn original(message: &MessageContent) -> (MessageContent, Stage) {
    let (mut content, mut stage) = (message.clone(), Stage::Waiting { token: None });
    if let Some((_, text)) = content.headers.pop_if(|(name, _)| **name == *ID_HEADER)
        && let Some(origin) = read_origin(&text)
    {
        (content.id, stage) = origin;
    }
    if let Some(queue) = message.queue.done_of().and_then(|name| QueueName::stored(name).ok()) {
        content.queue = queue;
    }
    (content, stage)
}

/// A message that ends and is to be kept.
#[derive(Debug)]
pub(super) struct EndedMessage {
    message: Arc<MessageContent>,
    life: Life,
    outcome: DoneOutcome,
    /// The result that its ack brought.
    result: Option<Box<str>>,
    /// The system queue that keeps it.
    queue: QueueName,
    keep_ms: u64,
}

/// How much of done messages an engine has kept and given up since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoneCounts {
    /// Done messages that are kept now, of all queues.
    pub kept: u64,
    /// The weight of kept done messages, in bytes.
    pub bytes: u64,
    /// Done messages that acts keep.
    pub kept_by_acts: u64,
    /// The weight of done messages that acts keep, in bytes.
    pub bytes_by_acts: u64,
    /// Messages that ended and were not kept, because the store had no room or was behind, or a limit was reached.
    pub not_kept: u64,
    /// Done messages that were given up before their time, because of a limit or because the store had no room.
    pub given_up: u64,
}

impl DoneCounts {
    /// Adds the done messages of a queue.
    pub(super) fn add(&mut self, tally: &Tally, is_of_act: bool) {
        self.change(is_of_act, (0, 0), (tally.count(), tally.weight()));
    }

    /// Leaves out the done messages of a queue.
    pub(super) fn sub(&mut self, tally: &Tally, is_of_act: bool) {
        self.change(is_of_act, (tally.count(), tally.weight()), (0, 0));
    }

    /// Counts so many messages, of so many bytes, that were there and that are there.
    fn change(&mut self, is_of_act: bool, was: (u64, u64), is: (u64, u64)) {
        let change = |kept: &mut u64, bytes: &mut u64| {
            *kept = (*kept + is.0).saturating_sub(was.0);
            *bytes = bytes.saturating_add(is.1).saturating_sub(was.1);
        };
        change(&mut self.kept, &mut self.bytes);
        if is_of_act {
            change(&mut self.kept_by_acts, &mut self.bytes_by_acts);
        }
    }
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
        let (message, queue) = (entry.message.clone(), entry.message.queue.of_done());
        let life = Life { detail: self.detail.clone().or(entry.life.detail.clone()), ..entry.life.clone() };
        Some(EndedMessage { message, life, outcome, result: None, queue, keep_ms })
    }

    /// Removes a message that was acked, and keeps it with the result if its queue keeps done messages.
    pub(super) fn remove_acked(&mut self, slot: RowIdx, result: Option<Box<str>>) {
        let queue = self.rows.get(slot).queue;
        let ended = self.ended(slot, Gone::Acked).map(|ended| EndedMessage { result, ..ended });
        self.end(slot, Gone::Acked, ended, 0);
        self.release(queue);
    }

    /// Keeps a message that was removed. `brought` is the size of what the same operation puts besides.
    pub(super) fn keep(&mut self, ended: EndedMessage, brought: usize) {
        let EndedMessage { message, life, outcome, result, queue: name, keep_ms } = ended;
        let now = self.now;
        let result_len = result.as_ref().map_or(0, |result| result.len());
        let brought = brought.saturating_add(result_len + life.weight());
        if !self.may_keep(&name, message.weight().saturating_add(brought)) {
            self.done.not_kept += 1;
            return;
        }
        let (id, was_id) = (MessageId(self.next_id), message.id);
        self.next_id = self.ids.after(self.next_id);
        let key = life.key_of(&message).cloned();
        let mut content = MessageContent { id, queue: name, key, ..(*message).clone() };
        content.headers.extend(result.map(|result| (RESULT_HEADER.into(), result)));
        content.headers.push((ID_HEADER.into(), origin(was_id, &life.stage)));
        let (message, at) = (Arc::new(content), self.dies());
        let life = Life { stage: Stage::Dead { reason: DeadReason::Done(outcome), at, token: None }, ..life };
        let record = Record::Put { message: message.clone(), life: life.clone(), was: None };
        let idx = self.queues.find_or_make(&message.queue);
        if message.queue.is_of_act() {
            self.begin_act(idx, keep_ms);
        }
        self.count(idx, &record);
        let lsn = self.append(record);
        self.append_answer(self.done_id_row(was_id, id, keep_ms));
        if self.has_too_many_done() && !message.queue.is_of_act() {
            self.check_dead_at(now.engine, idx);
        } else {
            self.plan_dead_check(idx, at);
        }
        self.fresh.push(message, life, lsn);
    }

    /// Leads from the id that a done message had to it, or from that of a kept message to the one that was put back.
    fn done_id_row(&self, was: MessageId, id: MessageId, keep_ms: u64) -> DedupeRow {
        DedupeRow {
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
            kept: None,
            position: Some(AnswerPosition { nth: self.last.next(), at: self.now.engine }),
        }
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
        if !queue.is_done || queue.name.is_of_act() {
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
        let (content, _) = original(&row.message);
        let settings_of = self.queues.find(&content.queue).unwrap_or(idx);
        self.view_of(settings_of, &Arc::new(content), &row.life, State::Done)
    }

    /// Counts done messages that are put or removed.
    pub(super) fn count_done(&mut self, is_of_act: bool, was: Option<u64>, is: Option<u64>) {
        let one = |weight: Option<u64>| (u64::from(weight.is_some()), weight.unwrap_or(0));
        self.done.change(is_of_act, one(was), one(is));
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

impl Engine {
    /// The data that an act keeps of a message which it is about to remove: for as long as the act says, and for no
    /// less than its queue keeps done messages. Refused if it cannot be kept.
    pub(super) fn kept_for(&self, slot: RowIdx, keep: &KeptFor) -> Result<EndedMessage, ChangeRefusal> {
        let entry = self.rows.get(slot);
        let (message, life) = (entry.message.clone(), entry.life.clone());
        let queue = message.queue.of_act(&keep.act).map_err(|_| ChangeRefusal::NotFound)?;
        match self.room {
            Capacity::Enough => {}
            Capacity::Busy => return Err(ChangeRefusal::Busy),
            Capacity::SettleOnly | Capacity::RemoveOnly => return Err(ChangeRefusal::DiskFull),
        }
        // The other half is for queues that keep what has ended.
        let (most, most_bytes) = (self.policy.max_done as u64 / 2, self.policy.max_done_bytes as u64 / 2);
        let has_room = self.done.kept_by_acts < most && self.done.bytes_by_acts < most_bytes;
        if !has_room || !self.may_keep(&queue, message.weight() + life.weight()) {
            return Err(ChangeRefusal::Overloaded(Limit::Messages(self.policy.max_done as u64)));
        }
        // Other callers need queues as well.
        let most = (self.policy.max_queues / PART_OF_ACTS).max(1);
        if self.queues.of_acts >= most && self.queues.find(&queue).is_none() {
            return Err(ChangeRefusal::Overloaded(Limit::Queues(most as u64)));
        }
        let queue_ms = self.queues.get(entry.queue).settings.keep_done_ms.unwrap_or(0);
        let keep_ms = keep.keep_ms.max(queue_ms);
        Ok(EndedMessage { message, life, outcome: DoneOutcome::Cancelled, result: None, queue, keep_ms })
    }

    /// Says with the first message of an act how long its queue keeps them. The setting goes with the last one.
    fn begin_act(&mut self, idx: QueueIdx, keep_ms: u64) {
        let settings = &mut self.queues.get_mut(idx).settings;
        if settings.dead_ttl_ms.is_none() {
            *settings = QueueSettings {
                dead_ttl_ms: Some(keep_ms),
                lasting: Lasting::WhileUsed,
                ..QueueSettings::default()
            };
            self.record_queue(idx);
        }
    }

    /// Puts a message that an act has removed back into its queue, as it was, under a new id. The kept one is gone in the
    /// same group, so both or none of them are durable.
    pub(super) fn restore(&mut self, id: MessageId) -> Result<Box<Outline>, ChangeRefusal> {
        let is_kept =
            |slot: &RowIdx| self.rows.get(*slot).message.queue.is_of_act() && self.is_still_done(*slot);
        let Some(slot) = self.live(id).filter(is_kept) else {
            let is_back = self.done_id(id).is_some();
            return Err(if is_back { ChangeRefusal::NotDead } else { ChangeRefusal::NotFound });
        };
        let entry = self.rows.get(slot);
        let (content, stage) = original(&entry.message);
        let life = Life { stage, ..entry.life.clone() };
        // The dead hold no keys.
        if life.stage.kind() == Kind::Waiting
            && let Some(holder) = self.key_taken(slot)
        {
            return Err(ChangeRefusal::KeyExists(holder));
        }
        let brings = Enqueue {
            key: content.key.clone(),
            headers: content.headers.clone(),
            ..Enqueue::new(content.queue.clone(), content.body.clone())
        };
        self.accept_again(&brings).map_err(of_restore)?;
        if !mutant::is(Mutant::RestoredTwice) {
            self.remove(slot, Gone::Cancelled);
        }
        let (kept, id) = (id, MessageId(self.next_id));
        self.next_id = self.ids.after(self.next_id);
        self.put_new(Arc::new(MessageContent { id, ..content }), life);
        let size = self.done_id_row(kept, id, RESTORED_MS).size();
        // Without a place for it, a repeated restore takes the message for lost.
        if self.make_place_for_answer(&QueueName::done_ids(), Some(size)).is_ok() {
            self.append_answer(self.done_id_row(kept, id, RESTORED_MS));
        }
        self.meet(self.fresh.by_id(id));
        let slot = self.live(id).ok_or(ChangeRefusal::NotFound)?;
        Ok(Box::new(self.outline(slot)))
    }
}

/// The refusal of a restore because of the limits of an enqueue.
fn of_restore(refusal: EnqueueRefusal) -> ChangeRefusal {
    match refusal {
        EnqueueRefusal::DiskFull => ChangeRefusal::DiskFull,
        EnqueueRefusal::Overloaded(limit) => ChangeRefusal::Overloaded(limit),
        EnqueueRefusal::OverQuota(over) => ChangeRefusal::OverQuota(over),
        // Only the limits are checked: what the message holds was accepted before.
        _ => ChangeRefusal::Busy,
    }
}
