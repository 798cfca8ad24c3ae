//! Jobs that fail, panic, hang or lose their worker; and the end of a worker while one runs.

use std::time::Duration;

use nix::sys::signal::Signal;
use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::SchemaName;
use riverqueue::{BoxError, Client, JobArgs};
use seqline_server::config::Config;
use seqline_server::jobs::registry::{DEFAULT_QUEUE, JobOptions, Registry};
use seqline_server::jobs::runtime::Jobs;
use seqline_testkit::{Role, TestDb, TestServer, eventually};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{ask, hold_maintenance, maintenance_is_held, there_is, with};
use crate::support::{
    DEADLINE, JOBS_SCHEMA, append, as_admin, on, run_sql, server_db, small_partitions, with_jobs,
};
use crate::worker::{Worker, messages, worker};

const REVOKE: &str = "REVOKE EXECUTE ON FUNCTION seqline.sync_event_log_ensure_partitions FROM seqline_app";
const GRANT: &str = "GRANT EXECUTE ON FUNCTION seqline.sync_event_log_ensure_partitions TO seqline_app";

/// What the database says then.
const DENIED: &str = "permission denied for function sync_event_log_ensure_partitions (SQLSTATE 42501)";

#[tokio::test]
async fn one_that_keeps_failing_is_given_up_stays_to_be_seen_and_can_be_tried_again() {
    let db = server_db().await;
    as_admin(&db, REVOKE).await;
    let hasty = with(&db, &[("jobs.retry_backoff_cap", "10ms"), ("jobs.poll_interval", "10ms")]);
    let worker = Worker::start(hasty).await;
    there_is(&db, "state = 'discarded'").await;
    let errors: Vec<String> =
        ask(&db, "SELECT array_agg(e ->> 'error') FROM (SELECT unnest(errors) AS e FROM jobs) AS errors")
            .await;
    assert_eq!(errors, vec![DENIED; 8]);

    let listed = on(&db, Role::App, ["jobs", "list", "--state", "discarded"]).ok().await;
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    let id = row[0];
    assert_eq!(row[1..5], ["discarded", "sync.partition_maintenance", "maintenance", "8/8"], "{listed}");
    assert!(listed.contains(&DENIED[..60]), "{listed}");
    let status = on(&db, Role::App, ["status"]).ok().await;
    let expected =
        "\njobs          0 waiting, 0 running, 1 discarded (seqline jobs list --state discarded)\n";
    assert!(status.contains(expected), "{status}");

    as_admin(&db, GRANT).await;
    let said = on(&db, Role::App, ["jobs", "retry", id]).ok().await;
    assert_eq!(said, format!("job {id} is available now, for attempt 9 of 9\n"));
    there_is(&db, "state = 'completed' AND attempt = 9").await;

    let log = worker.stop().await;
    let failures: Vec<_> =
        log.iter().filter(|line| line["message"].as_str().unwrap().starts_with("job failed")).collect();
    let expected: Vec<(i64, &str)> = (1..=8).map(|n| (n, if n < 8 { "WARN" } else { "ERROR" })).collect();
    let told: Vec<(i64, &str)> = failures
        .iter()
        .map(|line| (line["attempt"].as_i64().unwrap(), line["level"].as_str().unwrap()))
        .collect();
    assert_eq!(told, expected);
    let members: Vec<&str> = failures[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        members,
        ["attempt", "error", "job_id", "kind", "level", "max_attempts", "message", "target", "timestamp"]
    );
    assert!(failures.iter().all(|line| line["error"] == DENIED), "{failures:#?}");
}

#[tokio::test]
async fn one_that_failed_waits_before_its_next_attempt() {
    let db = server_db().await;
    as_admin(&db, REVOKE).await;
    let worker = Worker::start(worker(&db)).await;
    there_is(&db, "cardinality(errors) = 1").await;
    let pause =
        "SELECT extract(epoch FROM scheduled_at - (errors[1] ->> 'at')::timestamptz)::float8 FROM jobs";
    let pause: f64 = ask(&db, pause).await;
    // Between half and all of five seconds, and the attempt itself.
    assert!((2.5..10.0).contains(&pause), "{pause}");
    worker.stop().await;
}

#[derive(Debug, Default, Serialize, Deserialize, JobArgs)]
#[river(kind = "test.panics")]
struct Panics {}

