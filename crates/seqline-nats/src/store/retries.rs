//! Events that wait for their next attempt, and those that were given up.

use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// An event whose time has come.
pub(crate) struct Due {
    pub(crate) event_id: Uuid,
    pub(crate) position: i64,
    pub(crate) stream_seq: Option<i64>,
    pub(crate) attempts: i32,
}

/// The events of a consumer that are due, longest first, without those that another process tries now: processes divide them. The ones that are
/// returned are nobody's yet.
pub(crate) async fn due(
    connection: &mut PgConnection,
    consumer: &str,
    limit: u32,
) -> Result<Vec<Due>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT r.event_id, r.position, r.stream_seq, r.attempts FROM seqline.stream_retries r
         WHERE r.consumer = $1 AND r.next_attempt_at <= clock_timestamp() ORDER BY r.next_attempt_at LIMIT $2
         FOR KEY SHARE SKIP LOCKED",
    )
    .bind(consumer)
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Due {
                event_id: row.try_get(0)?,
                position: row.try_get(1)?,
                stream_seq: row.try_get(2)?,
                attempts: row.try_get(3)?,
            })
        })
        .collect()
}

/// Locks those that are still due and that nobody else has, and returns how often each has failed.
pub(crate) async fn hold_due(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
) -> Result<Vec<(Uuid, i32)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT r.event_id, r.attempts FROM seqline.stream_retries r
         WHERE r.consumer = $1 AND r.event_id = ANY ($2) AND r.next_attempt_at <= clock_timestamp()
         FOR UPDATE SKIP LOCKED",
    )
    .bind(consumer)
    .bind(event_ids)
    .fetch_all(connection)
    .await
}

/// Locks the row of an event, and returns how often it has failed; none when it does not wait.
pub(crate) async fn hold_attempts(
    connection: &mut PgConnection,
    consumer: &str,
    event_id: Uuid,
) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT r.attempts FROM seqline.stream_retries r WHERE r.consumer = $1 AND r.event_id = $2 FOR UPDATE",
    )
    .bind(consumer)
    .bind(event_id)
    .fetch_optional(connection)
    .await
}

/// Whether an event was given up.
pub(crate) async fn is_given_up(
    connection: &mut PgConnection,
    consumer: &str,
    event_id: Uuid,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM seqline.dead_letters d WHERE d.consumer = $1 AND d.event_id = $2)",
    )
    .bind(consumer)
    .bind(event_id)
    .fetch_one(connection)
    .await
}

/// An event that failed.
pub(crate) struct Failure {
    pub(crate) event_id: Uuid,
    pub(crate) position: i64,
    pub(crate) stream_seq: Option<i64>,
    pub(crate) attempts: i32,
    pub(crate) delay_seconds: f64,
    pub(crate) error_type: &'static str,
}

/// Has events wait for their next attempt. One that waits already, because another process met it too, has failed `times` more.
pub(crate) async fn put(
    connection: &mut PgConnection,
    consumer: &str,
    failures: &[Failure],
    times: i32,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO seqline.stream_retries AS r
             (consumer, event_id, position, stream_seq, attempts, next_attempt_at, cause, error_type)
         SELECT $1, f.event_id, f.position, f.stream_seq, f.attempts,
             clock_timestamp() + make_interval(secs => f.delay), 'failed', f.error_type
         FROM unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::int[], $6::float8[], $7::text[])
             AS f (event_id, position, stream_seq, attempts, delay, error_type)
         ON CONFLICT (consumer, event_id) DO UPDATE
         SET attempts = r.attempts + $8, next_attempt_at = excluded.next_attempt_at,
             error_type = excluded.error_type, updated_at = now()",
    )
    .bind(consumer)
    .bind(failures.iter().map(|it| it.event_id).collect::<Vec<_>>())
    .bind(failures.iter().map(|it| it.position).collect::<Vec<_>>())
    .bind(failures.iter().map(|it| it.stream_seq).collect::<Vec<_>>())
    .bind(failures.iter().map(|it| it.attempts).collect::<Vec<_>>())
    .bind(failures.iter().map(|it| it.delay_seconds).collect::<Vec<_>>())
    .bind(failures.iter().map(|it| it.error_type).collect::<Vec<_>>())
    .bind(times)
    .execute(connection)
    .await
    .map(drop)
}

/// Events that wait no longer.
pub(crate) async fn remove(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM seqline.stream_retries r WHERE r.consumer = $1 AND r.event_id = ANY ($2)")
        .bind(consumer)
        .bind(event_ids)
        .execute(connection)
        .await
        .map(drop)
}

/// What is given up.
#[derive(Debug, Clone)]
pub(crate) struct Letter {
    pub(crate) reason: &'static str,
    pub(crate) event_id: Option<Uuid>,
    pub(crate) position: Option<i64>,
    /// None where it is not known to which stream of this name the number belongs.
    pub(crate) stream_created: Option<i64>,
    pub(crate) stream_seq: Option<i64>,
    pub(crate) subject: Option<String>,
    pub(crate) size: Option<i64>,
    pub(crate) attempts: i32,
    pub(crate) error_type: Option<&'static str>,
}

/// Writes down what is given up, and returns for how many that was news: the same message is one dead letter however often it comes.
pub(crate) async fn give_up(
    connection: &mut PgConnection,
    consumer: &str,
    stream: &str,
    letters: &[Letter],
) -> Result<u64, sqlx::Error> {
    let written = sqlx::query(
        "INSERT INTO seqline.dead_letters
             (consumer, stream, reason, event_id, position, stream_created, stream_seq, subject, size, attempts, error_type)
         SELECT $1, $2, l.reason, l.event_id, l.position, l.stream_created, l.stream_seq, left(l.subject, 1024), l.size,
             l.attempts, l.error_type
         FROM unnest($3::text[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[], $9::bigint[], $10::int[], $11::text[])
             AS l (reason, event_id, position, stream_created, stream_seq, subject, size, attempts, error_type)
         ON CONFLICT (consumer, stream_created, stream_seq) WHERE stream_seq IS NOT NULL DO NOTHING",
    )
    .bind(consumer)
    .bind(stream)
    .bind(letters.iter().map(|it| it.reason).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.event_id).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.position).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.stream_created).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.stream_seq).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.subject.as_deref()).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.size).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.attempts).collect::<Vec<_>>())
    .bind(letters.iter().map(|it| it.error_type).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(written.rows_affected())
}
