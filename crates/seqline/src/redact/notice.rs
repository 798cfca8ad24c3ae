//! What tells receivers that events were redacted.

use serde::Deserialize;
use uuid::Uuid;

use crate::event::StoredEvent;

/// The type of the events that are notices.
pub const NOTICE_TYPE: &str = "log.redacted";

/// Which events were redacted, for those who could see them: whoever keeps copies removes what these said.
///
/// It is an event of the log like any other, of type [`NOTICE_TYPE`], with the resource, scope, audience and receive action of the events that
/// it names. Whoever may append can append the like, so it is a hint: that an event was redacted is true when the log says so of that event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// Up to 500, by number. More have further notices. None where `event_payload_max_bytes` leaves no room for one: then look at all of
    /// the resource.
    #[serde(default)]
    pub events: Vec<RedactedEvent>,
}

/// An event that was redacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedactedEvent {
    /// Its id.
    pub id: Uuid,
    /// Its number.
    pub seq: i64,
}

impl Notice {
    /// What an event says, if it is a notice.
    #[must_use]
    pub fn of(event: &StoredEvent) -> Option<Self> {
        if event.event_type != NOTICE_TYPE {
            return None;
        }
        event.payload.deserialize().ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use time::OffsetDateTime;

    use super::*;
    use crate::event::StoredPayload;

    fn event(event_type: &str, payload: &str) -> StoredEvent {
        StoredEvent {
            seq: 9,
            id: Uuid::nil(),
            event_type: event_type.to_owned(),
            schema_version: 1,
            occurred_at: OffsetDateTime::UNIX_EPOCH,
            permission_version: 0,
            actor_kind: Some("system".to_owned()),
            actor_principal_id: None,
            space_id: None,
            channel_id: None,
            thread_id: None,
            resource_kind: "customer".to_owned(),
            resource_id: Some("17".to_owned()),
            resource_version: None,
            audience_principal_id: None,
            receive_action: "any".to_owned(),
            payload: StoredPayload(RawValue::from_string(payload.to_owned()).unwrap()),
            truncated: false,
            client_msg_id: None,
            correlation_id: None,
            trace_context: None,
            redacted: false,
        }
    }

    #[test]
    fn a_notice_names_events_and_nothing_else_is_one() {
        let id = "018f0000-0000-7000-8000-000000000001";
        let payload = format!(r#"{{"events": [{{"id": "{id}", "seq": 3}}]}}"#);
        let events = vec![RedactedEvent { id: id.parse().unwrap(), seq: 3 }];
        assert_eq!(Notice::of(&event("log.redacted", &payload)), Some(Notice { events }));
        assert_eq!(Notice::of(&event("log.redacted", "{}")), Some(Notice { events: vec![] }));
        assert_eq!(Notice::of(&event("log.rewritten", &payload)), None);
        for payload in [
            r#"{"events": [], "name": "Alex"}"#.to_owned(),
            format!(r#"{{"events": [{{"id": "{id}", "seq": 3, "name": "Alex"}}]}}"#),
            r#"{"events": [{"id": "Alex", "seq": 3}]}"#.to_owned(),
            r#"{"events": "Alex"}"#.to_owned(),
        ] {
            assert_eq!(Notice::of(&event("log.redacted", &payload)), None, "{payload}");
        }
    }
}
