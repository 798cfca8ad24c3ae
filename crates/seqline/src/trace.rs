//! Traces, when the feature `opentelemetry` is on: what an append takes from the current span, and the spans of rounds.
//!
//! A round handles events of many requests, so it is a trace of its own, and the span of an event in it is linked to the request that appended
//! the event. Only events whose request was recorded have one; a handler runs in it, so what it appends and the jobs that it inserts lead
//! on from there. Spans hold what logs hold: names, numbers and ids, and never what an event says or what an error says.
//!
//! Without the feature there are no spans.

#[cfg(feature = "opentelemetry")]
mod spans;

#[cfg(feature = "opentelemetry")]
pub(crate) use spans::*;

#[cfg(not(feature = "opentelemetry"))]
pub(crate) use nothing::*;

#[cfg(not(feature = "opentelemetry"))]
mod nothing {
    use tracing::Span;

    use crate::consumer::{RoundError, RoundResult};
    use crate::event::StoredEvent;

    pub(crate) fn current_traceparent() -> Option<String> {
        None
    }

    pub(crate) fn traceparent_for(_event: &StoredEvent) -> Option<String> {
        None
    }

    pub(crate) fn recorded_traceparent(_span: &Span) -> Option<String> {
        None
    }

    pub(crate) fn round_span(
        _consumer: &str,
        _lane: u32,
        _span: (i64, i64),
        _events: &[StoredEvent],
    ) -> Span {
        Span::none()
    }

    pub(crate) fn event_span(_round: &Span, _consumer: &str, _event: &StoredEvent) -> Span {
        Span::none()
    }

    pub(crate) fn round_ended(_round: &Span, _result: &Result<RoundResult, RoundError>) {}

    pub(crate) fn failed(_span: &Span, _error: &RoundError) {}
}
