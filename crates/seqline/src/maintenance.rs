//! Partitions and retention.
//!
//! One run makes sure that partitions exist ahead of the head, closes a partition that has been open for too long, and
//! drops the oldest ones when all of their events are older than the retention and no consumer has still to get one of
//! them. For consumers a drop waits only so long. Each step is a transaction of its own, so a reader that is in the way of
//! a drop cannot take back the partitions that appends will need. Any number of processes may run it at once.

mod holders;

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::deadline::{Lease, within};
use crate::error::DatabaseError;
use crate::limits::{CLOCK_SKEW_MAX, STATEMENT_DEADLINE, TASK_LEASE};
use crate::store;

pub use self::holders::{HeldPartition, Holders, Holding, holders};

/// The name under which processes agree who does the next run.
const TASK: &str = "partition_maintenance";

/// Shortest pause between two questions whether a run is due.
const SCHEDULE_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause: the run of a process that died is due sooner than the next on the interval.
const SCHEDULE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// What a process may choose about maintenance.
#[derive(Debug, Clone)]
pub struct MaintenanceConfig {
    /// How long events stay (`sync.event_retention`). The partition that holds the head always stays.
    pub retention: Duration,
    /// How much longer than that an expired partition stays because a consumer has not passed it (`sync.event_retention_hold`).
    /// What a consumer has not come to by then is lost to it, and so is what it has parked. With 0 retention does not wait.
    pub retention_hold: Duration,
    /// How long a partition takes events before it is closed although it is not full
    /// (`sync.event_log_partition_max_age`). Without it few events would never expire, since only whole partitions do. One
    /// with more than 100,000 events is left to fill.
    pub partition_max_age: Duration,
    /// How long the first attempt at a detach waits for its lock, and everybody else behind it
    /// (`sync.detach_lock_timeout`). Each further attempt waits twice as long: the transactions in front of a waiting
    /// detach are a queue that ends, but with many writers it takes a while.
    pub detach_lock_timeout: Duration,
    /// The longest that an attempt waits, and so appends behind it (`sync.detach_lock_timeout_max`).
    pub detach_lock_timeout_max: Duration,
    /// How often a detach is tried in one run before it is left to the next (`sync.detach_attempts`).
    pub detach_attempts: u32,
    /// Pause between two attempts (`sync.detach_retry_pause`), in which those who queued behind it go on.
    pub detach_retry_pause: Duration,
    /// How far the clock that is used may be from the database's ([`CLOCK_SKEW_MAX`]). Beyond that nothing is closed or dropped, and the run
    /// ends with an error.
    pub clock_skew_max: Duration,
    /// How long one step may take before its connection is given up (`database.statement_timeout`).
    pub statement_timeout: Duration,
}

