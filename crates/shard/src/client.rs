//! The interface for front ends: submits operations and receives answers.

// The library exports this module: its callers have no other place to learn which errors a call returns.
#![warn(clippy::missing_errors_doc)]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use duewheel_core::engine::Reserve;
use duewheel_core::engine::{Ask, Op, QuotaUse, Reply, Reserved, Stats, WaiterId};
use duewheel_core::id::{SessionId, ShardId};
use duewheel_core::message::State;
use duewheel_core::name::QueueName;
use duewheel_core::store::Level;
use duewheel_core::time::Now;
use tokio::sync::oneshot;

use crate::acting;
use crate::activity::{Activities, Activity};
use crate::error::CallError;
use crate::figures::{Counted, is_counter};
use crate::inbox::{Inbox, Pending, Submission, WhenBusy};
use crate::listing::{ListPosition, ListPositions, ListRequest, Listing};
use crate::shared::{DriverShared, Health};

/// Submits operations to the engine. Cheap to clone; all clones use the same engine.
#[derive(Clone, Debug)]
pub struct Client {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
    next_waiter: Arc<AtomicU64>,
    next_session: Arc<AtomicU64>,
    consumers: Activities,
    /// Whether a lone call may be decided on the caller's thread.
    is_served_here: bool,
    /// `None`: there is a single shard, served by the inbox.
    route: Option<Arc<dyn Route>>,
}

/// Routes operations to their shards when there are several.
pub trait Route: Send + Sync + fmt::Debug {
    /// Offers operations like [`Client::offer`]. A waiting reserve ends with [`Op::CancelReserve`]; when nobody
    /// receives its answer any more, the messages granted to it are returned.
    ///
    /// # Errors
    /// See [`Client::offer`].
    fn offer(&self, ops: Vec<Op>, patience: WhenBusy) -> Result<Pending, (CallError, Vec<Op>)>;

    /// The number of shards.
    fn shards(&self) -> u32;

    /// The number of reserves that wait here rather than at a shard; `None` when all of them wait at shards.
    fn waiting(&self) -> Option<u64>;

    /// The number of leases that are bound to connections of this process.
    fn bound_leases(&self) -> u64;

    /// The shards of this process, as [`Client::local_shards`] returns them.
    fn local_shards(&self) -> Vec<LocalShard>;

    /// A page of a listing, as [`Client::list_from`] returns it.
    fn list(&self, asked: ListRequest) -> Pin<Box<dyn Future<Output = Result<Listing, CallError>> + Send>>;

    /// Ends all waiting reserves with what they have, and lets no reserve wait from now on: a shutdown has begun.
    fn end_waits(&self);
}

impl Client {
    /// A client of a single shard.
    pub fn new(inbox: Arc<Inbox>, shared: Arc<DriverShared>) -> Self {
        let one = || Arc::new(AtomicU64::new(1));
        Client {
            inbox,
            shared,
            next_waiter: one(),
            next_session: one(),
            consumers: Activities::default(),
            is_served_here: false,
            route: None,
        }
    }

    /// A client of many shards. `inbox` and `shared` are the node's own; sessions get numbers above `sessions`, which
    /// no other node assigns.
    pub fn routed(
        inbox: Arc<Inbox>,
        shared: Arc<DriverShared>,
        route: Arc<dyn Route>,
        sessions: u64,
    ) -> Self {
        // Waiting reserves get numbers from the same range: with one shard it gets the names from all nodes.
        let first = || Arc::new(AtomicU64::new(sessions + 1));
        Client {
            next_waiter: first(),
            next_session: first(),
            route: Some(route),
            ..Client::new(inbox, shared)
        }
    }

