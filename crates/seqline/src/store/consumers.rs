//! Cursors of consumers, their failures and their losses.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

use crate::consumer::Filter;

/// How a round begins, and making cursors: READ COMMITTED and READ WRITE whatever the defaults are, since each statement has
/// to see what was committed when the lock on the cursor was obtained. The timeouts end a round whose process or handler
/// hangs; the last one also when that process does not read what it is sent, which the server takes for work. Only Linux
/// knows it, and others would complain in their log each time.
pub(crate) fn beginning(
    statement_timeout: Duration,
    lock_timeout: Duration,
    idle_in_tx_timeout: Duration,
) -> String {
    // 0 would be no timeout at all, and the most that PostgreSQL takes is an int.
    let ms = |timeout: Duration| timeout.as_millis().clamp(1, i32::MAX as u128);
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
         SET LOCAL statement_timeout = {};
         SET LOCAL lock_timeout = {};
         SET LOCAL idle_in_transaction_session_timeout = {idle};
         SELECT set_config('tcp_user_timeout', '{idle}', true) WHERE version() LIKE '%linux%'",
        ms(statement_timeout),
        ms(lock_timeout),
        idle = ms(idle_in_tx_timeout),
    )
}

/// Makes sure that workers' consumers exist, all or none. A new one stands where `starts` says.
pub(crate) async fn ensure(
    connection: &mut PgConnection,
    names: &[&str],
    starts: &[String],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "SELECT seqline.ensure_consumer(c.name, 'worker', c.start_at)
         FROM unnest($1::text[], $2::text[]) AS c (name, start_at) ORDER BY c.name",
    )
    .bind(names)
    .bind(starts)
    .execute(connection)
    .await
    .map(drop)
}

/// Writes down what a consumer asks for, if that is something else than before.
pub(crate) async fn set_filter(
    connection: &mut PgConnection,
    name: &str,
    filter: &Filter,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.set_consumer_filter($1, $2, $3, $4, $5)")
        .bind(name)
        .bind(filter.types.as_ref())
        .bind(filter.spaces.as_ref())
        .bind(filter.channels.as_ref())
        .bind(filter.resource_kinds.as_ref())
        .execute(connection)
        .await
        .map(drop)
}

/// Where a consumer stands and where the log ends.
pub(crate) struct Position {
    pub(crate) name: String,
    pub(crate) last_seq: i64,
    pub(crate) head: i64,
    /// Whether no round of it is to begin.
    pub(crate) paused: bool,
}

/// The positions of consumers, without any lock. Those without a cursor are left out.
pub(crate) async fn positions(
    connection: &mut PgConnection,
    names: &[&str],
) -> Result<Vec<Position>, sqlx::Error> {
    let rows = sqlx::query("SELECT name, last_seq, head, paused FROM seqline.consumer_positions($1)")
        .bind(names)
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Position {
                name: row.try_get(0)?,
                last_seq: row.try_get(1)?,
                head: row.try_get(2)?,
                paused: row.try_get(3)?,
            })
        })
        .collect()
}

/// A cursor that a transaction wanted to have.
pub(crate) enum Lock {
    Held(HeldCursor),
    /// Another transaction has it.
    Locked,
    Missing,
}

/// A cursor that this transaction has.
pub(crate) struct HeldCursor {
    pub(crate) last_seq: i64,
    /// The transaction, as PostgreSQL names it.
    xid: String,
}

/// Locks the cursor without waiting. `known` is where it stood a moment ago.
pub(crate) async fn lock(connection: &mut PgConnection, name: &str, known: i64) -> Result<Lock, sqlx::Error> {
    let row = sqlx::query("SELECT state, last_seq, xid FROM seqline.lock_consumer($1, $2)")
        .bind(name)
        .bind(known)
        .fetch_one(connection)
        .await?;
    Ok(match row.try_get(0)? {
        "held" => Lock::Held(HeldCursor { last_seq: row.try_get(1)?, xid: row.try_get(2)? }),
        "locked" => Lock::Locked,
        _ => Lock::Missing,
    })
}

/// Whether this is still the transaction that locked the cursor. What comes after another one has nothing to do with it.
pub(crate) async fn is_in_transaction_of(
    connection: &mut PgConnection,
    held: &HeldCursor,
) -> Result<bool, sqlx::Error> {
    let xid: Option<String> =
        sqlx::query_scalar("SELECT pg_current_xact_id_if_assigned()::text").fetch_one(connection).await?;
    Ok(xid.as_ref() == Some(&held.xid))
}

/// What came of moving a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    Advanced,
    TransactionEnded,
    Appended,
    CursorMoved,
}

