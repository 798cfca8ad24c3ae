//! What a process looks at all the time, whatever it does.

use sqlx::{PgConnection, Row};

/// What a server says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// The highest number in the log.
    pub(crate) head: i64,
    /// Whether it takes writes: a standby does not.
    pub(crate) writable: bool,
}

pub(crate) async fn look(connection: &mut PgConnection) -> Result<Server, sqlx::Error> {
    let row =
        sqlx::query("SELECT seqline.head(), pg_catalog.current_setting('transaction_read_only') = 'off'")
            .fetch_one(connection)
            .await?;
    Ok(Server { head: row.try_get(0)?, writable: row.try_get(1)? })
}
