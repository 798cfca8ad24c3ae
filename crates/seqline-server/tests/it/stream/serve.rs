//! Servers with a relay and the consumer of its stream.

use std::collections::BTreeMap;
use std::time::Duration;

use seqline::Clock;
use seqline_testkit::nats::NatsServer;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::Value;

use super::{consume, stream_of};
use crate::api::{APPEND, Client, event, token};
use crate::support::{DEADLINE, Seqline, append, as_admin, closed_port, run_sql, server_db};
use crate::up::Place;
use crate::worker::{Worker, server};

/// A server that looks for its broker at a URL.
fn at(db: &TestDb, role: &str, url: &str) -> Seqline {
    server(db, role).env("SEQLINE_NATS_URL", url).env("SEQLINE_TELEMETRY__REFRESH_INTERVAL", "200ms")
}

fn nowhere() -> String {
    format!("nats://alex:hunter2@127.0.0.1:{}", closed_port())
}

/// Which events the consumer of the stream has logged, and how often.
fn logged(log: &[Value]) -> BTreeMap<String, usize> {
    let mut ids = BTreeMap::new();
    for line in log.iter().filter(|line| line["message"] == "event") {
        *ids.entry(line["id"].as_str().expect("it has an id").to_owned()).or_default() += 1;
    }
    ids
}

async fn logs(server: &Worker, events: usize) {
    eventually(DEADLINE, "all are logged", async || logged(&server.log()).len() == events).await;
}

async fn holds(nats: &NatsServer, messages: u64) {
    eventually(DEADLINE, "the stream holds all", async || {
        stream_of(nats).await.is_some_and(|stream| stream.messages == messages)
    })
    .await;
}

async fn relays(db: &TestDb) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM seqline.relay_cursors").fetch_one(&db.admin()).await.unwrap()
}

#[tokio::test]
async fn a_relay_alone_copies_every_event_and_its_consumer_logs_each_once() {
    let (db, nats) = (TestDb::new().await, NatsServer::start().await);
    append(&db.app(), 1..=20).await;
    let relay = Worker::start(at(&db, "relay", &nats.url())).await;
    let started = relay.says("server started").await;
    assert_eq!((&started["role"], &started["relay"]), (&"relay".into(), &"jetstream".into()));
    assert_eq!((&started["stream_consumers"], &started["consumers"]), (&"recorder".into(), &Value::Null));
    logs(&relay, 20).await;
    relay.becomes(&[]).await;
    holds(&nats, 20).await;
    relay.shows("seqline_relay_published_total{seqline_relay_name=\"jetstream\"}", 20.0).await;
    relay.shows("seqline_relay_backlog{seqline_relay_name=\"jetstream\"}", 0.0).await;
    relay.shows("seqline_relay_running{seqline_relay_name=\"jetstream\"}", 1.0).await;
    let handled = "seqline_stream_consumer_messages_total{seqline_stream_consumer_name=\"recorder\",seqline_stream_message_outcome=\"handled\"}";
    relay.shows(handled, 20.0).await;
    relay.shows("seqline_stream_consumer_dead_letters{seqline_stream_consumer_name=\"recorder\"}", 0.0).await;
    let log = relay.stop().await;
    let stopped: Vec<&str> = log
        .iter()
        .filter(|line| line["message"] == "component stopped")
        .filter_map(|line| line["component"].as_str())
        .collect();
    assert_eq!(stopped, ["relay", "stream_figures", "stream_recorder", "ops", "watch", "metrics"]);
    assert!(logged(&log).values().all(|times| *times == 1));

    // What was appended while none ran, and nothing of before.
    append(&db.app(), 21..=25).await;
    let relay = Worker::start(at(&db, "relay", &nats.url())).await;
    logs(&relay, 5).await;
    holds(&nats, 25).await;
    let log = relay.stop().await;
    assert_eq!(logged(&log).len(), 5);
    let stream = stream_of(&nats).await.unwrap();
    assert_eq!(stream.sequences, (1, 25));
    let [consumer] = &stream.consumers[..] else { panic!("one: {:?}", stream.consumers) };
    assert_eq!((consumer.name.as_str(), consumer.max_deliver, consumer.ack_pending), ("recorder", None, 0));
}

#[tokio::test]
async fn a_server_with_its_broker_away_starts_takes_events_and_stops() {
    let db = server_db().await;
    let token = token(&db, "shop", APPEND).await;
    let server = Worker::start(at(&db, "all", &nowhere())).await;
    server.becomes(&[]).await;
    let client = Client::new(server.api().await).token(&token);
    for n in 1..=5 {
        client.post("/v1/events", &event(n)).await.ok(201);
    }
    server.records(1..=5).await;
    server.says("the relay stands still, trying again").await;
    let stalled =
        "seqline_relay_stalled{seqline_relay_name=\"jetstream\",seqline_relay_reason=\"broker_unreachable\"}";
    server.shows(stalled, 1.0).await;
    server.becomes(&[]).await;
    let clock = Clock::system();
    let begun = clock.elapsed();
    let log = server.stop().await;
    let took = clock.elapsed() - begun;
    assert!(took < Duration::from_secs(15), "{took:?}");
    let text: String = log.iter().map(Value::to_string).collect();
    assert!(!text.contains("hunter2"), "{text}");
    assert!(!log.iter().any(|line| line["message"] == "component did not stop in time and was dropped"));
    assert_eq!(relays(&db).await, 0, "none has reached its broker");
}

