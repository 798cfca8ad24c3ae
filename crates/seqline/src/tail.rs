//! Follow the log and hand every event to the sinks, in order, once each.
//!
//! A tail starts at the head, or after a given number, and delivers what is committed from then on. It wakes on a
//! notification and at least every `poll_interval`, so without notifications it is only slower. Batches continue each
//! other without a hole; a hole ends it with an error, because it would be a bug. So does a log that is not the one whose events it has
//! delivered: one that was taken back to an earlier state, also when it has grown again since. Its position moves only after all
//! sinks have accepted a batch. A database that is away is waited for.

use std::error::Error;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::deadline::{Lease, within};
use crate::durable::DurableHead;
use crate::error::{DatabaseError, GapError, ReadError};
use crate::event::StoredEvent;
use crate::limits::{READ_EVENTS_MAX, STATEMENT_DEADLINE};
use crate::listen::Listener;
use crate::{listen, read};

/// The application name of the tail's listening connection.
pub const TAIL_APPLICATION_NAME: &str = "seqline-event-tail";

/// Where a tail starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the head: only what is committed from now on.
    Head,
    /// After this number; 0 is the whole log if nothing has been dropped.
    After(i64),
}

/// What a process may choose about its tail.
#[derive(Debug, Clone)]
pub struct TailConfig {
    /// Where to start.
    pub start: Start,
    /// Longest time between two looks at the log (`sync.log_poll_interval`): the delay when notifications are lost.
    pub poll_interval: Duration,
    /// Events in one batch (`sync.tail_batch_size`): what a sink gets at once and what is in memory at most. At least 1,
    /// at most [`READ_EVENTS_MAX`].
    pub batch_size: u32,
    /// Whether a connection listens for commits. Without it the tail looks every `poll_interval` and nothing else wakes it: for where
    /// LISTEN is not to be had, such as behind a pooler in transaction mode.
    pub listen: bool,
    /// Longest pause between two attempts to listen (`database.listen_reconnect_backoff_cap`).
    pub listen_reconnect_backoff_cap: Duration,
    /// How often a silent listening connection is asked whether it is alive (`database.listen_heartbeat_interval`).
    pub listen_heartbeat_interval: Duration,
    /// How long it may take to answer (`database.listen_heartbeat_timeout`).
    pub listen_heartbeat_timeout: Duration,
    /// How long one read may take before its connection is given up (`database.statement_timeout`).
    pub statement_timeout: Duration,
}

impl Default for TailConfig {
    fn default() -> Self {
        Self {
            start: Start::Head,
            poll_interval: Duration::from_secs(1),
            batch_size: 500,
            listen: true,
            listen_reconnect_backoff_cap: Duration::from_secs(30),
            listen_heartbeat_interval: Duration::from_secs(10),
            listen_heartbeat_timeout: Duration::from_secs(5),
            statement_timeout: STATEMENT_DEADLINE,
        }
    }
}

/// Why a sink did not accept a batch.
pub type SinkError = Box<dyn Error + Send + Sync>;

/// Takes batches of events.
///
/// ```
/// use futures_util::future::BoxFuture;
/// use seqline::StoredEvent;
/// use seqline::tail::{Sink, SinkError};
///
/// struct Counter(usize);
///
/// impl Sink for Counter {
///     fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
///         Box::pin(async move {
///             self.0 += batch.len();
///             Ok(())
///         })
///     }
/// }
/// ```
pub trait Sink: Send {
    /// Takes the next events, in order, never empty. An error ends the tail; the batch may come again to whoever
    /// starts the next one from the last position.
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>>;
}

