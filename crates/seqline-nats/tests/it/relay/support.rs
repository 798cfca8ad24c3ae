//! What the tests of the relay share: a log, a broker, a relay that can be killed, and a checker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Info};
use futures_util::{StreamExt, TryStreamExt, stream};
use seqline::{Clock, NewEvent, Payload};
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::message::{ENVELOPE, Identity};
use seqline_nats::relay::{Relay, RelayConfig, RelayTally};
use seqline_nats::stream::{StreamSettings, ensure_stream, info};
use seqline_nats::subject::subject_of;
use seqline_testkit::nats::{NatsCluster, NatsServer, StoreCopy};
use seqline_testkit::{FaultProxy, Role, TestDb, eventually, settled};
use sqlx::PgPool;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Long enough for anything that happens at all on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Where somebody publishes who should not. No event of the log has this subject.
pub(crate) const FOREIGN: &str = "events.foreign.thing._";

/// Events of a transaction that appends many.
const AT_ONCE: i64 = 500;

/// A log, and where its stream is.
pub(crate) struct Stage {
    pub(crate) db: TestDb,
    pub(crate) pool: PgPool,
    pub(crate) url: String,
    /// How many brokers hold each message.
    pub(crate) replicas: u8,
}

/// A message of the stream.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) stream_seq: u64,
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: bytes::Bytes,
    pub(crate) identity: Option<Identity>,
}

/// A relay in a task of its own.
pub(crate) struct Running {
    pub(crate) tally: Arc<RelayTally>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// Stops in good order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the relay does not panic");
    }

    /// Ends as a process does that is killed: wherever it is. The lease runs out.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

pub(crate) fn broker(url: &str) -> Broker {
    let mut config = BrokerConfig::new(url);
    config.request_timeout = Duration::from_secs(2);
    Broker::new(config)
}

/// The broker for a look at it, which may take as long as it takes on a busy machine.
pub(crate) fn patient(url: &str) -> Broker {
    let mut config = BrokerConfig::new(url);
    config.request_timeout = LONG;
    Broker::new(config)
}

/// A relay that notices everything soon.
pub(crate) fn config(change: impl FnOnce(&mut RelayConfig)) -> RelayConfig {
    let mut config = RelayConfig::default();
    config.poll_interval = Duration::from_millis(10);
    config.lease = Duration::from_millis(900);
    config.ack_timeout = Duration::from_secs(2);
    config.resync_backoff_cap = Duration::from_millis(300);
    change(&mut config);
    config
}

impl Stage {
    pub(crate) async fn at(url: &str) -> Stage {
        Self::of(TestDb::new().await, url)
    }

    pub(crate) fn of(db: TestDb, url: &str) -> Stage {
        let pool = db.pool(Role::App, 10);
        Stage { db, pool, url: url.to_owned(), replicas: 1 }
    }

    pub(crate) async fn new(server: &NatsServer) -> Stage {
        Self::at(&server.url()).await
    }

    /// Where all brokers of a cluster, three of them as a rule, hold each message.
    pub(crate) async fn on(cluster: &NatsCluster) -> Stage {
        let replicas = u8::try_from(cluster.nodes().len()).expect("a few brokers");
        Stage { replicas, ..Self::at(&cluster.urls().join(",")).await }
    }

    pub(crate) fn relay_with(&self, change: impl FnOnce(&mut RelayConfig)) -> Relay {
        self.relay_at(&self.url, change)
    }

    /// One that takes another way to the broker.
    pub(crate) fn relay_at(&self, url: &str, change: impl FnOnce(&mut RelayConfig)) -> Relay {
        let change = |config: &mut RelayConfig| {
            config.stream.replicas = self.replicas;
            change(config);
        };
        Relay::new(self.pool.clone(), broker(url), config(change), Clock::system())
    }

    pub(crate) fn relay(&self) -> Relay {
        self.relay_with(|_| {})
    }

    pub(crate) fn run(&self) -> Running {
        self.run_with(|_| {})
    }

    pub(crate) fn run_with(&self, change: impl FnOnce(&mut RelayConfig)) -> Running {
        run(self.relay_with(change))
    }

