//! Consumers of the stream: that they are there, and how far the log was compared with what they have handled.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

/// What is recorded of a consumer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registration {
    /// Nothing up to here is expected of it.
    pub(crate) start_position: i64,
    /// Up to here the log was compared.
    pub(crate) reconciled_to: i64,
    /// Whether it asks for what this process asks for.
    pub(crate) is_same: bool,
}

/// What a consumer is.
pub(crate) struct Asking<'a> {
    pub(crate) name: &'a str,
    pub(crate) stream: &'a str,
    pub(crate) types: Option<&'a [String]>,
    pub(crate) spaces: Option<&'a [String]>,
}

pub(crate) async fn registration(
    connection: &mut PgConnection,
    asking: &Asking<'_>,
) -> Result<Option<Registration>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT c.start_position, c.reconciled_to, c.types IS NOT DISTINCT FROM $2 AND c.spaces IS NOT DISTINCT FROM $3
         FROM seqline.stream_consumers c WHERE c.name = $1",
    )
    .bind(asking.name)
    .bind(asking.types)
    .bind(asking.spaces)
    .fetch_optional(connection)
    .await?;
    row.map(|row| {
        Ok(Registration {
            start_position: row.try_get(0)?,
            reconciled_to: row.try_get(1)?,
            is_same: row.try_get(2)?,
        })
    })
    .transpose()
}

/// Records a consumer, or what it asks for now. One that was there stays where it was, also when it asks for more: what was not asked for is not
/// expected.
pub(crate) async fn register(
    connection: &mut PgConnection,
    asking: &Asking<'_>,
    start_position: i64,
    reconciled_to: i64,
) -> Result<Registration, sqlx::Error> {
    let row = sqlx::query(
        "INSERT INTO seqline.stream_consumers AS c (name, stream, types, spaces, start_position, reconciled_to)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (name) DO UPDATE
         SET stream = excluded.stream, types = excluded.types, spaces = excluded.spaces, updated_at = now()
         RETURNING c.start_position, c.reconciled_to",
    )
    .bind(asking.name)
    .bind(asking.stream)
    .bind(asking.types)
    .bind(asking.spaces)
    .bind(start_position)
    .bind(reconciled_to)
    .fetch_one(connection)
    .await?;
    Ok(Registration { start_position: row.try_get(0)?, reconciled_to: row.try_get(1)?, is_same: true })
}

/// Up to which position a relay of this log has filled a stream, as far as the stream has this number; none when no relay says so.
pub(crate) async fn relayed_to(
    connection: &mut PgConnection,
    stream: &str,
    stream_created: i64,
    stream_seq: i64,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT max(c.position) FROM seqline.relay_cursors c
         WHERE c.stream = $1 AND c.stream_created = $2 AND c.stream_seq <= $3
           AND c.epoch = (SELECT i.epoch FROM seqline.log_identity i)",
    )
    .bind(stream)
    .bind(stream_created)
    .bind(stream_seq)
    .fetch_one(connection)
    .await
}

/// Where the log begins and ends, and in which history.
pub(crate) struct Bounds {
    pub(crate) epoch: Uuid,
    pub(crate) head: i64,
    pub(crate) min_retained: i64,
}

pub(crate) async fn bounds(connection: &mut PgConnection) -> Result<Bounds, sqlx::Error> {
    let row = sqlx::query(
        "SELECT (SELECT i.epoch FROM seqline.log_identity i), seqline.head(), seqline.min_retained()",
    )
    .fetch_one(connection)
    .await?;
    Ok(Bounds { epoch: row.try_get(0)?, head: row.try_get(1)?, min_retained: row.try_get(2)? })
}

/// Which events the log has at these positions. Not persistent, so that planning leaves out partitions.
pub(crate) async fn ids_at(
    connection: &mut PgConnection,
    positions: &[i64],
) -> Result<Vec<(i64, Uuid)>, sqlx::Error> {
    sqlx::query_as("SELECT e.seq, e.id FROM seqline.event_log e WHERE e.seq = ANY ($1)")
        .bind(positions)
        .persistent(false)
        .fetch_all(connection)
        .await
}

/// What the log has at some positions, and where it ends.
pub(crate) struct LogAt {
    pub(crate) epoch: Uuid,
    pub(crate) head: i64,
    pub(crate) ids: BTreeMap<i64, Uuid>,
}

