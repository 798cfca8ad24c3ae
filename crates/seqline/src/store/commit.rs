//! What is asked before and after a COMMIT.

use sqlx::{PgConnection, Row};

use super::connection::fetch_alone;

/// What the database says about a transaction that is about to commit.
pub(crate) struct Prepared {
    /// Of which database, and of which life of its server, the flush has to be, when its COMMIT does not wait for one: see `seqline.prepare_commit`.
    pub(crate) flushed_by: Option<String>,
    /// Whether listeners are to be told afterwards.
    pub(crate) wake: bool,
}

/// Fails in a transaction that has failed. `crowd` is whether others of this process commit too.
pub(crate) async fn prepare(connection: &mut PgConnection, crowd: bool) -> Result<Prepared, sqlx::Error> {
    let row = sqlx::query("SELECT flushed_by, wake FROM seqline.prepare_commit($1)")
        .bind(crowd)
        .fetch_one(connection)
        .await?;
    Ok(Prepared { flushed_by: row.try_get(0)?, wake: row.try_get(1)? })
}

/// Does nothing, and fails in a transaction that has failed.
pub(crate) async fn touch(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT 1").execute(connection).await.map(drop)
}

/// A commit of its own that is durable when it returns, and all before it that had the `flushed_by` which it returns. Outside a transaction.
pub(crate) async fn flush(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    fetch_alone(connection, "SELECT seqline.flush()").await?.try_get(0)
}

/// Tells listeners that there may be new events. Outside a transaction. Nobody needs to be told of it again after a crash, so it is not
/// waited for the disk.
pub(crate) async fn wake(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let wake = "SELECT set_config('synchronous_commit', 'off', true), seqline.wake()";
    fetch_alone(connection, wake).await.map(drop)
}
