//! Enqueue: accepts a message, or refuses it with a reason.

use std::sync::Arc;

use crate::answers::AnswerPosition;
use crate::id::MessageId;
use crate::message::{
    DeadReason, Expiry, Kind, Life, MessageContent, Options, Row, Stage, State, is_own_header,
};
use crate::mutant::{self, Mutant};
use crate::name::QueueName;
use crate::policy::{OWN_DEDUPE, OWN_DEDUPE_WINDOW_MS};
use crate::random::{SpreadBy, offset_ms};
use crate::record::{Created, DedupeRow, EnqueueDefaults, Gone, Record};
use crate::store::{Capacity, Level};
use crate::time::{Due, WallMs};

use super::Engine;
use super::dedupe;
use super::input::{Enqueue, IfExists, InitialState, Past, When};
use super::reply::{Answered, EnqueueRefusal, Enqueued, KeyHolder, Limit, RefusedPart};
use super::rows::RowIdx;

/// Why a due time was refused.
pub(super) enum BadWhen {
    InThePast,
    TooFar(u64),
}

/// The due time within the spread of an enqueue, counted from the one that was asked for.
fn spread_due(e: &Enqueue, id: MessageId, due: Due) -> Due {
    let Some(spread) = e.options.spread_ms else { return due };
    let by = match (&e.key, &e.dedupe_id) {
        (Some(key), _) => SpreadBy::Key(key),
        (None, Some(dedupe_id)) => SpreadBy::DedupeId(dedupe_id),
        (None, None) => SpreadBy::Id(id),
    };
    due.plus(offset_ms(&e.queue, by, spread))
}

/// The answer to an enqueue that was accepted now.
fn accepted(id: MessageId, due_at: WallMs, generation: u32, created: Created) -> Enqueued {
    let (kept, answered, level) = (None, Answered::Now, Level::default());
    Enqueued { id, due_at, generation, created, kept, answered, level }
}

/// The size of the answer that is remembered for an enqueue; `None` if it is in no limit.
fn answer_size(e: &Enqueue) -> Option<u64> {
    let id = e.dedupe_id.as_deref().filter(|id| !id.starts_with(OWN_DEDUPE))?;
    Some(DedupeRow::size_of(&e.queue, id, e.key.as_ref()))
}

