//! The log into the stream: each event exactly once and in order, whatever happens.
//!
//! The log is the outbox. A relay reads it behind its cursor, publishes with many messages under way at once, and moves the cursor over what the
//! broker has acknowledged. Three things make that exact:
//!
//! - **Every message names the place that it is for** (`Nats-Expected-Last-Sequence`): the broker takes it there or not at all. So a message that
//!   is late, a message that is sent twice and two relays at once cannot put anything into the stream twice, however long they
//!   were away. It does not depend on what the broker remembers of ids, nor on the lease, which only saves work.
//! - **After any failure the relay looks.** It stops, waits for what is under way, and reads the stream from its cursor to the end, from the
//!   leader. A message counts when the log has its event, by id, at its position. What is missing is published first, one at a time; then it
//!   goes on behind the last message.
//! - **The cursor moves only over what is there without a hole**, and only by whoever holds the lease.
//!
//! What is not guaranteed: a message that somebody else writes between ours can leave a hole, which is filled late and so out of order; and a
//! message that somebody deleted where the relay still has to look is missing there, and is published again unless the broker remembers its id.
//! That is so behind the cursor, at the end of the stream and in the middle, and after the stream has lost its end or was made anew also
//! up to 8,192 events before the last one that is there. Who publishes there so much that
//! every place is taken before a message of ours is there has the relay publish for no place, one at a time; only then it is the
//! lease and the broker's memory of ids that keep two relays apart. All of that is recorded, as is everything else that somebody should
//! know: see [`operate`]. Let nobody else publish on the subjects of the stream.
//!
//! | module | what it does |
//! |---|---|
//! | `walk` | judges what lies in the stream (decides, reads nothing) |
//! | `window` | what is under way, and how far it is acknowledged (the same) |
//! | `pace` | how much may be under way, and how long to wait (the same) |
//! | `recover` | finds out where the stream is and what is missing |
//! | `settle` | finds out whether the log is the right one |
//! | `fill` | publishes what is missing |
//! | `send` | publishes until the head of the log is reached |
//! | `link` | makes messages, and the connection over which they go |
//! | `source` | reads the log, writes the row |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use seqline::identity::HistoryWatch;
use seqline::{Clock, DurableHead};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::broker::Broker;
use crate::limits::{
    BATCH_MAX, INCIDENT_LOG_INTERVAL, RELAY_WINDOW_BYTES_MAX, RELAY_WINDOW_MAX, RESYNC_PAUSE, STOP_PATIENCE,
};
use crate::store::relay as store;
use crate::stream::StreamSettings;
use cursor::{Cursor, Told};
use link::Link;
use pace::{Adaptation, Backoff};
use source::Source;

pub use error::{RelayError, STALLED_BY};
pub use tally::{RelayTally, StreamFacts};

mod answer;
pub(crate) mod cursor;
mod error;
mod fill;
mod link;
pub mod operate;
mod outcome;
mod pace;
mod recover;
mod send;
mod settle;
mod source;
mod tally;
mod walk;
mod window;

/// The name of a relay unless somebody says so.
pub const DEFAULT_NAME: &str = "jetstream";

/// Where a relay begins that has no cursor yet, in a stream that holds nothing of this log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RelayStart {
    /// With the oldest event that retention has left.
    #[default]
    Oldest,
    /// With what comes after the head.
    Head,
}

/// What a process may choose about its relay.
///
/// ```
/// use seqline_nats::relay::RelayConfig;
///
/// let mut config = RelayConfig::default();
/// config.stream.replicas = 3;
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RelayConfig {
    /// Its name: those of one name take turns, those of different names publish into different streams. `jetstream`.
    pub name: String,
    /// The stream.
    pub stream: StreamSettings,
    /// Where it begins.
    pub start: RelayStart,
    /// Most messages under way at once, 1 to 4,096. 1,000.
    pub window: u32,
    /// Most bytes under way at once. 8 MiB.
    pub window_bytes: u32,
    /// Events that are read at once. 500.
    pub page: u32,
    /// How often it looks for new events when there were none. 200 ms.
    pub poll_interval: Duration,
    /// How often the cursor is saved while it moves. 100 ms.
    pub save_interval: Duration,
    /// After how long without a sign of life another process takes over. 10 seconds.
    pub lease: Duration,
    /// Longest pause between two attempts to go on after a failure. 5 seconds.
    pub resync_backoff_cap: Duration,
    /// How long the broker may take to acknowledge a message. 5 seconds.
    pub ack_timeout: Duration,
    /// How long the database may take to answer. 30 seconds.
    pub statement_timeout: Duration,
    /// Publish in atomic batches of so many events, 2 to 1,000, one at a time. Needs nats-server 2.12.1, and lets the broker take all of a batch or
    /// nothing, so that nobody else can open a hole. Off.
    pub atomic_batches: Option<u32>,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            stream: StreamSettings::default(),
            start: RelayStart::Oldest,
            window: 1000,
            window_bytes: 8 * 1024 * 1024,
            page: 500,
            poll_interval: Duration::from_millis(200),
            save_interval: Duration::from_millis(100),
            lease: Duration::from_secs(10),
            resync_backoff_cap: Duration::from_secs(5),
            ack_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            atomic_batches: None,
        }
    }
}

