//! Tenants: their quotas, turns of their reserves, and pacing of their new messages.
//!
//! Reserves take turns by tenant when more messages are requested than a step should grant.
//!
//! Without quotas, and while the driver keeps up, everything is decided in order of arrival. When the reserves of one
//! tenant would take several steps, a step takes some of each tenant (deficit round robin; Shreedhar and Varghese,
//! SIGCOMM 1995, counted in requested messages), and the rest waits here. Operations other than reserves are not
//! delayed.
//!
//! Callers that cannot handle a refusal ([`WhenBusy::Paced`](crate::inbox::WhenBusy)) are slowed down to the rate of
//! their tenant's quota. A waiting message has not been decided: it is looked up and decided when the rate allows it, in
//! order of arrival for each tenant.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duewheel_core::engine::{BadQuota, Engine, Op, Quota, Quotas, Reserve, WaiterId};
use duewheel_core::id::{ReplyTo, SessionId};
use duewheel_core::name::QueueName;
use duewheel_core::policy::Policy;
use duewheel_core::time::{EngineMs, Now};

use crate::inbox::Submission;

/// The number of messages that a tenant may request before the next one has its turn.
const QUANTUM: usize = 64;

/// The index of a tenant among the quotas; all queues without a quota are one tenant.
type TenantNumber = Option<usize>;

/// Reserves that wait for their turn.
#[derive(Debug)]
pub(crate) struct FairQueue {
    /// The waiting reserves, by arrival.
    held: BTreeMap<u64, Submission>,
    /// The reserves of each tenant, in order. Those that are no longer in `held` are skipped.
    lines: BTreeMap<TenantNumber, TenantReserves>,
    by_name: BTreeMap<WaiterId, u64>,
    by_session: BTreeSet<(SessionId, u64)>,
    arrivals: u64,
    /// The tenant that last had its turn.
    last: TenantNumber,
    max_turn: usize,
    /// The number of reserves in one step.
    max_ops: usize,
    max_reserve: usize,
}

#[derive(Debug, Default)]
struct TenantReserves {
    arrivals: VecDeque<u64>,
    /// The number of messages that the tenant may still request in its turn.
    credit: usize,
}

impl FairQueue {
    pub(crate) fn new(policy: &Policy) -> Self {
        FairQueue {
            held: BTreeMap::new(),
            lines: BTreeMap::new(),
            by_name: BTreeMap::new(),
            by_session: BTreeSet::new(),
            arrivals: 0,
            last: None,
            max_turn: policy.max_turn,
            max_ops: policy.max_batch_ops.max(1),
            max_reserve: policy.max_reserve,
        }
    }

    /// Whether no reserve waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Leaves as many of the newly arrived reserves in `submissions` as a step should decide, in turns, and keeps the
    /// others. Reserves that a step does not take are not sorted again: they have had their turn.
    pub(crate) fn sort(
        &mut self,
        submissions: &mut Vec<Submission>,
        mut tenant_of: impl FnMut(&QueueName) -> TenantNumber,
    ) {
        let asked = submissions.iter().filter_map(reserve_of).fold(0usize, |sum, r| sum + self.cost(r));
        if self.is_empty() && asked <= self.max_turn {
            return;
        }
        let mut stay = Vec::with_capacity(submissions.len());
        for submission in submissions.drain(..) {
            if let Some(reserve) = reserve_of(&submission) {
                let tenant = reserve.queues.first().and_then(&mut tenant_of);
                self.hold(tenant, submission);
                continue;
            }
            // An operation that ends a reserve must not be decided before it.
            for op in &submission.ops {
                match op {
                    Op::CancelReserve { waiter } => stay.extend(self.take_named(*waiter)),
                    Op::SessionClosed { session } => self.take_session(*session, &mut stay),
                    _ => {}
                }
            }
            stay.push(submission);
        }
        self.let_out(&mut stay);
        *submissions = stay;
    }

    /// Puts all waiting reserves after the first `before` submissions, in order.
    pub(crate) fn give_back(&mut self, before: usize, submissions: &mut Vec<Submission>) {
        if !self.is_empty() {
            submissions.splice(before..before, std::mem::take(&mut self.held).into_values());
            self.lines.clear();
            self.by_name.clear();
            self.by_session.clear();
        }
    }

