//! Where consumers go on, and what they leave out.

use seqline::consumer::{self, ConsumerName, Mode, Target};
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::{done, find};
use crate::operate::Refusal;

/// Where a consumer was taken back to, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RewoundConsumer)]
pub(crate) struct Rewind {
    /// Its name.
    pub(crate) consumer: String,
    /// The last event that it had passed.
    pub(crate) from: i64,
    /// The event that comes next.
    pub(crate) to: i64,
    /// How many events of the log come again.
    pub(crate) events: i64,
    /// How many of them were parked.
    pub(crate) parked: i64,
    /// How many of them were left out.
    pub(crate) skipped: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
}

pub(crate) async fn rewind(
    connection: &mut PgConnection,
    name: &str,
    to: Target,
    mode: Mode<'_>,
) -> Result<Rewind, Refusal> {
    let (name, _) = find(connection, name).await?;
    let rewind = consumer::rewind(connection, &name, to, mode)
        .await
        .map_err(|error| Refusal::of(error, name.as_str()))?;
    let consumer::Rewind { to, from, events, parked, skipped } = rewind;
    Ok(Rewind { consumer: name.to_string(), from, to, events, parked, skipped, done: done(mode) })
}

/// The event that a consumer leaves out, or would.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SkippedEvent)]
pub(crate) struct Skip {
    /// Its name.
    pub(crate) consumer: String,
    /// Number of the event.
    pub(crate) seq: i64,
    /// Whether the log has the event.
    pub(crate) in_log: bool,
    /// Type of the event, if the log has it.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) event_type: Option<String>,
    /// Kind and id of its resource, if the log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) resource: Option<String>,
    /// How many events come before it.
    pub(crate) ahead: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
}

pub(crate) async fn skip(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    mode: Mode<'_>,
) -> Result<Skip, Refusal> {
    let (name, _) = find(connection, name).await?;
    let skip = consumer::skip(connection, &name, seq, mode)
        .await
        .map_err(|error| Refusal::of(error, name.as_str()))?;
    let consumer::Skip { event_type, resource, ahead } = skip;
    let (consumer, in_log, done) = (name.to_string(), event_type.is_some(), done(mode));
    Ok(Skip { consumer, seq, in_log, event_type, resource, ahead, done })
}

/// The consumer that gets a piece of the log again, or would.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReplayedConsumer)]
pub(crate) struct Replay {
    /// After which it is made.
    pub(crate) consumer: String,
    /// Its name.
    pub(crate) into: String,
    /// Who runs it: `worker` or `poll`.
    pub(crate) kind: String,
    /// The first event.
    pub(crate) from: i64,
    /// The last event.
    pub(crate) to: i64,
    /// How many events of the log those are.
    pub(crate) events: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
}

pub(crate) async fn replay(
    connection: &mut PgConnection,
    name: &str,
    into: &str,
    piece: (Target, Target),
    mode: Mode<'_>,
) -> Result<Replay, Refusal> {
    let (name, _) = find(connection, name).await?;
    let into = ConsumerName::new(into).map_err(|error| Refusal::Invalid {
        member: "into",
        message: format!("{into} is no name for a consumer: {error}"),
    })?;
    let replay = consumer::replay(connection, &name, &into, piece, mode)
        .await
        .map_err(|error| Refusal::of(error, name.as_str()))?;
    let consumer::Replay { from, to, events, kind } = replay;
    let (consumer, into) = (name.to_string(), into.to_string());
    Ok(Replay { consumer, into, kind, from, to, events, done: done(mode) })
}
