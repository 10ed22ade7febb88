//! The router takes operations as one engine would, sends each to its shard, and answers in order.
//!
//! Operations of one submission that each belong to one shard are sent together, and keep their order within a shard.
//! An operation that concerns several shards waits for those before it, and those behind it wait for it. An error of a
//! shard answers only its own operations.
//!
//! The router keeps the state of this node's connections: which consumers wait ([`crate::routing::demand`]), which hold
//! a queue, which leases a session has ([`crate::routing::sessions`]). So queues show the holds and waiting reserves of
//! the node that is asked, and a hold keeps a queue visible at its node; its totals are those of the shards, which
//! forget them when the queue is empty there.
//!
//! With one shard, all submissions go to it unsplit, including reserves, sessions and holds.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use duewheel_core::engine::{Hold, Op, Reply, SettingsRefusal};
use duewheel_core::id::ShardId;
use duewheel_core::name::QueueName;
use duewheel_core::policy::Policy;
use duewheel_shard::client::{LocalShard, Route};
use duewheel_shard::clock::Clock;
use duewheel_shard::error::CallError;
use duewheel_shard::fairness::QuotaSource;
use duewheel_shard::inbox::{Answers, CallBudget, Inbox, Pending, WhenBusy};
use duewheel_shard::listing::{ListRequest, Listing};
use duewheel_shard::random::{Jitter, RetryPause};
use duewheel_shard::shared::{DriverShared, EndOnPanic};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::routing::Shards;
use crate::routing::demand::{Action, Demands};
use crate::routing::partition::{ExhaustedShards, Leases, Placement, by_shard, placement};
use crate::routing::sessions::{LeaseEffect, Sessions};

/// The number of messages without a key that go to one shard before the next one gets some.
const TOGETHER: usize = 64;
/// The interval at which a clock that a test moves is read.
const LOOK: Duration = Duration::from_millis(2);
/// The longest interval at which any other clock is read.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The number of attempts to return grants that could not be delivered.
const GIVE_BACK: u32 = 8;
/// The pause between two attempts to tell a shard something, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The error for an operation that the table routes here and the router does not know, which is a bug.
pub(super) const NOT_ROUTED: CallError = CallError::Closed("the router does not know this operation");

/// Sends operations to their shards and merges the answers.
pub struct Router {
    pub(super) me: Weak<Router>,
    pub(super) shards: Arc<dyn Shards>,
    pub(super) policy: Policy,
    pub(super) clock: Arc<dyn Clock>,
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
    runtime: Handle,
    pub(super) sessions: Sessions,
    pub(super) quotas: QuotaSource,
    pub(super) used_up: ExhaustedShards,
    /// Shards that did not answer lately, and until when they are not asked for messages.
    pub(super) away: Mutex<BTreeMap<ShardId, u64>>,
    budget: Arc<CallBudget>,
    /// The jitter of pauses, seeded by the names of waiters, which differ between nodes.
    jitter: Jitter,
    demands: Mutex<Demands>,
    holds: Mutex<BTreeMap<QueueName, [u32; 3]>>,
    /// The shard that is next for operations that any shard can take.
    turn: AtomicUsize,
    /// When the waiting lists are checked next, by [`Clock::running`].
    alarm: AtomicU64,
    changed: Arc<Notify>,
    ended: AtomicBool,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("shards", &self.shards).finish_non_exhaustive()
    }
}

/// A step of a submission: operations that are sent together.
#[derive(Debug)]
enum DispatchStep {
    /// Operations of one shard each, and operations that this node decides, with their indexes among the answers.
    Side(Vec<(ShardId, Vec<(usize, Op)>)>, Vec<(usize, Op)>),
    /// An operation that concerns several shards, with its index.
    Alone(usize, Op),
}

/// Operations of one shard that are in progress.
#[derive(Debug)]
struct ShardBatch {
    shard: ShardId,
    indexes: Vec<usize>,
    watches: Vec<(usize, LeaseEffect)>,
    /// Operations that settle, if the batch also has others: they are not refused for lack of space.
    settling: Vec<(usize, Op)>,
    /// Enqueues that any shard may take, if there are quotas: when a quota refuses one, another shard may accept it.
    movable: Vec<(usize, Op)>,
    pending: Pending,
    asked: u64,
}

