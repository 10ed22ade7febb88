//! Spans by OpenTelemetry: made by its SDK, sent to a collector with OTLP over HTTP.
//!
//! Names, kinds and attributes are those of the semantic conventions for messaging (docs/telemetry.md has a table). A
//! thread of the SDK gathers spans and posts them; nothing that serves a request waits for it.

mod client;
mod context;
mod sampler;
mod spans;

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duewheel::core::{MessageId, QueueName};
use lru::LruCache;
use opentelemetry::trace::{Link, SpanBuilder, SpanContext, Tracer as _, TracerProvider as _};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{ResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span};

use crate::config::{ConfigError, OtlpSettings};
use crate::traces::SpanCounts;
use client::CollectorClient;
use client::{BoundedProcessor, CountedExporter, ExportCounts};
use context::span_context;
use duewheel_delivery::TraceContext;
use sampler::LinkSampler;

/// How many grants are remembered, so that the span of their settlement names their queue and links to their creation.
const GRANTS: usize = 10_000;
/// Links of one span at most, as OpenTelemetry has it; more are counted in the span.
const LINKS: usize = 128;

/// Makes spans of what the server does, and sends them to a collector.
#[derive(Debug)]
pub(crate) struct OtelTraces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    counts: Arc<ExportCounts>,
    grants: Mutex<LruCache<MessageId, GrantedMessage>>,
}

/// The part of a grant that is remembered.
#[derive(Clone, Debug)]
struct GrantedMessage {
    queue: QueueName,
    creation: Option<SpanContext>,
}

impl OtelTraces {
    /// Starts the thread that exports spans.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub(crate) fn start(settings: OtlpSettings, node: Option<&str>) -> Result<Self, ConfigError> {
        let counts = Arc::new(ExportCounts::default());
        let client = CollectorClient::new(&settings, Arc::clone(&counts))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&settings.url)
            .with_timeout(settings.timeout)
            .with_http_client(client)
            .build()
            .map_err(|error| ConfigError::Value(format!("--otlp-endpoint: {error}")))?;
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue)
            .with_max_export_batch_size(settings.batch)
            .with_scheduled_delay(settings.delay)
            .build();
        let exporter = CountedExporter::new(exporter, Arc::clone(&counts));
        let batches = BatchSpanProcessor::new(exporter, batch);
        let provider = SdkTracerProvider::builder()
            .with_resource(resource(&settings, node))
            .with_sampler(LinkSampler(settings.sampler))
            .with_span_processor(BoundedProcessor::new(batches, Arc::clone(&counts), settings.queue))
            .build();
        let scope = InstrumentationScope::builder("duewheel").with_version(env!("CARGO_PKG_VERSION"));
        let tracer = provider.tracer_with_scope(scope.build());
        tracing::info!(url = settings.url, "spans are sent to a collector");
        let grants = NonZeroUsize::new(GRANTS).unwrap_or(NonZeroUsize::MIN);
        Ok(OtelTraces { provider, tracer, counts, grants: Mutex::new(LruCache::new(grants)) })
    }

    /// Begins a span: as a child of `parent`, or else as a new trace.
    fn begin(&self, span: SpanBuilder, parent: Option<&TraceContext>) -> Span {
        let context = opentelemetry::Context::new();
        let context = match parent.and_then(span_context) {
            Some(parent) => {
                use opentelemetry::trace::TraceContextExt as _;
                context.with_remote_span_context(parent)
            }
            None => context,
        };
        self.tracer.build_with_context(span, &context)
    }

    fn grants(&self) -> MutexGuard<'_, LruCache<MessageId, GrantedMessage>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn span_counts(&self) -> SpanCounts {
        self.counts.seen()
    }

    /// Exports what waits, and ends the thread.
    fn flush(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let provider = self.provider.clone();
        Box::pin(async move {
            // The call waits for the thread. The task outlives this future if a second signal comes.
            let stopped = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(time)).await;
            let left = self.counts.give_up();
            match stopped {
                Ok(Ok(())) if left == 0 => {}
                Ok(_) | Err(_) => tracing::warn!(spans = left, "the last spans could not be exported"),
            }
        })
    }
}

/// Links to the creation of these messages; all beyond the limit are counted by the SDK.
fn links(all: impl Iterator<Item = SpanContext>) -> Vec<Link> {
    all.take(LINKS).map(Link::with_context).collect()
}

/// The attributes of this process; those that the operator sets take precedence.
fn resource(settings: &OtlpSettings, node: Option<&str>) -> Resource {
    let given = settings.resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    let node = node.map(|node| KeyValue::new("service.instance.id", node.to_owned()));
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector) as Box<dyn ResourceDetector>)
        .with_attribute(KeyValue::new("service.name", "duewheel"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attributes(node)
        .with_attributes(given)
        .build()
}
