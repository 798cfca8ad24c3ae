//! Statements of the listening connection.

use sqlx::postgres::PgListener;

/// The channel on which a commit announces its last number.
const CHANNEL: &str = "event_log";

pub(crate) async fn listen(listener: &mut PgListener) -> Result<(), sqlx::Error> {
    listener.listen(CHANNEL).await
}

pub(crate) async fn ping(listener: &mut PgListener) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT 1").execute(listener).await.map(drop)
}
