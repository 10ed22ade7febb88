//! A queue by its name: schedule, change your mind, look, consume.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::{
    Applied, Attempt, ChangeRefusal, Edit, Op, Outline, Past, QueueView, Reply, Reserved, Settled, Target,
    View, When,
};
use duewheel_core::id::MessageId;
use duewheel_core::name::{BadName, Key, QueueName};
use duewheel_core::policy::QueueSettings;
use duewheel_core::store::Level;
use duewheel_core::time::{WallMs, ceil_ms};
use duewheel_shard::client::Demand;
use duewheel_shard::error::CallError;
use serde::Serialize;

use crate::Duewheel;
use crate::enqueue::Draft;
use crate::message::Message;

/// A queue by its name. Cheap; make one wherever it is needed. A name that is not one shows when it is used.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) wheel: Duewheel,
    pub(crate) name: Result<QueueName, BadName>,
}

/// A call on a queue that brought nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QueueError {
    /// The queue's name is not one.
    #[error("queue name {0}")]
    Name(#[from] BadName),
    /// The value does not serialise to JSON.
    #[error("the message does not serialise to JSON: {0}")]
    Json(String),
    /// The message cannot be changed like this now.
    #[error("refused: {0:?}")]
    Refused(ChangeRefusal),
    /// The lease is not the message's latest, or the message is gone.
    #[error("the lease is lost: somebody else may have the message")]
    LeaseLost,
    /// There was no answer. See [`CallError::outcome`].
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The truthful answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// It will not be delivered any more; how safe that is.
    Cancelled(Level),
    /// Too late: a consumer has it. If that attempt fails, it can be cancelled again.
    Leased,
    /// Nothing is pending: delivered, cancelled, or never there.
    NotFound,
}

impl Duewheel {
    /// A queue by its name.
    pub fn queue(&self, name: &str) -> Queue {
        Queue { wheel: self.clone(), name: QueueName::new(name) }
    }
}

impl Queue {
    /// A message whose body is the value as JSON.
    pub fn message<T: Serialize + ?Sized>(&self, value: &T) -> Draft {
        let body = serde_json::to_vec(value).map(Bytes::from).map_err(|e| e.to_string());
        Draft::new(self.wheel.client().clone(), self.name.clone(), body)
    }

    /// A message with these bytes.
    pub fn body(&self, body: impl Into<Bytes>) -> Draft {
        Draft::new(self.wheel.client().clone(), self.name.clone(), Ok(body.into()))
    }

    /// Takes a message back by its key.
    pub async fn cancel_key(&self, key: &str) -> Result<Cancel, QueueError> {
        self.cancel(self.target(key)?).await
    }

    /// Takes a message back by its id.
    pub async fn cancel_id(&self, id: MessageId) -> Result<Cancel, QueueError> {
        self.cancel(Target::Id(id)).await
    }

    /// Gives the message with this key another delay, from now.
    pub async fn postpone_key(&self, key: &str, delay: Duration) -> Result<Applied<Outline>, QueueError> {
        self.postpone(key, When::After(ceil_ms(delay))).await
    }

    /// Gives the message with this key another instant.
    pub async fn postpone_key_to(
        &self,
        key: &str,
        instant: SystemTime,
    ) -> Result<Applied<Outline>, QueueError> {
        let due_at = WallMs::from_system_time_up(instant);
        self.postpone(key, When::At { due_at, past: Past::Refuse }).await
    }

    /// Makes the message with this key due now.
    pub async fn fire_key(&self, key: &str) -> Result<Applied<Outline>, QueueError> {
        let target = self.target(key)?;
        self.change(Op::Fire { target }).await
    }

    /// Looks at the message with this key.
    pub async fn get_key(&self, key: &str) -> Result<Option<View>, QueueError> {
        let target = self.target(key)?;
        match self.wheel.client().call(Op::Get { target }).await? {
            Reply::View(view) => Ok(view.map(|v| *v)),
            _ => Err(CallError::WRONG_ANSWER.into()),
        }
    }

    /// Looks at the queue; `None` when there is nothing of it.
    pub async fn info(&self) -> Result<Option<QueueView>, QueueError> {
        let queue = self.name.clone()?;
        match self.wheel.client().call(Op::Queue { queue }).await? {
            Reply::Queues(mut views) => Ok(views.pop()),
            _ => Err(CallError::WRONG_ANSWER.into()),
        }
    }

    /// Sets what counts for the queue's messages when they do not say otherwise.
    pub async fn configure(&self, settings: QueueSettings) -> Result<(), QueueError> {
        let queue = self.name.clone()?;
        match self.wheel.client().call(Op::Configure { queue, settings }).await? {
            Reply::Queues(_) => Ok(()),
            _ => Err(CallError::WRONG_ANSWER.into()),
        }
    }

    /// Gives nothing out any more, until [`Queue::resume`].
    pub async fn pause(&self) -> Result<(), QueueError> {
        let queue = self.name.clone()?;
        match self.wheel.client().call(Op::Pause { queue, for_ms: None }).await? {
            Reply::Configure(_) => Err(CallError::Overloaded.into()),
            _ => Ok(()),
        }
    }

