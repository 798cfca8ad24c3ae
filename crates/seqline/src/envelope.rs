//! The one JSON form in which an event leaves, over any transport.
//!
//! A pure mapping from a stored event and the facts of one delivery: no clock, no I/O, no new ids. So the same event
//! always renders to the same bytes. Nothing in it is ever null: what is absent is left out.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::event::StoredEvent;
use crate::payload::Payload;

/// What only one delivery knows. It is never stored.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Show the trace context. Agents get it, people, apps and webhooks never do.
    pub include_trace_context: bool,
    /// A token with which an agent may act on the event.
    pub invocation_token: Option<String>,
    /// The receiver may have had this event before.
    pub redelivered: bool,
}

/// An event on the wire.
///
/// `seq` and `permission_version` are always there for an event of the log; events that are not stored have neither.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the stored event")]
pub struct Envelope {
    pub id: Uuid,
    #[serde(rename = "type")]
    pub event_type: String,
    pub schema_version: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_version: Option<i64>,
    #[serde(with = "time::serde::rfc3339")]
    pub occurred_at: OffsetDateTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<EnvelopeActor>,
    pub scope: EnvelopeScope,
    pub resource: EnvelopeResource,
    /// `self` when the event is for one principal only. Which one is not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audience: Option<Audience>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_msg_id: Option<String>,
    /// The trace id of the request that caused the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_context: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub redacted: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub redelivered: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation_token: Option<String>,
    pub payload: Box<RawValue>,
}

/// Who caused the event.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the stored event")]
pub struct EnvelopeActor {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Where it happened; always an object, possibly empty.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the stored event")]
pub struct EnvelopeScope {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
}

/// What it is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the members are those of the stored event")]
pub struct EnvelopeResource {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
}

/// Who the event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    /// One principal only: whoever receives it is that one.
    #[serde(rename = "self")]
    OnlySelf,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Envelope {
    /// Renders a stored event for one delivery.
    ///
    /// ```no_run
    /// # fn example(event: &seqline::StoredEvent) {
    /// use seqline::envelope::{Delivery, Envelope};
    ///
    /// let json = Envelope::new(event, &Delivery::default()).to_json();
    /// # }
    /// ```
    #[must_use]
    pub fn new(event: &StoredEvent, delivery: &Delivery) -> Self {
        Self {
            id: event.id,
            event_type: event.event_type.clone(),
            schema_version: event.schema_version,
            seq: Some(event.seq),
            permission_version: Some(event.permission_version),
            occurred_at: event.occurred_at.to_offset(time::UtcOffset::UTC),
            actor: event
                .actor_kind
                .clone()
                .map(|kind| EnvelopeActor { kind, id: event.actor_principal_id.clone() }),
            scope: EnvelopeScope {
                space_id: event.space_id.clone(),
                channel_id: event.channel_id.clone(),
                thread_id: event.thread_id.clone(),
            },
            resource: EnvelopeResource {
                kind: event.resource_kind.clone(),
                id: event.resource_id.clone(),
                version: event.resource_version,
            },
            audience: event.audience_principal_id.is_some().then_some(Audience::OnlySelf),
            client_msg_id: event.client_msg_id.clone(),
            correlation_id: event.correlation_id,
            trace_context: event.trace_context.clone().filter(|_| delivery.include_trace_context),
            redacted: event.redacted,
            truncated: event.truncated,
            redelivered: delivery.redelivered,
            invocation_token: delivery.invocation_token.clone(),
            payload: event.payload.0.clone(),
        }
    }

    /// The same without what the event says, marked as truncated, for a way out that has no room for it.
    #[must_use]
    pub fn without_payload(mut self) -> Self {
        self.truncated = true;
        self.payload = Payload::empty().into_raw();
        self
    }

    /// The JSON text, on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("every member serializes"))
    }
}

#[cfg(test)]
mod tests;
