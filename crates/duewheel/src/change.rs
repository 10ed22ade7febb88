//! Changes to messages by their producer: cancel, postpone, replace content, fire, redrive.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::{
    Applied, Ask, ChangeRefusal, Edit, Op, Outline, Past, RefusedPart, Target, When,
};
use duewheel_core::id::MessageId;
use duewheel_core::message::MaxAttempts;
use duewheel_core::store::Level;
use duewheel_core::time::{WallMs, ceil_ms};
use duewheel_shard::client::Client;
use serde::Serialize;

use crate::queue::{Queue, QueueError};

/// The result of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that is leased is not cancelled"]
pub enum Cancel {
    /// The message will not be delivered any more; with the durability reached.
    Cancelled(Level),
    /// Too late: a consumer has the message. If that attempt fails, the message can be cancelled again.
    Leased,
    /// No such message is pending: it was delivered or cancelled, or never existed.
    NotFound,
}

impl Queue {
    /// Cancels the message with this key.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// use duewheel::{Cancel, HOUR};
    ///
    /// let queue = wheel.queue("close-order");
    /// queue.body("order 42").delay(HOUR).key("order-42").enqueue().await?;
    /// match queue.cancel_key("order-42").await? {
    ///     Cancel::Cancelled(_) => println!("paid in time"),
    ///     Cancel::Leased | Cancel::NotFound => println!("too late: it runs, or has run"),
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name; [`QueueError::Call`] without an answer: whether
    /// the cancel was applied may then be unknown. A key without a pending message is not an error: see [`Cancel`].
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the cancel. It can be called again.
    pub async fn cancel_key(&self, key: &str) -> Result<Cancel, QueueError> {
        self.cancel(self.target(key)?).await
    }

    /// Cancels the message with this id.
    ///
    /// # Errors
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown. It is not an error if
    /// nothing is pending under the id: see [`Cancel`].
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the cancel. It can be called again.
    pub async fn cancel_id(&self, id: MessageId) -> Result<Cancel, QueueError> {
        self.cancel(Target::Id(id)).await
    }

    /// Makes the message with this key due after another delay, counted from now.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// # use duewheel::{HOUR, MINUTE};
    /// # let queue = wheel.queue("close-order");
    /// # queue.body("order 42").delay(HOUR).key("order-42").enqueue().await?;
    /// let now = queue.postpone_key("order-42", 30 * MINUTE).await?;
    /// assert_eq!(now.what.generation, 2, "each change raises it by one");
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Refused`] if nothing is pending under the key, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn postpone_key(&self, key: &str, delay: Duration) -> Result<Applied<Outline>, QueueError> {
        self.postpone(key, When::After(ceil_ms(delay))).await
    }

    /// Makes the message with this key due at another time.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Refused`] if nothing is pending under the key, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn postpone_key_to(
        &self,
        key: &str,
        instant: SystemTime,
    ) -> Result<Applied<Outline>, QueueError> {
        let due_at = WallMs::from_system_time_up(instant);
        self.postpone(key, When::At { due_at, past: Past::Refuse }).await
    }

    /// Makes the message with this key due now.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// # let queue = wheel.queue("close-order");
    /// # queue.body("order 42").delay(duewheel::HOUR).key("order-42").enqueue().await?;
    /// queue.fire_key("order-42").await?;
    /// assert_eq!(queue.reserve(1, duewheel::SECOND).await?.len(), 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Refused`] if nothing is pending under the key, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn fire_key(&self, key: &str) -> Result<Applied<Outline>, QueueError> {
        self.change(Op::fire(self.target(key)?)).await
    }

    /// Makes the message with this id due now.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if nothing is pending under the id, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn fire_id(&self, id: MessageId) -> Result<Applied<Outline>, QueueError> {
        self.change(Op::fire(Target::Id(id))).await
    }

    /// Makes the dead message with this id ready again, with all its attempts.
    ///
    /// # Errors
    /// [`QueueError::Refused`] if the message is not dead, or another one has taken its key since;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change.
    pub async fn redrive_id(&self, id: MessageId) -> Result<Applied<Outline>, QueueError> {
        self.change(Op::redrive(id)).await
    }

    /// Makes up to `max` of the messages that are dead now ready again, in the order in which they died, and returns how
    /// many. A message whose key has been taken since stays dead. [`Queue::dead`] has an example.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name; [`QueueError::Call`] without an answer: some may be ready
    /// again, and it can be called again.
    ///
    /// # Cancel safety
    /// When the future is dropped, some may be ready again.
    pub async fn redrive(&self, max: u64) -> Result<u64, QueueError> {
        let queue = self.name.clone()?;
        let mut left = self.info().await?.map_or(0, |queue| queue.counts.dead).min(max);
        let mut redriven = 0;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX);
            match self.wheel.client().ask(Op::redrive_many(queue.clone(), part)).await?.what {
                0 => break,
                some => (redriven, left) = (redriven + some, left.saturating_sub(some)),
            }
        }
        Ok(redriven)
    }

    async fn cancel(&self, target: Target) -> Result<Cancel, QueueError> {
        match self.change(Op::cancel(target)).await {
            Ok(was) => Ok(Cancel::Cancelled(was.level)),
            Err(QueueError::Refused(ChangeRefusal::Leased)) => Ok(Cancel::Leased),
            Err(QueueError::Refused(ChangeRefusal::NotFound)) => Ok(Cancel::NotFound),
            Err(error) => Err(error),
        }
    }

    async fn postpone(&self, key: &str, when: When) -> Result<Applied<Outline>, QueueError> {
        self.change(Op::postpone(self.target(key)?, Box::new(Edit::due(when)), None)).await
    }

    async fn change(
        &self,
        change: impl Ask<Reply = Result<Applied<Box<Outline>>, ChangeRefusal>>,
    ) -> Result<Applied<Outline>, QueueError> {
        let changed = self.wheel.client().ask(change).await?;
        let Applied { what, level } = changed.map_err(QueueError::Refused)?;
        Ok(Applied { what: *what, level })
    }
}