#[tokio::test]
async fn what_was_appended_while_the_broker_was_away_is_copied_when_it_is_back() {
    let (db, mut nats) = (server_db().await, NatsServer::start().await);
    let server = Worker::start(at(&db, "worker", &nats.url())).await;
    append(&db.app(), 1..=5).await;
    logs(&server, 5).await;
    nats.stop().await;
    append(&db.app(), 6..=9).await;
    server.shows("seqline_relay_backlog{seqline_relay_name=\"jetstream\"}", 4.0).await;
    server.becomes(&[]).await;
    nats.restart().await;
    logs(&server, 9).await;
    holds(&nats, 9).await;
    server.shows("seqline_relay_backlog{seqline_relay_name=\"jetstream\"}", 0.0).await;
    let log = server.stop().await;
    assert!(logged(&log).values().all(|times| *times == 1));
    let targets: Vec<&str> = log.iter().filter_map(|line| line["target"].as_str()).collect();
    assert!(!targets.iter().any(|target| target.starts_with("async_nats")), "{targets:?}");
}

#[tokio::test]
async fn the_backlog_shows_where_no_relay_runs() {
    let (db, mut app) = crate::relay::with_relay(2).await;
    let db = crate::support::with_jobs(db).await;
    run_sql(
        &mut app,
        "UPDATE seqline.relay_cursors SET stalled_by = 'stream_full', stalled_since = now();
         INSERT INTO seqline.relay_incidents (relay, kind, count) VALUES ('jetstream', 'foreign_messages', 3)",
    )
    .await;
    let server = server(&db, "worker").env("SEQLINE_TELEMETRY__REFRESH_INTERVAL", "200ms");
    let server = Worker::start(server).await;
    let of = |metric: &str, more: &str| {
        format!("seqline_relay_{metric}{{seqline_relay_name=\"jetstream\"{more}}}")
    };
    server.shows(&of("backlog", ""), 3.0).await;
    server.shows(&of("running", ""), 0.0).await;
    server.shows(&of("stalled", ",seqline_relay_reason=\"stream_full\""), 1.0).await;
    let incidents = "seqline_relay_incidents{seqline_relay_incident_kind=\"foreign_messages\",seqline_relay_name=\"jetstream\"}";
    server.shows(incidents, 3.0).await;
    server.figure_there(&of("backlog_age_seconds", "")).await;
    server.stop().await;
}

#[tokio::test]
async fn each_part_is_switched_off_by_its_key_and_none_runs_without_a_url() {
    let (db, nats) = (server_db().await, NatsServer::start().await);
    append(&db.app(), [1]).await;
    let off = |keys: &[&str]| {
        let settings = keys.iter().flat_map(|key| ["--set".to_owned(), format!("{key}=off")]);
        at(&db, "worker", &nats.url()).args(settings)
    };
    let none = [
        server(&db, "worker"),
        at(&db, "worker", ""),
        off(&["relay.mode", "stream_consumer.recorder"]),
        at(&db, "api", &nats.url()),
    ];
    for command in none {
        let server = Worker::start(command).await;
        let started = server.says("server started").await;
        assert_eq!((&started["relay"], &started["stream_consumers"]), (&Value::Null, &Value::Null));
        server.stop().await;
    }
    assert_eq!(relays(&db).await, 0);
    assert!(stream_of(&nats).await.is_none(), "nobody has made one");

    let server = Worker::start(off(&["stream_consumer.recorder"])).await;
    holds(&nats, 1).await;
    server.stop().await;
    assert_eq!(stream_of(&nats).await.unwrap().consumers, []);
    append(&db.app(), [2]).await;
    let server = Worker::start(off(&["relay.mode"])).await;
    logs(&server, 1).await;
    let log = server.stop().await;
    assert_eq!(logged(&log).len(), 1, "what is in the stream");
    assert_eq!(stream_of(&nats).await.unwrap().messages, 1, "and nobody copies");
}

#[tokio::test]
async fn a_role_without_anything_to_do_and_a_url_that_is_none_are_told_before_anything_runs() {
    let db = TestDb::new().await;
    let off = ["--set", "relay.mode=off", "--set", "stream_consumer.recorder=off"];
    let sentence = server(&db, "relay").args(off).refused(2).await;
    assert_eq!(
        sentence,
        "relay.mode and stream_consumer.recorder are off: the role relay has nothing else to do"
    );
    let sentence = at(&db, "relay", "http s://hunter2").refused(2).await;
    assert!(
        sentence.starts_with("the URL of the broker is none") && !sentence.contains("hunter2"),
        "{sentence}"
    );
}

