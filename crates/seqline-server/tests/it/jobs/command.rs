//! `seqline jobs`

use insta::assert_snapshot;
use seqline_testkit::{Role, TestDb, eventually};
use serde_json::{Value, json};

use super::{KIND, ask, hold_maintenance, there_is, with};
use crate::support::{DEADLINE, as_admin, on, run_sql, server_db};
use crate::worker::{Worker, worker};

/// Jobs in all states, at fixed times.
pub(crate) async fn filled() -> TestDb {
    let db = server_db().await;
    as_admin(
        &db,
        "INSERT INTO seqline_jobs.river_job
             (id, state, kind, queue, attempt, max_attempts, args, created_at, scheduled_at, attempted_at, finalized_at,
              attempted_by, errors)
         VALUES
             (1, 'completed', 'a.job', 'default', 1, 8, '{}', '2026-01-01 10:00Z', '2026-01-01 10:00Z',
              '2026-01-01 10:00:01.25Z', '2026-01-01 10:00:02Z', '{one}', NULL),
             (2, 'discarded', 'a.job', 'default', 3, 3, '{\"id\": 17}', '2026-01-01 11:00Z', '2026-01-01 11:00Z',
              '2026-01-01 11:00:30Z', '2026-01-01 11:00:31Z', '{one,one,two}',
              ARRAY['{\"at\": \"2026-01-01T11:00:01Z\", \"attempt\": 1, \"error\": \"no answer\", \"trace\": \"\"}',
                    '{\"at\": \"2026-01-01T11:00:10Z\", \"attempt\": 2, \"error\": \"no\\nanswer\", \"trace\": \"\"}',
                    '{\"at\": \"2026-01-01T11:00:30Z\", \"attempt\": 3, \"error\": \"a sentence that is much too long to be shown beside everything else of a job\", \"trace\": \"\"}']::jsonb[]),
             (3, 'retryable', 'b.job', 'maintenance', 1, 8, '{}', '2026-01-01 12:00Z', '2026-01-01 12:10Z',
              '2026-01-01 12:00Z', NULL, '{two}',
              ARRAY['{\"at\": \"2026-01-01T12:00:00Z\", \"attempt\": 1, \"error\": \"no answer\", \"trace\": \"\"}']::jsonb[]),
             (4, 'running', 'b.job', 'maintenance', 2, 8, '{}', '2026-01-01 13:00Z', '2026-01-01 13:00Z',
              '2026-01-01 13:05Z', NULL, '{two,two}', NULL),
             (5, 'available', 'b.job', 'maintenance', 0, 8, '{}', '2026-01-01 14:00Z', '2026-01-01 14:00Z', NULL, NULL,
              NULL, NULL)",
    )
    .await;
    db
}

async fn jobs(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["jobs"]).args(args.split(' ')).ok().await
}

async fn refused(db: &TestDb, args: &str) -> String {
    on(db, Role::App, ["jobs"]).args(args.split(' ')).refused(4).await
}

async fn json_of(db: &TestDb, args: &str) -> Value {
    serde_json::from_str(&jobs(db, &format!("{args} --json")).await).unwrap()
}

/// The numbers of the jobs in a list.
async fn ids(db: &TestDb, args: &str) -> Vec<i64> {
    let rows = json_of(db, args).await;
    rows.as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn jobs_are_listed_the_newest_first_and_shown_whole() {
    let db = filled().await;
    assert_snapshot!("jobs list", jobs(&db, "list").await);
    assert_snapshot!("jobs show of a discarded one", jobs(&db, "show 2").await);
    assert_snapshot!("jobs show of a new one", jobs(&db, "show 5").await);
    let status = on(&db, Role::App, ["status"]).ok().await;
    let expected =
        "\njobs          2 waiting, 1 running, 1 discarded (seqline jobs list --state discarded)\n";
    assert!(status.contains(expected), "{status}");
    let status = on(&db, Role::App, ["status", "--json"]).ok().await;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["jobs"], json!({"schema": "seqline_jobs", "waiting": 2, "running": 1, "discarded": 1}));
}

#[tokio::test]
async fn a_list_can_be_narrowed() {
    let db = filled().await;
    for (args, expected) in [
        ("list", &[5, 4, 3, 2, 1][..]),
        ("list --limit 2", &[5, 4]),
        ("list --state discarded", &[2]),
        ("list --kind a.job", &[2, 1]),
        ("list --queue maintenance", &[5, 4, 3]),
        ("list --queue maintenance --state running --kind b.job", &[4]),
        ("list --kind a.job --state running", &[]),
    ] {
        assert_eq!(ids(&db, args).await, expected, "{args}");
    }
    let none = on(&db, Role::App, ["jobs", "list", "--kind", "c.job"]).run().await;
    assert_eq!((none.sentence(0).as_str(), none.stdout.as_str()), ("no jobs found", ""));
}

#[tokio::test]
async fn a_job_as_json_has_these_members() {
    let db = filled().await;
    let discarded = json_of(&db, "show 2").await;
    assert_eq!(
        discarded,
        json!({
            "id": 2, "state": "discarded", "kind": "a.job", "queue": "default", "args": {"id": 17},
            "attempt": 3, "max_attempts": 3,
            "created_at": "2026-01-01T11:00:00Z", "scheduled_at": "2026-01-01T11:00:00Z",
            "attempted_at": "2026-01-01T11:00:30Z", "finalized_at": "2026-01-01T11:00:31Z",
            "attempted_by": ["one", "one", "two"],
            "errors": [
                {"attempt": 1, "at": "2026-01-01T11:00:01Z", "error": "no answer"},
                {"attempt": 2, "at": "2026-01-01T11:00:10Z", "error": "no\nanswer"},
                {"attempt": 3, "at": "2026-01-01T11:00:30Z",
                 "error": "a sentence that is much too long to be shown beside everything else of a job"},
            ],
        })
    );
    let new = json_of(&db, "show 5").await;
    assert_eq!((new.get("attempted_at"), new.get("finalized_at")), (None, None));
    assert_eq!(json_of(&db, "list --state discarded").await, json!([discarded]));
}

