//! An event as it leaves, for the document. The text itself is rendered by [`seqline::envelope`]; a test holds this description to it.

use serde_json::Value;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// An event of the log. Members that are not there do not apply; nothing is ever null.
#[derive(Debug, ToSchema)]
#[schema(as = Event)]
#[expect(dead_code, reason = "it describes what others render")]
pub(super) struct EventSchema {
    /// Its id, the same wherever it goes.
    id: Uuid,
    /// What happened: lowercase words joined by dots.
    #[schema(example = "order.created")]
    r#type: String,
    /// The version of the shape of its payload.
    #[schema(example = 1)]
    schema_version: i32,
    /// Its number in the log. Those that you do not see are for others.
    #[schema(example = 1042)]
    seq: i64,
    /// The version of the permissions that were in force when it got its number.
    #[schema(example = 3)]
    permission_version: i64,
    /// When the transaction began that appended it. Not in the order of the log.
    occurred_at: OffsetDateTime,
    /// Who caused it.
    #[schema(nullable = false)]
    actor: Option<EventActor>,
    /// Where it happened; empty if nowhere in particular.
    scope: EventScope,
    /// What it is about.
    resource: EventResource,
    /// `self` when it is for you only.
    #[schema(nullable = false, example = "self")]
    audience: Option<String>,
    /// An id that the client gave to what caused it.
    #[schema(nullable = false)]
    client_msg_id: Option<String>,
    /// The trace id of the request that caused it.
    #[schema(nullable = false)]
    correlation_id: Option<Uuid>,
    /// True when its payload was taken back.
    #[schema(nullable = false)]
    redacted: Option<bool>,
    /// True when its payload is not all of it: read the resource.
    #[schema(nullable = false)]
    truncated: Option<bool>,
    /// What the application says of it.
    #[schema(value_type = Object)]
    payload: Value,
}

/// Who caused an event.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "as above")]
pub(super) struct EventActor {
    /// `user`, `agent`, `app` or `system`.
    #[schema(example = "user")]
    kind: String,
    /// The principal; none for `system`.
    #[schema(nullable = false, example = "alex")]
    id: Option<String>,
}

/// Where an event happened.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "as above")]
pub(super) struct EventScope {
    /// The widest: a tenant or an environment.
    #[schema(nullable = false)]
    space_id: Option<String>,
    /// Inside a space.
    #[schema(nullable = false)]
    channel_id: Option<String>,
    /// Inside a channel.
    #[schema(nullable = false)]
    thread_id: Option<String>,
}

/// What an event is about.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "as above")]
pub(super) struct EventResource {
    /// What it is.
    #[schema(example = "order")]
    kind: String,
    /// Which one.
    #[schema(nullable = false, example = "17")]
    id: Option<String>,
    /// Its version after the event.
    #[schema(nullable = false)]
    version: Option<i64>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::hub::rendered::Rendered;
    use super::super::hub::rendered::tests::{EPOCH, stored};
    use super::*;

    /// The members of a schema, and those of them that are always there.
    fn described<T: ToSchema + utoipa::PartialSchema>() -> (BTreeSet<String>, BTreeSet<String>) {
        let schema = serde_json::to_value(T::schema()).unwrap();
        let names = schema["properties"].as_object().unwrap().keys().cloned().collect();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        (names, required.iter().map(|name| name.as_str().unwrap().to_owned()).collect())
    }

    fn members(value: &Value) -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    }

    fn rendered(change: impl FnOnce(&mut seqline::StoredEvent)) -> Value {
        let mut event = stored(3, "order.created", "{}");
        change(&mut event);
        serde_json::from_slice(&Rendered::new(EPOCH, event).envelope()).unwrap()
    }

    #[test]
    fn an_event_has_the_members_that_are_described_and_always_those_that_are_required() {
        let full = rendered(|event| {
            event.actor_kind = Some("user".to_owned());
            event.actor_principal_id = Some("alex".to_owned());
            event.space_id = Some("shop-1".to_owned());
            event.channel_id = Some("support".to_owned());
            event.thread_id = Some("7".to_owned());
            event.resource_version = Some(2);
            event.audience_principal_id = Some("alex".to_owned());
            event.client_msg_id = Some("m".to_owned());
            event.correlation_id = Some(Uuid::from_u128(1));
            (event.redacted, event.truncated) = (true, true);
        });
        let least = rendered(|event| event.resource_id = None);
        let (names, required) = described::<EventSchema>();
        assert_eq!((members(&full), members(&least)), (names, required));
        for (member, (names, required)) in [
            ("actor", described::<EventActor>()),
            ("scope", described::<EventScope>()),
            ("resource", described::<EventResource>()),
        ] {
            assert_eq!(members(&full[member]), names, "{member}");
            if let Some(least) = least.get(member) {
                assert_eq!(members(least), required, "{member}");
            }
        }
    }
}
