//! The identity of the log, and the end of a restore.

use serde::Deserialize;
use sqlx::types::Json;
use sqlx::{FromRow, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::connection::fetch_alone;

/// All of one snapshot.
#[derive(FromRow)]
pub(crate) struct CheckRow {
    pub(crate) log_id: Uuid,
    pub(crate) epoch: Uuid,
    pub(crate) recorded_system: i64,
    pub(crate) recorded_timeline: i32,
    pub(crate) recorded_database: i64,
    pub(crate) server_system: i64,
    /// None on a server in recovery.
    pub(crate) server_timeline: Option<i32>,
    pub(crate) server_database: i64,
    pub(crate) broken_reason: Option<String>,
    pub(crate) broken_at: Option<OffsetDateTime>,
    pub(crate) head: i64,
    pub(crate) above_consumers: Vec<String>,
    pub(crate) above_lanes: Vec<i32>,
    pub(crate) above_seqs: Vec<i64>,
}

pub(crate) async fn check(connection: &mut PgConnection) -> Result<CheckRow, sqlx::Error> {
    let row = fetch_alone(
        connection,
        "SELECT log_id, epoch, recorded_system, recorded_timeline, recorded_database::bigint AS recorded_database,
                server_system, server_timeline, server_database::bigint AS server_database,
                broken_reason, broken_at, head, above_consumers, above_lanes, above_seqs
         FROM seqline.check_identity()",
    )
    .await?;
    CheckRow::from_row(&row)
}

/// Records that history went back, and says whether that was news.
pub(crate) async fn record_broken(
    connection: &mut PgConnection,
    epoch: Uuid,
    reason: &str,
    seen_head: Option<i64>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.record_broken_history($1, $2, $3)")
        .bind(epoch)
        .bind(reason)
        .bind(seen_head)
        .fetch_one(connection)
        .await
}

/// Records that this server goes on with the same history, and says whether that was news.
pub(crate) async fn accept(
    connection: &mut PgConnection,
    epoch: Uuid,
    seen_head: Option<i64>,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.accept_identity($1, $2, $3)")
        .bind(epoch)
        .bind(seen_head)
        .bind(why)
        .fetch_one(connection)
        .await
}

#[derive(Deserialize)]
pub(crate) struct MoveRow {
    pub(crate) consumer: String,
    pub(crate) kind: String,
    pub(crate) lane: u32,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

pub(crate) struct FinalizeRow {
    pub(crate) old_epoch: Uuid,
    /// None when nothing was done.
    pub(crate) new_epoch: Option<Uuid>,
    pub(crate) head: i64,
    pub(crate) staged: i64,
    pub(crate) forgotten: i64,
    pub(crate) moves: Vec<MoveRow>,
}

/// Starts a new epoch and sets the cursors, or says with `apply` false what that would do.
pub(crate) async fn finalize(
    connection: &mut PgConnection,
    consumers: &str,
    force: bool,
    apply: bool,
    why: Option<&str>,
) -> Result<FinalizeRow, sqlx::Error> {
    let row = sqlx::query(
        "SELECT old_epoch, new_epoch, head, staged, forgotten, moves FROM seqline.finalize_restore($1, $2, $3, $4)",
    )
    .bind(consumers)
    .bind(force)
    .bind(apply)
    .bind(why)
    .fetch_one(connection)
    .await?;
    let Json(moves) = row.try_get::<Json<Vec<MoveRow>>, _>(5)?;
    Ok(FinalizeRow {
        old_epoch: row.try_get(0)?,
        new_epoch: row.try_get(1)?,
        head: row.try_get(2)?,
        staged: row.try_get(3)?,
        forgotten: row.try_get(4)?,
        moves,
    })
}