    fn hold(&mut self, tenant: TenantNumber, submission: Submission) {
        let Some(reserve) = reserve_of(&submission) else { return };
        self.arrivals += 1;
        self.by_name.insert(reserve.waiter, self.arrivals);
        self.by_session.insert((reserve.session, self.arrivals));
        self.lines.entry(tenant).or_default().arrivals.push_back(self.arrivals);
        self.held.insert(self.arrivals, submission);
    }

    fn let_out(&mut self, out: &mut Vec<Submission>) {
        let (mut left, most) = (self.max_turn, out.len() + self.max_ops);
        while left > 0 && out.len() < most {
            let behind = (std::ops::Bound::Excluded(self.last), std::ops::Bound::Unbounded);
            let next = self.lines.range(behind).chain(self.lines.iter()).next().map(|(tenant, _)| *tenant);
            let Some(tenant) = next else { return };
            self.last = tenant;
            let Some(mut line) = self.lines.remove(&tenant) else { return };
            line.credit += QUANTUM;
            while let Some(&first) = line.arrivals.front() {
                if let Some(cost) = self.held.get(&first).and_then(reserve_of).map(|r| self.cost(r)) {
                    if cost > line.credit || left == 0 || out.len() == most {
                        break;
                    }
                    line.credit -= cost;
                    left = left.saturating_sub(cost);
                    out.extend(self.take(first));
                }
                line.arrivals.pop_front();
            }
            if !line.arrivals.is_empty() {
                self.lines.insert(tenant, line);
            }
        }
    }

    /// The number of messages that it requests; a request that only wants to be notified costs as much as one message.
    fn cost(&self, reserve: &Reserve) -> usize {
        reserve.max.clamp(1, self.max_reserve.max(1))
    }

    fn take(&mut self, arrival: u64) -> Option<Submission> {
        let submission = self.held.remove(&arrival)?;
        if let Some(reserve) = reserve_of(&submission) {
            if self.by_name.get(&reserve.waiter) == Some(&arrival) {
                self.by_name.remove(&reserve.waiter);
            }
            self.by_session.remove(&(reserve.session, arrival));
        }
        Some(submission)
    }

    fn take_named(&mut self, name: WaiterId) -> Option<Submission> {
        let arrival = *self.by_name.get(&name)?;
        self.take(arrival)
    }

    fn take_session(&mut self, session: SessionId, out: &mut Vec<Submission>) {
        while let Some(&(of, arrival)) = self.by_session.range((session, 0)..).next()
            && of == session
            && session != SessionId::NONE
        {
            out.extend(self.take(arrival));
        }
    }
}

/// The reserve that a submission consists of, if it is a single reserve.
fn reserve_of(submission: &Submission) -> Option<&Reserve> {
    match submission.ops.as_slice() {
        [Op::Reserve(reserve)] => Some(reserve),
        _ => None,
    }
}

/// Operations of a batch, and where their answers go.
pub(crate) type PacedBatch = VecDeque<(ReplyTo, Op)>;

/// Waiting new messages, by tenant, in order.
#[derive(Debug)]
pub(crate) struct Pacing {
    lines: BTreeMap<usize, VecDeque<Paced>>,
    /// Messages whose tenant is no longer known, because the quotas were replaced.
    loose: Vec<Paced>,
    /// The rest of each tenant's rate in this batch.
    left: BTreeMap<usize, u64>,
    arrivals: u64,
    bytes: usize,
    max_bytes: usize,
    max_wait_ms: u64,
    /// When a message may be decided, or has waited for the longest allowed time.
    wake: Option<EngineMs>,
    waits: MayWait,
}

/// Whether messages may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayWait {
    Allowed,
    /// A shutdown has begun: nothing waits any more.
    Over,
}

#[derive(Debug)]
struct Paced {
    to: ReplyTo,
    op: Op,
    arrival: u64,
    until: EngineMs,
}

