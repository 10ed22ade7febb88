//! The way in for front ends: operations in, answers out, nothing in between.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duewheel_core::engine::{Ask, Op, Reply, Reserve, Reserved, WaiterId};
use duewheel_core::id::SessionId;
use duewheel_core::message::State;
use duewheel_core::name::QueueName;
use duewheel_core::store::Level;
use duewheel_core::time::Now;
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::health::Health;
use crate::inbox::{Inbox, Patience, Submission};
use crate::listing::{ListPlace, ListPlaces, Listing};
use crate::local::LocalShard;
use crate::pending::Pending;
use crate::shared::Shared;

/// Takes operations to the engine. Cheap to clone; all clones talk to the same engine.
#[derive(Clone, Debug)]
pub struct Client {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    next_waiter: Arc<AtomicU64>,
    next_session: Arc<AtomicU64>,
    /// `None`: there is one shard, behind the inbox.
    route: Option<Arc<dyn Route>>,
}

/// Takes operations where they belong when there are several shards.
pub trait Route: Send + Sync + fmt::Debug {
    /// As [`Client::offer`]. A reserve that waits ends with [`Op::CancelReserve`], and when its answer has no receiver any more, what it
    /// was granted goes back.
    fn offer(&self, ops: Vec<Op>, patience: Patience) -> Result<Pending, (CallError, Vec<Op>)>;

    /// How many shards there are.
    fn shards(&self) -> u32;

    /// How many reserves wait here and not at a shard; `None` when all of them wait at shards.
    fn waiting(&self) -> Option<u64>;

    /// As [`Client::local_shards`].
    fn local_shards(&self) -> Vec<LocalShard>;

    /// As [`Client::list`].
    fn list(
        &self,
        queue: QueueName,
        state: Option<State>,
        after: Option<ListPlaces>,
        limit: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Listing, CallError>> + Send>>;

    /// Ends all waiting reserves with what there is, and lets none wait any more: a shutdown has begun.
    fn end_waits(&self);
}

/// A consumer's demand, as [`Client::reserve`] takes it.
#[derive(Clone, Debug)]
pub struct Demand {
    /// From which queues.
    pub queues: Vec<QueueName>,
    /// At most so many messages.
    pub max: usize,
    /// How long to wait for the first, in ms.
    pub wait_ms: u64,
    /// Length of the leases in ms; `None`: as message and queue say.
    pub lease_ms: Option<u64>,
    /// Whom the leases are bound to, or [`SessionId::NONE`].
    pub session: SessionId,
    /// Answer [`Reserved::DeadlineSoon`] when a lease of this session has less than this left, in ms.
    pub deadline_margin_ms: Option<u64>,
}

impl Demand {
    /// One message of one queue, without waiting.
    pub fn new(queue: QueueName) -> Self {
        Demand {
            queues: vec![queue],
            max: 1,
            wait_ms: 0,
            lease_ms: None,
            session: SessionId::NONE,
            deadline_margin_ms: None,
        }
    }
}

impl Client {
    /// A way to one shard.
    pub fn new(inbox: Arc<Inbox>, shared: Arc<Shared>) -> Self {
        let one = || Arc::new(AtomicU64::new(1));
        Client { inbox, shared, next_waiter: one(), next_session: one(), route: None }
    }

    /// A way to many shards. `inbox` and `shared` are the node's; sessions get numbers behind `sessions`, which no other node gives.
    pub fn routed(inbox: Arc<Inbox>, shared: Arc<Shared>, route: Arc<dyn Route>, sessions: u64) -> Self {
        // Waiting reserves are named by the same numbers: with one shard the names of all nodes meet there.
        let first = || Arc::new(AtomicU64::new(sessions + 1));
        Client {
            next_waiter: first(),
            next_session: first(),
            route: Some(route),
            ..Client::new(inbox, shared)
        }
    }

    /// Submits operations to be decided in order, next to each other, and answered together when the last answer may
    /// leave. They are not a transaction: each is accepted or refused by itself.
    ///
    /// A waiting reserve must be submitted alone; see [`Client::reserve`].
    ///
    /// # Errors
    /// When nothing was taken: see [`CallError`].
    pub fn submit(&self, ops: Vec<Op>) -> Result<Pending, CallError> {
        self.offer(ops, Patience::None).map_err(|(error, _)| error)
    }

    /// As [`Client::submit`]; operations that are not taken come back, all of them. With [`Patience::Some`] the answers take
    /// some seconds if the store is behind with its work and the operations are new messages alone; what the same caller submits
    /// meanwhile may be decided before.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub fn offer(&self, ops: Vec<Op>, patience: Patience) -> Result<Pending, (CallError, Vec<Op>)> {
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
    /// As [`Client::call`].
    pub async fn ask<A: Ask>(&self, asked: A) -> Result<A::Reply, CallError> {
        Client::answer_to::<A>(self.submit(vec![asked.into_op()])?.await.pop())
    }

    /// Submits operations as [`Client::submit`] does, and returns one typed answer for each, in order.
    ///
    /// # Errors
    /// When nothing was accepted; the result of each operation is in its place.
    ///
    /// # Cancel safety
    /// As [`Client::call`].
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

    /// Submits one operation and returns its answer as it is. For reserves use [`Client::reserve`].
    ///
    /// # Cancel safety
    /// Dropping the future does not take the operation back; whether it was applied is then unknown.
    pub async fn call(&self, op: Op) -> Result<Reply, CallError> {
        let mut answers = self.submit(vec![op])?.await;
        answers.pop().unwrap_or(Err(CallError::NO_ANSWER))
    }

