//! A queue by its name: scheduling and consuming messages, and its settings.

use std::time::Duration;

use bytes::Bytes;
use duewheel_core::engine::{
    Applied, Ask, Attempt, ChangeRefusal, KeyHolder, Op, Reserved, SettingsField, SettingsRefusal,
    SettleRefusal, Settled, Target, Typed,
};
use duewheel_core::name::{BadName, Key, QueueName};
use duewheel_core::policy::QueueSettings;
use duewheel_core::store::Level;
use duewheel_core::time::ceil_ms;
use duewheel_shard::client::Reserve;
use duewheel_shard::error::CallError;
use serde::Serialize;

use crate::Duewheel;
use crate::enqueue::Draft;
use crate::message::Message;

/// A queue by its name. Cheap to create wherever it is needed. An invalid name is reported by the first call that uses
/// it.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) wheel: Duewheel,
    pub(crate) name: Result<QueueName, BadName>,
}

/// Why a call on a queue failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue's name is not valid.
    #[error("queue name {0}")]
    Name(BadName),
    /// The value cannot be serialised to JSON.
    #[error("the message does not serialise to JSON: {0}")]
    Json(String),
    /// The message cannot be changed like this in its present state.
    #[error("refused: {0}")]
    Refused(ChangeRefusal),
    /// A field of the settings is above its limit; the former settings stay.
    #[error("{field} is out of range: at most {max}")]
    Setting {
        /// The name of the field of [`QueueSettings`].
        field: SettingsField,
        /// The largest value of the field.
        max: u64,
    },
    /// A field of the settings is below the number of shards, each of which keeps to its part of it; the former settings
    /// stay.
    #[error("{field} must be at least {min}, the number of shards")]
    BelowShards {
        /// The name of the field of [`QueueSettings`].
        field: SettingsField,
        /// The number of shards.
        min: u32,
    },
    /// The message cannot be given back for so long; the lease stays.
    #[error("delay is out of range: at most {max_ms} ms")]
    DelayTooLong {
        /// The longest delay, in ms.
        max_ms: u64,
    },
    /// The lease is not the message's latest, or the message is gone.
    #[error("the lease is lost: another consumer may have the message")]
    LeaseLost,
    /// The message died when its last lease ran out, and this message has taken its key since.
    #[error("the message is dead, and {0} has its key now")]
    KeyTaken(KeyHolder),
    /// The call was not answered. See [`CallError::outcome`].
    #[error(transparent)]
    Call(#[from] CallError),
}

// Not `#[from]`: the text has the cause, and printers of chains would repeat it.
impl From<BadName> for QueueError {
    fn from(bad: BadName) -> Self {
        QueueError::Name(bad)
    }
}

impl Duewheel {
    /// A queue by its name; [`Queue`] has the calls.
    pub fn queue(&self, name: &str) -> Queue {
        Queue { wheel: self.clone(), name: QueueName::new(name) }
    }
}

impl Queue {
    /// A message whose body is this value as JSON.
    pub fn message<T: Serialize + ?Sized>(&self, value: &T) -> Draft {
        let body = serde_json::to_vec(value).map(Bytes::from).map_err(|e| e.to_string());
        Draft::new(Some(self.wheel.client().clone()), self.name.clone(), body)
    }

    /// A message with these bytes as its body.
    pub fn body(&self, body: impl Into<Bytes>) -> Draft {
        Draft::new(Some(self.wheel.client().clone()), self.name.clone(), Ok(body.into()))
    }

