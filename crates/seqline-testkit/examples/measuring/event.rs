//! What is appended.

use seqline::{NewEvent, Payload};

/// What is appended in all parts: an event with a payload of 500 bytes.
pub(crate) fn event() -> anyhow::Result<NewEvent> {
    let payload = Payload::from_json(&payload())?;
    Ok(NewEvent::builder("order.created", "order", "any").resource_id("17").payload(payload).build()?)
}

pub(crate) fn payload() -> String {
    format!(r#"{{"order": 17, "customer": "Alex", "total": 12.50, "note": "{}"}}"#, "x".repeat(437))
}
