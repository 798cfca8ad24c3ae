//! What consumers of the stream gave up, and how consumers stand.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A row of `seqline.dead_letters`.
#[derive(sqlx::FromRow)]
pub(crate) struct DeadLetterRow {
    pub(crate) id: i64,
    pub(crate) consumer: String,
    pub(crate) reason: String,
    pub(crate) event_id: Option<Uuid>,
    pub(crate) position: Option<i64>,
    pub(crate) stream: String,
    pub(crate) stream_created: Option<i64>,
    pub(crate) stream_seq: Option<i64>,
    pub(crate) subject: Option<String>,
    pub(crate) size: Option<i64>,
    pub(crate) attempts: i32,
    pub(crate) error_type: Option<String>,
    pub(crate) recorded_at: OffsetDateTime,
}

/// How many of a consumer for a reason.
#[derive(sqlx::FromRow)]
pub(crate) struct CountRow {
    pub(crate) consumer: String,
    pub(crate) reason: String,
    pub(crate) count: i64,
    pub(crate) oldest_at: OffsetDateTime,
}

/// In the order of ids, those above `after_id`.
pub(crate) async fn list(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    after_id: i64,
    limit: i64,
) -> Result<Vec<DeadLetterRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT id, consumer, reason, event_id, position, stream, stream_created, stream_seq, subject, size, attempts, error_type, recorded_at
         FROM seqline.dead_letters WHERE ($1::text IS NULL OR consumer = $1) AND id > $2 ORDER BY id LIMIT $3",
    )
    .bind(consumer)
    .bind(after_id)
    .bind(limit)
    .fetch_all(connection)
    .await
}

pub(crate) async fn show(
    connection: &mut PgConnection,
    id: i64,
) -> Result<Option<DeadLetterRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT id, consumer, reason, event_id, position, stream, stream_created, stream_seq, subject, size, attempts, error_type, recorded_at
         FROM seqline.dead_letters WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(connection)
    .await
}

/// How many were settled, or would be.
pub(crate) async fn settle(
    connection: &mut PgConnection,
    consumer: &str,
    ids: Option<&[i64]>,
    discard: bool,
    apply: bool,
    why: Option<&str>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.settle_dead_letters($1, $2, $3, $4, $5)")
        .bind(consumer)
        .bind(ids)
        .bind(discard)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}

pub(crate) async fn counts(connection: &mut PgConnection) -> Result<Vec<CountRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT consumer, reason, count(*) AS count, min(recorded_at) AS oldest_at
         FROM seqline.dead_letters GROUP BY consumer, reason ORDER BY consumer, reason",
    )
    .fetch_all(connection)
    .await
}

/// What waits for a consumer.
#[derive(sqlx::FromRow)]
pub(crate) struct BacklogRow {
    pub(crate) consumer: String,
    pub(crate) stream: String,
    pub(crate) dropped: i64,
    pub(crate) retries: i64,
    pub(crate) dead_letters: i64,
}

/// Of all consumers by name, also of those for which nothing waits.
pub(crate) async fn backlogs(connection: &mut PgConnection) -> Result<Vec<BacklogRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT c.name AS consumer, c.stream, c.dropped, (SELECT count(*) FROM seqline.stream_retries r WHERE r.consumer = c.name) AS retries,
                (SELECT count(*) FROM seqline.dead_letters d WHERE d.consumer = c.name) AS dead_letters
         FROM seqline.stream_consumers c ORDER BY c.name",
    )
    .fetch_all(connection)
    .await
}
