//! Scheduling a message.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::{Enqueue, EnqueueRefusal, Enqueued, IfExists, Op, Past, When};
use duewheel_core::id::MessageId;
use duewheel_core::message::{Expiry, MaxAttempts, Options, State};
use duewheel_core::name::{BadName, Key, QueueName};
use duewheel_core::policy::Backoff;
use duewheel_core::record::Created;
use duewheel_core::store::Level;
use duewheel_core::time::{WallMs, ceil_ms};
use duewheel_shard::client::Client;
use duewheel_shard::error::CallError;

use crate::wheel::Duewheel;

/// A message to be scheduled; created by [`Duewheel::job`], [`crate::Queue::message`] or [`crate::Queue::body`], sent by
/// [`Draft::enqueue`] or [`Duewheel::enqueue_many`].
///
/// ```
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
/// use duewheel::{DAY, HOUR, IfExists, MINUTE, SECOND};
///
/// let draft = wheel.queue("remind").body("order 42").delay(48 * HOUR).spread(10 * MINUTE).expires_in(DAY);
/// let draft = draft.key("order-42").if_exists(IfExists::Replace).dedupe_id("request-7").header("tenant", "acme");
/// let receipt = draft.max_attempts(5).backoff(SECOND, HOUR).lease(2 * MINUTE).priority(10).enqueue().await?;
/// println!("{} is due at {:?}", receipt.id, receipt.due_at);
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "nothing is scheduled before `enqueue`"]
pub struct Draft {
    /// `None` for the message of a test.
    client: Option<Client>,
    pub(crate) content: Result<Enqueue, EnqueueError>,
}

/// An accepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The id of the message. With [`IfExists::Keep`] it is the id of the existing message that was kept.
    pub id: MessageId,
    /// When it is due.
    pub due_at: SystemTime,
    /// The generation of the message.
    pub generation: u32,
    /// Whether the message is new, replaced another one, or an existing one was kept.
    pub created: Created,
    /// The state that the existing message which was kept had then; `None` for a new one.
    pub kept: Option<State>,
    /// The durability level that the store has reached for it.
    pub level: Level,
}

