//! Calls of the SQL functions that keep partitions.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::maintenance::Partition;

pub(crate) async fn list(connection: &mut PgConnection) -> Result<Vec<Partition>, sqlx::Error> {
    let rows =
        sqlx::query("SELECT name, lower_bound, upper_bound, total_bytes FROM seqline.event_log_partitions()")
            .fetch_all(connection)
            .await?;
    rows.iter()
        .map(|row| {
            Ok(Partition {
                name: row.try_get(0)?,
                lower_bound: row.try_get(1)?,
                upper_bound: row.try_get(2)?,
                total_bytes: row.try_get(3)?,
            })
        })
        .collect()
}

pub(crate) async fn ensure(
    connection: &mut PgConnection,
    size: i64,
    ahead: i32,
    head: i64,
) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.sync_event_log_ensure_partitions($1, $2, $3)")
        .bind(size)
        .bind(ahead)
        .bind(head)
        .fetch_one(connection)
        .await
}

pub(crate) async fn close(
    connection: &mut PgConnection,
    opened_before: OffsetDateTime,
    lock_timeout: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.sync_event_log_close_partition($1, $2)")
        .bind(opened_before)
        .bind(interval(lock_timeout))
        .fetch_one(connection)
        .await
}

pub(crate) async fn drop_expired(
    connection: &mut PgConnection,
    cutoff: OffsetDateTime,
    head: i64,
    lock_timeout: Duration,
) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.sync_event_log_drop_expired($1, $2, $3)")
        .bind(cutoff)
        .bind(head)
        .bind(interval(lock_timeout))
        .fetch_one(connection)
        .await
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}
