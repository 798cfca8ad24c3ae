//! The span of an attempt at a job.

use std::collections::HashMap;

use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::Status;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use riverqueue::JobRow;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The member of a job's metadata that says from which span it goes on.
const TRACEPARENT: &str = "traceparent";

/// It goes on from what its job carries, and is a trace of its own if that is nothing.
pub(super) fn attempt(job: &JobRow) -> Span {
    let span = tracing::info_span!(
        parent: None,
        "job",
        otel.kind = "consumer",
        job_id = job.id,
        kind = job.kind,
        attempt = job.attempt,
        queue = job.queue,
    );
    if !span.is_disabled()
        && let Ok(Some(traceparent)) = job.metadata.get::<String>(TRACEPARENT)
    {
        let carried = HashMap::from([(TRACEPARENT.to_owned(), traceparent)]);
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carried);
        // It fails where nobody traces, and nothing is lost then.
        let _ = span.set_parent(parent);
    }
    span
}

/// What the error says is in the log.
pub(super) fn failed(span: &Span, error_type: &'static str) {
    span.set_attribute("error.type", error_type);
    span.set_status(Status::error(""));
}
