//! What a sink promises, held against databases and sinks that do other things than River's.

use std::sync::{Arc, Mutex};

use seqline::clock::Clock;
use seqline::consumer::RoundError;
use seqline::job::{InsertedJobs, SinkHealth, Unique};
use seqline_testkit::eventually;
use sqlx::{PgConnection, PgTransaction};

use super::*;
use crate::consumers::{Captured, DEADLINE, PROBE, Running, config, quick, reaches, state_of};
use crate::support::append;

/// A trigger that leaves out the jobs of event 1.
const LEAVING_OUT: &str = "
    CREATE FUNCTION public.leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
    CREATE TRIGGER leave_out BEFORE INSERT ON queue.river_job FOR EACH ROW
        WHEN (NEW.args ->> 'seq' = '1') EXECUTE FUNCTION public.leave_out()";

#[tokio::test]
async fn a_row_that_the_database_leaves_out_is_no_job_that_is_there() {
    let bench = bench(config(), two_jobs()).await;
    as_admin(&bench.db, LEAVING_OUT).await;
    append(&bench.db.producer(), 1..=2).await;
    let error = bench.round().await.unwrap_err();
    let RoundError::Jobs { source: JobError::Incomplete { asked: 4, inserted: 2 }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_untouched(&bench.db).await;
    bench.assert_pool_is_sound().await;
    // Twice the same, so that the second is named by the row of the first.
    let unique = Some(Unique::default());
    let same = [NewJob { unique, ..new_job(1) }, NewJob { unique, ..new_job(1) }];
    let error = insert(&bench.db.app(), &river(), &checked(same)).await.unwrap_err();
    assert!(matches!(error, JobError::Incomplete { asked: 1, inserted: 0 }), "{error:?}");
    assert!(!error.leaves_transaction_usable());
    as_admin(&bench.db, "DROP TRIGGER leave_out ON queue.river_job").await;
    bench.processes(2).await;
    assert_handled(&bench.db, 2).await;
}

#[tokio::test]
async fn a_worker_says_what_is_wrong_also_when_only_the_second_attempt_knows() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), [1]).await;
    let running = Running::on(&db, quick(), Clock::system(), [feeding(two_jobs())]);
    reaches(&db, PROBE, 1).await;
    as_admin(&db, "ALTER TABLE queue.river_job RENAME TO elsewhere").await;
    append(&db.producer(), [2]).await;
    let reason = "schema queue has no River tables: run River's migrations there";
    eventually(DEADLINE, "the reason", async || captured.count(reason) > 0).await;
    as_admin(&db, "ALTER TABLE queue.elsewhere RENAME TO river_job").await;
    reaches(&db, PROBE, 2).await;
    eventually(DEADLINE, "the end", async || {
        state_of(&db, PROBE).await.last_failure.is_some_and(|failure| !failure.current)
    })
    .await;
    running.stops().await;
    assert_eq!(captured.count(reason), 1);
    assert_handled(&db, 2).await;
}

#[tokio::test]
async fn a_savepoint_takes_no_job_back() {
    let handler = acting(|event, round| {
        Box::pin(async move {
            sqlx::raw_sql("SAVEPOINT s").execute(round.connection()).await?;
            round.jobs().insert(new_job(event.seq))?;
            sqlx::raw_sql("ROLLBACK TO s").execute(round.connection()).await?;
            round.jobs().insert(new_job(event.seq))?;
            Ok(())
        })
    });
    let bench = bench(config(), handler).await;
    append(&bench.db.producer(), [1]).await;
    bench.processes(1).await;
    assert_handled(&bench.db, 1).await;
}

#[tokio::test]
async fn a_name_that_river_does_not_take_is_said() {
    let db = database().await;
    let long = "q".repeat(47);
    let sink = River::in_schema(&long);
    let expected = format!("schema {long} has a name of more than 46 bytes, which River does not take");
    let error = sink.health(&mut db.connect(Role::App).await).await.unwrap_err();
    assert_eq!(error.to_string(), expected);
    let error = insert(&db.app(), &sink, &checked([new_job(1)])).await.unwrap_err();
    assert_eq!(error.to_string(), expected);
}

/// Says nothing but what it is told to.
struct Failing(&'static str);

impl JobSink for Failing {
    async fn insert(&self, _: &mut PgTransaction<'_>, _: &[Job]) -> Result<InsertedJobs, JobError> {
        Err(JobError::Sink(self.0.into()))
    }

    async fn health(&self, _: &mut PgConnection) -> Result<SinkHealth, JobError> {
        Ok(SinkHealth::default())
    }
}

#[tokio::test]
async fn a_sink_of_the_application_fails_a_round_with_what_it_says_and_that_is_not_logged() {
    let (captured, _guard) = Captured::start();
    let db = database().await;
    append(&db.producer(), [1]).await;
    let sink = Arc::new(Failing("robin@example.com"));
    sink.health(&mut db.connect(Role::App).await).await.expect("it is asked through the pointer");
    let running = Running::on(&db, quick(), Clock::system(), [probe(two_jobs()).jobs(sink)]);
    eventually(DEADLINE, "the failure", async || captured.count("error.type=\"jobs\"") > 0).await;
    running.stops().await;
    assert_eq!(captured.count("robin"), 0);
    assert_untouched(&db).await;
}

/// Notes how many jobs each call had.
#[derive(Default)]
struct Counting(Mutex<Vec<usize>>);

impl JobSink for Counting {
    async fn insert(&self, _: &mut PgTransaction<'_>, jobs: &[Job]) -> Result<InsertedJobs, JobError> {
        self.0.lock().unwrap().push(jobs.len());
        Ok(InsertedJobs { inserted: jobs.len(), ..InsertedJobs::default() })
    }

    async fn health(&self, _: &mut PgConnection) -> Result<SinkHealth, JobError> {
        Ok(SinkHealth::default())
    }
}

#[tokio::test]
async fn what_waits_in_memory_is_bounded_by_its_size() {
    // A thousand jobs of an event have about 4.1 MB.
    let handler = acting(|_, round| {
        Box::pin(async move {
            let args = (0..32).fold(JobArgs::new(), |args, n| args.with(format!("id_{n}"), "x".repeat(128)));
            for _ in 0..seqline::limits::EVENT_JOBS_MAX {
                round.jobs().insert(NewJob::new("probe.large", args.clone()))?;
            }
            Ok(())
        })
    });
    let sink = Arc::new(Counting::default());
    let bench = Bench::on(database().await, config(), probe(handler).jobs(sink.clone())).await;
    append(&bench.db.producer(), 1..=3).await;
    assert_eq!(bench.processes(3).await.jobs, 3000);
    assert_eq!(*sink.0.lock().unwrap(), [1000, 1000, 1000]);
}
