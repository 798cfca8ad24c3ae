//! A deadline for every statement of a background component.
//!
//! The driver has no TCP keepalive, so a read from a server that vanished without a word waits for ever. Time for
//! this is always the system's: a manual clock must not make a real network reply late.

use std::future::Future;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};

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

/// A pooled connection for one piece of work. Unless [`Lease::done`] says that the work ended well, the connection is
/// closed and not reused: it may be in the middle of an answer that never comes.
pub(crate) struct Lease {
    connection: Option<PoolConnection<Postgres>>,
    pooled: bool,
}

impl Lease {
    pub(crate) async fn acquire(pool: &PgPool) -> Result<Self, DatabaseError> {
        Ok(Self { connection: Some(pool.acquire().await?), pooled: pool::is_pooled(pool) })
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        self.connection
            .as_mut()
            .unwrap_or_else(|| unreachable!("a lease holds its connection until it is done"))
    }

    pub(crate) fn done(mut self) {
        self.connection.take();
    }

    /// How a transaction begins that is to begin like this.
    pub(crate) fn beginning(&self, beginning: &str) -> String {
        if self.pooled { store::connection::begin_pooled(beginning) } else { beginning.to_owned() }
    }

    /// Statements with arguments that need no transaction: behind a pooler they are in one of their own.
    pub(crate) async fn alone<T, E: From<sqlx::Error>>(
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
