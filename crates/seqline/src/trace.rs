//! The trace context of an append, taken from the current span when the feature `opentelemetry` is on.

#[cfg(feature = "opentelemetry")]
pub(crate) fn current_traceparent() -> Option<String> {
    use opentelemetry::trace::TraceContextExt;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let context = tracing::Span::current().context();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| {
        // Version 00 of the W3C header. The database keeps it only if the trace is recorded.
        format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8())
    })
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current_traceparent() -> Option<String> {
    None
}
