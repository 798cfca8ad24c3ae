//! `seqline serve`: a worker as its operator sees it, with its logs, signals and a database that comes and goes.

mod away;
mod ending;
mod figures;
mod health;
mod history;
mod outage;
mod roles;
mod sequencer;
mod telemetry;

use nix::sys::signal::Signal;
use seqline::{NewEvent, Payload};
use seqline_testkit::{TestDb, eventually};
use serde_json::Value;

use crate::support::{DEADLINE, append, as_admin, closed_port, server_db, small_partitions};
use crate::worker::{Worker, messages, recorded, worker};

/// Where the recorder's cursor is.
async fn cursor(db: &TestDb) -> i64 {
    sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors WHERE name = 'recorder'")
        .fetch_one(&db.admin())
        .await
        .expect("there is a recorder")
}

async fn cursor_reaches(db: &TestDb, seq: i64) {
    eventually(DEADLINE, "the cursor is there", async || cursor(db).await == seq).await;
}

#[tokio::test]
async fn events_of_before_and_of_now_are_recorded_once_each() {
    let db = server_db().await;
    append(&db.app(), 1..=250).await;
    let worker = Worker::start(worker(&db)).await;
    worker.records(1..=250).await;
    for n in 251..=255 {
        append(&db.app(), [n]).await;
        worker.records([n]).await;
    }
    cursor_reaches(&db, 255).await;
    let recorded = recorded(&worker.log());
    assert_eq!(recorded.keys().copied().collect::<Vec<_>>(), (1..=255).collect::<Vec<_>>());
    assert!(recorded.values().all(|times| *times == 1), "{recorded:?}");
    let log = worker.stop().await;
    let started = &log.iter().find(|line| line["message"] == "server started").unwrap();
    assert_eq!((&started["role"], &started["consumers"]), (&"worker".into(), &"recorder".into()));
}

#[tokio::test]
async fn a_recorder_with_a_filter_logs_those_events_and_passes_the_others() {
    let db = server_db().await;
    for (event_type, kind, space) in [
        ("order.created", "order", "shop-1"),
        ("order.created", "order", "shop-2"),
        ("invoice.paid", "invoice", "shop-1"),
        ("order.line.added", "order", "shop-1"),
        ("order.created", "basket", "shop-1"),
    ] {
        let event = NewEvent::builder(event_type, kind, "any").space(space).build().unwrap();
        let mut tx = seqline::begin(&db.app()).await.unwrap();
        seqline::append(&mut tx, &[event]).await.unwrap();
        seqline::commit(tx).await.unwrap();
    }
    let filter = [
        ("SEQLINE_RECORDER__TYPES", "order.*"),
        ("SEQLINE_RECORDER__SPACES", "shop-1,shop-3"),
        ("SEQLINE_RECORDER__RESOURCE_KINDS", "order,invoice"),
    ];
    let filtered = filter.into_iter().fold(worker(&db), |worker, (name, value)| worker.env(name, value));
    let worker = Worker::start(filtered).await;
    cursor_reaches(&db, 5).await;
    let log = worker.stop().await;
    assert_eq!(recorded(&log).into_iter().collect::<Vec<_>>(), [(1, 1), (4, 1)]);
}

#[tokio::test]
async fn a_recorded_event_is_a_line_with_its_number_and_id_and_nothing_else() {
    let db = server_db().await;
    append(&db.app(), [1]).await;
    let worker = Worker::start(worker(&db)).await;
    let line = worker.says("event recorded").await;
    let members: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["consumer", "event_id", "level", "message", "seq", "target", "timestamp"]);
    let id: uuid::Uuid =
        sqlx::query_scalar("SELECT id FROM seqline.event_log").fetch_one(&db.admin()).await.unwrap();
    assert_eq!(line["event_id"], id.to_string());
    assert_eq!(
        (&line["consumer"], &line["seq"], &line["level"]),
        (&"recorder".into(), &1.into(), &"INFO".into())
    );
    worker.stop().await;
}

#[tokio::test]
async fn it_says_that_it_stops_and_stops_consumers_before_jobs() {
    let db = server_db().await;
    let worker = Worker::start(worker(&db)).await;
    worker.says("partition maintenance done").await;
    let log = worker.stop().await;
    let messages = messages(&log);
    let stopping = messages.iter().position(|message| *message == "server stopping").unwrap();
    assert_eq!(
        messages[stopping..],
        [&["server stopping"][..], &["component stopped"; 6], &["server stopped"]].concat()
    );
    let stopped: Vec<&Value> = log
        .iter()
        .filter(|line| line["message"] == "component stopped")
        .map(|line| &line["component"])
        .collect();
    assert_eq!(stopped, ["event_consumers", "jobs", "sequencer", "ops", "watch", "metrics"]);
}