/// What a pass has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Events that the broker acknowledged in it.
    pub published: u64,
    /// Every event up to here is in the stream.
    pub position: i64,
    /// How many events come after that. 0 unless the relay is paused or was told to stop.
    pub behind: i64,
}

/// Copies the log into a stream. See the [module](self).
///
/// ```no_run
/// use seqline_nats::broker::{Broker, BrokerConfig};
/// use seqline_nats::relay::{Relay, RelayConfig};
/// use tokio_util::sync::CancellationToken;
///
/// # async fn example(pool: sqlx::PgPool, stop: CancellationToken) {
/// let broker = Broker::new(BrokerConfig::new("nats://broker.example.com:4222"));
/// let mut relay = Relay::new(pool, broker, RelayConfig::default(), seqline::Clock::system());
/// relay.run(stop).await;
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    broker: Broker,
    config: RelayConfig,
    clock: Clock,
    source: Source,
    tally: Arc<RelayTally>,
    /// Who this is, among all that run a relay of this name.
    holder: Uuid,
    held: Option<Held>,
    /// Where the stream is, as long as nothing went wrong.
    link: Option<Link>,
    adaptation: Adaptation,
    watch: HistoryWatch,
    /// When the history was last found to be settled.
    settled_at: Option<Duration>,
    /// When the facts about the stream were asked for.
    facts_at: Option<Duration>,
    /// The stream was made, or found to be as it should be.
    ensured: bool,
    /// When it last said that it met something of a kind.
    said: BTreeMap<&'static str, Duration>,
    /// What was met and is not recorded yet.
    to_tell: Vec<store::Incident>,
    /// Places of the stream up to here were told of, or are about to be.
    noted_to: u64,
    /// Events up to here were in the stream before.
    republish_to: i64,
    /// Events up to here had messages at the end of the stream that somebody deleted.
    again_to: i64,
    /// Events up to here were told of for not fitting into a message.
    left_out_to: i64,
    /// Events that the broker says it has although the stream does not show them: their messages were deleted.
    assumed: BTreeSet<i64>,
    /// Up to here no batch: the broker has some of it.
    singly_to: i64,
    /// Events that were acknowledged since the last pass that ended.
    progress: u64,
    /// Whether there were any in the pass before.
    progressed: bool,
    /// How many passes in a row ended with an error and without progress, since that was last told.
    fruitless: u32,
    /// The pass before had room for next to nothing because something else was stored in between.
    squeezed: bool,
    /// How often in a row that was so because of messages that no relay wrote.
    crowded: u32,
    database_away: bool,
}

/// The relay is this process's, as far as it knows.
#[derive(Debug)]
struct Held {
    generation: i64,
    cursor: Cursor,
    told: Told,
    saved_at: Duration,
    /// How often it was saved, and heard by that what is to be done.
    saves: u64,
    dirty: bool,
    /// The row says that something keeps it from going on.
    stalled: bool,
}

impl Relay {
    /// Does nothing yet: neither the database nor the broker is asked. Settings out of bounds become the bound.
    #[must_use]
    pub fn new(pool: PgPool, broker: Broker, mut config: RelayConfig, clock: Clock) -> Self {
        config.window = config.window.clamp(1, RELAY_WINDOW_MAX);
        config.window_bytes = config.window_bytes.clamp(1, RELAY_WINDOW_BYTES_MAX);
        config.page = config.page.clamp(1, seqline::limits::READ_EVENTS_MAX);
        config.atomic_batches = config.atomic_batches.map(|count| count.clamp(2, BATCH_MAX));
        config.stream.atomic_batches |= config.atomic_batches.is_some();
        let source = Source {
            pool,
            clock: clock.clone(),
            timeout: config.statement_timeout,
            durable: Arc::new(DurableHead::default()),
        };
        Self {
            broker,
            adaptation: Adaptation::new(config.window),
            config,
            clock,
            source,
            tally: Arc::default(),
            holder: Uuid::new_v4(),
            held: None,
            link: None,
            watch: HistoryWatch::default(),
            settled_at: None,
            facts_at: None,
            ensured: false,
            said: BTreeMap::new(),
            to_tell: Vec::new(),
            noted_to: 0,
            republish_to: 0,
            again_to: 0,
            left_out_to: 0,
            assumed: BTreeSet::new(),
            singly_to: 0,
            progress: 0,
            progressed: false,
            fruitless: 0,
            squeezed: false,
            crowded: 0,
            database_away: false,
        }
    }

