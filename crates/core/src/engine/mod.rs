//! The engine: every decision, as a pure state machine.
//!
//! ```text
//!   Input ──▶ handle(now, input, found, effects) ──▶ Append(record) … Respond{to, reply, after} … Load(page)
//!             handle_timeout(now, effects)
//!             next_wakeup() ──▶ when to call handle_timeout at the latest
//! ```
//!
//! The engine has no clock, no randomness, no I/O and no threads. The same inputs at the same times give the same
//! effects. A driver calls [`Engine::handle_timeout`] before a batch of inputs (what is due becomes ready first) and
//! after it (waiting consumers are served), carries the effects out in order, and sends no answer before its [`After`]
//! holds.
//!
//! The states of a message, and the structure that holds it in memory:
//!
//! ```text
//!   Scheduled ──due──▶ Ready ──grant──▶ Leased ──ack──▶ gone
//!    (wheel)           (queue)   ◀──nack, lease over──┘   │ attempts used up, bury
//!       ▲ postpone, nack with delay                       ▼
//!       └──────────────────────◀──redrive─────────────  Dead
//! ```

mod acts;
mod admin;
mod answers;
mod batch;
mod change;
mod dedupe;
mod done;
mod due_times;
mod effect;
mod enqueue;
mod events;
mod expiry;
mod fresh;
mod gather;
mod history;
mod horizon;
mod input;
mod inspect;
mod limits;
mod load;
mod once;
mod operation;
mod place;
mod points;
mod question;
mod queue;
mod quota;
mod ready;
mod refusal;
mod reply;
mod reserve;
mod row;
mod rows;
mod schedule;
mod settle;
mod timeout;
mod waiters;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

pub use crate::id::Ids;
pub use dedupe::{AnswerCounts, ForgottenFor};
pub use done::DoneCounts;
pub use duewheel_wheel::GeometryError;
pub use effect::{After, Effect, Effects, Notice};
pub use input::{
    Attempt, DedupeId, Edit, Enqueue, Hold, IfExists, InitialState, KeptFor, ListCursor, Past, Proof,
    Reserve, Target, WaiterId, When,
};
pub use operation::{Ask, FromReply, Named, OnLease, Op, Operation, Routing, Typed};
pub use quota::{ANSWERS_PER_MESSAGE, BadQuota, OverQuota, Pace, Quota, QuotaUse, Quotas, Resource};
pub use reply::{
    Answered, Applied, Attended, ChangeRefusal, Counts, EnqueueRefusal, Enqueued, ExpiredCounts, Grant,
    HeldBack, Histogram, KeyHolder, LATENESS_MS, Limit, Outline, Page, QUEUE_LATENESS_MS, QueueLateness,
    QueueView, Rates, RecordedCounts, RefusedPart, Reply, Reserved, SettingsField, SettingsRefusal,
    SettleRefusal, Settled, ShardEvents, Stats, View, WheelView,
};

use crate::act::{Acting, Acts};
use crate::hash_key::HashKey;
use crate::id::{Epoch, LeaseToken, Lsn, MessageId, ReplyTo, SessionId};
use crate::message::{Detail, Died, Kind, Life, PastAttempt, State};
use crate::name::QueueName;
use crate::policy::Policy;
use crate::random::mixed;
use crate::record::{Record, Totals};
use crate::store::{Capacity, EventPage, Loaded, Recovered};
use crate::tally::{DueCounts, Tally};
use crate::time::{EngineMs, Now};

use dedupe::{Acked, AnswerLogs, Dedupe};
use fresh::{Fresh, Unmade};
use horizon::{Horizon, Loading};
use limits::GrantLimiter;
use points::Histories;
pub use question::GivenUp;
use question::{Closing, Following, Gathers, PurgedMessages, Rerank, ToMany};
use queue::{GrantFigures, Queues, ReadyMemory};
use quota::Tenants;
pub use row::{RowOutcome, RowRefusal, SourceRow};
use rows::{QueueIdx, RowIdx, Rows};
use schedule::{Schedule, Withheld};
use waiters::{Matching, Waiters};

