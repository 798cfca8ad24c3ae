//! The row of a relay, what it met, and what it reads of the log.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::relay::cursor::{Cursor, RelayRow, Told};

/// Who runs a relay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease<'a> {
    pub(crate) name: &'a str,
    pub(crate) holder: Uuid,
    pub(crate) generation: i64,
    /// For how long from now on.
    pub(crate) length: Duration,
}

/// Something that somebody should know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Incident {
    pub(crate) kind: &'static str,
    pub(crate) count: i64,
    pub(crate) positions: Option<(i64, i64)>,
    pub(crate) stream_seq: Option<u64>,
}

/// Takes the lease of a relay that nobody holds, or whose holder's has run out. `None` when somebody else has it or there is no such relay.
/// Each time the generation rises, so that who had it before can change nothing.
pub(crate) async fn acquire(
    connection: &mut PgConnection,
    name: &str,
    holder: Uuid,
    length: Duration,
) -> Result<Option<RelayRow>, sqlx::Error> {
    let row = sqlx::query(
        "UPDATE seqline.relay_cursors
         SET holder = $2, generation = generation + 1, leased_until = clock_timestamp() + $3
         WHERE name = $1 AND (holder IS NULL OR holder = $2 OR leased_until <= clock_timestamp())
         RETURNING epoch, position, stream_created, stream_seq, position_at_seq, base_stream_seq, base_position, rewinds,
             generation, paused_at IS NOT NULL, rewind_to, stalled_by IS NOT NULL",
    )
    .bind(name)
    .bind(holder)
    .bind(interval(length))
    .fetch_optional(connection)
    .await?;
    row.map(|row| decode(&row)).transpose()
}

/// Whether there is a relay of this name, whoever runs it.
pub(crate) async fn exists(connection: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM seqline.relay_cursors WHERE name = $1)")
        .bind(name)
        .fetch_one(connection)
        .await
}

/// Makes the row of a relay that has just begun, held from the start. Its generation, or `None` when somebody else was faster.
pub(crate) async fn create(
    connection: &mut PgConnection,
    name: &str,
    stream: &str,
    cursor: &Cursor,
    holder: Uuid,
    length: Duration,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "INSERT INTO seqline.relay_cursors (name, stream, epoch, position, stream_created, stream_seq, position_at_seq,
             base_stream_seq, base_position, holder, generation, leased_until)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 1, clock_timestamp() + $11)
         ON CONFLICT (name) DO NOTHING RETURNING generation",
    )
    .bind(name)
    .bind(stream)
    .bind(cursor.epoch)
    .bind(cursor.position)
    .bind(cursor.stream_created)
    .bind(signed(cursor.stream_seq)?)
    .bind(cursor.position_at_seq)
    .bind(signed(cursor.base_stream_seq)?)
    .bind(cursor.base_position)
    .bind(holder)
    .bind(interval(length))
    .fetch_optional(connection)
    .await
}

/// Says how far a relay is and keeps the lease. `None` when somebody else has taken it: nothing is written then.
pub(crate) async fn save(
    connection: &mut PgConnection,
    lease: Lease<'_>,
    stream: &str,
    cursor: &Cursor,
) -> Result<Option<Told>, sqlx::Error> {
    let row = sqlx::query(
        "UPDATE seqline.relay_cursors
         SET stream = $4, epoch = $5, position = $6, stream_created = $7, stream_seq = $8, position_at_seq = $9,
             base_stream_seq = $10, base_position = $11, leased_until = clock_timestamp() + $12, updated_at = clock_timestamp()
         WHERE name = $1 AND holder = $2 AND generation = $3
         RETURNING paused_at IS NOT NULL, rewind_to",
    )
    .bind(lease.name)
    .bind(lease.holder)
    .bind(lease.generation)
    .bind(stream)
    .bind(cursor.epoch)
    .bind(cursor.position)
    .bind(cursor.stream_created)
    .bind(signed(cursor.stream_seq)?)
    .bind(cursor.position_at_seq)
    .bind(signed(cursor.base_stream_seq)?)
    .bind(cursor.base_position)
    .bind(interval(lease.length))
    .fetch_optional(connection)
    .await?;
    row.map(|row| Ok(Told { paused: row.try_get(0)?, rewind_to: row.try_get(1)? })).transpose()
}