    /// What it has done, for metrics. Goes on to be true while it runs.
    #[must_use]
    pub fn tally(&self) -> Arc<RelayTally> {
        Arc::clone(&self.tally)
    }

    /// Publishes whatever is committed, until `stop` is cancelled. Neither a broker nor a database that is away ends it, nor anything else. What is
    /// under way when it is to stop is waited for, for a moment; then the cursor is saved and the lease given back.
    ///
    /// Dropping the future stops at any point, as a crash does: whoever runs the relay next finds out what was published.
    pub async fn run(&mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(RESYNC_PAUSE, self.config.resync_backoff_cap);
        let clock = self.clock.clone();
        while !stop.is_cancelled() {
            let too_long = async {
                stop.cancelled().await;
                clock.sleep(STOP_PATIENCE * 2).await;
            };
            // On the heap, to keep the caller's future small.
            let done = tokio::select! {
                done = Box::pin(self.pass(&stop)) => done,
                // Something does not answer. That is like a crash.
                () = too_long => break,
            };
            let pause = match done {
                Ok(_) => {
                    backoff.reset();
                    self.config.poll_interval
                }
                Err(RelayError::HeldElsewhere | RelayError::Replaced) => {
                    backoff.reset();
                    self.config.lease / 4
                }
                Err(_) => {
                    if self.progressed {
                        backoff.reset();
                    }
                    backoff.next(fastrand::f64())
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(pause) => {}
            }
        }
        Box::pin(self.give_back()).await;
    }

    /// One pass of what [`run`](Self::run) repeats: takes the lease if it is to be had, finds out where the stream is if that is not known, and
    /// publishes all events up to the head. The lease is kept.
    ///
    /// Cancel safe in the same way: as a crash.
    ///
    /// # Errors
    ///
    /// [`RelayError`] by name. What was acknowledged until then is counted and, if the database can be asked, saved.
    pub async fn drain_once(&mut self) -> Result<Drained, RelayError> {
        Box::pin(self.pass(&CancellationToken::new())).await
    }

    async fn pass(&mut self, stop: &CancellationToken) -> Result<Drained, RelayError> {
        let done = Box::pin(self.publish_what_is_there(stop)).await;
        self.conclude(&done).await;
        done
    }

    async fn publish_what_is_there(&mut self, stop: &CancellationToken) -> Result<Drained, RelayError> {
        let before = self.tally.published();
        loop {
            self.hold().await?;
            if let Some(head) = self.rests().await? {
                return Ok(self.drained(before, head));
            }
            self.look_now_and_then().await?;
            let link = match self.link.take() {
                Some(link) if link.is_connected() && self.is_where_it_was(&link).await? => Some(link),
                _ => Box::pin(self.recover(stop)).await?,
            };
            let Some(link) = link else { continue };
            if let Some(head) = self.send(link, stop).await? {
                return Ok(self.drained(before, head));
            }
        }
    }

    fn drained(&self, published_before: u64, head: i64) -> Drained {
        let position = self.held.as_ref().map_or(0, |held| held.cursor.position);
        let behind = (head - position).max(0);
        self.tally.set_behind(behind);
        Drained { published: self.tally.published() - published_before, position, behind }
    }

    /// Whether it is paused, and the head of the log if so. It keeps the lease then.
    async fn rests(&mut self) -> Result<Option<i64>, RelayError> {
        let Some(held) = self.held.as_ref().filter(|held| held.told.paused) else { return Ok(None) };
        let page = self.source.page(self.lease()?, held.cursor.position, 1).await;
        match page {
            Ok(page) => {
                self.held()?.told = page.told;
                self.save_if_due().await?;
                Ok(page.told.paused.then_some(page.head))
            }
            // It goes on reading where the log begins, once it goes on.
            Err(RelayError::Log(_) | RelayError::HistoryChanged) => {
                self.save().await?;
                let head = self.standing().await?.head;
                Ok(self.held()?.told.paused.then_some(head))
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the lease, unless it is held already or there is nothing to hold yet.
    async fn hold(&mut self) -> Result<(), RelayError> {
        if self.held.is_some() {
            return Ok(());
        }
        self.link = None;
        let (name, holder, length) = (self.config.name.clone(), self.holder, self.config.lease);
        let row = self
            .source
            .ask(async |connection| match store::acquire(connection, &name, holder, length).await? {
                None if store::exists(connection, &name).await? => Ok(Err(RelayError::HeldElsewhere)),
                row => Ok(Ok(row)),
            })
            .await??;
        if let Some(row) = row {
            self.noted_to = row.cursor.stream_seq;
            let told = Told { paused: row.paused, rewind_to: row.rewind_to };
            self.take(row.generation, row.cursor, told);
            self.held()?.stalled = row.stalled;
        }
        Ok(())
    }

    fn take(&mut self, generation: i64, cursor: Cursor, told: Told) {
        let saved_at = self.clock.elapsed();
        self.held = Some(Held { generation, cursor, told, saved_at, saves: 0, dirty: false, stalled: false });
        self.tally.set_active(true);
        self.tally.set_standing_by(false);
    }

    fn lose(&mut self) {
        self.held = None;
        self.link = None;
        self.tally.set_active(false);
    }

    fn held(&mut self) -> Result<&mut Held, RelayError> {
        self.held.as_mut().ok_or(RelayError::Replaced)
    }

    fn lease(&self) -> Result<store::Lease<'_>, RelayError> {
        let held = self.held.as_ref().ok_or(RelayError::Replaced)?;
        Ok(store::Lease {
            name: &self.config.name,
            holder: self.holder,
            generation: held.generation,
            length: self.config.lease,
        })
    }

    /// Writes how far it is, and hears whether it is still this process that runs the relay.
    async fn save(&mut self) -> Result<(), RelayError> {
        // First what was met: it is told twice after a crash in between, and never not at all.
        self.tell().await?;
        let (lease, stream) = (self.lease()?, &self.config.stream.name);
        let Some(cursor) = self.held.as_ref().map(|held| held.cursor) else { return Ok(()) };
        let told =
            self.source.ask(async |connection| store::save(connection, lease, stream, &cursor).await).await?;
        let Some(told) = told else {
            self.lose();
            return Err(RelayError::Replaced);
        };
        let now = self.clock.elapsed();
        let held = self.held()?;
        (held.told, held.saved_at, held.dirty) = (told, now, false);
        held.saves += 1;
        Ok(())
    }

    /// Records what was met. What cannot be recorded now is recorded with the next saving.
    async fn tell(&mut self) -> Result<(), RelayError> {
        while let Some(incident) = self.to_tell.last().copied() {
            self.note(incident).await?;
            self.to_tell.pop();
        }
        Ok(())
    }

    /// Saves if that is due: what has moved after a short while, and the lease alone well before it runs out.
    async fn save_if_due(&mut self) -> Result<(), RelayError> {
        let now = self.clock.elapsed();
        let (interval, lease) = (self.config.save_interval, self.config.lease / 3);
        let due = self.held.as_ref().is_some_and(|held| {
            let since = now.saturating_sub(held.saved_at);
            since >= lease || held.dirty && since >= interval
        });
        if due { self.save().await } else { Ok(()) }
    }

    /// Records what was met, and says so: not each time, where somebody does it again and again.
    async fn note(&mut self, incident: store::Incident) -> Result<(), RelayError> {
        let store::Incident { kind, count, positions, stream_seq } = incident;
        let now = self.clock.elapsed();
        let said = self.said.get(kind).is_some_and(|at| now.saturating_sub(*at) < INCIDENT_LOG_INTERVAL);
        if !said {
            self.said.insert(kind, now);
            tracing::warn!(
                relay = %self.config.name, kind, count, stream_seq,
                first_position = positions.map(|(first, _)| first), last_position = positions.map(|(_, last)| last),
                "the relay met something that should not be"
            );
        }
        let name = &self.config.name;
        if self.source.ask(async |connection| store::note(connection, name, &incident).await).await? {
            return Ok(());
        }
        // Somebody has deleted the relay, and with it what it met.
        self.to_tell.clear();
        self.lose();
        Err(RelayError::Replaced)
    }
}
