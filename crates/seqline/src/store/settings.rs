//! The settings that SQL enforces, and the identity of the log.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

pub(crate) struct PartitionSettings {
    pub(crate) size: i64,
    pub(crate) ahead: i32,
}

pub(crate) async fn partition_settings(
    connection: &mut PgConnection,
) -> Result<PartitionSettings, sqlx::Error> {
    let row =
        sqlx::query("SELECT event_log_partition_size, event_log_partitions_ahead FROM seqline.settings")
            .fetch_one(connection)
            .await?;
    Ok(PartitionSettings { size: row.try_get(0)?, ahead: row.try_get(1)? })
}

/// The id of the log and of its present epoch.
pub(crate) async fn log_identity(connection: &mut PgConnection) -> Result<(Uuid, Uuid), sqlx::Error> {
    let row = sqlx::query("SELECT log_id, epoch FROM seqline.log_identity").fetch_one(connection).await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

/// When events get their numbers, who tells listeners, and what may wait.
pub(crate) struct NumberingSettings {
    pub(crate) sequencing: String,
    pub(crate) staging_open: bool,
    pub(crate) notification: String,
    pub(crate) staged_transactions_max: i64,
    pub(crate) maintenance: String,
}

pub(crate) async fn numbering(connection: &mut PgConnection) -> Result<NumberingSettings, sqlx::Error> {
    let row = sqlx::query(
        "SELECT sequencing, staging_open, notification, staged_transactions_max, maintenance FROM seqline.settings",
    )
    .fetch_one(connection)
    .await?;
    Ok(NumberingSettings {
        sequencing: row.try_get(0)?,
        staging_open: row.try_get(1)?,
        notification: row.try_get(2)?,
        staged_transactions_max: row.try_get(3)?,
        maintenance: row.try_get(4)?,
    })
}

pub(crate) async fn set_sequencing(
    connection: &mut PgConnection,
    sequencing: &str,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_sequencing($1, $2)")
        .bind(sequencing)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn set_notification(
    connection: &mut PgConnection,
    notification: &str,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_notification($1, $2)")
        .bind(notification)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn set_staged_transactions_max(
    connection: &mut PgConnection,
    max: i64,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_staged_transactions_max($1, $2)")
        .bind(max)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn set_maintenance(
    connection: &mut PgConnection,
    maintenance: &str,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_maintenance($1, $2)")
        .bind(maintenance)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn refuse_older_snapshots(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.refuse_older_snapshots()").execute(connection).await?;
    Ok(())
}

/// The transactions that have appended or staged something and have not ended, by a name that no later one has.
pub(crate) async fn open_transactions(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT DISTINCT l.virtualtransaction
         FROM pg_catalog.pg_locks l
         WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
             AND l.relation IN ('seqline.pending_transactions'::regclass, 'seqline.staged_transactions'::regclass)
             AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())",
    )
    .fetch_all(connection)
    .await
}