#[tokio::test]
async fn what_waits_can_be_discarded_and_nothing_else() {
    let db = filled().await;
    assert_eq!(jobs(&db, "discard 5").await, "job 5 is discarded\n");
    assert_eq!(jobs(&db, "discard 5").await, "job 5 was discarded before\n");
    assert_eq!(jobs(&db, "discard 3").await, "job 3 is discarded\n");
    assert_eq!(refused(&db, "discard 4").await, "job 4 is running: only one that waits can be discarded");
    assert_eq!(refused(&db, "discard 1").await, "job 1 is completed: only one that waits can be discarded");
    assert_eq!(refused(&db, "discard 6").await, "there is no job 6");
    assert_eq!(ids(&db, "list --state discarded").await, [5, 3, 2]);
    let fresh = "SELECT count(*) FROM jobs WHERE id IN (3, 5) AND now() - finalized_at < interval '1 minute'";
    assert_eq!(ask::<i64>(&db, fresh).await, 2);
    // Kept for those who look, as long as the configuration says.
    assert_eq!(json_of(&db, "discard 2").await["finalized_at"], "2026-01-01T11:00:31Z");
}

#[tokio::test]
async fn what_does_not_run_can_be_tried_again() {
    let db = filled().await;
    assert_eq!(jobs(&db, "retry 2").await, "job 2 is available now, for attempt 4 of 4\n");
    assert_eq!(jobs(&db, "retry 3").await, "job 3 is available now, for attempt 2 of 8\n");
    assert_eq!(jobs(&db, "retry 1").await, "job 1 is available now, for attempt 2 of 8\n");
    assert_eq!(json_of(&db, "retry 5").await["state"], "available");
    assert_eq!(refused(&db, "retry 4").await, "job 4 is running: it is tried again by itself if it fails");
    assert_eq!(refused(&db, "retry 6").await, "there is no job 6");
    assert_eq!(refused(&db, "show 6").await, "there is no job 6");
    assert_eq!(ids(&db, "list --state available").await, [5, 3, 2, 1]);
}

#[tokio::test]
async fn what_was_done_again_since_is_not_tried_again() {
    let db = filled().await;
    as_admin(
        &db,
        "UPDATE seqline_jobs.river_job SET unique_key = 'x', unique_states = B'11110101' WHERE id IN (1, 2)",
    )
    .await;
    assert_eq!(
        refused(&db, "retry 2").await,
        "job 2 is not needed any more: another one of its kind is there for the same interval"
    );
}

#[tokio::test]
async fn they_work_while_a_worker_runs() {
    let db = server_db().await;
    let mut holder = hold_maintenance(&db).await;
    let worker = Worker::start(with(&db, &[("jobs.poll_interval", "20ms")])).await;
    there_is(&db, "state = 'running'").await;
    let id = ids(&db, "list --state running").await[0];
    refused(&db, &format!("retry {id}")).await;
    refused(&db, &format!("discard {id}")).await;
    run_sql(&mut holder, "COMMIT").await;
    there_is(&db, "state = 'completed'").await;
    jobs(&db, &format!("retry {id}")).await;
    there_is(&db, "state = 'completed' AND attempt = 2").await;
    eventually(DEADLINE, "it is done again", async || worker.count("partition maintenance done") == 2).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_role_that_may_not_see_jobs_is_told_so_and_sees_the_rest_of_the_status() {
    let db = server_db().await;
    let elsewhere = on(&db, Role::App, ["status"]).env("SEQLINE_JOBS__SCHEMA", "elsewhere").ok().await;
    assert!(elsewhere.contains("\njobs          no schema elsewhere: run seqline migrate\n"), "{elsewhere}");
    as_admin(&db, "REVOKE USAGE ON SCHEMA seqline_jobs FROM seqline_app").await;
    let status = on(&db, Role::App, ["status"]).ok().await;
    assert!(status.contains("\njobs          not for this role to see\n"), "{status}");
    assert_eq!(
        refused(&db, "list").await,
        "permission denied for schema seqline_jobs (SQLSTATE 42501): grant this role seqline_app"
    );
}

#[tokio::test]
async fn the_schema_of_the_configuration_is_the_one_that_is_used() {
    let db = server_db().await;
    as_admin(&db, "ALTER SCHEMA seqline_jobs RENAME TO work").await;
    let worker = Worker::start(worker(&db).env("SEQLINE_JOBS__SCHEMA", "work")).await;
    worker.says("partition maintenance done").await;
    worker.stop().await;
    let jobs = on(&db, Role::App, ["jobs", "list", "--json"]).env("SEQLINE_JOBS__SCHEMA", "work").ok().await;
    assert!(jobs.contains(KIND), "{jobs}");
    let missing = "no jobs are in the schema seqline_jobs: run seqline migrate, or correct jobs.schema";
    assert_eq!(on(&db, Role::App, ["jobs", "list"]).refused(4).await, missing);
}
