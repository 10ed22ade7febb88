//! Spans of deliveries, which a program makes from what is reported to it here.

use std::fmt;

use duewheel::core::engine::Grant;
use duewheel::core::policy::TraceMode;

use crate::client::PushOutcome;
use crate::trace::TraceContext;

/// A delivery that begins.
#[derive(Clone, Copy, Debug)]
pub struct PushStart<'a> {
    /// The message and its lease.
    pub grant: &'a Grant,
    /// The context in which the message was created.
    pub creation: Option<&'a TraceContext>,
    /// How the delivery belongs to it.
    pub mode: TraceMode,
    /// The host that the request goes to.
    pub host: &'a str,
    /// The port of the target.
    pub port: u16,
}

/// Makes spans of deliveries. It is called where deliveries are made, so it must not block.
pub trait PushTracer: fmt::Debug + Send + Sync {
    /// The span of a delivery, from now on.
    fn begin(&self, start: PushStart<'_>) -> Box<dyn PushSpan>;
}

/// A span from the beginning of a request to its end. One that is dropped has ended without an answer.
pub trait PushSpan: Send {
    /// Returns the trace context that the headers of the request carry.
    fn context(&self) -> Option<TraceContext>;
    /// The request has ended like this.
    fn end(self: Box<Self>, outcome: &PushOutcome);
}
