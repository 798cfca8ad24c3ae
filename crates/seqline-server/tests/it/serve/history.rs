//! A server whose database goes back to an earlier state, or turns out to be another one.

use std::time::Duration;

use seqline_testkit::{Backup, Role, TestDb, TestServer, eventually};

use crate::support::{DEADLINE, Seqline, append, as_admin, on, with_jobs};
use crate::worker::{Worker, server};

/// A server that looks often.
fn quick(server: Seqline) -> Seqline {
    server
        .env("SEQLINE_OPS__LOOK_INTERVAL", "100ms")
        .env("SEQLINE_CONSUMER__POLL_INTERVAL", "50ms")
        .env("SEQLINE_CONSUMER__FAILURE_BACKOFF_CAP", "200ms")
        .env("SEQLINE_SYNC__LOG_POLL_INTERVAL", "50ms")
        .env("SEQLINE_DATABASE__LISTEN_RECONNECT_BACKOFF_CAP", "200ms")
}

const NOT_HANDED_OUT: &str = "database is not the one to which the numbers belong, nothing is handed out until seqline restore finalize";

/// A database with a backup at event 3 and a head at event 6, which the server has delivered, and that is then taken back.
async fn taken_back(rule: &str) -> (TestServer, TestDb, Worker) {
    let mut postgres = TestServer::durable().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    append(&db.app(), 1..=3).await;
    let running = Worker::start(quick(server(&db, "all")).env("SEQLINE_EPOCH__ON_CHANGE", rule)).await;
    running.records(1..=3).await;
    let backup = Backup::take(&postgres).await;
    append(&db.app(), 4..=6).await;
    running.records(4..=6).await;
    running.shows("seqline_tail_lag", 0.0).await;
    running.becomes(&[]).await;
    backup.restore_in_place(&mut postgres).await;
    (postgres, db, running)
}

async fn finalize(db: &TestDb, consumers: &str) {
    let command = ["restore", "finalize", "--consumers", consumers, "--yes", "--reason", "test"];
    on(db, Role::App, command).run().await.ok();
}

#[tokio::test]
async fn taken_back_under_it_it_hands_out_nothing_until_somebody_has_finalized() {
    let (_postgres, db, server) = taken_back("refuse").await;
    server.says(NOT_HANDED_OUT).await;
    server.becomes(&["started", "epoch"]).await;
    server.shows("seqline_log_identity_matches", 0.0).await;
    assert_eq!(server.get("/livez").await.0, 200);
    // What is appended now gets numbers that were given before: nobody is told.
    let pool = db.pool(Role::App, 1);
    append(&pool, 7..=8).await;
    let recorded = server.count("event recorded");
    finalize(&db, "keep").await;
    server.becomes(&[]).await;
    // The cursor was at 3 in the backup.
    server.says_again("event recorded", recorded + 1).await;
    eventually(DEADLINE, "all is handled", async || {
        let cursor =
            sqlx::query_scalar("SELECT last_seq FROM seqline.event_consumer_cursors WHERE name = 'recorder'");
        cursor.fetch_one(&pool).await.is_ok_and(|last_seq: i64| last_seq == 5)
    })
    .await;
    server.shows("seqline_log_identity_matches", 1.0).await;
    let log = server.stop().await;
    assert_eq!(log.iter().filter(|line| line["message"] == NOT_HANDED_OUT).count(), 1, "{log:#?}");
    let epochs: Vec<&str> = log
        .iter()
        .filter(|line| line["message"] == "server started")
        .map(|line| line["epoch"].as_str().expect("it names the epoch"))
        .collect();
    assert!(epochs.len() == 2 && epochs[0] != epochs[1], "{epochs:?}");
    let waiting = log.iter().position(|line| line["message"] == NOT_HANDED_OUT).unwrap();
    let again = log.iter().rposition(|line| line["message"] == "server started").unwrap();
    assert!(
        !log[waiting..again].iter().any(|line| line["message"] == "event recorded"),
        "nothing is handed out in between: {log:#?}"
    );
}

