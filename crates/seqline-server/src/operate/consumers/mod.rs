//! Consumers: where they stand, how they are, and what somebody does to them.

mod lanes;
mod moves;
mod report;
pub(crate) mod row;

use seqline::consumer::{self, ConsumerDetails, ConsumerName, ConsumerState, Mode, details, states};
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::Refusal;

pub(crate) use self::lanes::{Lanes, LanesWanted, lanes, not_divided};
pub(crate) use self::moves::{Replay, Rewind, Skip, replay, rewind, skip};
pub(crate) use self::report::Report;
pub(crate) use self::row::{Row, State};

/// Those that are in use, and with `all` those that were retired too.
pub(crate) async fn list(connection: &mut PgConnection, all: bool) -> Result<Vec<ConsumerState>, Refusal> {
    let mut consumers = states(connection).await?;
    consumers.retain(|consumer| all || consumer.retired_at.is_none());
    Ok(consumers)
}

/// Everything about one.
pub(crate) async fn show(connection: &mut PgConnection, name: &str) -> Result<ConsumerDetails, Refusal> {
    details(connection, &name_of(name)?).await?.ok_or_else(|| unknown(name))
}

/// The consumer that somebody has named, which may be one of the product's own.
pub(crate) fn name_of(text: &str) -> Result<ConsumerName, Refusal> {
    let own = [ConsumerName::push(), ConsumerName::webhooks()];
    match own.into_iter().find(|name| name.as_str() == text) {
        Some(name) => Ok(name),
        None => ConsumerName::new(text).map_err(|_| unknown(text)),
    }
}

pub(crate) async fn find(
    connection: &mut PgConnection,
    text: &str,
) -> Result<(ConsumerName, ConsumerState), Refusal> {
    let name = name_of(text)?;
    let found = states(connection).await?.into_iter().find(|state| state.name == text);
    Ok((name, found.ok_or_else(|| unknown(text))?))
}

fn unknown(name: &str) -> Refusal {
    Refusal::Unknown(format!("there is no consumer {name}"))
        .with_command(": seqline consumers list shows those that there are")
}

/// What was done to a consumer that pauses or goes on, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PausedConsumer)]
pub(crate) struct Pause {
    /// Its name.
    pub(crate) consumer: String,
    /// The last event that it had passed.
    pub(crate) last_seq: i64,
    /// How many events were before it.
    pub(crate) lag: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
    /// Whether it makes a difference.
    pub(crate) changed: bool,
}

pub(crate) async fn pause(
    connection: &mut PgConnection,
    name: &str,
    mode: Mode<'_>,
) -> Result<Pause, Refusal> {
    let (name, state) = find(connection, name).await?;
    if state.retired_at.is_some() {
        let message = format!("consumer {name} was retired. No round of it begins as it is");
        return Err(Refusal::Conflict(message).with_command(". seqline consumers resume brings it back"));
    }
    let changed = match mode {
        Mode::Plan => state.paused_at.is_none(),
        Mode::Apply { why } => consumer::pause(connection, &name, why)
            .await
            .map_err(|error| Refusal::of(error, name.as_str()))?,
    };
    Ok(Pause::of(&state, mode, changed))
}

pub(crate) async fn resume(
    connection: &mut PgConnection,
    name: &str,
    mode: Mode<'_>,
) -> Result<Pause, Refusal> {
    let (name, state) = find(connection, name).await?;
    let changed = match mode {
        Mode::Plan => state.paused_at.is_some() || state.retired_at.is_some(),
        Mode::Apply { why } => consumer::resume(connection, &name, why)
            .await
            .map_err(|error| Refusal::of(error, name.as_str()))?,
    };
    Ok(Pause::of(&state, mode, changed))
}

impl Pause {
    fn of(state: &ConsumerState, mode: Mode<'_>, changed: bool) -> Self {
        let (last_seq, lag) = (state.last_seq, state.lag());
        Self { consumer: state.name.clone(), last_seq, lag, done: done(mode), changed }
    }
}

/// What was taken out of use, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RetiredConsumer)]
pub(crate) struct Retirement {
    /// Its name.
    pub(crate) consumer: String,
    /// The last event that it has passed.
    pub(crate) last_seq: i64,
    /// How many events it has not handled.
    pub(crate) events: i64,
    /// How many events it has parked.
    pub(crate) parked: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
}

pub(crate) async fn retire(
    connection: &mut PgConnection,
    name: &str,
    mode: Mode<'_>,
) -> Result<Retirement, Refusal> {
    let (name, _) = find(connection, name).await?;
    let retired =
        consumer::retire(connection, &name, mode).await.map_err(|error| Refusal::of(error, name.as_str()))?;
    let consumer::Retirement { last_seq, events, parked } = retired;
    Ok(Retirement { consumer: name.to_string(), last_seq, events, parked, done: done(mode) })
}

/// What is known to be lost, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AcknowledgedLosses)]
pub(crate) struct Acknowledged {
    /// Its name.
    pub(crate) consumer: String,
    /// How many times it has lost events.
    pub(crate) ranges: i64,
    /// How many events those were.
    pub(crate) events: i64,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
}

pub(crate) async fn acknowledge(
    connection: &mut PgConnection,
    name: &str,
    mode: Mode<'_>,
) -> Result<Acknowledged, Refusal> {
    let (name, _) = find(connection, name).await?;
    let lost = consumer::acknowledge(connection, &name, mode)
        .await
        .map_err(|error| Refusal::of(error, name.as_str()))?;
    let consumer::Acknowledged { ranges, events } = lost;
    Ok(Acknowledged { consumer: name.to_string(), ranges, events, done: done(mode) })
}

/// Whether it is done, or only planned.
pub(crate) fn done(mode: Mode<'_>) -> bool {
    mode != Mode::Plan
}