impl Pacing {
    pub(crate) fn new(policy: &Policy) -> Self {
        Pacing {
            lines: BTreeMap::new(),
            loose: Vec::new(),
            left: BTreeMap::new(),
            arrivals: 0,
            bytes: 0,
            // The same limit as for messages that wait for the store.
            max_bytes: policy.max_inbox_bytes,
            max_wait_ms: policy.max_pace_wait_ms,
            wake: None,
            waits: MayWait::Allowed,
        }
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.loose.is_empty()
    }

    /// Begins a batch with the messages that may go: at most `most` of each tenant.
    pub(crate) fn begin(&mut self, now: Now, engine: &mut Engine, most: usize, batch: &mut PacedBatch) {
        self.left.clear();
        if self.is_empty() {
            return;
        }
        let loose = std::mem::take(&mut self.loose);
        for paced in loose {
            self.line_up(now, engine, paced, batch);
        }
        let tenants: Vec<usize> = self.lines.keys().copied().collect();
        for tenant in tenants {
            let Some(mut line) = self.lines.remove(&tenant) else { continue };
            let mut taken = 0;
            while let Some(first) = line.front() {
                let name = queue_of(&first.op);
                let rate = name.and_then(|name| self.left(now, engine, name));
                let is_free = rate.is_none_or(|(_, left)| left > 0);
                let goes = is_free || first.until <= now.engine || self.waits == MayWait::Over;
                if taken == most || !goes {
                    break;
                }
                if let Some((tenant, left)) = rate {
                    self.left.insert(tenant, left.saturating_sub(1));
                }
                let Some(first) = line.pop_front() else { break };
                self.let_go(first, batch);
                taken += 1;
            }
            if !line.is_empty() {
                self.lines.insert(tenant, line);
            }
        }
    }

    /// Adds an operation to the batch; one that waits for a rate is added to a later batch.
    pub(crate) fn add(
        &mut self,
        now: Now,
        engine: &mut Engine,
        to: ReplyTo,
        op: Op,
        paced: bool,
        batch: &mut PacedBatch,
    ) {
        let rate = queue_of(&op).and_then(|name| self.left(now, engine, name));
        let Some((tenant, left)) = rate else { return batch.push_back((to, op)) };
        let waits = left == 0 || self.lines.contains_key(&tenant);
        let bytes = op.weight();
        let has_room = self.bytes.saturating_add(bytes) <= self.max_bytes && self.waits == MayWait::Allowed;
        if !paced || !waits || !has_room {
            self.left.insert(tenant, left.saturating_sub(1));
            return batch.push_back((to, op));
        }
        self.bytes += bytes;
        self.arrivals += 1;
        let until = EngineMs(now.engine.0.saturating_add(self.max_wait_ms));
        let paced = Paced { to, op, arrival: self.arrivals, until };
        self.lines.entry(tenant).or_default().push_back(paced);
    }

    /// Ends the step: from now on [`Pacing::next_wakeup`] returns the time of the next work.
    pub(crate) fn plan(&mut self, now: Now, engine: &mut Engine) {
        let loose = (!self.loose.is_empty()).then_some(now.engine);
        let wakeup = |first: &Paced| {
            let rate = queue_of(&first.op).and_then(|name| engine.pace(now, name));
            rate.map_or(now.engine, |(_, pace)| pace.next.min(first.until))
        };
        let lines = self.lines.values().filter_map(VecDeque::front).map(wakeup);
        self.wake = lines.chain(loose).min();
    }

    pub(crate) fn next_wakeup(&self) -> Option<EngineMs> {
        self.wake
    }

    /// Notes that the quotas were replaced.
    pub(crate) fn renew(&mut self) {
        self.loose.extend(std::mem::take(&mut self.lines).into_values().flatten());
        self.loose.sort_by_key(|paced| paced.arrival);
    }

    /// Ends all waiting: everything is decided in the next step.
    pub(crate) fn end_waits(&mut self) {
        self.waits = MayWait::Over;
    }

