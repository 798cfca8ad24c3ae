//! Calls of the SQL functions that keep partitions.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::maintenance::{Holding, Partition};

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

/// How a drop begins: each of its looks at consumers has to see what was committed before it, whatever the defaults are.
pub(crate) const BEGINNING_OF_DROP: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// What became of the oldest partition.
pub(crate) struct Expired {
    pub(crate) dropped: bool,
    pub(crate) name: String,
    /// The time of its last event.
    pub(crate) last_event_at: Option<OffsetDateTime>,
    /// Those who keep it, or would have.
    pub(crate) holders: Vec<String>,
}

/// Drops the oldest partition if it has expired and nobody keeps it; `None` when it has not.
pub(crate) async fn drop_expired(
    connection: &mut PgConnection,
    cutoff: OffsetDateTime,
    held_cutoff: OffsetDateTime,
    head: i64,
    lock_timeout: Duration,
) -> Result<Option<Expired>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT outcome, name, last_event_at, holders FROM seqline.sync_event_log_drop_expired($1, $2, $3, $4)",
    )
    .bind(cutoff)
    .bind(held_cutoff)
    .bind(head)
    .bind(interval(lock_timeout))
    .fetch_one(connection)
    .await?;
    let dropped = match row.try_get(0)? {
        "dropped" => true,
        "held" => false,
        "nothing" => return Ok(None),
        other => return Err(sqlx::Error::Decode(format!("a drop ended as {other}").into())),
    };
    Ok(Some(Expired {
        dropped,
        name: row.try_get(1)?,
        last_event_at: row.try_get(2)?,
        holders: row.try_get(3)?,
    }))
}

pub(crate) async fn holdings(connection: &mut PgConnection) -> Result<Vec<Holding>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT name, lower_bound, last_event_at, consumer, last_seq, parked FROM seqline.event_log_holders()",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Holding {
                partition: row.try_get(0)?,
                lower_bound: row.try_get(1)?,
                last_event_at: row.try_get(2)?,
                consumer: row.try_get(3)?,
                last_seq: row.try_get(4)?,
                parked: row.try_get(5)?,
            })
        })
        .collect()
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}
