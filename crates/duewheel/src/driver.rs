//! The driver of one shard: inbox, clock, store and engine, in one plain function.
//!
//! ```text
//!   submissions ──▶ engine.handle ──▶ effects ──▶ store.append (one group) ──▶ store.sync
//!                                        │                                        │
//!                                        └── answers, held back until durable ◀───┘
//! ```
//!
//! [`Driver::step`] does one round and never waits. Threads exist only around it ([`crate::shard`]), so that a
//! simulation can step the real thing.

use std::collections::VecDeque;
use std::mem;

use duewheel_core::engine::{
    After, Config, Effect, Effects, Engine, GeometryError, Input, Notice, Op, Reply, Reserved,
};
use duewheel_core::id::{Lsn, ReplyTo};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::policy::Policy;
use duewheel_core::record::{ClockPair, Group, Record};
use duewheel_core::store::{Found, Level, Load, Lookups, Progress, Recovered, Room, Store, StoreError};
use duewheel_core::time::{EngineMs, Now};
use tokio::sync::oneshot;

use crate::error::{CallError, Outcome};
use crate::inbox::{Answers, Submission};

/// Log lines about queues in a process's life.
const MAX_SAID: usize = 200;

/// Drives one shard. Owned by one thread, or by a simulation.
#[derive(Debug)]
pub struct Driver<S> {
    engine: Engine,
    store: S,
    policy: Policy,
    room: Room,
    effects: Effects,
    records: Vec<Record>,
    record_bytes: usize,
    /// Position before the first of `records`.
    appended: Lsn,
    asked: Lsn,
    open: Calls,
    /// Answers whose conditions only grow: first in, first out.
    held: VecDeque<Held>,
    /// Answers with grants: they wait for older positions, and leave as soon as they can.
    held_grants: Vec<Held>,
    /// To be asked for once everything decided is appended.
    loads: Vec<Load>,
    lookups: Lookups,
    /// Operations of our own, to be decided in the next step.
    own: Vec<Op>,
    last_append: EngineMs,
    said: Vec<Notice>,
}

/// An answer that waits for the store.
#[derive(Debug)]
struct Held {
    to: ReplyTo,
    reply: Reply,
    after: After,
}

/// Submissions whose answers have not all left.
#[derive(Debug, Default)]
struct Calls {
    calls: Vec<Option<OpenCall>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct OpenCall {
    answers: Vec<Option<Result<Reply, CallError>>>,
    missing: usize,
    to: Option<oneshot::Sender<Answers>>,
}

impl<S: Store> Driver<S> {
    /// A driver for a store that was just opened, and what [`Store::recovered`] gave; `now` must count the downtime
    /// (see [`ClockPair::engine_at`]). It takes requests once [`Driver::is_open`].
    ///
    /// # Errors
    /// When the policy asks for a ring that cannot be.
    pub fn new(store: S, recovered: Recovered, config: Config, now: Now) -> Result<Self, GeometryError> {
        let policy = config.policy.clone();
        let appended = Lsn(recovered.next_lsn.0 - 1);
        let mut engine = Engine::new(config, recovered, now)?;
        let mut effects = Effects::new();
        engine.start(&mut effects);
        Ok(Driver {
            engine,
            store,
            policy,
            room: Room::Enough,
            effects,
            records: Vec::new(),
            record_bytes: 0,
            appended,
            asked: appended,
            open: Calls::default(),
            held: VecDeque::new(),
            held_grants: Vec::new(),
            loads: Vec::new(),
            lookups: Lookups::default(),
            own: Vec::new(),
            last_append: now.engine,
            said: Vec::new(),
        })
    }

    /// Whether everything that must be in memory has been loaded.
    pub fn is_open(&self) -> bool {
        self.engine.is_open()
    }

    /// Takes what the store has finished, lets time do its work, decides upon `submissions`, appends what was
    /// decided as one group (or several, when it is much), asks for a sync and lets answers go whose condition holds.
    ///
    /// # Errors
    /// After an error the store is poisoned: drop the driver with [`Driver::fail`] and open the store again. What is left in
    /// `submissions` was not decided.
    pub fn step(&mut self, now: Now, submissions: &mut Vec<Submission>) -> Result<(), StoreError> {
        self.take_from_store(now)?;
        self.append_batch(now)?;
        // One caller, and nobody waits: it can be no faster than its sync, and nobody is kept from anything by it.
        let alone = submissions.len() == 1 && !self.is_waiting_for_store();
        submissions.reverse();
        while self.is_open() {
            self.round(now, submissions)?;
            if submissions.is_empty() {
                break;
            }
        }
        submissions.reverse();
        if self.asked < self.appended {
            if alone { self.store.sync_here() } else { self.store.sync() }?;
            self.asked = self.appended;
        } else if self.is_open() {
            self.store.idle(clock(now))?;
        }
        self.answer()
    }