#[tokio::test]
async fn what_it_has_seen_is_known_to_the_next_one() {
    let (_postgres, db, first) = taken_back("refuse").await;
    assert_eq!(first.says(NOT_HANDED_OUT).await["recorded"], true);
    first.becomes(&["started", "epoch"]).await;
    first.stop().await;
    let next = Worker::begin(quick(server(&db, "all")));
    next.says(NOT_HANDED_OUT).await;
    next.becomes(&["started", "epoch"]).await;
    assert_eq!(next.count("server started"), 0);
    finalize(&db, "head").await;
    next.says("server started").await;
    next.becomes(&[]).await;
    next.stop().await;
}

#[tokio::test]
async fn a_rule_starts_a_new_epoch_by_itself() {
    let (_postgres, db, server) = taken_back("new_epoch").await;
    server.says("new epoch was started, cursors were kept").await;
    server.becomes(&[]).await;
    let recorded = server.count("event recorded");
    append(&db.pool(Role::App, 1), [7]).await;
    server.says_again("event recorded", recorded).await;
    server.stop().await;
}

#[tokio::test]
async fn a_new_epoch_under_it_makes_it_start_anew() {
    let postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    let server = Worker::start(quick(server(&db, "all"))).await;
    append(&db.app(), 1..=3).await;
    server.records(1..=3).await;
    server.becomes(&[]).await;
    let force = ["restore", "finalize", "--consumers", "keep", "--force", "--yes", "--reason", "test"];
    on(&db, Role::App, force).run().await.ok();
    server.says_again("server started", 1).await;
    server.becomes(&[]).await;
    append(&db.app(), [4]).await;
    server.records([4]).await;
    let log = server.stop().await;
    assert!(!log.iter().any(|line| line["level"] == "ERROR"), "{log:#?}");
}

#[tokio::test]
async fn another_database_is_not_started_on_and_a_failover_only_where_the_rule_says_so() {
    let postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    append(&db.app(), 1..=3).await;
    db.settled().await;
    // As after a promotion: the timeline is another.
    as_admin(&db, "UPDATE seqline.log_identity SET timeline = timeline + 1").await;
    let refused = Worker::begin(quick(server(&db, "all")));
    let said = refused.says(NOT_HANDED_OUT).await;
    assert!(said["reason"].as_str().unwrap().contains("timeline"), "{said}");
    refused.becomes(&["started", "epoch"]).await;
    refused.stop().await;
    let accepted = quick(server(&db, "all")).env("SEQLINE_EPOCH__ON_CHANGE", "accept");
    let accepted = Worker::start(accepted).await;
    accepted.says("failover was accepted, the epoch goes on").await;
    accepted.records(1..=3).await;
    accepted.stop().await;
    let next = Worker::start(quick(server(&db, "all"))).await;
    next.becomes(&[]).await;
    assert_eq!(next.count(NOT_HANDED_OUT), 0);
    // It ends within its budget also when it has to wait.
    as_admin(&db, "UPDATE seqline.log_identity SET timeline = timeline + 1").await;
    next.says(NOT_HANDED_OUT).await;
    tokio::time::timeout(Duration::from_secs(30), next.stop()).await.expect("it ends");
}

/// As while a dump is loaded into the place of the old database.
#[tokio::test]
async fn once_it_has_served_it_waits_for_a_database_that_is_not_in_order() {
    let postgres = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&postgres).await).await;
    let server = Worker::start(quick(server(&db, "all"))).await;
    server.becomes(&[]).await;
    as_admin(&db, "INSERT INTO seqline.schema_version (version, name, checksum) VALUES (999, 'later', '')")
        .await;
    as_admin(&db, "UPDATE seqline.log_identity SET epoch = gen_random_uuid()").await;
    let said = server.says("server cannot start, trying again").await;
    assert!(said["error"].as_str().unwrap().contains("use a newer program"), "{said}");
    as_admin(&db, "DELETE FROM seqline.schema_version WHERE version = 999").await;
    server.says_again("server started", 1).await;
    server.becomes(&[]).await;
    append(&db.app(), [1]).await;
    server.records([1]).await;
    let log = server.stop().await;
    let count = log.iter().filter(|line| line["message"] == "server cannot start, trying again").count();
    assert_eq!(count, 1, "{log:#?}");
}
