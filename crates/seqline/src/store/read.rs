//! Reading the log.

use serde_json::value::RawValue;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::consumers::HeldCursor;
use crate::consumer::Filter;
use crate::event::{StoredEvent, StoredPayload};

pub(crate) async fn head(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.head()").fetch_one(connection).await
}

pub(crate) async fn min_retained(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.min_retained()").fetch_one(connection).await
}

pub(crate) async fn seq_of(connection: &mut PgConnection, id: Uuid) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.seq_of($1)").bind(id).fetch_one(connection).await
}

/// The first number above `after`, however far away. Opens every partition.
pub(crate) async fn first_after(
    connection: &mut PgConnection,
    after: i64,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT seq FROM seqline.event_log WHERE seq > $1 ORDER BY seq LIMIT 1")
        .bind(after)
        .persistent(false)
        .fetch_optional(connection)
        .await
}

/// When the event with this number was appended, for ages.
pub(crate) async fn occurred_at(
    connection: &mut PgConnection,
    seq: i64,
) -> Result<Option<OffsetDateTime>, sqlx::Error> {
    sqlx::query_scalar("SELECT occurred_at FROM seqline.event_log WHERE seq = $1")
        .bind(seq)
        .persistent(false)
        .fetch_optional(connection)
        .await
}

/// Up to `limit` events with numbers above `after`, in order.
///
/// The upper bound lets planning leave out all partitions but one or two, and not be persistent keeps PostgreSQL from
/// making a generic plan, which would lock every partition there is. It relies on the log being dense from the position
/// on, which the caller checks.
pub(crate) async fn events_after(
    connection: &mut PgConnection,
    after: i64,
    limit: i64,
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM seqline.event_log WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"
    )))
    .bind(after)
    .bind(after.saturating_add(limit))
    .bind(limit)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    rows.iter().map(decode).collect()
}

/// The same, and which event is at the position, if it is still in the log and anything comes after it: all of one state of the log.
pub(crate) async fn events_behind(
    connection: &mut PgConnection,
    after: i64,
    limit: i64,
) -> Result<(Option<Uuid>, Vec<StoredEvent>), sqlx::Error> {
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT {COLUMNS}, (SELECT e.id FROM seqline.event_log e WHERE e.seq = $1)
         FROM seqline.event_log WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"
    )))
    .bind(after)
    .bind(after.saturating_add(limit))
    .bind(limit)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    let at = rows.first().map(|row| row.try_get(22)).transpose()?.flatten();
    Ok((at, rows.iter().map(decode).collect::<Result<_, _>>()?))
}

/// Which event has this number.
pub(crate) async fn id_at(connection: &mut PgConnection, seq: i64) -> Result<Option<Uuid>, sqlx::Error> {
    sqlx::query_scalar("SELECT id FROM seqline.event_log WHERE seq = $1")
        .bind(seq)
        .persistent(false)
        .fetch_optional(connection)
        .await
}

/// What a look at the events after a position has found.
pub(crate) struct Looked {
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) count: i64,
    /// The numbers of those that match, in order.
    pub(crate) matching: Vec<i64>,
}