/// The configuration of an engine.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// All limits and defaults.
    pub policy: Policy,
    /// Seeds the jitter of backoffs and the hash tables of ids. Any number; a different one for each shard and start is
    /// best.
    pub seed: u64,
    /// The key of the hash tables of names that callers choose: random and secret, except in tests. No decision depends
    /// on it.
    pub hash_key: HashKey,
    /// Treatment at startup of leases that are bound to a connection.
    pub bound: BoundLeases,
    /// The ids that it gives to new messages.
    pub ids: Ids,
    /// The holds of each queue: the result of [`Engine::holds`] of the former engine.
    pub holds: Vec<(QueueName, [u32; 3])>,
}

/// An event that the engine must decide upon.
#[derive(Debug)]
pub enum Input {
    /// A request of a caller.
    Request {
        /// The destination of the answer.
        to: ReplyTo,
        /// The operation.
        op: Op,
    },
    /// A page that [`Effect::Load`] asked for.
    Loaded(Loaded),
    /// Events that [`Effect::ReadEvents`] asked for.
    Events(EventPage),
    /// The store's room has changed.
    Room(Capacity),
    /// New quotas, which replace all former ones.
    Quotas(Quotas),
}

/// Treatment at startup of leases that are bound to a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BoundLeases {
    /// The leases are released: the process is new, and their connections are closed.
    #[default]
    Release,
    /// The leases continue: the same process has opened its store again.
    Keep,
}

/// The state machine that takes every decision. See the [module](self).
#[derive(Debug)]
pub struct Engine {
    policy: Policy,
    seed: u64,
    bound_leases: BoundLeases,
    epoch: Epoch,
    /// Position of the last record decided.
    last: Lsn,
    next_id: u64,
    ids: Ids,
    tokens: u64,
    /// The time of the present step. Engine time is the greatest seen: it never goes back.
    now: Now,
    /// The effects of the present step.
    fx: Effects,
    rows: Rows,
    queues: Queues,
    tenants: Tenants,
    schedule: Schedule,
    waiters: Waiters,
    dedupe: Dedupe,
    answers: AnswerLogs,
    acked: Acked,
    /// Leases bound to a connection.
    bound: BTreeSet<(SessionId, EngineMs, MessageId)>,
    /// The lives before those grants that changed more than the number of attempts, while they are leased: for a grant that
    /// reaches no consumer.
    before_grant: BTreeMap<MessageId, Life>,
    matching: Matching,
    /// Timed pauses.
    pauses: BTreeSet<(EngineMs, QueueIdx)>,
    /// Queues whose settings may not outlive them, and that may be empty and unused now.
    leaving: BTreeSet<QueueIdx>,
    /// The last death.
    last_death: Died,
    /// When to check for expired dead messages.
    dead_checks: BTreeSet<(EngineMs, QueueIdx)>,
    graves: Vec<PurgedMessages>,
    /// Due times of scheduled messages in memory, all queues together.
    near_counts: DueCounts,
    /// All unsettled messages, in memory or not.
    tally: Tally,
    done: DoneCounts,
    /// Rows of this batch that belong to the store alone.
    far: Vec<(RowIdx, MessageId)>,
    fresh: Fresh,
    /// Rows in memory that were purged.
    purged_here: u64,
    /// Weight of the messages in the wheel, and of the leased ones.
    near_weight: u64,
    leased_weight: u64,
    /// Weight of a message that a page has brought into the wheel although it overfills it.
    near_surplus: u64,
    ready: ReadyMemory,
    /// How many of the ready messages in memory are urgent.
    urgent: u64,
    /// Approximate bytes of all records decided.
    decided: u64,
    closing: Closing,
    /// Queues whose ready messages are being put into another order.
    reranks: BTreeMap<QueueIdx, Rerank>,
    /// Grants of this step to waiting consumers.
    granted: usize,
    /// The number that [`Engine::work`] returns.
    work: Cell<u64>,
    gathers: Gathers,
    /// Look-ups that this batch needs and that were not made.
    unmade: Unmade,
    /// Waiting reserves whose own wait is over: they wait for a page.
    parked: BTreeSet<u64>,
    room: Capacity,
    horizon: Horizon,
    loading: Loading,
    totals: Totals,
    figures: GrantFigures,
    /// Whether the last step ended at a limit, so that there is more to do at once.
    unfinished: bool,
    following: Following,
    withheld: Withheld,
    acts: Acts,
    /// The act that the present request is part of, until the request is answered.
    acting: Option<Acting>,
    /// The detail of the settlement that is decided, until a record has it.
    detail: Option<Detail>,
    histories: Histories,
}

