//! How far the write-ahead log is safe.

use sqlx::{PgConnection, Row};

use super::connection::fetch_alone;

/// The head, and what has to be durable for it to be.
pub(crate) struct Look {
    pub(crate) head: i64,
    /// Where the write-ahead log ended then and how far it was flushed; `None` on a server in recovery, which shows only what
    /// another has flushed.
    pub(crate) written: Option<i64>,
    pub(crate) flushed: Option<i64>,
    /// Whether a commit is durable only when other servers have it too.
    pub(crate) synchronous_standbys: bool,
}

/// One statement: its snapshot is older than the position, so whatever it sees was written before that.
pub(crate) async fn look(connection: &mut PgConnection) -> Result<Look, sqlx::Error> {
    let row = fetch_alone(
        connection,
        "SELECT seqline.head(),
             CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint END,
             CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END,
             NOT pg_is_in_recovery() AND current_setting('synchronous_standby_names') <> ''",
    )
    .await?;
    Ok(Look {
        head: row.try_get(0)?,
        written: row.try_get(1)?,
        flushed: row.try_get(2)?,
        synchronous_standbys: row.try_get(3)?,
    })
}

/// How far the write-ahead log is flushed.
pub(crate) async fn flushed(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    fetch_alone(connection, "SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint").await?.try_get(0)
}

/// A commit of its own that is durable when it returns, and all before it. Outside a transaction. Told apart from those of commits, of which
/// some are nearly always under way.
pub(crate) async fn flush(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    fetch_alone(connection, "SELECT seqline.flush() AS for_a_reader").await.map(drop)
}

/// Whether a [`flush`] of this login waits for a standby. Its client may have given up; the server goes on waiting.
pub(crate) async fn flush_waits(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    fetch_alone(
        connection,
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE usename = current_user AND datname = current_database()
             AND wait_event = 'SyncRep' AND query = 'SELECT seqline.flush() AS for_a_reader')",
    )
    .await?
    .try_get(0)
}
