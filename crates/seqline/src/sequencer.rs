//! Numbering after commit: gives the next numbers to events whose transactions have committed.
//!
//! With the database's setting `sequencing` at `after_commit` a transaction leaves its events behind with a place in the order of
//! commits. The sequencer takes them in that order, in batches that never split a transaction. One is active at a time over all processes, by
//! a lease; the others are ready to take over. That nothing is numbered twice or left out does not depend on the lease: each batch is a
//! transaction under the numbering lock that takes what it finds.
//!
//! It can run on every database, whatever the setting: it is what completes a change of it. When nothing can wait it asks once a second whether that
//! is still so, and holds no lease.

mod window;

use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::window::Window;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::deadline::{Lease, Stopwatch, within};
use crate::error::{DatabaseError, missing_partition};
use crate::limits::{PARTITIONS_AHEAD_MAX, SEQUENCER_HOUSEKEEPING_INTERVAL, STATEMENT_DEADLINE};
use crate::store;
use crate::store::sequencer::Batch;
use crate::{pool, settings};

/// What a process may choose about its sequencer.
#[derive(Debug, Clone)]
pub struct SequencerConfig {
    /// How long another process waits for one that has stopped without saying so (`sequencer.lease`).
    pub lease: Duration,
    /// Pause between two batches while events come (`sequencer.poll_interval`): what a commit waits for its number. Longer means
    /// larger batches, which cost less.
    pub poll_interval: Duration,
    /// Pause between two looks when none have come for a second (`sequencer.idle_poll_interval`).
    pub idle_poll_interval: Duration,
    /// Transactions in one batch (`sequencer.batch_size`): how long the numbering lock is held.
    pub batch_size: u32,
    /// Longest pause between two attempts when the database is away (`database.listen_reconnect_backoff_cap`).
    pub reconnect_backoff_cap: Duration,
    /// How long one statement may take before its connection is given up (`database.statement_timeout`).
    pub statement_timeout: Duration,
}

impl Default for SequencerConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_millis(600),
            poll_interval: Duration::from_millis(4),
            idle_poll_interval: Duration::from_millis(20),
            batch_size: 1_000,
            reconnect_backoff_cap: Duration::from_secs(30),
            statement_timeout: STATEMENT_DEADLINE,
        }
    }
}

/// The sequencer of a process. See the [module](self).
///
/// ```no_run
/// use seqline::Clock;
/// use seqline::sequencer::{Sequencer, SequencerConfig};
///
/// # async fn example(pool: sqlx::PgPool, stop: tokio_util::sync::CancellationToken) {
/// Sequencer::new(pool, SequencerConfig::default(), Clock::system()).run(stop).await;
/// # }
/// ```
#[derive(Debug)]
pub struct Sequencer {
    pool: PgPool,
    config: SequencerConfig,
    clock: Clock,
    id: Uuid,
    /// See [`crate::pool`].
    pooled: bool,
}

impl Sequencer {
    /// A sequencer over `pool`, of which it holds one connection while it is active, as a role that may do what `seqline_app` may.
    #[must_use]
    pub fn new(pool: PgPool, config: SequencerConfig, clock: Clock) -> Self {
        let pooled = pool::is_pooled(&pool);
        Self { pool, config, clock, id: Uuid::new_v4(), pooled }
    }

