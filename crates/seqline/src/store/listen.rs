//! Statements of the listening connection.

use sqlx::PgConnection;
use sqlx::postgres::PgListener;

/// The channel on which a commit announces its last number.
const CHANNEL: &str = "event_log";

/// Listens for commits, and on a channel of one's own.
pub(crate) async fn listen(listener: &mut PgListener, probe: &str) -> Result<(), sqlx::Error> {
    listener.listen_all([CHANNEL, probe]).await
}

/// Sends an empty message to a channel.
pub(crate) async fn call(connection: &mut PgConnection, channel: &str) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_notify($1, '')").bind(channel).execute(connection).await.map(drop)
}

pub(crate) async fn ping(listener: &mut PgListener) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT 1").execute(listener).await.map(drop)
}
