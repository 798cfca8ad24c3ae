//! Events that consumers have put aside.

use std::collections::HashMap;

use sqlx::PgConnection;
use time::OffsetDateTime;

use super::name::ConsumerName;
use crate::error::DatabaseError;
use crate::store;
use crate::store::consumer_views::ParkedRow;

/// An event that a consumer has put aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedEvent {
    /// The consumer.
    pub consumer: String,
    /// The event.
    pub seq: i64,
    /// What it has in common with those that wait for it; `None` for one that nothing waits for.
    pub key: Option<String>,
    /// How often it was tried since it was parked, or since somebody asked for it.
    pub attempts: u32,
    /// With what it failed last, [`RoundError::error_type`](super::RoundError::error_type); `None` for one that was not tried: it waits
    /// for one before it.
    pub error_type: Option<String>,
    /// When it was put aside.
    pub parked_at: OffsetDateTime,
    /// When it is tried, if it waits for none before it; `None` until somebody asks for it.
    pub next_attempt_at: Option<OffsetDateTime>,
    /// The first parked event of its key, if that is another one: it has to be handled or discarded first.
    pub waits_for: Option<i64>,
    /// Type of the event; `None` when it is missing from the log.
    pub event_type: Option<String>,
    /// Kind and id of its resource.
    pub resource: Option<String>,
}

/// The first of some parked events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedEvents {
    /// By consumer and number.
    pub events: Vec<ParkedEvent>,
    /// Whether there are more than were asked for.
    pub more: bool,
}

/// The first `limit` parked events, of one consumer, or of all with `None`.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn parked(
    connection: &mut PgConnection,
    name: Option<&ConsumerName>,
    limit: u32,
) -> Result<ParkedEvents, DatabaseError> {
    parked_after(connection, name, None, limit).await
}

/// The same of those behind a place in that order: the consumer and the number of the last one that was seen.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn parked_after(
    connection: &mut PgConnection,
    name: Option<&ConsumerName>,
    after: Option<(&str, i64)>,
    limit: u32,
) -> Result<ParkedEvents, DatabaseError> {
    let name = name.map(ConsumerName::as_str);
    let after = after.unwrap_or(("", 0));
    let mut rows = store::consumer_views::parked(connection, name, None, after, i64::from(limit) + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    Ok(ParkedEvents { events: with_titles(connection, rows).await?, more })
}

/// One parked event, if it is parked.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn parked_event(
    connection: &mut PgConnection,
    name: &ConsumerName,
    seq: i64,
) -> Result<Option<ParkedEvent>, DatabaseError> {
    let rows = store::consumer_views::parked(connection, Some(name.as_str()), Some(seq), ("", 0), 1).await?;
    Ok(with_titles(connection, rows).await?.pop())
}

async fn with_titles(
    connection: &mut PgConnection,
    rows: Vec<ParkedRow>,
) -> Result<Vec<ParkedEvent>, DatabaseError> {
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let titles = store::consumer_views::titles(connection, &seqs).await?;
    let titles: HashMap<i64, (String, String)> =
        titles.into_iter().map(|(seq, event_type, resource)| (seq, (event_type, resource))).collect();
    let event = |row: ParkedRow| {
        // Several consumers can have parked the same.
        let (event_type, resource) = titles.get(&row.seq).cloned().unzip();
        ParkedEvent {
            consumer: row.consumer,
            seq: row.seq,
            key: row.key,
            attempts: row.attempts.unsigned_abs(),
            error_type: row.error_type,
            parked_at: row.parked_at,
            next_attempt_at: row.next_attempt_at,
            waits_for: row.waits_for,
            event_type,
            resource,
        }
    };
    Ok(rows.into_iter().map(event).collect())
}
