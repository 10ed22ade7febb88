//! Which spans are recorded.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt, TraceId, TraceState};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

use crate::config::SamplerOption;

/// A sampler like those of OpenTelemetry, with one thing more where a span does as its parent: one without a parent
/// does as the spans that it links to. So a delivery is recorded if the creation of its message was, though it is a
/// trace of its own.
#[derive(Clone, Debug)]
pub(super) struct LinkSampler(pub(super) SamplerOption);

impl ShouldSample for LinkSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let by_ratio = |ratio| {
            Sampler::TraceIdRatioBased(ratio).should_sample(parent, trace, name, kind, attributes, links)
        };
        let ratio = match self.0 {
            SamplerOption::Ratio(ratio) => return by_ratio(ratio),
            SamplerOption::ByParent(ratio) => ratio,
        };
        let above =
            parent.map(|context| context.span().span_context().clone()).filter(|above| above.is_valid());
        let is_sampled = match &above {
            Some(above) => above.is_sampled(),
            None if links.is_empty() => return by_ratio(ratio),
            None => links.iter().any(|link| link.span_context.is_sampled()),
        };
        SamplingResult {
            decision: if is_sampled { SamplingDecision::RecordAndSample } else { SamplingDecision::Drop },
            attributes: Vec::new(),
            trace_state: above.map_or_else(TraceState::default, |above| above.trace_state().clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags};

    use super::*;

    fn context(is_sampled: bool) -> SpanContext {
        let flags = TraceFlags::default().with_sampled(is_sampled);
        let state = "a=1".parse().unwrap();
        SpanContext::new(TraceId::from(7_u128), SpanId::from(8_u64), flags, true, state)
    }

    fn is_recorded(sampler: SamplerOption, parent: Option<bool>, links: &[bool]) -> bool {
        let parent = parent.map(|sampled| Context::new().with_remote_span_context(context(sampled)));
        let links: Vec<Link> = links.iter().map(|sampled| Link::with_context(context(*sampled))).collect();
        let trace = TraceId::from(u128::MAX);
        let kind = SpanKind::Consumer;
        let result = LinkSampler(sampler).should_sample(parent.as_ref(), trace, "x", &kind, &[], &links);
        let state = if parent.is_some() { "a=1" } else { "" };
        assert_eq!(result.trace_state.header(), state);
        result.decision == SamplingDecision::RecordAndSample
    }

    #[test]
    fn sampling_follows_parent_links_then_ratio() {
        use SamplerOption::{ByParent, Ratio};
        for (sampler, parent, links, expected) in [
            (ByParent(1.0), None, &[][..], true),
            (ByParent(0.0), None, &[], false),
            (ByParent(0.0), Some(true), &[], true),
            (ByParent(1.0), Some(false), &[true], false),
            (ByParent(0.0), None, &[false, true], true),
            (ByParent(1.0), None, &[false, false], false),
            (Ratio(1.0), Some(false), &[false], true),
            (Ratio(0.0), Some(true), &[true], false),
            (Ratio(0.5), None, &[true], false),
        ] {
            assert_eq!(is_recorded(sampler, parent, links), expected, "{sampler:?} {parent:?} {links:?}");
        }
    }
}
