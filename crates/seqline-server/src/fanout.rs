//! The first that gets events live: it measures how long they took.

use futures_util::future::BoxFuture;
use opentelemetry::metrics::Histogram;
use seqline::tail::{Sink, SinkError};
use seqline::{Clock, StoredEvent};

/// Measures the time from the start of an event's transaction to its arrival here.
#[derive(Debug)]
pub(crate) struct FanoutLag {
    pub(crate) clock: Clock,
    pub(crate) lag: Histogram<f64>,
}

impl Sink for FanoutLag {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        let now = self.clock.now();
        for event in batch {
            // The clock of the database can be ahead.
            self.lag.record((now - event.occurred_at).as_seconds_f64().max(0.0), &[]);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
