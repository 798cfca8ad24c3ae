//! Lines of the log that can be found from a trace, and the other way round.

use std::fmt;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes what another format writes, which is one JSON object, and adds `trace_id` and `span_id` to a line that is written inside of a span
/// that is recorded. No other line is any different.
pub(crate) struct Traced<F>(pub(crate) F);

impl<S, N, F> FormatEvent<S, N> for Traced<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        // The layer that records spans keeps it for the time in which one is entered.
        let ids = Context::map_current(|context| {
            let span = context.span();
            let span = span.span_context();
            let recorded = span.is_valid() && span.is_sampled();
            recorded.then(|| format!(r#","trace_id":"{}","span_id":"{}""#, span.trace_id(), span.span_id()))
        });
        let Some(ids) = ids else { return self.0.format_event(context, writer, event) };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.rsplit_once('}') {
            Some((members, end)) => write!(writer, "{members}{ids}}}{end}"),
            None => writer.write_str(&line),
        }
    }
}
