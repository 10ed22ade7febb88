//! The route to each shard, and the submissions that wait while a shard has none.
//!
//! ```text
//!   submit ──▶ line empty, way known ──▶ inbox here, or peer ──▶ answer
//!                 │ no                        │ certainly not applied: owner has changed, cannot be reached, ...
//!                 ▼                           ▼
//!              line, by order of submission ◀─┘      a new way, or a pause: all of the line, in order
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel_core::engine::{OnLease, Op, Reply, Reserved};
use duewheel_core::id::ShardId;
use duewheel_core::mutant::{self, Mutant};
use duewheel_core::policy::Policy;
use duewheel_core::store::{ErrorKind, StoreError};
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::{Answers, Inbox, Pending, Submission, WhenBusy};
use duewheel_shard::random::{Jitter, RetryPause};
use duewheel_shard::shared::{DriverShared, EndOnPanic};
use tokio::sync::{Notify, oneshot, watch};

use crate::forwarding::attempt::{FrameFit, PendingSubmission, moved, name_waiters, undo, unknown};
use crate::transport::wire::FrameLimits;
use crate::transport::{NotSent, Peer, PeerOutcome};

/// How long a submission looks for an owner: less than a client waits for an answer.
pub(crate) const OWNER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long submissions without a route wait before they are retried, if nothing new is known about the shard.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The route to a shard.
#[derive(Clone, Debug)]
pub(crate) enum ShardRoute {
    /// No owner is known.
    None,
    /// This node owns the shard.
    Here(Arc<Inbox>),
    /// Another node owns the shard.
    There(Arc<Peer>),
}

impl ShardRoute {
    fn is(&self, other: &ShardRoute) -> bool {
        match (self, other) {
            (ShardRoute::None, ShardRoute::None) => true,
            (ShardRoute::Here(a), ShardRoute::Here(b)) => Arc::ptr_eq(a, b),
            (ShardRoute::There(a), ShardRoute::There(b)) => Arc::ptr_eq(a, b),
            (ShardRoute::None | ShardRoute::Here(_) | ShardRoute::There(_), _) => false,
        }
    }
}

/// The routes to all shards. Clones share one table.
#[derive(Clone)]
pub(crate) struct RouteTable(Arc<RoutesInner>);

struct RoutesInner {
    node: u32,
    slots: Vec<RouteSlot>,
    max_waiting: usize,
    max_waiting_bytes: usize,
    runtime: tokio::runtime::Handle,
    /// The state of the node.
    shared: Arc<DriverShared>,
    inbox: Arc<Inbox>,
    /// Makes the reconciler read the owners of all shards again.
    look: Box<dyn Fn() + Send + Sync>,
    /// Ends the waits of reserves when this node ends.
    waits: watch::Sender<WaitsForOwner>,
    /// The number of submissions sent to each other node, by its name.
    forwarded: Mutex<BTreeMap<Box<str>, u64>>,
    again: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsForOwner {
    Allowed,
    Ended,
}

#[derive(Debug)]
struct RouteSlot {
    state: Mutex<RouteState>,
    /// Notified when the route changes.
    changed: Notify,
}

#[derive(Debug)]
struct RouteState {
    route: ShardRoute,
    waiting: BTreeMap<u64, PendingSubmission>,
    bytes: usize,
    next: u64,
    pusher: RetryTask,
    pause: RetryPause,
}

/// Whether a task retries the submissions that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryTask {
    None,
    Runs,
}

impl fmt::Debug for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteTable").field("slots", &self.0.slots.len()).finish_non_exhaustive()
    }
}