impl Engine {
    /// An engine that continues from the state of the store. Call [`Engine::start`] next.
    ///
    /// # Errors
    /// [`duewheel_wheel::GeometryError`] when the ring of `policy` is invalid.
    pub fn new(config: Config, recovered: Recovered, now: Now) -> Result<Self, GeometryError> {
        let Config { policy, seed, hash_key, bound, ids, holds } = config;
        let mut queues = Queues::new(hash_key.derive(b"queues"), policy.max_queues);
        let mut pauses = BTreeSet::new();
        let mut leaving = BTreeSet::new();
        let mut dead_checks = BTreeSet::new();
        let mut tally = Tally::with_due(recovered.due);
        let mut done = DoneCounts::default();
        let mut acts = 0;
        let mut answers = Vec::new();
        let mut points = 0;
        for row in recovered.queues {
            if !row.answers.is_empty() {
                answers.push((row.name.clone(), row.answers.clone()));
            }
            if row.is_over() {
                continue;
            }
            let idx = queues.find_or_make(&row.name);
            let queue = queues.get_mut(idx);
            queue.limiter = GrantLimiter::recovered(row.settings.limits, ids, now);
            queue.settings = row.settings;
            queue.pause = row.pause;
            queue.is_charged = queue.is_configured();
            queue.totals = row.totals;
            if queue.is_done {
                done.add(&row.tally, row.name.is_of_act());
            } else {
                tally.add_parts(&row.tally);
            }
            let is_history = queue.name.is_history();
            points += if is_history { row.tally.count() } else { 0 };
            let ends = queue.is_done || is_history || queue.settings.dead_ttl_ms.is_some();
            if ends && row.tally.part(Kind::Dead).count > 0 {
                queue.dead_check = Some(now.engine);
                dead_checks.insert((now.engine, idx));
            }
            if row.name.is_of_acts() {
                acts = row.tally.count();
            }
            queue.tally = row.tally;
            if let crate::record::Pause::Until { end, .. } = row.pause {
                pauses.insert((end, idx));
            }
            if queue.may_leave() {
                leaving.insert(idx);
            }
        }
        for (name, holds) in holds {
            let idx = queues.find_or_make(&name);
            queues.get_mut(idx).holds = holds;
            leaving.remove(&idx);
        }
        let dedupe = Dedupe::new(hash_key.derive(b"answers"));
        let first_id = ids.at_least(recovered.next_id);
        let withheld = Withheld::new(recovered.clock.map(|clock| clock.wall), now, first_id);
        let mut engine = Engine {
            schedule: Schedule::new(&policy, now)?,
            rows: Rows::new(seed, hash_key.derive(b"keys")),
            seed,
            bound_leases: bound,
            epoch: recovered.epoch,
            last: Lsn(recovered.next_lsn.0 - 1),
            next_id: first_id,
            ids,
            tokens: recovered.tokens,
            now,
            fx: Effects::new(),
            queues,
            tenants: Tenants::default(),
            waiters: Waiters::default(),
            dedupe,
            answers: AnswerLogs::default(),
            acked: Acked::new(seed),
            bound: BTreeSet::new(),
            before_grant: BTreeMap::new(),
            matching: Matching::default(),
            pauses,
            leaving,
            last_death: Died::default(),
            dead_checks,
            graves: Vec::new(),
            near_counts: DueCounts::default(),
            tally,
            done,
            far: Vec::new(),
            fresh: Fresh::new(hash_key.derive(b"fresh")),
            purged_here: 0,
            near_weight: 0,
            near_surplus: 0,
            leased_weight: 0,
            ready: ReadyMemory::default(),
            urgent: 0,
            granted: 0,
            work: Cell::new(0),
            gathers: Gathers::default(),
            decided: 0,
            closing: Closing::default(),
            reranks: BTreeMap::new(),
            unmade: Unmade::default(),
            parked: BTreeSet::new(),
            room: Capacity::Enough,
            horizon: Horizon::default(),
            loading: Loading::default(),
            totals: Totals::default(),
            figures: GrantFigures::default(),
            unfinished: false,
            following: Following::default(),
            withheld,
            acts: Acts::unread(acts),
            acting: None,
            detail: None,
            histories: Histories::new(now, points),
            policy,
        };
        answers.into_iter().for_each(|(name, log)| engine.restore_answers(&name, log));
        Ok(engine)
    }

