//! The end of a transaction, where its events are numbered.
//!
//! Events are numbered inside COMMIT under one lock. If that COMMIT also waited for the disk, commits with events could not share a
//! flush, and one flush after the other would be the ceiling of all appends. So a transaction that has appended commits
//! without waiting, which gives the lock back at once, and then waits for a small commit that is durable: one for all that have
//! come so far. The caller is answered when its own commit is durable, not before.
//!
//! Few transactions of a process enter COMMIT at once, because a long queue in front of the lock costs more than it brings.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, PgTransaction};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};

use crate::error::{CommitError, DatabaseError};
use crate::limits::{COMMIT_GATE_WAIT, COMMITS_AT_ONCE};
use crate::store;
use crate::store::commit::Prepared;

/// The one that [`commit`] uses. It is what transactions that go to the same server have in common in this process, as they have
/// its write-ahead log in common there.
static SHARED: LazyLock<Committer> = LazyLock::new(|| Committer::new(COMMITS_AT_ONCE));

/// Commits, which numbers what was appended, and returns when that is durable, on synchronous standbys too.
///
/// Use it instead of the driver's `commit`: with events in the transaction it shares its flush with other commits, which is
/// several times faster with many writers. And the driver reports success for a transaction in which a statement had failed, because
/// PostgreSQL answers such a COMMIT with a rollback and no error. It costs a round trip before the COMMIT.
///
/// Not cancel safe: a dropped future leaves it open whether the transaction commits.
///
/// # Errors
///
/// See [`CommitError`]: it tells a refusal (nothing happened) from a lost connection (the outcome is unknown) and from a commit that
/// took place and may not be durable. A missing partition is also logged as an error with the numbers concerned, since every append
/// fails until somebody looks.
pub async fn commit(tx: PgTransaction<'_>) -> Result<(), CommitError> {
    SHARED.commit(tx).await
}

/// Commits transactions, as [`commit`] does, with a limit of one's own to how many may be inside COMMIT at once. Clones share it.
///
/// ```no_run
/// # async fn example(tx: sqlx::PgTransaction<'_>) -> Result<(), seqline::CommitError> {
/// let committer = seqline::Committer::new(8);
/// committer.commit(tx).await
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Committer {
    at_once: usize,
    groups: Arc<Mutex<HashMap<String, Arc<Group>>>>,
}

impl Committer {
    /// Lets at most so many transactions of a server be inside COMMIT at once, at least 1. One that has waited for
    /// [`COMMIT_GATE_WAIT`] goes in as well: those inside may be waiting for a row that it holds.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self { at_once: at_once.clamp(1, Semaphore::MAX_PERMITS), groups: Arc::default() }
    }

    /// As [`commit`].
    ///
    /// # Errors
    ///
    /// As [`commit`].
    pub async fn commit(&self, mut tx: PgTransaction<'_>) -> Result<(), CommitError> {
        // A transaction inside a transaction is a savepoint: nothing is numbered or flushed when it ends.
        if PgTransactionManager::get_transaction_depth(&*tx) > 1 {
            ask(store::commit::touch(&mut tx).await)?;
            return answer(tx.commit().await);
        }
        let Prepared { flushed_by, wake } = ask(store::commit::prepare(&mut tx).await)?;
        let Some(server) = flushed_by else {
            return self.alone(tx, wake).await;
        };
        let group = self.group(server);
        let place = tokio::time::timeout(COMMIT_GATE_WAIT, group.gate.acquire()).await;
        // Not by the transaction, which gives its connection away: the flush may be up to it.
        let committed = PgTransactionManager::commit(&mut tx).await;
        drop(place);
        answer(committed)?;
        group.wait_until_durable(&mut tx, wake).await.map_err(CommitError::NotKnownDurable)
    }

    /// With a flush of its own.
    async fn alone(&self, mut tx: PgTransaction<'_>, wake: bool) -> Result<(), CommitError> {
        answer(PgTransactionManager::commit(&mut tx).await)?;
        if wake {
            tell_listeners(&mut tx).await;
        }
        Ok(())
    }

    /// Those that share a flush: by server, because a flush is for all that was committed there.
    fn group(&self, server: String) -> Arc<Group> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&server) {
            return group.clone();
        }
        // A server that was restarted is another one.
        groups.retain(|_, group| Arc::strong_count(group) > 1);
        groups.entry(server).or_insert_with(|| Arc::new(Group::new(self.at_once))).clone()
    }
}

/// Commits of one server that wait for the same flush.
#[derive(Debug)]
struct Group {
    /// The way into COMMIT.
    gate: Semaphore,
    /// How many commits have been answered, and how many of those are durable.
    committed: AtomicU64,
    durable: AtomicU64,
    /// Held by the one that flushes. Those that wait for it are in the order in which they came.
    flushing: AsyncMutex<()>,
}

impl Group {
    fn new(at_once: usize) -> Self {
        Self {
            gate: Semaphore::new(at_once),
            committed: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            flushing: AsyncMutex::new(()),
        }
    }

    /// Returns when the commit that was just answered on this connection is durable. The first to come flushes for all that have
    /// come by then; when it fails, or its future is dropped, the next one does.
    async fn wait_until_durable(
        &self,
        connection: &mut PgConnection,
        wake: bool,
    ) -> Result<(), DatabaseError> {
        let mine = self.committed.fetch_add(1, Ordering::SeqCst) + 1;
        let turn = self.flushing.lock().await;
        if self.durable.load(Ordering::SeqCst) >= mine {
            return Ok(());
        }
        let all = self.committed.load(Ordering::SeqCst);
        store::commit::flush(connection).await?;
        self.durable.fetch_max(all, Ordering::SeqCst);
        drop(turn);
        if wake {
            tell_listeners(connection).await;
        }
        Ok(())
    }
}

/// What was sent before COMMIT: whatever its error is, nothing happened.
fn ask<T>(result: Result<T, sqlx::Error>) -> Result<T, CommitError> {
    const IN_FAILED_TRANSACTION: &str = "25P02";
    result.map_err(|error| {
        let error = DatabaseError::from(error);
        match error.sqlstate() {
            Some(IN_FAILED_TRANSACTION) => CommitError::AlreadyFailed,
            _ => CommitError::Database(error),
        }
    })
}

/// What COMMIT was answered with.
fn answer(committed: Result<(), sqlx::Error>) -> Result<(), CommitError> {
    let result = committed.map_err(CommitError::from);
    if let Err(CommitError::NoPartition { first_seq, last_seq }) = &result {
        tracing::error!(first_seq, last_seq, "event log has no partition for the next events");
    }
    result
}

/// Without it they poll. So a queue of notifications that is full, or a connection that broke, is no reason to fail.
async fn tell_listeners(connection: &mut PgConnection) {
    if let Err(error) = store::commit::wake(connection).await {
        tracing::debug!(error = %DatabaseError::from(error), "listeners were not told of a commit, they poll");
    }
}