/// Goes on where an operator wants it to, behind what the stream holds now. `None` when somebody else has taken the lease, or nobody wants it
/// any more.
pub(crate) async fn rewind(
    connection: &mut PgConnection,
    lease: Lease<'_>,
    stream_created: i64,
    last: u64,
) -> Result<Option<RelayRow>, sqlx::Error> {
    let row = sqlx::query(
        "UPDATE seqline.relay_cursors
         SET epoch = (SELECT i.epoch FROM seqline.log_identity i), position = rewind_to, stream_created = $4, stream_seq = $5,
             position_at_seq = NULL, base_stream_seq = $5, base_position = rewind_to, rewinds = rewinds + 1, rewind_to = NULL,
             leased_until = clock_timestamp() + $6, updated_at = clock_timestamp()
         WHERE name = $1 AND holder = $2 AND generation = $3 AND rewind_to IS NOT NULL
         RETURNING epoch, position, stream_created, stream_seq, position_at_seq, base_stream_seq, base_position, rewinds,
             generation, paused_at IS NOT NULL, rewind_to, stalled_by IS NOT NULL",
    )
    .bind(lease.name)
    .bind(lease.holder)
    .bind(lease.generation)
    .bind(stream_created)
    .bind(signed(last)?)
    .bind(interval(lease.length))
    .fetch_optional(connection)
    .await?;
    row.map(|row| decode(&row)).transpose()
}

/// Gives the lease back, so that somebody else need not wait for its end.
pub(crate) async fn release(connection: &mut PgConnection, lease: Lease<'_>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE seqline.relay_cursors SET holder = NULL, leased_until = NULL
         WHERE name = $1 AND holder = $2 AND generation = $3",
    )
    .bind(lease.name)
    .bind(lease.holder)
    .bind(lease.generation)
    .execute(connection)
    .await?;
    Ok(())
}

/// Records what keeps a relay from going on, or that nothing does. Only who holds it says so.
pub(crate) async fn set_stalled(
    connection: &mut PgConnection,
    lease: Lease<'_>,
    by: Option<&str>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE seqline.relay_cursors
         SET stalled_by = $4, stalled_since = CASE WHEN $4 IS NULL THEN NULL ELSE coalesce(stalled_since, clock_timestamp()) END,
             updated_at = clock_timestamp()
         WHERE name = $1 AND holder = $2 AND generation = $3 AND stalled_by IS DISTINCT FROM $4",
    )
    .bind(lease.name)
    .bind(lease.holder)
    .bind(lease.generation)
    .bind(by)
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds to what was met of a kind since somebody last acknowledged it. Whether there is such a relay: of one that was deleted nothing is kept.
pub(crate) async fn note(
    connection: &mut PgConnection,
    relay: &str,
    incident: &Incident,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "INSERT INTO seqline.relay_incidents AS i (relay, kind, count, first_position, last_position, stream_seq)
         SELECT c.name, $2, $3, $4, $5, $6 FROM seqline.relay_cursors c WHERE c.name = $1
         ON CONFLICT (relay, kind) WHERE acknowledged_at IS NULL DO UPDATE
         SET count = i.count + excluded.count, first_position = least(i.first_position, excluded.first_position),
             last_position = greatest(i.last_position, excluded.last_position),
             stream_seq = coalesce(excluded.stream_seq, i.stream_seq), last_at = clock_timestamp()",
    )
    .bind(relay)
    .bind(incident.kind)
    .bind(incident.count.max(1))
    .bind(incident.positions.map(|(first, _)| first))
    .bind(incident.positions.map(|(_, last)| last))
    .bind(incident.stream_seq.map(signed).transpose()?)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// The log and the events at some positions, all of one state of it.
pub(crate) struct Compared {
    pub(crate) epoch: Uuid,
    pub(crate) head: i64,
    pub(crate) min_retained: i64,
    pub(crate) ids: Vec<(i64, Uuid)>,
}