/// A change to a scheduled message; created by [`crate::Queue::change_key`] or [`crate::Queue::change_id`], sent by
/// [`Change::apply`]. Everything that is not set stays as it is, including the due time.
#[derive(Debug)]
#[must_use = "nothing is changed before `apply`"]
pub struct Change {
    client: Client,
    target: Result<Target, QueueError>,
    edit: Box<Edit>,
    if_generation: Option<u32>,
    wrong: Option<QueueError>,
}

impl Queue {
    /// Changes the message with this key: its due time, content or settings, as set on the [`Change`].
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// # use duewheel::HOUR;
    /// # let queue = wheel.queue("close-order");
    /// # queue.body("order 42").delay(HOUR).key("order-42").enqueue().await?;
    /// queue.change_key("order-42").body("order 42, twice").priority(1).apply().await?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub fn change_key(&self, key: &str) -> Change {
        Change::new(self.wheel.client().clone(), self.target(key))
    }

    /// Changes the message with this id.
    pub fn change_id(&self, id: MessageId) -> Change {
        Change::new(self.wheel.client().clone(), Ok(Target::Id(id)))
    }
}

impl Change {
    pub(crate) fn new(client: Client, target: Result<Target, QueueError>) -> Self {
        Change { client, target, edit: Box::default(), if_generation: None, wrong: None }
    }

    /// Makes it due after this delay from now, rounded up to a millisecond.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.edit.when = Some(When::After(ceil_ms(delay)));
        self
    }

    /// Makes it due at this wall-clock time, rounded up to a millisecond. A time in the past is an error.
    pub fn at(mut self, instant: SystemTime) -> Self {
        self.edit.when = Some(When::At { due_at: WallMs::from_system_time_up(instant), past: Past::Refuse });
        self
    }

    /// Replaces the payload.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.edit.body = Some(body.into());
        self
    }

    /// Replaces the payload by this value as JSON.
    pub fn message<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => self.edit.body = Some(body.into()),
            Err(error) => self.wrong = Some(QueueError::Json(error.to_string())),
        }
        self
    }

    /// Adds a header. The headers set on this change replace all headers of the message; call it once for each.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.edit.headers.get_or_insert_default().push((name.into(), value.into()));
        self
    }

    /// Removes all headers, except those that a later [`Change::header`] adds.
    pub fn no_headers(mut self) -> Self {
        self.edit.headers = Some(Vec::new());
        self
    }

    /// Changes the priority; lower values are delivered first.
    pub fn priority(mut self, priority: u32) -> Self {
        self.edit.priority = Some(priority);
        self
    }

    /// The message becomes dead after this many deliveries; at least 1.
    pub fn max_attempts(mut self, n: u32) -> Self {
        match MaxAttempts::new(n) {
            Some(max) => self.edit.max_attempts = Some(max),
            None => {
                self.wrong = Some(QueueError::Refused(ChangeRefusal::OutOfRange(RefusedPart::MaxAttempts)))
            }
        }
        self
    }

    /// The lease duration, from the next delivery on.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.edit.lease_ms = Some(ceil_ms(lease));
        self
    }

    /// Refuses the change unless the message has this generation.
    pub fn if_generation(mut self, generation: u32) -> Self {
        self.if_generation = Some(generation);
        self
    }

    /// Changes the message, and returns its state after the change: same id, `generation` one higher.
    ///
    /// # Errors
    /// See [`QueueError`]; a message that is leased or dead cannot be changed, and a change without any field is
    /// refused.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the change; whether it was made is then unknown.
    pub async fn apply(self) -> Result<Applied<Outline>, QueueError> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let change = Op::postpone(self.target?, self.edit, self.if_generation);
        let Applied { what, level } = self.client.ask(change).await?.map_err(QueueError::Refused)?;
        Ok(Applied { what: *what, level })
    }
}
