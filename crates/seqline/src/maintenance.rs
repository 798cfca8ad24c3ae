//! Partitions and retention.
//!
//! One run makes sure that partitions exist ahead of the head, closes a partition that has been open for too long, and
//! drops the oldest ones when all of their events are older than the retention. Each step is a transaction of its own,
//! so a reader that is in the way of a drop cannot take back the partitions that appends will need. Any number of
//! processes may run it at once.

use std::time::Duration;

use sqlx::PgPool;
use time::OffsetDateTime;

use crate::clock::Clock;
use crate::deadline::Lease;
use crate::error::DatabaseError;
use crate::store;

/// What a process may choose about maintenance.
#[derive(Debug, Clone)]
pub struct MaintenanceConfig {
    /// How long events stay (`sync.event_retention`). The partition that holds the head always stays.
    pub retention: Duration,
    /// How long a partition takes events before it is closed although it is not full
    /// (`sync.event_log_partition_max_age`). Without it few events would never expire, since only whole partitions do.
    pub partition_max_age: Duration,
    /// How long appends may have to wait for a detach that waits for a reader (`sync.detach_lock_timeout`).
    pub detach_lock_timeout: Duration,
    /// How often a detach is tried in one run before it is left to the next (`sync.detach_attempts`).
    pub detach_attempts: u32,
    /// Pause between two attempts (`sync.detach_retry_pause`), in which those who queued behind it go on.
    pub detach_retry_pause: Duration,
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            retention: Duration::from_secs(30 * DAY),
            partition_max_age: Duration::from_secs(7 * DAY),
            detach_lock_timeout: Duration::from_millis(50),
            detach_attempts: 5,
            detach_retry_pause: Duration::from_millis(500),
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Partitions that were created.
    pub created: i32,
    /// Whether the head's partition was closed because of its age.
    pub closed: bool,
    /// Partitions that were dropped.
    pub dropped: i32,
    /// Whether a reader was in the way of the rest: it is tried again by the next run.
    pub postponed: bool,
}

/// A partition of the log: the numbers from `lower_bound` up to and without `upper_bound`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Partition {
    pub name: String,
    pub lower_bound: i64,
    pub upper_bound: i64,
    pub total_bytes: i64,
}

/// The maintenance operation.
#[derive(Debug, Clone)]
pub struct Maintenance {
    pool: PgPool,
    config: MaintenanceConfig,
    clock: Clock,
}

impl Maintenance {
    /// Maintenance over `pool`, as a role that may do what `seqline_app` may.
    #[must_use]
    pub fn new(pool: PgPool, config: MaintenanceConfig, clock: Clock) -> Self {
        Self { pool, config, clock }
    }

    /// Creates the partitions that are missing ahead of the head and returns how many.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when the database refuses it. What was created before stays.
    pub async fn ensure(&self) -> Result<i32, DatabaseError> {
        let mut lease = Lease::acquire(&self.pool).await?;
        let created = ensure_partitions(lease.connection()).await?;
        lease.done();
        Ok(created)
    }

    /// One whole run. Idempotent, and cancel safe between its steps.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when the database refuses a step; those before it stay. A reader in the way of a drop is not an
    /// error but [`MaintenanceReport::postponed`].
    pub async fn run(&self) -> Result<MaintenanceReport, DatabaseError> {
        let mut report = MaintenanceReport { created: self.ensure().await?, ..Default::default() };
        let mut lease = Lease::acquire(&self.pool).await?;
        let (opened_before, cutoff) =
            (self.ago(self.config.partition_max_age), self.ago(self.config.retention));

        for attempt in 1.. {
            let closed =
                store::partitions::close(lease.connection(), opened_before, self.config.detach_lock_timeout)
                    .await;
            match self.unless_busy(closed, attempt, "close").await? {
                Step::Done(closed) => report.closed = closed,
                Step::TryAgain => continue,
                Step::GiveUp => report.postponed = true,
            }
            break;
        }
        let mut attempt = 1;
        loop {
            let head = store::read::head(lease.connection()).await?;
            let dropped = store::partitions::drop_expired(
                lease.connection(),
                cutoff,
                head,
                self.config.detach_lock_timeout,
            )
            .await;
            match self.unless_busy(dropped, attempt, "drop").await? {
                Step::Done(0) => break,
                Step::Done(dropped) => {
                    report.dropped += dropped;
                    attempt = 1;
                }
                Step::TryAgain => attempt += 1,
                Step::GiveUp => {
                    report.postponed = true;
                    break;
                }
            }
        }
        lease.done();
        Ok(report)
    }

    /// The time before now, and the earliest that PostgreSQL is sure to take for what is longer than history.
    fn ago(&self, age: Duration) -> OffsetDateTime {
        time::Duration::try_from(age)
            .ok()
            .and_then(|age| self.clock.now().checked_sub(age))
            .filter(|at| *at > OffsetDateTime::UNIX_EPOCH)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }

    /// Tells a lock timeout, after which others get their turn, from other errors.
    async fn unless_busy<T>(
        &self,
        result: Result<T, sqlx::Error>,
        attempt: u32,
        step: &'static str,
    ) -> Result<Step<T>, DatabaseError> {
        const LOCK_NOT_AVAILABLE: &str = "55P03";
        let error = match result {
            Ok(done) => return Ok(Step::Done(done)),
            Err(error) => DatabaseError::from(error),
        };
        if error.sqlstate() != Some(LOCK_NOT_AVAILABLE) {
            return Err(error);
        }
        if attempt >= self.config.detach_attempts {
            tracing::info!(
                step,
                attempts = attempt,
                "partition maintenance postponed, a reader holds the log"
            );
            return Ok(Step::GiveUp);
        }
        self.clock.sleep(self.config.detach_retry_pause).await;
        Ok(Step::TryAgain)
    }
}

enum Step<T> {
    Done(T),
    TryAgain,
    GiveUp,
}

/// The partitions of the log, oldest first.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn partitions(connection: &mut sqlx::PgConnection) -> Result<Vec<Partition>, DatabaseError> {
    Ok(store::partitions::list(connection).await?)
}

/// Creates missing partitions as `seqline.settings` says.
pub(crate) async fn ensure_partitions(connection: &mut sqlx::PgConnection) -> Result<i32, DatabaseError> {
    let settings = store::settings::partition_settings(connection).await?;
    let head = store::read::head(connection).await?;
    Ok(store::partitions::ensure(connection, settings.size, settings.ahead, head).await?)
}
