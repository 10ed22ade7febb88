//! Spans of deliveries, which a program makes from what is reported to it here.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use duewheel::Client;
use duewheel::core::engine::{Grant, Op};
use duewheel::core::name::QueueName;
use duewheel::core::policy::TraceMode;
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

/// How long a queue's setting is believed: an edit holds after this time, at every node.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long a delivery waits for it.
const WAIT: Duration = Duration::from_millis(500);

/// The setting of each queue, as it was read last.
#[derive(Debug, Default)]
pub(crate) struct TraceModes(Mutex<HashMap<QueueName, (Instant, TraceMode)>>);

impl TraceModes {
    /// The setting of a queue; the last one, or the default, if the wheel does not tell it in time.
    async fn of(&self, queue: &QueueName, wheel: &Client) -> TraceMode {
        // Locked until the answer is there, so that all callers that need it wait for the same request.
        let mut modes = self.0.lock().await;
        let known = modes.get(queue).copied();
        if let Some((at, mode)) = known
            && at.elapsed() < BELIEVED
        {
            return mode;
        }
        let asked = tokio::time::timeout(WAIT, wheel.ask(Op::queue(queue.clone()))).await;
        let mode = match asked {
            Ok(Ok(view)) => view.and_then(|view| view.settings.trace).unwrap_or_default(),
            Ok(Err(_)) | Err(_) => known.map(|(_, mode)| mode).unwrap_or_default(),
        };
        modes.insert(queue.clone(), (Instant::now(), mode));
        mode
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
            Some(_) => self.of(&grant.message.queue, wheel).await,
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
