//! `seqline serve`: the parts of the server, as long as they are wanted.
//!
//! What is wrong at the start is said in a sentence, as by every command. From then on there are logs only, one JSON object
//! per line; losing the database is in them and ends nothing.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use seqline::Clock;
use seqline::consumer::{Consumer, ConsumerName, Consumers, EnsureError, StartAt};
use seqline::maintenance::Maintenance;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use super::{asked_to_stop, file_failure};
use crate::cli::{DatabaseArgs, ServeArgs, ServeRole};
use crate::config::{self, Config, ConfigFile};
use crate::connect;
use crate::failure::Failure;
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits::CONFIG_BYTES_MAX;
use crate::recorder::Recorder;

pub(crate) async fn run(database: &DatabaseArgs, args: ServeArgs) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let file = args.config.as_deref().filter(|file| !file.is_empty());
    let file = file.map(|file| read(Path::new(file))).transpose()?;
    let config = config::load(file.as_ref(), std::env::vars_os())
        .map_err(|problems| Failure::Usage(problems.to_string()))?;
    let options = connect::options(database)?;
    let listen = connect::listen_options(args.listen_url.as_deref(), &options)?;
    match args.role {
        ServeRole::Worker => worker(&options, listen, &config, &stop).await,
    }
}

/// The file with settings. Its name is known to be right when it can be read; what is in it is another question.
fn read(path: &Path) -> Result<ConfigFile, Failure> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| file_failure("read", path, &error))?;
    let name = path.display().to_string();
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{name} has more than {CONFIG_BYTES_MAX} bytes: this is not a file with settings"
        )));
    }
    Ok(ConfigFile { name, bytes })
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
        drop(connection);
        let consumers = consumers(&pool, &listen, config, &clock)?;
        consumers.ensure().await?;
        Ok::<_, Failure>((pool, consumers))
    };
    let (pool, consumers) = tokio::select! {
        prepared = prepared => prepared?,
        () = stop.cancelled() => return Ok(()),
    };

    let mut lifecycle = Lifecycle::new(clock.clone());
    lifecycle.start("event_consumers", Phase::Consumers, |stop| async move {
        consumers.run(stop).await.map_err(|error| error.to_string())
    });
    let maintenance = Maintenance::new(pool, config.maintenance(), clock);
    let interval = config.sync.partition_maintenance_interval;
    lifecycle.start("partition_maintenance", Phase::Maintenance, move |stop| async move {
        maintenance.run_on_schedule(interval, stop).await;
        Ok(())
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
    let recorder = Consumer::new(name, Recorder).start_at(StartAt::Oldest);
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
        lifecycle.start("steady", Phase::Maintenance, |stop| async move {
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
