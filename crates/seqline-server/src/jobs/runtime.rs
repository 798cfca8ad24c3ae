//! The part of a worker that runs jobs.

use std::time::Duration;

use riverqueue::database::{PostgresDatabase, PostgresReindexConfig};
use riverqueue::migrate::SchemaName;
use riverqueue::{
    BoxError, Client, ErrorHandler, ErrorHandlerDecision, JobRow, MaintenanceConfig, QueueConfig, Retention,
    RunHandle, WorkContext, WorkResult,
};
use seqline::{Clock, DatabaseError};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::registry::{QUEUES, Registry};
use super::retry::Backoff;
use super::schema::schema_name;
use crate::config::Config;
use crate::failure::Failure;
use crate::limits::{JOBS_FETCH_COOLDOWN, JOBS_LOOK_INTERVAL, JOBS_RESCUE_INTERVAL};
use crate::store;
use crate::store::jobs::Look;

/// Runs the jobs of a registry.
#[derive(Debug)]
pub struct Jobs {
    client: Client,
    pool: PgPool,
    schema: SchemaName,
    look_timeout: Duration,
    overdue_after: Duration,
}

impl Jobs {
    /// What runs the jobs of `registry` over `pool`, as a role that may do what `seqline_app` may.
    ///
    /// # Errors
    ///
    /// [`Failure`] when the configuration is none that River takes.
    pub fn new(pool: PgPool, config: &Config, registry: Registry) -> Result<Self, Failure> {
        let keys = &config.jobs;
        let (workers, periodic) = registry.into_parts();
        let queue = queue(config);
        let builder = Client::builder(database(pool.clone(), &keys.schema)?)
            // A listening connection less for each worker. Jobs that are due now and then are found early enough by polling.
            .without_notifications()
            .job_timeout(keys.timeout)
            // One that does not stop is dropped before another worker can take it for lost.
            .job_stuck_threshold(keys.rescue_after.saturating_sub(keys.timeout))
            .maintenance(maintenance(config))
            .retry_policy(Backoff { cap: keys.retry_backoff_cap })
            .error_handler(Failures)
            .workers(workers);
        let builder = QUEUES.iter().fold(builder, |builder, name| builder.queue(*name, queue.clone()));
        let builder = periodic.into_iter().fold(builder, |builder, job| builder.periodic_job(job));
        let schema = schema_name(&keys.schema)?;
        let client = builder.build().map_err(|error| Failure::Unexpected(error.to_string()))?;
        Ok(Self {
            client,
            pool,
            schema,
            look_timeout: config.database.statement_timeout,
            overdue_after: config.alert.jobs_overdue_after,
        })
    }

    /// Runs until `stop` is cancelled; then nothing new begins, what runs is asked to end, and waited for.
    ///
    /// The database going away ends nothing. It is said once, and once that it is over.
    ///
    /// # Errors
    ///
    /// Why it ended although nobody had asked for it.
    pub async fn run(self, stop: CancellationToken) -> Result<(), String> {
        let run = self.client.start().map_err(|error| error.to_string())?;
        tokio::select! {
            ended = until_stopped(run, stop) => ended,
            () = self.look() => unreachable!("it looks for ever"),
        }
    }

    /// Tells when jobs are not worked, and when they are again. River says what happens to it with each of its attempts, a few times in
    /// a second, so what it says is left out of the log.
    async fn look(&self) {
        let clock = Clock::system();
        let mut said = None;
        loop {
            let trouble = match tokio::time::timeout(self.look_timeout, self.reach()).await {
                Ok(Ok(look)) => Trouble::of(&look),
                Ok(Err(error)) if error.is_retryable() => Some(Trouble::Away),
                Ok(Err(error)) => Some(Trouble::Refused(error.to_string())),
                Err(_) => Some(Trouble::Away),
            };
            if trouble != said {
                match (&trouble, &said) {
                    (Some(trouble), _) => trouble.say(),
                    (None, Some(Trouble::Away | Trouble::Refused(_))) => {
                        tracing::info!("jobs can be reached again");
                    }
                    (None, _) => tracing::info!("jobs are worked again"),
                }
                said = trouble;
            }
            clock.sleep(JOBS_LOOK_INTERVAL).await;
        }
    }

    async fn reach(&self) -> Result<Look, DatabaseError> {
        let mut connection = self.pool.acquire().await?;
        Ok(store::jobs::look(&mut connection, &self.schema, self.overdue_after).await?)
    }
}

/// Why jobs are not worked.
#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    /// The database does not answer.
    Away,
    /// It answers with something that waiting does not mend.
    Refused(String),
    /// The role may not do what River does.
    Rights,
    /// Somebody paused these queues.
    Paused(Vec<String>),
    /// Nobody takes what is due.
    Overdue,
}

impl Trouble {
    fn of(look: &Look) -> Option<Self> {
        match look {
            Look { may_work: false, .. } => Some(Self::Rights),
            Look { paused, .. } if !paused.is_empty() => Some(Self::Paused(paused.clone())),
            Look { overdue, .. } if *overdue > 0 => Some(Self::Overdue),
            _ => None,
        }
    }

