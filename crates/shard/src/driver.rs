//! The driver of one shard: inbox, clock, store and engine, in one plain function.
//!
//! ```text
//!   submissions ──▶ engine.handle ──▶ effects ──▶ store.append (one group) ──▶ store.sync
//!                                        │                                        │
//!                                        └── answers, held back until durable ◀───┘
//! ```
//!
//! [`Driver::step`] does one round and never waits. Threads exist only around it ([`crate::thread`]), so that a
//! simulation can step the real thing.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use duewheel_core::engine::{
    After, Config, Effect, Effects, Engine, GeometryError, GivenUp, Input, Op, Quotas, RecordedCounts, Reply,
};
use duewheel_core::id::{Lsn, ReplyTo};
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::name::QueueName;
use duewheel_core::policy::Policy;
use duewheel_core::record::{ClockPair, Group, Record};
use duewheel_core::store::{
    Capacity, ErrorKind, FOUND_AHEAD, Level, Lookups, Progress, Recovered, Store, StoreArrival, StoreError,
    StoreRequest, StoreTerms,
};
use duewheel_core::time::{EngineMs, Now};

mod calls;
mod looking_up;
mod notices;
mod parked;

use self::calls::{CallNumber, Calls, Confirmed, RefusalScope, Settling, is_of_one_group};
pub use self::calls::{Leftover, take_back};
pub(crate) use self::looking_up::UNSYNCED_MS;
use self::notices::Notices;
use self::parked::Parked;
use crate::error::{CallError, Outcome};
use crate::fairness::Pacing;
use crate::figures::{ANSWERS_FORGOTTEN, Figures};
use crate::inbox::{Submission, WhenBusy};
use crate::shared::DriverWork;

/// Drives one shard. Owned by one thread, or by a simulation.
#[derive(Debug)]
pub struct Driver<S> {
    engine: Engine,
    store: S,
    terms: StoreTerms,
    policy: Policy,
    room: Capacity,
    /// [`Store::room_error`], as of the last time that the store had no room for new messages.
    room_error: Option<StoreError>,
    effects: Effects,
    records: Vec<Record>,
    record_bytes: usize,
    /// How many of `effects` have been counted, and the size of their records.
    weighed: (usize, usize),
    /// Whether the store has reported its free room since the last append.
    room_known: bool,
    /// More has arrived from the store than one step accepts.
    more_arrived: bool,
    /// The position before the first of `records`.
    appended: Lsn,
    asked: Lsn,
    open: Calls,
    /// Answers whose conditions only grow, in order: the first one is sent first.
    held: VecDeque<PendingReply>,
    /// Answers with grants: they wait for earlier positions, and are sent as soon as possible.
    held_grants: Vec<PendingReply>,
    /// Pages to request once everything decided has been appended.
    requests: Vec<StoreRequest>,
    lookups: Lookups,
    /// Operations that were taken but not decided yet, because the messages they name exceed the size of one look-up.
    undecided: VecDeque<(ReplyTo, Op)>,
    /// Calls that wait for a slow medium.
    parked: Parked,
    /// How many of `undecided` to look up next.
    looks: usize,
    /// The size of the bodies in waiting answers, in bytes.
    held_bytes: usize,
    /// Operations of the driver itself, to be decided in the next step.
    own: Vec<Op>,
    /// New messages that wait for the rate limit of their tenant's quota.
    pacing: Pacing,
    last_append: EngineMs,
    /// Since when records lie unsynced that no answer waits for.
    unsynced_since: Option<EngineMs>,
    notices: Notices,
    /// The level reached by all groups reported since an answer was last sent.
    untold: Option<Level>,
    /// The level of the most recent answers.
    reached: Level,
    /// The counts for figures.
    confirmed: Confirmed,
    settling: Settling,
    /// For [`DriverWork`].
    decided: u64,
    confirmations: u64,
    fetched: u64,
    /// The positions of the last report.
    reported: (Lsn, Lsn),
}

/// An answer that waits for the store.
#[derive(Debug)]
struct PendingReply {
    to: ReplyTo,
    reply: Reply,
    after: After,
}

