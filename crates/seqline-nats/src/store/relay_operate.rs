//! What people see of relays and decide about them.

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A relay and what the log has for it.
#[derive(sqlx::FromRow)]
pub(crate) struct StatusRow {
    pub(crate) name: String,
    pub(crate) stream: String,
    pub(crate) epoch: Uuid,
    pub(crate) position: i64,
    pub(crate) head: i64,
    pub(crate) oldest_unpublished_at: Option<OffsetDateTime>,
    pub(crate) stream_seq: i64,
    pub(crate) rewind_to: Option<i64>,
    pub(crate) paused_at: Option<OffsetDateTime>,
    pub(crate) active: bool,
    pub(crate) leased_until: Option<OffsetDateTime>,
    pub(crate) stalled_by: Option<String>,
    pub(crate) stalled_since: Option<OffsetDateTime>,
    pub(crate) updated_at: OffsetDateTime,
}

/// What a relay met, as long as nobody has acknowledged it.
#[derive(sqlx::FromRow)]
pub(crate) struct IncidentRow {
    pub(crate) relay: String,
    pub(crate) kind: String,
    pub(crate) count: i64,
    pub(crate) first_position: Option<i64>,
    pub(crate) last_position: Option<i64>,
    pub(crate) stream_seq: Option<i64>,
    pub(crate) first_at: OffsetDateTime,
    pub(crate) last_at: OffsetDateTime,
}

/// Where a relay stands.
pub(crate) struct Place {
    pub(crate) position: i64,
    pub(crate) stream_seq: i64,
}

/// All relays by name. The ends of the log are looked up once, which takes dozens of looks at it, and not where there is no relay; the event that
/// comes next is found by its number.
pub(crate) async fn statuses(connection: &mut PgConnection) -> Result<Vec<StatusRow>, sqlx::Error> {
    sqlx::query_as(
        "WITH ends AS MATERIALIZED (
             SELECT seqline.head() AS head, seqline.min_retained() AS first WHERE EXISTS (SELECT FROM seqline.relay_cursors)
         )
         SELECT c.name, c.stream, c.epoch, c.position, ends.head, next.occurred_at AS oldest_unpublished_at, c.stream_seq, c.rewind_to,
                c.paused_at, coalesce(c.leased_until > clock_timestamp(), false) AS active, c.leased_until, c.stalled_by, c.stalled_since,
                c.updated_at
         FROM ends CROSS JOIN seqline.relay_cursors c
         LEFT JOIN LATERAL (
             SELECT e.occurred_at FROM seqline.event_log e WHERE e.seq = greatest(c.position + 1, ends.first)
         ) AS next ON c.position < ends.head
         ORDER BY c.name",
    )
    .fetch_all(connection)
    .await
}

/// The incidents of all relays that nobody has acknowledged, by relay and kind.
pub(crate) async fn open_incidents(connection: &mut PgConnection) -> Result<Vec<IncidentRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT relay, kind, count, first_position, last_position, stream_seq, first_at, last_at
         FROM seqline.relay_incidents WHERE acknowledged_at IS NULL ORDER BY relay, kind",
    )
    .fetch_all(connection)
    .await
}

pub(crate) async fn set_paused(
    connection: &mut PgConnection,
    name: &str,
    paused: bool,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_relay_paused($1, $2, $3)")
        .bind(name)
        .bind(paused)
        .bind(why)
        .fetch_one(connection)
        .await
}

/// Where it stood before.
pub(crate) async fn rewind(
    connection: &mut PgConnection,
    name: &str,
    position: i64,
    apply: bool,
    why: Option<&str>,
) -> Result<Place, sqlx::Error> {
    let (position, stream_seq) =
        sqlx::query_as("SELECT position, stream_seq FROM seqline.rewind_relay($1, $2, $3, $4)")
            .bind(name)
            .bind(position)
            .bind(apply)
            .bind(why)
            .fetch_one(connection)
            .await?;
    Ok(Place { position, stream_seq })
}

/// Where it stood before.
pub(crate) async fn delete(
    connection: &mut PgConnection,
    name: &str,
    apply: bool,
    why: Option<&str>,
) -> Result<Place, sqlx::Error> {
    let (position, stream_seq) =
        sqlx::query_as("SELECT position, stream_seq FROM seqline.delete_relay($1, $2, $3)")
            .bind(name)
            .bind(apply)
            .bind(why)
            .fetch_one(connection)
            .await?;
    Ok(Place { position, stream_seq })
}

pub(crate) async fn acknowledge(
    connection: &mut PgConnection,
    name: &str,
    apply: bool,
    why: Option<&str>,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.acknowledge_relay_incidents($1, $2, $3)")
        .bind(name)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}