impl Router {
    /// Routes to these shards, for the node that has this inbox. Names of waiting reserves at shards are numbers behind
    /// `names`, which no other node uses. Its tasks run on `runtime`, and end when it is dropped; a panic in one of
    /// them ends the node.
    pub fn new(
        shards: Arc<dyn Shards>,
        policy: Policy,
        inbox: &Arc<Inbox>,
        shared: &Arc<DriverShared>,
        quotas: QuotaSource,
        names: u64,
        runtime: Handle,
    ) -> Arc<Self> {
        let router = Arc::new_cyclic(|me| Router {
            me: me.clone(),
            sessions: Sessions::default(),
            quotas,
            used_up: ExhaustedShards::default(),
            away: Mutex::default(),
            budget: CallBudget::new(&policy),
            jitter: Jitter::seeded(names),
            demands: Mutex::new(Demands::new(shards.count(), policy.max_waiters, names)),
            holds: Mutex::default(),
            turn: AtomicUsize::new(0),
            alarm: AtomicU64::new(u64::MAX),
            changed: Arc::new(Notify::new()),
            ended: AtomicBool::new(false),
            shards,
            policy,
            clock: shared.clock().clone(),
            inbox: inbox.clone(),
            shared: shared.clone(),
            runtime,
        });
        if router.count() > 1 {
            router.spawn(keep_time(Arc::downgrade(&router), router.changed.clone()));
        }
        router
    }

