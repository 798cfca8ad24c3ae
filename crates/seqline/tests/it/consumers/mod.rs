//! Worker consumers: rounds, and the workers that run them.
//!
//! Every event has two effects, written by two statements, so that an event that was handled by halves would show. A manual
//! clock proves why something happened: while its hand stands still nothing is polled and no pause ends.

mod appends;
mod crashes;
mod dropped;
mod failures;
mod filters;
mod gathering;
mod guards;
mod handlers;
mod lanes;
mod logs;
mod losses;
mod moves;
mod names;
mod outages;
mod parking;
mod paused;
pub(crate) mod random;
mod registration;
mod replays;
mod rounds;
mod runner;
mod schedule;
mod stop;
mod timeouts;
mod transactions;
mod views;
mod waits;
mod wakes;
mod workers;

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use seqline::clock::ClockHand;
use seqline::consumer::{
    CONSUMER_WAKE_APPLICATION_NAME, Consumer, ConsumerConfig, ConsumerName, ConsumerState, Consumers,
    ConsumersError, Handler, HandlerError, LostRange, Outcome, Round, RoundError, RoundResult, StartAt,
    states,
};
use seqline::{Clock, StoredEvent};
use seqline_testkit::{FaultProxy, Role, TestDb, eventually};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::support::{append, head, more_subscribers};
use crate::tail::{advance_until, hands_out_fresh_connections, insert_as_owner, manual, proxy_for, through};

/// How long anything may take that should happen at once.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const POLL: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_secs(10);
/// In real time, so as short as a busy machine allows.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// The consumer of most tests.
pub(crate) const PROBE: &str = "probe";

/// For a manual clock; what is measured in real time is long unless a test is about it.
pub(crate) fn config() -> ConsumerConfig {
    ConsumerConfig {
        batch_size: 10,
        scan_size: 100,
        poll_interval: POLL,
        event_timeout: 60 * POLL,
        failure_backoff_cap: 16 * POLL,
        stop_timeout: 60 * POLL,
        statement_timeout: DEADLINE,
        lock_timeout: DEADLINE,
        idle_in_tx_timeout: 4 * DEADLINE,
        listen: true,
        listen_reconnect_backoff_cap: POLL,
        listen_heartbeat_interval: 1000 * HEARTBEAT,
        listen_heartbeat_timeout: DEADLINE,
    }
}

/// For the system's clock: polls, reconnects and tries again often.
pub(crate) fn quick() -> ConsumerConfig {
    let step = Duration::from_millis(20);
    ConsumerConfig {
        poll_interval: step,
        failure_backoff_cap: step,
        listen_reconnect_backoff_cap: step,
        event_timeout: DEADLINE,
        stop_timeout: DEADLINE,
        listen_heartbeat_interval: HEARTBEAT,
        ..config()
    }
}

pub(crate) fn name(name: &str) -> ConsumerName {
    ConsumerName::new(name).expect("the name is valid")
}

/// A database with a table for effects that the application made. `xid` tells rounds apart.
pub(crate) async fn database() -> TestDb {
    let db = TestDb::new().await;
    make_effects(&db).await;
    db
}

pub(crate) async fn make_effects(db: &TestDb) {
    sqlx::raw_sql(
        "CREATE TABLE effects (
             id bigserial, consumer text NOT NULL, seq bigint NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id())",
    )
    .execute(&db.app())
    .await
    .expect("the application makes its table");
}

pub(crate) type Handling<'a> = BoxFuture<'a, Result<(), HandlerError>>;

/// Writes two effects for each event and then does what the test wants.
pub(crate) struct Acting<F>(F);

