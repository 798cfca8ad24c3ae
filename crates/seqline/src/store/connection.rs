//! What is asked of a connection itself.

use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};
use time::OffsetDateTime;

/// How a transaction begins on a connection through a pooler: whoever had the session before may have left statements there, of the same names
/// that this one will give to its own.
pub(crate) const BEGIN_POOLED: &str = "BEGIN; DEALLOCATE ALL";

/// The same behind a beginning of one's own.
pub(crate) fn begin_pooled(beginning: &str) -> String {
    format!("{beginning}; DEALLOCATE ALL")
}

/// The row of a statement without arguments, outside a transaction. On a connection that keeps no statements it is not prepared: behind a
/// pooler another session would execute it.
pub(crate) async fn fetch_alone(
    connection: &mut PgConnection,
    sql: &'static str,
) -> Result<PgRow, sqlx::Error> {
    if connection.cached_statements_size() == 0 {
        sqlx::raw_sql(sql).fetch_one(connection).await
    } else {
        sqlx::query(sql).fetch_one(connection).await
    }
}

/// Whether the server takes writes: it is no standby.
pub(crate) async fn takes_writes(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    fetch_alone(connection, "SELECT NOT pg_catalog.pg_is_in_recovery()").await?.try_get(0)
}

/// Ends the server's process of this connection, also in a transaction that has failed.
pub(crate) async fn end_session(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("ROLLBACK; SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())")
        .execute(connection)
        .await?;
    Ok(())
}

/// What time it is on the server.
pub(crate) async fn now(connection: &mut PgConnection) -> Result<OffsetDateTime, sqlx::Error> {
    fetch_alone(connection, "SELECT pg_catalog.clock_timestamp()").await?.try_get(0)
}