impl Engine {
    pub(super) fn enqueue(&mut self, e: Enqueue) -> Result<Enqueued, EnqueueRefusal> {
        self.check_limits(&e)?;
        let content = match &e.dedupe_id {
            None => 0,
            Some(id) => {
                let defaults = self.enqueue_defaults(&e.queue);
                let found = self.dedupe.find(&e.queue, id, self.now.engine);
                if let Some(first) = found.filter(|row| self.remembers(row)) {
                    let defaults = first.defaults.unwrap_or(defaults);
                    // An id of duewheel's own names what it enqueues, and nobody else knows it.
                    let is_same =
                        id.starts_with(OWN_DEDUPE) || first.content == dedupe::content(&e, &defaults);
                    return if is_same {
                        let answer = accepted(first.id, first.due_at, first.generation, first.created);
                        Ok(Enqueued { kept: first.kept, answered: Answered::Before, ..answer })
                    } else {
                        Err(EnqueueRefusal::DedupeMismatch(first.id))
                    };
                }
                dedupe::content(&e, &defaults)
            }
        };
        let due = self.due(e.when).map_err(|bad| match bad {
            BadWhen::InThePast => EnqueueRefusal::InThePast,
            BadWhen::TooFar(max) => EnqueueRefusal::TooFar(max),
        })?;
        if !matches!(e.when, When::At { past: Past::Keep, .. })
            && matches!(e.options.expiry, Some(Expiry::At(at)) if at < self.now.wall)
        {
            return Err(EnqueueRefusal::Expired);
        }
        self.check_ahead(&e.options, due).map_err(EnqueueRefusal::OutOfRange)?;

        let holder = match (&e.key, self.queues.find(&e.queue)) {
            // The dead hold no keys.
            (Some(key), Some(queue)) if e.begins == InitialState::Waiting => self.holder(queue, key),
            (Some(_) | None, _) => None,
        };
        let mut generation = 1;
        let mut created = Created::New;
        if let Some(slot) = holder {
            let old = self.rows.get(slot);
            let KeyHolder { id, state } = self.key_holder(slot);
            match e.if_exists {
                IfExists::Reject => return Err(EnqueueRefusal::KeyExists(KeyHolder { id, state })),
                IfExists::Keep => {
                    let due_at = self.now.wall_of(old.life.due);
                    let answer = accepted(id, due_at, old.life.generation, Created::Kept);
                    let answer = Enqueued { kept: Some(state), ..answer };
                    if e.dedupe_id.is_some() {
                        // A kept message needs no room, but remembering that it was kept does.
                        self.check_capacity(&e)?;
                        self.accept_answer(&e)?;
                    }
                    self.remember(&e, content, &answer);
                    return Ok(answer);
                }
                IfExists::Replace if state == State::Leased => return Err(EnqueueRefusal::Leased(id)),
                IfExists::Replace | IfExists::Supersede => {
                    generation = old.life.generation.saturating_add(1);
                    let is_leased = state == State::Leased;
                    created = if is_leased { Created::Superseding(id) } else { Created::Replacing(id) };
                }
            }
        }
        let replaced = holder.filter(|_| matches!(created, Created::Replacing(_)));
        let room = self.check_capacity(&e);
        if let (Err(_), Some(slot)) = (&room, replaced)
            && mutant::is(Mutant::HalfApplied)
        {
            self.remove_from(slot, Gone::Replaced, 0);
        }
        room?;
        self.accept_by_quota(&e, replaced)?;
        self.choose_order(&e);
        if let Some(slot) = replaced {
            self.remove_from(slot, Gone::Replaced, e.weight());
        }
        let id = MessageId(self.next_id);
        self.next_id = self.ids.after(self.next_id);
        if let (Some(slot), Created::Superseding(_)) = (holder, created) {
            // In the same group as the new message, so both or none of them are durable.
            self.rows.lose_key(slot);
            self.change_life(slot, |life| life.marks.superseded_by = Some(id));
        }
        let due = spread_due(&e, id, due);
        let answer = accepted(id, self.now.wall_of(due), generation, created);
        self.remember(&e, content, &answer);
        self.accept(e, id, due, generation);
        Ok(answer)
    }

    fn accept(&mut self, e: Enqueue, id: MessageId, due: Due, generation: u32) {
        let stage = match e.begins {
            InitialState::Waiting => Stage::Waiting { token: None },
            InitialState::Dead => Stage::Dead { reason: DeadReason::Buried, at: self.dies(), token: None },
        };
        let life = Life { generation, stage, ..Life::new(due, e.priority) };
        self.put_new(Arc::new(e.into_content(id, self.now.wall)), life);
    }

    /// Puts a new message, under an id that no message has had.
    pub(super) fn put_new(&mut self, message: Arc<MessageContent>, life: Life) {
        let (id, due) = (message.id, life.due);
        let record = Record::Put { message: message.clone(), life: life.clone(), was: None };
        let idx = self.queues.find_or_make(&message.queue);
        self.count(idx, &record);
        let lsn = self.append(record);
        let enters = self.is_near(idx, due, id) || (self.now.is_due(due) && self.overtakes(idx, id, &life));
        if enters || life.stage.kind() == Kind::Dead {
            self.insert_row(Row { message, life }, lsn, lsn);
        } else {
            self.fresh.push(message, life, lsn);
        }
    }

    /// Checks the options that extend from the due time.
    pub(super) fn check_ahead(&self, options: &Options, due: Due) -> Result<(), RefusedPart> {
        let max = self.policy.max_delay_ms;
        let latest = due.plus(options.spread_ms.unwrap_or(0));
        if options.spread_ms.is_some_and(|ms| ms > max || self.now.until(latest) > max) {
            return Err(RefusedPart::Spread);
        }
        match options.expiry {
            Some(Expiry::In(ms)) if ms == 0 || ms > max => Err(RefusedPart::ExpiresIn),
            Some(Expiry::At(at)) if at < self.now.wall_of(latest) => Err(RefusedPart::ExpiresAt),
            Some(Expiry::In(_) | Expiry::At(_)) | None => Ok(()),
        }
    }