    fn say(&self) {
        match self {
            Self::Away => tracing::warn!("jobs wait for the database"),
            Self::Refused(error) => tracing::error!(error, "jobs are refused by the database"),
            Self::Rights => tracing::error!(
                "jobs cannot be worked, this role lacks rights in their schema: run seqline migrate"
            ),
            Self::Paused(queues) => tracing::warn!(queues = queues.join(", "), "jobs wait in a paused queue"),
            Self::Overdue => tracing::warn!("jobs are due for long and nobody works them"),
        }
    }
}

/// Waits for the end of River, and is satisfied with it only when it was asked for.
async fn until_stopped(mut run: RunHandle, stop: CancellationToken) -> Result<(), String> {
    tokio::select! {
        biased;
        () = stop.cancelled() => run.stop_and_cancel().await.map_err(|error| error.to_string()),
        ended = run.wait() => Err(match ended {
            Ok(()) => "River ended without an error".to_owned(),
            Err(error) => error.to_string(),
        }),
    }
}

/// River's view of the database. Rebuilding indexes needs their owner, whom no worker is.
pub(crate) fn database(pool: PgPool, schema: &str) -> Result<PostgresDatabase, Failure> {
    Ok(PostgresDatabase::new(pool)
        .with_schema(schema_name(schema)?)
        .with_reindex(PostgresReindexConfig::default().with_index_names([""; 0])))
}

fn queue(config: &Config) -> QueueConfig {
    let keys = &config.jobs;
    QueueConfig::new(usize::try_from(keys.max_workers).unwrap_or(usize::MAX))
        .with_fetch_poll_interval(keys.poll_interval)
        .with_fetch_cooldown(JOBS_FETCH_COOLDOWN.min(keys.poll_interval))
}

fn maintenance(config: &Config) -> MaintenanceConfig {
    let keys = &config.jobs;
    let discarded = Retention::DeleteAfter(keys.discarded_retention);
    let (rescue_min, rescue_max) = JOBS_RESCUE_INTERVAL;
    MaintenanceConfig::default()
        .with_completed_job_retention(Retention::DeleteAfter(keys.completed_retention))
        .with_discarded_job_retention(discarded)
        .with_cancelled_job_retention(discarded)
        .with_rescue_after(keys.rescue_after)
        .with_rescuer_interval((keys.rescue_after / 10).clamp(rescue_min, rescue_max))
}

/// Logs what failed, once. What the error says was written by the job itself, and holds no payload.
struct Failures;

impl ErrorHandler for Failures {
    async fn handle_error(
        &self,
        _context: &WorkContext,
        job: &JobRow,
        result: &WorkResult,
    ) -> Result<ErrorHandlerDecision, BoxError> {
        let error = match result {
            WorkResult::Failed(error) => error.to_string(),
            WorkResult::Aborted => "it did not stop in time and was dropped".to_owned(),
            _ => "it panicked".to_owned(),
        };
        let (job_id, kind, attempt, max_attempts) = (job.id, &job.kind, job.attempt, job.max_attempts);
        if attempt < max_attempts {
            tracing::warn!(job_id, kind, attempt, max_attempts, error, "job failed, it will be tried again");
        } else {
            tracing::error!(job_id, kind, attempt, max_attempts, error, "job failed and was given up");
        }
        Ok(ErrorHandlerDecision::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_that_nobody_asked_for_is_an_error_and_one_that_was_is_not() {
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://127.0.0.1:1/db").unwrap();
        let client = || {
            let config = Config::default();
            Jobs::new(pool.clone(), &config, Registry::built_in(&pool, &config).unwrap()).unwrap().client
        };
        let run = client().start().unwrap();
        let stopper = run.stopper();
        stopper.stop_and_cancel();
        let soon = Duration::from_secs(20);
        let ended = tokio::time::timeout(soon, until_stopped(run, CancellationToken::new())).await;
        assert_eq!(ended, Ok(Err("River ended without an error".to_owned())));
        let stop = CancellationToken::new();
        stop.cancel();
        let ended = tokio::time::timeout(soon, until_stopped(client().start().unwrap(), stop)).await;
        assert_eq!(ended, Ok(Ok(())));
    }

    #[test]
    fn settings_reach_river() {
        let mut config = Config::default();
        config.jobs.max_workers = 17;
        config.jobs.poll_interval = Duration::from_millis(18);
        config.jobs.completed_retention = Duration::from_secs(19);
        config.jobs.discarded_retention = Duration::from_secs(20);
        config.jobs.rescue_after = Duration::from_secs(21);
        let queue = queue(&config);
        assert_eq!((queue.max_workers(), queue.fetch_poll_interval()), (17, Duration::from_millis(18)));
        let maintenance = maintenance(&config);
        let kept = |seconds| Retention::DeleteAfter(Duration::from_secs(seconds));
        assert_eq!(maintenance.completed_job_retention(), kept(19));
        assert_eq!(maintenance.discarded_job_retention(), kept(20));
        assert_eq!(maintenance.cancelled_job_retention(), kept(20));
        assert_eq!(maintenance.rescue_after(), Some(Duration::from_secs(21)));
    }

    #[test]
    fn lost_jobs_are_looked_for_in_a_tenth_of_their_time_within_bounds() {
        for (rescue_after, interval) in [(2, 1), (100, 10), (300, 30), (86_400, 30)] {
            let mut config = Config::default();
            config.jobs.rescue_after = Duration::from_secs(rescue_after);
            assert_eq!(maintenance(&config).rescuer_interval(), Duration::from_secs(interval));
        }
    }
}