impl<S: Store> Driver<S> {
    /// A driver for a store that was just opened, and what [`Store::recovered`] gave; `now` must count the downtime
    /// (see [`ClockPair::engine_at`]). It takes requests once [`Driver::is_open`].
    ///
    /// # Errors
    /// When the policy asks for a ring that cannot be.
    pub fn new(
        mut store: S,
        recovered: Recovered,
        mut config: Config,
        now: Now,
    ) -> Result<Self, GeometryError> {
        let terms = store.terms();
        // All records of one step of the engine go into one group.
        let step = &mut config.policy.max_step_bytes;
        *step = match mutant::is(Mutant::GroupTooLarge) {
            true => usize::MAX,
            false => (*step).min(terms.group_bytes / 4),
        };
        let policy = config.policy.clone();
        let appended = Lsn(recovered.next_lsn.0 - 1);
        // Before anything is appended: what one would reach now.
        let reached = store.progress().map_or(terms.level, |progress| progress.level);
        let mut engine = Engine::new(config, recovered, now)?;
        let mut effects = Effects::new();
        engine.start(&mut effects);
        Ok(Driver {
            engine,
            store,
            terms,
            room: Capacity::Enough,
            room_error: None,
            pacing: Pacing::new(&policy),
            policy,
            effects,
            records: Vec::new(),
            record_bytes: 0,
            weighed: (0, 0),
            room_known: false,
            more_arrived: false,
            appended,
            asked: appended,
            open: Calls::default(),
            held: VecDeque::new(),
            held_grants: Vec::new(),
            requests: Vec::new(),
            lookups: Lookups::default(),
            undecided: VecDeque::new(),
            parked: Parked::default(),
            looks: usize::MAX,
            held_bytes: 0,
            own: Vec::new(),
            last_append: now.engine,
            unsynced_since: None,
            notices: Notices::default(),
            untold: None,
            reached,
            confirmed: Confirmed::default(),
            settling: Settling::default(),
            decided: 0,
            confirmations: 0,
            fetched: 0,
            reported: (appended, appended),
        })
    }

    /// Takes what the driver before has left: it is decided first, in a group of its own. Call it before the first
    /// step.
    pub fn take_over(&mut self, remains: Leftover) {
        self.open = remains.calls;
        self.undecided = remains.again;
    }

    /// Whether everything that must be in memory has been loaded.
    pub fn is_open(&self) -> bool {
        self.engine.is_open()
    }

    /// Takes what the store has finished, lets time do its work, decides upon one batch of `submissions`, appends what was
    /// decided as one group (or several, when it is much), asks for a sync and lets answers go whose condition holds.
    ///
    /// Entries left in `submissions` were not accepted: the batch is full, or too many answers wait
    /// ([`Driver::is_full`]). Step again with them, with a new reading of the clock.
    ///
    /// # Errors
    /// After an error the store is poisoned: drop the driver with [`Driver::fail`] and open the store again. Entries
    /// left in `submissions` were not decided.
    pub fn step(&mut self, now: Now, submissions: &mut Vec<Submission>) -> Result<(), StoreError> {
        let before = self.appended;
        self.take_from_store(now)?;
        self.append_batch(now)?;
        let alone = submissions.len() == 1 && !self.is_waiting_for_store();
        if self.is_open() && self.undecided.is_empty() {
            submissions.reverse();
            let decided = self.round(now, submissions);
            submissions.reverse();
            decided?;
        } else if self.is_open() {
            // The rest of a batch comes first, so none of them is taken.
            self.round(now, &mut Vec::new())?;
        }
        self.pacing.plan(now, &mut self.engine);
        self.ask_for_sync(now, alone, before)?;
        self.notices.look(now.engine, |queue| self.engine.unattended(now, queue));
        self.answer()
    }

