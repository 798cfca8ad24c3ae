//! The sequencers of workers: one numbers, and when it stops without a word another one does.

use std::time::Duration;

use futures_util::future::join_all;
use nix::sys::signal::Signal;
use seqline_testkit::{Role, TestDb, eventually};
use uuid::Uuid;

use crate::sequencing::{after_commit, holder};
use crate::support::{DEADLINE, append, numbers, on, server_db};
use crate::worker::{Worker, worker};

/// Until what is committed after the one that numbers has gone has its number. A lease of 600 ms and a look at it each 200 ms make 800
/// ms; the rest is for a machine that does other things.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Events in the log, each by its number and the one in its payload.
async fn log(db: &TestDb) -> Vec<(i64, i64)> {
    sqlx::query_as("SELECT seq, (payload ->> 'n')::bigint FROM seqline.event_log ORDER BY seq")
        .fetch_all(&db.admin())
        .await
        .expect("the log can be read")
}

/// Each event is there once, without a gap, those of each writer in its order. Writers have numbers of their own thousand.
async fn assert_dense_and_in_order(db: &TestDb, writers: i64, each: i64) {
    let log = log(db).await;
    let seqs: Vec<i64> = log.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=writers * each).collect::<Vec<_>>());
    for writer in 0..writers {
        let of_writer: Vec<i64> = log.iter().map(|(_, n)| *n).filter(|n| n / 1000 == writer).collect();
        assert_eq!(of_writer, (0..each).map(|n| writer * 1000 + n).collect::<Vec<_>>(), "writer {writer}");
    }
}

/// Writers that append for as long as it takes, one event in each transaction.
async fn write(db: &TestDb, writers: i64, each: i64) {
    join_all((0..writers).map(async |writer| {
        let pool = db.producer();
        for n in 0..each {
            append(&pool, [writer * 1000 + n]).await;
        }
    }))
    .await;
}

/// Who has the lease, once somebody has it.
async fn holder_of(db: &TestDb) -> Uuid {
    let mut found = None;
    eventually(DEADLINE, "somebody has the lease", async || {
        found = holder(db).await;
        found.is_some()
    })
    .await;
    found.expect("somebody has it")
}

/// Two workers, and the lease of the sequencer of the first.
async fn two_workers(db: &TestDb) -> (Worker, Worker, Uuid) {
    let first = Worker::start(worker(db)).await;
    after_commit(db).await;
    let holds = holder_of(db).await;
    let second = Worker::start(worker(db)).await;
    (first, second, holds)
}

#[tokio::test]
async fn when_the_one_that_numbers_is_killed_the_other_goes_on_within_a_second() {
    let db = server_db().await;
    let first = Worker::start(worker(&db)).await;
    after_commit(&db).await;
    append(&db.producer(), [1]).await;
    first.records([1]).await;
    let held = holder_of(&db).await;
    let second = Worker::start(worker(&db)).await;
    first.running.signal(Signal::SIGKILL);
    append(&db.producer(), [2]).await;
    eventually(TAKEOVER, "the other one numbers", async || numbers(&db).await == [1, 2]).await;
    assert_ne!(holder(&db).await, Some(held));
    first.end().await;
    second.stop().await;
}

#[tokio::test]
async fn a_kill_under_load_loses_doubles_and_reorders_nothing() {
    let db = server_db().await;
    let (first, second, _) = two_workers(&db).await;
    let kill = async {
        eventually(DEADLINE, "some have numbers", async || numbers(&db).await.len() > 50).await;
        first.running.signal(Signal::SIGKILL);
    };
    tokio::join!(write(&db, 4, 150), kill);
    eventually(DEADLINE, "all have numbers", async || numbers(&db).await.len() >= 600).await;
    assert_dense_and_in_order(&db, 4, 150).await;
    first.end().await;
    second.stop().await;
}

#[tokio::test]
async fn when_the_one_that_numbers_stands_still_the_other_goes_on_and_its_return_doubles_nothing() {
    let db = server_db().await;
    let (first, second, held) = two_workers(&db).await;
    let stand_still = async {
        eventually(DEADLINE, "some have numbers", async || numbers(&db).await.len() > 50).await;
        first.running.signal(Signal::SIGSTOP);
        let before = numbers(&db).await.len();
        eventually(TAKEOVER, "the other one numbers", async || numbers(&db).await.len() > before).await;
        eventually(DEADLINE, "it has the lease", async || holder(&db).await.is_some_and(|now| now != held))
            .await;
        first.running.signal(Signal::SIGCONT);
    };
    tokio::join!(write(&db, 4, 150), stand_still);
    eventually(DEADLINE, "all have numbers", async || numbers(&db).await.len() >= 600).await;
    assert_dense_and_in_order(&db, 4, 150).await;
    second.stop().await;
    // What it appends and numbers now is in the log as well.
    append(&db.producer(), [9000]).await;
    eventually(TAKEOVER, "the first one numbers again", async || numbers(&db).await.len() == 601).await;
    first.stop().await;
}

#[tokio::test]
async fn a_stop_in_good_order_gives_the_lease_back() {
    let db = server_db().await;
    let long = worker(&db).env("SEQLINE_SEQUENCER__LEASE", "30s").env("SEQLINE_ALERT__STAGED_AGE", "1min");
    let first = Worker::start(long).await;
    after_commit(&db).await;
    eventually(DEADLINE, "it has the lease", async || holder(&db).await.is_some()).await;
    let lasts: bool = sqlx::query_scalar(
        "SELECT expires_at > clock_timestamp() + interval '10 s' FROM seqline.sequencer_lease",
    )
    .fetch_one(&db.admin())
    .await
    .unwrap();
    assert!(lasts, "the lease is as long as the configuration says");
    append(&db.producer(), [1]).await;
    first.stop().await;
    assert_eq!(holder(&db).await, None);
    append(&db.producer(), [2]).await;
    let next = Worker::start(worker(&db)).await;
    eventually(TAKEOVER, "the next one numbers", async || numbers(&db).await == [1, 2]).await;
    next.stop().await;
}

#[tokio::test]
async fn a_worker_completes_a_change_to_at_commit() {
    let db = server_db().await;
    let worker = Worker::start(worker(&db)).await;
    for (value, n) in [("after_commit", 1), ("at_commit", 2), ("after_commit", 3), ("at_commit", 4)] {
        on(&db, Role::App, ["settings", "sequencing", value]).ok().await;
        append(&db.producer(), [n]).await;
    }
    assert_eq!(numbers(&db).await, [1, 2, 3, 4]);
    eventually(DEADLINE, "nothing is open", async || {
        let text = on(&db, Role::App, ["settings", "--json"]).ok().await;
        text.contains("\"complete\":true")
    })
    .await;
    worker.stop().await;
}