    pub(crate) fn run_through(&self, proxy: &FaultProxy, change: impl FnOnce(&mut RelayConfig)) -> Running {
        run(self.relay_at(&format!("nats://{}", proxy.addr()), change))
    }

    /// Appends so many events of several types, with and without a space.
    pub(crate) async fn append(&self, count: i64) {
        append(&self.pool, count).await;
    }

    /// One that waits for as long as a busy machine takes.
    pub(crate) async fn context(&self) -> Context {
        let mut context = broker(&self.url).jetstream().await.expect("the broker is there");
        context.set_timeout(LONG);
        context
    }

    /// Makes the stream as a relay does, but for a change.
    pub(crate) async fn stream_with(&self, change: impl FnOnce(&mut Config)) {
        let mut settings = StreamSettings::default();
        settings.replicas = self.replicas;
        let broker = broker(&self.url);
        let (mut config, context) = (None, broker.jetstream().await.expect("the broker is there"));
        // A cluster that is busy may take longer than an answer may.
        eventually(LONG, "a stream", async || {
            config = ensure_stream(&broker, &settings).await.ok().map(|(info, _)| info.config);
            config.is_some()
        })
        .await;
        let mut config = config.expect("a stream");
        change(&mut config);
        eventually(LONG, "the stream is changed", async || context.update_stream(&config).await.is_ok())
            .await;
    }

    pub(crate) async fn info(&self) -> Info {
        info(&patient(&self.url), "EVENTS").await.expect("the broker is there").expect("the stream is there")
    }

    /// Publishes as somebody who should not.
    pub(crate) async fn publish_foreign(&self) {
        let context = self.context().await;
        let sent = context.publish(FOREIGN, "foreign".into()).await.expect("it is sent");
        sent.await.expect("it is stored");
    }

    pub(crate) async fn head(&self) -> i64 {
        settled(&self.pool).await;
        sqlx::query_scalar("SELECT seqline.head()").fetch_one(&self.pool).await.expect("the head can be read")
    }

    /// The position of the relay's row.
    pub(crate) async fn position(&self) -> i64 {
        let position =
            sqlx::query_scalar("SELECT position FROM seqline.relay_cursors WHERE name = 'jetstream'");
        position.fetch_optional(&self.pool).await.expect("the row can be read").unwrap_or(-1)
    }

    /// Lets another relay take over at once from one that is gone.
    pub(crate) async fn end_lease(&self) {
        self.sql("UPDATE seqline.relay_cursors SET leased_until = now()").await;
    }

    /// The row says that everything up to `position` is in the stream up to `stream_seq`, where the message of `position_at_seq` lies, and nobody
    /// has the lease.
    pub(crate) async fn set_cursor(&self, position: i64, stream_seq: i64, position_at_seq: i64) {
        let statement = format!(
            "UPDATE seqline.relay_cursors SET leased_until = now(), position = {position}, stream_seq = {stream_seq},
                 position_at_seq = {position_at_seq}"
        );
        self.sql(&statement).await;
    }

    pub(crate) async fn delete_message(&self, stream_seq: u64) {
        let stream = self.context().await.get_stream("EVENTS").await.expect("the stream is there");
        stream.delete_message(stream_seq).await.expect("the message is deleted");
    }

    pub(crate) async fn purge(&self) {
        let stream = self.context().await.get_stream("EVENTS").await.expect("the stream is there");
        stream.purge().await.expect("the stream is purged");
    }

    pub(crate) async fn stalled_by(&self) -> Option<String> {
        let stalled =
            sqlx::query_scalar("SELECT stalled_by FROM seqline.relay_cursors WHERE name = 'jetstream'");
        stalled.fetch_one(&self.pool).await.expect("the row can be read")
    }

    /// Waits until the row says that everything is published.
    pub(crate) async fn until_published(&self) {
        let head = self.head().await;
        eventually(LONG, "everything is published", async || self.position().await >= head).await;
    }