/// Looks at up to `scan` events with numbers above `after`, no further than to the one that is the `limit`th that is in the lane and
/// matches; `None` when there is none. As with [`events_after`] the bound relies on the log being dense.
///
/// One statement, so that what was looked at and what was found are the same state of the log.
pub(crate) async fn look_after(
    connection: &mut PgConnection,
    after: i64,
    scan: i64,
    filter: &Filter,
    held: &HeldCursor,
    limit: i64,
) -> Result<Option<Looked>, sqlx::Error> {
    let (whole, prefixes) = types_of(filter);
    let row = sqlx::query(
        "SELECT first_seq, last_seq, events, matching
         FROM seqline.look_at_log($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
    )
    .bind(after)
    .bind(scan)
    .bind(limit)
    .bind(whole)
    .bind(prefixes)
    .bind(filter.spaces.as_ref())
    .bind(filter.channels.as_ref())
    .bind(filter.resource_kinds.as_ref())
    .bind(held.lane as i32)
    .bind(held.lanes as i32)
    .bind(&held.lane_key)
    .fetch_one(connection)
    .await?;
    let ends: (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(match ends {
        (Some(first), Some(last)) => {
            Some(Looked { first, last, count: row.try_get(2)?, matching: row.try_get(3)? })
        }
        _ => None,
    })
}

/// The whole types that a filter asks for, and the beginnings of types.
fn types_of(filter: &Filter) -> (Option<Vec<&str>>, Option<Vec<&str>>) {
    let types = filter.types.as_ref();
    let whole = types
        .map(|types| types.iter().map(String::as_str).filter(|pattern| !pattern.ends_with('*')).collect());
    let prefixes = types.map(|types| types.iter().filter_map(|pattern| pattern.strip_suffix('*')).collect());
    (whole, prefixes)
}

/// What somebody may see of the events after a position, and what was looked at for it.
pub(crate) struct Seen {
    /// The first number, the last one and how many; `None` when nothing is there.
    pub(crate) looked: Option<(i64, i64, i64)>,
    pub(crate) events: Vec<StoredEvent>,
}

/// Looks at up to `scan` events with numbers above `after`, no further than to the one that is the `limit`th that matches and that the
/// principal may see. As with [`events_after`] the bound relies on the log being dense.
///
/// One statement: the events, what was looked at and the permissions are of the same state. The predicate is joined and not asked in a
/// subquery of its own, so that planning can choose between looking grants up and hashing them.
pub(crate) async fn visible_after(
    connection: &mut PgConnection,
    principal: &str,
    after: i64,
    filter: &Filter,
    limit: i64,
    scan: i64,
) -> Result<Seen, sqlx::Error> {
    let (whole, prefixes) = types_of(filter);
    let rows = sqlx::query(AssertSqlSafe(format!(
        "WITH found AS MATERIALIZED (
             SELECT {COLUMNS} FROM seqline.event_log e
             CROSS JOIN LATERAL seqline.visible_to($4, e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id)
             WHERE e.seq > $1 AND e.seq <= $2
               AND seqline.matches_filter($5, $6, $7, $8, $9, e.type, e.space_id, e.channel_id, e.resource_kind)
             ORDER BY e.seq LIMIT $3
         ), looked AS (
             SELECT min(e.seq), max(e.seq), count(*) FROM seqline.event_log e
             WHERE e.seq > $1 AND e.seq <= $2
               AND e.seq <= (SELECT CASE WHEN count(*) = $3 THEN max(f.seq) ELSE $2 END FROM found f)
         )
         SELECT f.*, l.* FROM looked l LEFT JOIN found f ON true ORDER BY f.seq"
    )))
    .bind(after)
    .bind(after.saturating_add(scan))
    .bind(limit)
    .bind(principal)
    .bind(whole)
    .bind(prefixes)
    .bind(filter.spaces.as_ref())
    .bind(filter.channels.as_ref())
    .bind(filter.resource_kinds.as_ref())
    .persistent(false)
    .fetch_all(connection)
    .await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let ends: (Option<i64>, Option<i64>, i64) = (first.try_get(22)?, first.try_get(23)?, first.try_get(24)?);
    let looked = match ends {
        (Some(first), Some(last), count) => Some((first, last, count)),
        _ => None,
    };
    Ok(Seen { looked, events: decode_found(&rows)? })
}

/// The ends of the log, and what somebody may see of a resource's history.
pub(crate) struct History {
    pub(crate) head: i64,
    pub(crate) min_retained: i64,
    /// All events of the resource up to this number were looked at.
    pub(crate) position: i64,
    pub(crate) events: Vec<StoredEvent>,
}

/// Up to `limit` events of a resource that the principal may see, with numbers above `after`, of up to `reach` of it. One statement.
pub(crate) async fn visible_history(
    connection: &mut PgConnection,
    principal: &str,
    resource_kind: &str,
    resource_id: &str,
    after: i64,
    limit: i64,
    reach: i64,
) -> Result<History, sqlx::Error> {
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT {COLUMNS}, h.head, h.min_retained, h.position
         FROM seqline.visible_history($1, $2, $3, $4, $5, $6) h LEFT JOIN LATERAL unnest(h.events) e ON true ORDER BY e.seq"
    )))
    .bind(principal)
    .bind(resource_kind)
    .bind(resource_id)
    .bind(after)
    .bind(limit)
    .bind(reach)
    .fetch_all(connection)
    .await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(History {
        head: first.try_get(22)?,
        min_retained: first.try_get(23)?,
        position: first.try_get(24)?,
        events: decode_found(&rows)?,
    })
}

