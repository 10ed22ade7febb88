//! Spans of deliveries, where a program makes them.

use duewheel::core::engine::Grant;
use duewheel::core::policy::TraceMode;
use hyper::Uri;

use super::PushWorker;
use crate::trace::TraceContext;
use crate::tracer::{PushSpan, PushStart};

impl PushWorker {
    /// The span of a delivery to this address, if spans are made. It begins now.
    pub(super) async fn span(&self, grant: &Grant, uri: &Uri) -> Option<Box<dyn PushSpan>> {
        let tracer = self.parts.tracer.as_ref()?;
        let creation = TraceContext::of_headers(&grant.message.headers);
        let mode = match &creation {
            Some(_) => self.modes.of(&grant.message.queue, &self.wheel).await,
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
