//! Spans of what the server does with messages: what is reported about each operation, and to which module.
//!
//! The front ends report what happens to [`Traces`], if spans are made. The module `otel` makes them, which the feature of
//! that name adds; without it nothing here is ever called.

#![cfg_attr(not(feature = "otel"), expect(dead_code, reason = "only spans read what is told"))]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use duewheel::core::engine::Grant;
use duewheel::core::{MessageId, QueueName};
use duewheel_delivery::{PushTracer, TraceContext};

/// The tracer of the operations of this server. Calls come from within an operation, so they must not block.
pub(crate) trait Traces: PushTracer {
    /// An enqueue begins: of a caller with this context.
    fn send(&self, queue: &QueueName, caller: Option<&TraceContext>) -> Box<dyn SendSpan>;
    /// A reserve has ended.
    fn received(&self, of: Received<'_>);
    /// Leases were settled.
    fn settled(&self, of: SettledLeases<'_>);
    /// Counts of the spans so far.
    fn counts(&self) -> SpanCounts;
    /// Exports what waits, for this long at most. Spans that end later are dropped.
    fn stop(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// The tracer of deliveries.
    fn tracer(self: Arc<Self>) -> Arc<dyn PushTracer>;
}

/// The span of an enqueue. One that is dropped has ended without an answer.
pub(crate) trait SendSpan: fmt::Debug + Send {
    /// The context that travels with its messages.
    fn context(&self) -> Option<TraceContext>;
    /// Links the span to the context in which one of its messages was created.
    fn link(&mut self, creation: &TraceContext);
    /// Ends the span.
    fn end(self: Box<Self>, of: SendEnd);
}

/// How an enqueue has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendEnd {
    /// The message, if it was a single one.
    pub(crate) id: Option<MessageId>,
    /// How many messages, if they were on lines.
    pub(crate) batch: Option<usize>,
    /// The code of the error that refused all of it.
    pub(crate) error: Option<&'static str>,
}

/// A request that has ended: since when, and for whom it worked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedBy<'a> {
    /// The context of the caller.
    pub(crate) caller: Option<&'a TraceContext>,
    /// When it began.
    pub(crate) since: SystemTime,
    /// The code of the error that refused it.
    pub(crate) error: Option<&'static str>,
}

/// A reserve that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) asked: AskedBy<'a>,
    /// The queue, if only one was named.
    pub(crate) queue: Option<&'a QueueName>,
    pub(crate) grants: &'a [Grant],
}

/// Leases that were settled or extended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettledLeases<'a> {
    pub(crate) asked: AskedBy<'a>,
    pub(crate) how: LeaseCall,
    pub(crate) ids: &'a [MessageId],
    /// Whether the request could name several.
    pub(crate) is_batch: bool,
}

/// The operation that was requested for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseCall {
    Ack,
    Nack,
    Extend,
}

impl LeaseCall {
    #[cfg(feature = "otel")]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            LeaseCall::Ack => "ack",
            LeaseCall::Nack => "nack",
            LeaseCall::Extend => "extend",
        }
    }
}

/// Counts of the spans of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanCounts {
    /// The collector has them.
    pub(crate) exported: u64,
    /// Nobody has them: too many waited, or an export failed.
    pub(crate) dropped: u64,
    /// The spans that wait for their export.
    pub(crate) waiting: u64,
    /// Exports that failed.
    pub(crate) failures: u64,
}
