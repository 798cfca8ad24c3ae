//! What is known of consumers, for people.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

/// A consumer as the tables have it.
pub(crate) struct ConsumerRow {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) last_seq: i64,
    pub(crate) updated_at: OffsetDateTime,
    pub(crate) head_seq: i64,
    /// Events lost to retention that nobody has acknowledged.
    pub(crate) lost: i64,
    pub(crate) paused_at: Option<OffsetDateTime>,
    pub(crate) retired_at: Option<OffsetDateTime>,
    pub(crate) until_seq: Option<i64>,
    pub(crate) lanes: u32,
    pub(crate) failure: Option<FailureRow>,
}

pub(crate) struct FailureRow {
    pub(crate) error_type: String,
    pub(crate) seq: Option<i64>,
    pub(crate) failed_at: OffsetDateTime,
    pub(crate) recovered_at: Option<OffsetDateTime>,
    /// Where the lane is by now that failed, and since when, if there is such a lane.
    pub(crate) lane: Option<(i64, OffsetDateTime)>,
}

/// All consumers and the head, in one look.
pub(crate) async fn list(connection: &mut PgConnection) -> Result<Vec<ConsumerRow>, sqlx::Error> {
    // What an older schema does not have is read as it would be there.
    let rows = sqlx::query(
        "SELECT e.name, e.kind, c.last_seq, c.updated_at, (SELECT seqline.head()),
                -- Lanes can have lost the same numbers.
                (SELECT coalesce(sum(upper(r.range) - lower(r.range)), 0)::bigint FROM unnest((
                     SELECT range_agg(int8range(l.lost_from, l.lost_to, '[]')) FROM seqline.lost_ranges l
                     WHERE l.consumer = e.name AND to_jsonb(l) ->> 'acknowledged_at' IS NULL)) AS r (range)),
                f.error_type, f.seq, f.failed_at, f.recovered_at, f.last_seq, f.updated_at,
                (o.e ->> 'paused_at')::timestamptz, (o.e ->> 'retired_at')::timestamptz, (o.e ->> 'until_seq')::bigint,
                coalesce((o.e ->> 'lanes')::int, 1)
         FROM seqline.event_consumers e
         CROSS JOIN LATERAL (SELECT to_jsonb(e)) AS o (e)
         CROSS JOIN LATERAL (
             SELECT min(k.last_seq) AS last_seq, max(k.updated_at) AS updated_at
             FROM seqline.event_consumer_cursors k WHERE k.name = e.name HAVING count(*) > 0
         ) c
         -- The one that is worst: of those that go on, and else of those that are over, the last.
         LEFT JOIN LATERAL (
             SELECT f.*, k.last_seq, k.updated_at FROM seqline.event_consumer_failures f
             LEFT JOIN seqline.event_consumer_cursors k
                 ON k.name = f.name AND coalesce(to_jsonb(k) -> 'lane', '0') = coalesce(to_jsonb(f) -> 'lane', '0')
             WHERE f.name = e.name
             ORDER BY f.recovered_at IS NULL AND (f.seq > k.last_seq OR f.seq IS NULL) IS TRUE DESC, f.failed_at DESC LIMIT 1
         ) f ON true
         ORDER BY e.name",
    )
    .fetch_all(connection)
    .await?;
    rows.iter().map(decode).collect()
}

fn decode(row: &PgRow) -> Result<ConsumerRow, sqlx::Error> {
    let error_type: Option<String> = row.try_get(6)?;
    let failure = match error_type {
        None => None,
        Some(error_type) => Some(FailureRow {
            error_type,
            seq: row.try_get(7)?,
            failed_at: row.try_get(8)?,
            recovered_at: row.try_get(9)?,
            lane: row.try_get::<Option<i64>, _>(10)?.zip(row.try_get(11)?),
        }),
    };
    Ok(ConsumerRow {
        name: row.try_get(0)?,
        kind: row.try_get(1)?,
        last_seq: row.try_get(2)?,
        updated_at: row.try_get(3)?,
        head_seq: row.try_get(4)?,
        lost: row.try_get(5)?,
        paused_at: row.try_get(12)?,
        retired_at: row.try_get(13)?,
        until_seq: row.try_get(14)?,
        lanes: row.try_get::<i32, _>(15)?.unsigned_abs(),
        failure,
    })
}

/// How many events each consumer has parked, and the first of them; none in a schema that knows no parking.
pub(crate) async fn parked_counts(
    connection: &mut PgConnection,
) -> Result<Vec<(String, i64, i64)>, sqlx::Error> {
    let known: bool = sqlx::query_scalar("SELECT to_regclass('seqline.parked_events') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !known {
        return Ok(Vec::new());
    }
    sqlx::query_as("SELECT consumer, count(*), min(seq) FROM seqline.parked_events GROUP BY consumer")
        .fetch_all(connection)
        .await
}