    /// Processes one batch, taken from the end of `submissions`: looks up everything it needs in one call, decides it
    /// and appends the records.
    fn round(&mut self, now: Now, submissions: &mut Vec<Submission>) -> Result<(), StoreError> {
        // The rest of the previous batch goes first: rates were looked up for all of it.
        let is_new = self.undecided.is_empty();
        if is_new {
            self.take_parked();
        }
        for op in mem::take(&mut self.own) {
            self.undecided.push_back((ReplyTo(self.open.insert(1, None)), op));
        }
        if is_new {
            self.pacing.begin(now, &mut self.engine, self.policy.max_batch_ops, &mut self.undecided);
        }
        // If the store fails, submissions that were not taken stay with the caller, to be refused.
        let mut bytes = 0;
        while is_new && let Some(next) = submissions.last() {
            bytes += next.ops.iter().map(Op::weight).sum::<usize>();
            let much = self.undecided.len() + next.ops.len() > self.policy.max_batch_ops
                || bytes > self.policy.max_batch_bytes;
            if self.is_full() || (much && !self.undecided.is_empty()) {
                break;
            }
            let Some(Submission { ops, answer, patience, .. }) = submissions.pop() else { break };
            let first = self.open.insert(ops.len(), Some(answer));
            let ops = (first..).map(ReplyTo).zip(ops);
            if !self.engine.has_rates() {
                self.undecided.extend(ops);
                continue;
            }
            for (to, op) in ops {
                let paced = patience == WhenBusy::Paced;
                self.pacing.add(now, &mut self.engine, to, op, paced, &mut self.undecided);
            }
        }
        let looked_up = self.look_up()?;
        self.know_room(now);
        self.give_up_many();
        self.engine.handle_timeout(now, &mut self.effects);
        self.flush_if_large(now)?;
        let before = (self.engine.last_lsn(), self.engine.decided_bytes());
        for decided in 0..looked_up {
            if decided > 0 && self.is_step_done(before) {
                // Callers that wait for an answer have it first. The next ones are about as large.
                self.looks = decided.max(FOUND_AHEAD) * 2;
                break;
            }
            let Some((to, op)) = self.undecided.pop_front() else { break };
            self.decided += 1;
            // A group is appended on the store's word of what room there is, and each word is good for one.
            self.know_room(now);
            if self.room == Capacity::RemoveOnly && op.operation().grows {
                self.tell_given_up(GivenUp::Untouched(to), &self.no_room());
                continue;
            }
            let copy = Settling::copy(&op);
            self.engine.handle(now, Input::Request { to, op }, &mut self.effects);
            if let Some(copy) = copy {
                self.settling.decided(self.engine.last_lsn(), to, copy);
            }
            self.flush_if_large(now)?;
        }
        self.know_room(now);
        self.give_up_many();
        self.engine.handle_timeout(now, &mut self.effects);
        self.append_batch(now)
    }

    /// Whether the operations of this step have produced as many records, or as many bytes of them, as a step should.
    fn is_step_done(&self, (lsn, bytes): (Lsn, u64)) -> bool {
        self.engine.last_lsn().0 - lsn.0 >= self.policy.max_step as u64
            || self.engine.decided_bytes() - bytes >= self.policy.max_step_bytes as u64
    }

    /// Gives up all changes of many messages while the store accepts only removals. Each caller gets the number of
    /// messages that were changed, or the error if none was.
    fn give_up_many(&mut self) {
        while self.room == Capacity::RemoveOnly
            && let Some(given_up) = self.engine.give_up_many(&mut self.effects)
        {
            self.tell_given_up(given_up, &self.no_room());
        }
    }

    /// Tells the caller why nothing was done.
    fn tell_given_up(&mut self, given_up: GivenUp, error: &StoreError) {
        match given_up {
            GivenUp::Untouched(to) => {
                let refusal = CallError::Store { error: error.clone(), outcome: Outcome::NotApplied };
                self.open.answer(to, Err(refusal), &mut self.own);
            }
            GivenUp::Told => {}
        }
    }

    /// Why the store takes no more than removals, or why it has no room though the disk is not full.
    fn no_room(&self) -> StoreError {
        let full = "the disk is full, and what waits to be written has reached its limit: ack, cancel or purge messages, or free disk space";
        self.room_error.clone().unwrap_or_else(|| StoreError::new(ErrorKind::Unavailable, full))
    }

    /// Appends what was decided. This must precede the next look-up, which has to find it.
    fn append_batch(&mut self, now: Now) -> Result<(), StoreError> {
        self.carry_out();
        self.append(now)?;
        // After the append, so that a page shows everything decided before it was asked for.
        for request in mem::take(&mut self.requests) {
            self.store.ask(request)?;
        }
        self.engine.end_batch();
        Ok(())
    }