    /// The due time on the clock that it follows; a time that cannot be represented is refused, never replaced by
    /// "now".
    pub(super) fn due(&self, when: When) -> Result<Due, BadWhen> {
        let max = self.policy.max_delay_ms;
        match when {
            When::Seconds(s) => {
                self.now.after(u64::from(s) * 1_000).map(Due::After).ok_or(BadWhen::TooFar(max))
            }
            When::After(ms) if ms > max => Err(BadWhen::TooFar(max)),
            When::After(ms) => self.now.after(ms).map(Due::After).ok_or(BadWhen::TooFar(max)),
            When::At { due_at, past } => {
                if due_at.0.saturating_sub(self.now.wall.0) > max {
                    return Err(BadWhen::TooFar(max));
                }
                match past {
                    Past::Refuse if due_at < self.now.wall => Err(BadWhen::InThePast),
                    Past::Fire if due_at < self.now.wall => Ok(Due::After(self.now.engine)),
                    Past::Refuse | Past::Fire | Past::Keep => Ok(Due::At(due_at)),
                }
            }
        }
    }

    fn check_limits(&self, e: &Enqueue) -> Result<(), EnqueueRefusal> {
        let policy = &self.policy;
        if e.body.len() > policy.max_body {
            return Err(EnqueueRefusal::TooLarge(RefusedPart::Body, policy.max_body));
        }
        let headers: usize = e.headers.iter().map(|(k, v)| k.len() + v.len()).sum();
        if headers > policy.max_headers {
            return Err(EnqueueRefusal::TooLarge(RefusedPart::Headers, policy.max_headers));
        }
        if e.headers.iter().any(|(name, _)| is_own_header(name)) {
            return Err(EnqueueRefusal::OutOfRange(RefusedPart::Headers));
        }
        if let Some(id) = &e.dedupe_id {
            if id.len() > policy.max_dedupe_id {
                return Err(EnqueueRefusal::TooLarge(RefusedPart::DedupeId, policy.max_dedupe_id));
            }
            if id.is_empty() {
                return Err(EnqueueRefusal::OutOfRange(RefusedPart::DedupeId));
            }
        }
        if e.dedupe_window_ms.is_some_and(|ms| ms == 0 || ms > self.dedupe_window_ms(&e.queue)) {
            return Err(EnqueueRefusal::OutOfRange(RefusedPart::DedupeWindow));
        }
        if e.options.lease_ms.is_some_and(|ms| ms == 0 || ms > policy.max_lease_ms) {
            return Err(EnqueueRefusal::OutOfRange(RefusedPart::Lease));
        }
        if e.options.backoff.is_some_and(|b| b.min_ms > b.max_ms || b.max_ms > policy.max_delay_ms) {
            return Err(EnqueueRefusal::OutOfRange(RefusedPart::Backoff));
        }
        Ok(())
    }

    /// Charges the limits and the quota of a message that was accepted before and comes back.
    pub(super) fn accept_again(&mut self, e: &Enqueue) -> Result<(), EnqueueRefusal> {
        self.check_capacity(e)?;
        self.accept_by_quota(e, None)
    }

    fn check_capacity(&self, e: &Enqueue) -> Result<(), EnqueueRefusal> {
        match self.room {
            Capacity::Enough => {}
            Capacity::Busy => return Err(EnqueueRefusal::Busy),
            Capacity::SettleOnly | Capacity::RemoveOnly => return Err(EnqueueRefusal::DiskFull),
        }
        let policy = &self.policy;
        let (messages, bytes) = (policy.max_messages as u64, policy.max_message_bytes as u64);
        let full = if self.tally.count() >= messages {
            Limit::Messages(messages)
        } else if self.tally.weight().saturating_add(e.body.len() as u64) > bytes {
            Limit::Bytes(bytes)
        } else if !self.has_room_for(&e.queue) {
            Limit::Queues(policy.max_queues as u64)
        } else {
            return Ok(());
        };
        Err(EnqueueRefusal::Overloaded(full))
    }