    /// Runs a task of the router.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = EndOnPanic::new(&self.shared, &self.inbox, "a task of the router");
        self.runtime.spawn(async move {
            let _end = end;
            task.await;
        });
    }

    pub(super) fn count(&self) -> u32 {
        self.shards.count().max(1)
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.read().elapsed_ns
    }

    /// The time that passes even while a test holds the clock, for pauses.
    pub(super) fn running(&self) -> u64 {
        u64::try_from(self.clock.running().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    pub(super) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, SeqCst)
    }

    /// Changes the waiting lists and carries out the actions that follow.
    pub(super) fn with_demands<T>(&self, change: impl FnOnce(&mut Demands, u64, &mut Vec<Action>) -> T) -> T {
        let mut actions = Vec::new();
        let result = {
            let mut demands = lock(&self.demands);
            let (now, running) = (self.now(), self.running());
            demands.at(running);
            let result = change(&mut demands, now, &mut actions);
            let wakeup = demands.next_wakeup(now).map_or(u64::MAX, |ns| running.saturating_add(ns));
            if wakeup < self.alarm.swap(wakeup, SeqCst) {
                self.changed.notify_one();
            }
            result
        };
        self.act_on(actions);
        result
    }

    /// Handles what is due in the waiting lists. Returns the time until the next call, if one is needed.
    fn tick(&self) -> Option<Duration> {
        let mut actions = Vec::new();
        let sleep = {
            let mut demands = lock(&self.demands);
            let (now, running) = (self.now(), self.running());
            demands.at(running);
            demands.tick(now, &mut actions);
            let wakeup = demands.next_wakeup(now);
            self.alarm.store(wakeup.map_or(u64::MAX, |ns| running.saturating_add(ns)), SeqCst);
            wakeup.map(Duration::from_nanos)
        };
        self.act_on(actions);
        sleep
    }

    fn act_on(&self, actions: Vec<Action>) {
        let Some(me) = self.me.upgrade() else { return };
        for action in actions {
            me.act(action);
        }
    }

    /// A shard for operations without one: those of this node first, in turn.
    fn any(&self) -> ShardId {
        let here = self.shards.here();
        let turn = self.next_turn();
        match here.as_slice() {
            [] => ShardId(u32::try_from(turn % self.count() as usize).unwrap_or(0)),
            here => here[turn % here.len()],
        }
    }

    fn steps(&self, ops: Vec<Op>) -> VecDeque<DispatchStep> {
        let mut steps = VecDeque::new();
        let (mut any, mut left) = (ShardId(0), 0);
        for (index, op) in ops.into_iter().enumerate() {
            let to = match placement(&op, self.count()) {
                Placement::To(shard) => Some(shard),
                Placement::Any => {
                    if left == 0 {
                        (any, left) = (self.any(), TOGETHER);
                    }
                    left -= 1;
                    Some(any)
                }
                Placement::Node => None,
                Placement::Many => {
                    steps.push_back(DispatchStep::Alone(index, op));
                    continue;
                }
            };
            if !matches!(steps.back(), Some(DispatchStep::Side(..))) {
                steps.push_back(DispatchStep::Side(Vec::new(), Vec::new()));
            }
            let Some(DispatchStep::Side(groups, own)) = steps.back_mut() else { continue };
            let Some(shard) = to else {
                own.push((index, op));
                continue;
            };
            match groups.iter_mut().find(|(of, _)| *of == shard) {
                Some((_, group)) => group.push((index, op)),
                None => groups.push((shard, vec![(index, op)])),
            }
        }
        steps
    }

    /// Sends operations to one shard.
    fn send(&self, shard: ShardId, ops: Vec<(usize, Op)>, patience: WhenBusy) -> ShardBatch {
        let settles = |(_, op): &(usize, Op)| op.operation().settles;
        let is_mixed = ops.iter().any(settles) && !ops.iter().all(settles);
        let settling = ops.iter().filter(|one| is_mixed && settles(one)).cloned().collect();
        let watch = |(index, op): &(usize, Op)| Some((*index, self.sessions.watch(op, shard)?));
        let watches = ops.iter().filter_map(watch).collect();
        let movable = if self.quotas.are_set() {
            ops.iter().filter(|(_, op)| placement(op, self.count()) == Placement::Any).cloned().collect()
        } else {
            Vec::new()
        };
        let asked = self.now();
        let (indexes, ops) = ops.into_iter().unzip();
        let pending = self.shards.submit(shard, ops, patience);
        ShardBatch { shard, indexes, watches, settling, movable, pending, asked }
    }

    /// Receives the answers to what [`Router::send`] has sent.
    async fn receive(&self, group: ShardBatch, answers: &mut [Option<Result<Reply, CallError>>]) {
        let ShardBatch { shard, indexes, watches, settling, movable, pending, asked } = group;
        let mut came = pending.await;
        if !movable.is_empty() {
            let at = |index: usize| indexes.iter().position(|p| *p == index);
            let movable = movable.into_iter().filter_map(|(index, op)| Some((at(index)?, op))).collect();
            self.move_on(shard, movable, &mut came).await;
        }
        if !settling.is_empty() && came.iter().all(|a| matches!(a, Err(CallError::Overloaded))) {
            // The repeated operations are all sent before the first answer is awaited, in their order.
            let again: Vec<_> = settling
                .into_iter()
                .map(|(index, op)| (index, self.shards.submit(shard, vec![op], WhenBusy::Refuse)))
                .collect();
            for (index, pending) in again {
                let answer = pending.await.pop();
                if let (Some(at), Some(answer)) = (indexes.iter().position(|p| *p == index), answer) {
                    came[at] = answer;
                }
            }
        }
        for (index, answer) in indexes.into_iter().zip(came) {
            if let Some((_, watch)) = watches.iter().find(|(at, _)| *at == index) {
                self.sessions.answered(*watch, &answer, asked);
            }
            if let Some(slot) = answers.get_mut(index) {
                *slot = Some(answer);
            }
        }
    }

    /// Decides operations at this node: all that have [`Routing::Node`](duewheel_core::engine::Routing::Node) in the
    /// table.
    fn decide(&self, op: Op) -> Result<Reply, CallError> {
        match op {
            Op::Hold { queue, how } => {
                if !self.hold(queue, how) {
                    return Ok(Reply::Configure(SettingsRefusal::Overloaded));
                }
            }
            Op::LetGo { queue, how } => self.let_go(&queue, how),
            Op::CancelReserve { waiter } => {
                self.with_demands(|demands, now, out| demands.cancel(now, waiter, out))
            }
            // The test `operations_are_routed_as_declared` calls each of these.
            _ => return Err(NOT_ROUTED),
        }
        Ok(Reply::Done)
    }

    /// Holds a queue; false if the node holds too many already.
    fn hold(&self, queue: QueueName, how: Hold) -> bool {
        let mut holds = lock(&self.holds);
        let fits = holds.contains_key(&queue) || holds.len() < self.policy.max_queues;
        if fits {
            holds.entry(queue).or_default()[how as usize] += 1;
        }
        fits
    }

    fn let_go(&self, queue: &QueueName, how: Hold) {
        let mut holds = lock(&self.holds);
        let Some(held) = holds.get_mut(queue) else { return };
        held[how as usize] = held[how as usize].saturating_sub(1);
        if *held == [0; 3] {
            holds.remove(queue);
        }
    }

    /// The number of holds of each queue, for each `Hold`.
    pub(super) fn holds(&self) -> MutexGuard<'_, BTreeMap<QueueName, [u32; 3]>> {
        lock(&self.holds)
    }

    /// Runs the steps of a submission, the first of which has begun, and answers.
    async fn work(
        self: Arc<Self>,
        begun: Vec<ShardBatch>,
        rest: VecDeque<DispatchStep>,
        mut answers: Vec<Option<Result<Reply, CallError>>>,
        to: oneshot::Sender<Answers>,
        patience: WhenBusy,
    ) {
        for group in begun {
            self.receive(group, &mut answers).await;
        }
        for step in rest {
            match step {
                DispatchStep::Side(groups, own) => {
                    for group in self.begin(groups, own, &mut answers, patience) {
                        self.receive(group, &mut answers).await;
                    }
                }
                DispatchStep::Alone(index, op) => {
                    let answer = Box::pin(self.many(op, patience)).await;
                    if let Some(slot) = answers.get_mut(index) {
                        *slot = Some(answer);
                    }
                }
            }
        }
        self.answer(to, answers);
    }

    fn begin(
        &self,
        groups: Vec<(ShardId, Vec<(usize, Op)>)>,
        own: Vec<(usize, Op)>,
        answers: &mut [Option<Result<Reply, CallError>>],
        patience: WhenBusy,
    ) -> Vec<ShardBatch> {
        for (index, op) in own {
            if let Some(slot) = answers.get_mut(index) {
                *slot = Some(self.decide(op));
            }
        }
        groups.into_iter().map(|(shard, ops)| self.send(shard, ops, patience)).collect()
    }

    fn answer(&self, to: oneshot::Sender<Answers>, answers: Vec<Option<Result<Reply, CallError>>>) {
        let missing = || Err(CallError::Lost("the shard gave no answer"));
        let answers = answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect();
        if let Err(unsent) = to.send(answers) {
            self.take_back(unsent);
        }
    }

    /// Returns grants that could not be delivered.
    pub(super) fn take_back(&self, answers: Answers) {
        let leases: Leases = answers.iter().flatten().flat_map(Reply::leases).collect();
        for (shard, leases) in by_shard(&leases, self.count()) {
            let Some(me) = self.me.upgrade() else { return };
            let op = Op::Undelivered { leases };
            self.sessions.watch(&op, shard);
            self.spawn(async move { me.retry_until_applied(shard, op, GIVE_BACK).await });
        }
    }

    /// Repeats an operation until a shard has applied it, at most `times`; if all attempts fail, leases end by
    /// themselves.
    pub(super) async fn retry_until_applied(&self, shard: ShardId, op: Op, times: u32) {
        let mut pause = RetryPause::new(FIRST_PAUSE, LONGEST_PAUSE, &self.jitter);
        let operation = op.operation().name;
        for _ in 0..times {
            match self.shards.submit(shard, vec![op.clone()], WhenBusy::Refuse).await.pop() {
                Some(Err(error)) => tracing::debug!(%shard, operation, %error, "not told yet"),
                Some(Ok(_)) | None => return,
            }
            tokio::time::sleep(pause.take()).await;
        }
    }

    /// Submits to the only shard.
    fn submit_unsplit(&self, ops: Vec<Op>, patience: WhenBusy) -> Result<Pending, (CallError, Vec<Op>)> {
        // Reserves use no budget while they wait.
        let waits = ops.iter().any(|op| matches!(op, Op::Reserve(r) if r.wait_ms > 0));
        let share = self.budget.take(&ops);
        if share.is_none() {
            return Err((CallError::Overloaded, ops));
        }
        let pending = self.shards.submit(ShardId(0), ops, patience);
        Ok(pending.holding(share.filter(|_| !waits)))
    }
}