    /// Lets answers go whose condition holds by now, and does nothing else.
    ///
    /// # Errors
    /// As [`Driver::step`].
    pub fn answer(&mut self) -> Result<(), StoreError> {
        let progress = self.progress()?;
        self.release(progress);
        Ok(())
    }

    /// The level that the store has reached. A caller that does not send answers because of it stores the level for
    /// those sent next.
    fn progress(&mut self) -> Result<Progress, StoreError> {
        let progress = self.store.progress()?;
        Ok(self.note(progress))
    }

    fn note(&mut self, progress: Progress) -> Progress {
        let level = self.untold.map_or(progress.level, |untold| untold.and(progress.level));
        self.untold = Some(level);
        let reported = (progress.written, progress.durable);
        self.confirmations += u64::from(reported != self.reported);
        self.reported = reported;
        let sure = self.sure(progress);
        self.confirmed.report(sure);
        self.settling.report(sure);
        Progress { level, ..progress }
    }

    /// The level of the most recent answers; before the first one, the level that the store expects to reach.
    pub fn reached(&self) -> Level {
        self.reached
    }

    /// When to step again at the latest if no submission arrives before.
    pub fn next_wakeup(&self, now: Now) -> Option<EngineMs> {
        if self.more_arrived || !self.own.is_empty() || !self.undecided.is_empty() || self.parked.has_ready()
        {
            return Some(now.engine);
        }
        if !self.is_open() {
            return None;
        }
        // The store notes its durable position a little after the last append.
        let noted = EngineMs(self.last_append.0.saturating_add(110));
        let note = (noted > now.engine && self.appended > Lsn(0)).then_some(noted);
        [self.engine.next_wakeup(), note, self.pacing.next_wakeup()].into_iter().flatten().min()
    }

    /// When time next changes a message, or lets a paced one in.
    pub(crate) fn next_event(&self) -> Option<EngineMs> {
        [self.engine.next_event(), self.pacing.next_wakeup()].into_iter().flatten().min()
    }

    /// Whether the store is behind, so that new messages would be refused.
    pub fn is_busy(&mut self, now: Now) -> bool {
        self.look_at_room(now);
        self.room == Capacity::Busy
    }

    /// Whether an answer waits for the store (for durability, a page, or a look-up), or a grant that reached nobody is
    /// taken back in the next step.
    pub fn is_waiting_for_store(&self) -> bool {
        let held = !self.held.is_empty() || !self.held_grants.is_empty() || !self.own.is_empty();
        held || !self.undecided.is_empty() || !self.parked.is_empty() || self.engine.has_questions()
    }

    /// Returns the work done so far, and the kinds of work that wait.
    pub(crate) fn work(&self) -> DriverWork {
        let is_held = !self.held.is_empty() || !self.held_grants.is_empty();
        DriverWork {
            decided: self.decided,
            has_undecided: !self.undecided.is_empty() || self.parked.has_ready(),
            confirmed: self.confirmations,
            awaits_position: is_held,
            fetched: self.fetched,
            // A parked call that cannot come back waits for the medium, or for one that does.
            awaits_fetch: !self.parked.is_empty(),
        }
    }

    /// Whether so many or such large answers are waiting that no more requests should be accepted.
    pub fn is_full(&self) -> bool {
        self.held.len() + self.held_grants.len() + self.parked.ops() >= self.policy.max_pending_replies
            || self.held_bytes >= self.policy.max_pending_reply_bytes
    }

    /// Ends every waiting reserve with an empty answer.
    pub fn end_waits(&mut self) {
        self.pacing.end_waits();
        self.engine.end_all_waits(&mut self.effects);
    }