    /// Decides upon one input. Everything that it names must have been looked up for this batch ([`Engine::look_up`]).
    pub fn handle(&mut self, now: Now, input: Input, fx: &mut Effects) {
        self.advance(now);
        self.step(fx, |engine| match input {
            Input::Loaded(loaded) => engine.take_loaded(loaded),
            Input::Events(page) => engine.take_events(page),
            Input::Room(room) => engine.take_room(room),
            Input::Quotas(quotas) => engine.renew_quotas(quotas),
            Input::Request { to, op } => engine.request(to, op),
        });
    }

    /// Runs a step whose effects are added to `fx`.
    fn step<T>(&mut self, fx: &mut Effects, step: impl FnOnce(&mut Self) -> T) -> T {
        std::mem::swap(&mut self.fx, fx);
        let result = step(self);
        std::mem::swap(&mut self.fx, fx);
        result
    }

    /// Takes the store's room. Once the store accepts more than removals, waiting consumers are served.
    fn take_room(&mut self, room: Capacity) {
        self.room = room;
        if room != Capacity::RemoveOnly {
            self.matching.dirty.append(&mut self.matching.barred);
        }
    }

    fn request(&mut self, to: ReplyTo, op: Op) {
        let (act, op) = op.apart();
        self.meet_fresh(&op);
        self.end_overdue(&op);
        self.end_before_return(op.inner());
        self.begin_acting(act, to, &op);
        self.decide(to, op);
        self.end_acting(None);
    }