#[tokio::test]
async fn a_relay_stops_for_another_history_and_goes_on_in_the_new_epoch() {
    let (db, nats) = (TestDb::new().await, NatsServer::start().await);
    append(&db.app(), 1..=3).await;
    let command = at(&db, "relay", &nats.url()).env("SEQLINE_OPS__LOOK_INTERVAL", "100ms");
    let relay = Worker::start(command).await;
    logs(&relay, 3).await;
    as_admin(&db, "SELECT seqline.finalize_restore('keep', true, true, 'told so')").await;
    relay.says("epoch ended, the parts of the server stop and start anew").await;
    relay.says_again("server started", 1).await;
    append(&db.pool(Role::App, 1), 4..=6).await;
    logs(&relay, 6).await;
    holds(&nats, 6).await;
    let log = relay.stop().await;
    assert!(logged(&log).values().all(|times| *times == 1));
}

#[tokio::test]
async fn what_was_handled_is_forgotten_when_it_cannot_come_again_and_only_with_consumers() {
    let db = server_db().await;
    append(&db.app(), [1]).await;
    let mut app = db.connect(Role::App).await;
    run_sql(
        &mut app,
        "INSERT INTO seqline.consumed_events (consumer, event_id, handled_at)
         SELECT 'mail', gen_random_uuid(), now() - interval '100 days' FROM generate_series(1, 12000);
         INSERT INTO seqline.consumed_events (consumer, event_id, handled_at)
         SELECT 'mail', gen_random_uuid(), now() - interval '80 days' FROM generate_series(1, 3)",
    )
    .await;
    let rows = async || -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM seqline.consumed_events")
            .fetch_one(&db.admin())
            .await
            .unwrap()
    };
    let often = || server(&db, "worker").args(["--set", "sync.partition_maintenance_interval=1s"]);
    let unused = Worker::start(often()).await;
    unused.says_again("partition maintenance done", 1).await;
    let log = unused.stop().await;
    assert!(!log.iter().any(|line| line["message"] == "events that were handled long ago forgotten"));
    assert_eq!(rows().await, 12_003);
    let consumer = "INSERT INTO seqline.stream_consumers (name, stream, start_position, reconciled_to) VALUES ('mail', 'EVENTS', 0, 0)";
    run_sql(&mut app, consumer).await;
    let used = Worker::start(often()).await;
    // 30 days of retention, 30 of hold, 7 of a partition, 7 in the stream, and 7 of margin.
    assert_eq!(used.says("events that were handled long ago forgotten").await["events"], 12_000);
    used.stop().await;
    assert_eq!(rows().await, 3);
}

#[tokio::test]
async fn up_copies_the_log_where_the_url_of_a_broker_is_given() {
    let (db, nats) = (server_db().await, NatsServer::start().await);
    append(&db.app(), 1..=3).await;
    let place = Place::new();
    let up = place.up().args(["--database-url", &db.url(Role::Admin), "--nats-url", &nats.url()]);
    let up = place.start(up).await;
    holds(&nats, 3).await;
    up.running.signal(nix::sys::signal::Signal::SIGTERM);
    let outcome = up.running.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    let said = format!("The log is copied into the stream EVENTS of the broker at {}.\n", nats.addr());
    assert!(outcome.stderr.starts_with(&said), "{outcome:?}");
    assert_eq!(stream_of(&nats).await.unwrap().consumers, [], "nobody consumes");
    let sentence = place.up().args(["--nats-url", "http s://hunter2"]).refused(2).await;
    assert!(
        sentence.starts_with("the URL of the broker is none") && !sentence.contains("hunter2"),
        "{sentence}"
    );
}

#[tokio::test]
async fn what_waits_for_a_consumer_that_does_not_run_and_what_was_dropped_for_it_is_shown() {
    let (db, nats) = (TestDb::new().await, NatsServer::start().await);
    append(&db.app(), 1..=20).await;
    let relay = Worker::start(at(&db, "relay", &nats.url())).await;
    holds(&nats, 20).await;
    consume(&db, &nats, "mail", 3).await;
    let of =
        |metric: &str| format!("seqline_stream_consumer_{metric}{{seqline_stream_consumer_name=\"mail\"}}");
    relay.shows(&of("pending"), 17.0).await;
    relay.shows(&of("ack_pending"), 0.0).await;
    relay.shows(&of("dropped_total"), 0.0).await;
    run_sql(
        &mut db.connect(Role::App).await,
        "UPDATE seqline.stream_consumers SET dropped = 4 WHERE name = 'mail'",
    )
    .await;
    relay.shows(&of("dropped_total"), 4.0).await;
    relay.stop().await;
}
