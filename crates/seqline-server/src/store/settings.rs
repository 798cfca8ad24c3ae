//! The settings of the database, and who keeps a change of them from being complete.

use sqlx::{PgConnection, Row};

/// The limits that SQL enforces, by name.
pub(crate) async fn limits(connection: &mut PgConnection) -> Result<Vec<(String, i64)>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT l.name, l.value FROM seqline.settings s
         CROSS JOIN LATERAL (VALUES
             ('event_payload_max_bytes', s.event_payload_max_bytes::bigint),
             ('append_batch_max_events', s.append_batch_max_events),
             ('event_log_partition_size', s.event_log_partition_size),
             ('event_log_partitions_ahead', s.event_log_partitions_ahead),
             ('numbering_lock_timeout_ms', s.numbering_lock_timeout_ms),
             ('poll_max_events', s.poll_max_events),
             ('poll_max_scanned', s.poll_max_scanned),
             ('parked_max_events', s.parked_max_events)
         ) l (name, value)",
    )
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A transaction that stages events and has not ended.
pub(crate) struct OpenTransaction {
    /// Its process; none for a prepared one.
    pub(crate) pid: Option<i32>,
    pub(crate) application: Option<String>,
    /// The name of a prepared one.
    pub(crate) prepared: Option<String>,
}

/// What transactions have done that are looked for: they hold a lock on a table because of it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OpenWith {
    /// They have staged events, which keeps staging open.
    Staged,
    /// They have appended, or staged events.
    Appended,
}

/// Those that have done it and have not ended.
pub(crate) async fn open_transactions(
    connection: &mut PgConnection,
    what: OpenWith,
    limit: i64,
) -> Result<Vec<OpenTransaction>, sqlx::Error> {
    let rows = sqlx::query(
        "SELECT DISTINCT l.pid, a.application_name, (
             SELECT p.gid FROM pg_locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
             WHERE x.locktype = 'transactionid' AND x.virtualtransaction = l.virtualtransaction
               AND x.pid IS NULL AND l.pid IS NULL LIMIT 1
         ) AS gid
         FROM pg_locks l
         LEFT JOIN pg_stat_activity a ON a.pid = l.pid
         WHERE l.locktype = 'relation' AND l.granted AND (l.relation = 'seqline.staged_transactions'::regclass OR $2 AND l.relation = 'seqline.pending_transactions'::regclass) AND l.mode = 'RowExclusiveLock'
           AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
         ORDER BY gid, l.pid LIMIT $1",
    )
    .bind(limit)
    .bind(matches!(what, OpenWith::Appended))
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(OpenTransaction {
                pid: row.try_get(0)?,
                application: row.try_get(1)?,
                prepared: row.try_get(2)?,
            })
        })
        .collect()
}