impl RouteTable {
    /// Creates a table without routes. `look` is called when the owners must be read again; it must not block. As many
    /// submissions may wait for a route as the policy allows in an inbox.
    pub(crate) fn new(
        node: u32,
        shards: u32,
        policy: &Policy,
        shared: &Arc<DriverShared>,
        inbox: &Arc<Inbox>,
        look: Box<dyn Fn() + Send + Sync>,
        jitter: &Jitter,
    ) -> Self {
        let slot = |_| RouteSlot {
            state: Mutex::new(RouteState {
                route: ShardRoute::None,
                waiting: BTreeMap::new(),
                bytes: 0,
                next: 0,
                pusher: RetryTask::None,
                pause: RetryPause::new(FIRST_PAUSE, LONGEST_PAUSE, jitter),
            }),
            changed: Notify::new(),
        };
        RouteTable(Arc::new(RoutesInner {
            node,
            slots: (0..shards).map(slot).collect(),
            max_waiting: policy.max_inbox_requests,
            max_waiting_bytes: policy.max_inbox_bytes,
            runtime: tokio::runtime::Handle::current(),
            shared: shared.clone(),
            inbox: inbox.clone(),
            look,
            waits: watch::Sender::new(WaitsForOwner::Allowed),
            forwarded: Mutex::default(),
            again: AtomicU64::new(0),
        }))
    }

    /// Submits operations of one shard, as [`crate::routing::Shards::submit`] describes.
    pub(crate) fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending {
        let (to, answers) = oneshot::channel();
        let mut pending = Pending::new(answers, ops.len());
        if ops.iter().any(|op| op.operation().lease == OnLease::Begins) {
            let routes = self.clone();
            pending = pending
                .or_undo(move |answers| undo(&answers).into_iter().for_each(|op| routes.put_back(shard, op)));
        }
        if let Err(error) = self.0.inbox.admits(&ops) {
            PendingSubmission::new(shard, ops, patience, to, self.now()).refuse(&error);
        } else {
            self.send(shard, ops, patience, to);
        }
        pending
    }

    /// Applies `op`, which undoes an answer that reached no caller. The answer to `op` is dropped.
    pub(crate) fn put_back(&self, shard: ShardId, op: Op) {
        self.send(shard, vec![op], WhenBusy::Refuse, oneshot::channel().0);
    }

    /// Sets the route to a shard and sends what waits for it.
    pub(crate) fn set(&self, shard: ShardId, route: ShardRoute) {
        let Some(slot) = self.slot(shard) else { return };
        let mut state = slot.state();
        if state.route.is(&route) {
            return;
        }
        state.route = route;
        state.pause.reset();
        if matches!(state.route, ShardRoute::None) {
            return;
        }
        self.send_waiting(&mut state);
        drop(state);
        slot.changed.notify_one();
    }

    /// Removes this route, if it is the present one.
    pub(crate) fn forget(&self, shard: ShardId, route: &ShardRoute) {
        let Some(slot) = self.slot(shard) else { return };
        let mut state = slot.state();
        if state.route.is(route) {
            state.route = ShardRoute::None;
        }
    }

