//! Spans of deliveries, where a program makes them.

use std::collections::HashMap;
use std::time::Duration;

use duewheel::core::engine::{Grant, Op};
use duewheel::core::name::QueueName;
use duewheel::core::policy::TraceMode;
use hyper::Uri;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::PushWorker;
use crate::trace::{PushSpan, PushStart, TraceContext};

/// How long a queue's setting is believed: an edit holds after this time, at every node.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long a delivery waits for it.
const WAIT: Duration = Duration::from_millis(500);

/// How the deliveries of each queue belong to the creation of their messages, as it was read last.
#[derive(Debug, Default)]
pub(super) struct TraceModes(Mutex<HashMap<QueueName, (Instant, TraceMode)>>);

impl PushWorker {
    /// The span of a delivery to this address, if spans are made. It begins now.
    pub(super) async fn span(&self, grant: &Grant, uri: &Uri) -> Option<Box<dyn PushSpan>> {
        let tracer = self.parts.tracer.as_ref()?;
        let creation = TraceContext::of_headers(&grant.message.headers);
        let mode = match &creation {
            Some(_) => self.trace_mode(&grant.message.queue).await,
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

    /// The setting of a queue; the last one, or the default, if the wheel does not tell it in time.
    async fn trace_mode(&self, queue: &QueueName) -> TraceMode {
        // Held meanwhile: others that need it wait for the same answer.
        let mut modes = self.modes.0.lock().await;
        let known = modes.get(queue).copied();
        if let Some((at, mode)) = known
            && at.elapsed() < BELIEVED
        {
            return mode;
        }
        let asked = tokio::time::timeout(WAIT, self.wheel.ask(Op::queue(queue.clone()))).await;
        let mode = match asked {
            Ok(Ok(view)) => view.and_then(|view| view.settings.trace).unwrap_or_default(),
            Ok(Err(_)) | Err(_) => known.map(|(_, mode)| mode).unwrap_or_default(),
        };
        modes.insert(queue.clone(), (Instant::now(), mode));
        mode
    }
}
