//! A worker: what runs in the processes that are killed.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use seqline::consumer::{
    Consumer, ConsumerConfig, ConsumerName, Consumers, Handler, HandlerError, Round, StartAt,
};
use seqline::job::{JobArgs, NewJob, River};
use seqline::{Clock, StoredEvent};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::jobs;

/// The argument that makes a worker of this program.
pub(crate) const ARGUMENT: &str = "worker";
/// Where a worker is told its database, with the password in it.
pub(crate) const DATABASE_URL: &str = "DEMO_WORKER_DATABASE_URL";
/// All workers run the same consumer.
pub(crate) const CONSUMER: &str = "demo";
/// By this and its process id the backends of a worker are found that handle events.
pub(crate) const APPLICATION_NAME: &str = "demo-worker-";
const APPLICATION_NAME_FOR_JOBS: &str = "demo-jobs";

/// One event in so many takes long, so that there is time to be killed in the middle of it.
const SLOW_ONE_IN: i64 = 50;
const SLOW: Duration = Duration::from_millis(20);

/// What workers write: two rows for each event, and two jobs. Nothing keeps them from being there twice.
pub(crate) async fn create_effects(admin: &PgPool) -> sqlx::Result<()> {
    sqlx::raw_sql(
        "CREATE TABLE effects (seq bigint NOT NULL, worker bigint NOT NULL, part integer NOT NULL);
         GRANT SELECT, INSERT ON effects TO PUBLIC",
    )
    .execute(admin)
    .await
    .map(drop)
}

struct Effects {
    worker: i64,
    clock: Clock,
}

impl Handler for Effects {
    async fn handle(&self, event: &StoredEvent, round: &mut Round<'_>) -> Result<(), HandlerError> {
        for (part, kind) in [1, 2].into_iter().zip(jobs::KINDS) {
            sqlx::query("INSERT INTO effects (seq, worker, part) VALUES ($1, $2, $3)")
                .bind(event.seq)
                .bind(self.worker)
                .bind(part)
                .execute(round.connection())
                .await?;
            let job = NewJob::new(kind, JobArgs::new().with("seq", event.seq));
            round.jobs().insert(NewJob { queue: jobs::QUEUE.to_owned(), ..job })?;
            if part == 1 && event.seq % SLOW_ONE_IN == 0 {
                self.clock.sleep(SLOW).await;
            }
        }
        Ok(())
    }
}

/// Works until SIGTERM, or until the process that started it is gone.
pub(crate) async fn run() -> anyhow::Result<()> {
    let url = std::env::var(DATABASE_URL).context("a worker is started by the demo")?;
    let worker = std::process::id();
    let options = PgConnectOptions::from_str(&url)?;
    let pool_for_jobs = PgPoolOptions::new()
        .max_connections(4)
        .connect_lazy_with(options.clone().application_name(APPLICATION_NAME_FOR_JOBS));
    let options = options.application_name(&format!("{APPLICATION_NAME}{worker}"));
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(options.clone());
    let config = ConsumerConfig {
        batch_size: 50,
        poll_interval: Duration::from_millis(500),
        failure_backoff_cap: Duration::from_secs(1),
        listen_reconnect_backoff_cap: Duration::from_secs(1),
        ..ConsumerConfig::default()
    };
    let clock = Clock::system();
    let mut consumers = Consumers::new(pool, options, config, clock.clone());
    let handler = Effects { worker: i64::from(worker), clock };
    let consumer = Consumer::new(ConsumerName::new(CONSUMER)?, handler).start_at(StartAt::Oldest);
    consumers.register(consumer.jobs(River::in_schema(jobs::SCHEMA)))?;
    let mut terminated = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let mut jobs = jobs::client(pool_for_jobs)?.start_with_graceful_stop(stop.clone().cancelled_owned())?;
    let working = async {
        tokio::try_join!(async { consumers.run(stop.clone()).await.context("the consumer ended") }, async {
            jobs.wait().await.context("River's client ended")
        })
    };
    let stopping = async {
        terminated.recv().await;
        stop.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = working => ended.map(drop),
        () = stopping => unreachable!("it only says when to stop"),
        () = parent_gone() => Ok(()),
    }
}

/// The parent holds the other end and never writes.
async fn parent_gone() {
    // An end and an error say the same.
    let _ = tokio::io::stdin().read_u8().await;
}