    /// Removes all waiting messages: they were not decided.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = ReplyTo> {
        self.renew();
        self.bytes = 0;
        std::mem::take(&mut self.loose).into_iter().map(|paced| paced.to)
    }

    /// The tenant of a queue, and the rest of its rate in this batch, if it has a rate limit.
    fn left(&self, now: Now, engine: &mut Engine, queue: &duewheel_core::QueueName) -> Option<(usize, u64)> {
        let (tenant, pace) = engine.pace(now, queue)?;
        Some((tenant, self.left.get(&tenant).copied().unwrap_or(pace.left)))
    }

    fn line_up(&mut self, now: Now, engine: &mut Engine, paced: Paced, batch: &mut PacedBatch) {
        match queue_of(&paced.op).and_then(|name| engine.pace(now, name)) {
            Some((tenant, _)) => self.lines.entry(tenant).or_default().push_back(paced),
            None => self.let_go(paced, batch),
        }
    }

    fn let_go(&mut self, paced: Paced, batch: &mut PacedBatch) {
        self.bytes = self.bytes.saturating_sub(paced.op.weight());
        batch.push_back((paced.to, paced.op));
    }
}

/// The queue that a new message goes to.
fn queue_of(op: &Op) -> Option<&duewheel_core::QueueName> {
    match op.inner() {
        Op::Enqueue(e) => Some(&e.queue),
        _ => None,
    }
}

/// The current quotas of a process. Cheap to clone; all clones share them.
#[derive(Clone, Debug, Default)]
pub struct QuotaSource {
    inner: Arc<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    /// The number of times that they were set.
    version: AtomicU64,
    quotas: Mutex<Quotas>,
}

