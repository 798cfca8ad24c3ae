//! What operators may take of the database over HTTP.

use std::time::Duration;

use sqlx::PgConnection;

/// How long the rest of the transaction waits for a lock, and how long each of its statements takes.
pub(crate) async fn bound(
    transaction: &mut PgConnection,
    lock_timeout: Duration,
    statement_timeout: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)")
        .bind(format!("{}ms", lock_timeout.as_millis()))
        .bind(format!("{}ms", statement_timeout.as_millis()))
        .execute(transaction)
        .await
        .map(drop)
}
