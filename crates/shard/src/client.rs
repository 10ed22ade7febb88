//! The interface for front ends: submits operations and receives answers.

// The library exports this module: its callers have no other place to learn which errors a call returns.
#![warn(clippy::missing_errors_doc)]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duewheel_core::engine::{Ask, Op, Reply, Reserve, Reserved, WaiterId};
use duewheel_core::id::SessionId;
use duewheel_core::message::{MaxAttempts, State};
use duewheel_core::name::QueueName;
use duewheel_core::store::Level;
use duewheel_core::time::Now;
use tokio::sync::oneshot;

use crate::activity::{Activities, Activity};
use crate::error::CallError;
use crate::health::Health;
use crate::inbox::{Inbox, Submission, WhenBusy};
use crate::listing::{ListPosition, ListPositions, ListRequest, Listing};
use crate::local::LocalShard;
use crate::pending::Pending;
use crate::shared::DriverShared;

/// Submits operations to the engine. Cheap to clone; all clones use the same engine.
#[derive(Clone, Debug)]
pub struct Client {
    inbox: Arc<Inbox>,
    shared: Arc<DriverShared>,
    next_waiter: Arc<AtomicU64>,
    next_session: Arc<AtomicU64>,
    consumers: Activities,
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

    /// The shards of this process, as [`Client::local_shards`] returns them.
    fn local_shards(&self) -> Vec<LocalShard>;

    /// A page of a listing, as [`Client::list_from`] returns it.
    fn list(&self, asked: ListRequest) -> Pin<Box<dyn Future<Output = Result<Listing, CallError>> + Send>>;

    /// Ends all waiting reserves with what they have, and lets no reserve wait from now on: a shutdown has begun.
    fn end_waits(&self);
}

/// A consumer's demand, as [`Client::reserve`] takes it.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The queues to reserve from.
    pub queues: Vec<QueueName>,
    /// The largest number of messages of a queue, for those of `queues` that have a number of their own, each from 1.
    pub max_of: Vec<(QueueName, usize)>,
    /// The largest number of messages.
    pub max: usize,
    /// How long to wait for the first message, in ms.
    pub wait_ms: u64,
    /// The lease duration in ms; `None`: as the message or its queue defines it.
    pub lease_ms: Option<u64>,
    /// Number of attempts that the consumer allows a message without a number of its own; `None`: as the queue defines it.
    pub max_attempts: Option<MaxAttempts>,
    /// The session that the leases are bound to, or [`SessionId::NONE`].
    pub session: SessionId,
    /// Answer [`Reserved::DeadlineSoon`] when a lease of this session has less than this time left, in ms.
    pub deadline_margin_ms: Option<u64>,
}

impl Demand {
    /// A demand for one message of one queue, without waiting.
    pub fn new(queue: QueueName) -> Self {
        Demand {
            queues: vec![queue],
            max_of: Vec::new(),
            max_attempts: None,
            max: 1,
            wait_ms: 0,
            lease_ms: None,
            session: SessionId::NONE,
            deadline_margin_ms: None,
        }
    }
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
        if let Some(route) = &self.route {
            return match self.inbox.admits(&ops) {
                Ok(()) => route.offer(ops, patience),
                Err(error) => Err((error, ops)),
            };
        }
        let (answer, answers) = oneshot::channel();
        let n = ops.len();
        match self.inbox.offer(Submission { ops, answer, patience, has_waited: false }) {
            Ok(()) => Ok(Pending::new(answers, n)),
            Err((error, Submission { ops, .. })) => Err((error, ops)),
        }
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

    /// Leases messages, and waits for the first one if the demand has a wait.
    ///
    /// # Errors
    /// When there was no answer: see [`CallError::outcome`].
    ///
    /// # Cancel safety
    /// Cancel safe: when the future is dropped, the demand is withdrawn, and messages that were granted to it already
    /// are returned at once and do not count as attempts.
    pub async fn reserve(&self, demand: Demand) -> Result<Reserved, CallError> {
        let waiter = self.new_waiter();
        let reserve = Reserve {
            waiter,
            queues: demand.queues,
            max_of: demand.max_of,
            max_attempts: demand.max_attempts,
            max: demand.max,
            max_bytes: usize::MAX,
            wait_ms: demand.wait_ms,
            lease_ms: demand.lease_ms,
            session: demand.session,
            deadline_margin_ms: demand.deadline_margin_ms,
        };
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