    /// The inbox of a shard that this node owns.
    pub(crate) fn here(&self, shard: ShardId) -> Option<Arc<Inbox>> {
        match &self.slot(shard)?.state().route {
            ShardRoute::Here(inbox) => Some(inbox.clone()),
            ShardRoute::None | ShardRoute::There(_) => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn route(&self, shard: ShardId) -> ShardRoute {
        self.slot(shard).map_or(ShardRoute::None, |slot| slot.state().route.clone())
    }

    /// The shards that this node owns.
    pub(crate) fn all_here(&self) -> Vec<ShardId> {
        self.shards().filter(|shard| self.here(*shard).is_some()).collect()
    }

    /// The number of shards to which no route is known.
    pub(crate) fn lost(&self) -> usize {
        self.0.slots.iter().filter(|slot| matches!(slot.state().route, ShardRoute::None)).count()
    }

    /// All shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..u32::try_from(self.0.slots.len()).unwrap_or(u32::MAX)).map(ShardId)
    }

    /// Ends all waits of reserves of this node with an empty answer.
    pub(crate) fn end_waits(&self) {
        self.0.waits.send_replace(WaitsForOwner::Ended);
    }

    /// Answers everything that waits for a route with an error, because this node ends.
    pub(crate) fn refuse_all(&self, error: &CallError) {
        for slot in &self.0.slots {
            let waiting = {
                let mut state = slot.state();
                state.route = ShardRoute::None;
                state.bytes = 0;
                std::mem::take(&mut state.waiting)
            };
            waiting.into_values().for_each(|submission| submission.refuse(error));
        }
    }

    /// The number of submissions sent to each other node so far, by its name.
    pub(crate) fn forwards(&self) -> Vec<(Box<str>, u64)> {
        let forwarded = self.0.forwarded.lock().unwrap_or_else(PoisonError::into_inner);
        forwarded.iter().map(|(name, n)| (name.clone(), *n)).collect()
    }

    fn count_forward(&self, name: &str) {
        let mut forwarded = self.0.forwarded.lock().unwrap_or_else(PoisonError::into_inner);
        match forwarded.get_mut(name) {
            Some(n) => *n += 1,
            None => drop(forwarded.insert(name.into(), 1)),
        }
    }

    /// The number of submissions sent again because their shard had moved or could not be reached.
    pub(crate) fn sent_again(&self) -> u64 {
        self.0.again.load(Ordering::Relaxed)
    }

    fn slot(&self, shard: ShardId) -> Option<&RouteSlot> {
        self.0.slots.get(shard.0 as usize)
    }

    fn send(&self, shard: ShardId, mut ops: Vec<Op>, patience: WhenBusy, to: oneshot::Sender<Answers>) {
        name_waiters(&mut ops, self.0.node);
        let mut submission = PendingSubmission::new(shard, ops, patience, to, self.now());
        let Some(slot) = self.slot(shard) else {
            submission.why = Some(StoreError::new(ErrorKind::Unavailable, "there is no such shard"));
            return submission.refuse_without_owner();
        };
        let mut state = slot.state();
        submission.seq = state.next;
        state.next += 1;
        if !state.waiting.is_empty() || matches!(state.route, ShardRoute::None) {
            let full = state.waiting.len() >= self.0.max_waiting || state.bytes >= self.0.max_waiting_bytes;
            if full && !submission.ops.iter().all(|op| op.operation().settles) {
                drop(state);
                return submission.refuse(&CallError::Overloaded);
            }
            self.wait_for_route(&mut state, submission);
        } else if let Some(submission) = self.dispatch(&mut state, submission) {
            self.wait_for_route(&mut state, submission);
        }
    }

    /// Puts a submission among those that wait for a route, in the order of submission.
    fn wait_for_route(&self, state: &mut RouteState, mut submission: PendingSubmission) {
        submission.begin_wait(self.now());
        state.bytes += submission.weight;
        let shard = submission.shard;
        state.waiting.insert(submission.seq, submission);
        if state.pusher == RetryTask::None {
            state.pusher = RetryTask::Runs;
            let routes = self.clone();
            self.0.runtime.spawn(async move {
                let _end = routes.end_on_panic();
                routes.retry_waiting(shard).await;
            });
        }
    }

    /// Sends a submission; returns it if it cannot be sent now.
    fn dispatch(
        &self,
        state: &mut RouteState,
        mut submission: PendingSubmission,
    ) -> Option<PendingSubmission> {
        match &state.route {
            ShardRoute::None => return Some(submission),
            ShardRoute::Here(inbox) => {
                let (answer, answers) = oneshot::channel();
                let ops = submission.ops.clone();
                match inbox.offer(Submission {
                    ops,
                    answer,
                    patience: submission.patience,
                    has_waited: false,
                }) {
                    Ok(()) => {
                        let routes = self.clone();
                        let lost = CallError::Lost("the driver ended before it answered");
                        self.0.runtime.spawn(async move {
                            let _end = routes.end_on_panic();
                            let ops = submission.ops.len();
                            let outcome = async {
                                PeerOutcome::Answered(
                                    answers
                                        .await
                                        .unwrap_or_else(|_| (0..ops).map(|_| Err(lost.clone())).collect()),
                                )
                            };
                            routes.follow(submission, outcome).await;
                        });
                    }
                    Err((CallError::Overloaded, _)) => submission.refuse(&CallError::Overloaded),
                    Err((error, _)) => {
                        submission.why = moved(&vec![Err(error)]);
                        state.route = ShardRoute::None;
                        (self.0.look)();
                        return Some(submission);
                    }
                }
            }
            ShardRoute::There(peer) => match peer.ask(submission.shard, submission.patience, &submission.ops)
            {
                Ok(outcome) => {
                    self.count_forward(&peer.node().name);
                    let routes = self.clone();
                    self.0.runtime.spawn(async move {
                        let _end = routes.end_on_panic();
                        let outcome = async {
                            outcome
                                .await
                                .unwrap_or_else(|_| PeerOutcome::Lost("the connection is gone".into()))
                        };
                        routes.follow(submission, outcome).await;
                    });
                }
                Err(NotSent::Overloaded) => submission.refuse(&CallError::Overloaded),
                Err(NotSent::TooLarge(limits)) => {
                    return match submission.without_large(limits, &self.0.runtime) {
                        FrameFit::Rest(rest) => self.dispatch(state, rest),
                        FrameFit::Nothing => None,
                        FrameFit::Pieces(submission) => {
                            self.send_in_pieces(submission, limits);
                            None
                        }
                    };
                }
                Err(NotSent::Away(why)) => {
                    submission.why = Some(StoreError::new(ErrorKind::Unavailable, why));
                    return Some(submission);
                }
            },
        }
        None
    }

    /// Sends operations that the owner does not accept in one frame, piece by piece. Each piece is sent when the one
    /// before is answered, so the operations are decided in their order. Each is accepted or refused by itself, as in
    /// any submission.
    fn send_in_pieces(&self, submission: PendingSubmission, limits: FrameLimits) {
        let (shard, patience) = (submission.shard, submission.patience);
        let (pieces, to) = submission.split(limits);
        let routes = self.clone();
        self.0.runtime.spawn(async move {
            let _end = routes.end_on_panic();
            let mut all = Answers::new();
            for piece in pieces {
                let ops = piece.len();
                if routes.0.shared.has_ended() {
                    // The answers so far stand; nobody accepts the rest any more.
                    all.extend((0..ops).map(|_| Err(CallError::Draining)));
                    continue;
                }
                let (answer, answers) = oneshot::channel();
                routes.send(shard, piece, patience, answer);
                let lost = || (0..ops).map(|_| Err(CallError::Lost("the shard gave no answer"))).collect();
                all.extend(answers.await.unwrap_or_else(|_| lost()));
            }
            if let Err(answers) = to.send(all) {
                undo(&answers).into_iter().for_each(|op| routes.put_back(shard, op));
            }
        });
    }

    /// Waits for the outcome of a submission.
    async fn follow(&self, mut submission: PendingSubmission, outcome: impl Future<Output = PeerOutcome>) {
        let mut outcome = std::pin::pin!(outcome);
        let outcome = if submission.waiters.is_empty() {
            outcome.await
        } else {
            let mut waits = self.0.waits.subscribe();
            let ended = tokio::select! {
                biased;
                outcome = &mut outcome => Some(outcome),
                () = submission.to.closed() => None,
                // The sender is part of this table.
                Ok(_) = waits.wait_for(|waits| *waits == WaitsForOwner::Ended) => None,
            };
            match ended {
                Some(outcome) => outcome,
                // The shard ends the wait and answers as always: with nothing, or with what it has granted before.
                None => {
                    for waiter in &submission.waiters {
                        self.put_back(submission.shard, Op::CancelReserve { waiter: *waiter });
                    }
                    outcome.await
                }
            }
        };
        let (why, look) = match outcome {
            PeerOutcome::Answered(answers) => match moved(&answers) {
                Some(why) => (why, OwnerLookup::Yes),
                None => match unknown(&answers).filter(|_| submission.is_repeatable()) {
                    Some(why) => (why, OwnerLookup::Yes),
                    None => return self.deliver(submission, answers),
                },
            },
            PeerOutcome::NotMine(why) => (StoreError::new(ErrorKind::Unavailable, why), OwnerLookup::Yes),
            PeerOutcome::NotKnown(why) => {
                submission.why = Some(StoreError::new(ErrorKind::Unavailable, why));
                return submission.refuse_without_owner();
            }
            PeerOutcome::NotSent(why) => (StoreError::new(ErrorKind::Unavailable, why), OwnerLookup::No),
            PeerOutcome::Lost(why) if submission.is_repeatable() || mutant::is(Mutant::LostRetried) => {
                (StoreError::new(ErrorKind::Unavailable, why), OwnerLookup::No)
            }
            PeerOutcome::Lost(why) => return submission.refuse_unknown(&why),
        };
        submission.why = Some(why);
        self.again(submission, look);
    }

    fn deliver(&self, submission: PendingSubmission, answers: Answers) {
        if submission.why.is_some()
            && let Some(slot) = self.slot(submission.shard)
        {
            slot.state().pause.reset();
        }
        if let Err(answers) = submission.to.send(answers) {
            undo(&answers).into_iter().for_each(|op| self.put_back(submission.shard, op));
        }
    }

    /// Puts a submission back among those that wait, in its old position: it was certainly not applied, or may be
    /// applied twice.
    fn again(&self, mut submission: PendingSubmission, look: OwnerLookup) {
        submission.reduce_waits(self.now());
        self.0.again.fetch_add(1, Ordering::Relaxed);
        if look == OwnerLookup::Yes {
            (self.0.look)();
        }
        if self.0.shared.has_ended() {
            return submission.refuse(&CallError::Draining);
        }
        let Some(slot) = self.slot(submission.shard) else { return };
        let mut state = slot.state();
        self.wait_for_route(&mut state, submission);
    }

    /// Retries the submissions that wait for a shard until there are none.
    async fn retry_waiting(&self, shard: ShardId) {
        let Some(slot) = self.slot(shard) else { return };
        loop {
            let pause = slot.state().pause.take();
            // A new route sends them by itself; this task is woken to see whether any are left.
            let _ = tokio::time::timeout(pause, slot.changed.notified()).await;
            let mut state = slot.state();
            let waits_ended = *self.0.waits.borrow() == WaitsForOwner::Ended;
            let now = self.now();
            let over: Vec<u64> = state
                .waiting
                .iter()
                .filter(|(_, submission)| {
                    let ends = waits_ended && !submission.waiters.is_empty();
                    ends || submission.has_timed_out(OWNER_TIMEOUT, now) || submission.is_given_up()
                })
                .map(|(seq, _)| *seq)
                .collect();
            for submission in
                over.into_iter().filter_map(|seq| state.waiting.remove(&seq)).collect::<Vec<_>>()
            {
                if waits_ended && !submission.waiters.is_empty() {
                    answer_empty(submission);
                } else {
                    submission.refuse_without_owner();
                }
            }
            state.bytes = state.waiting.values().map(|submission| submission.weight).sum();
            self.send_waiting(&mut state);
            if state.waiting.is_empty() {
                state.pusher = RetryTask::None;
                return;
            }
        }
    }

    /// Sends the waiting submissions of a shard in order, up to the first one that cannot be sent.
    fn send_waiting(&self, state: &mut RouteState) {
        if matches!(state.route, ShardRoute::None) && !state.waiting.is_empty() {
            return (self.0.look)();
        }
        while let Some((_, mut submission)) = state.waiting.pop_first() {
            submission.end_wait(self.now());
            state.bytes = state.bytes.saturating_sub(submission.weight);
            if let Some(submission) = self.dispatch(state, submission) {
                self.wait_for_route(state, submission);
                return;
            }
        }
    }

    /// The clock that is never stopped, as for all instants of a submission.
    fn now(&self) -> Duration {
        self.0.shared.clock().running()
    }

    fn end_on_panic(&self) -> EndOnPanic {
        EndOnPanic::new(&self.0.shared, &self.0.inbox, "the way to a shard")
    }
}

/// Whether the owners of shards must be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerLookup {
    Yes,
    No,
}

/// Ends the wait of a reserve without a route, with the answer that a shard would give.
fn answer_empty(submission: PendingSubmission) {
    let empty = |op: &Op| match op {
        Op::Reserve(_) => Ok(Reply::Reserve(Reserved::Grants(Vec::new()))),
        _ => Err(CallError::Draining),
    };
    let answers = submission.ops.iter().map(empty).collect();
    // The caller may have gone.
    let _ = submission.to.send(answers);
}

impl RouteSlot {
    fn state(&self) -> MutexGuard<'_, RouteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