    /// Gives out again.
    pub async fn resume(&self) -> Result<(), QueueError> {
        let queue = self.name.clone()?;
        self.wheel.client().call(Op::Resume { queue }).await?;
        Ok(())
    }

    /// Removes Scheduled, Ready and Dead messages; leased ones stay. Answers how many went, and how safe that is.
    pub async fn purge(&self) -> Result<Applied<u64>, QueueError> {
        let queue = self.name.clone()?;
        match self.wheel.client().call(Op::Purge { queue }).await? {
            Reply::Count(n) => Ok(n),
            _ => Err(CallError::WRONG_ANSWER.into()),
        }
    }

    /// Leases up to `max` ready messages, waiting up to `wait` for the first. Settle each with [`Queue::ack`] or
    /// [`Queue::nack`]; for most uses a [`Queue::handler`] is simpler. Empty when nothing was ready, or when too many messages are leased
    /// ([`Policy::max_leased`](crate::Policy::max_leased)); [`Client::reserve`](crate::Client::reserve) tells the two apart.
    ///
    /// # Cancel safety
    /// Cancel safe: messages granted to a dropped future go back at once.
    pub async fn reserve(&self, max: usize, wait: Duration) -> Result<Vec<Message>, QueueError> {
        let demand = Demand { max, wait_ms: ceil_ms(wait), ..Demand::new(self.name.clone()?) };
        match self.wheel.client().reserve(demand).await? {
            Reserved::Grants(grants) => Ok(grants.into_iter().map(Message::new).collect()),
            Reserved::DeadlineSoon | Reserved::HeldBack(_) => Ok(Vec::new()),
            Reserved::Overloaded | Reserved::TooManyQueues => Err(CallError::Overloaded.into()),
        }
    }

    /// Done: the message goes; answers how safe that is. An ack that is repeated within five minutes succeeds, too, unless
    /// the process was restarted.
    pub async fn ack(&self, message: &Message) -> Result<Level, QueueError> {
        let op = Op::Ack { id: message.id(), proof: message.lease_token().into() };
        self.settle(op).await.map(|done| done.level)
    }

    /// Not done: again after `delay`, or after its backoff.
    pub async fn nack(
        &self,
        message: &Message,
        delay: Option<Duration>,
        note: &str,
    ) -> Result<Applied<Settled>, QueueError> {
        self.settle(nack(message, Attempt::Failed, delay, note)).await
    }

    /// Cannot be done yet: again after `delay`, and the attempt does not count against `max_attempts`.
    pub async fn not_yet(
        &self,
        message: &Message,
        delay: Duration,
        note: &str,
    ) -> Result<Applied<Settled>, QueueError> {
        self.settle(nack(message, Attempt::NotYet, Some(delay), note)).await
    }

    /// Not to be tried any more: dead at once, with the reason in its history, until it is redriven or cancelled. Answers
    /// how safe that is.
    pub async fn dead_letter(&self, message: &Message, reason: &str) -> Result<Level, QueueError> {
        let (id, proof) = (message.id(), message.lease_token().into());
        let op = Op::Bury { id, proof, priority: None, note: reason.into() };
        self.settle(op).await.map(|done| done.level)
    }

    pub(crate) fn target(&self, key: &str) -> Result<Target, QueueError> {
        Ok(Target::Key(self.name.clone()?, Key::new(key)?))
    }

    async fn cancel(&self, target: Target) -> Result<Cancel, QueueError> {
        match self.change(Op::Cancel { target }).await {
            Ok(was) => Ok(Cancel::Cancelled(was.level)),
            Err(QueueError::Refused(ChangeRefusal::Leased)) => Ok(Cancel::Leased),
            Err(QueueError::Refused(ChangeRefusal::NotFound)) => Ok(Cancel::NotFound),
            Err(error) => Err(error),
        }
    }

    async fn postpone(&self, key: &str, when: When) -> Result<Applied<Outline>, QueueError> {
        let target = self.target(key)?;
        self.change(Op::Postpone { target, edit: Box::new(Edit::due(when)), if_generation: None }).await
    }

    async fn change(&self, op: Op) -> Result<Applied<Outline>, QueueError> {
        match self.wheel.client().call(op).await? {
            Reply::Change(Ok(Applied { what, level })) => Ok(Applied { what: *what, level }),
            Reply::Change(Err(refusal)) => Err(QueueError::Refused(refusal)),
            _ => Err(CallError::WRONG_ANSWER.into()),
        }
    }

    async fn settle(&self, op: Op) -> Result<Applied<Settled>, QueueError> {
        match self.wheel.client().call(op).await? {
            Reply::Settle(Ok(settled)) => Ok(settled),
            Reply::Settle(Err(_)) => Err(QueueError::LeaseLost),
            _ => Err(CallError::WRONG_ANSWER.into()),
        }
    }
}

fn nack(message: &Message, attempt: Attempt, delay: Option<Duration>, note: &str) -> Op {
    Op::Nack {
        id: message.id(),
        proof: message.lease_token().into(),
        attempt,
        delay_ms: delay.map(ceil_ms),
        priority: None,
        note: note.into(),
    }
}