    /// Closes the driver: everything appended becomes durable, and all answers are sent. Grants that have reached nobody
    /// by now are taken back.
    ///
    /// # Errors
    /// The store failed to append, or to close. Answers that have not been sent then say that their outcome is unknown,
    /// or that the operation was not applied.
    pub fn close(mut self, now: Now) -> Result<(), StoreError> {
        let undecided =
            mem::take(&mut self.undecided).into_iter().chain(self.parked.drain()).map(|(to, _)| to);
        for to in self.pacing.drain().chain(undecided) {
            self.open.answer(to, Err(CallError::Draining), &mut self.own);
        }
        self.carry_out();
        let closed = self.append_last(now).and_then(|()| self.store.close(clock(now)));
        match closed {
            Ok(progress) => {
                let all = self.appended;
                let progress = self.note(progress);
                self.release(Progress { written: all, durable: all, ..progress });
                Ok(())
            }
            Err(error) => {
                let refusal = CallError::Store { error: error.clone(), outcome: Outcome::NotApplied };
                drop(self.fail(&error).refuse(&refusal));
                Err(error)
            }
        }
    }

    /// Appends what was decided, and what takes back the grants that reach nobody now.
    fn append_last(&mut self, now: Now) -> Result<(), StoreError> {
        self.append(now)?;
        self.answer()?;
        while !self.own.is_empty() {
            self.round(now, &mut Vec::new())?;
            self.answer()?;
        }
        Ok(())
    }

    /// The store failed: answers that have not been sent have an unknown outcome; they are never reported as failed.
    ///
    /// A store without room refuses whole groups, and with new messages what frees room. If it knows that it has applied
    /// nothing of them, operations that end leases or cancel, and all those not decided yet, are left to the next
    /// driver ([`Driver::take_over`]).
    pub fn fail(mut self, error: &StoreError) -> Leftover {
        let (first, counted) = (error.nothing_from(), self.confirmed.counts());
        let scope = if error.kind() == ErrorKind::Full && first.is_some() {
            RefusalScope::NeedsRoom
        } else {
            RefusalScope::Everything
        };
        let not_applied = CallError::Store { error: error.clone(), outcome: Outcome::NotApplied };
        if scope == RefusalScope::NeedsRoom
            && let Some(progress) = error.reached()
        {
            // The owner is sure of its lease, and hears of it with the refusal.
            let progress = self.note(progress);
            self.release(progress);
        }
        let (mut refused, repeated) = first.map(|first| self.refused_from(first)).unwrap_or_default();
        // In the order of arrival, as the next driver has to decide them.
        let mut undecided: Vec<_> =
            mem::take(&mut self.undecided).into_iter().chain(self.parked.drain()).collect();
        undecided.sort_by_key(|(to, _)| self.open.arrival(*to));
        let mut again = VecDeque::new();
        if scope == RefusalScope::NeedsRoom {
            let settling = mem::take(&mut self.settling);
            again = settling.into_again(|to| refused.remove(&to.0) || repeated.contains(&to.0));
            again.extend(undecided);
        } else {
            refused.extend(undecided.into_iter().map(|(to, _)| to.0));
        }
        refused.extend(self.pacing.drain().map(|to| to.0));
        for to in refused {
            self.open.refuse(ReplyTo(to), &not_applied);
        }
        let unknown = CallError::Store { error: error.clone(), outcome: Outcome::Unknown };
        self.open.fail(&unknown, &again);
        let confirmed = self.confirmed.counts().since(&counted);
        let doubtful = mem::take(&mut self.confirmed).into_doubtful(first);
        Leftover { confirmed, doubtful, calls: self.open, again, scope }
    }

    /// Replaces the quotas.
    pub fn set_quotas(&mut self, now: Now, quotas: Quotas) {
        self.engine.handle(now, Input::Quotas(quotas), &mut self.effects);
        self.pacing.renew();
    }

    /// The index of the quota that applies to a queue.
    pub(crate) fn tenant_of(&mut self, queue: &QueueName) -> Option<usize> {
        self.engine.tenant_of(queue)
    }

