//! Crashes in the middle of a round: no job of it is there, and whoever comes next makes each once.

use seqline::clock::Clock;
use seqline_testkit::eventually;

use super::*;
use crate::consumers::{DEADLINE, Gate, PROBE, Running, config, open_transactions, quick, reaches};
use crate::support::append;

/// Taken by a test. What stops a round waits for it.
const BARRIER: i64 = 73_002;

const EVENTS: i64 = 12;

async fn a_fresh_worker_makes_each_job_once(db: &TestDb) {
    eventually(DEADLINE, "the crashed round is over", async || open_transactions(db).await == 0).await;
    let config = ConsumerConfig { batch_size: 5, ..quick() };
    let running = Running::on(db, config, Clock::system(), [feeding(two_jobs())]);
    reaches(db, PROBE, EVENTS).await;
    running.stops().await;
    assert_handled(db, EVENTS).await;
}

/// Twelve events in rounds of five. The second round does this at its third event, after its jobs.
async fn crashes<F>(crash: F) -> Bench
where
    F: for<'a, 'r> Fn(&'a mut Round<'r>) -> Handling<'a> + Send + Sync + 'static,
{
    let handler =
        inserting(move |event, round| if event.seq == 8 { crash(round) } else { Box::pin(async { Ok(()) }) });
    let bench = bench(ConsumerConfig { batch_size: 5, ..config() }, handler).await;
    append(&bench.db.producer(), 1..=EVENTS).await;
    bench.processes(5).await;
    bench
}

async fn assert_second_round_left_nothing(bench: Bench) {
    eventually(DEADLINE, "it is rolled back", async || open_transactions(&bench.db).await == 0).await;
    assert_handled(&bench.db, 5).await;
    a_fresh_worker_makes_each_job_once(&bench.db).await;
}

#[tokio::test]
async fn a_terminated_backend_leaves_no_job_and_doubles_none() {
    let bench = crashes(|round| {
        Box::pin(async {
            let kill = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
            kill.execute(round.connection()).await?;
            Ok(())
        })
    })
    .await;
    bench.round().await.unwrap_err();
    assert_second_round_left_nothing(bench).await;
}

#[tokio::test]
async fn an_error_leaves_no_job_and_doubles_none() {
    let bench = crashes(|_| Box::pin(async { Err("refused".into()) })).await;
    bench.round().await.unwrap_err();
    assert_second_round_left_nothing(bench).await;
}

#[tokio::test]
async fn a_panic_leaves_no_job_and_doubles_none() {
    let bench = crashes(|_| Box::pin(async { std::panic::resume_unwind(Box::new("on purpose")) })).await;
    bench.round().await.unwrap_err();
    assert_second_round_left_nothing(bench).await;
}

#[tokio::test]
async fn a_dropped_future_leaves_no_job_and_doubles_none() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let bench = crashes(move |_| {
        let gate = at_gate.clone();
        Box::pin(async move {
            gate.pass(8).await;
            Ok(())
        })
    })
    .await;
    tokio::select! {
        result = bench.round() => panic!("{result:?}"),
        () = gate.is_reached(8) => {}
    }
    assert_second_round_left_nothing(bench).await;
}

/// Where a round stands between the first of its jobs and the end of its commit.
const PLACES: [(&str, &str); 3] = [
    ("the statement of the jobs", "CREATE TRIGGER waits AFTER INSERT ON queue.river_job"),
    ("the move of the cursor", "CREATE TRIGGER waits AFTER UPDATE ON seqline.event_consumer_cursors"),
    (
        "the commit",
        "CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON queue.river_job DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
    ),
];

/// The second round, stopped at this place by a lock that is held as long as the transaction.
async fn stopped_at(trigger: &str) -> (Bench, sqlx::PgTransaction<'static>) {
    let bench = crashes(|_| Box::pin(async { Ok(()) })).await;
    let waits = format!(
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock_shared({BARRIER}); RETURN NULL; END $$;
         {trigger} EXECUTE FUNCTION waits()"
    );
    as_admin(&bench.db, &waits).await;
    let mut barrier = seqline::begin(&bench.db.admin()).await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(BARRIER).execute(&mut *barrier).await.unwrap();
    (bench, barrier)
}

/// The backend that is stopped, when it is.
async fn stopped_backend(db: &TestDb) -> i32 {
    let mut pids = Vec::new();
    eventually(DEADLINE, "the round is stopped", async || {
        pids = sqlx::query_scalar(
            "SELECT pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
             WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database()",
        )
        .fetch_all(&db.admin())
        .await
        .unwrap();
        !pids.is_empty()
    })
    .await;
    pids[0]
}

#[tokio::test]
async fn a_backend_that_is_terminated_after_the_jobs_leaves_none_and_doubles_none() {
    for (place, trigger) in PLACES {
        let (bench, barrier) = stopped_at(trigger).await;
        let terminating = async {
            let pid = stopped_backend(&bench.db).await;
            as_admin(&bench.db, &format!("SELECT pg_terminate_backend({pid})")).await;
        };
        let (result, ()) = tokio::join!(bench.round(), terminating);
        result.expect_err(place);
        barrier.rollback().await.unwrap();
        assert_second_round_left_nothing(bench).await;
    }
}

#[tokio::test]
async fn a_future_that_is_dropped_after_the_jobs_doubles_none() {
    for (place, trigger) in PLACES {
        let (bench, barrier) = stopped_at(trigger).await;
        tokio::select! {
            result = bench.round() => panic!("{place}: {result:?}"),
            _ = stopped_backend(&bench.db) => {}
        }
        assert_handled(&bench.db, 5).await;
        barrier.rollback().await.unwrap();
        // The server goes on with what it was told, and that may have been to commit.
        eventually(DEADLINE, "the round is over", async || open_transactions(&bench.db).await == 0).await;
        let expected = if place == "the commit" { 10 } else { 5 };
        let over = async || cursor(&bench.db, PROBE).await == expected;
        eventually(DEADLINE, place, over).await;
        assert_handled(&bench.db, expected).await;
        a_fresh_worker_makes_each_job_once(&bench.db).await;
    }
}
