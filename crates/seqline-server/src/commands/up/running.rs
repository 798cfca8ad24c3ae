//! What runs for as long as `seqline up` does.

use std::time::Duration;

use seqline::Clock;
use seqline::embedded::PostgresServer;
use seqline::maintenance::Maintenance;
use seqline::sequencer::Sequencer;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Database};
use crate::config::Config;
use crate::failure::Failure;
use crate::lifecycle::{Lifecycle, Phase, UnexpectedEnd};
use crate::limits::{LOOKS_MISSED_MAX, UP_CONNECTIONS, UP_END_TIMEOUT};
use crate::metrics::Metrics;
use crate::ops::readiness::Stage;
use crate::ops::server::OpsServer;
use crate::{connect, ops};

/// Maintains partitions and runs a sequencer until asked to stop, or until the embedded server ends on its own. In one epoch after the other:
/// while the database is not the one to which the numbers belong, nothing is numbered or dropped.
pub(super) async fn run(
    options: &PgConnectOptions,
    config: &Config,
    ops: OpsServer,
    server: Option<&mut PostgresServer>,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let pool = connect::pool(options, UP_CONNECTIONS).await?;
    let clock = Clock::system();
    let metrics = Metrics::new(None, clock.clone(), config.telemetry.refresh_interval * LOOKS_MISSED_MAX)?;
    let mut lifecycle = Lifecycle::new(clock.clone());
    let health = ops::answer(&mut lifecycle, ops, config, &metrics, "up");
    ops::look(&mut lifecycle, options, config, &metrics, &health)?;
    let gone = gone(server, &clock);
    tokio::pin!(gone);
    let mut parts: Option<Lifecycle> = None;
    let result = loop {
        let epoch = tokio::select! {
            epoch = health.epoch() => epoch,
            () = stop.cancelled() => break Ok(()),
            () = &mut gone => break Err(ended_on_its_own()),
            ended = lifecycle.unexpected_end() => break Err(unexpected(ended)),
        };
        let running = parts.insert(start(&pool, config, &clock));
        health.enter(Stage::Running);
        tokio::select! {
            () = health.epoch_ends(epoch) => health.enter(Stage::Undecided),
            () = stop.cancelled() => break Ok(()),
            () = &mut gone => break Err(ended_on_its_own()),
            ended = running.unexpected_end() => break Err(unexpected(ended)),
            ended = lifecycle.unexpected_end() => break Err(unexpected(ended)),
        }
        if let Some(parts) = parts.take() {
            parts.stop(UP_END_TIMEOUT).await;
        }
    };
    if result.is_ok() {
        eprintln!("Stopping.");
    }
    health.enter(Stage::Stopping);
    // Dropped, a sequencer loses nothing, and another one takes over when its lease has expired.
    if let Some(parts) = parts {
        parts.stop(UP_END_TIMEOUT).await;
    }
    lifecycle.stop(UP_END_TIMEOUT).await;
    result
}

fn start(pool: &PgPool, config: &Config, clock: &Clock) -> Lifecycle {
    let mut parts = Lifecycle::new(clock.clone());
    let sequencer = Sequencer::new(pool.clone(), config.sequencer(), clock.clone());
    parts.start("sequencer", Phase::Sequencer, |stop| async move {
        sequencer.run(stop).await;
        Ok(())
    });
    let maintaining = Maintaining {
        maintenance: Maintenance::new(pool.clone(), config.maintenance(), clock.clone()),
        database: Database::new(pool.clone(), clock.clone(), config.database.statement_timeout),
        keys_retention: config.api.idempotency_retention,
        interval: config.sync.partition_maintenance_interval,
    };
    let clock = clock.clone();
    parts.start("maintenance", Phase::Jobs, move |stop| maintaining.run(clock, stop));
    parts
}

/// What a worker does in a job.
struct Maintaining {
    maintenance: Maintenance,
    database: Database,
    keys_retention: Duration,
    interval: Duration,
}

impl Maintaining {
    /// Maintains partitions, and forgets keys of requests that are too old, every interval until `stop` is cancelled. A run that is dropped in
    /// between is finished by the next.
    async fn run(self, clock: Clock, stop: CancellationToken) -> Result<(), String> {
        loop {
            let run = tokio::select! {
                run = self.maintenance.run() => run,
                () = stop.cancelled() => return Ok(()),
            };
            match run {
                Ok(report) => tracing::info!(
                    created = report.created,
                    closed = report.closed,
                    dropped = report.dropped,
                    held = report.held.is_some(),
                    "partition maintenance done"
                ),
                Err(error) => tracing::error!(error = %error, "partition maintenance failed"),
            }
            if let Err(error) = api::prune(&self.database, self.keys_retention, &stop).await {
                tracing::error!(error = %error, "idempotency keys were not forgotten");
            }
            tokio::select! {
                () = clock.sleep(self.interval) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }
}

/// Resolves when the embedded server is no longer there.
async fn gone(server: Option<&mut PostgresServer>, clock: &Clock) {
    let Some(server) = server else { return std::future::pending().await };
    while server.is_running() {
        clock.sleep(Duration::from_secs(1)).await;
    }
}

fn ended_on_its_own() -> Failure {
    Failure::Unavailable("the PostgreSQL server ended on its own".to_owned())
}

fn unexpected(ended: UnexpectedEnd) -> Failure {
    Failure::Unexpected(format!("{} ended on its own: {}", ended.component, ended.reason))
}