/// Moves the cursor if everything is as it was when it was locked.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    name: &str,
    held: &HeldCursor,
    new_last_seq: i64,
    may_append: bool,
) -> Result<Advance, sqlx::Error> {
    let row = sqlx::query("SELECT seqline.advance_consumer($1, $2, $3, $4, $5)")
        .bind(name)
        .bind(held.last_seq)
        .bind(new_last_seq)
        .bind(&held.xid)
        .bind(may_append)
        .fetch_one(connection)
        .await?;
    Ok(match row.try_get(0)? {
        "advanced" => Advance::Advanced,
        "transaction_ended" => Advance::TransactionEnded,
        "appended" => Advance::Appended,
        _ => Advance::CursorMoved,
    })
}

pub(crate) async fn record_loss(
    connection: &mut PgConnection,
    name: &str,
    from: i64,
    to: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO seqline.lost_ranges (consumer, lost_from, lost_to) VALUES ($1, $2, $3)")
        .bind(name)
        .bind(from)
        .bind(to)
        .execute(connection)
        .await
        .map(drop)
}

pub(crate) async fn record_failure(
    connection: &mut PgConnection,
    name: &str,
    error_type: &str,
    seq: Option<i64>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO seqline.event_consumer_failures AS f (name, error_type, seq) VALUES ($1, $2, $3)
         ON CONFLICT (name) DO UPDATE
         SET error_type = excluded.error_type, seq = excluded.seq, recovered_at = NULL,
             -- The same one again, seen by another process, began when it began.
             failed_at = CASE WHEN f.recovered_at IS NULL AND f.error_type = excluded.error_type
                                   AND f.seq IS NOT DISTINCT FROM excluded.seq AND f.seq IS NOT NULL
                              THEN f.failed_at ELSE now() END",
    )
    .bind(name)
    .bind(error_type)
    .bind(seq)
    .execute(connection)
    .await
    .map(drop)
}

/// Writes nothing when there is nothing to recover from.
pub(crate) async fn record_recovery(connection: &mut PgConnection, name: &str) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE seqline.event_consumer_failures f SET recovered_at = now() WHERE f.name = $1 AND f.recovered_at IS NULL",
    )
    .bind(name)
    .execute(connection)
    .await
    .map(drop)
}

/// Pauses a consumer or lets it go on, and says whether that changed anything.
pub(crate) async fn set_paused(
    connection: &mut PgConnection,
    name: &str,
    paused: bool,
    why: Option<&str>,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.set_consumer_paused($1, $2, $3)")
        .bind(name)
        .bind(paused)
        .bind(why)
        .fetch_one(connection)
        .await
}

/// Waits until a consumer has passed a number, and says whether it has.
pub(crate) async fn wait_for(
    connection: &mut PgConnection,
    name: &str,
    seq: i64,
    timeout: Duration,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT seqline.wait_for($1, $2, make_interval(secs => $3))")
        .bind(name)
        .bind(seq)
        .bind(timeout.as_secs_f64())
        .fetch_one(connection)
        .await
}

/// A consumer as the tables have it.
pub(crate) struct ConsumerRow {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) last_seq: i64,
    pub(crate) updated_at: OffsetDateTime,
    pub(crate) head_seq: i64,
    pub(crate) lost: i64,
    pub(crate) paused_at: Option<OffsetDateTime>,
    pub(crate) failure: Option<FailureRow>,
}

pub(crate) struct FailureRow {
    pub(crate) error_type: String,
    pub(crate) seq: Option<i64>,
    pub(crate) failed_at: OffsetDateTime,
    pub(crate) recovered_at: Option<OffsetDateTime>,
}

/// All consumers and the head, in one look.
pub(crate) async fn list(connection: &mut PgConnection) -> Result<Vec<ConsumerRow>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT e.name, e.kind, c.last_seq, c.updated_at, (SELECT seqline.head()),
                (SELECT coalesce(sum(l.lost_to - l.lost_from + 1), 0)::bigint FROM seqline.lost_ranges l
                 WHERE l.consumer = e.name),
                f.error_type, f.seq, f.failed_at, f.recovered_at,
                -- An older schema has none.
                (to_jsonb(e) ->> 'paused_at')::timestamptz
         FROM seqline.event_consumers e
         CROSS JOIN LATERAL (
             SELECT k.last_seq, k.updated_at FROM seqline.event_consumer_cursors k
             WHERE k.name = e.name ORDER BY k.last_seq DESC LIMIT 1
         ) c
         LEFT JOIN seqline.event_consumer_failures f ON f.name = e.name
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
        }),
    };
    Ok(ConsumerRow {
        name: row.try_get(0)?,
        kind: row.try_get(1)?,
        last_seq: row.try_get(2)?,
        updated_at: row.try_get(3)?,
        head_seq: row.try_get(4)?,
        lost: row.try_get(5)?,
        paused_at: row.try_get(10)?,
        failure,
    })
}