    fn decide(&mut self, to: ReplyTo, op: Op) {
        let reply = match op {
            Op::Enqueue(_) | Op::Cancel { .. } | Op::Postpone { .. } | Op::RemoveDead { .. } => {
                self.decide_on_one(op)
            }
            Op::Once(row, op) => self.once(row, *op),
            Op::Confirm { source, rows } => Reply::Count(self.confirm(&source, &rows).into()),
            Op::Reserve(r) => return self.reserve(to, r),
            Op::ReserveOne { id, session, lease_ms } => {
                return self.reserve_one(to, id, session, lease_ms);
            }
            Op::CancelReserve { waiter } => {
                self.cancel_reserve(waiter);
                Reply::Done
            }
            Op::Undelivered { leases } => {
                self.undelivered(&leases);
                Reply::Done
            }
            Op::Ack { id, proof, result } => Reply::Settle(self.ack(id, proof, result).map(Applied::from)),
            Op::Nack { id, proof, attempt, delay_ms, priority, note } => {
                let nacked = self.nack(id, proof, attempt, delay_ms, priority, &note);
                Reply::Settle(nacked.map(Applied::from))
            }
            Op::Bury { id, proof, priority, note } => {
                Reply::Settle(self.bury(id, proof, priority, &note).map(Applied::from))
            }
            Op::Extend { id, proof, lease_ms } => {
                Reply::Extend(self.extend(id, proof, lease_ms).map(Applied::from))
            }
            Op::Delete { id, session } => Reply::Settle(self.delete(id, session).map(Applied::from)),
            Op::Fire { target } => Reply::Change(self.fire(&target).map(Applied::from)),
            Op::FireMany { queue, max } => return self.change_many(ToMany::Fire, to, &queue, max),
            Op::Redrive { id, delay_ms, died } => {
                Reply::Change(self.redrive(id, delay_ms, died).map(Applied::from))
            }
            Op::RedriveMany { queue, max } => return self.change_many(ToMany::Redrive, to, &queue, max),
            Op::Restore { id } => Reply::Change(self.restore(id).map(Applied::from)),
            Op::Get { target } => Reply::View(self.look(&target)),
            Op::Recall { target } => Reply::View(self.recall(&target)),
            Op::Outline { id } => {
                let slot = self.shown(id).ok_or(ChangeRefusal::NotFound);
                Reply::Change(slot.map(|slot| Box::new(self.outline(slot)).into()))
            }
            Op::Peek { queue, state } => return self.peek(to, &queue, state),
            Op::List { queue, state, after, limit, from } => {
                let seen = after.unwrap_or(ListCursor { at: None, after: None });
                let seen = match (state, from) {
                    (None | Some(State::Scheduled), Some(from)) => seen.not_before(self.now, from),
                    _ => seen,
                };
                return self.list(to, &queue, state, seen, limit);
            }
            Op::Queue { queue } => Reply::Queues(self.queue_view(&queue).into_iter().collect()),
            Op::Queues { after, limit } => Reply::Queues(self.queue_views(after.as_ref(), limit)),
            Op::Histogram { queue, from, to, columns } => {
                Reply::Histogram(self.histogram(queue.as_ref(), from, to, columns))
            }
            Op::Wheel => Reply::Wheel(Box::new(self.wheel_view())),
            Op::Stats => Reply::Stats(Box::new(self.stats(self.now))),
            Op::Configure { queue, settings } => return self.configure(to, &queue, settings),
            Op::Pause { queue, for_ms } => self.pause(&queue, for_ms),
            Op::Resume { queue } => self.resume(&queue),
            Op::Purge { queue, at_most } => Reply::Count(self.purge_at_most(&queue, at_most).into()),
            Op::Hold { queue, how } => self.hold(&queue, how),
            Op::LetGo { queue, how } => {
                self.let_go(&queue, how);
                Reply::Done
            }
            Op::SessionClosed { session } => return self.session_closed(to, session),
            Op::SessionDeadline { session } => Reply::Deadline(self.session_deadline(session)),
            Op::NextDue => return self.horizon.asked.push(to),
            Op::Quotas => Reply::Quotas(self.tenants.uses(self.now)),
            Op::Events { after, limit, fired_after, .. } => {
                return self.events(to, after, limit, fired_after);
            }
            Op::Audited(_, op) => return self.decide(to, *op), // it was taken apart
            Op::Detailed(detail, op) => {
                // A full store keeps its room for settlements.
                let fits = self.room != Capacity::SettleOnly && detail.len() <= self.policy.max_detail;
                self.detail = Some(detail).filter(|_| fits);
                self.decide(to, *op);
                self.detail = None;
                return;
            }
            Op::History { queue, from, until, step } => {
                return self.history(to, queue, [from, until], step);
            }
            Op::EraseHistory { queue } => {
                self.erase_history(&queue);
                Reply::Configured(Applied::default())
            }
        };
        self.respond(to, reply);
    }

    /// The tenants' use of their quotas, as [`Op::Quotas`] returns it.
    pub fn quota_uses(&mut self, now: Now) -> Vec<QuotaUse> {
        self.tenants.uses(now)
    }

    /// The number of rows and queues that the engine has examined one by one, and of keys that it has looked up, since
    /// its start: for tests of the work of a step.
    pub fn work(&self) -> u64 {
        self.work.get()
    }

    fn worked(&self, looks: usize) {
        self.work.set(self.work.get() + looks as u64);
    }

    /// Position of the last record decided.
    pub fn last_lsn(&self) -> Lsn {
        self.last
    }

    /// Approximate bytes of the records decided so far ([`Record::weight`]).
    pub fn decided_bytes(&self) -> u64 {
        self.decided
    }