    /// One batch: what it needs is looked up in one call, then decided, then appended. Takes from the end of `submissions`.
    fn round(&mut self, now: Now, submissions: &mut Vec<Submission>) -> Result<(), StoreError> {
        let mut batch: Vec<(ReplyTo, Op)> = Vec::new();
        for op in mem::take(&mut self.own) {
            batch.push((ReplyTo(self.open.insert(1, None)), op));
        }
        // What has not been taken when the store fails stays with the caller, to be refused.
        while let Some(next) = submissions.last() {
            if !batch.is_empty() && batch.len() + next.ops.len() > self.policy.max_batch_ops {
                break;
            }
            let Some(Submission { ops, answer, .. }) = submissions.pop() else { break };
            let first = self.open.insert(ops.len(), Some(answer));
            batch.extend((first..).map(ReplyTo).zip(ops));
        }
        self.look_up(&batch)?;
        self.engine.handle_timeout(now, &mut self.effects);
        self.flush_if_large(now)?;
        for (to, op) in batch {
            self.engine.handle(now, Input::Request { to, op }, &mut self.effects);
            self.flush_if_large(now)?;
        }
        self.engine.handle_timeout(now, &mut self.effects);
        self.append_batch(now)
    }

    /// Appends what was decided: before the next look-up, which must find it.
    fn append_batch(&mut self, now: Now) -> Result<(), StoreError> {
        self.carry_out();
        self.append(now)?;
        // After the append, so that a page shows everything decided before it was asked for.
        for load in mem::take(&mut self.loads) {
            self.store.load(load)?;
        }
        self.engine.end_batch();
        Ok(())
    }

    /// Finds what the engine must know of messages that are not in its memory.
    fn look_up(&mut self, batch: &[(ReplyTo, Op)]) -> Result<(), StoreError> {
        self.engine.look_up(None, &mut self.lookups);
        for (_, op) in batch {
            self.engine.look_up(Some(op), &mut self.lookups);
        }
        self.find()?;
        // These ask for the key of what was found.
        for (_, op) in batch.iter().filter(|(_, op)| op.may_revive()) {
            self.engine.look_up(Some(op), &mut self.lookups);
        }
        self.find()
    }

    fn find(&mut self) -> Result<(), StoreError> {
        if !self.lookups.is_empty() {
            let mut found = Found::default();
            self.store.find_many(&self.lookups, &mut found)?;
            self.engine.adopt(found);
            self.lookups.ids.clear();
            self.lookups.keys.clear();
            self.lookups.answers.clear();
        }
        Ok(())
    }

    /// Lets answers go whose condition holds by now, and does nothing else.
    ///
    /// # Errors
    /// As [`Driver::step`].
    pub fn answer(&mut self) -> Result<(), StoreError> {
        let progress = self.store.progress()?;
        self.release(progress);
        Ok(())
    }

    /// When to step again at the latest, if nothing comes in before.
    pub fn next_wakeup(&self, now: Now) -> Option<EngineMs> {
        if !self.own.is_empty() {
            return Some(now.engine);
        }
        if !self.is_open() {
            return None;
        }
        // The store notes its durable position a little after the last append.
        let noted = EngineMs(self.last_append.0.saturating_add(110));
        let note = (noted > now.engine && self.appended > Lsn(0)).then_some(noted);
        [self.engine.next_wakeup(), note].into_iter().flatten().min()
    }

    /// Whether the store is behind with its work, so that new messages would be refused.
    pub fn is_busy(&mut self, now: Now) -> bool {
        self.look_at_room(now);
        self.room == Room::Busy
    }

    /// Whether an answer waits for the store: until something is durable, or for a page.
    pub fn is_waiting_for_store(&self) -> bool {
        !self.held.is_empty() || !self.held_grants.is_empty() || self.engine.has_questions()
    }

    /// Whether so many answers wait that no more requests should be taken.
    pub fn is_full(&self) -> bool {
        self.held.len() + self.held_grants.len() >= self.policy.max_pending_replies
    }

    /// Ends every waiting reserve with an empty answer.
    pub fn end_waits(&mut self) {
        self.engine.end_all_waits(&mut self.effects);
    }