/// Why a tail ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TailError {
    /// A number is missing from the log. This cannot happen: do not restart blindly.
    #[error(transparent)]
    Gap(#[from] GapError),
    /// Retention has overtaken the tail: start again at the head and let readers resync.
    #[error("the tail is behind retention: needs seq {next_seq}, the lowest retained seq is {min_retained}")]
    Expired {
        /// The number that had to come next.
        next_seq: i64,
        /// The lowest number still in the log.
        min_retained: i64,
    },
    /// The position is above the head: the database was taken back to an earlier state.
    #[error("the tail is at {position}, above the head {head} of the log: it belongs to another history")]
    AheadOfHead {
        /// The position of the tail.
        position: i64,
        /// The highest number in the log.
        head: i64,
    },
    /// The event at the position is not the one that was delivered: the database was taken back to an earlier state, and has gone on with
    /// other events.
    #[error("the tail is at {position}, which is another event by now: it belongs to another history")]
    OtherHistory {
        /// The position of the tail.
        position: i64,
    },
    /// A sink refused a batch.
    #[error("sink {sink} refused events {first_seq} to {last_seq}")]
    Sink {
        /// Its place in the list, from 0.
        sink: usize,
        /// First number of the batch.
        first_seq: i64,
        /// Last number of the batch.
        last_seq: i64,
        /// What it said.
        source: SinkError,
    },
}

/// A tail that knows where it starts. See the [module](self).
#[derive(Debug)]
pub struct Tail {
    pool: PgPool,
    listen: PgConnectOptions,
    config: TailConfig,
    clock: Clock,
    position: watch::Sender<i64>,
    /// The event at the position where it starts, if it is known which that is.
    anchor: Option<Uuid>,
    listening: watch::Sender<bool>,
}

/// What a tail that runs knows of the log.
struct Known {
    durable: DurableHead,
    /// The event at the position. A log that was taken back and has grown past the position again looks like any other, but for this.
    anchor: Option<Uuid>,
}

impl Tail {
    /// Fixes the position where the tail starts. It reads through `pool` and listens over a connection of its own, made with
    /// `listen`: with a pooler in between this one goes to the server itself. Not if [`TailConfig::listen`] says so.
    ///
    /// # Errors
    ///
    /// [`DatabaseError`] when the head cannot be read.
    pub async fn new(
        pool: PgPool,
        listen: PgConnectOptions,
        mut config: TailConfig,
        clock: Clock,
    ) -> Result<Self, DatabaseError> {
        // A page is never larger, and a batch that is not full means that the head is reached.
        config.batch_size = config.batch_size.clamp(1, READ_EVENTS_MAX);
        let (position, anchor) = match config.start {
            Start::After(seq) => (seq.max(0), None),
            // Durable, because a tail that starts above what a crash can take back would miss what gets its number.
            Start::Head => {
                within(config.statement_timeout, async {
                    let mut lease = Lease::acquire(&pool).await?;
                    let head = lease.alone(async |connection| read::head(connection).await).await?;
                    DurableHead::default().wait_for(lease.connection(), head).await?;
                    let anchor = lease.alone(async |connection| read::id_at(connection, head).await).await?;
                    lease.done();
                    Ok::<_, DatabaseError>((head, anchor))
                })
                .await?
            }
        };
        let listen = listen.application_name(TAIL_APPLICATION_NAME);
        let (position, listening) = (watch::Sender::new(position), watch::Sender::new(false));
        Ok(Self { pool, listen, config, clock, position, anchor, listening })
    }

    /// The number up to which all sinks have accepted, and its changes. Keeps working while [`Tail::run`] runs.
    #[must_use]
    pub fn head(&self) -> watch::Receiver<i64> {
        self.position.subscribe()
    }

    /// Whether the listening connection is up, and its changes. When it is not, the tail polls.
    #[must_use]
    pub fn listening(&self) -> watch::Receiver<bool> {
        self.listening.subscribe()
    }

    /// Delivers to `sinks`, each batch to the first before the second, until `stop` is cancelled. A batch that is being
    /// delivered then is finished.
    ///
    /// Dropping the future stops at any point: a batch may then have reached some sinks only.
    ///
    /// # Errors
    ///
    /// [`TailError`]: the process should end with it, so that nobody believes that events still fan out.
    pub async fn run(self, mut sinks: Vec<Box<dyn Sink>>, stop: CancellationToken) -> Result<(), TailError> {
        let wake = Notify::new();
        let listener = self.config.listen.then(|| Listener {
            options: self.listen.clone(),
            probe: self.pool.clone(),
            clock: self.clock.clone(),
            backoff: self.backoff(),
            heartbeat_interval: self.config.listen_heartbeat_interval,
            heartbeat_timeout: self.config.listen_heartbeat_timeout,
        });
        // Both in one task: neither can outlive the other. On the heap, to keep the caller's future small.
        tokio::select! {
            result = Box::pin(self.follow(&wake, &mut sinks, &stop)) => result,
            never = Box::pin(listen::run(listener, &wake, &self.listening)) => match never {},
        }
    }