/// The handler that does `then` after the two effects of an event.
pub(crate) fn acting<F>(then: F) -> Acting<F>
where
    F: for<'a, 'r> Fn(&'a StoredEvent, &'a mut Round<'r>) -> Handling<'a> + Send + Sync + 'static,
{
    Acting(then)
}

/// The handler that only writes the two effects.
pub(crate) fn plain() -> impl Handler {
    acting(|_, _| Box::pin(async { Ok(()) }))
}

impl<F> Handler for Acting<F>
where
    F: for<'a, 'r> Fn(&'a StoredEvent, &'a mut Round<'r>) -> Handling<'a> + Send + Sync + 'static,
{
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        let consumer = round.consumer().as_str().to_owned();
        for _ in 0..2 {
            sqlx::query("INSERT INTO effects (consumer, seq) VALUES ($1, $2)")
                .bind(&consumer)
                .bind(event.seq)
                .execute(round.connection())
                .await?;
        }
        (self.0)(event, round).await
    }
}

/// Stops handlers at a place and lets the test see that they are there.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub(crate) reached: watch::Sender<i64>,
    pub(crate) open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn closed() -> Self {
        Self { reached: watch::Sender::new(0), open: watch::Sender::new(false) }
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Where handlers stop.
    pub(crate) async fn pass(&self, seq: i64) {
        self.reached.send_replace(seq);
        self.open.subscribe().wait_for(|open| *open).await.expect("the gate is there");
    }

    pub(crate) async fn is_reached(&self, seq: i64) {
        let mut reached = self.reached.subscribe();
        let at_gate = reached.wait_for(|reached| *reached >= seq);
        let _ = tokio::time::timeout(DEADLINE, at_gate)
            .await
            .unwrap_or_else(|_| panic!("seq {seq} does not reach the gate"))
            .expect("the gate is there");
    }

    /// A handler that stops at the gate after the effects of each event.
    pub(crate) fn handler(&self) -> impl Handler {
        let gate = self.clone();
        acting(move |event, _| {
            let (gate, seq) = (gate.clone(), event.seq);
            Box::pin(async move {
                gate.pass(seq).await;
                Ok(())
            })
        })
    }
}

/// Something that handlers do until it is switched off, and how often they did it.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    pub(crate) on: Arc<AtomicBool>,
    pub(crate) times: Arc<AtomicUsize>,
}

impl Switch {
    pub(crate) fn on() -> Self {
        Self { on: Arc::new(AtomicBool::new(true)), times: Arc::default() }
    }

    pub(crate) fn off(&self) {
        self.on.store(false, Ordering::SeqCst);
    }

    /// Whether it is on; counted if so.
    pub(crate) fn acts(&self) -> bool {
        let on = self.on.load(Ordering::SeqCst);
        self.times.fetch_add(usize::from(on), Ordering::SeqCst);
        on
    }

    pub(crate) fn times(&self) -> usize {
        self.times.load(Ordering::SeqCst)
    }

    /// A handler that fails at one event while this is on.
    pub(crate) fn failing_at(&self, seq: i64) -> impl Handler {
        let switch = self.clone();
        acting(move |event, _| {
            let fails = event.seq == seq && switch.acts();
            Box::pin(async move { if fails { Err("refused".into()) } else { Ok(()) } })
        })
    }
}

pub(crate) fn consumers(
    pool: PgPool,
    listen: PgConnectOptions,
    config: ConsumerConfig,
    clock: Clock,
    list: impl IntoIterator<Item = Consumer>,
) -> Consumers {
    let mut consumers = Consumers::new(pool, listen, config, clock);
    for consumer in list {
        consumers.register(consumer).expect("the names differ");
    }
    consumers
}

/// A consumer called `probe` that begins with the oldest event.
pub(crate) fn probe(handler: impl Handler) -> Consumer {
    Consumer::new(name(PROBE), handler).start_at(StartAt::Oldest)
}

/// One consumer on a database of its own and a pool of one connection, so that a connection that a round has spoiled is the
/// next one's too. Its rounds are called by hand.
pub(crate) struct Bench {
    pub(crate) db: TestDb,
    pub(crate) pool: PgPool,
    pub(crate) consumers: Consumers,
    pub(crate) hand: ClockHand,
}

impl Bench {
    pub(crate) async fn new(config: ConsumerConfig, handler: impl Handler) -> Self {
        Self::on(database().await, config, probe(handler)).await
    }

    pub(crate) async fn on(db: TestDb, config: ConsumerConfig, consumer: Consumer) -> Self {
        let pool = db.app_pool(1);
        let (clock, hand) = manual();
        let consumers = consumers(pool.clone(), db.options(Role::App), config, clock, [consumer]);
        consumers.ensure().await.expect("the cursor is made");
        Self { db, pool, consumers, hand }
    }

    /// As it was before the first round.
    pub(crate) async fn begin_again(&self) {
        set_cursor(&self.db, 0).await;
        as_admin(&self.db, "TRUNCATE effects").await;
    }

    pub(crate) async fn round(&self) -> Result<RoundResult, RoundError> {
        tokio::time::timeout(2 * DEADLINE, self.consumers.round(&name(PROBE)))
            .await
            .expect("it comes to an end")
    }

    /// A round that handles this many events.
    pub(crate) async fn processes(&self, events: usize) -> RoundResult {
        let result = self.round().await.expect("the round succeeds");
        assert_eq!((result.outcome, result.processed), (Outcome::Processed, events));
        result
    }

    /// Nothing of any round is there.
    pub(crate) async fn assert_untouched(&self) {
        assert_eq!((cursor(&self.db, PROBE).await, effects(&self.db).await), (0, vec![]));
    }

