//! The seam: what another system needs for a bridge of its kind. `conformance` is the suite that each passes.

use std::fmt;
use std::future::Future;

use duewheel::core::engine::{Enqueue, Grant, Op};
use tokio::sync::mpsc::UnboundedSender;

/// Why the other side did not take part. The bridge connects again, after a pause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SeamError(pub String);

impl SeamError {
    /// The error of a step, with what was tried.
    pub fn of(what: &str, why: impl fmt::Display) -> Self {
        SeamError(format!("{what}: {why}"))
    }
}

/// A message of the other side.
#[derive(Clone, Debug)]
pub struct BridgeArrival {
    /// Identifies it until it is confirmed; unique among the pulled ones of its source.
    pub mark: u64,
    /// The request of the message, or why that is not valid.
    pub intent: Result<Intent, String>,
    /// Whether the other side may have delivered it before.
    pub is_redelivered: bool,
}

/// The request of a message of the other side.
#[derive(Clone, Debug)]
pub enum Intent {
    /// A new message.
    Enqueue(Box<Enqueue>),
    /// A change of the message that has a key. Where none is found, nothing is to be done.
    Change(Op),
}

/// The outcome of an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrivalVerdict {
    /// The effect is durable here.
    Taken,
    /// Refused for good, for this reason: the source puts the message aside, where people find it.
    Refused(String),
}

/// Messages from another system. A source that is dropped has confirmed nothing of what was not confirmed.
pub trait Source: Send {
    /// Waits for messages, at most `max`. The other side keeps each until it is confirmed, and delivers it again when
    /// this source ends before that.
    ///
    /// # Errors
    /// The other side is away.
    ///
    /// # Cancel safety
    /// Cancel safe: no message is lost.
    fn pull(&mut self, max: usize) -> impl Future<Output = Result<Vec<BridgeArrival>, SeamError>> + Send;

    /// Confirms the outcomes of pulled messages to the other side. Those that were refused are kept aside before the other
    /// side may forget them.
    ///
    /// # Errors
    /// The other side is away: it delivers some of them again.
    ///
    /// # Cancel safety
    /// When the future is dropped, the other side may deliver some of them again.
    fn confirm(
        &mut self,
        verdicts: Vec<(u64, ArrivalVerdict)>,
    ) -> impl Future<Output = Result<(), SeamError>> + Send;
}

/// The outcome of a message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendFate {
    /// The other side has it, as durably as it keeps anything.
    Sent,
    /// The other side has no place for it, or refuses it: the attempt counts.
    Unroutable(String),
    /// The other side does not take it at present: the attempt does not count.
    NotNow(String),
}

/// Messages to another system.
pub trait Sink: Send {
    /// Sends messages, and reports the index of each with its fate as soon as that is known.
    ///
    /// # Errors
    /// The other side is away. The fate of those that were not reported is unknown: they are sent again.
    ///
    /// # Cancel safety
    /// When the future is dropped, the fate of those that were not reported is unknown.
    fn send(
        &mut self,
        batch: &[Grant],
        heard: &UnboundedSender<(usize, SendFate)>,
    ) -> impl Future<Output = Result<(), SeamError>> + Send;
}

/// Connects to the other side, again after each error.
pub trait BridgeConnector: Send + Sync + 'static {
    /// The source.
    type Source: Source;
    /// The sink.
    type Sink: Sink;

    /// Connects a source.
    ///
    /// # Errors
    /// The other side is away, or refuses.
    ///
    /// # Cancel safety
    /// Cancel safe.
    fn source(&self) -> impl Future<Output = Result<Self::Source, SeamError>> + Send;

    /// Connects a sink.
    ///
    /// # Errors
    /// The other side is away, or refuses.
    ///
    /// # Cancel safety
    /// Cancel safe.
    fn sink(&self) -> impl Future<Output = Result<Self::Sink, SeamError>> + Send;
}
