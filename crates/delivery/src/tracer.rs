//! Spans of deliveries, which a program makes from what is reported to it here.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duewheel::Client;
use duewheel::core::engine::{Grant, Op};
use duewheel::core::name::QueueName;
use duewheel::core::policy::{QueueSettings, TraceMode};
use hyper::Uri;
use tokio::sync::Mutex;
use tokio::time::Instant;

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

/// How long the setting of traces is believed: an edit holds after this time, at every node. So is a look that failed.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long a delivery waits for the settings of its queue.
const WAIT: Duration = Duration::from_millis(500);

/// The settings of a queue and when they were read last; `None`: the first look has failed.
type LastRead = (Instant, Option<Arc<QueueSettings>>);

/// The settings of each queue.
#[derive(Debug, Default)]
pub(crate) struct KnownSettings(Mutex<HashMap<QueueName, LastRead>>);

impl KnownSettings {
    /// The settings of a queue, as far as they are believed; the last ones, or the defaults, if the wheel does not tell
    /// them in time.
    async fn of(&self, queue: &QueueName, wheel: &Client) -> Arc<QueueSettings> {
        // Locked until the answer is there, so that all callers that need it wait for the same request.
        let mut all = self.0.lock().await;
        let (at, known) = all.get(queue).cloned().unzip();
        let known = known.flatten();
        if at.is_some_and(|at: Instant| at.elapsed() < BELIEVED) {
            return known.unwrap_or_default();
        }
        let asked = tokio::time::timeout(WAIT, wheel.ask(Op::queue(queue.clone()))).await;
        let settings = match asked {
            Ok(Ok(view)) => Some(view.map(|view| view.settings.into()).unwrap_or_default()),
            Ok(Err(_)) | Err(_) => known,
        };
        all.insert(queue.clone(), (Instant::now(), settings.clone()));
        settings.unwrap_or_default()
    }

    /// The span of a delivery to this address, if there is a tracer. It begins now.
    pub(crate) async fn span(
        &self,
        tracer: Option<&Arc<dyn PushTracer>>,
        wheel: &Client,
        grant: &Grant,
        uri: &Uri,
    ) -> Option<Box<dyn PushSpan>> {
        let tracer = tracer?;
        let creation = TraceContext::of_headers(&grant.message.headers);
        let mode = match &creation {
            Some(_) => self.of(&grant.message.queue, wheel).await.trace.unwrap_or_default(),
            None => TraceMode::default(),
        };
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Some(tracer.begin(PushStart {
            grant,
            creation: creation.as_ref(),
            mode,
            host: uri.host().unwrap_or_default(),
            port: uri.port_u16().unwrap_or(default_port),
        }))
    }
}