/// Why nothing was scheduled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The queue's name is not valid.
    #[error("queue name {0}")]
    Queue(BadName),
    /// The key is not valid.
    #[error("key {0}")]
    Key(BadName),
    /// `max_attempts` is 0: such a message could never be delivered.
    #[error("max_attempts must be at least 1")]
    NoAttempts,
    /// There is a `dedupe_window`, and no `dedupe_id` that would be remembered for so long.
    #[error("dedupe_window needs a dedupe_id")]
    NoDedupeId,
    /// [`Duewheel::enqueue_many`] got a draft of another wheel.
    #[error("the message is of another wheel")]
    OtherWheel,
    /// The value cannot be serialised to JSON.
    #[error("the message does not serialise to JSON: {0}")]
    Json(String),
    /// The engine refused the message.
    #[error("refused: {0}")]
    Refused(EnqueueRefusal),
    /// The call was not answered. See [`CallError::outcome`].
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Draft {
    pub(crate) fn new(
        client: Option<Client>,
        queue: Result<QueueName, BadName>,
        body: Result<Bytes, String>,
    ) -> Self {
        let content = match (queue, body) {
            (Err(bad), _) => Err(EnqueueError::Queue(bad)),
            (Ok(_), Err(why)) => Err(EnqueueError::Json(why)),
            (Ok(queue), Ok(body)) => Ok(Enqueue::new(queue, body)),
        };
        Draft { client, content }
    }

    fn with(mut self, set: impl FnOnce(&mut Enqueue) -> Result<(), EnqueueError>) -> Self {
        if let Ok(enqueue) = &mut self.content
            && let Err(error) = set(enqueue)
        {
            self.content = Err(error);
        }
        self
    }

    fn option(self, set: impl FnOnce(&mut Options)) -> Self {
        self.with(|e| {
            set(&mut e.options);
            Ok(())
        })
    }

    /// Makes it due after this delay from now, rounded up to a millisecond. A step of the wall clock does not change
    /// it.
    pub fn delay(self, delay: Duration) -> Self {
        self.with(|e| {
            e.when = When::After(ceil_ms(delay));
            Ok(())
        })
    }

    /// Makes it due at this wall-clock time, rounded up to a millisecond. A time in the past is an error.
    pub fn at(self, instant: SystemTime) -> Self {
        self.with(|e| {
            e.when = When::At { due_at: WallMs::from_system_time_up(instant), past: Past::Refuse };
            Ok(())
        })
    }

    /// Makes it due at this time, or at once if the time is in the past.
    pub fn at_or_now(self, instant: SystemTime) -> Self {
        self.with(|e| {
            e.when = When::At { due_at: WallMs::from_system_time_up(instant), past: Past::Fire };
            Ok(())
        })
    }

    /// Your own name for the message, unique among the unsettled messages of its queue.
    pub fn key(self, key: &str) -> Self {
        self.with(|e| {
            e.key = Some(Key::new(key).map_err(EnqueueError::Key)?);
            Ok(())
        })
    }

    /// Sets what happens if the key is already in use; by default the message is refused.
    pub fn if_exists(self, what: IfExists) -> Self {
        self.with(|e| {
            e.if_exists = what;
            Ok(())
        })
    }

    /// Makes a retried enqueue return the first answer, also after the message is gone.
    pub fn dedupe_id(self, id: &str) -> Self {
        self.with(|e| {
            e.dedupe_id = Some(id.into());
            Ok(())
        })
    }

    /// Sets how long that answer is remembered, rounded up to a millisecond: at most the dedupe window of the queue,
    /// which applies otherwise. A longer one is refused, and so is one without a `dedupe_id`.
    pub fn dedupe_window(self, window: Duration) -> Self {
        self.with(|e| {
            e.dedupe_window_ms = Some(ceil_ms(window));
            Ok(())
        })
    }

    /// Sets the priority; lower values are delivered first. 1024 by default.
    pub fn priority(self, priority: u32) -> Self {
        self.with(|e| {
            e.priority = Some(priority);
            Ok(())
        })
    }

    /// Adds a header.
    pub fn header(self, name: &str, value: &str) -> Self {
        self.with(|e| {
            e.headers.push((name.into(), value.into()));
            Ok(())
        })
    }

    /// Sets the lease duration: how long a consumer has the message to itself.
    pub fn lease(self, lease: Duration) -> Self {
        self.option(|o| o.lease_ms = Some(ceil_ms(lease)))
    }

    /// Draws its due time from this much time, from the one that was asked for on: many messages for one instant come
    /// evenly spread. The draw depends on the key, or else on the dedupe id, or else on the message; `due_at` of the
    /// receipt is what was drawn.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn example(wheel: duewheel::Duewheel) -> Result<(), Box<dyn std::error::Error>> {
    /// let hour = Duration::from_secs(3600);
    /// wheel.queue("sms").body("Happy New Year").delay(hour).spread(hour).key("customer-42").enqueue().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn spread(self, spread: Duration) -> Self {
        self.option(|o| o.spread_ms = Some(ceil_ms(spread)))
    }

    /// Makes it expire this long after its due time. What then happens is its queue's setting
    /// ([`crate::OnExpiry`]); looked at before each delivery, never during one. Delays of retries do not
    /// move it.
    pub fn expires_in(self, time: Duration) -> Self {
        self.option(|o| o.expiry = Some(Expiry::In(ceil_ms(time))))
    }

    /// Makes it expire at this wall-clock time, rounded up to a millisecond. A time before the due time is refused.
    pub fn expires_at(self, instant: SystemTime) -> Self {
        self.option(|o| o.expiry = Some(Expiry::At(WallMs::from_system_time_up(instant))))
    }

    /// Makes the message dead after this many deliveries.
    pub fn max_attempts(self, n: u32) -> Self {
        self.with(|e| {
            e.options.max_attempts = Some(MaxAttempts::new(n).ok_or(EnqueueError::NoAttempts)?);
            Ok(())
        })
    }

    /// Sets the delay before the next attempt: `min` after the first, doubled up to `max`.
    pub fn backoff(self, min: Duration, max: Duration) -> Self {
        self.option(|o| o.backoff = Some(Backoff { min_ms: ceil_ms(min), max_ms: ceil_ms(max) }))
    }

    /// The operation, for [`Client::submit`], which takes many at once; see also [`Duewheel::enqueue_many`].
    ///
    /// # Errors
    /// A field of the draft is not valid.
    #[doc(hidden)]
    pub fn into_op(self) -> Result<Op, EnqueueError> {
        Ok(Op::Enqueue(Box::new(self.checked()?)))
    }

    fn checked(self) -> Result<Enqueue, EnqueueError> {
        match self.content? {
            enqueue if enqueue.dedupe_window_ms.is_some() && enqueue.dedupe_id.is_none() => {
                Err(EnqueueError::NoDedupeId)
            }
            enqueue => Ok(enqueue),
        }
    }

    fn checked_for(self, client: &Client) -> Result<Enqueue, EnqueueError> {
        if self.client.as_ref().is_some_and(|own| own.is_same(client)) {
            self.checked()
        } else {
            Err(EnqueueError::OtherWheel)
        }
    }

    /// Schedules the message. When this returns `Ok`, the message is as durable as was chosen when opening.
    ///
    /// # Errors
    /// See [`EnqueueError`]; after an error whose outcome is unknown, try again with the same key or `dedupe_id`.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the message; whether it was accepted is then unknown.
    pub async fn enqueue(self) -> Result<Receipt, EnqueueError> {
        let client = self.client.clone().ok_or(CallError::Closed("the message is of no wheel"))?;
        client.ask(self.checked()?).await?.map(Receipt::from).map_err(EnqueueError::Refused)
    }
}

