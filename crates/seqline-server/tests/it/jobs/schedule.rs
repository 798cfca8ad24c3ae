//! When maintenance runs, and how often over all workers.

use seqline_testkit::{TestDb, eventually};
use sqlx::Row;

use super::{KIND, ask, there_is, with};
use crate::support::{DEADLINE, append, as_admin, server_db};
use crate::worker::{Worker, messages, worker};

#[tokio::test]
async fn it_runs_at_the_start_as_one_job_that_holds_nothing() {
    let db = server_db().await;
    let worker = Worker::start(worker(&db)).await;
    there_is(&db, "state = 'completed'").await;
    worker.stop().await;
    let rows = sqlx::query(
        "SELECT kind, queue, attempt, max_attempts, args::text, unique_key IS NOT NULL, cardinality(attempted_by)
         FROM seqline_jobs.river_job",
    );
    let rows = rows.fetch_all(&db.admin()).await.unwrap();
    let row: (String, String, i16, i16, String, bool, i32) = (
        rows[0].get(0),
        rows[0].get(1),
        rows[0].get(2),
        rows[0].get(3),
        rows[0].get(4),
        rows[0].get(5),
        rows[0].get(6),
    );
    assert_eq!(row, (KIND.to_owned(), "maintenance".to_owned(), 1, 8, "{}".to_owned(), true, 1));
    assert_eq!(rows.len(), 1);
}

/// Waits until whoever leads has done its periodic work once more.
async fn leader_works(db: &TestDb) {
    as_admin(
        db,
        "INSERT INTO seqline_jobs.river_job (kind, queue, state, max_attempts, args)
         VALUES ('a.canary', 'nobodys', 'scheduled', 1, '{}')",
    )
    .await;
    let waiting = "SELECT count(*) FROM jobs WHERE kind = 'a.canary' AND state = 'scheduled'";
    eventually(DEADLINE, "the leader makes it available", async || ask::<i64>(db, waiting).await == 0).await;
}

async fn leader(db: &TestDb) -> String {
    let mut leader = None;
    eventually(DEADLINE, "somebody leads", async || {
        let found = sqlx::query_scalar("SELECT leader_id FROM seqline_jobs.river_leader");
        leader = found.fetch_optional(&db.admin()).await.unwrap();
        leader.is_some()
    })
    .await;
    leader.unwrap()
}

#[tokio::test]
async fn it_runs_once_per_interval_however_many_workers_there_are_and_whoever_leads() {
    let db = server_db().await;
    let seldom = || {
        with(
            &db,
            &[
                ("sync.partition_maintenance_interval", "7d"),
                ("alert.maintenance_age", "8d"),
                ("jobs.completed_retention", "9d"),
            ],
        )
    };
    // The first to leave is the one that leads.
    let mut workers = vec![Worker::start(seldom()).await];
    let mut leaders = vec![leader(&db).await];
    workers.extend([Worker::start(seldom()).await, Worker::start(seldom()).await]);
    there_is(&db, "state = 'completed'").await;
    // One after the other leaves, and somebody else begins to lead.
    while workers.len() > 1 {
        workers.remove(0).stop().await;
        leader_works(&db).await;
        leader_works(&db).await;
        leaders.push(leader(&db).await);
    }
    workers.remove(0).stop().await;
    leaders.dedup();
    assert!(leaders.len() > 1, "the leader changed: {leaders:?}");
    let runs = "SELECT count(*) FROM jobs WHERE kind = 'sync.partition_maintenance'";
    assert_eq!(ask::<i64>(&db, runs).await, 1);
}

#[tokio::test]
async fn the_smallest_pool_is_enough_for_jobs_and_consumers() {
    let db = server_db().await;
    append(&db.app(), 1..=3).await;
    let smallest = with(
        &db,
        &[
            ("database.max_connections", "3"),
            ("sync.partition_maintenance_interval", "1s"),
            ("jobs.retry_backoff_cap", "1s"),
            ("jobs.poll_interval", "20ms"),
        ],
    );
    let worker = Worker::start(smallest).await;
    worker.records(1..=3).await;
    for n in 4..=6 {
        worker.says_again("partition maintenance done", worker.count("partition maintenance done")).await;
        append(&db.app(), [n]).await;
        worker.records([n]).await;
    }
    let log = worker.stop().await;
    assert!(!log.iter().any(|line| line["level"] != "INFO"), "{log:#?}");
}

#[tokio::test]
async fn it_runs_again_in_each_interval_and_never_twice_in_one() {
    let db = server_db().await;
    let often = || {
        with(
            &db,
            &[
                ("sync.partition_maintenance_interval", "1s"),
                ("jobs.retry_backoff_cap", "1s"),
                ("jobs.poll_interval", "50ms"),
            ],
        )
    };
    let workers = [Worker::start(often()).await, Worker::start(often()).await];
    let completed = "SELECT count(*) FROM jobs WHERE state = 'completed'";
    eventually(DEADLINE, "it is done a few times", async || ask::<i64>(&db, completed).await >= 4).await;
    let mut done = 0;
    for worker in workers {
        let log = worker.stop().await;
        done += messages(&log).iter().filter(|message| **message == "partition maintenance done").count();
    }
    let twice = "SELECT count(*) - count(DISTINCT floor(extract(epoch FROM scheduled_at))) FROM jobs";
    assert_eq!(ask::<i64>(&db, twice).await, 0);
    assert_eq!(ask::<i64>(&db, completed).await, i64::try_from(done).unwrap(), "each was done by one worker");
}
