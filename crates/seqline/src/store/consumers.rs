//! Rounds of consumers: cursors, failures and losses.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

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

/// A consumer that is to exist.
pub(crate) struct NewConsumer<'a> {
    pub(crate) name: &'a str,
    pub(crate) start_at: String,
    pub(crate) lanes: u32,
    pub(crate) lane_key: &'static str,
}

/// How a consumer is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) name: String,
    pub(crate) lanes: u32,
    pub(crate) lane_key: String,
}

/// Makes sure that workers' consumers exist, all or none. A new one stands where it shall start.
pub(crate) async fn ensure(
    connection: &mut PgConnection,
    consumers: &[NewConsumer<'_>],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "SELECT seqline.ensure_consumer(n.name, 'worker', n.start_at, n.lanes, n.lane_key)
         FROM unnest($1::text[], $2::text[], $3::int[], $4::text[]) AS n (name, start_at, lanes, lane_key) ORDER BY n.name",
    )
    .bind(consumers.iter().map(|consumer| consumer.name).collect::<Vec<_>>())
    .bind(consumers.iter().map(|consumer| consumer.start_at.as_str()).collect::<Vec<_>>())
    .bind(consumers.iter().map(|consumer| consumer.lanes.min(i32::MAX as u32) as i32).collect::<Vec<_>>())
    .bind(consumers.iter().map(|consumer| consumer.lane_key).collect::<Vec<_>>())
    .execute(connection)
    .await
    .map(drop)
}

/// How consumers are divided.
pub(crate) async fn divisions(
    connection: &mut PgConnection,
    names: &[&str],
) -> Result<Vec<Division>, sqlx::Error> {
    let rows = sqlx::query("SELECT name, lanes, lane_key FROM seqline.event_consumers WHERE name = ANY ($1)")
        .bind(names)
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| Ok(Division { name: row.try_get(0)?, lanes: lanes(row, 1)?, lane_key: row.try_get(2)? }))
        .collect()
}

/// A number of lanes, or of one.
fn lanes(row: &PgRow, column: usize) -> Result<u32, sqlx::Error> {
    Ok(row.try_get::<i32, _>(column)?.unsigned_abs())
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

/// Whether rounds of a consumer may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Standing {
    #[default]
    Active,
    Paused,
    Retired,
}

/// Where a lane of a consumer stands and how far it has to go.
pub(crate) struct Position {
    pub(crate) name: String,
    pub(crate) lane: u32,
    /// How many the consumer has.
    pub(crate) lanes: u32,
    pub(crate) last_seq: i64,
    /// The head, or less for one that shall not go so far.
    pub(crate) goal: i64,
    pub(crate) head: i64,
    pub(crate) standing: Standing,
    /// Whether a parked event is to be tried.
    pub(crate) due: bool,
    /// Whether the server is a standby, so that no round can be had.
    pub(crate) read_only_server: bool,
}

impl Position {
    /// Whether a round would find nothing.
    pub(crate) fn is_done(&self) -> bool {
        self.last_seq >= self.goal && self.last_seq <= self.head && !self.due
    }
}

