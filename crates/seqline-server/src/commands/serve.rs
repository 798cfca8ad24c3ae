//! `seqline serve`: the parts of the server, as long as they are wanted.
//!
//! What is wrong at the start is said in a sentence, as by every command. From then on there are logs only, one JSON object
//! per line; losing the database is in them and ends nothing.

use std::time::Duration;

use seqline::Clock;
use seqline::consumer::{Consumer, ConsumerName, Consumers, EnsureError, StartAt};
use seqline::sequencer::Sequencer;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use super::{asked_to_stop, configuration};
use crate::cli::{DatabaseArgs, ServeArgs, ServeRole};
use crate::config::Config;
use crate::connect;
use crate::failure::Failure;
use crate::jobs;
use crate::jobs::registry::Registry;
use crate::jobs::runtime::Jobs;
use crate::lifecycle::{Lifecycle, Phase};
use crate::recorder::Recorder;

pub(crate) async fn run(database: &DatabaseArgs, args: ServeArgs) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let config = configuration(&args.config)?;
    let options = connect::options(database)?;
    let listen = connect::listen_options(args.listen_url.as_deref(), &options)?;
    match args.role {
        ServeRole::Worker => worker(&options, listen, &config, &stop).await,
    }
}

async fn worker(
    options: &PgConnectOptions,
    listen: PgConnectOptions,
    config: &Config,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let clock = Clock::system();
    let prepared = async {
        let pool = connect::pool(options, config.database.max_connections).await?;
        let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
        connect::refuse_older_schema(&mut connection).await?;
        jobs::schema::check_for_work(&mut connection, &config.jobs.schema).await?;
        drop(connection);
        let sequencer = Sequencer::new(pool.clone(), config.sequencer(), clock.clone());
        let jobs = jobs(pool.clone(), config)?;
        let consumers = consumers(&pool, &listen, config, &clock)?;
        consumers.ensure().await?;
        Ok::<_, Failure>((sequencer, jobs, consumers))
    };
    let (sequencer, jobs, consumers) = tokio::select! {
        prepared = prepared => prepared?,
        () = stop.cancelled() => return Ok(()),
    };

    let mut lifecycle = Lifecycle::new(clock.clone());
    // Stopped last: what the others append gets its numbers as long as they run.
    lifecycle.start("sequencer", Phase::Sequencer, |stop| async move {
        sequencer.run(stop).await;
        Ok(())
    });
    // Before the consumers, and stopped after them, so that whoever wants a job done finds somebody who does it.
    lifecycle.start("jobs", Phase::Jobs, |stop| jobs.run(stop));
    lifecycle.start("event_consumers", Phase::Consumers, |stop| async move {
        consumers.run(stop).await.map_err(|error| error.to_string())
    });
    tracing::info!(role = "worker", consumers = Recorder::NAME, "worker started");

    until(lifecycle, stop, config.shutdown.total_timeout).await
}

/// Lets the parts run until the process is asked to stop or one of them ends on its own, which is a failure of the whole: nobody
/// shall believe that the part still works.
async fn until(
    mut lifecycle: Lifecycle,
    stop: &CancellationToken,
    total_timeout: Duration,
) -> Result<(), Failure> {
    let ended = tokio::select! {
        () = stop.cancelled() => None,
        ended = lifecycle.unexpected_end() => Some(ended),
    };
    if let Some(ended) = &ended {
        tracing::error!(component = ended.component, error = ended.reason, "component ended on its own");
    }
    tracing::info!(role = "worker", "worker stopping");
    lifecycle.stop(total_timeout).await;
    tracing::info!(role = "worker", "worker stopped");
    ended.map_or(Ok(()), |_| Err(Failure::Logged))
}

/// The jobs of a worker.
fn jobs(pool: PgPool, config: &Config) -> Result<Jobs, Failure> {
    let registry = Registry::built_in(&pool, config);
    let registry = registry.map_err(|error| Failure::Unexpected(error.to_string()))?;
    Jobs::new(pool, config, registry)
}

/// The consumers of a worker. This is the one place that knows them.
fn consumers(
    pool: &PgPool,
    listen: &PgConnectOptions,
    config: &Config,
    clock: &Clock,
) -> Result<Consumers, Failure> {
    let unexpected = |error: &dyn std::error::Error| Failure::Unexpected(error.to_string());
    let mut consumers = Consumers::new(pool.clone(), listen.clone(), config.consumers(), clock.clone());
    let name = ConsumerName::new(Recorder::NAME).map_err(|error| unexpected(&error))?;
    let recorder = Consumer::new(name, Recorder).start_at(StartAt::Oldest).filter(config.recorder());
    let recorder = recorder.map_err(|error| unexpected(&error))?;
    consumers.register(recorder).map_err(|error| unexpected(&error))?;
    Ok(consumers)
}

impl From<EnsureError> for Failure {
    fn from(error: EnsureError) -> Self {
        match error {
            EnsureError::Database(error) => error.into(),
            error => Self::Refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(end: Option<Result<(), String>>) -> Lifecycle {
        let mut lifecycle = Lifecycle::new(Clock::system());
        lifecycle.start("steady", Phase::Jobs, |stop| async move {
            stop.cancelled().await;
            Ok(())
        });
        if let Some(end) = end {
            lifecycle.start("ends", Phase::Consumers, |_| async { end });
        }
        lifecycle
    }

    #[tokio::test]
    async fn a_part_that_ends_on_its_own_ends_the_process_with_exit_code_1() {
        for end in [Ok(()), Err("why".to_owned())] {
            let failure = until(parts(Some(end)), &CancellationToken::new(), Duration::from_secs(20)).await;
            assert_eq!(failure.unwrap_err().exit_code(), 1);
        }
    }

    #[tokio::test]
    async fn a_stop_that_was_asked_for_is_a_good_end() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(until(parts(None), &stop, Duration::from_secs(20)).await.is_ok());
    }
}
