//! What is shown of a parked event: everything but its payload.

use seqline::StoredEvent;
use seqline::consumer::ParkedEvent;
use seqline::envelope::{Delivery, Envelope};
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

use crate::commands::status::consumers::{age, age_seconds};
use crate::failure::Failure;
use crate::output::{self, grouped, rfc3339, seconds};

/// A parked event as JSON.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    consumer: &'a str,
    seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    event_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'a str>,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<&'a str>,
    parked_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<i64>,
}

/// The same with the envelope of the event, if that is in the log.
#[derive(Serialize)]
pub(super) struct Details<'a> {
    parked: Row<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    envelope: Option<Value>,
}

impl<'a> Row<'a> {
    pub(super) fn of(event: &'a ParkedEvent) -> Self {
        Self {
            consumer: &event.consumer,
            seq: event.seq,
            key: event.key.as_deref(),
            event_type: event.event_type.as_deref(),
            resource: event.resource.as_deref(),
            attempts: event.attempts,
            error_type: event.error_type.as_deref(),
            parked_at: rfc3339(event.parked_at),
            // One that waits for another has no time of its own.
            next_attempt_at: event.next_attempt_at.filter(|_| event.waits_for.is_none()).map(rfc3339),
            waits_for: event.waits_for,
        }
    }
}

impl<'a> Details<'a> {
    pub(super) fn of(parked: &'a ParkedEvent, event: Option<&StoredEvent>) -> Result<Self, Failure> {
        let envelope = event.map(envelope).transpose()?;
        Ok(Self { parked: Row::of(parked), envelope })
    }
}

fn envelope(event: &StoredEvent) -> Result<Value, Failure> {
    let unexpected = |error: serde_json::Error| Failure::Unexpected(error.to_string());
    let envelope = Envelope::new(event, &Delivery::default());
    let mut value = serde_json::to_value(envelope).map_err(unexpected)?;
    value.as_object_mut().map(|members| members.remove("payload"));
    Ok(value)
}

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
