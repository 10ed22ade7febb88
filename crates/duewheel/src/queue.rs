//! A queue by its name: scheduling, changing, inspecting and consuming messages.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::{
    Applied, Ask, Attempt, ChangeRefusal, Edit, Enqueue, KeyHolder, Op, Outline, Past, QueueView,
    RefusedPart, Reserved, SettingsField, SettingsRefusal, SettleRefusal, Settled, Target, Typed, View, When,
};
use duewheel_core::id::MessageId;
use duewheel_core::message::{Expiry, MaxAttempts, Options, State};
use duewheel_core::name::{BadName, Key, QueueName};
use duewheel_core::policy::QueueSettings;
use duewheel_core::store::Level;
use duewheel_core::time::{WallMs, ceil_ms};
use duewheel_shard::client::{Client, Reserve};
use duewheel_shard::error::CallError;
use serde::Serialize;

use crate::Duewheel;
use crate::enqueue::{Draft, EnqueueError, Receipt};
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

/// The result of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The message will not be delivered any more; with the durability reached.
    Cancelled(Level),
    /// Too late: a consumer has the message. If that attempt fails, the message can be cancelled again.
    Leased,
    /// No such message is pending: it was delivered or cancelled, or never existed.
    NotFound,
}

impl Duewheel {
    /// A queue by its name.
    pub fn queue(&self, name: &str) -> Queue {
        Queue { wheel: self.clone(), name: QueueName::new(name) }
    }
}

impl Queue {
    /// A message whose body is this value as JSON.
    pub fn message<T: Serialize + ?Sized>(&self, value: &T) -> Draft {
        let body = serde_json::to_vec(value).map(Bytes::from).map_err(|e| e.to_string());
        Draft::new(self.wheel.client().clone(), self.name.clone(), body)
    }

    /// A message with these bytes as its body.
    pub fn body(&self, body: impl Into<Bytes>) -> Draft {
        Draft::new(self.wheel.client().clone(), self.name.clone(), Ok(body.into()))
    }

    /// Cancels the message with this key.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name; [`QueueError::Call`] without an answer: whether
    /// the cancel was applied may then be unknown. A key without a pending message is not an error: see [`Cancel`].
    pub async fn cancel_key(&self, key: &str) -> Result<Cancel, QueueError> {
        self.cancel(self.target(key)?).await
    }

    /// Cancels the message with this id.
    ///
    /// # Errors
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown. It is not an error if
    /// nothing is pending under the id: see [`Cancel`].
    pub async fn cancel_id(&self, id: MessageId) -> Result<Cancel, QueueError> {
        self.cancel(Target::Id(id)).await
    }