    /// Events up to `seq` have had their effects, and each exactly once.
    pub(crate) async fn assert_handled(&self, seq: i64) {
        assert_eq!((cursor(&self.db, PROBE).await, effects(&self.db).await), (seq, twice(1..=seq)));
    }

    /// The pool gives out a connection on which nothing is under way.
    pub(crate) async fn assert_pool_is_sound(&self) {
        assert!(hands_out_fresh_connections(&self.pool).await, "the next borrower is in a transaction");
        assert_eq!(open_transactions(&self.db).await, 0);
    }
}

pub(crate) async fn open_transactions(db: &TestDb) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    .fetch_one(&db.admin())
    .await
    .expect("the activity can be read")
}

/// The numbers of the effects that are committed, in order of the numbers.
pub(crate) async fn effects(db: &TestDb) -> Vec<i64> {
    effects_of(db, PROBE).await
}

async fn effects_of(db: &TestDb, consumer: &str) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM effects WHERE consumer = $1 ORDER BY seq")
        .bind(consumer)
        .fetch_all(&db.admin())
        .await
        .expect("the effects can be read")
}

/// How many events each round handled, in the order of the rounds.
async fn rounds(db: &TestDb) -> Vec<i64> {
    sqlx::query_scalar(
        "SELECT count(DISTINCT seq) FROM effects WHERE consumer = $1 GROUP BY xid ORDER BY min(id)",
    )
    .bind(PROBE)
    .fetch_all(&db.admin())
    .await
    .expect("the effects can be read")
}

pub(crate) fn twice(seqs: impl IntoIterator<Item = i64>) -> Vec<i64> {
    seqs.into_iter().flat_map(|seq| [seq, seq]).collect()
}

/// -1 while there is none.
pub(crate) async fn cursor(db: &TestDb, consumer: &str) -> i64 {
    let cursors: Vec<i64> =
        sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors WHERE name = $1")
            .bind(consumer)
            .fetch_all(&db.admin())
            .await
            .expect("the cursor can be read");
    assert!(cursors.len() <= 1, "a consumer has one cursor: {cursors:?}");
    cursors.first().copied().unwrap_or(-1)
}

/// What only an operator may: sets the cursor of the probe.
pub(crate) async fn set_cursor(db: &TestDb, seq: i64) {
    sqlx::query("UPDATE seqline.event_consumer_cursors SET last_seq = $1 WHERE name = $2")
        .bind(seq)
        .bind(PROBE)
        .execute(&db.admin())
        .await
        .expect("a superuser sets the cursor");
}

pub(crate) async fn reaches(db: &TestDb, consumer: &str, seq: i64) {
    let what = format!("consumer {consumer} at {seq}");
    eventually(DEADLINE, &what, async || cursor(db, consumer).await >= seq).await;
    assert_eq!(cursor(db, consumer).await, seq);
}

/// The state of a consumer that there is, or will be at once.
pub(crate) async fn state_of(db: &TestDb, consumer: &str) -> ConsumerState {
    eventually(DEADLINE, "the cursor", async || cursor(db, consumer).await >= 0).await;
    let all = states(&mut db.connect(Role::App).await).await.expect("states can be read");
    all.into_iter().find(|state| state.name == consumer).expect("the consumer is there")
}

/// A session that has registered the probe for polling and neither commits nor ends.
async fn registers_and_stays(db: &TestDb) -> PgConnection {
    let mut squatter = db.connect(Role::Consumer).await;
    sqlx::raw_sql("BEGIN; SELECT seqline.register_consumer('probe')").execute(&mut squatter).await.unwrap();
    squatter
}

/// How many backends wait to make a cursor.
async fn waiting_to_ensure(db: &TestDb) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
         AND query LIKE '%ensure_consumer%'",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap()
}

pub(crate) async fn as_admin(db: &TestDb, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&db.admin()).await.expect(sql);
}

/// Consumers that run on a task.
pub(crate) struct Running {
    pub(crate) listening: watch::Receiver<bool>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), ConsumersError>>,
}

impl Running {
    pub(crate) fn start(consumers: Consumers) -> Self {
        let (listening, stop) = (consumers.listening(), CancellationToken::new());
        let task = tokio::spawn(consumers.run(stop.clone()));
        Self { listening, stop, task }
    }

    /// Directly at the database.
    pub(crate) fn on(
        db: &TestDb,
        config: ConsumerConfig,
        clock: Clock,
        list: impl IntoIterator<Item = Consumer>,
    ) -> Self {
        Self::start(consumers(db.app_pool(5), db.options(Role::App), config, clock, list))
    }

    pub(crate) async fn listens(&mut self, expected: bool) {
        let changed = self.listening.wait_for(|listening| *listening == expected);
        let _ = tokio::time::timeout(DEADLINE, changed)
            .await
            .unwrap_or_else(|_| panic!("listening did not become {expected}"))
            .expect("the consumers run");
    }

