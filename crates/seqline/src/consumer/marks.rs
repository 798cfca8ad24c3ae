//! The connection for marks.
//!
//! A mark is committed while the round that it is about goes on, so it needs a second connection. Taken from the pool, rounds could
//! wait for each other's. It is one for the whole process, and waits for no disk.

use sqlx::{ConnectOptions, PgConnection, PgPool};
use tokio::sync::{Mutex, MutexGuard};

use crate::error::DatabaseError;

/// The connection for marks, made when it is needed first.
#[derive(Debug, Default)]
pub(super) struct Marks {
    connection: Mutex<Option<PgConnection>>,
}

/// The connection, for one piece of work. Unless [`MarkLease::done`] says that it ended well, the next one gets a new one.
pub(super) struct MarkLease<'a> {
    kept: MutexGuard<'a, Option<PgConnection>>,
    connection: PgConnection,
    was_kept: bool,
}

impl Marks {
    /// Waits until nobody else uses the connection. It is made with the options of the pool.
    pub(super) async fn acquire(&self, pool: &PgPool) -> Result<MarkLease<'_>, DatabaseError> {
        let mut kept = self.connection.lock().await;
        let (connection, was_kept) = match kept.take() {
            Some(connection) => (connection, true),
            None => (pool.connect_options().connect().await?, false),
        };
        Ok(MarkLease { kept, connection, was_kept })
    }
}

impl MarkLease<'_> {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Whether it is one from before, on which anything may have happened since.
    pub(super) fn was_kept(&self) -> bool {
        self.was_kept
    }

    pub(super) fn done(mut self) {
        *self.kept = Some(self.connection);
    }
}
