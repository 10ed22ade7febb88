//! A message as a handler or consumer receives it, and how the run of a handler ends.

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use duewheel_core::engine::{Applied, Attempt, Grant, Op, SettleRefusal, Settled, Typed};
use duewheel_core::id::{LeaseToken, MessageId};
use duewheel_core::time::ceil_ms;
use duewheel_shard::error::CallError;
use serde::de::DeserializeOwned;

use crate::wheel::{Duewheel, WeakWheel};

/// A message under a lease of this consumer.
#[derive(Clone)]
pub struct Message {
    grant: Grant,
    wheel: WeakWheel,
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.grant == other.grant
    }
}

impl Eq for Message {}

impl Message {
    pub(crate) fn new(grant: Grant, wheel: WeakWheel) -> Self {
        Message { grant, wheel }
    }

    /// The wheel that it comes from. A handler that uses this, and captures no handle, does not keep the wheel open:
    ///
    /// ```
    /// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
    /// # let wheel = duewheel::Duewheel::builder().in_memory().open().await?;
    /// use duewheel::{HandlerResult, Message};
    ///
    /// wheel.queue("pay").handler(|msg: Message| async move {
    ///     msg.wheel()?.queue("ship").body(msg.body().clone()).enqueue().await?;
    ///     HandlerResult::Ok(())
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`CallError::Closed`] when the last handle was dropped.
    pub fn wheel(&self) -> Result<Duewheel, CallError> {
        self.wheel.upgrade().ok_or(CallError::Closed("the last handle of the wheel was dropped"))
    }

    /// The id of the message.
    pub fn id(&self) -> MessageId {
        self.grant.message.id
    }

    /// The name of its queue.
    pub fn queue(&self) -> &str {
        self.grant.message.queue.as_str()
    }

    /// The producer's own name for the message.
    pub fn key(&self) -> Option<&str> {
        self.grant.message.key.as_ref().map(|k| k.as_str())
    }

    /// The payload, byte for byte as it was enqueued.
    pub fn body(&self) -> &Bytes {
        &self.grant.message.body
    }

    /// The payload as a value, read from JSON.
    ///
    /// # Errors
    /// The body is not JSON of that type. Returned from a handler with `?`, it makes the message dead: another attempt
    /// would fail like this one.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, DeadLetter> {
        serde_json::from_slice(self.body()).map_err(|error| {
            DeadLetter::new(format!("the body is not a {}: {error}", std::any::type_name::<T>()))
        })
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// All headers, in the order given.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.grant.message.headers.iter().map(|(n, v)| (&**n, &**v))
    }

    /// The number of deliveries so far, including this one.
    pub fn attempt(&self) -> u32 {
        self.grant.attempt
    }

    /// When it was due, to the millisecond.
    pub fn due_at(&self) -> SystemTime {
        self.grant.due_at.to_system_time()
    }

    /// The time from its due time to its delivery.
    pub fn lateness(&self) -> Duration {
        Duration::from_millis(self.grant.lateness_ms)
    }

    /// Whether it had expired when it was delivered.
    pub fn is_late(&self) -> bool {
        self.grant.late
    }

    /// The end of the lease, by the clock at the time of delivery. Until then no other consumer gets the message.
    pub fn lease_until(&self) -> SystemTime {
        self.grant.lease_until.to_system_time()
    }

    /// Proof of the lease. Tokens of a message only grow, and their text form sorts in the same order: pass the token
    /// on to fence your own resource.
    pub fn lease_token(&self) -> LeaseToken {
        self.grant.token
    }

    /// The generation; each change by the producer raises it by one.
    pub fn generation(&self) -> u32 {
        self.grant.generation
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        self.grant.lease_ms
    }
}

impl fmt::Debug for Message {
    /// The body is left out: it may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.grant.fmt(f)
    }
}

/// How the run of a handler has ended. Reasons are kept in the message's history, cut to 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub enum HandlerOutcome {
    /// The message is done.
    Ack,
    /// The attempt has failed: the message is delivered again after its backoff, or is dead after its last attempt.
    Failed {
        /// The reason.
        reason: String,
    },
    /// The message is delivered again after `delay`, and the attempt does not count against `max_attempts`.
    NotYet {
        /// The delay, rounded up to a millisecond.
        delay: Duration,
        /// The reason.
        reason: String,
    },
    /// The message is dead at once, until it is redriven or cancelled.
    Dead {
        /// The reason.
        reason: String,
    },
}

/// A value that a handler may return: `()` acks, an error makes the attempt fail, and a [`HandlerOutcome`] is itself.
///
/// The error may be of any type that converts to `Box<dyn Error + Send + Sync>`: an error type of your own, `String`,
/// `anyhow::Error`. With a [`DeadLetter`] or a [`NotYet`] among its sources it makes the message dead, or returns it.
pub trait IntoOutcome {
    /// Converts the value.
    fn into_outcome(self) -> HandlerOutcome;
}

impl IntoOutcome for HandlerOutcome {
    fn into_outcome(self) -> HandlerOutcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> HandlerOutcome {
        HandlerOutcome::Ack
    }
}

impl<T: IntoOutcome, E: Into<Box<dyn Error + Send + Sync>>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> HandlerOutcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(error) => HandlerOutcome::of(&*error.into()),
        }
    }
}

