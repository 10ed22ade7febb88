//! Names, kinds and attributes of spans, by the semantic conventions for messaging.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use duewheel::core::QueueName;
use duewheel::core::policy::TraceMode;
use duewheel_delivery::{PushOutcome, PushSpan, PushStart, PushTracer, PushVerdict, TraceContext};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status};
use opentelemetry_sdk::trace::Span;

use super::context::{span_context, trace_context};
use super::{GrantedMessage, OtelTraces, links};
use crate::traces::{AskedBy, Received, SendEnd, SendSpan, SettledLeases, SpanCounts, Traces};

/// The operations on messages, as the conventions name them.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Send,
    Receive,
    Process,
    Settle,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Verb::Send => "send",
            Verb::Receive => "receive",
            Verb::Process => "process",
            Verb::Settle => "settle",
        }
    }

    /// The conventions are for clients: what a client receives or settles is a request that this server serves. An
    /// enqueue creates the message, and a delivery is what its consumer does with it, wherever that runs.
    fn kind(self) -> SpanKind {
        match self {
            Verb::Send => SpanKind::Producer,
            Verb::Receive | Verb::Settle => SpanKind::Server,
            Verb::Process => SpanKind::Consumer,
        }
    }

    /// A span of messages of this queue; `None`: of several queues, or of one that is not known.
    fn span(self, queue: Option<&QueueName>) -> SpanBuilder {
        let verb = self.as_str();
        let name = queue.map_or_else(|| verb.to_owned(), |queue| format!("{verb} {queue}"));
        let mut attributes = vec![
            KeyValue::new("messaging.system", "duewheel"),
            KeyValue::new("messaging.operation.name", verb),
            KeyValue::new("messaging.operation.type", verb),
        ];
        if let Some(queue) = queue {
            attributes.push(KeyValue::new("messaging.destination.name", queue.as_str().to_owned()));
        }
        SpanBuilder::from_name(name).with_kind(self.kind()).with_attributes(attributes)
    }
}

fn message_id(id: impl fmt::Display) -> KeyValue {
    KeyValue::new("messaging.message.id", id.to_string())
}

fn message_count(count: usize) -> KeyValue {
    KeyValue::new("messaging.batch.message_count", i64::try_from(count).unwrap_or(i64::MAX))
}

/// Adds the error to a span, if there is one.
fn fail(span: &mut Span, error: Option<&str>) {
    if let Some(error) = error {
        span.set_attribute(KeyValue::new("error.type", error.to_owned()));
        span.set_status(Status::error(error.to_owned()));
    }
}

impl OtelTraces {
    /// A span of a request that has ended.
    fn ended(&self, span: SpanBuilder, asked: AskedBy<'_>, attribute: KeyValue) {
        let mut span = self.begin(span.with_start_time(asked.since), asked.caller);
        span.set_attribute(attribute);
        fail(&mut span, asked.error);
        span.end();
    }
}

impl Traces for OtelTraces {
    fn send(&self, queue: &QueueName, caller: Option<&TraceContext>) -> Box<dyn SendSpan> {
        Box::new(EnqueueSpan(self.begin(Verb::Send.span(Some(queue)), caller)))
    }

    fn received(&self, Received { asked, queue, grants }: Received<'_>) {
        let mut creations = Vec::new();
        {
            let mut known = self.grants();
            for grant in grants {
                let message = &grant.message;
                let creation = TraceContext::of_headers(&message.headers).as_ref().and_then(span_context);
                creations.extend(creation.clone());
                known.put(message.id, GrantedMessage { queue: message.queue.clone(), creation });
            }
        }
        // Consumers that poll would fill the collector with spans of nothing.
        if grants.is_empty() && asked.error.is_none() && !asked.caller.is_some_and(TraceContext::is_sampled) {
            return;
        }
        let first = grants.first().map(|grant| &grant.message.queue);
        let same = first.filter(|first| grants.iter().all(|grant| grant.message.queue == **first));
        let span = Verb::Receive.span(queue.or(same)).with_links(links(creations.into_iter()));
        let attribute = match grants {
            [grant] => message_id(grant.message.id),
            _ => message_count(grants.len()),
        };
        self.ended(span, asked, attribute);
    }

    fn settled(&self, SettledLeases { asked, how, ids, is_batch }: SettledLeases<'_>) {
        let known: Vec<GrantedMessage> = {
            let known = self.grants();
            ids.iter().filter_map(|id| known.peek(id).cloned()).collect()
        };
        let first = known.first().filter(|_| known.len() == ids.len()).map(|grant| &grant.queue);
        let queue = first.filter(|first| known.iter().all(|grant| grant.queue == **first));
        let mut span = Verb::Settle.span(queue);
        let verb = KeyValue::new("duewheel.settlement", how.as_str());
        span.attributes.get_or_insert_default().push(verb);
        let attribute = match ids {
            [id] if !is_batch => message_id(id),
            _ => message_count(ids.len()),
        };
        let creations = known.iter().filter_map(|grant| grant.creation.clone());
        self.ended(span.with_links(links(creations)), asked, attribute);
    }

    fn counts(&self) -> SpanCounts {
        self.span_counts()
    }

    fn stop(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.flush(time)
    }

    fn tracer(self: Arc<Self>) -> Arc<dyn PushTracer> {
        self
    }
}

/// The span of an enqueue.
#[derive(Debug)]
struct EnqueueSpan(Span);

impl SendSpan for EnqueueSpan {
    fn context(&self) -> Option<TraceContext> {
        trace_context(self.0.span_context())
    }

    fn link(&mut self, creation: &TraceContext) {
        if let Some(creation) = span_context(creation) {
            self.0.add_link(creation, Vec::new());
        }
    }

    fn end(mut self: Box<Self>, SendEnd { id, batch, error }: SendEnd) {
        let span = &mut self.0;
        if let Some(id) = id {
            span.set_attribute(message_id(id));
        }
        if let Some(count) = batch {
            span.set_attribute(message_count(count));
        }
        fail(span, error);
        span.end();
    }
}

impl PushTracer for OtelTraces {
    fn begin(&self, start: PushStart<'_>) -> Box<dyn PushSpan> {
        let message = &start.grant.message;
        let mut span = Verb::Process.span(Some(&message.queue));
        let lateness = i64::try_from(start.grant.lateness_ms).unwrap_or(i64::MAX);
        span.attributes.get_or_insert_default().extend([
            message_id(message.id),
            KeyValue::new("server.address", start.host.to_owned()),
            KeyValue::new("server.port", i64::from(start.port)),
            KeyValue::new("duewheel.attempt", i64::from(start.grant.attempt)),
            KeyValue::new("duewheel.lateness_ms", lateness),
        ]);
        let (parent, linked) = match start.mode {
            TraceMode::Child => (start.creation, None),
            TraceMode::Link => (None, start.creation.and_then(span_context)),
        };
        let span = span.with_links(links(linked.into_iter()));
        Box::new(DeliverySpan(OtelTraces::begin(self, span, parent)))
    }
}

/// The span of a delivery.
struct DeliverySpan(Span);

impl PushSpan for DeliverySpan {
    fn context(&self) -> Option<TraceContext> {
        trace_context(self.0.span_context())
    }

    fn end(mut self: Box<Self>, outcome: &PushOutcome) {
        if let duewheel_delivery::PushClass::Status(status) = outcome.class {
            self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        let is_good = matches!(outcome.verdict, PushVerdict::Delivered | PushVerdict::Snoozed(_));
        let class = outcome.class.to_string();
        fail(&mut self.0, (!is_good).then_some(&*class));
        self.0.end();
    }
}
