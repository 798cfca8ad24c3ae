//! What is shown of a parked event: everything but its payload.

use seqline::StoredEvent;
use seqline::consumer::ParkedEvent;
use time::OffsetDateTime;

use crate::commands::status::consumers::age;
use crate::failure::Failure;
use crate::output::{self, age_seconds, grouped, rfc3339, seconds};

pub(super) fn table(events: &[ParkedEvent], now: OffsetDateTime) -> Result<(), Failure> {
    let cells = |event: &ParkedEvent| {
        vec![
            event.consumer.clone(),
            grouped(event.seq),
            event.event_type.clone().unwrap_or_else(|| MISSING.to_owned()),
            event.resource.clone().unwrap_or_default(),
            event.attempts.to_string(),
            event.error_type.clone().unwrap_or_default(),
            age(age_seconds(event.parked_at, now)),
            next(event, now),
        ]
    };
    output::table(
        &["consumer", "seq", "type", "resource", "attempts", "last error", "parked for", "next attempt"],
        &[1, 4, 6],
        events.iter().map(cells).collect(),
    )
}

const MISSING: &str = "missing from the log";

/// When it is tried, or what has to happen first.
fn next(event: &ParkedEvent, now: OffsetDateTime) -> String {
    match (event.waits_for, event.next_attempt_at) {
        (Some(seq), _) => format!("after seq {}", grouped(seq)),
        (None, None) => "when asked for".to_owned(),
        (None, Some(at)) if at <= now => "now".to_owned(),
        (None, Some(at)) => seconds(at),
    }
}

pub(super) fn details(
    parked: &ParkedEvent,
    event: Option<StoredEvent>,
    now: OffsetDateTime,
) -> Result<(), Failure> {
    let mut lines = vec![
        ("consumer", parked.consumer.clone()),
        ("seq", grouped(parked.seq)),
        ("parked", format!("since {}", seconds(parked.parked_at))),
        ("attempts", parked.attempts.to_string()),
    ];
    lines.extend(parked.error_type.clone().map(|error| ("last error", error)));
    lines.push(("next attempt", next(parked, now)));
    lines.extend(parked.key.clone().map(|key| ("key", key)));
    match &event {
        Some(event) => lines.extend(of_event(event)),
        None => lines.push(("event", MISSING.to_owned())),
    }
    for (name, value) in lines {
        output::line(format!("{name:<14}{value}"))?;
    }
    Ok(())
}

fn of_event(event: &StoredEvent) -> Vec<(&'static str, String)> {
    let with = |kind: &str, id: &Option<String>| match id {
        Some(id) => format!("{kind}/{id}"),
        None => kind.to_owned(),
    };
    let version = event.resource_version.map_or_else(String::new, |version| format!(", version {version}"));
    let mut lines = vec![
        ("id", event.id.to_string()),
        ("type", format!("{}, schema version {}", event.event_type, event.schema_version)),
        ("occurred", rfc3339(event.occurred_at)),
        ("resource", format!("{}{version}", with(&event.resource_kind, &event.resource_id))),
    ];
    let actor = event.actor_kind.as_ref().map(|kind| with(kind, &event.actor_principal_id));
    let others = [
        ("actor", actor),
        ("space", event.space_id.clone()),
        ("channel", event.channel_id.clone()),
        ("thread", event.thread_id.clone()),
        ("client msg id", event.client_msg_id.clone()),
        ("correlation", event.correlation_id.map(|id| id.to_string())),
    ];
    lines.extend(others.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let flags = [("redacted", event.redacted), ("truncated", event.truncated)];
    lines.extend(flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "yes".to_owned())));
    lines
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::api::stored_event;

    fn lines(event: &StoredEvent) -> Vec<String> {
        of_event(event).into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn everything_of_an_event_is_shown_but_what_it_does_not_have() {
        let mut event = stored_event(3, "order.paid", r#"{"card": "secret"}"#);
        let id = event.id;
        event.resource_id = None;
        let bare = [
            format!("id: {id}"),
            "type: order.paid, schema version 1".to_owned(),
            "occurred: 1970-01-01T00:00:00Z".to_owned(),
            "resource: order".to_owned(),
        ];
        assert_eq!(lines(&event), bare);

        event.resource_id = Some("17".to_owned());
        event.resource_version = Some(4);
        event.actor_kind = Some("user".to_owned());
        event.actor_principal_id = Some("robin".to_owned());
        event.space_id = Some("shop-1".to_owned());
        event.channel_id = Some("web".to_owned());
        event.thread_id = Some("t-1".to_owned());
        event.client_msg_id = Some("m-1".to_owned());
        event.correlation_id = Some(Uuid::from_u128(9));
        (event.redacted, event.truncated) = (true, true);
        let expected = [
            "resource: order/17, version 4",
            "actor: user/robin",
            "space: shop-1",
            "channel: web",
            "thread: t-1",
            "client msg id: m-1",
            "correlation: 00000000-0000-0000-0000-000000000009",
            "redacted: yes",
            "truncated: yes",
        ];
        assert_eq!(lines(&event)[3..], expected);
    }
}