    /// Waits until the broker has forgotten the ids of all messages that are in the stream: another stream that forgets as fast has forgotten two
    /// that came later, one after the other. Each stream looks by a timer of its own what there is to forget.
    pub(crate) async fn until_forgotten(&self) {
        let context = self.context().await;
        let config = Config {
            name: "FORGETFUL".into(),
            subjects: vec!["forgetful".into()],
            duplicate_window: self.info().await.config.duplicate_window,
            ..Default::default()
        };
        context.create_stream(config).await.expect("another stream");
        let again = async || {
            let message = PublishMessage::build().message_id("once");
            let sent = context.send_publish("forgetful", message).await.expect("it is sent");
            !sent.await.expect("it is answered").duplicate
        };
        assert!(again().await);
        for _ in 0..2 {
            eventually(LONG, "the ids are forgotten", again).await;
        }
        context.delete_stream("FORGETFUL").await.expect("it is gone");
    }

    pub(crate) async fn incidents(&self) -> BTreeMap<String, i64> {
        let rows =
            sqlx::query_as("SELECT kind, count FROM seqline.relay_incidents WHERE acknowledged_at IS NULL");
        let rows: Vec<(String, i64)> = rows.fetch_all(&self.pool).await.expect("they can be read");
        rows.into_iter().collect()
    }

    pub(crate) async fn log(&self) -> Vec<(i64, Uuid, String, Option<String>)> {
        sqlx::query_as("SELECT seq, id, type, space_id FROM seqline.event_log ORDER BY seq")
            .fetch_all(&self.pool)
            .await
            .expect("the log can be read")
    }

    pub(crate) async fn epoch(&self) -> Uuid {
        sqlx::query_scalar("SELECT epoch FROM seqline.log_identity")
            .fetch_one(&self.pool)
            .await
            .expect("an epoch")
    }

