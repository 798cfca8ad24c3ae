//! How a worker ends.

use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, eventually};
use sqlx::PgConnection;

use super::{cursor, cursor_reaches};
use crate::support::{DEADLINE, Sessions, append, run_sql, seqline, server_db};
use crate::worker::{Worker, recorded, worker};

/// The next round handles its events and then waits: nobody may move a cursor.
async fn hold_cursors(db: &TestDb) -> PgConnection {
    let mut holder = db.connect(Role::Admin).await;
    run_sql(&mut holder, "BEGIN; LOCK TABLE seqline.event_consumer_cursors IN SHARE MODE").await;
    holder
}

/// A worker whose round has handled event 1 and cannot commit, for longer than any test.
async fn held_worker(db: &TestDb, total_timeout: &str) -> (Worker, PgConnection) {
    let held = worker(db)
        .env("SEQLINE_DATABASE__LOCK_TIMEOUT", "10min")
        .env("SEQLINE_DATABASE__STATEMENT_TIMEOUT", "15min")
        .env("SEQLINE_CONSUMER__BATCH_SIZE", "1")
        .env("SEQLINE_SHUTDOWN__TOTAL_TIMEOUT", total_timeout);
    let worker = Worker::start(held).await;
    let holder = hold_cursors(db).await;
    append(&db.app(), 1..=3).await;
    worker.records([1]).await;
    Sessions::of(db, Role::App)
        .reach(1, "wait_event_type = 'Lock' AND query LIKE '%advance_consumer%'")
        .await;
    assert_eq!(recorded(&worker.log()).len(), 1, "a round has as many events as the configuration says");
    (worker, holder)
}

#[tokio::test]
async fn each_signal_to_stop_is_a_good_end() {
    let db = server_db().await;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let worker = Worker::start(worker(&db)).await;
        worker.running.signal(signal);
        let (outcome, log) = worker.end().await;
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(0), ""), "{signal}: {outcome:?}");
        assert_eq!(log.last().unwrap()["message"], "server stopped", "{signal}: {log:#?}");
    }
    Sessions::of(&db, Role::App).end().await;
}

#[tokio::test]
async fn a_round_that_runs_is_finished_before_anything_else_stops() {
    let db = server_db().await;
    let (worker, mut holder) = held_worker(&db, "9min").await;
    worker.running.signal(Signal::SIGTERM);
    worker.says("server stopping").await;
    assert_eq!(worker.count("component stopped"), 0);
    run_sql(&mut holder, "COMMIT").await;
    let (outcome, log) = worker.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?} {log:#?}");
    assert_eq!(cursor(&db).await, 1);
    assert!(!log.iter().any(|line| line["level"] == "WARN"), "{log:#?}");
}

#[tokio::test]
async fn when_the_budget_is_used_up_the_round_rolls_back_and_nothing_is_lost() {
    let db = server_db().await;
    let (held, mut holder) = held_worker(&db, "300ms").await;
    held.running.signal(Signal::SIGTERM);
    let (outcome, log) = held.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?} {log:#?}");
    assert_eq!(log.last().unwrap()["message"], "server stopped", "{log:#?}");
    assert!(log.iter().any(|line| line["level"] == "WARN"), "it says that something was dropped: {log:#?}");
    assert_eq!(cursor(&db).await, 0);
    run_sql(&mut holder, "COMMIT").await;
    let next = Worker::start(worker(&db)).await;
    next.records(1..=3).await;
    cursor_reaches(&db, 3).await;
    next.stop().await;
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let db = server_db().await;
    let (worker, _holder) = held_worker(&db, "9min").await;
    worker.running.signal(Signal::SIGTERM);
    worker.says("server stopping").await;
    worker.running.signal(Signal::SIGTERM);
    let (outcome, _) = worker.end().await;
    assert_eq!(outcome.code(), Some(130), "{outcome:?}");
    assert_eq!(cursor(&db).await, 0);
}

#[tokio::test]
async fn when_one_of_two_is_killed_the_other_goes_on() {
    let db = server_db().await;
    let workers = [Worker::start(worker(&db)).await, Worker::start(worker(&db)).await];
    let app = db.app();
    let appending = tokio::spawn(async move {
        for first in (1..=1000).step_by(10) {
            append(&app, first..first + 10).await;
        }
    });
    // Whichever of them works.
    eventually(DEADLINE, "some are recorded", async || cursor(&db).await > 100).await;
    let [killed, other] = workers;
    killed.running.signal(Signal::SIGKILL);
    let (outcome, log) = killed.end().await;
    assert_eq!(outcome.code(), None, "{outcome:?}");
    appending.await.unwrap();
    cursor_reaches(&db, 1000).await;
    let both = [log, other.stop().await].concat();
    let recorded = recorded(&both);
    let missing: Vec<i64> = (1..=1000).filter(|seq| !recorded.contains_key(seq)).collect();
    assert!(missing.is_empty(), "not recorded: {missing:?}");
}

#[tokio::test]
async fn a_signal_while_it_waits_for_the_database_ends_it() {
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("postgres://alex@{}/db", silent.local_addr().unwrap());
    let running = seqline(["serve", "--role", "worker", "--database-url", &url]).start();
    // It listens to signals before it looks for the database.
    let _connection = tokio::time::timeout(DEADLINE, silent.accept()).await.expect("it connects").unwrap();
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end().await.ok(), "");
}
