//! One event as all readers of the process get it: rendered once, the same bytes for everybody.
//!
//! The text of the envelope is a part of the frame of the stream, so a page and a stream cannot differ, and no reader copies it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use seqline::StoredEvent;
use seqline::envelope::{Delivery, Envelope};
use uuid::Uuid;

/// What an event takes beside its payload and its frame: its members with their texts, and the places where it is kept.
const OVERHEAD_BYTES: usize = size_of::<Rendered>() + 256;

/// An event of one epoch, with the bytes in which it leaves.
#[derive(Debug)]
pub(crate) struct Rendered {
    event: StoredEvent,
    frame: Bytes,
    envelope: Range<usize>,
}

impl Rendered {
    pub(crate) fn new(epoch: Uuid, event: StoredEvent) -> Arc<Self> {
        // Nobody gets the trace context over these ways: it is for agents, and they have one of their own. PostgreSQL gives a payload out
        // on one line, as a frame needs it.
        let envelope = Envelope::new(&event, &Delivery::default()).to_json();
        let head = format!("id: {epoch}:{}\ndata: ", event.seq);
        let range = head.len()..head.len() + envelope.len();
        Arc::new(Self { event, frame: Bytes::from([&head, &envelope, "\n\n"].concat()), envelope: range })
    }

    pub(crate) fn event(&self) -> &StoredEvent {
        &self.event
    }

    pub(crate) fn seq(&self) -> i64 {
        self.event.seq
    }

    /// The JSON text of the envelope, on one line.
    pub(crate) fn envelope(&self) -> Bytes {
        self.frame.slice(self.envelope.clone())
    }

    /// The event as a server-sent one: its position, and the envelope as its data.
    pub(crate) fn frame(&self) -> Bytes {
        self.frame.clone()
    }

    /// About what it takes in memory.
    pub(crate) fn weight(&self) -> usize {
        OVERHEAD_BYTES + self.event.payload.as_json().len() + self.frame.len()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use seqline::Payload;
    use time::OffsetDateTime;

    use super::*;

    pub(crate) const EPOCH: Uuid = Uuid::from_u128(7);

    pub(crate) fn stored(seq: i64, event_type: &str, payload: &str) -> StoredEvent {
        StoredEvent {
            seq,
            id: Uuid::from_u128(seq.unsigned_abs().into()),
            event_type: event_type.to_owned(),
            schema_version: 1,
            occurred_at: OffsetDateTime::UNIX_EPOCH,
            permission_version: 1,
            actor_kind: None,
            actor_principal_id: None,
            space_id: None,
            channel_id: None,
            thread_id: None,
            resource_kind: "order".to_owned(),
            resource_id: Some(seq.to_string()),
            resource_version: None,
            audience_principal_id: None,
            receive_action: "any".to_owned(),
            payload: Payload::from_json(payload).unwrap().into(),
            truncated: false,
            client_msg_id: None,
            correlation_id: None,
            trace_context: Some("00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01".to_owned()),
            redacted: false,
        }
    }

    #[test]
    fn a_frame_is_the_position_and_the_envelope_on_one_line_each() {
        let payload = r#"{"text": "two\nlines", "more": "\r\n"}"#;
        let rendered = Rendered::new(EPOCH, stored(3, "order.created", payload));
        let envelope = rendered.envelope();
        let frame = format!("id: {EPOCH}:3\ndata: {}\n\n", std::str::from_utf8(&envelope).unwrap());
        assert_eq!(rendered.frame(), frame);
        assert!(!envelope.contains(&b'\n') && !envelope.contains(&b'\r'), "{envelope:?}");
        let value: serde_json::Value = serde_json::from_slice(&envelope).unwrap();
        assert_eq!(value["payload"]["text"], "two\nlines");
        assert_eq!(value["trace_context"], serde_json::Value::Null, "only agents get it");
    }

    #[test]
    fn all_get_the_same_bytes_and_not_copies_of_them() {
        let rendered = Rendered::new(EPOCH, stored(3, "order.created", "{}"));
        let (one, other) = (rendered.frame(), rendered.frame());
        assert_eq!(one.as_ptr(), other.as_ptr());
        let (envelope, again) = (rendered.envelope(), rendered.envelope());
        assert_eq!(envelope.as_ptr(), again.as_ptr());
        assert!(one.as_ptr_range().contains(&envelope.as_ptr()));
    }
}