/// Reads what the log has at these positions. They are written into the statement, so that planning leaves out partitions and there is one way to
/// the server and back.
pub(crate) async fn log_at(connection: &mut PgConnection, positions: &[i64]) -> Result<LogAt, sqlx::Error> {
    let positions = positions.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let statement = format!(
        "SELECT i.epoch, seqline.head(), e.seq, e.id FROM seqline.log_identity i
         LEFT JOIN seqline.event_log e ON e.seq = ANY ('{{{positions}}}'::bigint[])"
    );
    // Numbers, and nothing that anybody has written.
    let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(connection).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let mut found = LogAt { epoch: first.try_get(0)?, head: first.try_get(1)?, ids: BTreeMap::new() };
    for row in &rows {
        if let Some(seq) = row.try_get(2)? {
            found.ids.insert(seq, row.try_get(3)?);
        }
    }
    Ok(found)
}

/// Has every event that a consumer asks for, as it is recorded, of the positions above `after` up to `until`, and that it neither handled nor gave up nor is to try
/// again, be tried from the log. How many. Not persistent, so that planning leaves out partitions.
pub(crate) async fn put_dropped(
    connection: &mut PgConnection,
    name: &str,
    after: i64,
    until: i64,
) -> Result<u64, sqlx::Error> {
    let put = sqlx::query(
        "INSERT INTO seqline.stream_retries (consumer, event_id, position, attempts, next_attempt_at, cause)
         SELECT $1, e.id, e.seq, 0, clock_timestamp(), 'dropped'
         FROM seqline.stream_consumers s, seqline.event_log e
         WHERE s.name = $1 AND e.seq > $2 AND e.seq <= $3
           AND (s.types IS NULL OR e.type = ANY (s.types) OR EXISTS (
               SELECT FROM unnest(s.types) AS t (pattern) WHERE right(t.pattern, 2) = '.*' AND e.type ^@ left(t.pattern, -1)
           ))
           AND (s.spaces IS NULL OR e.space_id = ANY (s.spaces))
           AND NOT EXISTS (SELECT FROM seqline.consumed_events c WHERE c.consumer = $1 AND c.event_id = e.id)
           AND NOT EXISTS (SELECT FROM seqline.dead_letters d WHERE d.consumer = $1 AND d.event_id = e.id)
         ON CONFLICT DO NOTHING",
    )
    .bind(name)
    .bind(after)
    .bind(until)
    .persistent(false)
    .execute(connection)
    .await?;
    Ok(put.rows_affected())
}

/// Counts what retention took before it was compared.
pub(crate) async fn add_lost(
    connection: &mut PgConnection,
    name: &str,
    lost: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE seqline.stream_consumers c SET lost = c.lost + $2 WHERE c.name = $1")
        .bind(name)
        .bind(lost)
        .execute(connection)
        .await
        .map(drop)
}

/// Moves the mark up to which the log was compared, and counts what was `dropped`. Whether it was where the caller thought.
pub(crate) async fn set_reconciled(
    connection: &mut PgConnection,
    name: &str,
    (from, to): (i64, i64),
    dropped: u64,
) -> Result<bool, sqlx::Error> {
    let moved = sqlx::query(
        "UPDATE seqline.stream_consumers c SET reconciled_to = $3, dropped = c.dropped + $4, updated_at = now()
         WHERE c.name = $1 AND c.reconciled_to = $2",
    )
    .bind(name)
    .bind(from)
    .bind(to)
    .bind(i64::try_from(dropped).unwrap_or(i64::MAX))
    .execute(connection)
    .await?;
    Ok(moved.rows_affected() > 0)
}

/// What went with a consumer, or would go.
#[derive(sqlx::FromRow)]
pub(crate) struct ForgottenRow {
    pub(crate) stream: String,
    pub(crate) retries: i64,
    pub(crate) dead_letters: i64,
}

/// Removes a consumer, and what it has `handled` as well if asked to.
pub(crate) async fn forget(
    connection: &mut PgConnection,
    name: &str,
    handled: bool,
    apply: bool,
    why: Option<&str>,
) -> Result<ForgottenRow, sqlx::Error> {
    sqlx::query_as("SELECT stream, retries, dead_letters FROM seqline.forget_stream_consumer($1, $2, $3, $4)")
        .bind(name)
        .bind(handled)
        .bind(apply)
        .bind(why)
        .fetch_one(connection)
        .await
}
