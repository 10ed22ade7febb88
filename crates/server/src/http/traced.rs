//! Traces of requests: the context of the caller, and what is reported about each operation.

use std::sync::Arc;
use std::time::SystemTime;

use axum::http::HeaderMap;
use duewheel::core::engine::{Enqueue, Grant};
use duewheel::core::message::Headers;
use duewheel::core::{MessageId, QueueName};
use duewheel_delivery::{TRACEPARENT, TRACESTATE, TraceContext};

use super::App;
use super::call::Call;
use crate::error::Problem;
use crate::traces::{AskedBy, LeaseCall, Received, SendEnd, SendSpan, SettledLeases, Traces};

/// The context that a caller names. A request with two of them has none.
fn caller(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    // Several lines are one list.
    let states: Vec<&str> =
        headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
    TraceContext::new(parent, Some(&states.join(",")))
}

/// The trace of an enqueue: its span, if spans are made, and the context that travels with its messages.
#[derive(Debug)]
pub(super) struct Sending {
    span: Option<Box<dyn SendSpan>>,
    /// The context of the span, or else of the caller.
    creation: Option<TraceContext>,
    max_headers: usize,
}

impl Sending {
    pub(super) fn begin(call: &Call, queue: &QueueName) -> Self {
        let caller = caller(call.headers());
        let span = call.app.traces().map(|traces| traces.send(queue, caller.as_ref()));
        let creation = span.as_ref().and_then(|span| span.context()).or(caller);
        Sending { span, creation, max_headers: call.app.policy.max_headers }
    }

    /// The state of a request without a trace context.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Sending { span: None, creation: None, max_headers: 0 }
    }

    /// Gives a message the context, unless it says itself where it was created, or has no room for it.
    pub(super) fn mark(&mut self, message: &mut Enqueue) {
        let headers = &mut message.headers;
        if headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT)) {
            if let (Some(span), Some(own)) = (&mut self.span, TraceContext::of_headers(headers)) {
                span.link(&own);
            }
            return;
        }
        let Some(creation) = &self.creation else { return };
        // A header of the caller's request must not be why it is refused.
        let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let mut room = self.max_headers.saturating_sub(size);
        let mut put = |name: &str, value: &str, headers: &mut Headers| match room
            .checked_sub(name.len() + value.len())
        {
            Some(left) => {
                room = left;
                headers.push((name.into(), value.into()));
                true
            }
            None => false,
        };
        if put(TRACEPARENT, creation.traceparent(), headers)
            && let Some(state) = creation.tracestate()
            && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(TRACESTATE))
        {
            put(TRACESTATE, state, headers);
        }
    }

    /// Ends the span: the message was accepted.
    pub(super) fn accepted(self, id: MessageId) {
        self.end(SendEnd { id: Some(id), batch: None, error: None });
    }

    /// Ends the span: this number of lines was taken.
    pub(super) fn taken(self, lines: usize) {
        self.end(SendEnd { id: None, batch: Some(lines), error: None });
    }

    /// Ends the span: the request was refused as a whole.
    pub(super) fn refused(self, problem: &Problem) {
        self.end(SendEnd { id: None, batch: None, error: Some(problem.code.as_str()) });
    }

    fn end(self, of: SendEnd) {
        if let Some(span) = self.span {
            span.end(of);
        }
    }
}

/// A request on messages that exist, if spans are made.
#[derive(Debug)]
pub(super) struct TracedCall(Option<TracedCallState>);

#[derive(Debug)]
struct TracedCallState {
    traces: Arc<dyn Traces>,
    caller: Option<TraceContext>,
    since: SystemTime,
}

impl TracedCallState {
    fn asked(&self, error: Option<&Problem>) -> AskedBy<'_> {
        let error = error.map(|problem| problem.code.as_str());
        AskedBy { caller: self.caller.as_ref(), since: self.since, error }
    }
}

impl TracedCall {
    /// Begins the span of a call.
    pub(super) fn begin(app: &App, headers: &HeaderMap) -> Self {
        TracedCall(app.traces().map(|traces| TracedCallState {
            traces: Arc::clone(traces),
            caller: caller(headers),
            since: SystemTime::now(),
        }))
    }

    /// The queue for the span, if there is only one queue and spans are made.
    pub(super) fn only(&self, queues: &[QueueName]) -> Option<QueueName> {
        match (&self.0, queues) {
            (Some(_), [queue]) => Some(queue.clone()),
            _ => None,
        }
    }

    /// A reserve has ended. `queue`: the one that was named, if it was one.
    pub(super) fn received(self, queue: Option<&QueueName>, grants: &[Grant], error: Option<&Problem>) {
        let Some(state) = self.0 else { return };
        state.traces.received(Received { asked: state.asked(error), queue, grants });
    }

    /// A lease was settled, or not.
    pub(super) fn settled<T>(self, how: LeaseCall, id: MessageId, result: &Result<T, Problem>) {
        let Some(state) = self.0 else { return };
        let asked = state.asked(result.as_ref().err());
        state.traces.settled(SettledLeases { asked, how, ids: &[id], is_batch: false });
    }

    /// Leases were settled. The span has an error only if none of them was.
    pub(super) fn settled_many<T>(self, how: LeaseCall, results: &[(MessageId, Result<T, Problem>)]) {
        let Some(state) = self.0 else { return };
        let ids: Vec<MessageId> = results.iter().map(|(id, _)| *id).collect();
        let first = results.iter().find_map(|(_, result)| result.as_ref().err());
        let error = first.filter(|_| results.iter().all(|(_, result)| result.is_err()));
        state.traces.settled(SettledLeases { asked: state.asked(error), how, ids: &ids, is_batch: true });
    }
}