    /// Gives the place up: everything appended becomes durable, and all answers leave.
    pub fn close(mut self, now: Now) -> Result<(), StoreError> {
        self.carry_out();
        let closed = self.append(now).and_then(|()| self.store.close(clock(now)));
        match closed {
            Ok(()) => {
                let all = self.appended;
                self.release(Progress { written: all, durable: all });
                Ok(())
            }
            Err(error) => {
                self.fail(&error);
                Err(error)
            }
        }
    }

    /// The store failed: answers that have not left are unknown, never failed.
    pub fn fail(mut self, error: &StoreError) {
        if let Some(first) = error.nothing_from() {
            self.refuse_from(first, error);
        }
        let unknown = CallError::Store { error: error.clone(), outcome: Outcome::Unknown };
        for call in self.open.calls.iter_mut().filter_map(Option::take) {
            let answers =
                call.answers.into_iter().map(|a| a.unwrap_or_else(|| Err(unknown.clone()))).collect();
            if let Some(to) = call.to {
                // Nobody there any more: nothing to tell.
                let _ = to.send(answers);
            }
        }
    }

    /// Refuses the operations whose records begin at this position or behind it: the store knows that they were not
    /// applied.
    fn refuse_from(&mut self, first: Lsn, error: &StoreError) {
        let not_applied = CallError::Store { error: error.clone(), outcome: Outcome::NotApplied };
        let held = mem::take(&mut self.held).into_iter().chain(mem::take(&mut self.held_grants));
        for held in held {
            let last = held.after.durable.max(held.after.written);
            if last >= first && is_in_one_group(&held.reply) {
                self.open.refuse(held.to, &not_applied);
            }
        }
    }

    /// The store, for figures and for tests.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The engine, for tests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn look_at_room(&mut self, now: Now) {
        let room = self.store.room();
        if room != self.room {
            self.room = room;
            self.engine.handle(now, Input::Room(room), &mut self.effects);
        }
    }

    fn take_from_store(&mut self, now: Now) -> Result<(), StoreError> {
        self.look_at_room(now);
        while let Some(loaded) = self.store.loaded() {
            self.engine.handle(now, Input::Loaded(loaded?), &mut self.effects);
        }
        Ok(())
    }

    /// Groups are bounded. They are cut between operations, so that what one operation decides stays together.
    fn flush_if_large(&mut self, now: Now) -> Result<(), StoreError> {
        if self.effects.len() < 1_000 {
            return Ok(());
        }
        self.carry_out();
        if self.records.len() >= self.policy.max_group_records
            || self.record_bytes >= self.policy.max_group_bytes
        {
            self.append(now)?;
        }
        Ok(())
    }

    /// Sorts effects: records to the group, answers to those held back, loads to the store.
    fn carry_out(&mut self) {
        let mut effects = mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Append(record) => {
                    self.record_bytes += weight(&record);
                    self.records.push(record);
                }
                Effect::Respond { to, reply, after } => {
                    let held = Held { to, reply, after };
                    if after.written > Lsn(0) {
                        self.held_grants.push(held)
                    } else {
                        self.held.push_back(held)
                    }
                }
                Effect::Load(load) => self.loads.push(load),
                Effect::Notice(notice) => self.say(notice),
            }
        }
        self.effects = effects;
    }

    /// Tells a person, once a queue: queues come and go, and a log line for each round helps nobody.
    fn say(&mut self, notice: Notice) {
        if self.said.len() >= MAX_SAID || self.said.contains(&notice) {
            return;
        }
        match &notice {
            Notice::Unattended(queue) => {
                tracing::warn!(%queue, "a message is ready, and nobody has reserved from its queue; it is kept");
            }
            Notice::Died(queue) => {
                tracing::warn!(%queue, "a message died: it failed as often as it may, or was buried; it is kept");
            }
        }
        self.said.push(notice);
    }

    fn append(&mut self, now: Now) -> Result<(), StoreError> {
        if self.records.is_empty() {
            return Ok(());
        }
        let group =
            Group { first: self.appended.next(), clock: clock(now), records: mem::take(&mut self.records) };
        self.store.append(&group)?;
        self.appended = group.last();
        self.last_append = now.engine;
        self.record_bytes = 0;
        self.records = group.records;
        self.records.clear();
        Ok(())
    }

    /// Lets answers go whose condition holds.
    fn release(&mut self, progress: Progress) {
        let durable = match self.store.level() {
            Level::Memory | Level::Buffered => progress.written,
            _ if mutant::is(Mutant::AckBeforeSync) => progress.written,
            Level::Fsync | Level::Quorum | Level::BestEffortReplicated => progress.durable,
        };
        let holds = |after: After| after.durable <= durable && after.written <= progress.written;
        while self.held.front().is_some_and(|held| holds(held.after)) {
            if let Some(held) = self.held.pop_front() {
                self.open.answer(held.to, held.reply, &mut self.own);
            }
        }
        let grants = mem::take(&mut self.held_grants);
        for held in grants {
            if holds(held.after) {
                self.open.answer(held.to, held.reply, &mut self.own);
            } else {
                self.held_grants.push(held);
            }
        }
    }
}