    /// Makes the message with this key due after another delay, counted from now.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Refused`] if nothing is pending under the key, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    pub async fn postpone_key(&self, key: &str, delay: Duration) -> Result<Applied<Outline>, QueueError> {
        self.postpone(key, When::After(ceil_ms(delay))).await
    }

    /// Makes the message with this key due at another time.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Refused`] if nothing is pending under the key, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
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
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Refused`] if nothing is pending under the key, or the message is leased or dead;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
    pub async fn fire_key(&self, key: &str) -> Result<Applied<Outline>, QueueError> {
        self.change(Op::fire(self.target(key)?)).await
    }

    /// The message with this key, if there is one.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name;
    /// [`QueueError::Call`] without an answer.
    pub async fn get_key(&self, key: &str) -> Result<Option<View>, QueueError> {
        let target = self.target(key)?;
        Ok(self.wheel.client().ask(Op::get(target)).await?.map(|view| *view))
    }

    /// The state of the queue; `None` when it has no messages, consumers or settings, and has had none for a day (or
    /// since the start).
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue has no valid name; [`QueueError::Call`] without an answer.
    pub async fn info(&self) -> Result<Option<QueueView>, QueueError> {
        let queue = self.name.clone()?;
        Ok(self.wheel.client().ask(Op::queue(queue)).await?)
    }

    /// Sets the values that apply to messages of the queue without values of their own; returns the durability reached.
    ///
    /// # Errors
    /// [`QueueError::Setting`] names the field that is above its limit; nothing was changed.
    /// [`QueueError::Name`] if the queue has no valid name;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
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
    pub async fn purge(&self) -> Result<Applied<u64>, QueueError> {
        let queue = self.name.clone()?;
        Ok(self.wheel.client().ask(Op::purge(queue, None)).await?)
    }

    /// Leases up to `max` ready messages, waiting up to `wait` for the first. Settle each with [`Queue::ack`] or
    /// [`Queue::nack`]; for most uses a [`Queue::handler`] is simpler. Empty when nothing was ready, or when too many
    /// messages are leased ([`crate::Policy::max_leased`]); [`crate::Client::reserve`] distinguishes the two.
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
    pub async fn ack(&self, message: &Message) -> Result<Level, QueueError> {
        self.settle(Op::ack(message.id(), message.lease_token())).await.map(|done| done.level)
    }

    /// Reports a failed attempt: the message is delivered again after `delay`, or after its backoff.
    ///
    /// # Errors
    /// [`QueueError::LeaseLost`] if the lease is not the message's latest, or the message is gone;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
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
    /// [`QueueError::LeaseLost`] if the lease is not the message's latest, or the message is gone;
    /// [`QueueError::Call`] without an answer; whether it was applied may then be unknown.
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
    pub async fn dead_letter(&self, message: &Message, reason: &str) -> Result<Level, QueueError> {
        self.settle(Op::bury(message.id(), message.lease_token(), reason)).await.map(|done| done.level)
    }

    pub(crate) fn target(&self, key: &str) -> Result<Target, QueueError> {
        Ok(Target::Key(self.name.clone()?, Key::new(key)?))
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

    async fn settle(
        &self,
        settlement: impl Ask<Reply = Result<Applied<Settled>, SettleRefusal>>,
    ) -> Result<Applied<Settled>, QueueError> {
        self.wheel.client().ask(settlement).await?.map_err(|refusal| match refusal {
            SettleRefusal::KeyExists(holder) => QueueError::KeyTaken(holder),
            SettleRefusal::LeaseLost | SettleRefusal::NeverIssued | SettleRefusal::TooLong(_) => {
                QueueError::LeaseLost
            }
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

/// The header of a replayed message: the id of the message whose content it has.
const REPLAY_OF: &str = "duewheel-replay-of";

/// A new message of the queue `to` with the content of another one, due `delay_ms` after `now`, without a key: body,
/// headers, priority and options. A spread is left out, and an expiry at an instant that would be over: they were for
/// the due time that the other message had.
pub fn same_content(view: &View, to: QueueName, now: WallMs, delay_ms: u64) -> Enqueue {
    let message = &view.message;
    let due = now.0.saturating_add(delay_ms);
    let expiry = message.options.expiry.filter(|expiry| match expiry {
        Expiry::In(_) => true,
        Expiry::At(at) => at.0 >= due,
    });
    Enqueue {
        headers: message.given_headers().cloned().collect(),
        when: When::After(delay_ms),
        priority: Some(view.priority),
        options: Options { spread_ms: None, expiry, ..message.options.clone() },
        ..Enqueue::new(to, message.body.clone())
    }
}

/// A new message with the content of a done or dead one ([`same_content`]), due at `now`; `None` if that is neither. It
/// has no key but the one given, and the header `duewheel-replay-of`.
pub fn replay_of(view: &View, key: Option<Key>, now: WallMs) -> Option<Enqueue> {
    match view.state {
        State::Scheduled | State::Ready | State::Leased => return None,
        State::Dead | State::Done => {}
    }
    let mut again = same_content(view, view.message.queue.clone(), now, 0);
    again.key = key;
    again.headers.retain(|(name, _)| !name.eq_ignore_ascii_case(REPLAY_OF));
    again.headers.push((REPLAY_OF.into(), view.message.id.0.to_string().into()));
    Some(again)
}

impl Queue {
    /// The message with this key, or else the newest one that had it and has ended, if the queue keeps such messages
    /// ([`duewheel_core::policy::QueueSettings::keep_done_ms`]). The state of that one is [`State::Done`], and
    /// [`View::dead`] says how and when it ended.
    ///
    /// # Errors
    /// [`QueueError::Name`] if the queue or the key has no valid name; [`QueueError::Call`] without an answer.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    pub async fn recall_key(&self, key: &str) -> Result<Option<View>, QueueError> {
        let target = Target::Key(self.name.clone()?, Key::new(key)?);
        Ok(self.wheel.client().ask(Op::recall(target)).await?.map(|view| *view))
    }

    /// Enqueues the content of a done or dead message of this queue again, as a new message that is due now. It has no
    /// key but the one given. `None` if the queue has no such message. When it returns, the new message is as durable as
    /// after an enqueue; each call makes another one.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// use duewheel::{Duewheel, core::policy::QueueSettings, core::State};
    /// let wheel = Duewheel::builder().in_memory().open().await?;
    /// let queue = wheel.queue("invoices");
    /// queue.configure(QueueSettings { keep_done_ms: Some(86_400_000), ..QueueSettings::default() }).await?;
    /// let sent = queue.body("invoice 42").key("42").enqueue().await?;
    /// queue.cancel_key("42").await?;
    ///
    /// let was = queue.recall_key("42").await?.expect("it is kept for a day");
    /// assert_eq!((was.state, was.message.id), (State::Done, sent.id));
    /// let again = queue.replay(sent.id, Some("42")).await?.expect("it is done");
    /// assert_ne!(again.id, sent.id);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`EnqueueError`], as for an enqueue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may be enqueued or not.
    pub async fn replay(&self, id: MessageId, key: Option<&str>) -> Result<Option<Receipt>, EnqueueError> {
        let queue = self.name.clone().map_err(EnqueueError::Queue)?;
        let key = key.map(Key::new).transpose().map_err(EnqueueError::Key)?;
        let client = self.wheel.client();
        let found = client.ask(Op::recall(Target::Id(id))).await?;
        let found = found.filter(|view| view.message.queue == queue);
        let now = client.now().wall;
        let Some(again) = found.and_then(|view| replay_of(&view, key, now)) else { return Ok(None) };
        client.ask(again).await?.map(Receipt::from).map(Some).map_err(EnqueueError::Refused)
    }
}
