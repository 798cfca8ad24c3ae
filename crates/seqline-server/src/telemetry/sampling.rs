//! Which traces are recorded.

use opentelemetry::trace::{Link, SpanKind, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// Records what is linked to a trace that is recorded, and of the rest what the other sampler does. A round is a trace of its own: without
/// this, of the requests that were recorded only a part would be seen through.
#[derive(Debug, Clone)]
pub(super) struct Linked(pub(super) Sampler);

impl ShouldSample for Linked {
    fn should_sample(
        &self,
        parent_context: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        span_kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let result = self.0.should_sample(parent_context, trace_id, name, span_kind, attributes, links);
        match links.iter().any(|link| link.span_context.is_sampled()) {
            true => SamplingResult { decision: SamplingDecision::RecordAndSample, ..result },
            false => result,
        }
    }
}
