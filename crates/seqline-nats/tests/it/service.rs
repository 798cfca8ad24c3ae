//! A service as its users run it: another process, with a login of the database and one of the broker that may do no more than it needs.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use seqline::{NewEvent, Payload};
use seqline_nats::broker::{Broker, BrokerConfig};
use seqline_nats::consumer::{Recorder, Runtime, StreamConsumer, StreamConsumerConfig};
use seqline_nats::relay::{Relay, RelayConfig};
use seqline_nats::report::report;
use seqline_nats::stream::StreamSettings;
use seqline_nats::{Clock, stream};
use seqline_testkit::nats::{NatsOptions, NatsServer};
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::{Connection, PgConnection};
use tokio::process::{Child, Command};

const SOON: Duration = Duration::from_secs(60);

/// What the guide says that each needs.
const RIGHTS: &str = include_str!("../../../../docs/guide/jetstream.md");

/// The accounts as the guide shows them.
fn options() -> NatsOptions {
    let (_, rest) = RIGHTS.split_once("```conf\n").expect("the guide shows the rights");
    NatsOptions::default().lines(rest.split_once("```").expect("and ends").0)
}

fn url(server: &NatsServer, user: &str) -> String {
    server.url().replace("nats://", &format!("nats://{user}:secret@"))
}

/// A login with the rights that the guide names.
async fn login(db: &TestDb) -> String {
    let name = format!("service_{}", uuid::Uuid::new_v4().simple());
    let mut admin = db.connect(Role::Admin).await;
    let statement = format!(
        "CREATE ROLE {name} LOGIN PASSWORD 'secret' IN ROLE seqline_consumer, seqline_reader; GRANT CREATE ON SCHEMA public TO {name}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut admin).await.unwrap();
    let url = db.url(Role::App);
    let (_, place) = url.split_once('@').expect("the URL has a login");
    format!("postgres://{name}:secret@{place}")
}

async fn append(db: &TestDb, orders: impl Iterator<Item = i64>) {
    let pool = db.app();
    let events: Vec<NewEvent> = orders
        .map(|order| {
            let payload = format!(r#"{{"order": {order}, "customer": "Alex", "amount": 1250}}"#);
            let kind = if order % 2 == 0 { "order.paid" } else { "order.created" };
            NewEvent::builder(kind, "order", "any")
                .payload(Payload::from_json(&payload).unwrap())
                .build()
                .unwrap()
        })
        .collect();
    let mut tx = seqline::begin(&pool).await.unwrap();
    seqline::append(&mut tx, &events).await.unwrap();
    seqline::commit(tx).await.unwrap();
}

/// The example, which Cargo compiles beside the tests.
fn start(database: &str, broker: &str) -> Child {
    let own = std::env::current_exe().unwrap();
    let program: PathBuf = own.ancestors().nth(2).unwrap().join("examples/receipts");
    Command::new(&program)
        .env("SEQLINE_DATABASE_URL", database)
        .env("SEQLINE_NATS_URL", broker)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("start {}: {error}", program.display()))
}

async fn receipts(connection: &mut PgConnection) -> Vec<i64> {
    let found = sqlx::query_scalar("SELECT order_id FROM receipts ORDER BY order_id");
    found.fetch_all(connection).await.unwrap_or_default()
}

#[tokio::test]
async fn it_needs_no_more_than_the_guide_says_and_has_each_effect_once_after_kills() {
    let (db, server) = tokio::join!(TestDb::new(), NatsServer::with(options()));
    let relay = Broker::new(BrokerConfig::new(url(&server, "relay")));
    let mut relay = Relay::new(db.app_pool(2), relay, RelayConfig::default(), Clock::system());
    append(&db, 0..100).await;
    relay.drain_once().await.unwrap();

    let (database, broker) = (login(&db).await, url(&server, "consumer"));
    let mut admin = db.connect(Role::Admin).await;
    let mut first = start(&database, &broker);
    eventually(SOON, "the first receipts", async || !receipts(&mut admin).await.is_empty()).await;
    first.kill().await.unwrap();
    append(&db, 100..200).await;
    relay.drain_once().await.unwrap();
    let (_second, _third) = (start(&database, &broker), start(&database, &broker));
    let due: Vec<i64> = (0..200).filter(|order| order % 2 == 0).collect();
    eventually(SOON, "all receipts", async || receipts(&mut admin).await.len() >= due.len()).await;
    assert_eq!(receipts(&mut admin).await, due);
    admin.close().await.unwrap();
}

#[tokio::test]
async fn a_server_and_its_command_need_no_more_than_the_guide_says() {
    let (db, server) = tokio::join!(TestDb::new(), NatsServer::with(options()));
    let mut config = BrokerConfig::new(url(&server, "relay"));
    // What is not allowed is not answered.
    config.request_timeout = Duration::from_secs(2);
    let broker = Broker::new(config);
    append(&db, 0..10).await;
    let mut relay = Relay::new(db.app_pool(2), broker.clone(), RelayConfig::default(), Clock::system());
    relay.drain_once().await.unwrap();

    let recorder = || {
        let consumer = StreamConsumer::new(Recorder::NAME, Recorder).unwrap();
        let (stream, mut config) = (StreamSettings::default(), StreamConsumerConfig::default());
        // One that is acknowledged by nobody would come again.
        config.ack_wait = Duration::from_secs(1);
        Runtime::new(db.app_pool(2), broker.clone(), stream, consumer, config, Clock::system())
    };
    let runtime = recorder();
    let mut handled = 0;
    eventually(SOON, "all of them are recorded", async || {
        handled += runtime.poll_once().await.unwrap().handled;
        handled == 10
    })
    .await;
    let first =
        || async { report(&broker, "EVENTS").await.unwrap().expect("it is there").consumers.remove(0) };
    eventually(SOON, "the broker knows", async || first().await.ack_floor == 10).await;
    let seen = first().await;
    assert_eq!((seen.name.as_str(), seen.pending, seen.ack_pending), (Recorder::NAME, 0, 0));

    // Where a stream has lost what was delivered it begins anew, which takes another right.
    let context = broker.jetstream().await.unwrap();
    assert!(context.delete_consumer_from_stream(Recorder::NAME, "EVENTS").await.unwrap().success);
    assert_eq!(recorder().poll_once().await.unwrap().duplicates, 10);
}

#[tokio::test]
async fn who_only_consumes_cannot_publish_and_cannot_change_the_stream() {
    let server = NatsServer::with(options()).await;
    let relay = Broker::new(BrokerConfig::new(url(&server, "relay")));
    stream::ensure_stream(&relay, &stream::StreamSettings::default()).await.unwrap();
    let mut config = BrokerConfig::new(url(&server, "consumer"));
    // What is not allowed is not answered.
    config.request_timeout = Duration::from_millis(500);
    let consumer = Broker::new(config);
    let context = consumer.jetstream().await.unwrap();
    let sent = context.publish("events.order.paid._", "forged".into()).await.unwrap();
    assert!(sent.await.is_err());
    assert!(context.delete_stream("EVENTS").await.is_err());
    let info = stream::info(&relay, "EVENTS").await.unwrap().expect("it is there");
    assert_eq!(info.state.messages, 0);
}
