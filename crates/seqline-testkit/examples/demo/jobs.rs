//! Jobs: two for each event, in River's tables, worked by clients of River that are killed with their processes.

use std::time::Duration;

use anyhow::Context;
use riverqueue::database::PostgresDatabase;
use riverqueue::migrate::{PostgresMigrator, SchemaName};
use riverqueue::{
    BoxError, Client, Job, JobArgs, JobRow, MaintenanceConfig, QueueConfig, Retention, RetryPolicy,
    WorkError, WorkOutcome, Workers,
};
use seqline::Clock;
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Where River's tables are.
pub(crate) const SCHEMA: &str = "river";
pub(crate) const QUEUE: &str = "probes";
/// One job of each for every event.
pub(crate) const KINDS: [&str; 2] = [ProbePush::KIND, ProbeWebhooks::KIND];
/// How many jobs a process works at the same time. A kill leaves as many of them undone.
const WORKERS: usize = 50;
/// Longer than a job takes, and so short that what killed processes leave behind is found while somebody watches. By
/// default it is an hour.
const RESCUE_AFTER: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_millis(200);

#[derive(JobArgs, Serialize, Deserialize)]
#[river(kind = "probe.webhooks")]
struct ProbeWebhooks {
    seq: i64,
}

#[derive(JobArgs, Serialize, Deserialize)]
#[river(kind = "probe.push")]
struct ProbePush {
    seq: i64,
}

/// River's tables, and what its jobs write: each run, and by a key what comes of it, so that another run changes nothing.
pub(crate) async fn create(admin: &PgPool, app: &PgPool) -> anyhow::Result<()> {
    sqlx::raw_sql(
        "CREATE SCHEMA river;
         GRANT USAGE, CREATE ON SCHEMA river TO PUBLIC;
         CREATE TABLE probe_runs (kind text NOT NULL, seq bigint NOT NULL);
         CREATE TABLE probes (event_id uuid, kind text, seq bigint NOT NULL, PRIMARY KEY (event_id, kind));
         GRANT SELECT, INSERT ON probe_runs, probes TO PUBLIC",
    )
    .execute(admin)
    .await?;
    let migrator = PostgresMigrator::new(app.clone()).with_schema(SchemaName::new(SCHEMA)?);
    migrator.migrate_up().await.context("bring up River's tables")?;
    Ok(())
}

/// A client of River that works the jobs.
pub(crate) fn client(pool: PgPool) -> anyhow::Result<Client> {
    let mut workers = Workers::new();
    let of_webhooks = pool.clone();
    workers.add_fn(move |_, job: Job<ProbeWebhooks>| probe(of_webhooks.clone(), job.row, job.args.seq))?;
    let of_push = pool.clone();
    workers.add_fn(move |_, job: Job<ProbePush>| probe(of_push.clone(), job.row, job.args.seq))?;
    let maintenance = MaintenanceConfig::default()
        .with_rescue_after(RESCUE_AFTER)
        .with_rescuer_interval(SOON)
        .with_scheduler_interval(SOON)
        .with_elect_interval(SOON)
        // The proof looks at them all.
        .with_completed_job_retention(Retention::Keep)
        .with_cancelled_job_retention(Retention::Keep)
        .with_discarded_job_retention(Retention::Keep);
    let client = Client::builder(PostgresDatabase::new(pool).with_schema(SchemaName::new(SCHEMA)?))
        .workers(workers)
        .queue(QUEUE, QueueConfig::new(WORKERS))
        .fetch_cooldown(Duration::from_millis(10))
        .job_timeout(RESCUE_AFTER)
        .maintenance(maintenance)
        .retry_policy(AtOnce)
        .build()?;
    Ok(client)
}

/// A job that was rescued, or that failed because the server was away, is not to blame and need not wait.
struct AtOnce;

impl RetryPolicy for AtOnce {
    fn next_retry(&self, _: &JobRow, _: &WorkError, _: riverqueue::jiff::Timestamp) -> Duration {
        SOON
    }
}

async fn probe(pool: PgPool, job: JobRow, seq: i64) -> Result<WorkOutcome, BoxError> {
    let event_id: Uuid = job.metadata.get("seqline:event_id")?.ok_or("a job that names no event")?;
    sqlx::query(
        "WITH run AS (INSERT INTO probe_runs (kind, seq) VALUES ($2, $3))
         INSERT INTO probes (event_id, kind, seq) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    )
    .bind(event_id)
    .bind(job.kind)
    .bind(seq)
    .execute(&pool)
    .await?;
    Ok(WorkOutcome::Complete)
}

/// A job as the proof sees it.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) kind: String,
    pub(crate) state: String,
    /// The event in its metadata.
    pub(crate) event: Option<(i64, Uuid)>,
    /// The number in its arguments.
    pub(crate) seq: Option<i64>,
}

/// What became of the jobs.
pub(crate) struct Jobs {
    pub(crate) all: Vec<Probe>,
    /// What they wrote: the event and the kind.
    pub(crate) probes: Vec<(i64, Uuid, String)>,
    /// How often they were run, and by how many clients claimed.
    pub(crate) runs: i64,
    pub(crate) clients: i64,
    /// How often a killed process had left a job that was rescued.
    pub(crate) rescues: i64,
}

/// Waits until nothing is left to do, as long as that helps: what is left then is in the proof.
pub(crate) async fn wait(connection: &mut PgConnection, deadline: Duration) -> anyhow::Result<()> {
    let all_done = async {
        let done = "SELECT NOT EXISTS (SELECT FROM river.river_job
                    WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled'))";
        while !sqlx::query_scalar::<_, bool>(done).fetch_one(&mut *connection).await? {
            Clock::system().sleep(SOON).await;
        }
        Ok(())
    };
    tokio::time::timeout(deadline, all_done).await.unwrap_or(Ok(()))
}

pub(crate) async fn read(connection: &mut PgConnection) -> sqlx::Result<Jobs> {
    type Row = (String, String, Option<i64>, Option<Uuid>, Option<i64>);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT kind, state::text, (metadata ->> 'seqline:seq')::bigint, (metadata ->> 'seqline:event_id')::uuid,
             (args ->> 'seq')::bigint
         FROM river.river_job ORDER BY id",
    )
    .fetch_all(&mut *connection)
    .await?;
    let probe = |(kind, state, number, id, seq): Row| Probe { kind, state, event: number.zip(id), seq };
    let (clients, rescues) = sqlx::query_as(
        "SELECT (SELECT count(DISTINCT client) FROM river.river_job, unnest(attempted_by) AS client),
             (SELECT count(*) FROM river.river_job, unnest(errors) AS error WHERE error ->> 'error' LIKE 'Stuck job rescued%')",
    )
    .fetch_one(&mut *connection)
    .await?;
    Ok(Jobs {
        all: rows.into_iter().map(probe).collect(),
        probes: sqlx::query_as("SELECT seq, event_id, kind FROM probes").fetch_all(&mut *connection).await?,
        runs: sqlx::query_scalar("SELECT count(*) FROM probe_runs").fetch_one(connection).await?,
        clients,
        rescues,
    })
}