impl Default for MaintenanceConfig {
    fn default() -> Self {
        const DAY: u64 = 24 * 60 * 60;
        Self {
            retention: Duration::from_secs(30 * DAY),
            retention_hold: Duration::from_secs(30 * DAY),
            partition_max_age: Duration::from_secs(7 * DAY),
            detach_lock_timeout: Duration::from_millis(50),
            detach_lock_timeout_max: Duration::from_secs(1),
            detach_attempts: 5,
            detach_retry_pause: Duration::from_millis(500),
            clock_skew_max: CLOCK_SKEW_MAX,
            statement_timeout: STATEMENT_DEADLINE,
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Partitions that were created.
    pub created: i32,
    /// Whether the head's partition was closed because of its age.
    pub closed: bool,
    /// Partitions that were dropped.
    pub dropped: i32,
    /// Those of them that consumers had not passed, in the order of the log: what they had not come to is lost to them.
    pub lost: Vec<HeldPartition>,
    /// The partition that has expired and stays, with all after it, because consumers have not passed it.
    pub held: Option<HeldPartition>,
    /// Whether others used the log for so long that the rest is left to the next run.
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
        Ok(self.perform(Step::Ensure, Duration::ZERO).await?.count)
    }

    /// One whole run. Idempotent, and cancel safe between its steps.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when the database refuses a step or does not answer, or the clock is [wrong](MaintenanceConfig::clock_skew_max);
    /// those before it stay. Others who use the log and
    /// so are in the way of a detach are not an error but [`MaintenanceReport::postponed`].
    pub async fn run(&self) -> Result<MaintenanceReport, DatabaseError> {
        self.run_until(&CancellationToken::new()).await
    }

    /// The same for a process that has to end: when `stop` is cancelled, the step that runs is finished and the rest is left
    /// to the next run, of this process or another. The report says [`MaintenanceReport::postponed`] then, as when others were
    /// in the way. Dropping the future instead is as safe: the step that runs is rolled back, those before it stay.
    ///
    /// # Errors
    ///
    /// As [`Maintenance::run`].
    pub async fn run_until(&self, stop: &CancellationToken) -> Result<MaintenanceReport, DatabaseError> {
        let now = self.clock.now();
        let opened_before = before(now, self.config.partition_max_age);
        let cutoff = before(now, self.config.retention);
        let held_cutoff = before(cutoff, self.config.retention_hold);
        let mut report = MaintenanceReport { created: self.ensure().await?, ..Default::default() };
        self.require_the_time(now).await?;
        let closed = self.detach(Step::Close { opened_before }, stop).await;
        loop {
            let Some(done) = self.detach(Step::Drop { cutoff, held_cutoff }, stop).await? else {
                report.postponed = true;
                break;
            };
            report.dropped += done.count;
            match (done.count, done.held) {
                (0, held) => {
                    self.tell_held(held.as_ref());
                    report.held = held;
                    break;
                }
                (_, lost) => {
                    self.tell_lost(lost.as_ref());
                    report.lost.extend(lost);
                }
            }
        }
        // An error of the one is no reason to leave out the other.
        match closed? {
            Some(closed) => report.closed = closed.count > 0,
            None => report.postponed = true,
        }
        Ok(report)
    }

    /// Runs now and then on the interval, until `stop` is cancelled: once over all processes that do so on this database, by
    /// the clock of the database. A run that another process has begun counts for all; one that failed, or whose process
    /// died, is repeated after [`TASK_LEASE`]. What happens is logged; nothing ends it but `stop`, for which a step that runs
    /// is finished.
    pub async fn run_on_schedule(&self, interval: Duration, stop: CancellationToken) {
        // Whether waiting helps, as it was said last.
        let mut said = None;
        while !stop.is_cancelled() {
            let pause = match Box::pin(self.run_if_due(interval, &stop)).await {
                Ok(pause) => {
                    if said.take().is_some() {
                        tracing::info!("partition maintenance can ask the database again");
                    }
                    pause.max(SCHEDULE_PAUSE_MIN)
                }
                Err(error) => {
                    let waiting_helps = error.is_retryable();
                    if said.replace(waiting_helps) != Some(waiting_helps) {
                        match waiting_helps {
                            true => {
                                tracing::warn!(error = %error, "partition maintenance waits for the database")
                            }
                            false => {
                                tracing::error!(error = %error, "partition maintenance is refused by the database")
                            }
                        }
                    }
                    SCHEDULE_PAUSE_MAX
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(pause.min(SCHEDULE_PAUSE_MAX)) => {}
            }
        }
    }

    /// A run, if one is due, and how long it is until the next.
    async fn run_if_due(
        &self,
        interval: Duration,
        stop: &CancellationToken,
    ) -> Result<Duration, DatabaseError> {
        if let Some(started_at) = self.claim(interval).await? {
            match self.run_until(stop).await {
                Ok(report) => {
                    tracing::info!(
                        created = report.created,
                        closed = report.closed,
                        dropped = report.dropped,
                        held = report.held.is_some(),
                        "partition maintenance done"
                    );
                    // Cut short it is not finished: another process goes on when the lease is over.
                    if !(stop.is_cancelled() && report.postponed) {
                        self.finish(started_at).await?;
                    }
                }
                // Not finished, so it is repeated when the lease is over.
                Err(error) => tracing::error!(error = %error, "partition maintenance failed"),
            }
        }
        self.due_in(interval).await
    }

    async fn claim(&self, interval: Duration) -> Result<Option<OffsetDateTime>, DatabaseError> {
        within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let claim = lease
                .alone(async |connection| store::tasks::claim(connection, TASK, interval, TASK_LEASE).await);
            let claimed = claim.await?;
            lease.done();
            Ok(claimed)
        })
        .await
    }

