//! The transaction in which events are handled: what holds it, claims them, and keeps the effect of one apart from the next.

use std::time::Duration;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// What a transaction may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) statement: Duration,
    pub(crate) idle: Duration,
    pub(crate) client_check: Duration,
}

/// Takes events in hand until the end of the transaction, those that nobody else has, without waiting. Sets what the transaction may take, so
/// that it ends also when its process hangs, and soon after that is gone. Only some systems can tell that while a statement runs. Of each event, in
/// the order of `event_ids`, whether nobody else has it in hand.
pub(crate) async fn hold(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
    bounds: Bounds,
) -> Result<Vec<bool>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT ARRAY(
                 SELECT pg_try_advisory_xact_lock(hashtextextended($1 || ':' || asked.id::text, 0))
                 FROM unnest($2::uuid[]) WITH ORDINALITY AS asked (id, place) ORDER BY asked.place
             ),
             set_config('statement_timeout', $3, true), set_config('idle_in_transaction_session_timeout', $4, true),
             CASE WHEN version() LIKE '%linux%' THEN set_config('client_connection_check_interval', $5, true) END",
    )
    .bind(consumer)
    .bind(event_ids)
    .bind(ms(bounds.statement))
    .bind(ms(bounds.idle))
    .bind(ms(bounds.client_check))
    .fetch_one(connection)
    .await?;
    row.try_get(0)
}

/// 0 would be no bound at all, and the most that PostgreSQL takes is an int.
fn ms(bound: Duration) -> String {
    bound.as_millis().clamp(1, i32::MAX as u128).to_string()
}

/// How long the transaction waits for a lock from here on.
pub(crate) async fn bound_locks(connection: &mut PgConnection, wait: Duration) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT set_config('lock_timeout', $1, true)")
        .bind(ms(wait))
        .execute(connection)
        .await
        .map(drop)
}

/// Takes an event in hand when whoever has it is done.
pub(crate) async fn hold_one(
    connection: &mut PgConnection,
    consumer: &str,
    event_id: Uuid,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1 || ':' || $2::uuid::text, 0))")
        .bind(consumer)
        .bind(event_id)
        .execute(connection)
        .await
        .map(drop)
}

/// What was found out about an event that was to be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    New,
    Duplicate,
    /// It waits for its next attempt, or was given up.
    Settled,
}

/// What a claim came to.
pub(crate) struct Claims {
    pub(crate) found: Vec<(Uuid, Found)>,
    /// The transaction.
    pub(crate) transaction: String,
}

/// Claims events. Those that failed before are left alone unless `again`: they are tried from the log.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
    again: bool,
) -> Result<Claims, sqlx::Error> {
    let rows = sqlx::query(
        "WITH settled AS (
             SELECT r.event_id FROM seqline.stream_retries r WHERE NOT $3 AND r.consumer = $1 AND r.event_id = ANY ($2)
             UNION
             SELECT d.event_id FROM seqline.dead_letters d WHERE NOT $3 AND d.consumer = $1 AND d.event_id = ANY ($2)
         ), claimed AS (
             INSERT INTO seqline.consumed_events (consumer, event_id)
             SELECT $1, asked.id FROM unnest($2::uuid[]) AS asked (id)
             WHERE NOT EXISTS (SELECT FROM settled s WHERE s.event_id = asked.id) ORDER BY asked.id
             ON CONFLICT DO NOTHING RETURNING event_id
         )
         SELECT asked.id, EXISTS (SELECT FROM claimed c WHERE c.event_id = asked.id),
             EXISTS (SELECT FROM settled s WHERE s.event_id = asked.id), pg_current_xact_id()::xid::text
         FROM unnest($2::uuid[]) AS asked (id)",
    )
    .bind(consumer)
    .bind(event_ids)
    .bind(again)
    .fetch_all(connection)
    .await?;
    let mut claims = Claims { found: Vec::with_capacity(rows.len()), transaction: String::new() };
    for row in rows {
        let found = match (row.try_get(1)?, row.try_get(2)?) {
            (true, _) => Found::New,
            (false, true) => Found::Settled,
            (false, false) => Found::Duplicate,
        };
        claims.found.push((row.try_get(0)?, found));
        claims.transaction = row.try_get(3)?;
    }
    Ok(claims)
}

/// Takes claims of this transaction back.
pub(crate) async fn unclaim(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM seqline.consumed_events c WHERE c.consumer = $1 AND c.event_id = ANY ($2)")
        .bind(consumer)
        .bind(event_ids)
        .execute(connection)
        .await
        .map(drop)
}

/// Takes claims of a transaction back that somebody else has ended, if it was committed.
pub(crate) async fn unclaim_of(
    connection: &mut PgConnection,
    consumer: &str,
    event_ids: &[Uuid],
    transaction: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "DELETE FROM seqline.consumed_events c WHERE c.consumer = $1 AND c.event_id = ANY ($2) AND c.xmin::text = $3",
    )
    .bind(consumer)
    .bind(event_ids)
    .bind(transaction)
    .execute(connection)
    .await
    .map(drop)
}

pub(crate) async fn is_claimed(
    connection: &mut PgConnection,
    consumer: &str,
    event_id: Uuid,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM seqline.consumed_events c WHERE c.consumer = $1 AND c.event_id = $2)",
    )
    .bind(consumer)
    .bind(event_id)
    .fetch_one(connection)
    .await
}

/// Makes the commit of this transaction wait for the disk although nothing was written: with it, what was seen is there too.
pub(crate) async fn wait_for_disk(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_logical_emit_message(true, 'seqline', '')").execute(connection).await.map(drop)
}

/// Where the effect of an event begins.
pub(crate) async fn begin_effect(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("SAVEPOINT seqline_effect").execute(connection).await.map(drop)
}

/// The effect of an event is whole, and that of the next begins. Fails in a transaction that has failed, and in one that is not the one it was.
pub(crate) async fn next_effect(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("RELEASE SAVEPOINT seqline_effect; SAVEPOINT seqline_effect")
        .execute(connection)
        .await
        .map(drop)
}

/// The effect of the last event is whole. Fails as [`next_effect`] does.
pub(crate) async fn end_effect(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("RELEASE SAVEPOINT seqline_effect").execute(connection).await.map(drop)
}

/// Nothing of an effect is left, and the next may begin.
pub(crate) async fn undo_effect(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK TO SAVEPOINT seqline_effect").execute(connection).await.map(drop)
}
