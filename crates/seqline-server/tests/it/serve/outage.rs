//! A worker whose database goes away and comes back.

use std::time::Duration;

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, TestServer, eventually};

use super::cursor_reaches;
use crate::support::{DEADLINE, Sessions, append, server_db, with_jobs};
use crate::worker::{Worker, messages, worker};

#[tokio::test]
async fn it_outlives_the_server_and_does_not_flood_the_log() {
    let mut server = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&server).await).await;
    let quick = worker(&db)
        .env("SEQLINE_CONSUMER__POLL_INTERVAL", "10ms")
        .env("SEQLINE_CONSUMER__FAILURE_BACKOFF_CAP", "50ms")
        .env("SEQLINE_DATABASE__LISTEN_RECONNECT_BACKOFF_CAP", "100ms")
        .env("SEQLINE_SYNC__LOG_POLL_INTERVAL", "100ms");
    let worker = Worker::start(quick).await;
    append(&db.app(), [1]).await;
    cursor_reaches(&db, 1).await;
    for n in 2..=3 {
        let failures = worker.count("event consumer round failed");
        let recoveries = worker.count("event consumer recovered");
        server.stop().await;
        // Tens of attempts, and one line about it.
        worker.says_again("event consumer round failed", failures).await;
        server.start_again().await;
        append(&db.pool(Role::App, 1), [n]).await;
        worker.says_again("event consumer recovered", recoveries).await;
        worker.records([n]).await;
    }
    let log = worker.stop().await;
    let others = messages(&log);
    assert!(!log.iter().any(|line| line["target"].as_str().unwrap().starts_with("riverqueue")), "{log:#?}");
    assert!(others.len() < 40, "{} lines: {others:#?}", others.len());
    for message in ["event consumer round failed", "event consumer recovered"] {
        let count = others.iter().filter(|other| **other == message).count();
        assert!((2..=4).contains(&count), "{message}: {count} times in {others:#?}");
    }
}

#[tokio::test]
async fn the_end_of_all_its_backends_loses_nothing() {
    let db = server_db().await;
    let quick = worker(&db).env("SEQLINE_CONSUMER__POLL_INTERVAL", "20ms");
    let worker = Worker::start(quick).await;
    for n in 1..=5 {
        append(&db.admin(), [n]).await;
        worker.records([n]).await;
        Sessions::of(&db, Role::App).terminate().await;
    }
    append(&db.admin(), [6]).await;
    worker.records(1..=6).await;
    cursor_reaches(&db, 6).await;
    worker.stop().await;
}

#[tokio::test]
async fn without_its_database_it_ends_within_its_budget() {
    /// Less than it waits for a connection.
    const SOON: Duration = Duration::from_secs(8);
    let mut server = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&server).await).await;
    let hasty = worker(&db)
        .env("SEQLINE_SHUTDOWN__TOTAL_TIMEOUT", "500ms")
        .env("SEQLINE_CONSUMER__POLL_INTERVAL", "10ms");
    let worker = Worker::start(hasty).await;
    server.stop().await;
    let noticed = async || worker.log().iter().any(|line| line["level"] != "INFO");
    eventually(DEADLINE, "it notices", noticed).await;
    worker.running.signal(Signal::SIGTERM);
    let (outcome, log) = tokio::time::timeout(SOON, worker.end()).await.expect("it ends within its budget");
    assert_eq!(outcome.code(), Some(0), "{outcome:?} {log:#?}");
    assert_eq!(log.last().unwrap()["message"], "server stopped", "{log:#?}");
}

/// As soon as it says that it has started, and so perhaps before anything has begun.
#[tokio::test]
async fn it_outlives_a_server_that_goes_at_the_very_start() {
    let mut server = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&server).await).await;
    let worker = Worker::start(worker(&db).env("SEQLINE_CONSUMER__POLL_INTERVAL", "10ms")).await;
    server.kill().await;
    server.start_again().await;
    append(&db.pool(Role::App, 1), [1]).await;
    worker.records([1]).await;
    worker.stop().await;
}