    /// Whether both submit to the same engine.
    pub fn is_same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.inbox, &other.inbox)
    }

    /// Submits operations that are decided in order, without others in between, and answered together once the last
    /// answer may be sent. They are not a transaction: each is accepted or refused separately.
    ///
    /// A waiting reserve must be submitted alone; see [`Client::reserve`].
    ///
    /// # Errors
    /// When nothing was taken: see [`CallError`].
    pub fn submit(&self, ops: Vec<Op>) -> Result<Pending, CallError> {
        self.offer(ops, WhenBusy::Refuse).map_err(|(error, _)| error)
    }

    /// Submits operations like [`Client::submit`], but returns all operations if they are not accepted. With
    /// [`WhenBusy::Wait`] the answers may take some seconds if the store is behind and the operations contain only new
    /// messages; operations that the same caller submits later may then be decided first.
    ///
    /// # Errors
    /// See [`Client::submit`].
    pub fn offer(&self, ops: Vec<Op>, patience: WhenBusy) -> Result<Pending, (CallError, Vec<Op>)> {
        let ops = acting::of_act(ops);
        if let Some(route) = &self.route {
            return match self.inbox.admits(&ops) {
                Ok(()) => route.offer(ops, patience),
                Err(error) => Err((error, ops)),
            };
        }
        let (answer, answers) = oneshot::channel();
        let n = ops.len();
        let submission = Submission { ops, answer, patience, has_waited: false };
        let offered = match self.is_served_here && n == 1 {
            true => self.inbox.offer_here(submission),
            false => self.inbox.offer(submission),
        };
        offered.map(|()| Pending::new(answers, n)).map_err(|(error, Submission { ops, .. })| (error, ops))
    }

    /// A client like this one for threads that do nothing but serve such clients: while the driver's thread sleeps,
    /// submitting a single operation decides it on the thread that submits it, and waits for its sync there. Where syncs
    /// take more than 1 ms, another thread makes them; a disk that hangs holds the thread up as it does the driver's.
    #[must_use]
    pub fn served_here(&self) -> Client {
        Client { is_served_here: true, ..self.clone() }
    }

    /// Submits one operation and returns its typed answer. For reserves use [`Client::reserve`].
    ///
    /// # Errors
    /// When there was no answer: see [`CallError::outcome`]. A refusal is an answer.
    ///
    /// # Cancel safety
    /// See [`Client::call`].
    pub async fn ask<A: Ask>(&self, asked: A) -> Result<A::Reply, CallError> {
        Client::answer_to::<A>(self.submit(vec![asked.into_op()])?.await.pop())
    }

    /// Submits operations like [`Client::submit`], and returns one typed answer for each, in order.
    ///
    /// # Errors
    /// The outer error: nothing was accepted. The result of each operation has its own error.
    ///
    /// # Cancel safety
    /// See [`Client::call`].
    pub async fn ask_many<A: Ask>(
        &self,
        asked: Vec<A>,
    ) -> Result<Vec<Result<A::Reply, CallError>>, CallError> {
        let answers = self.submit(asked.into_iter().map(Ask::into_op).collect())?.await;
        Ok(answers.into_iter().map(|answer| Client::answer_to::<A>(Some(answer))).collect())
    }

    /// Converts an answer to its type. This is the only code that meets an answer to another operation, which is a bug.
    ///
    /// # Errors
    /// When there was no answer, or an answer to another operation.
    pub fn answer_to<A: Ask>(came: Option<Result<Reply, CallError>>) -> Result<A::Reply, CallError> {
        let reply = came.unwrap_or(Err(CallError::NO_ANSWER))?;
        acting::count(&reply);
        A::reply(reply).ok_or(CallError::WRONG_ANSWER)
    }

    /// Submits one operation and returns its answer without conversion. For reserves use [`Client::reserve`].
    ///
    /// # Errors
    /// When there was no answer: see [`CallError::outcome`]. A refusal is an answer.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the operation; whether it was applied is then unknown.
    pub async fn call(&self, op: Op) -> Result<Reply, CallError> {
        let mut answers = self.submit(vec![op])?.await;
        answers.pop().unwrap_or(Err(CallError::NO_ANSWER))
    }

    /// Leases messages, and waits for the first one if the demand has a wait. The demand's number is replaced by a new one.
    ///
    /// # Errors
    /// When there was no answer: see [`CallError::outcome`].
    ///
    /// # Cancel safety
    /// Cancel safe: when the future is dropped, the demand is withdrawn, and messages that were granted to it already
    /// are returned at once and do not count as attempts.
    pub async fn reserve(&self, demand: Reserve) -> Result<Reserved, CallError> {
        let waiter = self.new_waiter();
        let reserve = Reserve { waiter, ..demand };
        let pending = self.submit(vec![Op::Reserve(reserve)])?;
        let mut waiting = CancelOnDrop { client: self, waiter, pending: Some(pending) };
        let mut answers = match &mut waiting.pending {
            Some(pending) => pending.await,
            None => Vec::new(),
        };
        waiting.pending = None;
        Client::answer_to::<Reserve>(answers.pop())
    }

    /// Lists a queue's messages, or those in one state, in due order; dead ones in the order in which they died.
    /// `after` is the `next` of the former page. A message that does not change between two pages is listed once,
    /// whatever the number of shards.
    ///
    /// # Errors
    /// At least one shard gave no answer, or `after` belongs to another number of shards.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn list(
        &self,
        queue: QueueName,
        state: Option<State>,
        after: Option<ListPositions>,
        limit: usize,
    ) -> Result<Listing, CallError> {
        self.list_from(ListRequest { queue, state, after, limit, from: None }).await
    }

    /// A page like that of [`Client::list`], but what is due before `from` may be left out: where the list is in due
    /// order it is, and costs nothing. Each page needs the same `from`.
    ///
    /// # Errors
    /// See [`Client::list`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn list_from(&self, asked: ListRequest) -> Result<Listing, CallError> {
        if let Some(route) = &self.route
            && route.shards() != 1
        {
            let ListRequest { queue, state, limit, from, .. } = asked.clone();
            self.inbox.admits(&[Op::List { queue, state, after: None, limit, from }])?;
            return route.list(asked).await;
        }
        let ListRequest { queue, state, after, limit, from } = asked;
        let after = match after.as_ref().map(ListPositions::as_slice) {
            None => None,
            Some([ListPosition::Behind(place)]) => Some(*place),
            Some([ListPosition::End]) => return Ok(Listing::default()),
            Some(_) => return Err(CallError::WRONG_POSITIONS),
        };
        let page = self.ask(Op::list(queue, state, after, limit, from)).await?;
        let next = page.next.map(|place| ListPositions::new(vec![ListPosition::Behind(place)]));
        Ok(Listing { views: page.views, next })
    }

    /// Whether a submission may have to be forwarded, so that it can be decided after a later one: a caller that needs
    /// an order must wait for the answers to one submission before it sends the next.
    pub fn is_routed(&self) -> bool {
        self.route.is_some()
    }

    /// The number of shards; 1 without a cluster.
    pub fn shards(&self) -> u32 {
        self.route.as_ref().map_or(1, |route| route.shards())
    }

    /// Ends the waiting reserves that do not wait in this client's own inbox.
    pub fn end_routed_waits(&self) {
        if let Some(route) = &self.route {
            route.end_waits();
        }
    }

    /// The number of leases that are bound to connections of this process: they end with it, while all others survive a
    /// restart. Cancel safe.
    ///
    /// # Errors
    /// See [`Client::ask`].
    pub async fn bound_leases(&self) -> Result<u64, CallError> {
        match &self.route {
            Some(route) => Ok(route.bound_leases()),
            None => Ok(self.ask(Op::stats()).await?.bound_leases),
        }
    }

    /// A new id for a waiting reserve. Never reused while the process lives.
    pub fn new_waiter(&self) -> WaiterId {
        WaiterId(self.next_waiter.fetch_add(1, Ordering::Relaxed))
    }

    /// A new id for a connection that leases may be bound to. Never reused while the process lives.
    pub fn new_session(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// The durability of the most recent answers; over several shards of this node the weakest of them. Each accepted
    /// enqueue reports its own.
    pub fn level(&self) -> Level {
        self.shared.level()
    }

    /// Both clocks as the driver reads them.
    pub fn now(&self) -> Now {
        self.shared.now()
    }

    /// The state of the driver.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// The number of reserves that wait for a message at this node.
    pub fn waiting(&self) -> u64 {
        let here =
            || self.local_shards().iter().filter_map(LocalShard::stats).map(|stats| stats.waiters).sum();
        self.route.as_ref().and_then(|route| route.waiting()).unwrap_or_else(here)
    }

    /// Requests new figures: once a later call has been answered, [`Client::store_figures`] are no older than this
    /// call.
    pub fn renew_store_figures(&self) {
        self.shared.want_figures();
    }

    /// The store's own figures: at most a second old, or as of the last [`Client::renew_store_figures`]. Over several
    /// shards there are no combined figures: see [`Client::local_shards`].
    pub fn store_figures(&self) -> Vec<(&'static str, u64)> {
        self.shared.figures().store
    }

    /// The shards that this node owns or has owned since it started; without a cluster, the only shard, which then has
    /// no number.
    pub fn local_shards(&self) -> Vec<LocalShard> {
        match &self.route {
            Some(route) => route.local_shards(),
            None => {
                let reign = Some((self.inbox.clone(), self.shared.clone()));
                vec![LocalShard::new(None, reign)]
            }
        }
    }

    /// Registers a consumer of this process, until the returned value is dropped.
    pub fn register(&self, queue: QueueName) -> Arc<Activity> {
        self.consumers.add(queue)
    }

    /// The consumers of this process that were registered.
    pub fn consumers(&self) -> Vec<Arc<Activity>> {
        self.consumers.all()
    }

    fn put_back(&self, op: Op) {
        if let Some(route) = &self.route {
            drop(route.offer(vec![op], WhenBusy::Refuse));
            return;
        }
        let (answer, _) = oneshot::channel();
        // Refused only when the driver is gone, and then there is nothing to put back.
        let _ = self.inbox.put(Submission {
            ops: vec![op],
            answer,
            patience: WhenBusy::Refuse,
            has_waited: false,
        });
    }
}