    /// Whether an answer waits for pages that are loading, or for work that continues in the next step.
    pub fn has_questions(&self) -> bool {
        let pages = !self.gathers.is_empty() || self.following.is_asked();
        pages || !self.horizon.asked.is_empty() || !self.closing.is_empty() || !self.reranks.is_empty()
    }

    /// The holds of each queue ([`Op::Hold`]), for [`Config::holds`] of the engine that replaces this one.
    pub fn holds(&self) -> Vec<(QueueName, [u32; 3])> {
        self.queues.iter().filter(|q| q.holds != [0; 3]).map(|q| (q.name.clone(), q.holds)).collect()
    }

    /// Whether there are quotas.
    pub fn has_quotas(&self) -> bool {
        !self.tenants.is_empty()
    }

    /// The index of the quota that applies to a queue.
    pub fn tenant_of(&mut self, queue: &QueueName) -> Option<usize> {
        self.queues.tenant_of(queue)
    }

    /// Whether any enqueue can be refused for its rate.
    pub fn has_rates(&self) -> bool {
        self.tenants.has_rates()
    }

    /// The quota whose rate applies to a queue: its index, and how many enqueues it allows now. `None`: no rate.
    pub fn pace(&mut self, now: Now, queue: &QueueName) -> Option<(usize, Pace)> {
        let tenant = self.queues.tenant_of(queue)?;
        Some((tenant, self.tenants.pace(tenant, now)?))
    }

    /// Counts all queues again, each once, for new quotas.
    fn renew_quotas(&mut self, quotas: Quotas) {
        let mut starved = self.tenants.renew(&quotas, self.ids, self.now);
        self.matching.dirty.append(&mut starved);
        self.queues.renew_quotas(quotas);
        for queue in self.queues.iter() {
            self.tenants.count_queue(queue.tenant, &queue.tally);
            self.tenants.count_settings(queue.tenant, false, queue.is_charged);
        }
        (0..self.tenants.len()).for_each(|tenant| self.make_way_for(Some(tenant)));
        self.renew_answers();
    }

    /// Ends every waiting reserve with the messages that it has, for a shutdown.
    pub fn end_all_waits(&mut self, fx: &mut Effects) {
        self.step(fx, |engine| {
            while let Some(waiter) = engine.waiters.pop_any() {
                engine.end_wait(&waiter);
            }
        });
    }

    /// Advances engine time, which never goes back, whatever the caller's clock does.
    fn advance(&mut self, now: Now) {
        let engine = now.engine.max(self.now.engine);
        self.now = Now { engine, ..now };
    }

    /// Adds a record and returns its position.
    fn append(&mut self, record: Record) -> Lsn {
        self.last = self.last.next();
        self.loading.touch(&record, self.last);
        self.decided += record.weight() as u64;
        self.fx.push(Effect::Append(record));
        self.last
    }

    /// Answers when everything decided so far is durable: refusals and reads also depend on it.
    fn respond(&mut self, to: ReplyTo, reply: Reply) {
        if self.acting.as_ref().is_some_and(|acting| acting.to == to) {
            self.end_acting(Some(&reply));
        }
        let after = After { durable: self.last, written: Lsn(0) };
        self.fx.push(Effect::Respond { to, reply, after });
    }

    /// A new token. Shards count in the same way as ids: a token for a message of one shard never equals one for a
    /// message of another.
    fn new_token(&mut self) -> LeaseToken {
        self.tokens = self.ids.at_least(self.tokens + 1);
        LeaseToken { epoch: self.epoch, counter: self.tokens }
    }

    /// A number that depends only on the seed and the arguments.
    fn random(&self, a: u64, b: u64) -> u64 {
        mixed(self.seed ^ a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }
}

/// Adds to a bounded history; the oldest entry is dropped first.
fn push_history(history: &mut Vec<PastAttempt>, past: PastAttempt, max: usize) {
    if max == 0 {
        return;
    }
    while history.len() >= max {
        history.remove(0);
    }
    history.push(past);
}
