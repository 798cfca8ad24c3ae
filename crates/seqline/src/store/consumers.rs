//! Cursors of consumers, their failures and their losses.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use time::OffsetDateTime;

/// How a round begins: READ COMMITTED whatever the default is, since each statement has to see what was committed when the
/// lock on the cursor was obtained. The timeouts end a round whose process or handler hangs.
pub(crate) fn round_beginning(
    statement_timeout: Duration,
    lock_timeout: Duration,
    idle_in_tx_timeout: Duration,
) -> String {
    // 0 would be no timeout at all, and the most that PostgreSQL takes is an int.
    let ms = |timeout: Duration| timeout.as_millis().clamp(1, i32::MAX as u128);
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED;
         SET LOCAL statement_timeout = {};
         SET LOCAL lock_timeout = {};
         SET LOCAL idle_in_transaction_session_timeout = {}",
        ms(statement_timeout),
        ms(lock_timeout),
        ms(idle_in_tx_timeout),
    )
}

/// How cursors are made: in a snapshot of the whole transaction one that somebody else has just made could not be seen.
pub(crate) const READ_COMMITTED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

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

/// Where a consumer stands and where the log ends, without any lock.
pub(crate) async fn position(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
    sqlx::query_as(
        "SELECT c.last_seq, seqline.head() FROM seqline.event_consumer_cursors c WHERE c.name = $1",
    )
    .bind(name)
    .fetch_optional(connection)
    .await
}

/// A cursor that this transaction holds.
pub(crate) struct HeldCursor {
    pub(crate) last_seq: i64,
    /// The transaction that holds it, as PostgreSQL names it.
    pub(crate) xid: String,
}

/// Locks the cursor. `None` when another transaction holds it, and when there is none.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<HeldCursor>, sqlx::Error> {
    // Locking gives the transaction its id, but perhaps after the list of columns was evaluated: so it is asked for.
    let row = sqlx::query(
        "SELECT c.last_seq, pg_current_xact_id()::text FROM seqline.event_consumer_cursors c WHERE c.name = $1
         FOR UPDATE SKIP LOCKED",
    )
    .bind(name)
    .fetch_optional(connection)
    .await?;
    row.map(|row| Ok(HeldCursor { last_seq: row.try_get(0)?, xid: row.try_get(1)? })).transpose()
}

pub(crate) async fn exists(connection: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM seqline.event_consumer_cursors c WHERE c.name = $1)")
        .bind(name)
        .fetch_one(connection)
        .await
}

/// Moves the cursor if everything is as it was when it was locked: the same transaction, the same number, and nothing
/// appended unless that is allowed. Returns whether it did.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    name: &str,
    held: &HeldCursor,
    new_last_seq: i64,
    may_append: bool,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE seqline.event_consumer_cursors c SET last_seq = $3, updated_at = now()
         WHERE c.name = $1 AND c.last_seq = $2 AND pg_current_xact_id() = $4::xid8
           AND ($5 OR NOT seqline.has_appended())",
    )
    .bind(name)
    .bind(held.last_seq)
    .bind(new_last_seq)
    .bind(&held.xid)
    .bind(may_append)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Why [`advance`] did not: whether this is another transaction, and whether it has appended.
pub(crate) async fn refusal(connection: &mut PgConnection, xid: &str) -> Result<(bool, bool), sqlx::Error> {
    sqlx::query_as("SELECT pg_current_xact_id() <> $1::xid8, seqline.has_appended()")
        .bind(xid)
        .fetch_one(connection)
        .await
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
         SET error_type = excluded.error_type, seq = excluded.seq, failed_at = now(), recovered_at = NULL",
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

/// A consumer as the tables have it.
pub(crate) struct ConsumerRow {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) last_seq: i64,
    pub(crate) updated_at: OffsetDateTime,
    pub(crate) head_seq: i64,
    pub(crate) lost: i64,
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
        "SELECT c.name, c.kind, c.last_seq, c.updated_at, (SELECT seqline.head()),
                (SELECT coalesce(sum(l.lost_to - l.lost_from + 1), 0)::bigint FROM seqline.lost_ranges l
                 WHERE l.consumer = c.name),
                f.error_type, f.seq, f.failed_at, f.recovered_at
         FROM seqline.event_consumer_cursors c
         LEFT JOIN seqline.event_consumer_failures f ON f.name = c.name
         ORDER BY c.name",
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
        failure,
    })
}