/// The number of messages that are enqueued with one submission.
const TOGETHER: usize = 500;

impl Duewheel {
    /// Schedules many messages, of any queues, with one sync of the disk for hundreds of them. They are decided in
    /// order, each by itself, and the results are in the same order: some may be refused while others are scheduled. A
    /// draft of another wheel is refused.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// let queue = wheel.queue("sms");
    /// let drafts = (0..10_000).map(|n| queue.message(&n).delay(duewheel::HOUR).key(&format!("customer-{n}")));
    /// for receipt in wheel.enqueue_many(drafts).await {
    ///     receipt?;
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// When the future is dropped, some messages may be scheduled. With keys or dedupe ids the same call can be made
    /// again.
    pub async fn enqueue_many(
        &self,
        drafts: impl IntoIterator<Item = Draft>,
    ) -> Vec<Result<Receipt, EnqueueError>> {
        let mut drafts: Vec<Draft> = drafts.into_iter().collect();
        let mut results = Vec::with_capacity(drafts.len());
        while !drafts.is_empty() {
            let mut valid = Vec::new();
            let some = drafts.drain(..TOGETHER.min(drafts.len()));
            let some: Vec<_> = some
                .map(|draft| draft.checked_for(self.client()).map(|enqueue| valid.push(enqueue)))
                .collect();
            let mut answers = self.client().ask_many(valid).await.map(Vec::into_iter);
            results.extend(some.into_iter().map(|content| {
                content?;
                let answers = answers.as_mut().map_err(|error| error.clone())?;
                let answer = answers.next().unwrap_or(Err(CallError::NO_ANSWER))?;
                answer.map(Receipt::from).map_err(EnqueueError::Refused)
            }));
        }
        results
    }
}

impl From<Enqueued> for Receipt {
    fn from(e: Enqueued) -> Self {
        Receipt {
            id: e.id,
            due_at: e.due_at.to_system_time(),
            generation: e.generation,
            created: e.created,
            kept: e.kept,
            level: e.level,
        }
    }
}
