//! The end of a transaction, where its events are numbered.
//!
//! Events are numbered inside COMMIT under one lock. If that COMMIT also waited for the disk, commits with events could not share a
//! flush, and one flush after the other would be the ceiling of all appends. So a transaction that has appended commits
//! without waiting, which gives the lock back at once, and then waits for a small commit that is durable: one for all that have
//! come so far. The caller is answered when its own commit is durable, not before.
//!
//! Few transactions of a process enter COMMIT at once, because a long queue in front of the lock costs more than it brings.

mod gate;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, PgTransaction};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::Mutex as AsyncMutex;

use self::gate::Gate;
use crate::error::{CommitError, DatabaseError};
use crate::limits::{COMMIT_GATE_WAIT, COMMITS_AT_ONCE};
use crate::store;
use crate::store::commit::Prepared;

/// The one that [`commit`] uses. It is what transactions that go to the same database have in common in this process, as they have
/// a lock and the write-ahead log in common there.
static SHARED: LazyLock<Committer> = LazyLock::new(|| Committer::new(COMMITS_AT_ONCE));

/// Commits, which numbers what was appended, and returns when that is durable, on synchronous standbys too.
///
/// Use it instead of the driver's `commit`: with events in the transaction it shares its flush with other commits, which with many
/// writers is faster, the more so the longer the disk or a standby takes. And the driver reports success for a transaction in which a
/// statement had failed, because PostgreSQL answers such a COMMIT with a rollback and no error. It costs a round trip before the COMMIT.
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
    under_way: Arc<AtomicUsize>,
}

impl Committer {
    /// Lets at most so many transactions of a database be inside COMMIT at once, at least 1. One that has waited for
    /// [`COMMIT_GATE_WAIT`] goes in as well: those inside may be waiting for a row that it holds.
    #[must_use]
    pub fn new(at_once: usize) -> Self {
        Self { at_once: at_once.max(1), groups: Arc::default(), under_way: Arc::default() }
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
        let under_way = UnderWay::begin(&self.under_way);
        let Prepared { flushed_by, wake } = ask(store::commit::prepare(&mut tx, under_way.is_crowd).await)?;
        let Some(flushed_by) = flushed_by else {
            return self.alone(tx, wake).await;
        };
        let group = self.group(flushed_by);
        let place = group.gate.enter(COMMIT_GATE_WAIT).await;
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

    /// Those that share a flush: of one database, where they wait for one lock and one statement tells the listeners of all.
    fn group(&self, flushed_by: String) -> Arc<Group> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.get(&flushed_by) {
            return group.clone();
        }
        // A server that was restarted is another one.
        groups.retain(|_, group| Arc::strong_count(group) > 1);
        let group = Arc::new(Group::new(flushed_by.clone(), self.at_once));
        groups.insert(flushed_by, group.clone());
        group
    }
}

/// One of the commits that are under way.
struct UnderWay<'a> {
    all: &'a AtomicUsize,
    /// Whether there were others when it began.
    is_crowd: bool,
}

impl<'a> UnderWay<'a> {
    fn begin(all: &'a AtomicUsize) -> Self {
        Self { all, is_crowd: all.fetch_add(1, Ordering::Relaxed) > 0 }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Commits of one database that wait for the same flush.
#[derive(Debug)]
struct Group {
    /// What a flush for them returns.
    flushed_by: String,
    /// The way into COMMIT.
    gate: Gate,
    committed: Mutex<Committed>,
    /// How many of those are durable. Held by the one that flushes; those that wait for it are in the order in which they came.
    durable: AsyncMutex<u64>,
    /// Up to which one listeners were told.
    told: AtomicU64,
}

/// Commits that were answered, by a number of their own.
#[derive(Debug, Clone, Copy, Default)]
struct Committed {
    last: u64,
    /// The last one of which listeners are not told otherwise.
    last_to_tell: u64,
}

impl Group {
    fn new(flushed_by: String, at_once: usize) -> Self {
        Self {
            flushed_by,
            gate: Gate::new(at_once),
            committed: Mutex::default(),
            durable: AsyncMutex::default(),
            told: AtomicU64::default(),
        }
    }

    /// Returns when the commit that was just answered on this connection is durable. The first to come flushes for all that have
    /// come by then; when it fails, or its future is dropped, the next one does. Then it tells listeners of them, or when it is dropped
    /// meanwhile, whoever flushes next does; until then they poll.
    async fn wait_until_durable(
        &self,
        connection: &mut PgConnection,
        wake: bool,
    ) -> Result<(), DatabaseError> {
        let mine = {
            let mut committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
            committed.last += 1;
            if wake {
                committed.last_to_tell = committed.last;
            }
            committed.last
        };
        let mut durable = self.durable.lock().await;
        if *durable >= mine {
            return Ok(());
        }
        let all = *self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        if store::commit::flush(connection).await? != self.flushed_by {
            // Behind a pooler a connection outlives the server's.
            let crashed = std::io::Error::other("the server crashed before the commit was flushed");
            return Err(DatabaseError::from(sqlx::Error::Io(crashed)));
        }
        *durable = all.last;
        drop(durable);
        // Not in the flush: the lock that PostgreSQL takes for a notification is held until its COMMIT is durable.
        if all.last_to_tell > self.told.load(Ordering::Relaxed) {
            tell_listeners(connection).await;
            self.told.fetch_max(all.last, Ordering::Relaxed);
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
