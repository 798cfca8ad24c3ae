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
