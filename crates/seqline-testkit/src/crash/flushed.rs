//! Whether a commit that was acknowledged is in what the server has flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sqlx::{PgConnection, PgPool};

use super::Fault;

/// A transaction before its COMMIT: its commit record comes behind this place.
#[derive(Debug)]
pub(super) struct Before {
    lsn: String,
    xid: String,
}

impl Before {
    /// Inside the transaction, after its last statement.
    pub(super) async fn commit(connection: &mut PgConnection) -> Result<Before, sqlx::Error> {
        let (lsn, xid) =
            sqlx::query_as("SELECT pg_current_wal_insert_lsn()::text, pg_current_xact_id()::xid::text")
                .fetch_one(connection)
                .await?;
        Ok(Before { lsn, xid })
    }
}

/// Looks from outside, as the superuser: reading the log of the server needs that.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) admin: PgPool,
    pub(super) checked: Arc<AtomicU64>,
}

impl Watch {
    /// Right after a commit was acknowledged. Nothing is known when the server is away by now.
    pub(super) async fn check(&self, before: Before) -> Option<Fault> {
        let Before { lsn, xid } = before;
        // A place first, and then what is before it: what comes in between does not count.
        let look = "SELECT f::text, f > $1::pg_lsn FROM (SELECT pg_current_wal_flush_lsn() AS f OFFSET 0) t";
        let (flushed, is_behind): (String, bool) =
            sqlx::query_as(look).bind(&lsn).fetch_one(&self.admin).await.ok()?;
        let is_flushed = is_behind
            && {
                sqlx::query_scalar(
                "SELECT EXISTS (SELECT FROM pg_get_wal_records_info($1::pg_lsn, $2::pg_lsn)
                     WHERE resource_manager = 'Transaction' AND record_type LIKE 'COMMIT%' AND xid = $3::xid)",
            )
            .bind(&lsn)
            .bind(&flushed)
            .bind(&xid)
            .fetch_one(&self.admin)
            .await
            .ok()?
            };
        self.checked.fetch_add(1, Ordering::Relaxed);
        (!is_flushed).then_some(Fault::NotFlushed { xid, flushed })
    }
}