/// The event with this number, if it is this one and the principal may see it.
pub(crate) async fn visible_event(
    connection: &mut PgConnection,
    principal: &str,
    seq: i64,
    id: Uuid,
) -> Result<Option<StoredEvent>, sqlx::Error> {
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM seqline.event_log e
         CROSS JOIN LATERAL seqline.visible_to($1, e.audience_principal_id, e.receive_action, e.space_id, e.channel_id, e.thread_id)
         WHERE e.seq = $2 AND e.id = $3"
    )))
    .bind(principal)
    .bind(seq)
    .bind(id)
    .persistent(false)
    .fetch_optional(connection)
    .await?;
    row.map(|row| decode(&row)).transpose()
}

/// The events of rows of which one is there without an event when there are none.
fn decode_found(rows: &[PgRow]) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let is_event = |row: &PgRow| row.try_get::<Option<i64>, _>(0).map(|seq| seq.is_some());
    match rows.first().map(is_event).transpose()? {
        Some(true) => rows.iter().map(decode).collect(),
        _ => Ok(Vec::new()),
    }
}

/// The events with these numbers, in order.
pub(crate) async fn events(
    connection: &mut PgConnection,
    seqs: &[i64],
) -> Result<Vec<StoredEvent>, sqlx::Error> {
    let Some((first, last)) = seqs.first().zip(seqs.last()) else { return Ok(Vec::new()) };
    let rows = sqlx::query(AssertSqlSafe(format!(
        "SELECT {COLUMNS} FROM seqline.event_log WHERE seq >= $1 AND seq <= $2 AND seq = ANY ($3) ORDER BY seq"
    )))
    .bind(first)
    .bind(last)
    .bind(seqs)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    rows.iter().map(decode).collect()
}

/// The number before the first that is missing in a piece of the log.
pub(crate) async fn before_hole(
    connection: &mut PgConnection,
    first: i64,
    last: i64,
) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT seq FROM (SELECT seq, lead(seq) OVER (ORDER BY seq) AS next FROM seqline.event_log
                          WHERE seq >= $1 AND seq <= $2) AS e
         WHERE next - seq <> 1 ORDER BY seq LIMIT 1",
    )
    .bind(first)
    .bind(last)
    .persistent(false)
    .fetch_optional(connection)
    .await
}

/// The columns of an event, as [`decode`] takes them.
const COLUMNS: &str = "seq, id, type, schema_version, occurred_at, permission_version, actor_kind, actor_principal_id,
    space_id, channel_id, thread_id, resource_kind, resource_id, resource_version, audience_principal_id, receive_action,
    payload, truncated, client_msg_id, correlation_id, trace_context, redacted_at IS NOT NULL";

fn decode(row: &PgRow) -> Result<StoredEvent, sqlx::Error> {
    let payload: Json<Box<RawValue>> = row.try_get(16)?;
    Ok(StoredEvent {
        seq: row.try_get(0)?,
        id: row.try_get(1)?,
        event_type: row.try_get(2)?,
        schema_version: row.try_get(3)?,
        occurred_at: row.try_get(4)?,
        permission_version: row.try_get(5)?,
        actor_kind: row.try_get(6)?,
        actor_principal_id: row.try_get(7)?,
        space_id: row.try_get(8)?,
        channel_id: row.try_get(9)?,
        thread_id: row.try_get(10)?,
        resource_kind: row.try_get(11)?,
        resource_id: row.try_get(12)?,
        resource_version: row.try_get(13)?,
        audience_principal_id: row.try_get(14)?,
        receive_action: row.try_get(15)?,
        payload: StoredPayload(payload.0),
        truncated: row.try_get(17)?,
        client_msg_id: row.try_get(18)?,
        correlation_id: row.try_get(19)?,
        trace_context: row.try_get(20)?,
        redacted: row.try_get(21)?,
    })
}
