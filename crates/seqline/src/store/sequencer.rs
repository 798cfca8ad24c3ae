//! Statements of the sequencer.

use std::time::Duration;

use sqlx::{PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::tasks::pg_interval;

/// What one call of `seqline.sequence_staged` did and saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The numbers of the commit order whose transactions were given their places in the log.
    pub(crate) taken: Vec<i64>,
    /// Whether it left some that it saw.
    pub(crate) more: bool,
    pub(crate) events: i64,
    /// The highest number that was drawn before it looked.
    pub(crate) drawn: i64,
    /// A transaction id that was drawn before it looked, when it was asked for.
    pub(crate) xid: Option<i64>,
    /// The oldest transaction that was not finished before it looked.
    pub(crate) xmin: i64,
}

/// Numbers the next of those that wait.
pub(crate) async fn sequence(
    connection: &mut PgConnection,
    high: i64,
    missing: &[i64],
    limit: i32,
    mark: bool,
) -> Result<Batch, sqlx::Error> {
    let row = sqlx::query(
        "SELECT taken, more, events, drawn, xid, xmin FROM seqline.sequence_staged($1, $2, $3, $4)",
    )
    .bind(high)
    .bind(missing)
    .bind(limit)
    .bind(mark)
    .fetch_one(connection)
    .await?;
    Ok(Batch {
        taken: row.try_get(0)?,
        more: row.try_get(1)?,
        events: row.try_get(2)?,
        drawn: row.try_get(3)?,
        xid: row.try_get(4)?,
        xmin: row.try_get(5)?,
    })
}

/// Takes or renews the lease, and says whether the holder has it.
pub(crate) async fn hold(
    connection: &mut PgConnection,
    holder: Uuid,
    lease: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.hold_sequencer($1, $2)")
        .bind(holder)
        .bind(pg_interval(lease))
        .fetch_one(connection)
        .await
}

pub(crate) async fn release(connection: &mut PgConnection, holder: Uuid) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.release_sequencer($1)").bind(holder).execute(connection).await.map(drop)
}

/// How far a sequencer has come: up to which number, and which it has not seen below.
pub(crate) async fn progress(connection: &mut PgConnection) -> Result<(i64, Vec<i64>), sqlx::Error> {
    let row =
        sqlx::query("SELECT high, missing FROM seqline.sequencer_progress()").fetch_one(connection).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

pub(crate) async fn note_progress(
    connection: &mut PgConnection,
    high: i64,
    missing: &[i64],
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.note_progress($1, $2)")
        .bind(high)
        .bind(missing)
        .execute(connection)
        .await
        .map(drop)
}

/// Ends a change to numbering inside COMMIT, if one is under way and nobody stages any more.
pub(crate) async fn close_staging(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.close_staging()").fetch_one(connection).await
}

/// How many transactions wait, since when the first of them, and who sequences. Counts up to `max`.
pub(crate) async fn backlog(
    connection: &mut PgConnection,
    max: i64,
) -> Result<(i64, Option<OffsetDateTime>, Option<Uuid>), sqlx::Error> {
    let row = sqlx::query("SELECT transactions, oldest_at, sequencer FROM seqline.staged_backlog($1)")
        .bind(max)
        .fetch_one(connection)
        .await?;
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
}