    /// How they end, which must be soon.
    pub(crate) async fn ends(self) -> Result<(), ConsumersError> {
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .expect("the consumers end soon")
            .expect("the consumers do not panic")
    }

    pub(crate) async fn stops(self) {
        self.stop.cancel();
        self.ends().await.expect("the consumers stop");
    }
}

/// The network lets nobody listen: only polling is left, by a clock that stands still unless its hand is moved.
pub(crate) struct Deaf {
    pub(crate) proxy: FaultProxy,
    pub(crate) hand: ClockHand,
    pub(crate) running: Running,
}

impl Deaf {
    pub(crate) async fn start(
        db: &TestDb,
        config: ConsumerConfig,
        list: impl IntoIterator<Item = Consumer>,
    ) -> Self {
        let proxy = proxy_for(db).await;
        proxy.refuse();
        let (clock, hand) = manual();
        let listen = through(&proxy, db, Role::App);
        let running = Running::start(consumers(db.app_pool(5), listen, config, clock, list));
        Self { proxy, hand, running }
    }

    /// Moves the hand step by step: a wait that begins after a step is due only with the next.
    pub(crate) async fn advances_until(&self, db: &TestDb, consumer: &str, seq: i64) {
        let what = format!("consumer {consumer} at {seq}");
        eventually(DEADLINE, &what, async || {
            let there = cursor(db, consumer).await >= seq;
            if !there {
                self.hand.advance(POLL);
            }
            there
        })
        .await;
    }
}

/// Somebody else who polls all the time: when it has handled an event, everybody who was going to look has had the time to.
struct Witness<'a> {
    db: &'a TestDb,
    _running: Running,
}

impl<'a> Witness<'a> {
    async fn of(db: &'a TestDb) -> Self {
        let consumer = Consumer::new(name("witness"), plain());
        let mut running = Running::on(db, quick(), Clock::system(), [consumer]);
        running.listens(true).await;
        Self { db, _running: running }
    }

    /// Appends an event and waits until it was handled, and a second time.
    async fn sees_an_event(&self) {
        for _ in 0..2 {
            append(&self.db.producer(), [0]).await;
            let head = head(self.db).await;
            eventually(DEADLINE, "the witness", async || cursor(self.db, "witness").await >= head).await;
        }
    }
}

/// A pending wait of the poll, of the listener and of each worker that failed, and the two clocks that they hold.
async fn all_pause(hand: &ClockHand, failing: usize) {
    eventually(DEADLINE, "every worker pauses", async || hand.receivers() == failing + 4).await;
}

/// A worker has had its first round and found nothing to do: what it says or does last then.
pub(crate) async fn has_nothing_to_do(db: &TestDb) {
    eventually(DEADLINE, "the first round", async || {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND usename = $1
                 AND state = 'idle' AND (query LIKE 'UPDATE seqline.event_consumer_failures%' OR query = 'ROLLBACK'))",
        )
        .bind(Role::App.login())
        .fetch_one(&db.admin())
        .await
        .expect("activity can be read")
    })
    .await;
}

/// Every event of the log of the program on this thread, for as long as it is held.
#[derive(Debug, Clone, Default)]
pub(crate) struct Captured(Arc<Mutex<Vec<Line>>>);

#[derive(Debug, Clone)]
pub(crate) struct Line {
    level: tracing::Level,
    target: &'static str,
    text: String,
}

impl Captured {
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        more_subscribers();
        let captured = Self::default();
        let subscriber = tracing_subscriber::registry().with(captured.clone());
        (captured, tracing::subscriber::set_default(subscriber))
    }

    /// What the library has said at `level` or worse.
    pub(crate) fn said(&self, level: tracing::Level) -> Vec<String> {
        let lines = self.0.lock().expect("no writer panicked");
        lines
            .iter()
            .filter(|line| line.target.starts_with("seqline") && line.level <= level)
            .map(|line| line.text.clone())
            .collect()
    }

    /// How many lines of the library, down to info, contain `text`.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.said(tracing::Level::INFO).iter().filter(|line| line.contains(text)).count()
    }
}

impl<S: tracing::Subscriber> Layer<S> for Captured {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let line = Line { level: *event.metadata().level(), target: event.metadata().target(), text: text.0 };
        self.0.lock().expect("no writer panicked").push(line);
    }
}

struct Text(String);

impl Visit for Text {
    /// With its causes, as those who print logs do.
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        for cause in std::iter::successors(Some(value), |error| error.source()) {
            self.0.push_str(&format!("{}={cause} ", field.name()));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