/// The positions of consumers, without any lock. Those without a cursor are left out.
pub(crate) async fn positions(
    connection: &mut PgConnection,
    names: &[&str],
) -> Result<Vec<Position>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT name, lane, lanes, last_seq, goal, head, state, due,
             pg_catalog.pg_is_in_recovery()
         FROM seqline.consumer_positions($1)",
    )
    .bind(names)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Position {
                name: row.try_get(0)?,
                lane: lanes(row, 1)?,
                lanes: lanes(row, 2)?,
                last_seq: row.try_get(3)?,
                goal: row.try_get(4)?,
                head: row.try_get(5)?,
                standing: match row.try_get(6)? {
                    "paused" => Standing::Paused,
                    "retired" => Standing::Retired,
                    _ => Standing::Active,
                },
                due: row.try_get(7)?,
                read_only_server: row.try_get(8)?,
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

/// A cursor that this transaction has, and what does not change as long as it has it.
pub(crate) struct HeldCursor {
    pub(crate) lane: u32,
    pub(crate) last_seq: i64,
    /// After which number reading begins: further than the cursor when what follows is to be left out.
    pub(crate) from: i64,
    /// The last number that the round may pass.
    pub(crate) stop: i64,
    pub(crate) lanes: u32,
    pub(crate) lane_key: String,
    /// Whether the consumer has parked events.
    pub(crate) has_parked: bool,
    /// A parked event that is to be tried.
    pub(crate) due: Option<i64>,
    /// The transaction, as PostgreSQL names it.
    pub(crate) xid: String,
}

/// Locks the cursor of a lane without waiting. `known` is where it stood a moment ago.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    name: &str,
    lane: u32,
    known: i64,
) -> Result<Lock, sqlx::Error> {
    let row = sqlx::query(
        "SELECT state, last_seq, from_seq, stop_seq, lanes, lane_key, has_parked, due_seq, xid
         FROM seqline.lock_consumer($1, $2, $3)",
    )
    .bind(name)
    .bind(lane as i32)
    .bind(known)
    .fetch_one(connection)
    .await?;
    Ok(match row.try_get(0)? {
        "held" => Lock::Held(HeldCursor {
            lane,
            last_seq: row.try_get(1)?,
            from: row.try_get(2)?,
            stop: row.try_get::<Option<i64>, _>(3)?.unwrap_or(i64::MAX),
            lanes: lanes(&row, 4)?,
            lane_key: row.try_get(5)?,
            has_parked: row.try_get(6)?,
            due: row.try_get(7)?,
            xid: row.try_get(8)?,
        }),
        "locked" => Lock::Locked,
        _ => Lock::Missing,
    })
}

/// Keeps the cursor locked whatever fails from here on: PostgreSQL gives up at once what a transaction has locked when a statement of it
/// fails, except what it had locked before its last savepoint.
pub(crate) async fn keep_lock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("SAVEPOINT seqline_attempt").execute(connection).await.map(drop)
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
    let row = sqlx::query("SELECT seqline.advance_consumer($1, $2, $3, $4, $5, $6)")
        .bind(name)
        .bind(held.lane as i32)
        .bind(held.last_seq)
        .bind(new_last_seq)
        .bind(&held.xid)
        .bind(may_append)
        .fetch_one(connection)
        .await?;
    Ok(advance_of(row.try_get(0)?))
}

/// What a function that ends a round says.
pub(super) fn advance_of(said: &str) -> Advance {
    match said {
        "advanced" => Advance::Advanced,
        "transaction_ended" => Advance::TransactionEnded,
        "appended" => Advance::Appended,
        _ => Advance::CursorMoved,
    }
}

pub(crate) async fn record_loss(
    connection: &mut PgConnection,
    name: &str,
    from: i64,
    to: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT seqline.record_loss($1, $2, $3)")
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
    lane: u32,
    error_type: &str,
    seq: Option<i64>,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO seqline.event_consumer_failures AS f (name, lane, error_type, seq) VALUES ($1, $2, $3, $4)
         ON CONFLICT (name, lane) DO UPDATE
         SET error_type = excluded.error_type, seq = excluded.seq, recovered_at = NULL,
             -- The same one again, seen by another process, began when it began.
             failed_at = CASE WHEN f.recovered_at IS NULL AND f.error_type = excluded.error_type
                                   AND f.seq IS NOT DISTINCT FROM excluded.seq AND f.seq IS NOT NULL
                              THEN f.failed_at ELSE now() END",
    )
    .bind(name)
    .bind(lane as i32)
    .bind(error_type)
    .bind(seq)
    .execute(connection)
    .await
    .map(drop)
}

/// Writes nothing when there is nothing to recover from.
pub(crate) async fn record_recovery(
    connection: &mut PgConnection,
    name: &str,
    lane: u32,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE seqline.event_consumer_failures f SET recovered_at = now()
         WHERE f.name = $1 AND f.lane = $2 AND f.recovered_at IS NULL",
    )
    .bind(name)
    .bind(lane as i32)
    .execute(connection)
    .await
    .map(drop)
}
