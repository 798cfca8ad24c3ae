//! What the tests of consumers share: a log, a broker, a small publisher in place of a relay, and a handler that can do anything.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::Stream;
use futures_util::future::BoxFuture;
use seqline::envelope::Envelope;
use seqline::{Clock, NewEvent, Payload};
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{
    ConsumerTally, Context, Handler, HandlerError, Runtime, StreamConsumer, StreamConsumerConfig,
};
use seqline_nats::message::Outgoing;
use seqline_nats::stream::{StreamSettings, ensure_stream};
use seqline_testkit::nats::{NatsCluster, NatsServer};
use seqline_testkit::{Role, TestDb, TestServer, eventually, settled};
use sqlx::PgPool;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// The name of most consumers.
pub(super) const PROBE: &str = "probe";

/// What handlers write.
const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS public.effects (
    consumer text NOT NULL, event_id uuid NOT NULL, position bigint NOT NULL, attempt int NOT NULL
)";

/// A log and a stream, on one broker or on several.
pub(super) struct Site<N = NatsServer> {
    pub(super) db: TestDb,
    pub(super) nats: N,
    pub(super) url: String,
    pub(super) broker: Broker,
    pub(super) settings: StreamSettings,
}

impl Site {
    pub(super) async fn new() -> Self {
        Self::on(TestServer::shared().await).await
    }

    pub(super) async fn on(server: &TestServer) -> Self {
        Self::with(server, NatsServer::start().await).await
    }

    pub(super) async fn with(server: &TestServer, nats: NatsServer) -> Self {
        let url = nats.url();
        Self::at(server, nats, url, StreamSettings::default()).await
    }
}

impl Site<NatsCluster> {
    /// Three brokers, of which each has everything.
    pub(super) async fn of_three() -> Self {
        let nats = NatsCluster::start(3).await;
        let url = nats.urls().join(",");
        let mut settings = StreamSettings::default();
        settings.replicas = 3;
        Self::at(TestServer::shared().await, nats, url, settings).await
    }
}

impl<N> Site<N> {
    async fn at(server: &TestServer, nats: N, url: String, settings: StreamSettings) -> Self {
        let db = TestDb::on(server).await;
        sqlx::query(EFFECTS).execute(&db.app()).await.unwrap();
        let broker = Broker::new(BrokerConfig::new(&url));
        ensure_stream(&broker, &settings).await.unwrap();
        Self { db, nats, url, broker, settings }
    }

    pub(super) async fn stream(&self) -> Stream {
        self.broker.jetstream().await.unwrap().get_stream(&self.settings.name).await.unwrap()
    }

    pub(super) async fn info(&self, consumer: &str) -> Info {
        self.stream().await.consumer_info(consumer).await.unwrap()
    }

    /// What the broker says of a consumer once nothing is in hand or under way.
    pub(super) async fn settled_info(&self, consumer: &str) -> Info {
        let is_settled = |info: &Info| info.num_pending == 0 && info.num_ack_pending == 0;
        eventually(DEADLINE, "everything is acknowledged", async || is_settled(&self.info(consumer).await))
            .await;
        self.info(consumer).await
    }

    /// Appends events with these payload numbers.
    pub(super) async fn append(&self, numbers: impl IntoIterator<Item = i64>) -> Vec<Uuid> {
        append(&self.db.producer(), numbers.into_iter().map(event)).await
    }

    /// Appends so many events and publishes them.
    pub(super) async fn feed(&self, numbers: impl IntoIterator<Item = i64>) -> Vec<Uuid> {
        let ids = self.append(numbers).await;
        self.publish(&ids).await;
        ids
    }

    pub(super) async fn epoch(&self) -> Uuid {
        sqlx::query_scalar("SELECT epoch FROM seqline.log_identity")
            .fetch_one(&self.db.admin())
            .await
            .unwrap()
    }

    /// Publishes events of the log, as a relay does.
    pub(super) async fn publish(&self, ids: &[Uuid]) {
        let epoch = self.epoch().await;
        for message in self.messages(ids, epoch).await {
            self.send(message).await;
        }
    }

