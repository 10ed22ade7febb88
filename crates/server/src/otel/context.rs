//! Contexts of spans as headers have them, and as the SDK does.

use duewheel_delivery::TraceContext;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// A context as the SDK has it; `None` if that does not take it.
pub(super) fn span_context(context: &TraceContext) -> Option<SpanContext> {
    let mut parts = context.traceparent().split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::default().with_sampled(context.is_sampled());
    // A `tracestate` that the SDK refuses is left out, as W3C says.
    let state = context.tracestate().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}

/// A context as headers have it; `None`: there is no span.
pub(super) fn trace_context(context: &SpanContext) -> Option<TraceContext> {
    if !context.is_valid() {
        return None;
    }
    let flags = context.trace_flags().to_u8();
    let parent = format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id());
    TraceContext::new(&parent, Some(&context.trace_state().header()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_comes_back() {
        for (parent, state) in [
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some("a=1,b=2")),
            ("00-00000000000000000000000000000001-0000000000000001-00", None),
        ] {
            let context = TraceContext::new(parent, state).unwrap();
            let there = span_context(&context).unwrap();
            assert!(there.is_remote());
            assert_eq!(trace_context(&there), Some(context));
        }
        let odd = TraceContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some("?"));
        assert_eq!(span_context(&odd.unwrap()).unwrap().trace_state().header(), "");
        assert_eq!(trace_context(&SpanContext::empty_context()), None);
    }
}