/// Reads which events the log has at these positions. The bounds let planning leave out all partitions but those, and not be persistent keeps
/// PostgreSQL from making a plan that would lock every partition there is.
pub(crate) async fn compare(
    connection: &mut PgConnection,
    positions: &[i64],
) -> Result<Compared, sqlx::Error> {
    let (first, last) =
        (positions.iter().min().copied().unwrap_or(0), positions.iter().max().copied().unwrap_or(0));
    let row = sqlx::query(
        "SELECT i.epoch, seqline.head(), seqline.min_retained(),
             (SELECT coalesce(array_agg(e.seq ORDER BY e.seq), '{}') FROM seqline.event_log e WHERE e.seq >= $2 AND e.seq <= $3 AND e.seq = ANY ($1)),
             (SELECT coalesce(array_agg(e.id ORDER BY e.seq), '{}') FROM seqline.event_log e WHERE e.seq >= $2 AND e.seq <= $3 AND e.seq = ANY ($1))
         FROM seqline.log_identity i",
    )
    .bind(positions)
    .bind(first)
    .bind(last)
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let (positions, ids): (Vec<i64>, Vec<Uuid>) = (row.try_get(3)?, row.try_get(4)?);
    Ok(Compared {
        epoch: row.try_get(0)?,
        head: row.try_get(1)?,
        min_retained: row.try_get(2)?,
        ids: positions.into_iter().zip(ids).collect(),
    })
}

/// What a page of the log is read together with.
pub(crate) struct Beside {
    pub(crate) epoch: Uuid,
    pub(crate) head: i64,
    /// The event at the position behind which the page begins.
    pub(crate) id_at: Option<Uuid>,
    /// What the row says; `None` when somebody else has taken it.
    pub(crate) told: Option<Told>,
}

/// Has a transaction read one state of the database, whatever is committed meanwhile. The first statement of it.
pub(crate) async fn hold_snapshot(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").execute(connection).await?;
    Ok(())
}

/// Reads what a page is read together with.
pub(crate) async fn beside(
    connection: &mut PgConnection,
    lease: Lease<'_>,
    position: i64,
) -> Result<Beside, sqlx::Error> {
    let row = sqlx::query(
        "SELECT i.epoch, seqline.head(), (SELECT e.id FROM seqline.event_log e WHERE e.seq = $4),
             CASE WHEN c.name IS NOT NULL THEN c.paused_at IS NOT NULL END, c.rewind_to
         FROM seqline.log_identity i
         LEFT JOIN seqline.relay_cursors c ON c.name = $1 AND c.holder = $2 AND c.generation = $3",
    )
    .bind(lease.name)
    .bind(lease.holder)
    .bind(lease.generation)
    .bind(position)
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let (paused, rewind_to): (Option<bool>, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
    Ok(Beside {
        epoch: row.try_get(0)?,
        head: row.try_get(1)?,
        id_at: row.try_get(2)?,
        told: paused.map(|paused| Told { paused, rewind_to }),
    })
}

fn decode(row: &PgRow) -> Result<RelayRow, sqlx::Error> {
    Ok(RelayRow {
        cursor: Cursor {
            epoch: row.try_get(0)?,
            position: row.try_get(1)?,
            stream_created: row.try_get(2)?,
            stream_seq: unsigned(row.try_get(3)?),
            position_at_seq: row.try_get(4)?,
            base_stream_seq: unsigned(row.try_get(5)?),
            base_position: row.try_get(6)?,
            rewinds: row.try_get::<i32, _>(7)?.unsigned_abs(),
        },
        generation: row.try_get(8)?,
        paused: row.try_get(9)?,
        rewind_to: row.try_get(10)?,
        stalled: row.try_get(11)?,
    })
}

fn interval(length: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(length.as_micros()).unwrap_or(i64::MAX) }
}

/// Places in a stream are never negative: the table has a check.
fn unsigned(stored: i64) -> u64 {
    stored.unsigned_abs()
}

fn signed(stream_seq: u64) -> Result<i64, sqlx::Error> {
    i64::try_from(stream_seq).map_err(|error| sqlx::Error::Encode(Box::new(error)))
}