/// An answer's address: the call in the upper half, the operation in the lower.
const CALL_SHIFT: u32 = 32;

impl Calls {
    /// Makes room for a call; returns the address of its first answer.
    fn insert(&mut self, ops: usize, to: Option<oneshot::Sender<Answers>>) -> u64 {
        if ops == 0 {
            if let Some(to) = to {
                let _ = to.send(Vec::new());
            }
            return 0;
        }
        let call = OpenCall { answers: (0..ops).map(|_| None).collect(), missing: ops, to };
        let index = match self.free.pop() {
            Some(index) => {
                self.calls[index as usize] = Some(call);
                index
            }
            None => {
                self.calls.push(Some(call));
                u32::try_from(self.calls.len() - 1).unwrap_or(u32::MAX)
            }
        };
        u64::from(index) << CALL_SHIFT
    }

    /// Puts an error in the place of one answer; the call is sent with the others.
    fn refuse(&mut self, to: ReplyTo, error: &CallError) {
        let index = usize::try_from(to.0 >> CALL_SHIFT).unwrap_or(usize::MAX);
        let part = usize::try_from(to.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let Some(Some(call)) = self.calls.get_mut(index) else { return };
        if let Some(answer) = call.answers.get_mut(part)
            && answer.is_none()
        {
            *answer = Some(Err(error.clone()));
        }
    }

    /// Gives one answer; sends all of a call when it was the last. Grants that nobody receives are to be taken back.
    fn answer(&mut self, to: ReplyTo, reply: Reply, own: &mut Vec<Op>) {
        let index = usize::try_from(to.0 >> CALL_SHIFT).unwrap_or(usize::MAX);
        let part = usize::try_from(to.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX);
        let Some(slot) = self.calls.get_mut(index) else { return };
        let Some(call) = slot else { return };
        if let Some(answer) = call.answers.get_mut(part)
            && answer.is_none()
        {
            *answer = Some(Ok(reply));
            call.missing -= 1;
        }
        if call.missing > 0 {
            return;
        }
        let Some(call) = slot.take() else { return };
        self.free.push(u32::try_from(index).unwrap_or(u32::MAX));
        let answers = call.answers.into_iter().flatten().collect();
        let unsent = match call.to {
            Some(to) => to.send(answers).err(),
            None => None,
        };
        for answer in unsent.into_iter().flatten() {
            if let Some(op) = take_back(&answer) {
                own.push(op);
            }
        }
    }
}

/// Whether all records of an operation with this answer are in one group. The others go on over several steps, and a
/// part may be applied.
fn is_in_one_group(reply: &Reply) -> bool {
    match reply {
        Reply::Count(_) | Reply::Done => false,
        Reply::Enqueue(_)
        | Reply::Reserve(_)
        | Reply::ReserveOne(_)
        | Reply::Settle(_)
        | Reply::Extend(_)
        | Reply::Change(_)
        | Reply::View(_)
        | Reply::Page(_)
        | Reply::Queues(_)
        | Reply::Configure(_)
        | Reply::Histogram(_)
        | Reply::Wheel(_)
        | Reply::Stats(_)
        | Reply::Deadline(_)
        | Reply::NextDue(_) => true,
    }
}

/// Undoes an answer that never reached anybody.
pub(crate) fn take_back(answer: &Result<Reply, CallError>) -> Option<Op> {
    let leases = match answer {
        Ok(Reply::Reserve(Reserved::Grants(grants))) if !grants.is_empty() => {
            grants.iter().map(|g| (g.message.id, g.token)).collect()
        }
        Ok(Reply::ReserveOne(Ok(grant))) => vec![(grant.message.id, grant.token)],
        Ok(_) | Err(_) => return None,
    };
    Some(Op::Undelivered { leases })
}

fn clock(now: Now) -> ClockPair {
    ClockPair::of(now)
}

/// About how many bytes a record takes; only to bound a group.
fn weight(record: &Record) -> usize {
    match record {
        Record::Put { message, .. } => 64 + message.weight(),
        Record::Changed { life, .. } => 64 + 64 * life.history.len(),
        Record::Purged { keep, .. } => 64 + 8 * keep.len(),
        Record::Granted { .. } | Record::Removed { .. } | Record::Queue { .. } | Record::Deduped(_) => 64,
    }
}
