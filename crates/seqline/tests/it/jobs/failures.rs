//! Jobs that the queue refuses fail the round of their consumer, and of no other, until the reason is gone.

use seqline::clock::Clock;
use seqline::consumer::{Failure, RoundError};
use seqline_testkit::eventually;

use super::*;
use crate::consumers::{Captured, DEADLINE, PROBE, Running, config, name, plain, quick, reaches, state_of};
use crate::support::append;

/// Jobs about this event are refused by the database as long as this is there.
const REFUSAL: &str = "ALTER TABLE queue.river_job ADD CONSTRAINT refused CHECK (args ->> 'seq' <> '2')";

async fn failure(db: &TestDb) -> Option<Failure> {
    state_of(db, PROBE).await.last_failure
}

#[tokio::test]
async fn jobs_that_are_refused_fail_the_round() {
    let bench = bench(config(), two_jobs()).await;
    as_admin(&bench.db, REFUSAL).await;
    append(&bench.db.producer(), 1..=3).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Jobs { first_seq: 1, last_seq: 3, source: JobError::Database(source) } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(source.sqlstate(), Some("23514"));
    assert_eq!((error.error_type(), error.seq()), ("jobs", Some(1)));
    let said = r#"the jobs of seq 1 to 3 were not inserted: database refused the jobs: new row for relation "river_job" violates check constraint "refused" (SQLSTATE 23514)"#;
    assert_eq!(error.to_string(), said);
    assert_untouched(&bench.db).await;
    bench.assert_pool_is_sound().await;
    as_admin(&bench.db, "ALTER TABLE queue.river_job DROP CONSTRAINT refused").await;
    bench.processes(3).await;
    assert_handled(&bench.db, 3).await;
}

#[tokio::test]
async fn a_consumer_whose_jobs_are_refused_stays_and_the_others_go_on() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    as_admin(&db, REFUSAL).await;
    append(&db.producer(), 1..=3).await;
    let list = [feeding(two_jobs()), Consumer::new(name("other"), plain())];
    let running = Running::on(&db, quick(), Clock::system(), list);
    eventually(DEADLINE, "the failure", async || failure(&db).await.is_some()).await;
    let failed = failure(&db).await.unwrap();
    assert_eq!((failed.error_type.as_str(), failed.seq, failed.current), ("jobs", Some(1), true));
    append(&db.producer(), [4]).await;
    reaches(&db, "other", 4).await;
    assert_untouched(&db).await;
    as_admin(&db, "ALTER TABLE queue.river_job DROP CONSTRAINT refused").await;
    reaches(&db, PROBE, 4).await;
    eventually(DEADLINE, "the end", async || failure(&db).await.is_some_and(|failure| !failure.current))
        .await;
    running.stops().await;
    assert_handled(&db, 4).await;
    let count = |text: &str| captured.count(text);
    assert_eq!((count("error.type=\"jobs\""), count("event consumer recovered")), (1, 1));
}

#[tokio::test]
async fn a_consumer_without_river_waits_until_it_is_brought_up() {
    let db = consumers::database().await;
    append(&db.producer(), 1..=3).await;
    let running = Running::on(&db, quick(), Clock::system(), [feeding(two_jobs())]);
    eventually(DEADLINE, "the failure", async || failure(&db).await.is_some()).await;
    assert_eq!(failure(&db).await.unwrap().error_type, "jobs");
    assert_eq!(cursor(&db, PROBE).await, 0);
    bring_up(&db, SCHEMA, None).await;
    reaches(&db, PROBE, 3).await;
    running.stops().await;
    assert_handled(&db, 3).await;
}

#[tokio::test]
async fn a_version_that_changes_under_a_consumer_stops_it_with_nothing_written() {
    let bench = bench(config(), two_jobs()).await;
    append(&bench.db.producer(), [1]).await;
    bench.processes(1).await;
    as_admin(&bench.db, "INSERT INTO queue.river_migration (line, version) VALUES ('main', 9)").await;
    append(&bench.db.producer(), 2..=3).await;
    for _ in 0..2 {
        let error = bench.round().await.unwrap_err();
        let RoundError::Jobs { first_seq: 2, last_seq: 3, source } = &error else { panic!("{error:?}") };
        assert!(matches!(source, JobError::NewRiver { found: 9, newest: 8, .. }), "{source:?}");
        assert_handled(&bench.db, 1).await;
        bench.assert_pool_is_sound().await;
    }
    as_admin(&bench.db, "DELETE FROM queue.river_migration WHERE version = 9").await;
    bench.processes(2).await;
    assert_handled(&bench.db, 3).await;
}

#[tokio::test]
async fn a_sink_that_does_not_come_back_fails_the_round_in_time() {
    let bench = bench(ConsumerConfig { statement_timeout: consumers::SHORT, ..config() }, two_jobs()).await;
    append(&bench.db.producer(), [1]).await;
    let mut other = seqline::begin(&bench.db.app()).await.unwrap();
    sqlx::query("LOCK TABLE queue.river_job").execute(&mut *other).await.unwrap();
    let error = bench.round().await.unwrap_err();
    assert_eq!(error.error_type(), "jobs", "{error:?}");
    other.rollback().await.unwrap();
    eventually(DEADLINE, "it is rolled back", async || consumers::open_transactions(&bench.db).await == 0)
        .await;
    assert_untouched(&bench.db).await;
    bench.assert_pool_is_sound().await;
}