#[derive(Debug, Default, Serialize, Deserialize, JobArgs)]
#[river(kind = "test.works")]
struct Works {
    number: i64,
}

#[tokio::test]
async fn a_panic_is_an_error_of_its_job_and_the_next_one_runs() {
    let db = server_db().await;
    let options = JobOptions { queue: DEFAULT_QUEUE, max_attempts: 1, interval: None, run_on_start: false };
    let mut registry = Registry::default();
    let panics = async |_, _: Panics| -> Result<(), BoxError> { panic!("hunter2") };
    registry.add(options.clone(), panics).unwrap();
    let works = |_, args: Works| async move { if args.number == 17 { Ok(()) } else { Err("which?") } };
    registry.add(options.clone(), works).unwrap();
    let mut config = Config::default();
    config.jobs.poll_interval = Duration::from_millis(20);
    let jobs = Jobs::new(db.app(), &config, registry).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(jobs.run(stop.clone()));

    let schema = SchemaName::new(JOBS_SCHEMA).unwrap();
    let client = Client::builder(PostgresDatabase::new(db.app()).with_schema(schema)).build().unwrap();
    client.insert(Panics {}).opts(options.insert_opts()).await.unwrap();
    there_is(&db, "kind = 'test.panics' AND state = 'discarded'").await;
    client.insert(Works { number: 17 }).opts(options.insert_opts()).await.unwrap();
    there_is(&db, "kind = 'test.works' AND state = 'completed'").await;
    let row: String = ask(&db, "SELECT jobs::text FROM jobs WHERE kind = 'test.panics'").await;
    assert!(row.contains("the job panicked") && !row.contains("hunter2"), "{row}");
    stop.cancel();
    assert_eq!(running.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn one_whose_worker_is_killed_is_given_to_another() {
    let db = server_db().await;
    let settings = [("jobs.timeout", "4s"), ("jobs.rescue_after", "5s"), ("jobs.retry_backoff_cap", "10ms")];
    let mut holder = hold_maintenance(&db).await;
    let killed = Worker::start(with(&db, &settings)).await;
    maintenance_is_held(&db).await;
    assert_eq!(ask::<i64>(&db, "SELECT count(*) FROM jobs WHERE state = 'running'").await, 1);
    killed.running.signal(Signal::SIGKILL);
    killed.end().await;
    run_sql(&mut holder, "COMMIT").await;
    let other = Worker::start(with(&db, &settings)).await;
    there_is(&db, "state = 'completed'").await;
    other.says("partition maintenance done").await;
    other.stop().await;
    assert_eq!(ask::<i64>(&db, "SELECT count(*) FROM jobs").await, 1);
    let by: i64 =
        ask(&db, "SELECT count(DISTINCT by) FROM (SELECT unnest(attempted_by) AS by FROM jobs) AS b").await;
    assert_eq!(by, 2);
    let error: String = ask(&db, "SELECT errors[1] ->> 'error' FROM jobs").await;
    assert_eq!(error, "Stuck job rescued by JobRescuer");
}

#[tokio::test]
async fn one_that_hangs_is_dropped_after_its_time_and_tried_again() {
    let db = server_db().await;
    let mut holder = hold_maintenance(&db).await;
    let hasty = with(
        &db,
        &[("jobs.timeout", "300ms"), ("jobs.rescue_after", "1s"), ("jobs.retry_backoff_cap", "10ms")],
    );
    let worker = Worker::start(hasty).await;
    let line = worker.says("job failed, it will be tried again").await;
    assert_eq!(line["error"], "it did not stop in time and was dropped");
    run_sql(&mut holder, "COMMIT").await;
    there_is(&db, "state = 'completed'").await;
    worker.stop().await;
}

#[tokio::test]
async fn one_that_takes_too_long_is_asked_to_stop_and_tried_again() {
    let db = server_db().await;
    small_partitions(&db, 2, 2).await;
    append(&db.app(), 1..=3).await;
    let mut reader = db.connect(Role::Reader).await;
    run_sql(&mut reader, "BEGIN; SELECT count(*) FROM seqline.event_log").await;
    // It would wait an hour before it tries to drop a partition again.
    let patient = with(
        &db,
        &[
            ("sync.event_retention", "2s"),
            ("shutdown.total_timeout", "900ms"),
            ("sync.partition_maintenance_interval", "1s"),
            ("jobs.retry_backoff_cap", "1s"),
            ("consumer.pending_alert_after", "1s"),
            ("agent.pending_alert_after", "1s"),
            ("sync.detach_retry_pause", "1h"),
            ("jobs.timeout", "500ms"),
        ],
    );
    let worker = Worker::start(patient).await;
    let line = worker.says("job failed, it will be tried again").await;
    assert_eq!(line["error"], "job work cancelled");
    run_sql(&mut reader, "COMMIT").await;
    there_is(&db, "state = 'completed' AND attempt > 1").await;
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_that_stops_while_one_waits_for_a_lock_ends_within_its_budget() {
    let db = server_db().await;
    let _holder = hold_maintenance(&db).await;
    let worker = Worker::start(with(&db, &[("shutdown.total_timeout", "300ms")])).await;
    maintenance_is_held(&db).await;
    worker.running.signal(Signal::SIGTERM);
    let (outcome, log) = worker.end().await;
    assert_eq!(outcome.code(), Some(0), "{outcome:?} {log:#?}");
    let dropped = log.iter().find(|line| line["message"] == "component did not stop in time and was dropped");
    assert_eq!(dropped.unwrap()["component"], "jobs");
    assert_eq!(log.last().unwrap()["message"], "server stopped", "{log:#?}");
}

#[tokio::test]
async fn a_worker_that_stops_leaves_the_rest_of_a_run_to_the_next() {
    let db = server_db().await;
    small_partitions(&db, 2, 2).await;
    append(&db.app(), 1..=3).await;
    let settings = [
        ("sync.event_retention", "2s"),
        ("shutdown.total_timeout", "900ms"),
        ("sync.partition_maintenance_interval", "1s"),
        ("jobs.retry_backoff_cap", "1s"),
        ("consumer.pending_alert_after", "1s"),
        ("agent.pending_alert_after", "1s"),
        ("sync.detach_retry_pause", "1h"),
    ];
    let mut reader = db.connect(Role::Reader).await;
    run_sql(&mut reader, "BEGIN; SELECT count(*) FROM seqline.event_log").await;
    let first = Worker::start(with(&db, &settings)).await;
    // It waits an hour now before it tries to drop a partition again.
    there_is(&db, "state = 'running' AND clock_timestamp() - attempted_at > interval '1 s'").await;
    let log = first.stop().await;
    assert!(!log.iter().any(|line| line["level"] != "INFO"), "{log:#?}");
    assert_eq!(ask::<i64>(&db, "SELECT count(*) FROM jobs WHERE state = 'running'").await, 0);
    let interrupted =
        "SELECT count(*) FROM jobs WHERE state = 'available' AND attempt = 0 AND errors IS NULL";
    assert!(ask::<i64>(&db, interrupted).await >= 1);
    run_sql(&mut reader, "COMMIT").await;
    let next = Worker::start(with(&db, &settings)).await;
    eventually(DEADLINE, "the rest is done", async || {
        ask::<i64>(&db, "SELECT seqline.min_retained() FROM (SELECT count(*) FROM jobs) AS n").await == 3
    })
    .await;
    next.stop().await;
}

#[tokio::test]
async fn the_database_may_go_away_and_the_log_says_it_once() {
    let mut server = TestServer::fast().await;
    let db = with_jobs(TestDb::on(&server).await).await;
    let often = with(
        &db,
        &[
            ("sync.partition_maintenance_interval", "1s"),
            ("jobs.retry_backoff_cap", "1s"),
            ("jobs.poll_interval", "10ms"),
        ],
    );
    // Whoever asks for more of our own does not ask for River's.
    let worker = Worker::start(often.env("SEQLINE_LOG", "info")).await;
    there_is(&db, "state = 'completed'").await;
    server.stop().await;
    worker.says("jobs wait for the database").await;
    server.start_again().await;
    worker.says("jobs can be reached again").await;
    let done = worker.count("partition maintenance done");
    worker.says_again("partition maintenance done", done).await;
    let log = worker.stop().await;
    assert!(!log.iter().any(|line| line["target"].as_str().unwrap().starts_with("riverqueue")), "{log:#?}");
    let others: Vec<&str> =
        messages(&log).into_iter().filter(|message| *message != "partition maintenance done").collect();
    for once in ["jobs wait for the database", "jobs can be reached again"] {
        assert_eq!(others.iter().filter(|message| **message == once).count(), 1, "{others:#?}");
    }
    assert!(others.len() < 40, "{} lines: {others:#?}", others.len());
}
