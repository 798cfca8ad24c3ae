//! What is done once per interval over all processes. The clock is the database's.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;
use time::OffsetDateTime;

/// Claims the next run of a task, if one is due: the last began an interval ago, or a lease ago and was not finished, or in the
/// future, which means that the clock was wrong then or was changed since. Returns when it began, which is what [`finish`] takes.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    name: &str,
    interval: Duration,
    lease: Duration,
) -> Result<Option<OffsetDateTime>, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO seqline.periodic_tasks AS t (name, started_at) VALUES ($1, clock_timestamp())
         ON CONFLICT (name) DO UPDATE SET started_at = clock_timestamp(), finished_at = NULL
         WHERE t.started_at + CASE WHEN t.finished_at IS NULL THEN least($2, $3) ELSE $2 END <= clock_timestamp()
            OR t.started_at > clock_timestamp() + interval '1 minute'
         RETURNING started_at",
    )
    .bind(name)
    .bind(pg_interval(interval))
    .bind(pg_interval(lease))
    .fetch_optional(connection)
    .await
}

/// Says that a claimed run is done. Not when another process has claimed it since.
pub(crate) async fn finish(
    connection: &mut PgConnection,
    name: &str,
    started_at: OffsetDateTime,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE seqline.periodic_tasks t SET finished_at = clock_timestamp() WHERE t.name = $1 AND t.started_at = $2",
    )
    .bind(name)
    .bind(started_at)
    .execute(connection)
    .await
    .map(drop)
}

/// How long until a run can be claimed, in milliseconds; negative when one can be now. Asked after [`claim`].
pub(crate) async fn due_in_ms(
    connection: &mut PgConnection,
    name: &str,
    interval: Duration,
    lease: Duration,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT (1000 * extract(epoch FROM least(t.started_at, clock_timestamp() + interval '1 minute') - clock_timestamp()
            + CASE WHEN t.finished_at IS NULL THEN least($2, $3) ELSE $2 END))::bigint
         FROM seqline.periodic_tasks t WHERE t.name = $1",
    )
    .bind(name)
    .bind(pg_interval(interval))
    .bind(pg_interval(lease))
    .fetch_optional(connection)
    .await
}

pub(super) fn pg_interval(duration: Duration) -> PgInterval {
    // More than PostgreSQL can add to a time is as good as never, and so are 1,000 years.
    const MAX: Duration = Duration::from_secs(1_000 * 365 * 24 * 60 * 60);
    PgInterval {
        months: 0,
        days: 0,
        microseconds: i64::try_from(duration.min(MAX).as_micros()).unwrap_or(i64::MAX),
    }
}
