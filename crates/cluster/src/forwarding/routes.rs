//! The way to each shard, and the line of those that have none at the moment.
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
use duewheel_shard::backoff::{Jitter, RetryPause};
use duewheel_shard::error::CallError;
use duewheel_shard::inbox::{Answers, Inbox, Submission, WhenBusy};
use duewheel_shard::pending::Pending;
use duewheel_shard::shared::{DriverShared, EndOnPanic};
use tokio::sync::{Notify, oneshot, watch};

use crate::forwarding::attempt::{FrameFit, PendingSubmission, moved, name_waiters, undo, unknown};
use crate::transport::wire::FrameLimits;
use crate::transport::{NotSent, Peer, PeerOutcome};

/// How long a submission looks for an owner: less than a client waits for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How long a line waits before it is tried again, if nothing new is heard of its shard.
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
    max_line: usize,
    max_line_bytes: usize,
    runtime: tokio::runtime::Handle,
    /// Of the node.
    shared: Arc<DriverShared>,
    inbox: Arc<Inbox>,
    /// Asks for a look at the owners of all shards.
    look: Box<dyn Fn() + Send + Sync>,
    /// Ends the waits on behalf of this node.
    waits: watch::Sender<WaitsForOwner>,
    /// Submissions sent to other nodes, by their names.
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
    /// The way is another one.
    changed: Notify,
}

#[derive(Debug)]
struct RouteState {
    way: ShardRoute,
    line: BTreeMap<u64, PendingSubmission>,
    bytes: usize,
    next: u64,
    pusher: RetryTask,
    pause: RetryPause,
}

/// Whether a task retries the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryTask {
    None,
    Runs,
}

impl fmt::Debug for RouteTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ways").field("slots", &self.0.slots.len()).finish_non_exhaustive()
    }
}

