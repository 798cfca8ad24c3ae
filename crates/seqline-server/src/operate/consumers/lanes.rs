//! Another number of lanes.

use std::time::Duration;

use seqline::Clock;
use seqline::consumer::{Division, LaneKey, Mode, OperateError, divide};
use serde::Serialize;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::{done, find};
use crate::operate::Refusal;
use crate::output::grouped;

/// How a consumer is to be divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LanesWanted {
    /// How many lanes.
    pub(crate) lanes: u32,
    /// By what; as it is when there is none.
    pub(crate) key: Option<LaneKey>,
    /// How long lanes in front wait for those behind.
    pub(crate) wait: Duration,
}

/// How a consumer was divided, or would be.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DividedConsumer)]
pub(crate) struct Lanes {
    /// Its name.
    pub(crate) consumer: String,
    /// How many lanes it has.
    pub(crate) lanes: u32,
    /// What events have in common that stay in order.
    pub(crate) key: String,
    /// How many lanes it had.
    pub(crate) lanes_before: u32,
    /// What events had in common that stayed in order.
    pub(crate) key_before: String,
    /// The place at which all lanes were, or have to be.
    pub(crate) last_seq: i64,
    /// How many lanes had to come there first.
    pub(crate) behind: u32,
    /// Whether it was done, or only planned.
    pub(crate) done: bool,
    /// Whether it makes a difference.
    pub(crate) changed: bool,
}

pub(crate) async fn lanes(
    connection: &mut PgConnection,
    name: &str,
    wanted: LanesWanted,
    mode: Mode<'_>,
) -> Result<Lanes, Refusal> {
    let (name, _) = find(connection, name).await?;
    let LanesWanted { lanes, key, wait } = wanted;
    let division = divide(connection, &Clock::system(), &name, (lanes, key), wait, mode)
        .await
        .map_err(|error| not_divided(error, name.as_str(), wait))?;
    let Division { lanes_before, key_before, last_seq, behind } = division;
    let key = key.map_or_else(|| key_before.clone(), |key| key.as_str().to_owned());
    let changed = (lanes_before, &key_before) != (lanes, &key);
    let (consumer, done) = (name.to_string(), done(mode));
    Ok(Lanes { consumer, lanes, key, lanes_before, key_before, last_seq, behind, done, changed })
}

pub(crate) fn not_divided(error: OperateError, name: &str, wait: Duration) -> Refusal {
    match error {
        OperateError::LaneBehind { lane, last_seq, furthest } => Refusal::Busy(format!(
            "lane {lane} of consumer {name} is at seq {} and did not come to seq {}, where another is, within {}: nothing was changed",
            grouped(last_seq),
            grouped(furthest),
            humantime::format_duration(wait)
        ))
        .with_command(format!(". seqline consumers show {name} says how it is")),
        error => Refusal::of(error, name),
    }
}
