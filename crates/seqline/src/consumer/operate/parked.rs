//! What becomes of parked events.

use sqlx::PgConnection;

use super::{Mode, OperateError};
use crate::consumer::name::ConsumerName;
use crate::store;

/// What is done to parked events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkedChange {
    /// How many it concerns.
    pub events: i64,
    /// How many wait behind them, and follow.
    pub behind: i64,
}

/// Has a parked event tried again, or all with `None`, as often as the consumer says; those behind it follow when it is handled. Workers
/// notice within their poll interval.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer or parked event, or another one of its key is before it. Nothing was changed then.
pub async fn retry_parked(
    connection: &mut PgConnection,
    name: &ConsumerName,
    seq: Option<i64>,
    mode: Mode<'_>,
) -> Result<ParkedChange, OperateError> {
    let (apply, why) = mode.parts();
    let row = store::operate::retry_parked(connection, name.as_str(), seq, apply, why).await?;
    Ok(ParkedChange { events: row.events, behind: row.behind })
}

/// Gives a parked event up, or all with `None`. Those behind it follow. The audit log keeps what it was.
///
/// # Errors
///
/// [`OperateError`] when there is no such consumer or parked event, or the reason is missing. Nothing was changed then.
pub async fn discard_parked(
    connection: &mut PgConnection,
    name: &ConsumerName,
    seq: Option<i64>,
    mode: Mode<'_>,
) -> Result<ParkedChange, OperateError> {
    let (apply, why) = mode.parts();
    let row = store::operate::discard_parked(connection, name.as_str(), seq, apply, why).await?;
    Ok(ParkedChange { events: row.events, behind: row.behind })
}