impl Route for Router {
    fn waiting(&self) -> Option<u64> {
        (self.count() != 1).then(|| self.with_demands(|demands, _, _| demands.len() as u64))
    }

    fn local_shards(&self) -> Vec<LocalShard> {
        self.shards.local_shards()
    }

    fn offer(&self, mut ops: Vec<Op>, patience: WhenBusy) -> Result<Pending, (CallError, Vec<Op>)> {
        if self.count() == 1 {
            return self.submit_unsplit(ops, patience);
        }
        let (Some(share), Some(me)) = (self.budget.take(&ops), self.me.upgrade()) else {
            return Err((CallError::Overloaded, ops));
        };
        let n = ops.len();
        let (to, answers) = oneshot::channel();
        if n == 1
            && matches!(ops.first(), Some(Op::Reserve(_)))
            && let Some(Op::Reserve(reserve)) = ops.pop()
        {
            self.reserve(reserve, to, Some(share));
            return Ok(Pending::new(answers, n));
        }
        let mut steps = self.steps(ops);
        let mut slots: Vec<_> = (0..n).map(|_| None).collect();
        // Sent before this call returns, so that two submissions to one shard keep their order.
        let mut begun = Vec::new();
        match steps.pop_front() {
            Some(DispatchStep::Side(groups, own)) => begun = self.begin(groups, own, &mut slots, patience),
            Some(alone @ DispatchStep::Alone(..)) => steps.push_front(alone),
            None => {}
        }
        if steps.is_empty() && begun.is_empty() {
            self.answer(to, slots);
            return Ok(Pending::new(answers, n));
        }
        let is_whole = |group: &ShardBatch| {
            group.indexes.len() == n && group.watches.is_empty() && group.movable.is_empty()
        };
        if steps.is_empty()
            && begun.len() == 1
            && let Some(group) = begun.pop_if(|group| is_whole(group) && group.settling.is_empty())
        {
            return Ok(group.pending.holding(Some(share)));
        }
        self.spawn(async move {
            me.work(begun, steps, slots, to, patience).await;
            drop(share);
        });
        Ok(Pending::new(answers, n))
    }

