//! What a process looks at all the time, whatever it does.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

/// What a server says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// The highest number in the log.
    pub(crate) head: i64,
    /// Whether it takes writes: a standby does not.
    pub(crate) writable: bool,
}

pub(crate) async fn look(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    // Not prepared: behind a pooler in transaction mode another session would execute it.
    let sql = "SELECT seqline.head(), pg_catalog.current_setting('transaction_read_only') = 'off'";
    let row = sqlx::raw_sql(sql).fetch_one(connection).await?;
    Ok(Server { head: row.try_get(0)?, writable: row.try_get(1)? })
}

/// Whoever had the session before may have left statements there, of the names that this one will use.
pub(crate) async fn begin_to_read_pooled(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("BEGIN READ ONLY; DEALLOCATE ALL").execute(connection).await.map(drop)
}

pub(crate) async fn commit(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("COMMIT").execute(connection).await.map(drop)
}

/// For the whole session.
pub(crate) async fn bound_statements(
    connection: &mut PgConnection,
    limit: Duration,
) -> Result<(), sqlx::Error> {
    let sql = format!("SET statement_timeout = {}", limit.as_millis());
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(drop)
}
