//! What is known of consumers, for people.

use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};
use time::OffsetDateTime;

use crate::consumer::Filter;

/// A consumer as the tables have it.
pub(crate) struct ConsumerRow {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) last_seq: i64,
    pub(crate) updated_at: OffsetDateTime,
    pub(crate) head_seq: i64,
    pub(crate) min_retained: i64,
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
                coalesce((o.e ->> 'lanes')::int, 1), (SELECT seqline.min_retained())
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
        min_retained: row.try_get(16)?,
        failure,
    })
}

/// Whether the schema knows parking: an older one does not.
pub(crate) async fn knows_parking(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT to_regclass('seqline.parked_events') IS NOT NULL").fetch_one(connection).await
}

/// How many events each consumer has parked, and the first of them.
pub(crate) async fn parked_counts(
    connection: &mut PgConnection,
) -> Result<Vec<(String, i64, i64)>, sqlx::Error> {
    sqlx::query_as("SELECT consumer, count(*), min(seq) FROM seqline.parked_events GROUP BY consumer")
        .fetch_all(connection)
        .await
}

/// What a consumer asks for, and by what it is divided into lanes.
pub(crate) async fn definition(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<(Filter, String)>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT CASE WHEN e.types IS NOT NULL
                     THEN e.types || ARRAY(SELECT p.prefix || '*' FROM unnest(e.type_prefixes) AS p (prefix)) END,
                e.spaces, e.channels, e.resource_kinds, e.lane_key
         FROM seqline.event_consumers e WHERE e.name = $1",
    )
    .bind(name)
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let filter = Filter {
        types: row.try_get(0)?,
        spaces: row.try_get(1)?,
        channels: row.try_get(2)?,
        resource_kinds: row.try_get(3)?,
    };
    Ok(Some((filter, row.try_get(4)?)))
}

#[derive(FromRow)]
pub(crate) struct LaneRow {
    pub(crate) lane: i32,
    pub(crate) last_seq: i64,
    pub(crate) updated_at: OffsetDateTime,
    pub(crate) until_seq: Option<i64>,
    pub(crate) tried_seq: Option<i64>,
    pub(crate) attempts: Option<i32>,
    pub(crate) next_attempt_at: Option<OffsetDateTime>,
    pub(crate) error_type: Option<String>,
}

/// Where each lane stands, and the mark that its cursor has not left behind.
pub(crate) async fn lanes(connection: &mut PgConnection, name: &str) -> Result<Vec<LaneRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT l.lane, c.last_seq, c.updated_at, m.until_seq,
                CASE WHEN m.tried_seq > c.last_seq THEN m.tried_seq END AS tried_seq,
                CASE WHEN m.tried_seq > c.last_seq THEN m.attempts WHEN m.last_seq IS NOT NULL THEN 0 END AS attempts,
                m.next_attempt_at, m.error_type
         FROM seqline.event_consumers e
         CROSS JOIN LATERAL generate_series(0, e.lanes - 1) AS l (lane)
         CROSS JOIN LATERAL (
             SELECT k.last_seq, k.updated_at FROM seqline.event_consumer_cursors k
             WHERE k.name = e.name AND k.lane = l.lane ORDER BY k.last_seq DESC LIMIT 1
         ) c
         LEFT JOIN LATERAL (
             SELECT r.* FROM seqline.round_marks r
             WHERE r.consumer = e.name AND r.lane = l.lane ORDER BY r.last_seq DESC LIMIT 1
         ) m ON m.until_seq > c.last_seq
         WHERE e.name = $1 ORDER BY l.lane",
    )
    .bind(name)
    .fetch_all(connection)
    .await
}

/// Those events after `last_seq` that a consumer is to leave out, the first of them, and with each how many there are.
pub(crate) async fn skipped_after(
    connection: &mut PgConnection,
    name: &str,
    last_seq: i64,
    limit: i64,
) -> Result<Vec<(i64, i64)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT s.seq, count(*) OVER () FROM seqline.skipped_events s
         WHERE s.consumer = $1 AND s.seq > $2 ORDER BY s.seq LIMIT $3",
    )
    .bind(name)
    .bind(last_seq)
    .bind(limit)
    .fetch_all(connection)
    .await
}