    /// The whole stream, read from its leader.
    pub(crate) async fn messages(&self) -> Vec<Message> {
        let context = self.context().await;
        let state = self.info().await.state;
        let stream = context.get_stream_no_info("EVENTS").await.expect("the stream is there");
        let reading = stream::iter(state.first_sequence..=state.last_sequence).map(|stream_seq| {
            let stream = stream.clone();
            async move {
                match stream.get_raw_message(stream_seq).await {
                    Ok(message) => Ok(Some(Message {
                        stream_seq,
                        subject: message.subject.to_string(),
                        identity: Identity::of(Some(&message.headers)),
                        headers: message.headers,
                        payload: message.payload,
                    })),
                    Err(error)
                        if error.kind()
                            == async_nats::jetstream::stream::RawMessageErrorKind::NoMessageFound =>
                    {
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            }
        });
        let read: Vec<Option<Message>> =
            reading.buffered(200).try_collect().await.expect("the stream can be read");
        read.into_iter().flatten().collect()
    }

    /// The positions in the order of the stream, of messages that relays wrote.
    pub(crate) async fn positions(&self) -> Vec<i64> {
        self.messages().await.iter().filter_map(|message| Some(message.identity?.position)).collect()
    }

    /// Everything of the log is in the stream exactly once and in order, as what it should be, and nothing else of ours is.
    pub(crate) async fn assert_once_in_order(&self) {
        let messages = self.assert_are_ours().await;
        let positions: Vec<i64> = messages.iter().map(|identity| identity.position).collect();
        let expected: Vec<i64> = self.log().await.iter().map(|event| event.0).collect();
        assert_same(&positions, &expected);
    }

    /// The same but for the order.
    pub(crate) async fn assert_once(&self) {
        let messages = self.assert_are_ours().await;
        let mut positions: Vec<i64> = messages.iter().map(|identity| identity.position).collect();
        positions.sort_unstable();
        let expected: Vec<i64> = self.log().await.iter().map(|event| event.0).collect();
        assert_same(&positions, &expected);
    }

    /// Every message that a relay wrote is the event that the log has there. Returns what they say of themselves.
    pub(crate) async fn assert_are_ours(&self) -> Vec<Identity> {
        let log: BTreeMap<i64, (Uuid, String)> = self
            .log()
            .await
            .into_iter()
            .map(|(seq, id, kind, space)| {
                (seq, (id, subject_of(&kind, space.as_deref()).expect("a subject")))
            })
            .collect();
        let mut ours = Vec::new();
        for message in self.messages().await {
            let Some(identity) = message.identity.filter(|_| message.subject != FOREIGN) else { continue };
            let Some((id, subject)) = log.get(&identity.position) else {
                panic!("the log has no {} at {}", identity.position, message.stream_seq)
            };
            assert_eq!((*id, subject), (identity.event_id, &message.subject), "at {}", message.stream_seq);
            assert_eq!(message.headers.get(ENVELOPE).map(|value| value.as_str()), Some("1"));
            ours.push(identity);
        }
        ours
    }

    pub(crate) async fn sql(&self, statement: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&self.db.admin())
            .await
            .expect("the statement succeeds");
    }
}

/// Copies what the broker has stored.
pub(crate) async fn copied(server: &mut NatsServer) -> StoreCopy {
    server.stop().await;
    let copy = server.copy_store();
    server.restart().await;
    copy
}

/// Puts an older copy in its place.
pub(crate) async fn put_back(server: &mut NatsServer, copy: &StoreCopy) {
    server.kill().await;
    server.restore_store(copy);
    server.restart().await;
}

/// Cuts the connections of a relay so often, with little and with much under way.
pub(crate) async fn cut_again_and_again(running: &Running, proxy: &FaultProxy, cuts: u64) {
    for cut in 0..cuts {
        let before = running.tally.published();
        eventually(LONG, "it publishes", async || running.tally.published() > before + (cut % 5) * 60).await;
        proxy.cut();
    }
}

pub(crate) fn run(mut relay: Relay) -> Running {
    let (tally, stop) = (relay.tally(), CancellationToken::new());
    let stopped = stop.clone();
    Running { tally, stop, task: tokio::spawn(async move { relay.run(stopped).await }) }
}

/// Appends while it is not dropped.
pub(crate) struct Load {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Load {
    /// Transactions of so many events, one after another, with a pause.
    pub(crate) fn start(pool: &PgPool, events: i64, pause: Duration) -> Load {
        let (pool, stop) = (pool.clone(), CancellationToken::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            while !stopped.is_cancelled() {
                append(&pool, events).await;
                Clock::system().sleep(pause).await;
            }
        });
        Load { stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the load does not panic");
    }
}

pub(crate) async fn append(pool: &PgPool, count: i64) {
    let mut left = count;
    while left > 0 {
        let events: Vec<NewEvent> = (0..left.min(AT_ONCE)).map(event).collect();
        left -= AT_ONCE;
        let mut tx = seqline::begin(pool).await.expect("a transaction begins");
        seqline::append(&mut tx, &events).await.expect("the events are appended");
        seqline::commit(tx).await.expect("the transaction commits");
    }
    settled(pool).await;
}

fn event(number: i64) -> NewEvent {
    let payload = Payload::from_json(&format!("{{\"n\": {number}}}")).expect("the payload is an object");
    let (kind, space) = match number % 3 {
        0 => ("order.created", Some("shop-1")),
        1 => ("message.sent", None),
        _ => ("order.line.added", Some("shop 1.a")),
    };
    let event = NewEvent::builder(kind, "order", "any").payload(payload);
    let event = match space {
        Some(space) => event.space(space),
        None => event,
    };
    event.build().expect("the event is valid")
}

/// Where they begin to differ, for lists that are too long to show.
fn assert_same(found: &[i64], expected: &[i64]) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if differs.is_some() || found.len() != expected.len() {
        let at = differs.unwrap_or_else(|| found.len().min(expected.len()));
        let around =
            |list: &[i64]| list[at.saturating_sub(3).min(list.len())..(at + 12).min(list.len())].to_vec();
        panic!(
            "{} positions in the stream, {} in the log; they differ at {at}: {:?} and {:?}",
            found.len(),
            expected.len(),
            around(found),
            around(expected)
        );
    }
}

impl Stage {
    /// Publishes one event as a relay does, but for no place.
    pub(crate) async fn publish_as_relay(&self, position: i64) {
        let mut connection = self.db.connect(Role::App).await;
        let page = seqline::read::events_after(&mut connection, position - 1, 1).await.expect("the event");
        let outgoing =
            seqline_nats::message::Outgoing::new(&page[0], self.epoch().await, 0).expect("a message");
        let context = self.context().await;
        let sent = context.publish_with_headers(outgoing.subject, outgoing.headers, outgoing.payload).await;
        sent.expect("it is sent").await.expect("it is stored");
    }
}
