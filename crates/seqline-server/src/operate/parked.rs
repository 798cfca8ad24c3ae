//! Parked events: what is shown of them, everything but their payload, and what becomes of them.

use seqline::consumer::{
    self, Mode, ParkedEvent, ParkedEvents, discard_parked, parked_after, parked_event, retry_parked,
};
use seqline::envelope::{Delivery, Envelope};
use seqline::{ReadError, StoredEvent};
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::Refusal;
use super::consumers::{done, find};
use crate::failure::Failure;
use crate::output::rfc3339;

/// An event that a consumer has put aside.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ParkedEvent)]
pub(crate) struct Row {
    /// Name of the consumer.
    pub(crate) consumer: String,
    /// Number of the event.
    pub(crate) seq: i64,
    /// What it has in common with those that wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    key: Option<String>,
    /// Type of the event, if the log has it.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    event_type: Option<String>,
    /// Kind and id of its resource, if the log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resource: Option<String>,
    /// How often it was tried.
    attempts: u32,
    /// How the last attempt ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error_type: Option<String>,
    /// When it was put aside.
    #[schema(format = DateTime)]
    parked_at: String,
    /// When it is tried by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    next_attempt_at: Option<String>,
    /// The parked event that has to be handled or given up before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    waits_for: Option<i64>,
}

/// The same with the envelope of the event, without its payload, if the log has it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ParkedEventDetails)]
pub(crate) struct Details {
    /// What became of the event.
    parked: Row,
    /// The event, without its payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<Object>)]
    envelope: Option<Value>,
}

impl Row {
    pub(crate) fn of(event: &ParkedEvent) -> Self {
        let event = event.clone();
        Self {
            // One that waits for another has no time of its own.
            next_attempt_at: event.next_attempt_at.filter(|_| event.waits_for.is_none()).map(rfc3339),
            consumer: event.consumer,
            seq: event.seq,
            key: event.key,
            event_type: event.event_type,
            resource: event.resource,
            attempts: event.attempts,
            error_type: event.error_type,
            parked_at: rfc3339(event.parked_at),
            waits_for: event.waits_for,
        }
    }
}

impl Details {
    pub(crate) fn of(parked: &ParkedEvent, event: Option<&StoredEvent>) -> Result<Self, Refusal> {
        let envelope = event.map(envelope).transpose()?;
        Ok(Self { parked: Row::of(parked), envelope })
    }
}

fn envelope(event: &StoredEvent) -> Result<Value, Refusal> {
    let unexpected = |error: serde_json::Error| Refusal::from(Failure::Unexpected(error.to_string()));
    let envelope = Envelope::new(event, &Delivery::default());
    let mut value = serde_json::to_value(envelope).map_err(unexpected)?;
    value.as_object_mut().map(|members| members.remove("payload"));
    Ok(value)
}

/// Of one consumer or of all, behind a place in the order of consumers and numbers.
pub(crate) async fn list(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    after: Option<(&str, i64)>,
    limit: u32,
) -> Result<ParkedEvents, Refusal> {
    let name = match consumer {
        Some(consumer) => Some(find(connection, consumer).await?.0),
        None => None,
    };
    Ok(parked_after(connection, name.as_ref(), after, limit).await?)
}

/// One of them, and its event, if the log has it.
pub(crate) async fn show(
    connection: &mut PgConnection,
    consumer: &str,
    seq: i64,
) -> Result<(ParkedEvent, Option<StoredEvent>), Refusal> {
    let (name, _) = find(connection, consumer).await?;
    let Some(parked) = parked_event(connection, &name, seq).await? else {
        return Err(Refusal::Unknown(format!("consumer {name} has no parked event {seq}")));
    };
    let event = match seqline::read::events_after(connection, seq - 1, 1).await {
        Ok(mut events) => events.pop().filter(|event| event.seq == seq),
        Err(ReadError::Database(error)) => return Err(error.into()),
        // What is missing from the log is parked all the same.
        Err(_) => None,
    };
    Ok((parked, event))
}

/// What becomes of parked events, or would.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ParkedChange)]
pub(crate) struct Change {
    /// Name of the consumer.
    pub(crate) consumer: String,
    /// Number of the event, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) seq: Option<i64>,
    /// How many events it is about.
    pub(crate) events: i64,
    /// How many wait behind them, and follow.
    pub(crate) behind: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
}

/// Has one tried again, or all.
pub(crate) async fn retry(
    connection: &mut PgConnection,
    consumer: &str,
    seq: Option<i64>,
    mode: Mode<'_>,
) -> Result<Change, Refusal> {
    let (name, _) = find(connection, consumer).await?;
    let change = retry_parked(connection, &name, seq, mode).await;
    Change::of(consumer, seq, mode, change)
}

/// Gives one up, or all.
pub(crate) async fn discard(
    connection: &mut PgConnection,
    consumer: &str,
    seq: Option<i64>,
    mode: Mode<'_>,
) -> Result<Change, Refusal> {
    let (name, _) = find(connection, consumer).await?;
    let change = discard_parked(connection, &name, seq, mode).await;
    Change::of(consumer, seq, mode, change)
}

impl Change {
    fn of(
        consumer: &str,
        seq: Option<i64>,
        mode: Mode<'_>,
        change: Result<consumer::ParkedChange, consumer::OperateError>,
    ) -> Result<Self, Refusal> {
        let consumer::ParkedChange { events, behind } =
            change.map_err(|error| Refusal::of(error, consumer))?;
        Ok(Self { consumer: consumer.to_owned(), seq, events, behind, done: done(mode) })
    }
}