#[derive(FromRow)]
pub(crate) struct LossRow {
    pub(crate) lost_from: i64,
    pub(crate) lost_to: i64,
    pub(crate) recorded_at: OffsetDateTime,
    pub(crate) ranges: i64,
}

/// What a consumer has lost and nobody has acknowledged, the highest first, and with each range how many there are.
pub(crate) async fn losses(
    connection: &mut PgConnection,
    name: &str,
    limit: i64,
) -> Result<Vec<LossRow>, sqlx::Error> {
    sqlx::query_as(
        // Lanes can have lost the same numbers.
        "SELECT lower(r.range) AS lost_from, upper(r.range) - 1 AS lost_to,
                (SELECT max(l.recorded_at) FROM seqline.lost_ranges l
                 WHERE l.consumer = $1 AND l.acknowledged_at IS NULL AND l.lost_from <@ r.range) AS recorded_at,
                count(*) OVER () AS ranges
         FROM unnest((SELECT range_agg(int8range(l.lost_from, l.lost_to, '[]')) FROM seqline.lost_ranges l
                      WHERE l.consumer = $1 AND l.acknowledged_at IS NULL)) AS r (range)
         ORDER BY lower(r.range) DESC LIMIT $2",
    )
    .bind(name)
    .bind(limit)
    .fetch_all(connection)
    .await
}

#[derive(FromRow)]
pub(crate) struct ParkedRow {
    pub(crate) consumer: String,
    pub(crate) seq: i64,
    pub(crate) key: Option<String>,
    pub(crate) attempts: i32,
    pub(crate) error_type: Option<String>,
    pub(crate) parked_at: OffsetDateTime,
    pub(crate) next_attempt_at: Option<OffsetDateTime>,
    pub(crate) waits_for: Option<i64>,
}

/// The first parked events behind a place, of one consumer or of all, of one number or of all.
pub(crate) async fn parked(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    seq: Option<i64>,
    (after_consumer, after_seq): (&str, i64),
    limit: i64,
) -> Result<Vec<ParkedRow>, sqlx::Error> {
    sqlx::query_as(
        "SELECT p.consumer, p.seq, p.key, p.attempts, p.error_type, p.parked_at, p.next_attempt_at,
                (SELECT min(b.seq) FROM seqline.parked_events b
                 WHERE b.consumer = p.consumer AND b.key = p.key AND b.seq < p.seq) AS waits_for
         FROM seqline.parked_events p
         WHERE ($1::text IS NULL OR p.consumer = $1) AND ($2::bigint IS NULL OR p.seq = $2)
           AND (p.consumer, p.seq) > ($4, $5)
         ORDER BY p.consumer, p.seq LIMIT $3",
    )
    .bind(consumer)
    .bind(seq)
    .bind(limit)
    .bind(after_consumer)
    .bind(after_seq)
    .fetch_all(connection)
    .await
}

/// Number, type and resource of the events with these numbers. With bounds and not persistent, as all reads of the log.
pub(crate) async fn titles(
    connection: &mut PgConnection,
    seqs: &[i64],
) -> Result<Vec<(i64, String, String)>, sqlx::Error> {
    let Some((first, last)) = seqs.iter().min().zip(seqs.iter().max()) else { return Ok(Vec::new()) };
    sqlx::query_as(
        "SELECT e.seq, e.type, e.resource_kind || coalesce('/' || e.resource_id, '') FROM seqline.event_log e
         WHERE e.seq >= $1 AND e.seq <= $2 AND e.seq = ANY ($3)",
    )
    .bind(first)
    .bind(last)
    .bind(seqs)
    .persistent(false)
    .fetch_all(connection)
    .await
}