impl HandlerOutcome {
    /// A failed attempt.
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        HandlerOutcome::Failed { reason: reason.into() }
    }

    /// The outcome that a handler's error means.
    fn of(error: &(dyn Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut next = error.source();
        while let Some(source) = next {
            if let Some(Mark(delay)) = source.downcast_ref() {
                return match *delay {
                    None => HandlerOutcome::Dead { reason },
                    Some(delay) => HandlerOutcome::NotYet { delay, reason },
                };
            }
            // Many errors repeat the text of their source.
            let text = source.to_string();
            if !reason.ends_with(&text) {
                reason = format!("{reason}: {text}");
            }
            next = source.source();
        }
        HandlerOutcome::Failed { reason }
    }

    /// The operation that settles the message.
    pub(crate) fn op(
        &self,
        id: MessageId,
        token: LeaseToken,
    ) -> Typed<Result<Applied<Settled>, SettleRefusal>> {
        match self {
            HandlerOutcome::Ack => Op::ack(id, token),
            HandlerOutcome::Failed { reason } => Op::nack(id, token, Attempt::Failed, None, reason),
            HandlerOutcome::NotYet { delay, reason } => {
                Op::nack(id, token, Attempt::NotYet, Some(ceil_ms(*delay)), reason)
            }
            HandlerOutcome::Dead { reason } => Op::bury(id, token, reason),
        }
    }
}

/// The source of [`DeadLetter`] (without a delay) and of [`NotYet`]. Wrappers such as `anyhow::Error` hide the type of
/// the error that they wrap, but all of them pass on its source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark(Option<Duration>);

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "not to be tried again" } else { "to be tried again later" })
    }
}

impl Error for Mark {}

/// The error of a handler whose message must not be tried again: the message is dead at once, with this reason.
///
/// An error with a `DeadLetter` among its sources counts as one. A dead message stays until it is redriven or
/// cancelled.
///
/// ```
/// # use duewheel::{DeadLetter, HandlerResult};
/// fn send(address: &str) -> HandlerResult {
///     if !address.contains('@') {
///         return Err(DeadLetter::new("no such address").into());
///     }
///     Ok(())
/// }
/// assert_eq!(send("nobody").unwrap_err().to_string(), "no such address");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    reason: String,
    mark: Mark,
}

impl DeadLetter {
    /// Makes the message dead for this reason, which is kept in the message's history, cut to 256 bytes.
    pub fn new(reason: impl Into<String>) -> Self {
        DeadLetter { reason: reason.into(), mark: Mark(None) }
    }
}

impl fmt::Display for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for DeadLetter {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.mark)
    }
}

/// The error of a handler whose message cannot be done yet: the message is delivered again after a delay, and the
/// attempt does not count against `max_attempts`.
///
/// ```
/// # use duewheel::{HandlerResult, MINUTE, NotYet};
/// fn send(stock: u32) -> HandlerResult {
///     if stock == 0 {
///         return Err(NotYet::new(10 * MINUTE, "out of stock").into());
///     }
///     Ok(())
/// }
/// assert_eq!(send(0).unwrap_err().to_string(), "out of stock");
/// ```
///
/// An error with a `NotYet` among its sources counts as one. [`crate::Message::attempt`] counts the attempt all the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotYet {
    reason: String,
    mark: Mark,
}

impl NotYet {
    /// Delivers the message again after `delay`, rounded up to a millisecond; with a delay longer than 136 years the
    /// attempt has failed. The reason is kept in the message's history, cut to 256 bytes.
    pub fn new(delay: Duration, reason: impl Into<String>) -> Self {
        NotYet { reason: reason.into(), mark: Mark(Some(delay)) }
    }
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for NotYet {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum AppError {
        #[error("order {0}")]
        Order(u32, #[source] DeadLetter),
        #[error(transparent)]
        Bare(#[from] DeadLetter),
        #[error("paying: {}", .0.to_string())]
        Repeats(#[source] std::io::Error),
    }

    fn dead(reason: &str) -> HandlerOutcome {
        HandlerOutcome::Dead { reason: reason.into() }
    }

    /// Story: `anyhow` hides the type of what it wraps, so a bare `DeadLetter` with `?` was tried twenty times.
    #[test]
    fn outcomes_are_found_through_wrappers() {
        let letter = || DeadLetter::new("no account");
        let boxed = |error: anyhow::Error| Err::<(), _>(error).into_outcome();
        assert_eq!(boxed(letter().into()), dead("no account"));
        assert_eq!(boxed(anyhow::Error::new(letter()).context("paying")), dead("paying: no account"));
        assert_eq!(boxed(anyhow::Error::from_boxed(Box::new(letter()))), dead("no account"));
        assert_eq!(boxed(AppError::Order(7, letter()).into()), dead("order 7: no account"));
        assert_eq!(Err::<(), _>(AppError::Bare(letter())).into_outcome(), dead("no account"));
        assert_eq!(Err::<(), _>(letter()).into_outcome(), dead("no account"));
        assert_eq!(Err::<(), _>(std::io::Error::other(letter())).into_outcome(), dead("no account"));
        assert_eq!(boxed(std::sync::Arc::new(letter()).into()), dead("no account"));
        let later = NotYet::new(Duration::from_secs(1), "no stock");
        let outcome = HandlerOutcome::NotYet { delay: Duration::from_secs(1), reason: "no stock".into() };
        assert_eq!(boxed(later.clone().into()), outcome);
        assert_eq!(Err::<(), _>(later).into_outcome(), outcome);
    }

    #[test]
    fn handlers_return_anything_that_says_how_it_went() {
        assert_eq!(().into_outcome(), HandlerOutcome::Ack);
        assert_eq!(Ok::<_, std::io::Error>(()).into_outcome(), HandlerOutcome::Ack);
        assert_eq!(Ok::<_, String>(dead("x")).into_outcome(), dead("x"));
        assert_eq!(Err::<(), _>("closed").into_outcome(), HandlerOutcome::failed("closed"));
        let repeats = AppError::Repeats(std::io::Error::other("the bank is closed"));
        let reason = HandlerOutcome::failed("paying: the bank is closed");
        assert_eq!(Err::<(), _>(repeats).into_outcome(), reason);
    }
}
