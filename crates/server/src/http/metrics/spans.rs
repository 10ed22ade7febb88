//! Figures of the spans that this process makes.

use super::super::App;
use super::page::MetricsPage;

/// Counts of spans; nothing if none are made.
pub(super) fn write(page: &mut MetricsPage, app: &App) {
    let Some(counts) = app.traces().map(|traces| traces.counts()) else { return };
    page.one(
        "duewheel_otel_spans_exported_total",
        "counter",
        "Spans that the collector has taken.",
        counts.exported,
    );
    page.one(
        "duewheel_otel_spans_dropped_total",
        "counter",
        "Spans that were dropped: too many waited, or their export failed.",
        counts.dropped,
    );
    page.one("duewheel_otel_spans_waiting", "gauge", "Spans that wait for their export.", counts.waiting);
    page.one("duewheel_otel_export_failures_total", "counter", "Exports that failed.", counts.failures);
}
