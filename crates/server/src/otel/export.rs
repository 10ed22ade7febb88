//! Spans that have ended: a bounded number of them waits for export, and all others are counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};

use crate::traces::SpanCounts;

/// Counts of spans. Each one that has ended is in one of the first three.
#[derive(Debug, Default)]
pub(super) struct ExportCounts {
    exported: AtomicU64,
    dropped: AtomicU64,
    waiting: AtomicU64,
    failures: AtomicU64,
    /// Whether the last export failed.
    failing: AtomicBool,
    /// Whether no thread exports any more.
    closed: AtomicBool,
    pub(super) last: LastFailure,
}

impl ExportCounts {
    pub(super) fn seen(&self) -> SpanCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpanCounts {
            exported: of(&self.exported),
            dropped: of(&self.dropped),
            waiting: of(&self.waiting),
            failures: of(&self.failures),
        }
    }

    /// Counts the spans that still wait as dropped, and says how many these are.
    pub(super) fn give_up(&self) -> u64 {
        self.closed.store(true, Ordering::SeqCst);
        let left = self.waiting.swap(0, Ordering::SeqCst);
        self.dropped.fetch_add(left, Ordering::SeqCst);
        left
    }

    /// Takes spans out of those that wait; spans that were given up are counted already.
    fn leave(&self, spans: u64) -> u64 {
        let mut left = 0;
        let _ = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |waiting| {
            left = spans.min(waiting);
            Some(waiting - left)
        });
        left
    }
}

/// Why the last request to the collector failed, for the log.
#[derive(Debug, Default)]
pub(super) struct LastFailure(Mutex<Option<String>>);

impl LastFailure {
    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn text(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, error: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// Lets a bounded number of spans wait in the SDK's queue, which drops more than that without telling anybody.
#[derive(Debug)]
pub(super) struct BoundedProcessor {
    inner: BatchSpanProcessor,
    counts: Arc<ExportCounts>,
    room: u64,
}

impl BoundedProcessor {
    pub(super) fn new(inner: BatchSpanProcessor, counts: Arc<ExportCounts>, room: usize) -> Self {
        BoundedProcessor { inner, counts, room: u64::try_from(room).unwrap_or(u64::MAX) }
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let more = |waiting: u64| (waiting < self.room).then_some(waiting + 1);
        let has_room = !self.counts.closed.load(Ordering::SeqCst)
            && self.counts.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok();
        if has_room {
            self.inner.on_end(span);
        } else {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Counts what an exporter does, and logs when it begins to fail, and when it works again.
#[derive(Debug)]
pub(super) struct CountedExporter<E> {
    inner: E,
    counts: Arc<ExportCounts>,
}

impl<E> CountedExporter<E> {
    pub(super) fn new(inner: E, counts: Arc<ExportCounts>) -> Self {
        CountedExporter { inner, counts }
    }
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let counts = &self.counts;
        counts.last.forget();
        let result = self.inner.export(batch).await;
        let spans = counts.leave(spans);
        match &result {
            Ok(()) => {
                counts.exported.fetch_add(spans, Ordering::Relaxed);
                if counts.failing.swap(false, Ordering::Relaxed) {
                    tracing::info!("the collector takes spans again");
                }
            }
            Err(error) => {
                counts.dropped.fetch_add(spans, Ordering::Relaxed);
                counts.failures.fetch_add(1, Ordering::Relaxed);
                if !counts.failing.swap(true, Ordering::Relaxed) {
                    let error = counts.last.text().unwrap_or_else(|| error.to_string());
                    tracing::warn!(%error, "the collector does not take spans; they are dropped and counted");
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
