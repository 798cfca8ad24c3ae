//! An event as an agent gets it.

use seqline::StoredEvent;
use seqline::envelope::{Delivery, Envelope};

/// The text of the envelope, on one line: with the trace that it came from, and whether it was given before and not acknowledged in time.
pub(in crate::api) fn envelope(event: &StoredEvent, redelivered: bool) -> String {
    let delivery = Delivery { include_trace_context: true, redelivered, ..Delivery::default() };
    Envelope::new(event, &delivery).to_json()
}
