//! Those who follow the log and remember outside the database what they were given.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::sequencer::{Sequencer, SequencerConfig};
use seqline::tail::{Sink, SinkError, Start, Tail, TailConfig};
use seqline::{Clock, DurableHead, ReadError, StoredEvent};
use sqlx::{PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::verdict::Given;
use super::{Fault, Waiting};
use crate::db::{Role, TestDb};

/// How often those who wait look, at most.
const POLL: Duration = Duration::from_millis(20);

/// Longest pause of those who find the server away.
const BACKOFF_CAP: Duration = Duration::from_millis(100);

/// The application name of the consumer.
pub(super) const CONSUMER: &str = "effects";

/// What is wrong so far. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults(Arc<Mutex<Vec<Fault>>>);

impl Faults {
    pub(super) fn extend(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(faults);
    }

    pub(super) fn found(&self) -> Vec<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What an observer was given. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    observer: &'static str,
    events: Arc<Mutex<Vec<(i64, Uuid)>>>,
}

impl Memory {
    pub(super) fn of(observer: &'static str) -> Memory {
        Memory { observer, events: Arc::default() }
    }

    fn keep(&self, page: &[StoredEvent]) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.extend(page.iter().map(|event| (event.seq, event.id)));
    }

    pub(super) fn given(&self) -> Given {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Given { observer: self.observer, events }
    }

    pub(super) fn position(&self) -> i64 {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).last().map_or(0, |(seq, _)| *seq)
    }
}

impl Sink for Memory {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            self.keep(batch);
            Ok(())
        })
    }
}

/// A tail, until it is told to stop.
pub(super) async fn tail(db: &TestDb, memory: Memory, faults: Faults, stop: CancellationToken) {
    let config = TailConfig {
        start: Start::After(0),
        poll_interval: POLL,
        listen_reconnect_backoff_cap: BACKOFF_CAP,
        ..TailConfig::default()
    };
    let tail = Tail::new(db.pool(Role::Reader, 2), db.options(Role::Reader), config, Clock::system());
    let ended = match tail.await {
        Ok(tail) => tail.run(vec![Box::new(memory)], stop).await.err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    faults.extend(ended.map(|error| Fault::Ended { observer: "the tail", error }));
}

/// Reads page after page, each with a connection from the pool, until it is told to stop or cannot go on.
pub(super) async fn page(
    pool: PgPool,
    waiting: Waiting,
    memory: Memory,
    faults: Faults,
    stop: CancellationToken,
) {
    let durable = DurableHead::default();
    while !stop.is_cancelled() {
        let after = memory.position();
        match next_page(&pool, after, waiting, &durable).await {
            Ok(page) if page.is_empty() => Clock::system().sleep(POLL).await,
            Ok(page) => memory.keep(&page),
            Err(ReadError::Database(_)) => Clock::system().sleep(POLL).await,
            Err(error) => {
                faults.extend([Fault::Ended { observer: "the reader", error: error.to_string() }]);
                return;
            }
        }
    }
}

async fn next_page(
    pool: &PgPool,
    after: i64,
    waiting: Waiting,
    durable: &DurableHead,
) -> Result<Vec<StoredEvent>, ReadError> {
    let mut connection = pool.acquire().await?;
    let page = seqline::read::events_after(&mut connection, after, 100).await?;
    if let (Waiting::Kept, Some(last)) = (waiting, page.last()) {
        durable.wait_for(&mut connection, last.seq).await?;
    }
    Ok(page)
}

/// Writes a row for each event.
struct Effects;

impl Handler for Effects {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        sqlx::query("INSERT INTO public.effects (seq, id) VALUES ($1, $2)")
            .bind(event.seq)
            .bind(event.id)
            .execute(round.connection())
            .await?;
        Ok(())
    }
}

/// Where the consumer writes, without anything that would refuse a second row.
pub(super) const EFFECTS: &str =
    "CREATE TABLE public.effects (n bigserial PRIMARY KEY, seq bigint NOT NULL, id uuid NOT NULL);
     GRANT ALL ON public.effects TO PUBLIC; GRANT ALL ON SEQUENCE public.effects_n_seq TO PUBLIC";

/// A worker of the consumer, until it is told to stop.
pub(super) async fn consume(db: &TestDb, faults: Faults, stop: CancellationToken) {
    let config = ConsumerConfig {
        poll_interval: POLL,
        failure_backoff_cap: BACKOFF_CAP,
        listen_reconnect_backoff_cap: BACKOFF_CAP,
        ..ConsumerConfig::default()
    };
    let mut consumers = Consumers::new(db.app_pool(3), db.options(Role::App), config, Clock::system());
    let run = async {
        let consumer = Consumer::new(ConsumerName::new(CONSUMER)?, Effects).start_at(StartAt::Oldest);
        consumers.register(consumer)?;
        consumers.run(stop).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    };
    let ended = run.await.err();
    faults.extend(ended.map(|error| Fault::Ended { observer: "the consumer", error: error.to_string() }));
}

/// Where the cursor is, and what the consumer has done.
pub(super) async fn handled(admin: &mut PgConnection) -> Result<super::verdict::Handled, sqlx::Error> {
    let cursor = cursor(admin).await?;
    let effects = sqlx::query_as("SELECT seq, id FROM public.effects ORDER BY n").fetch_all(admin).await?;
    Ok(super::verdict::Handled { effects, cursor })
}

/// Where the cursor of the consumer is.
pub(super) async fn cursor(admin: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT coalesce(min(last_seq), 0) FROM seqline.event_consumer_cursors WHERE name = $1",
    )
    .bind(CONSUMER)
    .fetch_one(admin)
    .await
}

/// One of the sequencers, until it is told to stop.
pub(super) async fn sequence(pool: PgPool, stop: CancellationToken) {
    let config = SequencerConfig { reconnect_backoff_cap: BACKOFF_CAP, ..SequencerConfig::default() };
    Sequencer::new(pool, config, Clock::system()).run(stop).await;
}