impl RouteTable {
    /// No way is known yet. `look` is called when somebody should look who owns what; it must not block. Lines are as long as the
    /// policy lets an inbox be.
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
                way: ShardRoute::None,
                line: BTreeMap::new(),
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
            max_line: policy.max_inbox_requests,
            max_line_bytes: policy.max_inbox_bytes,
            runtime: tokio::runtime::Handle::current(),
            shared: shared.clone(),
            inbox: inbox.clone(),
            look,
            waits: watch::Sender::new(WaitsForOwner::Allowed),
            forwarded: Mutex::default(),
            again: AtomicU64::new(0),
        }))
    }

    /// As [`crate::shards::Shards::submit`].
    pub(crate) fn submit(&self, shard: ShardId, ops: Vec<Op>, patience: WhenBusy) -> Pending {
        let (to, answers) = oneshot::channel();
        let mut pending = Pending::new(answers, ops.len());
        if ops.iter().any(|op| op.operation().lease == OnLease::Begins) {
            let ways = self.clone();
            pending = pending
                .or_undo(move |answers| undo(&answers).into_iter().for_each(|op| ways.put_back(shard, op)));
        }
        if let Err(error) = self.0.inbox.admits(&ops) {
            PendingSubmission::new(shard, ops, patience, to, self.now()).refuse(&error);
        } else {
            self.send(shard, ops, patience, to);
        }
        pending
    }

    /// Undoes what reached nobody. Nobody waits for the answer.
    pub(crate) fn put_back(&self, shard: ShardId, op: Op) {
        self.send(shard, vec![op], WhenBusy::Refuse, oneshot::channel().0);
    }

    /// Sets the way to a shard; its line goes there.
    pub(crate) fn set(&self, shard: ShardId, way: ShardRoute) {
        let Some(slot) = self.slot(shard) else { return };
        let mut state = slot.state();
        if state.way.is(&way) {
            return;
        }
        state.way = way;
        state.pause.reset();
        if matches!(state.way, ShardRoute::None) {
            return;
        }
        self.push_line(&mut state);
        drop(state);
        slot.changed.notify_one();
    }

    /// This way leads nowhere any more.
    pub(crate) fn forget(&self, shard: ShardId, way: &ShardRoute) {
        let Some(slot) = self.slot(shard) else { return };
        let mut state = slot.state();
        if state.way.is(way) {
            state.way = ShardRoute::None;
        }
    }

    /// The inbox of a shard that is here.
    pub(crate) fn here(&self, shard: ShardId) -> Option<Arc<Inbox>> {
        match &self.slot(shard)?.state().way {
            ShardRoute::Here(inbox) => Some(inbox.clone()),
            ShardRoute::None | ShardRoute::There(_) => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn way(&self, shard: ShardId) -> ShardRoute {
        self.slot(shard).map_or(ShardRoute::None, |slot| slot.state().way.clone())
    }

    /// The shards that this node owns.
    pub(crate) fn all_here(&self) -> Vec<ShardId> {
        self.shards().filter(|shard| self.here(*shard).is_some()).collect()
    }

    /// The number of shards to which no route is known.
    pub(crate) fn lost(&self) -> usize {
        self.0.slots.iter().filter(|slot| matches!(slot.state().way, ShardRoute::None)).count()
    }

    /// All shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..u32::try_from(self.0.slots.len()).unwrap_or(u32::MAX)).map(ShardId)
    }

    /// Reserves of this node that wait end with an empty answer.
    pub(crate) fn end_waits(&self) {
        self.0.waits.send_replace(WaitsForOwner::Ended);
    }

    /// Answers everything that waits for a route, because this node ends.
    pub(crate) fn refuse_all(&self, error: &CallError) {
        for slot in &self.0.slots {
            let line = {
                let mut state = slot.state();
                state.way = ShardRoute::None;
                state.bytes = 0;
                std::mem::take(&mut state.line)
            };
            line.into_values().for_each(|parcel| parcel.refuse(error));
        }
    }

    /// Submissions sent to other nodes so far, by the names of these.
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

    /// Submissions sent again because their shard had moved or could not be reached.
    pub(crate) fn sent_again(&self) -> u64 {
        self.0.again.load(Ordering::Relaxed)
    }

    fn slot(&self, shard: ShardId) -> Option<&RouteSlot> {
        self.0.slots.get(shard.0 as usize)
    }

    fn send(&self, shard: ShardId, mut ops: Vec<Op>, patience: WhenBusy, to: oneshot::Sender<Answers>) {
        name_waiters(&mut ops, self.0.node);
        let mut parcel = PendingSubmission::new(shard, ops, patience, to, self.now());
        let Some(slot) = self.slot(shard) else {
            parcel.why = Some(StoreError::new(ErrorKind::Unavailable, "there is no such shard"));
            return parcel.refuse_without_owner();
        };
        let mut state = slot.state();
        parcel.seq = state.next;
        state.next += 1;
        if !state.line.is_empty() || matches!(state.way, ShardRoute::None) {
            let full = state.line.len() >= self.0.max_line || state.bytes >= self.0.max_line_bytes;
            if full && !parcel.ops.iter().all(|op| op.operation().settles) {
                drop(state);
                return parcel.refuse(&CallError::Overloaded);
            }
            self.stand(&mut state, parcel);
        } else if let Some(parcel) = self.dispatch(&mut state, parcel) {
            self.stand(&mut state, parcel);
        }
    }

    /// Adds a submission to the line, in the order of submission.
    fn stand(&self, state: &mut RouteState, mut parcel: PendingSubmission) {
        parcel.stands(self.now());
        state.bytes += parcel.weight;
        let shard = parcel.shard;
        state.line.insert(parcel.seq, parcel);
        if state.pusher == RetryTask::None {
            state.pusher = RetryTask::Runs;
            let ways = self.clone();
            self.0.runtime.spawn(async move {
                let _end = ways.end_on_panic();
                ways.push(shard).await;
            });
        }
    }

    /// Sends a submission; returns it if it cannot be sent now.
    fn dispatch(&self, state: &mut RouteState, mut parcel: PendingSubmission) -> Option<PendingSubmission> {
        match &state.way {
            ShardRoute::None => return Some(parcel),
            ShardRoute::Here(inbox) => {
                let (answer, answers) = oneshot::channel();
                let ops = parcel.ops.clone();
                match inbox.offer(Submission { ops, answer, patience: parcel.patience, has_waited: false }) {
                    Ok(()) => {
                        let ways = self.clone();
                        let lost = CallError::Lost("the driver ended before it answered");
                        self.0.runtime.spawn(async move {
                            let _end = ways.end_on_panic();
                            let ops = parcel.ops.len();
                            let outcome = async {
                                PeerOutcome::Answered(
                                    answers
                                        .await
                                        .unwrap_or_else(|_| (0..ops).map(|_| Err(lost.clone())).collect()),
                                )
                            };
                            ways.follow(parcel, outcome).await;
                        });
                    }
                    Err((CallError::Overloaded, _)) => parcel.refuse(&CallError::Overloaded),
                    Err((error, _)) => {
                        parcel.why = moved(&vec![Err(error)]);
                        state.way = ShardRoute::None;
                        (self.0.look)();
                        return Some(parcel);
                    }
                }
            }
            ShardRoute::There(peer) => match peer.ask(parcel.shard, parcel.patience, &parcel.ops) {
                Ok(outcome) => {
                    self.count_forward(&peer.node().name);
                    let ways = self.clone();
                    self.0.runtime.spawn(async move {
                        let _end = ways.end_on_panic();
                        let outcome = async {
                            outcome
                                .await
                                .unwrap_or_else(|_| PeerOutcome::Lost("the connection is gone".into()))
                        };
                        ways.follow(parcel, outcome).await;
                    });
                }
                Err(NotSent::Overloaded) => parcel.refuse(&CallError::Overloaded),
                Err(NotSent::TooLarge(limits)) => {
                    return match parcel.without_large(limits, &self.0.runtime) {
                        FrameFit::Rest(rest) => self.dispatch(state, rest),
                        FrameFit::Nothing => None,
                        FrameFit::Pieces(parcel) => {
                            self.send_in_pieces(parcel, limits);
                            None
                        }
                    };
                }
                Err(NotSent::NotKnown(why)) => {
                    parcel.why = Some(StoreError::new(ErrorKind::Unavailable, why));
                    parcel.refuse_without_owner();
                }
                Err(NotSent::Away(why)) => {
                    parcel.why = Some(StoreError::new(ErrorKind::Unavailable, why));
                    return Some(parcel);
                }
            },
        }
        None
    }

    /// Sends operations that the owner does not take together: one piece after the other, each when the one before is
    /// answered, so that they are decided in their order. As in any submission, each is accepted or refused by itself.
    fn send_in_pieces(&self, parcel: PendingSubmission, limits: FrameLimits) {
        let (shard, patience) = (parcel.shard, parcel.patience);
        let (pieces, to) = parcel.in_pieces(limits);
        let ways = self.clone();
        self.0.runtime.spawn(async move {
            let _end = ways.end_on_panic();
            let mut all = Answers::new();
            for piece in pieces {
                let ops = piece.len();
                if ways.0.shared.has_ended() {
                    // What was asked before is answered; nobody takes the rest any more.
                    all.extend((0..ops).map(|_| Err(CallError::Draining)));
                    continue;
                }
                let (answer, answers) = oneshot::channel();
                ways.send(shard, piece, patience, answer);
                let lost = || (0..ops).map(|_| Err(CallError::Lost("the shard gave no answer"))).collect();
                all.extend(answers.await.unwrap_or_else(|_| lost()));
            }
            if let Err(answers) = to.send(all) {
                undo(&answers).into_iter().for_each(|op| ways.put_back(shard, op));
            }
        });
    }

    /// Waits for the outcome of a submission.
    async fn follow(&self, mut parcel: PendingSubmission, outcome: impl Future<Output = PeerOutcome>) {
        let mut outcome = std::pin::pin!(outcome);
        let outcome = if parcel.waiters.is_empty() {
            outcome.await
        } else {
            let mut waits = self.0.waits.subscribe();
            let ended = tokio::select! {
                biased;
                outcome = &mut outcome => Some(outcome),
                () = parcel.to.closed() => None,
                // The sender lives as long as we do.
                Ok(_) = waits.wait_for(|waits| *waits == WaitsForOwner::Ended) => None,
            };
            match ended {
                Some(outcome) => outcome,
                // The shard ends the wait, and its answer comes as ever: empty, or with what it had granted before.
                None => {
                    for waiter in &parcel.waiters {
                        self.put_back(parcel.shard, Op::CancelReserve { waiter: *waiter });
                    }
                    outcome.await
                }
            }
        };
        let (why, look) = match outcome {
            PeerOutcome::Answered(answers) => match moved(&answers) {
                Some(why) => (why, OwnerLookup::Yes),
                None => match unknown(&answers).filter(|_| parcel.is_repeatable()) {
                    Some(why) => (why, OwnerLookup::Yes),
                    None => return self.deliver(parcel, answers),
                },
            },
            PeerOutcome::NotMine(why) => (StoreError::new(ErrorKind::Unavailable, why), OwnerLookup::Yes),
            PeerOutcome::NotSent(why) => (StoreError::new(ErrorKind::Unavailable, why), OwnerLookup::No),
            PeerOutcome::Lost(why) if parcel.is_repeatable() || mutant::is(Mutant::LostRetried) => {
                (StoreError::new(ErrorKind::Unavailable, why), OwnerLookup::No)
            }
            PeerOutcome::Lost(why) => return parcel.refuse_unknown(&why),
        };
        parcel.why = Some(why);
        self.again(parcel, look);
    }

    fn deliver(&self, parcel: PendingSubmission, answers: Answers) {
        if parcel.why.is_some()
            && let Some(slot) = self.slot(parcel.shard)
        {
            slot.state().pause.reset();
        }
        if let Err(answers) = parcel.to.send(answers) {
            undo(&answers).into_iter().for_each(|op| self.put_back(parcel.shard, op));
        }
    }

    /// It was certainly not applied, or may be applied twice: back into the line, in its old place.
    fn again(&self, mut parcel: PendingSubmission, look: OwnerLookup) {
        parcel.comes_back(self.now());
        self.0.again.fetch_add(1, Ordering::Relaxed);
        if look == OwnerLookup::Yes {
            (self.0.look)();
        }
        if self.0.shared.has_ended() {
            return parcel.refuse(&CallError::Draining);
        }
        let Some(slot) = self.slot(parcel.shard) else { return };
        let mut state = slot.state();
        self.stand(&mut state, parcel);
    }

    /// Retries the submissions of a line until it is empty.
    async fn push(&self, shard: ShardId) {
        let Some(slot) = self.slot(shard) else { return };
        loop {
            let pause = slot.state().pause.take();
            // A new way pushes the line by itself; this is woken to see whether that was all.
            let _ = tokio::time::timeout(pause, slot.changed.notified()).await;
            let mut state = slot.state();
            let waits_ended = *self.0.waits.borrow() == WaitsForOwner::Ended;
            let now = self.now();
            let over: Vec<u64> = state
                .line
                .iter()
                .filter(|(_, parcel)| {
                    let ends = waits_ended && !parcel.waiters.is_empty();
                    ends || parcel.is_over(PATIENCE, now) || parcel.is_given_up()
                })
                .map(|(seq, _)| *seq)
                .collect();
            for parcel in over.into_iter().filter_map(|seq| state.line.remove(&seq)).collect::<Vec<_>>() {
                if waits_ended && !parcel.waiters.is_empty() {
                    end_wait(parcel);
                } else {
                    parcel.refuse_without_owner();
                }
            }
            state.bytes = state.line.values().map(|parcel| parcel.weight).sum();
            self.push_line(&mut state);
            if state.line.is_empty() {
                state.pusher = RetryTask::None;
                return;
            }
        }
    }

    /// Sends the submissions of a line in order, up to the first one that cannot be sent.
    fn push_line(&self, state: &mut RouteState) {
        if matches!(state.way, ShardRoute::None) && !state.line.is_empty() {
            return (self.0.look)();
        }
        while let Some((_, mut parcel)) = state.line.pop_first() {
            parcel.leaves(self.now());
            state.bytes = state.bytes.saturating_sub(parcel.weight);
            if let Some(parcel) = self.dispatch(state, parcel) {
                self.stand(state, parcel);
                return;
            }
        }
    }

    /// By the clock that runs, as all instants of a parcel.
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

/// A reserve that waited in line for its shard ends as one at the shard does.
fn end_wait(parcel: PendingSubmission) {
    let empty = |op: &Op| match op {
        Op::Reserve(_) => Ok(Reply::Reserve(Reserved::Grants(Vec::new()))),
        _ => Err(CallError::Draining),
    };
    let answers = parcel.ops.iter().map(empty).collect();
    // Nobody there any more: nothing to tell.
    let _ = parcel.to.send(answers);
}

impl RouteSlot {
    fn state(&self) -> MutexGuard<'_, RouteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
