//! The ledger of those who get events from elsewhere than the log.

use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

/// Claims those that are not claimed, and returns them. In the order of ids: two that claim the same ones wait for each other, and not for
/// ever.
pub(crate) async fn claim_all(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO seqline.consumed_events (consumer, event_id)
         SELECT $1, asked.id FROM unnest($2::uuid[]) AS asked (id) ORDER BY asked.id
         ON CONFLICT DO NOTHING RETURNING event_id",
    )
    .bind(consumer)
    .bind(event_ids)
    .fetch_all(connection)
    .await
}

pub(crate) async fn is_claimed(
    connection: &mut PgConnection,
    consumer: &str,
    event_id: Uuid,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM seqline.consumed_events c WHERE c.consumer = $1 AND c.event_id = $2)",
    )
    .bind(consumer)
    .bind(event_id)
    .fetch_one(connection)
    .await
}

/// By the place of rows, which needs no index on what is removed.
pub(crate) async fn prune(
    connection: &mut PgConnection,
    older_than: Duration,
    limit: u32,
) -> Result<u64, sqlx::Error> {
    let removed = sqlx::query(
        "DELETE FROM seqline.consumed_events d WHERE d.ctid = ANY (ARRAY(
             SELECT c.ctid FROM seqline.consumed_events c
             WHERE c.handled_at < clock_timestamp() - make_interval(secs => $1) LIMIT $2 FOR UPDATE SKIP LOCKED
         ))",
    )
    .bind(older_than.as_secs_f64())
    .bind(i64::from(limit))
    .execute(connection)
    .await?;
    Ok(removed.rows_affected())
}