#[tokio::test]
async fn what_an_event_says_is_nowhere_in_the_output_not_even_at_the_highest_level() {
    let db = server_db().await;
    let event = NewEvent::builder("secret.told", "hunter", "any")
        .resource_id("hunter2")
        .payload(Payload::from_json("{\"password\": \"hunter2\"}").unwrap())
        .build()
        .unwrap();
    let mut tx = seqline::begin(&db.app()).await.unwrap();
    seqline::append(&mut tx, &[event]).await.unwrap();
    seqline::commit(tx).await.unwrap();
    let worker = Worker::start(worker(&db).env("SEQLINE_LOG", "trace")).await;
    cursor_reaches(&db, 1).await;
    worker.running.signal(Signal::SIGTERM);
    let (outcome, log) = worker.end().await;
    let output = format!("{outcome:?} {log:?}");
    assert!(output.contains("event recorded") && output.contains("DEBUG"), "{output}");
    for word in ["hunter", "secret", "told"] {
        assert!(!output.contains(word), "{word} is in the output");
    }
}

#[tokio::test]
async fn without_a_connection_to_listen_on_it_polls() {
    let db = server_db().await;
    let nowhere = format!("postgres://alex:hunter2@127.0.0.1:{}/db", closed_port());
    let poll = ("SEQLINE_CONSUMER__POLL_INTERVAL", "20ms");
    let worker = Worker::start(worker(&db).args(["--listen-url", &nowhere]).env(poll.0, poll.1)).await;
    append(&db.app(), [1]).await;
    worker.records([1]).await;
    worker.says("event log listener lost, polling goes on").await;
    let log = worker.stop().await;
    assert!(!format!("{log:?}").contains("hunter2"), "{log:#?}");
}

#[tokio::test]
async fn with_notifications_it_does_not_wait_for_the_poll() {
    let db = server_db().await;
    let seldom = [
        ("SEQLINE_CONSUMER__POLL_INTERVAL", "1h"),
        ("SEQLINE_CONSUMER__FAILURE_BACKOFF_CAP", "1h"),
        ("SEQLINE_DATABASE__LISTEN_RECONNECT_BACKOFF_CAP", "1h"),
    ];
    let seldom = seldom.into_iter().fold(worker(&db), |worker, (name, value)| worker.env(name, value));
    let worker = Worker::start(seldom).await;
    for n in 1..=3 {
        append(&db.app(), [n]).await;
        worker.records([n]).await;
    }
    worker.stop().await;
}

async fn partitions(db: &TestDb) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM seqline.event_log_partitions()")
        .fetch_one(&db.admin())
        .await
        .unwrap()
}

#[tokio::test]
async fn partitions_are_maintained_at_the_start() {
    let db = server_db().await;
    small_partitions(&db, 4, 1).await;
    append(&db.app(), 1..=3).await;
    assert_eq!(partitions(&db).await, 1);
    let worker = Worker::start(worker(&db)).await;
    let done = worker.says("partition maintenance done").await;
    assert_eq!(done["created"], 1);
    assert_eq!(partitions(&db).await, 2);
    worker.stop().await;
}

#[tokio::test]
async fn events_stay_as_long_as_the_configuration_says() {
    let db = server_db().await;
    small_partitions(&db, 2, 2).await;
    append(&db.app(), 1..=3).await;
    let short = [
        ("SEQLINE_SYNC__EVENT_RETENTION", "2s"),
        ("SEQLINE_SYNC__PARTITION_MAINTENANCE_INTERVAL", "1s"),
        ("SEQLINE_JOBS__RETRY_BACKOFF_CAP", "1s"),
        ("SEQLINE_CONSUMER__PENDING_ALERT_AFTER", "1s"),
        ("SEQLINE_AGENT__PENDING_ALERT_AFTER", "1s"),
        ("SEQLINE_SHUTDOWN__TOTAL_TIMEOUT", "900ms"),
    ];
    let short = short.into_iter().fold(worker(&db), |worker, (name, value)| worker.env(name, value));
    let worker = Worker::start(short).await;
    eventually(DEADLINE, "the first two expire", async || {
        let oldest = sqlx::query_scalar("SELECT seqline.min_retained()").fetch_one(&db.admin()).await;
        oldest.is_ok_and(|oldest: i64| oldest == 3)
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn a_consumer_of_another_kind_is_refused_by_name() {
    let db = server_db().await;
    as_admin(&db, "SELECT seqline.register_consumer('recorder')").await;
    let sentence = worker(&db).refused(4).await;
    assert!(sentence.contains("consumer recorder is of kind poll"), "{sentence}");
}
