//! What a relay reads of the log and writes into its row, each within a deadline.

use std::sync::Arc;
use std::time::Duration;

use seqline::pool::Lease as Connection;
use seqline::{Clock, DatabaseError, DurableHead, StoredEvent, read};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::RelayError;
use super::cursor::Told;
use crate::store::relay as store;
use crate::store::relay::Lease;

/// The log and the relay's row in it. Cloning is cheap.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) pool: PgPool,
    pub(super) clock: Clock,
    /// How long one piece of work may take.
    pub(super) timeout: Duration,
    pub(super) durable: Arc<DurableHead>,
}

/// Events that may leave, with what was true when they were read: all of one state of the database.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) epoch: Uuid,
    pub(super) head: i64,
    pub(super) id_at: Option<Uuid>,
    pub(super) told: Told,
    pub(super) events: Vec<StoredEvent>,
}

impl Source {
    /// One statement, or several that do not depend on each other. A connection on which it was not finished is not used again.
    pub(super) async fn ask<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, RelayError> {
        let asking = async {
            let mut connection = Connection::acquire(&self.pool).await?;
            let answer = connection.alone(work).await;
            connection.done();
            Ok(answer?)
        };
        self.within(asking).await
    }

    /// The next events behind a position. Only durable ones: what a crash of the database can take back is not given to anybody.
    pub(super) async fn page(&self, lease: Lease<'_>, after: i64, limit: u32) -> Result<Page, RelayError> {
        let reading = async {
            let mut connection = Connection::acquire(&self.pool).await?;
            let mut tx = connection.begin().await?;
            store::hold_snapshot(&mut tx).await?;
            let beside = store::beside(&mut tx, lease, after).await?;
            let events = read::events_after(&mut tx, after, limit).await;
            // Nothing was written.
            tx.rollback().await?;
            let events = match events {
                Ok(events) => events,
                Err(error) => {
                    connection.done();
                    return Err(error.into());
                }
            };
            if let Some(last) = events.last() {
                self.durable.wait_for(connection.connection(), last.seq).await?;
            }
            connection.done();
            let told = beside.told.ok_or(RelayError::Replaced)?;
            Ok(Page { epoch: beside.epoch, head: beside.head, id_at: beside.id_at, told, events })
        };
        self.within(reading).await
    }

    /// Runs work with the database for as long as it may take.
    pub(super) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, RelayError>>,
    ) -> Result<T, RelayError> {
        match self.clock.timeout(self.timeout, work).await {
            Some(done) => done,
            None => {
                let late =
                    std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer from the database in time");
                Err(RelayError::Database(DatabaseError::from(sqlx::Error::Io(late))))
            }
        }
    }
}