    /// Charges the tenant's quota, if the queue has one.
    fn accept_by_quota(&mut self, e: &Enqueue, replaced: Option<RowIdx>) -> Result<(), EnqueueRefusal> {
        let answer = answer_size(e);
        if self.tenants.is_empty() && answer.is_none() {
            return Ok(());
        }
        let weight = e.weight() as u64;
        let replaced = replaced.map(|slot| self.rows.get(slot).weight());
        let more = weight.saturating_sub(replaced.unwrap_or(0));
        let tenant = self.queues.tenant_of(&e.queue);
        self.make_place_for_answer(&e.queue, answer)?;
        self.forget_for_quota(tenant, answer, more);
        let accepted = self.tenants.accept(tenant, self.now, weight, replaced, answer);
        accepted.map_err(|over| self.note_retry(&e.queue, over).into())
    }

    /// Charges the tenant's quota for an answer alone.
    fn accept_answer(&mut self, e: &Enqueue) -> Result<(), EnqueueRefusal> {
        let Some(size) = answer_size(e) else { return Ok(()) };
        let tenant = self.queues.tenant_of(&e.queue);
        self.make_place_for_answer(&e.queue, Some(size))?;
        self.forget_for_quota(tenant, Some(size), 0);
        let accepted = self.tenants.accept_answer(tenant, size);
        accepted.map_err(|over| self.note_retry(&e.queue, over).into())
    }

    /// Remembers the answer under the caller's `dedupe_id`, in the same group as its message.
    fn remember(&mut self, e: &Enqueue, content: u128, answer: &Enqueued) {
        let Some(dedupe_id) = &e.dedupe_id else { return };
        let (window, position) = if dedupe_id.starts_with(OWN_DEDUPE) {
            (OWN_DEDUPE_WINDOW_MS.min(self.policy.max_dedupe_window_ms), None)
        } else {
            let position = AnswerPosition { nth: self.last.next(), at: self.now.engine };
            (e.dedupe_window_ms.unwrap_or_else(|| self.dedupe_window_ms(&e.queue)), Some(position))
        };
        let row = DedupeRow {
            queue: e.queue.clone(),
            dedupe_id: dedupe_id.clone(),
            content,
            defaults: Some(self.enqueue_defaults(&e.queue)),
            until: self.now.after(window).unwrap_or(crate::EngineMs(u64::MAX)),
            id: answer.id,
            key: e.key.clone(),
            due_at: answer.due_at,
            generation: answer.generation,
            created: answer.created,
            kept: answer.kept,
            position,
        };
        self.append_answer(row);
    }

    /// The values that apply to what an enqueue in this queue leaves out.
    fn enqueue_defaults(&self, name: &QueueName) -> EnqueueDefaults {
        let (defaults, idx) = (&self.policy.defaults, self.queues.find(name));
        let set = idx.map(|idx| &self.queues.get(idx).settings);
        EnqueueDefaults {
            priority: set.and_then(|s| s.priority).unwrap_or(defaults.priority),
            lease_ms: set.and_then(|s| s.lease_ms).unwrap_or(defaults.lease_ms),
            max_attempts: set.and_then(|s| s.max_attempts).unwrap_or(defaults.max_attempts),
            backoff: set.and_then(|s| s.backoff).unwrap_or(defaults.backoff),
            expires_in_ms: set.and_then(|s| s.expires_in_ms),
        }
    }

    /// How long a queue remembers answers, in ms.
    fn dedupe_window_ms(&self, name: &QueueName) -> u64 {
        let settings = self.queues.find(name).map(|idx| &self.queues.get(idx).settings);
        settings.and_then(|s| s.dedupe_window_ms).unwrap_or(self.policy.defaults.dedupe_window_ms)
    }

    /// Whether a content or an answer may be put: a full disk accepts only removals and changes of a message's life.
    pub(super) fn takes_puts(&self) -> bool {
        !matches!(self.room, Capacity::SettleOnly | Capacity::RemoveOnly)
    }
}