    /// The addresses of the operations whose records begin at or after this position, which were not applied, and of those
    /// behind it of which this is not certain.
    fn refused_from(&mut self, first: Lsn) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let held = mem::take(&mut self.held).into_iter().chain(mem::take(&mut self.held_grants));
        let behind = held.filter(|held| held.after.durable.max(held.after.written) >= first);
        let (refused, others): (Vec<PendingReply>, Vec<PendingReply>) =
            behind.partition(|held| is_of_one_group(&held.reply));
        let address = |held: PendingReply| held.to.0;
        (refused.into_iter().map(address).collect(), others.into_iter().map(address).collect())
    }

    /// The store, for figures and for tests.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The figures of the engine and of the store. Counts are of what the store has reported.
    pub(crate) fn figures(&mut self, now: Now) -> Figures {
        let quotas = if self.engine.has_quotas() { self.engine.quota_uses(now) } else { Vec::new() };
        let RecordedCounts { totals, lease_expired, lateness, lateness_sum_ms } = self.confirmed.counts();
        let lateness = lateness.to_vec();
        let mut stats = self.engine.stats(now);
        (stats.totals, stats.lease_expired) = (totals, lease_expired);
        (stats.lateness, stats.lateness_sum_ms) = (lateness, lateness_sum_ms);
        let mut store = self.store.figures();
        let (done, expired) = (self.engine.done_counts(), self.engine.expired_counts());
        let answers = self.engine.answer_counts();
        store.extend([
            ("granted_expired_total", expired.late),
            ("died_expired_total", expired.dead),
            ("done_messages", done.kept),
            ("done_bytes", done.bytes),
            ("done_not_kept_total", done.not_kept),
            ("done_given_up_total", done.given_up),
            ("answers", answers.kept),
            ("answer_bytes", answers.bytes),
        ]);
        store.extend(ANSWERS_FORGOTTEN.into_iter().zip(answers.forgotten));
        Figures { stats, quotas, store }
    }

    /// The counts of groups that the store has not reported yet.
    pub(crate) fn unreported(&self) -> RecordedCounts {
        self.engine.recorded_counts().since(&self.confirmed.counts())
    }

    /// The engine, for tests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Asks the store for its room before each group. If the store falls behind within a step there is still room
    /// ([`Capacity::Busy`] concerns its speed): what was taken is decided, and senders are held back from the next step on.
    fn know_room(&mut self, now: Now) {
        if self.room_known {
            return;
        }
        self.room_known = true;
        match self.store.room() {
            Capacity::Busy if self.room == Capacity::Enough => {}
            room => self.take_room(now, room),
        }
    }

    /// Asks the store for its room before a step. A batch that was taken is decided completely, in as many steps as
    /// necessary.
    fn look_at_room(&mut self, now: Now) {
        if !self.undecided.is_empty() {
            self.room_known = false;
            return self.know_room(now);
        }
        self.room_known = true;
        let room = self.store.room();
        self.take_room(now, room);
    }

    fn take_room(&mut self, now: Now, room: Capacity) {
        if matches!(room, Capacity::SettleOnly | Capacity::RemoveOnly) {
            self.room_error = self.store.room_error();
        }
        if room != self.room {
            self.room = room;
            self.engine.handle(now, Input::Room(room), &mut self.effects);
        }
    }

    fn take_from_store(&mut self, now: Now) -> Result<(), StoreError> {
        self.look_at_room(now);
        let mut rows = 0;
        self.more_arrived = false;
        while let Some(arrival) = self.store.arrived() {
            match arrival {
                Ok(StoreArrival::Fetched(ticket)) => {
                    self.fetched += 1;
                    self.parked.fetched(CallNumber(ticket));
                }
                Ok(StoreArrival::Events(page)) => {
                    self.engine.handle(now, Input::Events(page), &mut self.effects)
                }
                Ok(StoreArrival::Loaded(loaded)) => {
                    rows += loaded.rows.len();
                    self.know_room(now);
                    self.engine.handle(now, Input::Loaded(loaded), &mut self.effects);
                    self.flush_if_large(now)?;
                    // A page more may come in: each is as large as a step.
                    if rows >= self.policy.max_step {
                        self.more_arrived = true;
                        break;
                    }
                }
                // A question that waits for the page is given up. For anything else the store reads the page again.
                Err(error) if self.is_open() && self.is_passing(&error) => {
                    if let Some(ticket) = error.page()
                        && let Some(given_up) = self.engine.give_up_page(ticket, &mut self.effects)
                    {
                        self.store.ask(StoreRequest::Forget(ticket))?;
                        self.tell_given_up(given_up, &error);
                    } else {
                        tracing::warn!(%error, "a page could not be read; a page of messages is read again");
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes the group if it has reached its size limit. Groups are split only between operations, which keeps the
    /// records of each together. Including the last operation's records a group stays below the store's limit
    /// ([`StoreTerms::group_bytes`]).
    fn flush_if_large(&mut self, now: Now) -> Result<(), StoreError> {
        let (seen, mut bytes) = self.weighed;
        for effect in &self.effects[seen..] {
            if let Effect::Append(record) = effect {
                bytes += record.weight();
            }
        }
        self.weighed = (self.effects.len(), bytes);
        let most = match mutant::is(Mutant::GroupTooLarge) {
            true => usize::MAX,
            false => self.policy.max_group_bytes.min(self.terms.group_bytes / 4),
        };
        if self.record_bytes + bytes < most && self.effects.len() < 1_000 {
            return Ok(());
        }
        self.carry_out();
        let records = self.policy.max_group_records.min(self.terms.group_records);
        if self.records.len() >= records || self.record_bytes >= most {
            self.append(now)?;
        }
        Ok(())
    }

    /// Distributes effects: records to the group, answers to the held-back ones, loads to the store.
    fn carry_out(&mut self) {
        let mut effects = mem::take(&mut self.effects);
        self.weighed = (0, 0);
        for effect in effects.drain(..) {
            match effect {
                Effect::Append(record) => {
                    self.record_bytes += record.weight();
                    self.records.push(record);
                }
                Effect::Respond { to, reply, .. } if reply.is_disk_full() && self.room_error.is_some() => {
                    self.tell_given_up(GivenUp::Untouched(to), &self.no_room());
                }
                Effect::Respond { to, reply, after } => {
                    self.held_bytes += reply.weight();
                    let held = PendingReply { to, reply, after };
                    if after.written > Lsn(0) {
                        self.held_grants.push(held)
                    } else {
                        self.held.push_back(held)
                    }
                }
                Effect::Load(load) => self.requests.push(StoreRequest::Load(load)),
                Effect::ReadEvents(asked) => self.requests.push(StoreRequest::Events(asked)),
                Effect::Notice(notice) => self.notices.take(notice),
            }
        }
        self.effects = effects;
    }

    fn append(&mut self, now: Now) -> Result<(), StoreError> {
        if self.records.is_empty() {
            return Ok(());
        }
        let group =
            Group { first: self.appended.next(), clock: clock(now), records: mem::take(&mut self.records) };
        self.store.append(&group)?;
        self.appended = group.last();
        self.confirmed.append(self.appended, self.engine.recorded_counts());
        self.last_append = now.engine;
        self.record_bytes = 0;
        self.room_known = false;
        self.records = group.records;
        self.records.clear();
        Ok(())
    }

    /// The position up to which a change is as durable as an answer to it says.
    fn sure(&self, progress: Progress) -> Lsn {
        match self.store.terms().level {
            Level::Memory | Level::Buffered => progress.written,
            _ if mutant::is(Mutant::AckBeforeSync) => progress.written,
            Level::Fsync | Level::Quorum | Level::BestEffortReplicated => progress.durable,
        }
    }

    /// Sends the answers whose condition holds.
    fn release(&mut self, progress: Progress) {
        let durable = self.sure(progress);
        self.untold = None;
        self.reached = progress.level;
        let say = |mut reply: Reply| {
            reply.reached(progress.level);
            Ok(reply)
        };
        let holds = |after: After| after.durable <= durable && after.written <= progress.written;
        while self.held.front().is_some_and(|held| holds(held.after)) {
            if let Some(held) = self.held.pop_front() {
                self.held_bytes -= held.reply.weight();
                self.open.answer(held.to, say(held.reply), &mut self.own);
            }
        }
        let grants = mem::take(&mut self.held_grants);
        for held in grants {
            if holds(held.after) {
                self.held_bytes -= held.reply.weight();
                self.open.answer(held.to, say(held.reply), &mut self.own);
            } else {
                self.held_grants.push(held);
            }
        }
    }
}

fn clock(now: Now) -> ClockPair {
    ClockPair::of(now)
}
