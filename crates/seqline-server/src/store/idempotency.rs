//! Keys of requests that can be repeated.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

/// Requests with keys, all lists in the same order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keys<'a> {
    pub(crate) principals: Vec<&'a str>,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) fingerprints: Vec<&'a [u8]>,
}

/// A request that was answered before.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) principal: String,
    pub(crate) key: String,
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) event_ids: Vec<Uuid>,
}

/// Takes those keys that nobody has, or that were taken longer ago than `retention`, and returns which those are. Waits for a transaction
/// that takes one of them, and so has to name them in one order: all do, that of the index. No key may be named twice.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    keys: &Keys<'_>,
    retention: Duration,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    let rows = sqlx::query(
        "INSERT INTO seqline.idempotency_keys AS k (principal_id, key, fingerprint)
         SELECT principal_id, key, fingerprint
         FROM unnest($1::text[], $2::text[], $3::bytea[]) u (principal_id, key, fingerprint)
         ORDER BY principal_id COLLATE \"C\", key COLLATE \"C\"
         ON CONFLICT (principal_id, key) DO UPDATE
         SET fingerprint = EXCLUDED.fingerprint, event_ids = '{}', created_at = now()
         WHERE k.created_at < now() - $4::interval
         RETURNING principal_id, key",
    )
    .bind(&keys.principals)
    .bind(&keys.keys)
    .bind(&keys.fingerprints)
    .bind(interval(retention))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// What is known of these keys.
pub(crate) async fn known(connection: &mut PgConnection, keys: &Keys<'_>) -> Result<Vec<Known>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT k.principal_id, k.key, k.fingerprint, k.event_ids
         FROM unnest($1::text[], $2::text[]) u (principal_id, key)
         JOIN seqline.idempotency_keys k USING (principal_id, key)",
    )
    .bind(&keys.principals)
    .bind(&keys.keys)
    .fetch_all(connection)
    .await?;
    let known = |row: &sqlx::postgres::PgRow| {
        Ok(Known {
            principal: row.try_get(0)?,
            key: row.try_get(1)?,
            fingerprint: row.try_get(2)?,
            event_ids: row.try_get(3)?,
        })
    };
    rows.iter().map(known).collect()
}

/// Keeps what was appended for keys that this transaction has taken: for each of them the ids from its first to its last, which count from 1.
pub(crate) async fn keep(
    connection: &mut PgConnection,
    keys: &Keys<'_>,
    firsts: &[i32],
    lasts: &[i32],
    ids: &[Uuid],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "UPDATE seqline.idempotency_keys k SET event_ids = ($5::uuid[])[u.first : u.last]
         FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) u (principal_id, key, first, last)
         WHERE k.principal_id = u.principal_id AND k.key = u.key",
    )
    .bind(&keys.principals)
    .bind(&keys.keys)
    .bind(firsts)
    .bind(lasts)
    .bind(ids)
    .execute(connection)
    .await
    .map(drop)
}

/// Forgets at most `limit` keys that were taken longer ago than `retention`, and returns how many. Those that somebody is just taking anew
/// are passed over.
pub(crate) async fn prune(
    connection: &mut PgConnection,
    retention: Duration,
    limit: i64,
) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(
        "DELETE FROM seqline.idempotency_keys WHERE (principal_id, key) IN (
             SELECT principal_id, key FROM seqline.idempotency_keys
             WHERE created_at < now() - $1::interval
             ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
    )
    .bind(interval(retention))
    .bind(limit)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}
