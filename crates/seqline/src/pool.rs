//! Connections that lead to a server that takes writes.
//!
//! After a failover the address of the database leads to the new primary, and the connections of a pool may still lead to the old one, a
//! standby by now: they work, and no write ever does. What the library does over a pool gives up such a connection when a write is
//! refused, or when it finds that out before. [`only_for_writes`] does the same for whatever else goes over a pool.
//!
//! And connections through a pooler in transaction mode, which may lead to another session of the server with each transaction. Options with
//! `statement_cache_capacity(0)`, in a URL `statement-cache-capacity=0`, say so. The driver prepares a statement and then executes it, so
//! each of them is in a transaction then; and it never gives up the names of those that it does not keep, so each transaction begins by
//! giving up those that others have left in the session.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

use crate::deadline::within;
use crate::error::DatabaseError;
use crate::limits::{NETWORK_MARGIN, READ_ONLY_CHECK_AFTER};
use crate::store;

pub use crate::deadline::Lease;

/// Lets a pool hand out no connection to a server that takes no writes, such as a standby: one that was not used for
/// [`READ_ONLY_CHECK_AFTER`] is asked first, and closed if so. For programs that write; what reads from a standby needs a pool of its own.
///
/// ```no_run
/// use sqlx::postgres::PgPoolOptions;
///
/// # async fn example() -> Result<(), sqlx::Error> {
/// let pool = seqline::pool::only_for_writes(PgPoolOptions::new())
///     .connect("postgres://seqline@db.example.com/app")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn only_for_writes(options: PgPoolOptions) -> PgPoolOptions {
    options.before_acquire(|connection, meta| {
        Box::pin(async move {
            if meta.idle_for < READ_ONLY_CHECK_AFTER {
                return Ok(true);
            }
            match takes_writes(connection, NETWORK_MARGIN).await {
                Ok(takes_writes) => Ok(takes_writes),
                Err(error) => Err(error.into_source()),
            }
        })
    })
}

/// Whether the server takes writes.
pub(crate) async fn takes_writes(
    connection: &mut PgConnection,
    limit: Duration,
) -> Result<bool, DatabaseError> {
    within(limit, async { Ok(store::connection::takes_writes(connection).await?) }).await
}

/// Ends the session of a connection that somebody else will give back to its pool, which then finds it broken. Only where nothing can have
/// been written.
pub(crate) async fn end_session(connection: &mut PgConnection) {
    let ended = within(NETWORK_MARGIN, async { Ok(store::connection::end_session(connection).await?) });
    // As a rule it says that it was ended.
    let _: Result<(), DatabaseError> = ended.await;
}

/// Whether no statement may outlive its transaction on connections of this pool.
pub(crate) fn is_pooled(pool: &PgPool) -> bool {
    keeps_no_statements(&pool.connect_options())
}

/// Whether these options say that no statement may outlive its transaction, as behind a pooler in transaction mode.
///
/// ```
/// # use std::str::FromStr;
/// use sqlx::postgres::PgConnectOptions;
///
/// let direct = PgConnectOptions::from_str("postgres://db.example.com/app")?;
/// assert!(!seqline::pool::keeps_no_statements(&direct));
/// assert!(seqline::pool::keeps_no_statements(&direct.statement_cache_capacity(0)));
/// # Ok::<(), sqlx::Error>(())
/// ```
#[must_use]
pub fn keeps_no_statements(options: &PgConnectOptions) -> bool {
    // The driver has no other way to ask for it, and no URL for each host and user. Nothing secret gets into this one.
    let url = options.clone().host("localhost").username("any").password("").to_url_lossy();
    url.query_pairs().any(|(key, value)| key == "statement-cache-capacity" && value == "0")
}

/// Work in a transaction of its own where no statement may outlive its transaction, and without one elsewhere.
pub(crate) async fn alone<T, E: From<sqlx::Error>>(
    connection: &mut PgConnection,
    pooled: bool,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
) -> Result<T, E> {
    if !pooled {
        return work(connection).await;
    }
    let mut tx = connection.begin_with(store::connection::BEGIN_POOLED).await?;
    let done = work(&mut tx).await?;
    tx.commit().await?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_and_user_can_be_asked_about() {
        for host in ["::1", "fd00::5", "db.example.com", "/run/postgresql"] {
            let options = PgConnectOptions::new().host(host).username("a@b/c#d e").password("p@ss");
            assert!(!keeps_no_statements(&options), "{host}");
            assert!(keeps_no_statements(&options.statement_cache_capacity(0)), "{host}");
        }
    }
}