/// Cancels a waiting reserve when its future is dropped.
struct CancelOnDrop<'a> {
    client: &'a Client,
    waiter: WaiterId,
    pending: Option<Pending>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(mut pending) = self.pending.take() else { return };
        match pending.last() {
            // The grants had already left the driver.
            Some(answers) => {
                let leases: Vec<_> = answers.iter().flatten().flat_map(Reply::leases).collect();
                if !leases.is_empty() {
                    self.client.put_back(Op::Undelivered { leases });
                }
            }
            // The driver sees the closed channel if it answers before it sees this.
            None => self.client.put_back(Op::CancelReserve { waiter: self.waiter }),
        }
    }
}

/// A shard that this node owns or has owned.
#[derive(Clone, Debug)]
pub struct LocalShard {
    shard: Option<ShardId>,
    /// The counts of earlier runs in this process.
    past: Counted,
    /// The current run.
    reign: Option<(Arc<Inbox>, Arc<DriverShared>)>,
}

impl LocalShard {
    /// A shard without counts so far; `reign` is the current run, if this node owns the shard.
    pub fn new(shard: Option<ShardId>, reign: Option<(Arc<Inbox>, Arc<DriverShared>)>) -> Self {
        LocalShard { shard, past: Counted::default(), reign }
    }

    /// Starts a run on this node. The one before must have been folded.
    pub fn begin(&mut self, inbox: Arc<Inbox>, shared: Arc<DriverShared>) {
        self.reign = Some((inbox, shared));
    }

