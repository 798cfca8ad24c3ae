//! What people do to the consumers of agents. Each change leaves a row in `seqline.audit_log`.

use sqlx::PgConnection;

use super::{AgentConsumer, Cursor};
use crate::access::ChangeError;
use crate::consumer::Mode;
use crate::error::DatabaseError;
use crate::limits::READ_EVENTS_MAX;
use crate::store;

/// Consumers of an agent or of all, in the order of agents and names, those behind `after`, at most `limit` (and [`READ_EVENTS_MAX`]).
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn list(
    connection: &mut PgConnection,
    agent: Option<&str>,
    after: Option<&AgentConsumer>,
    limit: u32,
) -> Result<Vec<Cursor>, DatabaseError> {
    Ok(store::agents::list(connection, agent, after, i64::from(limit.min(READ_EVENTS_MAX))).await?)
}

/// Takes a consumer from whoever holds it, and returns it as it was. The holder finds out with its next save; with nobody there nothing changes.
///
/// # Errors
///
/// [`ChangeError`] when there is no such consumer, or the database refuses it.
pub async fn release_holder(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    mode: Mode<'_>,
) -> Result<Cursor, ChangeError> {
    let (apply, why) = mode.parts();
    Ok(store::agents::free(connection, consumer, None, apply, why).await?)
}

/// Sets the acknowledgement of a consumer, to a lower or a higher number, and returns it as it was. Whoever holds it holds it no longer, and comes
/// again to what is there then.
///
/// # Errors
///
/// [`ChangeError`] when there is no such consumer, the log has no such position, or the database refuses it.
pub async fn reset(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    acked_seq: i64,
    mode: Mode<'_>,
) -> Result<Cursor, ChangeError> {
    let (apply, why) = mode.parts();
    Ok(store::agents::free(connection, consumer, Some(acked_seq), apply, why).await?)
}

/// Takes away the row of a consumer that is out of use, and returns it as it was. Whoever holds it holds it no longer and finds out with its next
/// save; whoever comes under this name begins anew.
///
/// # Errors
///
/// [`ChangeError`] when there is no such consumer, or the database refuses it.
pub async fn delete(
    connection: &mut PgConnection,
    consumer: &AgentConsumer,
    mode: Mode<'_>,
) -> Result<Cursor, ChangeError> {
    let (apply, why) = mode.parts();
    Ok(store::agents::delete(connection, consumer, apply, why).await?)
}
