//! The spans, and what is read from them.

use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::consumer::{RoundError, RoundResult};
use crate::event::StoredEvent;

/// That of the current span, recorded or not. The database keeps it only if the trace is recorded.
pub(crate) fn current_traceparent() -> Option<String> {
    context_of(&Span::current()).map(|context| header(&context))
}

/// That of the current span, for a job that is made for this event: if both are recorded.
pub(crate) fn traceparent_for(event: &StoredEvent) -> Option<String> {
    event.trace_context.as_ref()?;
    recorded_traceparent(&Span::current())
}

/// That of this span, if it is recorded.
pub(crate) fn recorded_traceparent(span: &Span) -> Option<String> {
    context_of(span).filter(SpanContext::is_sampled).map(|context| header(&context))
}

/// The span of a round. It has a link to the first of its events whose request was recorded: a sampler decides when a span begins, and can
/// see by it that an event of a recorded trace is among them.
pub(crate) fn round_span(
    consumer: &str,
    lane: u32,
    (first_seq, last_seq): (i64, i64),
    events: &[StoredEvent],
) -> Span {
    let span = tracing::info_span!(
        "consumer round",
        consumer,
        lane,
        first_seq,
        last_seq,
        events = count(events.len()),
    );
    if !span.is_disabled()
        && let Some(request) = events.iter().find_map(recorded_request)
    {
        span.add_link(request);
    }
    span
}

/// The span of an event whose request was recorded, in that of its round, and linked to the request.
pub(crate) fn event_span(round: &Span, consumer: &str, event: &StoredEvent) -> Span {
    if round.is_disabled() {
        return Span::none();
    }
    let Some(request) = recorded_request(event) else { return Span::none() };
    let span = tracing::info_span!(
        parent: round,
        "consumer event",
        otel.kind = "consumer",
        consumer,
        seq = event.seq,
        event_id = %event.id,
        event_type = event.event_type,
    );
    span.add_link(request);
    span
}

/// What came of a round.
pub(crate) fn round_ended(round: &Span, result: &Result<RoundResult, RoundError>) {
    match result {
        _ if round.is_disabled() => {}
        Ok(result) => {
            round.set_attribute("jobs", count(result.jobs));
            round.set_attribute("parked", count(result.parked + result.behind));
        }
        Err(error) => failed(round, error),
    }
}

/// With the word that tells the error apart. What it says can hold anything.
pub(crate) fn failed(span: &Span, error: &RoundError) {
    span.set_attribute("error.type", error.error_type());
    span.set_status(Status::error(""));
}

fn context_of(span: &Span) -> Option<SpanContext> {
    let context = span.context();
    Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
}

/// Version 00 of the W3C header.
fn header(context: &SpanContext) -> String {
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
}

/// Which span appended the event, if that was recorded.
fn recorded_request(event: &StoredEvent) -> Option<SpanContext> {
    parsed(event.trace_context.as_deref()?).filter(SpanContext::is_sampled)
}

fn parsed(header: &str) -> Option<SpanContext> {
    let mut parts = header.split('-').skip(1);
    let trace_id = TraceId::from_hex(parts.next()?).ok()?;
    let span_id = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    let context = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
    Some(context).filter(SpanContext::is_valid)
}

/// As the wire has it.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_is_read_as_it_is_written() {
        for written in [HEADER, &HEADER.replace("-01", "-00")] {
            assert_eq!(parsed(written).map(|context| header(&context)).as_deref(), Some(written));
        }
        // A version to come may have more.
        assert_eq!(parsed(&format!("{HEADER}-more")), parsed(HEADER));
    }

    #[test]
    fn what_is_no_header_or_names_nothing_is_none() {
        let zeros = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for text in ["", "00", &HEADER[..52], zeros, "00-xx-yy-zz", &HEADER.replace("-00f067aa0ba902b7", "")]
        {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