    /// Ages are told by the clock of this process, and events have the times of the database.
    async fn require_the_time(&self, now: OffsetDateTime) -> Result<(), DatabaseError> {
        let of_database = within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let now = store::connection::now(lease.connection()).await?;
            lease.done();
            Ok::<_, DatabaseError>(now)
        })
        .await?;
        let skew = now - of_database;
        if skew.unsigned_abs() <= self.config.clock_skew_max {
            return Ok(());
        }
        let direction = if skew.is_positive() { "ahead of" } else { "behind" };
        Err(DatabaseError::wrong_clock(format!(
            "the clock of this process is {} s {direction} the database's: nothing is closed or dropped by it",
            skew.unsigned_abs().as_secs()
        )))
    }

    async fn finish(&self, started_at: OffsetDateTime) -> Result<(), DatabaseError> {
        within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            lease.alone(async |connection| store::tasks::finish(connection, TASK, started_at).await).await?;
            lease.done();
            Ok(())
        })
        .await
    }

    async fn due_in(&self, interval: Duration) -> Result<Duration, DatabaseError> {
        within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let due = lease.alone(async |connection| {
                store::tasks::due_in_ms(connection, TASK, interval, TASK_LEASE).await
            });
            let ms = due.await?;
            lease.done();
            Ok(Duration::from_millis(ms.unwrap_or(0).max(0).unsigned_abs()))
        })
        .await
    }

    /// A step that needs the log for itself. Each attempt waits longer for it, with pauses in which those who queued
    /// behind go on; `None` when the last one waited in vain.
    async fn detach(&self, step: Step, stop: &CancellationToken) -> Result<Option<Done>, DatabaseError> {
        const LOCK_NOT_AVAILABLE: &str = "55P03";
        let mut lock_timeout = self.config.detach_lock_timeout.min(self.config.detach_lock_timeout_max);
        for attempt in 1.. {
            if stop.is_cancelled() {
                return Ok(None);
            }
            match self.perform(step, lock_timeout).await {
                Err(error) if error.sqlstate() == Some(LOCK_NOT_AVAILABLE) => {}
                result => return result.map(Some),
            }
            if attempt >= self.config.detach_attempts {
                break;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(self.config.detach_retry_pause) => {}
            }
            lock_timeout = (lock_timeout * 2).min(self.config.detach_lock_timeout_max);
        }
        tracing::info!(
            step = ?step,
            attempts = self.config.detach_attempts,
            "partition maintenance postponed, others use the log"
        );
        Ok(None)
    }

    /// One step on a connection of its own, within the deadline.
    async fn perform(&self, step: Step, lock_timeout: Duration) -> Result<Done, DatabaseError> {
        within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let result = step.run(&mut lease, lock_timeout).await;
            // A server that answers, be it with an error, leaves the connection usable.
            if result.as_ref().err().is_none_or(|error| !error.spoils_connection()) {
                lease.done();
            }
            result
        })
        .await
    }

    /// A run ends with it, so it is said once.
    fn tell_held(&self, held: Option<&HeldPartition>) {
        let Some(held) = held else { return };
        tracing::warn!(
            partition = held.name,
            consumers = %held.holders,
            beyond_retention_s = held.beyond_retention.as_secs(),
            hold_s = self.config.retention_hold.as_secs(),
            "expired events stay, consumers have not passed them"
        );
    }

    fn tell_lost(&self, lost: Option<&HeldPartition>) {
        let Some(lost) = lost else { return };
        tracing::error!(
            partition = lost.name,
            consumers = %lost.holders,
            beyond_retention_s = lost.beyond_retention.as_secs(),
            hold_s = self.config.retention_hold.as_secs(),
            "events were dropped that consumers had not passed"
        );
    }
}

/// The time so long before, and the earliest that PostgreSQL is sure to take for what is longer than history.
fn before(time: OffsetDateTime, age: Duration) -> OffsetDateTime {
    time::Duration::try_from(age)
        .ok()
        .and_then(|age| time.checked_sub(age))
        .filter(|at| *at > OffsetDateTime::UNIX_EPOCH)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// A step of a run, each in a transaction of its own.
#[derive(Debug, Clone, Copy)]
enum Step {
    Ensure,
    Close { opened_before: OffsetDateTime },
    Drop { cutoff: OffsetDateTime, held_cutoff: OffsetDateTime },
}

/// What a step did.
struct Done {
    /// How many partitions it created, closed or dropped.
    count: i32,
    /// One that consumers keep, or kept until this step dropped it.
    held: Option<HeldPartition>,
}

impl Done {
    fn with(count: i32) -> Self {
        Self { count, held: None }
    }
}

impl Step {
    async fn run(self, lease: &mut Lease, lock_timeout: Duration) -> Result<Done, DatabaseError> {
        match self {
            Self::Ensure => Ok(Done::with(lease.alone(ensure_partitions).await?)),
            Self::Close { opened_before } => {
                let close = lease.alone(async |connection| {
                    store::partitions::close(connection, opened_before, lock_timeout).await
                });
                Ok(Done::with(i32::from(close.await?)))
            }
            Self::Drop { cutoff, held_cutoff } => {
                drop_expired(lease, cutoff, held_cutoff, lock_timeout).await
            }
        }
    }
}

async fn drop_expired(
    lease: &mut Lease,
    cutoff: OffsetDateTime,
    held_cutoff: OffsetDateTime,
    lock_timeout: Duration,
) -> Result<Done, DatabaseError> {
    // Before the transaction: with the lock of a reader in its hands it would be in the way of another that drops.
    let head = lease.alone(async |connection| store::read::head(connection).await).await?;
    let beginning = AssertSqlSafe(lease.beginning(store::partitions::BEGINNING_OF_DROP));
    let mut tx = lease.connection().begin_with(beginning).await?;
    let expired = store::partitions::drop_expired(&mut tx, cutoff, held_cutoff, head, lock_timeout).await?;
    tx.commit().await?;
    let Some(expired) = expired else { return Ok(Done::with(0)) };
    Ok(Done { count: i32::from(expired.dropped), held: HeldPartition::of(expired, cutoff) })
}

/// The partitions of the log, oldest first.
///
/// # Errors
///
/// [`DatabaseError`] when the database cannot be asked.
pub async fn partitions(connection: &mut PgConnection) -> Result<Vec<Partition>, DatabaseError> {
    Ok(store::partitions::list(connection).await?)
}

/// Creates missing partitions as `seqline.settings` says.
pub(crate) async fn ensure_partitions(connection: &mut PgConnection) -> Result<i32, DatabaseError> {
    let settings = store::settings::partition_settings(connection).await?;
    let head = store::read::head(connection).await?;
    Ok(store::partitions::ensure(connection, settings.size, settings.ahead, head).await?)
}