    /// Sets the values that apply to messages of the queue without values of their own; returns the durability reached.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// use duewheel::{DAY, HOUR, QueueSettings, SECOND};
    ///
    /// let settings = QueueSettings::default().max_attempts(5).backoff(5 * SECOND, HOUR).keep_done(DAY);
    /// wheel.queue("invoices").configure(settings).await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Setting`] names the field that is above its limit; nothing was changed.
    /// [`QueueError::Name`] if the queue has no valid name;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn configure(&self, settings: QueueSettings) -> Result<Level, QueueError> {
        let queue = self.name.clone()?;
        let done = self.wheel.client().ask(Op::configure(queue, settings)).await?;
        done.map(|done| done.level).map_err(settings_refused)
    }

    /// Stops deliveries from this queue, until [`Queue::resume`]; returns the durability reached.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown. It can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn pause(&self) -> Result<Level, QueueError> {
        let queue = self.name.clone()?;
        let done = self.wheel.client().ask(Op::pause(queue, None)).await?;
        done.map(|done| done.level).map_err(settings_refused)
    }

    /// Resumes deliveries; returns the durability reached.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown. It can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn resume(&self) -> Result<Level, QueueError> {
        let queue = self.name.clone()?;
        Ok(self.wheel.client().ask(Op::resume(queue)).await?.level)
    }

    /// Removes scheduled, ready and dead messages; leased ones stay. Returns how many were removed, with the durability
    /// reached.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown. It can be called again.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn purge(&self) -> Result<Applied<u64>, QueueError> {
        let queue = self.name.clone()?;
        Ok(self.wheel.client().ask(Op::purge(queue, None)).await?)
    }

    /// Leases up to `max` ready messages, waiting up to `wait` for the first. Settle each with [`Queue::ack`] or
    /// [`Queue::nack`]; for most uses a [`Queue::handler`] is simpler. Empty when nothing was ready, or when too many
    /// messages are leased ([`crate::Policy::max_leased`]).
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// let queue = wheel.queue("sms");
    /// queue.body("hello").enqueue().await?;
    /// for message in queue.reserve(10, duewheel::SECOND).await? {
    ///     println!("{} bytes", message.body().len());
    ///     queue.ack(&message).await?; // or nack, not_yet, dead_letter
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name;
    /// [`QueueError::Call`] without an answer, or when too many reserves wait or too many queues exist.
    ///
    /// # Cancel safety
    /// Cancel safe: messages granted to a dropped future are returned at once.
    pub async fn reserve(&self, max: usize, wait: Duration) -> Result<Vec<Message>, QueueError> {
        let demand = Reserve { max, wait_ms: ceil_ms(wait), ..Reserve::new(self.name.clone()?) };
        match self.wheel.client().reserve(demand).await? {
            Reserved::Grants(grants) => {
                Ok(grants.into_iter().map(|grant| Message::new(grant, self.wheel.downgrade())).collect())
            }
            Reserved::DeadlineSoon | Reserved::HeldBack(_) => Ok(Vec::new()),
            Reserved::Overloaded | Reserved::TooManyQueues => Err(CallError::Overloaded.into()),
        }
    }

    /// Acks the message, which removes it; returns the durability reached. An ack repeated within five minutes also
    /// succeeds, unless the process was restarted.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the lease is not the message's latest, or the message is gone;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the settlement.
    pub async fn ack(&self, message: &Message) -> Result<Level, QueueError> {
        self.settle(Op::ack(message.id(), message.lease_token())).await.map(|done| done.level)
    }

    /// Reports a failed attempt: the message is delivered again after `delay`, or after its backoff.
    ///
    /// # Errors
    /// [`QueueError::DelayTooLong`] names the longest delay; nothing was changed.
    /// [`QueueError::LeaseLost`] if the lease is not the message's latest, or the message is gone;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the settlement.
    pub async fn nack(
        &self,
        message: &Message,
        delay: Option<Duration>,
        note: &str,
    ) -> Result<Applied<Settled>, QueueError> {
        self.settle(nack(message, Attempt::Failed, delay, note)).await
    }

    /// Returns the message undone: it is delivered again after `delay`, and the attempt does not count against
    /// `max_attempts`.
    ///
    /// # Errors
    /// [`QueueError::DelayTooLong`] names the longest delay; nothing was changed.
    /// [`QueueError::LeaseLost`] if the lease is not the message's latest, or the message is gone;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the settlement.
    pub async fn not_yet(
        &self,
        message: &Message,
        delay: Duration,
        note: &str,
    ) -> Result<Applied<Settled>, QueueError> {
        self.settle(nack(message, Attempt::NotYet, Some(delay), note)).await
    }

    /// Makes the message dead at once, with the reason in its history, until it is redriven or cancelled. Returns the
    /// durability reached.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the lease is not the message's latest, or the message is gone;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the settlement.
    pub async fn dead_letter(&self, message: &Message, reason: &str) -> Result<Level, QueueError> {
        self.settle(Op::bury(message.id(), message.lease_token(), reason)).await.map(|done| done.level)
    }

    pub(crate) fn target(&self, key: &str) -> Result<Target, QueueError> {
        Ok(Target::Key(self.name.clone()?, Key::new(key)?))
    }

    async fn settle(
        &self,
        settlement: impl Ask<Reply = Result<Applied<Settled>, SettleRefusal>>,
    ) -> Result<Applied<Settled>, QueueError> {
        self.wheel.client().ask(settlement).await?.map_err(|refusal| match refusal {
            SettleRefusal::KeyExists(holder) => QueueError::KeyTaken(holder),
            SettleRefusal::TooLong(max_ms) => QueueError::DelayTooLong { max_ms },
            SettleRefusal::LeaseLost | SettleRefusal::NeverIssued => QueueError::LeaseLost,
        })
    }
}

fn settings_refused(refusal: SettingsRefusal) -> QueueError {
    match refusal {
        SettingsRefusal::OutOfRange(field, max) => QueueError::Setting { field, max },
        SettingsRefusal::BelowShards(field, min) => QueueError::BelowShards { field, min },
        SettingsRefusal::Overloaded | SettingsRefusal::OverQuota(_) => CallError::Overloaded.into(),
    }
}

fn nack(
    message: &Message,
    attempt: Attempt,
    delay: Option<Duration>,
    note: &str,
) -> Typed<Result<Applied<Settled>, SettleRefusal>> {
    Op::nack(message.id(), message.lease_token(), attempt, delay.map(ceil_ms), note)
}
