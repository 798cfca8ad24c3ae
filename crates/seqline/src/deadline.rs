//! A deadline for every statement of a background component.
//!
//! The driver has no TCP keepalive, so a read from a server that vanished without a word waits for ever. Time for
//! this is always the system's: a manual clock must not make a real network reply late.

use std::future::Future;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgConnection, PgPool, PgTransaction, Postgres};

use crate::error::DatabaseError;
use crate::{pool, store};

/// Runs `future` for at most `limit`.
pub(crate) async fn within<T, E, F>(limit: Duration, future: F) -> Result<T, E>
where
    E: From<DatabaseError>,
    F: Future<Output = Result<T, E>>,
{
    match tokio::time::timeout(limit, future).await {
        Ok(result) => result,
        Err(_) => Err(DatabaseError::late().into()),
    }
}

/// Real time since something: what a server measures does not follow a manual clock either.
pub(crate) struct Stopwatch(tokio::time::Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "it is compared with what a real server does")]
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// A pooled connection for one piece of work, whose future may be dropped at any moment, as when it takes too long. Unless [`Lease::done`]
/// says that the work came to its end, the connection is closed and not reused: it may be in the middle of an answer that never comes.
///
/// ```no_run
/// # async fn example(pool: &sqlx::PgPool) -> Result<i64, seqline::DatabaseError> {
/// let mut lease = seqline::pool::Lease::acquire(pool).await?;
/// let head = lease.alone(async |connection| seqline::read::head(connection).await).await?;
/// lease.done();
/// # Ok(head)
/// # }
/// ```
#[derive(Debug)]
pub struct Lease {
    connection: Option<PoolConnection<Postgres>>,
    pooled: bool,
}

impl Lease {
    /// Takes one out of the pool.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when none can be had.
    pub async fn acquire(pool: &PgPool) -> Result<Self, DatabaseError> {
        Ok(Self { connection: Some(pool.acquire().await?), pooled: pool::is_pooled(pool) })
    }

    /// The connection. Behind a pooler in transaction mode it leads to another session with each transaction.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.connection
            .as_mut()
            .unwrap_or_else(|| unreachable!("a lease holds its connection until it is done"))
    }

    /// Begins a transaction, as [`begin`](crate::begin()) does. Not cancel safe by itself: when the future is dropped, drop the lease too.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when the server refuses it.
    pub async fn begin(&mut self) -> Result<PgTransaction<'_>, DatabaseError> {
        Ok(match self.pooled {
            true => self.connection().begin_with(store::connection::BEGIN_POOLED).await?,
            false => self.connection().begin().await?,
        })
    }

    /// The work is at its end, and nothing is left open on the connection: it goes back to its pool.
    pub fn done(mut self) {
        self.connection.take();
    }

    /// How a transaction begins that is to begin like this.
    pub(crate) fn beginning(&self, beginning: &str) -> String {
        if self.pooled { store::connection::begin_pooled(beginning) } else { beginning.to_owned() }
    }

    /// Statements with arguments that need no transaction: behind a pooler they are in one of their own.
    ///
    /// # Errors
    ///
    /// Those of the work, or that the transaction could not be begun or ended.
    pub async fn alone<T, E: From<sqlx::Error>>(
        &mut self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let pooled = self.pooled;
        pool::alone(self.connection(), pooled, work).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.close_on_drop();
        }
    }
}
