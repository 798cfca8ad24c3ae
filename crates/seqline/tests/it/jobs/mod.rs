//! Jobs that are inserted in the transaction that makes them necessary, and the queues that they go to.

#[cfg(feature = "riverqueue")]
mod client;
mod conformance;
mod crashes;
mod duplicates;
mod failures;
mod notifications;
mod paused;
mod promises;
mod refusals;
mod rounds;
mod rules;
mod sql;
mod tampering;
mod two_workers;
mod versions;
mod wakes;
mod work;

use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::{Direction, MigrateOpts, PostgresMigrator, SchemaName};
use riverqueue::{Client, ClientBuilder};
use seqline::StoredEvent;
use seqline::consumer::{Consumer, ConsumerConfig, Handler, Round};
use seqline::job::{InsertedJobs, Job, JobArgs, JobError, JobSink, NewJob, River};
use seqline_testkit::{Role, TestDb};
use sqlx::{AssertSqlSafe, PgPool};

use crate::consumers::{self, Bench, Handling, acting, as_admin, cursor, effects, probe, twice};

/// The schema of River's tables in most tests.
const SCHEMA: &str = "queue";

/// The kind of the jobs of most tests.
const KIND: &str = "invoice.send";

/// A database with River's tables in [`SCHEMA`], which belong to the application, and one for effects.
async fn database() -> TestDb {
    let db = consumers::database().await;
    bring_up(&db, SCHEMA, None).await;
    db
}

/// River's tables, up to this version of theirs or the newest.
pub(crate) async fn bring_up(db: &TestDb, schema: &str, version: Option<i64>) {
    let owner = Role::App.login();
    as_admin(db, &format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\" AUTHORIZATION {owner}")).await;
    let mut options = MigrateOpts::new();
    if let Some(version) = version {
        options = options.with_target_version(version);
    }
    PostgresMigrator::new(db.app())
        .with_schema(SchemaName::new(schema).expect("the name is valid"))
        .migrate(Direction::Up, options)
        .await
        .expect("River's tables are brought up");
}

/// River's own client over this schema, to be built.
fn client_in(schema: &str, pool: PgPool) -> ClientBuilder {
    let schema = SchemaName::new(schema).expect("the name is valid");
    Client::builder(PostgresDatabase::new(pool).with_schema(schema))
}

fn river() -> River {
    River::in_schema(SCHEMA)
}

/// A job about the event with this number, or about nothing in particular.
fn new_job(seq: i64) -> NewJob {
    NewJob::new(KIND, JobArgs::new().with("seq", seq))
}

fn checked(jobs: impl IntoIterator<Item = NewJob>) -> Vec<Job> {
    jobs.into_iter().map(|job| job.check().expect("the job is valid")).collect()
}

/// Inserts jobs in a transaction of their own.
async fn insert(pool: &PgPool, sink: &impl JobSink, jobs: &[Job]) -> Result<InsertedJobs, JobError> {
    let mut tx = seqline::begin(pool).await.expect("a transaction begins");
    let inserted = sink.insert(&mut tx, jobs).await?;
    // Not the product's commit, which asks the log: whoever inserts jobs and nothing else needs no right to that.
    tx.commit().await.expect("the transaction commits");
    Ok(inserted)
}

/// The number in each job that is committed, in the order of the ids.
async fn jobs(db: &TestDb) -> Vec<i64> {
    jobs_in(db, SCHEMA).await
}

async fn jobs_in(db: &TestDb, schema: &str) -> Vec<i64> {
    let sql = format!("SELECT (args ->> 'seq')::bigint FROM \"{schema}\".river_job ORDER BY id");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&db.admin()).await.expect("the jobs can be read")
}

/// Writes two effects and asks for two jobs for each event, and then does what the test wants.
fn inserting<F>(then: F) -> impl Handler
where
    F: for<'a, 'r> Fn(&'a StoredEvent, &'a mut Round<'r>) -> Handling<'a> + Send + Sync + 'static,
{
    acting(move |event, round| {
        for _ in 0..2 {
            if let Err(error) = round.jobs().insert(new_job(event.seq)) {
                return Box::pin(async move { Err(error.into()) });
            }
        }
        then(event, round)
    })
}

/// The handler that does nothing else.
fn two_jobs() -> impl Handler {
    inserting(|_, _| Box::pin(async { Ok(()) }))
}

/// A consumer called `probe` that begins with the oldest event and hands its jobs to River.
fn feeding(handler: impl Handler) -> Consumer {
    probe(handler).jobs(river())
}

/// Such a consumer on a database of its own, whose rounds are called by hand.
async fn bench(config: ConsumerConfig, handler: impl Handler) -> Bench {
    Bench::on(database().await, config, feeding(handler)).await
}

/// Events up to `seq` have had their effects and their jobs, and each exactly once.
async fn assert_handled(db: &TestDb, seq: i64) {
    assert_eq!((cursor(db, consumers::PROBE).await, jobs(db).await), (seq, twice(1..=seq)));
    assert_eq!(effects(db).await, twice(1..=seq));
}

/// No round has left anything.
async fn assert_untouched(db: &TestDb) {
    assert_eq!((cursor(db, consumers::PROBE).await, jobs(db).await, effects(db).await), (0, vec![], vec![]));
}