    pub(super) async fn messages(&self, ids: &[Uuid], epoch: Uuid) -> Vec<Outgoing> {
        let mut reader = self.db.connect(Role::Reader).await;
        let mut messages = Vec::new();
        for id in ids {
            let seq = seqline::read::seq_of(&mut reader, *id).await.unwrap().unwrap();
            let event = seqline::read::events_after(&mut reader, seq - 1, 1).await.unwrap().remove(0);
            messages.push(Outgoing::new(&event, epoch, 0).unwrap());
        }
        messages
    }

    /// Publishes a message, and returns its number in the stream.
    pub(super) async fn send(&self, message: Outgoing) -> u64 {
        let jetstream = self.broker.jetstream().await.unwrap();
        let sent = jetstream.publish_with_headers(message.subject, message.headers, message.payload).await;
        sent.unwrap().await.unwrap().sequence
    }

    /// Publishes what no relay wrote.
    pub(super) async fn send_garbage(&self, payload: &'static str) -> u64 {
        let message = Outgoing {
            subject: "events.order.created._".to_owned(),
            headers: HeaderMap::new(),
            payload: payload.into(),
        };
        self.send(message).await
    }

    pub(super) fn runtime(&self, name: &str, handler: impl Handler, config: StreamConsumerConfig) -> Runtime {
        self.runtime_of(StreamConsumer::new(name, handler).unwrap(), config)
    }

    pub(super) fn runtime_of(&self, consumer: StreamConsumer, config: StreamConsumerConfig) -> Runtime {
        self.runtime_with(self.db.app_pool(5), consumer, config)
    }

    pub(super) fn runtime_with(
        &self,
        pool: PgPool,
        consumer: StreamConsumer,
        config: StreamConsumerConfig,
    ) -> Runtime {
        // Each is a process of its own as far as the broker knows.
        let broker = Broker::new(BrokerConfig::new(&self.url));
        Runtime::new(pool, broker, self.settings.clone(), consumer, config, Clock::system())
    }

    /// Runs a consumer until it is stopped.
    pub(super) fn start(&self, name: &str, handler: impl Handler) -> Running {
        Running::start(self.runtime(name, handler, quick()))
    }

    /// The events that consumers have handled, in order of their positions.
    pub(super) async fn effects(&self, consumer: &str) -> Vec<Uuid> {
        sqlx::query_scalar(
            "SELECT event_id FROM public.effects WHERE consumer = $1 ORDER BY position, event_id",
        )
        .bind(consumer)
        .fetch_all(&self.db.admin())
        .await
        .unwrap()
    }

    pub(super) async fn handles(&self, consumer: &str, ids: &[Uuid]) {
        eventually(DEADLINE, "all events are handled", async || {
            self.effects(consumer).await.len() >= ids.len()
        })
        .await;
        assert_eq!(self.effects(consumer).await, ids, "each event once");
    }

    /// Which events the ledger of a consumer has.
    pub(super) async fn ledger(&self, consumer: &str) -> Vec<Uuid> {
        sqlx::query_scalar(
            "SELECT event_id FROM seqline.consumed_events WHERE consumer = $1 ORDER BY event_id",
        )
        .bind(consumer)
        .fetch_all(&self.db.admin())
        .await
        .unwrap()
    }

    /// Reason, event, place in the stream and attempts of what was given up.
    pub(super) async fn dead_letters(&self, consumer: &str) -> Vec<(String, Option<Uuid>, Option<i64>, i32)> {
        sqlx::query_as(
            "SELECT reason, event_id, stream_seq, attempts FROM seqline.dead_letters WHERE consumer = $1 ORDER BY id",
        )
        .bind(consumer)
        .fetch_all(&self.db.admin())
        .await
        .unwrap()
    }

    pub(super) async fn retries(&self, consumer: &str) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM seqline.stream_retries WHERE consumer = $1")
            .bind(consumer)
            .fetch_one(&self.db.admin())
            .await
            .unwrap()
    }

    pub(super) async fn reconciled_to(&self, consumer: &str) -> i64 {
        sqlx::query_scalar("SELECT reconciled_to FROM seqline.stream_consumers WHERE name = $1")
            .bind(consumer)
            .fetch_one(&self.db.admin())
            .await
            .unwrap()
    }
}

