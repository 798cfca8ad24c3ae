//! Following the log: everything after the start, in order, once, whatever the network does.
//!
//! A manual clock proves why something happened: while its hand stands still nothing is polled and no heartbeat is due.

mod delivery;
mod endings;
mod outage;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::clock::ClockHand;
use seqline::tail::{Sink, SinkError, Start, TAIL_APPLICATION_NAME, Tail, TailConfig, TailError};
use seqline::{Clock, StoredEvent};
use seqline_testkit::{FaultProxy, Role, TestDb, eventually};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Row};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long anything may take that should happen at once.
const DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_secs(10);
/// In real time, so as short as a busy machine allows.
const SHORT: Duration = Duration::from_secs(1);

/// For a manual clock; what is measured in real time is long unless a test is about it.
fn config(start: Start) -> TailConfig {
    TailConfig {
        start,
        poll_interval: POLL,
        batch_size: 10,
        listen: true,
        listen_reconnect_backoff_cap: POLL,
        listen_heartbeat_interval: HEARTBEAT,
        listen_heartbeat_timeout: DEADLINE,
        statement_timeout: DEADLINE,
    }
}

/// For the system's clock: polls and reconnects often.
pub(crate) fn quick(start: Start) -> TailConfig {
    let step = Duration::from_millis(20);
    TailConfig { poll_interval: step, listen_reconnect_backoff_cap: step, ..config(start) }
}

pub(crate) fn manual() -> (Clock, ClockHand) {
    Clock::manual(Clock::system().now())
}

/// A batch as a sink got it: the place of the sink, and number and id of each event.
type Batch = (usize, Vec<(i64, Uuid)>);

/// What the sinks took, batch by batch.
#[derive(Debug, Clone, Default)]
struct Taken(Arc<Mutex<Vec<Batch>>>);

impl Taken {
    fn batches(&self) -> Vec<(usize, Vec<i64>)> {
        let taken = self.0.lock().expect("no sink panicked");
        taken.iter().map(|(sink, batch)| (*sink, batch.iter().map(|(seq, _)| *seq).collect())).collect()
    }

    fn events(&self) -> Vec<(i64, Uuid)> {
        self.0.lock().expect("no sink panicked").iter().flat_map(|(_, batch)| batch.clone()).collect()
    }

    fn seqs(&self) -> Vec<i64> {
        self.events().into_iter().map(|(seq, _)| seq).collect()
    }
}

/// Takes everything, but not before it is let.
struct Recorder {
    place: usize,
    taken: Taken,
    open: watch::Receiver<bool>,
}

impl Sink for Recorder {
    fn accept<'a>(&'a mut self, batch: &'a [StoredEvent]) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let events = batch.iter().map(|event| (event.seq, event.id)).collect();
            self.taken.0.lock().expect("no sink panicked").push((self.place, events));
            self.open.wait_for(|open| *open).await?;
            Ok(())
        })
    }
}

/// A tail that runs on a task, as a reader.
pub(crate) struct Running {
    taken: Taken,
    head: watch::Receiver<i64>,
    pub(crate) listening: watch::Receiver<bool>,
    pub(crate) stop: CancellationToken,
    task: JoinHandle<Result<(), TailError>>,
    /// Lets the sink take what it was given.
    open: watch::Sender<bool>,
}

impl Running {
    pub(crate) async fn start(
        pool: PgPool,
        listen: PgConnectOptions,
        config: TailConfig,
        clock: Clock,
    ) -> Self {
        let (taken, open) = (Taken::default(), watch::Sender::new(true));
        let sink = Recorder { place: 0, taken: taken.clone(), open: open.subscribe() };
        let tail = Tail::new(pool, listen, config, clock).await.expect("the head can be read");
        Self::of(tail, vec![Box::new(sink)], taken, open)
    }

    fn of(tail: Tail, sinks: Vec<Box<dyn Sink>>, taken: Taken, open: watch::Sender<bool>) -> Self {
        let stop = CancellationToken::new();
        let (head, listening) = (tail.head(), tail.listening());
        let task = tokio::spawn(tail.run(sinks, stop.clone()));
        Self { taken, head, listening, stop, task, open }
    }

    /// Directly at the database.
    async fn on(db: &TestDb, config: TailConfig, clock: Clock) -> Self {
        Self::start(db.reader(), db.options(Role::Reader), config, clock).await
    }

    fn position(&self) -> i64 {
        *self.head.borrow()
    }

    pub(crate) async fn reaches(&mut self, seq: i64) {
        let reached = tokio::time::timeout(DEADLINE, self.head.wait_for(|head| *head >= seq)).await;
        let _ = reached.unwrap_or_else(|_| panic!("the tail did not reach {seq}")).expect("the tail runs");
    }

    async fn listens(&mut self, expected: bool) {
        let changed = self.listening.wait_for(|listening| *listening == expected);
        let _ = tokio::time::timeout(DEADLINE, changed)
            .await
            .unwrap_or_else(|_| panic!("listening did not become {expected}"))
            .expect("the tail runs");
    }

    /// How it ends, which must be soon.
    pub(crate) async fn ends(self) -> Result<(), TailError> {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("the tail ends soon")
            .expect("the tail does not panic")
    }
}

/// Moves the hand step by step: a wait that begins after a step is due only with the next.
pub(crate) async fn advance_until(
    hand: &ClockHand,
    step: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) {
    eventually(DEADLINE, what, async || {
        let done = condition();
        if !done {
            hand.advance(step);
        }
        done
    })
    .await;
}

/// A proxy in front of the database's server.
pub(crate) async fn proxy_for(db: &TestDb) -> FaultProxy {
    let target = ([127, 0, 0, 1], db.options(Role::Reader).get_port()).into();
    FaultProxy::start(target).await.expect("a proxy starts")
}

pub(crate) fn through(proxy: &FaultProxy, db: &TestDb, role: Role) -> PgConnectOptions {
    db.options(role).port(proxy.addr().port())
}

fn pool_through(proxy: &FaultProxy, db: &TestDb, role: Role, max_connections: u32) -> PgPool {
    PgPoolOptions::new().max_connections(max_connections).connect_lazy_with(through(proxy, db, role))
}

/// Whether the next borrower gets a connection without a transaction. By the simple protocol, in which the statement's
/// time is that of its transaction unless one was open.
pub(crate) async fn hands_out_fresh_connections(pool: &PgPool) -> bool {
    let row =
        sqlx::raw_sql("SELECT now() = statement_timestamp()").fetch_one(pool).await.expect("the pool works");
    row.get(0)
}

/// The processes of the server that serve the listening connections of tails.
async fn listening_backends(db: &TestDb) -> Vec<i32> {
    sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database() ORDER BY pid",
    )
    .bind(TAIL_APPLICATION_NAME)
    .fetch_all(&db.admin())
    .await
    .expect("the activity can be read")
}

/// The owner writes a row itself, as only a bug could: without numbering and without a notification.
pub(crate) async fn insert_as_owner(db: &TestDb, seqs: &[i64]) {
    sqlx::query(
        "INSERT INTO seqline.event_log (seq, id, type, schema_version, permission_version, resource_kind, receive_action, payload)
         SELECT seq, gen_random_uuid(), 'test.happened', 1, 0, 'test', 'any', '{}' FROM unnest($1::bigint[]) seq",
    )
    .bind(seqs)
    .execute(&db.admin())
    .await
    .expect("the owner can insert");
}