    fn shards(&self) -> u32 {
        self.count()
    }

    fn bound_leases(&self) -> u64 {
        self.sessions.bound_leases(self.now())
    }

    fn list(&self, asked: ListRequest) -> Pin<Box<dyn Future<Output = Result<Listing, CallError>> + Send>> {
        let me = self.me.upgrade();
        Box::pin(async move {
            let me = me.ok_or(CallError::Closed("the router has ended"))?;
            me.pages(asked).await
        })
    }

    fn end_waits(&self) {
        self.ended.store(true, SeqCst);
        self.with_demands(|demands, now, out| demands.end_all(now, out));
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // Ends the task that keeps time.
        self.changed.notify_one();
    }
}

/// Checks the waiting lists when their time has come.
async fn keep_time(router: Weak<Router>, changed: Arc<Notify>) {
    loop {
        let sleep = {
            let Some(router) = router.upgrade() else { return };
            // A clock that a test moves has to be read again and again.
            let is_held = router.clock.nap(LOOK) > LONGEST_SLEEP;
            router.tick().map(|wanted| if is_held { LOOK } else { wanted.min(LONGEST_SLEEP) })
        };
        match sleep {
            Some(sleep) => drop(tokio::time::timeout(sleep, changed.notified()).await),
            None => changed.notified().await,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