    async fn follow(
        &self,
        wake: &Notify,
        sinks: &mut [Box<dyn Sink>],
        stop: &CancellationToken,
    ) -> Result<(), TailError> {
        let mut backoff = self.backoff();
        let mut known = Known { durable: DurableHead::default(), anchor: self.anchor };
        let mut outage_logged = false;
        loop {
            let pause = match self.drain(&mut known, sinks, stop).await {
                Ok(()) => {
                    backoff.reset();
                    if std::mem::take(&mut outage_logged) {
                        tracing::info!(seq = *self.position.borrow(), "event tail recovered");
                    }
                    self.config.poll_interval
                }
                Err(Stopped::Fatal(error)) => return Err(error),
                Err(Stopped::Outage(error)) => {
                    if !std::mem::replace(&mut outage_logged, true) {
                        tracing::warn!(error = %error, seq = *self.position.borrow(), "event tail cannot read, trying again");
                    }
                    backoff.next(fastrand::f64())
                }
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                // During an outage the pause holds: a wake-up does not bring the database back.
                () = wake.notified(), if !outage_logged => {}
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    /// Reads and delivers until the head is reached.
    async fn drain(
        &self,
        known: &mut Known,
        sinks: &mut [Box<dyn Sink>],
        stop: &CancellationToken,
    ) -> Result<(), Stopped> {
        while !stop.is_cancelled() {
            let batch = tokio::select! {
                batch = self.read_batch(known) => batch?,
                () = stop.cancelled() => return Ok(()),
            };
            let Some(last) = batch.last() else { return Ok(()) };
            for (sink, target) in sinks.iter_mut().enumerate() {
                target.accept(&batch).await.map_err(|source| TailError::Sink {
                    sink,
                    first_seq: batch[0].seq,
                    last_seq: last.seq,
                    source,
                })?;
            }
            known.anchor = Some(last.id);
            self.position.send_replace(last.seq);
            if batch.len() < self.config.batch_size as usize {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next events that a crash cannot take back.
    async fn read_batch(&self, known: &Known) -> Result<Vec<StoredEvent>, Stopped> {
        let position = *self.position.borrow();
        let (at, batch) = within(self.config.statement_timeout, async {
            let mut lease = Lease::acquire(&self.pool).await?;
            let behind = lease.alone(async |connection| {
                read::events_behind(connection, position, self.config.batch_size).await
            });
            let (at, batch) = behind.await?;
            if let Some(last) = batch.last() {
                known.durable.wait_for(lease.connection(), last.seq).await?;
            }
            lease.done();
            Ok::<_, ReadError>((at, batch))
        })
        .await?;
        match at.zip(known.anchor) {
            Some((at, anchor)) if at != anchor => Err(TailError::OtherHistory { position }.into()),
            _ => Ok(batch),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(self.config.poll_interval, self.config.listen_reconnect_backoff_cap)
    }
}

/// Why reading stopped: for good, or until the database is back.
enum Stopped {
    Fatal(TailError),
    Outage(DatabaseError),
}

impl From<TailError> for Stopped {
    fn from(error: TailError) -> Self {
        Self::Fatal(error)
    }
}

impl From<ReadError> for Stopped {
    fn from(error: ReadError) -> Self {
        Self::Fatal(match error {
            ReadError::Database(error) => return Self::Outage(error),
            ReadError::Gap(gap) => TailError::Gap(gap),
            ReadError::Expired { next_seq, min_retained } => TailError::Expired { next_seq, min_retained },
            ReadError::AheadOfHead { after, head } => TailError::AheadOfHead { position: after, head },
        })
    }
}