    /// Ends the current run, if there is one: its counts are kept.
    pub fn fold(&mut self) {
        if let Some((_, shared)) = self.reign.take() {
            self.past.add(&shared.counted());
        }
    }

    /// Adds the time in ms in which nobody owned the shard before this node took it.
    pub fn add_unowned(&mut self, ms: u64) {
        self.past.unowned_ms += ms;
    }

    /// Whether the shard has done everything that was to be done by now; true for one that this node does not own. For a
    /// clock that stands: on any other it is true only for moments.
    pub fn has_caught_up(&self) -> bool {
        // In this order: what was taken out of the inbox is work until the driver sleeps again.
        self.reign.as_ref().is_none_or(|(inbox, shared)| inbox.is_empty() && shared.has_caught_up())
    }

    /// How long it takes until time next changes a message of a shard that has caught up; `None`: never.
    pub fn next_event_in(&self) -> Option<Duration> {
        self.reign.as_ref().and_then(|(_, shared)| shared.next_event_in())
    }

    /// The number of the shard; `None` without a cluster.
    pub fn shard(&self) -> Option<ShardId> {
        self.shard
    }

    /// Everything this process has counted for the shard.
    pub fn counted(&self) -> Counted {
        let mut counted = self.past.clone();
        if let Some((_, shared)) = &self.reign {
            counted.add(&shared.counted());
        }
        counted
    }

    /// The state of the shard, as its driver last reported it: at most a second ago, or since [`LocalShard::renew`].
    /// `None` when this node does not own it.
    pub fn stats(&self) -> Option<Stats> {
        self.reign.as_ref().map(|(_, shared)| shared.figures().stats)
    }

    /// Use of quotas by tenants, in this shard.
    pub fn quotas(&self) -> Vec<QuotaUse> {
        self.reign.as_ref().map(|(_, shared)| shared.figures().quotas).unwrap_or_default()
    }

    /// The store's figures that are not counters.
    pub fn states(&self) -> Vec<(&'static str, u64)> {
        let store = self.reign.as_ref().map(|(_, shared)| shared.figures().store).unwrap_or_default();
        store.into_iter().filter(|(name, _)| !is_counter(name)).collect()
    }

    /// Submits an operation to this shard directly, and to no other node.
    ///
    /// # Errors
    /// This node does not own the shard, or it accepts nothing.
    pub fn ask(&self, op: Op) -> Result<Pending, CallError> {
        let Some((inbox, _)) = &self.reign else {
            return Err(CallError::Closed("this node does not own the shard"));
        };
        let (answer, answers) = oneshot::channel();
        match inbox.offer(Submission { ops: vec![op], answer, patience: WhenBusy::Refuse, has_waited: false })
        {
            Ok(()) => Ok(Pending::new(answers, 1)),
            Err((error, _)) => Err(error),
        }
    }

    /// Requests figures as of now or later: they are available once an operation submitted later has been answered.
    pub fn renew(&self) {
        if let Some((_, shared)) = &self.reign {
            shared.want_figures();
        }
    }
}