impl QuotaSource {
    /// Replaces all quotas.
    ///
    /// # Errors
    /// The quotas are not valid; the former ones stay.
    pub fn set(&self, quotas: Vec<Quota>, policy: &Policy) -> Result<(), BadQuota> {
        let quotas = Quotas::new(quotas, policy)?;
        let mut place = self.lock();
        *place = quotas;
        self.inner.version.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The quotas and their version, if it differs from `seen`.
    pub fn newer(&self, seen: u64) -> Option<(u64, Quotas)> {
        if self.inner.version.load(Ordering::SeqCst) == seen {
            return None;
        }
        let quotas = self.lock();
        Some((self.inner.version.load(Ordering::SeqCst), quotas.clone()))
    }

    /// Whether there are quotas.
    pub fn are_set(&self) -> bool {
        self.inner.version.load(Ordering::SeqCst) > 0 && !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Quotas> {
        self.inner.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use tokio::sync::oneshot;

    use super::*;
    use crate::inbox::WhenBusy;

    fn submission(op: Op) -> Submission {
        Submission {
            ops: vec![op],
            answer: oneshot::channel().0,
            patience: WhenBusy::Refuse,
            has_waited: false,
        }
    }

    fn reserve(queue: &str, waiter: u64, max: usize) -> Submission {
        submission(Op::Reserve(Reserve {
            waiter: WaiterId(waiter),
            max,
            session: SessionId(waiter),
            ..Reserve::new(QueueName::new(queue).unwrap())
        }))
    }

    fn tenant_of(queue: &QueueName) -> TenantNumber {
        queue.as_str().strip_prefix('t').and_then(|n| n.parse().ok())
    }

    fn turns() -> FairQueue {
        FairQueue::new(&Policy { max_turn: 1_000, ..Policy::default() })
    }

    fn names(submissions: &[Submission]) -> Vec<u64> {
        submissions.iter().filter_map(reserve_of).map(|r| r.waiter.0).collect()
    }

    fn asked(submissions: &[Submission], queue: &str) -> usize {
        submissions
            .iter()
            .filter_map(reserve_of)
            .filter(|r| r.queues[0].as_str() == queue)
            .map(|r| r.max)
            .sum()
    }

    #[test]
    fn small_batches_pass_turns_unchanged() {
        let mut turns = turns();
        let mut some: Vec<_> = (0..10).map(|n| reserve(["t1", "t2"][n % 2], n as u64, 100)).collect();
        turns.sort(&mut some, tenant_of);
        assert_eq!((names(&some), turns.is_empty()), ((0..10).collect(), true));
    }

    #[test]
    fn tenant_flood_does_not_starve_others() {
        let mut turns = turns();
        let mut some: Vec<_> = (0..10_000).map(|n| reserve("t1", n, 100)).collect();
        some.push(reserve("t2", 10_000, 1));
        some.push(reserve("free", 10_001, 1));
        turns.sort(&mut some, tenant_of);
        assert!(names(&some).contains(&10_000) && names(&some).contains(&10_001));
        assert!((900..=1_100).contains(&asked(&some, "t1")), "{}", asked(&some, "t1"));

        // Two tenants that want all they can get have half each, however much one of their reserves requests.
        let mut more: Vec<_> = (20_000..22_000).map(|n| reserve("t2", n, 7)).collect();
        let mut of = [0, 0];
        for _ in 0..10 {
            turns.sort(&mut more, tenant_of);
            of = [of[0] + asked(&more, "t1"), of[1] + asked(&more, "t2")];
            more.clear();
        }
        assert!(of[0].abs_diff(of[1]) <= 400 && of[0] + of[1] >= 10_000, "{of:?}");

        // A step always takes at least one reserve, however much it requests.
        let mut large = vec![reserve("t3", 50_000, 10_000)];
        turns.sort(&mut large, tenant_of);
        let seen = (0..200).any(|_| {
            large.clear();
            turns.sort(&mut large, tenant_of);
            names(&large).contains(&50_000)
        });
        assert!(seen);
    }

    #[test]
    fn reserve_cancellation_follows_its_reserve() {
        let mut turns = turns();
        let mut some: Vec<_> = (0..100).map(|n| reserve("t1", n, 100)).collect();
        some.push(submission(Op::CancelReserve { waiter: WaiterId(90) }));
        some.push(submission(Op::SessionClosed { session: SessionId(91) }));
        turns.sort(&mut some, tenant_of);
        let ops: Vec<&Op> = some.iter().map(|s| &s.ops[0]).collect();
        let is = |op: &Op, name| matches!(op, Op::Reserve(r) if r.waiter == WaiterId(name));
        assert!(is(ops[0], 90) && matches!(ops[1], Op::CancelReserve { .. }), "{ops:?}");
        assert!(is(ops[2], 91) && matches!(ops[3], Op::SessionClosed { .. }), "{ops:?}");
        let mut all = names(&some);
        while !turns.is_empty() {
            let mut next = Vec::new();
            turns.sort(&mut next, tenant_of);
            all.extend(names(&next));
        }
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<_>>());

        let mut again: Vec<_> = (0..100).map(|n| reserve("t1", n, 100)).collect();
        turns.sort(&mut again, tenant_of);
        turns.give_back(0, &mut again);
        assert_eq!((again.len(), turns.is_empty()), (100, true));
        again.clear();
        turns.sort(&mut again, tenant_of);
        assert!(again.is_empty() && turns.lines.is_empty());
    }

    fn is_answered(pending: &mut crate::inbox::Pending) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::Pin::new(pending).poll(&mut context).is_ready()
    }

    /// A runner on a memory store, with quotas for these prefixes and so many messages in each queue of that name.
    fn runner(policy: Policy, prefixes: &[&str], messages: usize) -> crate::runner::Runner {
        use duewheel_core::engine::{Config, Enqueue, Quota};
        use duewheel_core::store::{MemoryStore, Store};

        let config = Config { policy, ..Config::default() };
        let opener = |waker| Ok(Box::new(MemoryStore::with_waker(waker)) as Box<dyn Store>);
        let clock = std::sync::Arc::new(crate::clock::VirtualClock::at_2026());
        let source = crate::fairness::QuotaSource::default();
        let quotas = prefixes.iter().map(|&prefix| Quota { prefix: prefix.into(), ..Quota::default() });
        source.set(quotas.collect(), &config.policy).unwrap();
        let mut runner =
            crate::runner::Runner::start(Box::new(opener), config, clock).unwrap().with_quotas(source);
        while runner.opening().unwrap().is_some() {}
        let client = runner.client();
        for prefix in prefixes {
            let put = || Op::Enqueue(Box::new(Enqueue::new(QueueName::new(prefix).unwrap(), "x")));
            drop(client.submit((0..messages).map(|_| put()).collect()).unwrap());
        }
        while matches!(runner.turn(), crate::runner::AfterTurn::Again) {}
        runner
    }

    /// Story: reserves that a step did not take after their turn were sorted again, and came behind all that had
    /// arrived later.
    #[test]
    fn unserved_reserves_keep_their_place() {
        let policy = Policy { max_turn: 100, max_batch_ops: 10, ..Policy::default() };
        let mut runner = runner(policy, &["flood"], 1_000);
        let client = runner.client();
        let ask = |waiter: u64| client.submit(reserve("flood", waiter, 1).ops).unwrap();
        let mut flood: Vec<_> = (0..300).map(ask).collect();
        let mut served = 0;
        for _ in 0..60 {
            runner.turn();
            let answered: Vec<_> = flood[served..].iter_mut().map(is_answered).collect();
            let more = answered.iter().take_while(|is| **is).count();
            assert!(!answered[more..].contains(&true), "one is served before others that came earlier");
            assert!(more <= 20, "{more} in a step");
            served += more;
        }
        assert_eq!(served, 300);
    }

    #[test]
    fn turns_release_at_most_one_step() {
        let mut turns = FairQueue::new(&Policy { max_turn: 1_000, max_batch_ops: 50, ..Policy::default() });
        let mut some: Vec<_> = (0..2_000).map(|n| reserve("t1", n, 1)).collect();
        turns.sort(&mut some, tenant_of);
        assert_eq!(names(&some), (0..50).collect::<Vec<_>>());
    }

    /// Counts what is decided before a consumer of another tenant is served, in steps of the real runner.
    #[test]
    fn flood_grants_are_bounded_per_step() {
        use duewheel_core::engine::{Config, Enqueue, Quota};
        use duewheel_core::store::{MemoryStore, Store};

        let config = Config { policy: Policy { max_turn: 100, ..Policy::default() }, ..Config::default() };
        let opener = |waker| Ok(Box::new(MemoryStore::with_waker(waker)) as Box<dyn Store>);
        let clock = std::sync::Arc::new(crate::clock::VirtualClock::at_2026());
        let source = crate::fairness::QuotaSource::default();
        let prefixes = ["flood", "calm"];
        let quotas = prefixes.map(|prefix| Quota { prefix: prefix.into(), ..Quota::default() });
        source.set(quotas.to_vec(), &config.policy).unwrap();
        let mut runner = crate::runner::Runner::start(Box::new(opener), config, clock)
            .unwrap()
            .with_quotas(source.clone());
        while runner.opening().unwrap().is_some() {}
        let client = runner.client();
        let put = |queue: &str| Op::Enqueue(Box::new(Enqueue::new(QueueName::new(queue).unwrap(), "x")));
        drop(client.submit((0..2_000).map(|_| put("flood")).collect()).unwrap());
        drop(client.submit(vec![put("calm")]).unwrap());
        runner.turn();
        let ask = |queue: &str, waiter: u64, max: usize| {
            let Submission { ops, .. } = reserve(queue, waiter, max);
            client.submit(ops).unwrap()
        };
        let mut flood: Vec<_> = (0..200).map(|n| ask("flood", n, 10)).collect();
        let mut calm = ask("calm", 1_000, 1);
        runner.turn();
        assert!(is_answered(&mut calm));
        let served = flood.iter_mut().filter_map(|pending| is_answered(pending).then_some(())).count();
        assert!((1..=11).contains(&served), "{served} of them, of 10 messages each, and 100 are a turn");
        assert!(matches!(runner.turn(), crate::runner::AfterTurn::Again), "the others go on at once");
        source.set(Vec::new(), &Policy::default()).unwrap();
        runner.turn();
        let mut left: Vec<_> = flood.iter_mut().skip(2 * served).collect();
        assert!(
            left.iter_mut().all(|pending| is_answered(pending)),
            "without quotas nobody waits for a turn"
        );
    }
}
