//! For how long the ledger of consumers of the stream has to remember.

use sqlx::PgConnection;

/// What the age of the ledger depends on.
#[derive(Debug, Clone, Copy, sqlx::FromRow)]
pub(crate) struct LedgerFacts {
    /// Whether there is any consumer of the stream.
    pub(crate) is_used: bool,
    /// How long ago the transaction of the oldest event began that the log holds, in seconds.
    pub(crate) oldest_age: Option<f64>,
}

pub(crate) async fn facts(connection: &mut PgConnection) -> Result<LedgerFacts, sqlx::Error> {
    sqlx::query_as(
        "SELECT EXISTS (SELECT FROM seqline.stream_consumers) AS is_used,
                (SELECT extract(epoch FROM clock_timestamp() - e.occurred_at)::double precision
                 FROM seqline.event_log e WHERE e.seq = (SELECT seqline.min_retained())) AS oldest_age",
    )
    .fetch_one(connection)
    .await
}