/// Like the default, with shorter times.
pub(super) fn quick() -> StreamConsumerConfig {
    let mut config = StreamConsumerConfig::default();
    config.ack_wait = Duration::from_secs(3);
    config.fetch_expiry = Duration::from_millis(100);
    config.idle_pause = Duration::from_millis(20);
    config.failure_backoff_cap = Duration::from_millis(200);
    config.retry_backoff = Duration::from_millis(20);
    config.retry_backoff_cap = Duration::from_millis(100);
    config.reconcile_interval = Duration::from_millis(100);
    config.statement_timeout = Duration::from_secs(5);
    config
}

/// An event of type `order.created` whose payload is `{"n": n}`.
pub(super) fn event(n: i64) -> NewEvent {
    event_of("order.created", n)
}

pub(super) fn event_of(event_type: &str, n: i64) -> NewEvent {
    let payload = Payload::from_json(&format!("{{\"n\": {n}}}")).unwrap();
    NewEvent::builder(event_type, "order", "any").payload(payload).build().unwrap()
}

pub(super) async fn append(pool: &PgPool, events: impl IntoIterator<Item = NewEvent>) -> Vec<Uuid> {
    let events: Vec<NewEvent> = events.into_iter().collect();
    let mut tx = seqline::begin(pool).await.unwrap();
    let ids = seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
    settled(pool).await;
    ids
}

/// The number in the payload of an event.
pub(super) fn number(event: &Envelope) -> i64 {
    let payload: serde_json::Value = serde_json::from_str(event.payload.get()).unwrap();
    payload["n"].as_i64().unwrap()
}

pub(super) type Handling<'a> = BoxFuture<'a, Result<(), HandlerError>>;

type Act = dyn for<'a, 'c> Fn(&'a Envelope, &'a mut Context<'c>) -> Handling<'a> + Send + Sync;

/// Writes down each event in its transaction, and then does what the test wants.
#[derive(Clone)]
pub(super) struct Probe {
    act: Arc<Act>,
    calls: Arc<Mutex<Vec<i64>>>,
}

impl Probe {
    pub(super) fn plain() -> Self {
        Self::acting(|_, _| Box::pin(async { Ok(()) }))
    }

    pub(super) fn acting(
        act: impl for<'a, 'c> Fn(&'a Envelope, &'a mut Context<'c>) -> Handling<'a> + Send + Sync + 'static,
    ) -> Self {
        Self { act: Arc::new(act), calls: Arc::default() }
    }

    /// The numbers of the events for which it was called, in that order.
    pub(super) fn calls(&self) -> Vec<i64> {
        self.calls.lock().unwrap().clone()
    }

    /// How often it was called for an event.
    pub(super) fn calls_for(&self, n: i64) -> usize {
        self.calls().iter().filter(|call| **call == n).count()
    }
}

impl Handler for Probe {
    async fn handle(&self, event: &Envelope, context: &mut Context<'_>) -> Result<(), HandlerError> {
        self.calls.lock().unwrap().push(number(event));
        let (consumer, position) = (context.consumer().to_owned(), context.position());
        let attempt = context.attempt().cast_signed();
        sqlx::query(
            "INSERT INTO public.effects (consumer, event_id, position, attempt) VALUES ($1, $2, $3, $4)",
        )
        .bind(consumer)
        .bind(event.id)
        .bind(position)
        .bind(attempt)
        .execute(context.connection())
        .await?;
        (self.act)(event, context).await
    }
}

/// A consumer that runs.
pub(super) struct Running {
    pub(super) tally: Arc<ConsumerTally>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(super) fn start(runtime: Runtime) -> Self {
        let (tally, stop) = (runtime.tally(), CancellationToken::new());
        let token = stop.clone();
        Self { tally, stop, task: tokio::spawn(async move { runtime.run(token).await }) }
    }

    /// Tells it to stop and waits until it has.
    pub(super) async fn stops(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Ends it without a word, as a crash does.
    pub(super) async fn dies(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
