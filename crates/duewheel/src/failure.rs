//! Errors by which a handler makes a message dead, or returns it without counting the attempt.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use duewheel_core::engine::{Applied, Attempt, Op, SettleRefusal, Settled, Typed};
use duewheel_core::id::{LeaseToken, MessageId};
use duewheel_core::time::ceil_ms;

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
pub struct DeadLetter(String);

impl DeadLetter {
    /// Makes the message dead for this reason, which is kept in the message's history, cut to 256 bytes.
    pub fn new(reason: impl Into<String>) -> Self {
        DeadLetter(reason.into())
    }
}

impl fmt::Display for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for DeadLetter {}

/// The error of a handler whose message cannot be done yet: the message is delivered again after a delay, and the
/// attempt does not count against `max_attempts`.
///
/// An error with a `NotYet` among its sources counts as one. [`crate::Message::attempt`] counts the attempt all the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotYet {
    delay: Duration,
    reason: String,
}

impl NotYet {
    /// Delivers the message again after `delay`, rounded up to a millisecond. The reason is kept in the message's
    /// history, cut to 256 bytes.
    pub fn new(delay: Duration, reason: impl Into<String>) -> Self {
        NotYet { delay, reason: reason.into() }
    }
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for NotYet {}

/// How an unsuccessful run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandlerFailure {
    kind: FailureKind,
    note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    Failed,
    NotYet { delay_ms: u64 },
    Dead,
}

impl HandlerFailure {
    /// A failed attempt.
    pub(crate) fn failed(note: String) -> Self {
        HandlerFailure { kind: FailureKind::Failed, note }
    }

    /// The failure that a handler's error means.
    pub(crate) fn of(error: &(dyn Error + Send + Sync + 'static)) -> Self {
        let mut next: Option<&(dyn Error + 'static)> = Some(error);
        let mut kind = FailureKind::Failed;
        while let Some(error) = next {
            if error.is::<DeadLetter>() {
                kind = FailureKind::Dead;
                break;
            }
            if let Some(not_yet) = error.downcast_ref::<NotYet>() {
                kind = FailureKind::NotYet { delay_ms: ceil_ms(not_yet.delay) };
                break;
            }
            next = error.source();
        }
        HandlerFailure { kind, note: error.to_string() }
    }

    pub(crate) fn note(&self) -> &str {
        &self.note
    }

    /// The operation that reports the failure.
    pub(crate) fn op(
        &self,
        id: MessageId,
        token: LeaseToken,
    ) -> Typed<Result<Applied<Settled>, SettleRefusal>> {
        match self.kind {
            FailureKind::Failed => Op::nack(id, token, Attempt::Failed, None, &self.note),
            FailureKind::NotYet { delay_ms } => {
                Op::nack(id, token, Attempt::NotYet, Some(delay_ms), &self.note)
            }
            FailureKind::Dead => Op::bury(id, token, &self.note),
        }
    }
}
