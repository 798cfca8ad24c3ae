//! What is asked of a connection itself.

use sqlx::PgConnection;
use time::OffsetDateTime;

/// Whether the server takes writes: it is no standby, and its transactions are not read-only unless they say otherwise. Outside a
/// transaction.
pub(crate) async fn takes_writes(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_catalog.current_setting('transaction_read_only') = 'off'")
        .fetch_one(connection)
        .await
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
    sqlx::query_scalar("SELECT pg_catalog.clock_timestamp()").fetch_one(connection).await
}
