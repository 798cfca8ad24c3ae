//! The database, for requests: each piece of work has a bound, and a connection whose answer did not come in time is closed.

use std::time::Duration;

use seqline::pool::Lease;
use seqline::{Clock, DatabaseError};
use sqlx::{PgConnection, PgPool};

/// Runs work on connections of the pool. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    pool: PgPool,
    clock: Clock,
    /// `database.statement_timeout`.
    limit: Duration,
}

impl Database {
    pub(crate) fn new(pool: PgPool, clock: Clock, limit: Duration) -> Self {
        Self { pool, clock, limit }
    }

    /// A connection, which is closed unless the lease is told that the work is done.
    pub(crate) async fn lease(&self) -> Result<Lease, DatabaseError> {
        Lease::acquire(&self.pool).await
    }

    /// How long a piece of work may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Work for which time is up at some moment.
    pub(crate) async fn in_time<T, E: From<DatabaseError>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.clock.timeout(self.limit, work).await.unwrap_or_else(|| Err(late().into()))
    }

    /// Statements that need no transaction, with waiting for a connection. Cancel safe.
    pub(crate) async fn ask<T, E: From<sqlx::Error> + From<DatabaseError>>(
        &self,
        question: impl AsyncFnOnce(&mut PgConnection) -> Result<T, E>,
    ) -> Result<T, E> {
        let asked = async {
            let mut lease = self.lease().await?;
            let answer = lease.alone(question).await;
            // A refusal is an answer too, and leaves nothing open.
            lease.done();
            answer
        };
        self.in_time(asked).await
    }
}

/// No answer in time: as good as none at all.
pub(super) fn late() -> DatabaseError {
    let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer from the database in time");
    sqlx::Error::Io(late).into()
}