    /// Runs until `stop` is cancelled: a batch that runs then is finished, and the lease given back. A database that is away is waited for.
    ///
    /// Dropping the future stops at any point and loses nothing; another process takes over when the lease has expired.
    pub async fn run(self, stop: CancellationToken) {
        let mut backoff = Backoff::new(self.config.lease / 3, self.config.reconnect_backoff_cap);
        let mut outage_said = false;
        while !stop.is_cancelled() {
            let pause = match Box::pin(self.hold_and_work(&stop, &mut outage_said, &mut backoff)).await {
                Ok(pause) => pause,
                Err(error) => {
                    if !std::mem::replace(&mut outage_said, true) {
                        tracing::warn!(error = %error, "sequencer cannot go on, trying again");
                    }
                    backoff.next(fastrand::f64())
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// Works for as long as it has the lease and something can wait; returns how long to pause before the next attempt.
    async fn hold_and_work(
        &self,
        stop: &CancellationToken,
        outage_said: &mut bool,
        backoff: &mut Backoff,
    ) -> Result<Duration, DatabaseError> {
        let mut lease = self.bounded(Lease::acquire(&self.pool)).await?;
        let connection = lease.connection();
        if !pool::takes_writes(connection, self.config.statement_timeout).await? {
            return Err(DatabaseError::read_only_server());
        }
        let mut pause = self.config.lease / 3;
        if !self.is_needed(connection).await? {
            pause = SEQUENCER_HOUSEKEEPING_INTERVAL;
        } else if self.hold(connection).await? {
            self.work(connection, stop, &mut *outage_said, &mut *backoff).await?;
            let release = self.alone(connection, async |connection| {
                Ok(store::sequencer::release(connection, self.id).await?)
            });
            release.await?;
        }
        lease.done();
        goes_on(outage_said, backoff);
        Ok(pause)
    }

    /// Whether events can wait. When they are numbered inside COMMIT, and no change to that is under way, there is nothing to look for.
    async fn is_needed(&self, connection: &mut PgConnection) -> Result<bool, DatabaseError> {
        Ok(!self.alone(connection, settings::settings).await?.is_at_commit_only())
    }

    /// Numbers what waits until it is asked to stop, another has the lease, or nothing can wait any more.
    async fn work(
        &self,
        connection: &mut PgConnection,
        stop: &CancellationToken,
        outage_said: &mut bool,
        backoff: &mut Backoff,
    ) -> Result<(), DatabaseError> {
        // From what was noted each time: what was remembered from before an outage can be of a history that was not durable.
        let mut window = self.alone(connection, noted).await?;
        let (mut renewed, mut kept, mut last_event) =
            (Stopwatch::start(), Stopwatch::start(), Stopwatch::start());
        while !stop.is_cancelled() {
            if renewed.elapsed() >= self.config.lease / 3 {
                renewed = Stopwatch::start();
                if !self.hold(connection).await? {
                    return Ok(());
                }
            }
            let batch = self.batch(connection, &window).await?;
            goes_on(outage_said, backoff);
            window.after(&batch);
            if !batch.taken.is_empty() {
                last_event = Stopwatch::start();
                self.tell_listeners(connection).await?;
            }
            if kept.elapsed() >= SEQUENCER_HOUSEKEEPING_INTERVAL {
                kept = Stopwatch::start();
                self.keep_house(connection, &window).await?;
                if !self.is_needed(connection).await? {
                    return Ok(());
                }
            }
            if !batch.more {
                let idle = last_event.elapsed() >= Duration::from_secs(1);
                let pause = if idle { self.config.idle_poll_interval } else { self.config.poll_interval };
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = self.clock.sleep(pause) => {}
                }
            }
        }
        self.keep_house(connection, &window).await
    }

    /// Without it they poll. So a queue of notifications that is full is no reason to stop.
    async fn tell_listeners(&self, connection: &mut PgConnection) -> Result<(), DatabaseError> {
        match self.bounded(async { Ok(store::commit::wake(connection).await?) }).await {
            Err(error) if error.is_connection_failure() => Err(error),
            _ => Ok(()),
        }
    }

    async fn hold(&self, connection: &mut PgConnection) -> Result<bool, DatabaseError> {
        let hold = self.alone(connection, async |connection| {
            Ok(store::sequencer::hold(connection, self.id, self.config.lease).await?)
        });
        hold.await
    }

    /// The next batch. Partitions that are missing are made, as many as it needs: nobody else is told of them, as writers are when they
    /// number themselves, and what has committed cannot be refused any more.
    async fn batch(&self, connection: &mut PgConnection, window: &Window) -> Result<Batch, DatabaseError> {
        match self.try_batch(connection, window).await {
            Err(error) => match missing_partition(&error) {
                Some((first, last)) => {
                    let make = self
                        .alone(connection, async |connection| make_partitions(connection, first, last).await);
                    make.await?;
                    self.try_batch(connection, window).await
                }
                None => Err(error),
            },
            result => result,
        }
    }

    /// Remembers how far it has come, and completes a change to numbering inside COMMIT.
    async fn keep_house(&self, connection: &mut PgConnection, window: &Window) -> Result<(), DatabaseError> {
        let note = self.alone(connection, async |connection| {
            Ok(store::sequencer::note_progress(connection, window.high(), &window.missing()).await?)
        });
        note.await?;
        let close =
            self.alone(connection, async |connection| Ok(store::sequencer::close_staging(connection).await?));
        close.await.map(drop)
    }

    async fn try_batch(
        &self,
        connection: &mut PgConnection,
        window: &Window,
    ) -> Result<Batch, DatabaseError> {
        let batch = self.alone(connection, async |connection| {
            next_batch(connection, window, self.config.batch_size).await
        });
        batch.await
    }

    /// Statements in a transaction of their own, where it takes one to keep them together.
    async fn alone<T>(
        &self,
        connection: &mut PgConnection,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        self.bounded(pool::alone(connection, self.pooled, work)).await
    }

    async fn bounded<T>(
        &self,
        statement: impl Future<Output = Result<T, DatabaseError>>,
    ) -> Result<T, DatabaseError> {
        within(self.config.statement_timeout, statement).await
    }
}

/// What failed before works.
fn goes_on(outage_said: &mut bool, backoff: &mut Backoff) {
    if std::mem::take(outage_said) {
        tracing::info!("sequencer recovered");
    }
    backoff.reset();
}

/// Those that a transaction needs for these numbers, and those that are kept ahead.
async fn make_partitions(connection: &mut PgConnection, first: i64, last: i64) -> Result<(), DatabaseError> {
    let settings = store::settings::partition_settings(connection).await?;
    let needed = i32::try_from((last - first) / settings.size + 1).unwrap_or(PARTITIONS_AHEAD_MAX);
    let ahead = needed.saturating_add(settings.ahead).min(PARTITIONS_AHEAD_MAX);
    store::partitions::ensure(connection, settings.size, ahead, first - 1).await?;
    Ok(())
}

/// Where the last sequencer was when it said so last.
async fn noted(connection: &mut PgConnection) -> Result<Window, DatabaseError> {
    let (high, missing) = store::sequencer::progress(connection).await?;
    Ok(Window::new(high, missing))
}

async fn next_batch(
    connection: &mut PgConnection,
    window: &Window,
    batch_size: u32,
) -> Result<Batch, DatabaseError> {
    let limit = i32::try_from(batch_size.max(1)).unwrap_or(i32::MAX);
    let missing = window.missing();
    Ok(store::sequencer::sequence(connection, window.high(), &missing, limit, window.needs_mark()).await?)
}

/// Numbers what waits now, in batches, and returns how many events that were. For whoever has no sequencer running, or wants to be sure
/// that a change to numbering inside COMMIT finds little to do. Any number of callers may do so beside a sequencer.
///
/// Cancel safe: a batch is done or not.
///
/// # Errors
///
/// [`DatabaseError`] when the database refuses a batch; those before it stay.
pub async fn drain(connection: &mut PgConnection) -> Result<u64, DatabaseError> {
    let mut window = noted(connection).await?;
    let mut events = 0;
    loop {
        let batch = next_batch(connection, &window, SequencerConfig::default().batch_size).await?;
        events += batch.events.unsigned_abs();
        window.after(&batch);
        if !batch.more {
            store::sequencer::note_progress(connection, window.high(), &window.missing()).await?;
            return Ok(events);
        }
    }
}
