//! What each role runs.

use seqline_testkit::{Pooler, Role, TestDb, TestServer, eventually};

use crate::support::{DEADLINE, Sessions, append, server_db, with_jobs};
use crate::worker::{Worker, server};

fn listens(what: &str) -> String {
    format!("application_name = '{what}' AND query LIKE 'LISTEN%'")
}

#[tokio::test]
async fn an_api_follows_the_log_and_works_on_nothing() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "api")).await;
    let sessions = Sessions::of(&db, Role::App);
    sessions.reach(1, "application_name = 'seqline-event-tail'").await;
    append(&db.app(), 1..=3).await;
    server.shows("seqline_event_fanout_lag_seconds_count", 3.0).await;
    assert_eq!(sessions.count("application_name = 'seqline-consumer-wake'").await, 0);
    let log = server.stop().await;
    assert!(!log.iter().any(|line| line["message"] == "event recorded"), "{log:#?}");
    let stopped: Vec<&str> = log.iter().filter_map(|line| line["component"].as_str()).collect();
    assert_eq!(stopped, ["event_tail", "api", "api_server", "ops", "watch", "metrics"]);
}

#[tokio::test]
async fn a_worker_works_and_does_not_follow() {
    let db = server_db().await;
    let server = Worker::start(server(&db, "worker")).await;
    append(&db.app(), 1..=3).await;
    server.records(1..=3).await;
    assert_eq!(Sessions::of(&db, Role::App).count("application_name = 'seqline-event-tail'").await, 0);
    assert_eq!(server.figure("seqline_tail_lag").await, None);
    server.stop().await;
}

#[tokio::test]
async fn all_does_both_and_stops_delivery_first() {
    let db = server_db().await;
    // The default.
    let command = crate::support::on(&db, Role::App, ["serve"]);
    let server = Worker::start(command).await;
    eventually(DEADLINE, "both listen", async || {
        let sessions = Sessions::of(&db, Role::App);
        sessions.count(&listens("seqline-event-tail")).await
            + sessions.count(&listens("seqline-consumer-wake")).await
            > 0
            && server.figure("seqline_listener_connected{seqline_listener_name=\"tail\"}").await == Some(1.0)
            && server.figure("seqline_listener_connected{seqline_listener_name=\"consumers\"}").await
                == Some(1.0)
    })
    .await;
    append(&db.app(), [1]).await;
    server.records([1]).await;
    server.shows("seqline_event_fanout_lag_seconds_count", 1.0).await;
    let log = server.stop().await;
    let stopped: Vec<&str> = log.iter().filter_map(|line| line["component"].as_str()).collect();
    let parts = ["event_tail", "api", "event_consumers", "jobs", "sequencer"];
    assert_eq!(stopped, [&parts[..], &["api_server", "ops", "watch", "metrics"]].concat());
}

#[tokio::test]
async fn one_that_only_polls_listens_on_nothing_and_still_does_everything() {
    let db = server_db().await;
    let silent = server(&db, "all")
        .args(["--set", "database.listen=false"])
        .env("SEQLINE_CONSUMER__POLL_INTERVAL", "50ms")
        .env("SEQLINE_SYNC__LOG_POLL_INTERVAL", "50ms");
    let server = Worker::start(silent).await;
    append(&db.app(), 1..=3).await;
    server.records(1..=3).await;
    server.shows("seqline_event_fanout_lag_seconds_count", 3.0).await;
    server.becomes(&[]).await;
    let sessions = Sessions::of(&db, Role::App);
    for name in ["seqline-event-tail", "seqline-consumer-wake"] {
        assert_eq!(sessions.count(&format!("application_name = '{name}'")).await, 0);
    }
    let (_, figures) = server.get("/metrics").await;
    assert!(!figures.contains("seqline_listener_connected"), "{figures}");
    let log = server.stop().await;
    assert!(!log.iter().any(|line| line["level"] == "WARN"), "{log:#?}");
}

/// What needs no prepared statement of its own: the api follows the log, and everything that it says of itself is there.
#[tokio::test]
async fn an_api_works_behind_a_pooler_in_transaction_mode() {
    let postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    let pooler = Pooler::start(&postgres, 2).await;
    let port = |port: u16| format!("@127.0.0.1:{port}/");
    let (own, poolers) = (db.options(Role::App).get_port(), pooler.addr().port());
    let url = format!("{}&statement-cache-capacity=0", db.url(Role::App).replace(&port(own), &port(poolers)));
    let command = server(&db, "api")
        .args(["--database-url", &url, "--set", "database.listen=false"])
        .env("SEQLINE_SYNC__LOG_POLL_INTERVAL", "50ms")
        .env("SEQLINE_OPS__LOOK_INTERVAL", "100ms")
        .env("SEQLINE_TELEMETRY__REFRESH_INTERVAL", "100ms");
    let (first, second) = (Worker::start(command).await, Worker::start(server(&db, "api")).await);
    append(&db.app(), 1..=3).await;
    first.shows("seqline_event_fanout_lag_seconds_count", 3.0).await;
    first.becomes(&[]).await;
    first.shows("seqline_log_head", 3.0).await;
    append(&db.app(), 4..=6).await;
    first.shows("seqline_log_head", 6.0).await;
    first.shows("seqline_event_fanout_lag_seconds_count", 6.0).await;
    first.becomes(&[]).await;
    second.stop().await;
    let log = first.stop().await;
    assert!(!log.iter().any(|line| line["level"] != "INFO"), "{log:#?}");
}
