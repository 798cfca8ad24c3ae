//! What a process looks at all the time, whatever it does.

use sqlx::{PgConnection, Row};

use crate::ops::readiness::Seen;

pub(crate) async fn look(connection: &mut PgConnection) -> Result<Seen, sqlx::Error> {
    let row = sqlx::query(
        "SELECT seqline.head(),
                NOT pg_catalog.pg_is_in_recovery() AND pg_catalog.current_setting('transaction_read_only') = 'off'",
    )
    .fetch_one(connection)
    .await?;
    Ok(Seen { head: row.try_get(0)?, writable: row.try_get(1)?, same_history: true })
}