    /// Leases messages, waiting for the first if asked to.
    ///
    /// # Cancel safety
    /// Cancel safe: when the future is dropped, the demand is withdrawn, and messages that were granted to it already go
    /// back at once and do not count as attempts.
    pub async fn reserve(&self, demand: Demand) -> Result<Reserved, CallError> {
        let waiter = self.new_waiter();
        let reserve = Reserve {
            waiter,
            queues: demand.queues,
            max: demand.max,
            max_bytes: usize::MAX,
            wait_ms: demand.wait_ms,
            lease_ms: demand.lease_ms,
            session: demand.session,
            deadline_margin_ms: demand.deadline_margin_ms,
        };
        let pending = self.submit(vec![Op::Reserve(reserve)])?;
        let mut waiting = Waiting { client: self, waiter, pending: Some(pending) };
        let mut answers = match &mut waiting.pending {
            Some(pending) => pending.await,
            None => Vec::new(),
        };
        waiting.pending = None;
        Client::answer_to::<Reserve>(answers.pop())
    }

    /// Lists a queue's messages, or those in one state, in due order; dead ones in the order in which they died. `after` is the `next` of the page
    /// before. A message that stays as it is between two pages is listed once, however many shards there are.
    ///
    /// # Errors
    /// When there was no answer, or not of all shards; and when `after` is of another number of shards.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn list(
        &self,
        queue: QueueName,
        state: Option<State>,
        after: Option<ListPlaces>,
        limit: usize,
    ) -> Result<Listing, CallError> {
        if let Some(route) = &self.route
            && route.shards() != 1
        {
            self.inbox.admits(&[Op::List { queue: queue.clone(), state, after: None, limit }])?;
            return route.list(queue, state, after, limit).await;
        }
        let after = match after.as_ref().map(ListPlaces::as_slice) {
            None => None,
            Some([ListPlace::Behind(place)]) => Some(*place),
            Some([ListPlace::End]) => return Ok(Listing::default()),
            Some(_) => return Err(CallError::WRONG_PLACES),
        };
        let page = self.ask(Op::list(queue, state, after, limit)).await?;
        let next = page.next.map(|place| ListPlaces::new(vec![ListPlace::Behind(place)]));
        Ok(Listing { views: page.views, next })
    }

    /// Whether a submission may find its shard on the move, and then be decided after one that came later: whoever needs an order waits for
    /// the answers of one before the next.
    pub fn is_routed(&self) -> bool {
        self.route.is_some()
    }

    /// How many shards there are; 1 without a cluster.
    pub fn shards(&self) -> u32 {
        self.route.as_ref().map_or(1, |route| route.shards())
    }

    /// Ends waiting reserves that do not wait at this client's own inbox.
    pub fn end_routed_waits(&self) {
        if let Some(route) = &self.route {
            route.end_waits();
        }
    }

    /// A name for a reserve that is submitted by itself. Never used again while the process lives.
    pub fn new_waiter(&self) -> WaiterId {
        WaiterId(self.next_waiter.fetch_add(1, Ordering::Relaxed))
    }

    /// A number for a connection that leases may be bound to. Never used again while the process lives.
    pub fn new_session(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// What a durable reply means here now: the level that answers had last, over several shards of this node the weakest. Each
    /// accepted enqueue says its own.
    pub fn level(&self) -> Level {
        self.shared.level()
    }

    /// Both clocks as the driver reads them.
    pub fn now(&self) -> Now {
        self.shared.now()
    }

    /// How the driver is doing.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// How many reserves wait for a message at this node.
    pub fn waiting(&self) -> u64 {
        let here =
            || self.local_shards().iter().filter_map(LocalShard::stats).map(|stats| stats.waiters).sum();
        self.route.as_ref().and_then(|route| route.waiting()).unwrap_or_else(here)
    }

    /// Asks for new figures: once a call that is made later is answered, [`Client::store_figures`] are of after this call.
    pub fn renew_store_figures(&self) {
        self.shared.want_figures();
    }

    /// The store's own figures: of the last second, or of after the last [`Client::renew_store_figures`]. Over several shards there
    /// are none of all together: see [`Client::local_shards`].
    pub fn store_figures(&self) -> Vec<(&'static str, u64)> {
        self.shared.figures().store
    }

    /// The shards that this node owns, or has owned since it started; one without a number where there is no cluster.
    pub fn local_shards(&self) -> Vec<LocalShard> {
        match &self.route {
            Some(route) => route.local_shards(),
            None => {
                let reign = Some((self.inbox.clone(), self.shared.clone()));
                vec![LocalShard::new(None, reign)]
            }
        }
    }

    fn put_back(&self, op: Op) {
        if let Some(route) = &self.route {
            drop(route.offer(vec![op], Patience::None));
            return;
        }
        let (answer, _) = oneshot::channel();
        // Refused only when the driver is gone, and then there is nothing to put back.
        let _ =
            self.inbox.put(Submission { ops: vec![op], answer, patience: Patience::None, has_waited: false });
    }
}

/// Withdraws a waiting reserve when its future is dropped.
struct Waiting<'a> {
    client: &'a Client,
    waiter: WaiterId,
    pending: Option<Pending>,
}

impl Drop for Waiting<'_> {
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
