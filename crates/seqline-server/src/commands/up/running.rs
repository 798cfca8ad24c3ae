//! What runs for as long as `seqline up` does.

use std::time::Duration;

use seqline::Clock;
use seqline::embedded::PostgresServer;
use seqline::maintenance::Maintenance;
use seqline::sequencer::Sequencer;
use seqline::tail::Tail;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::api::{self, ApiServer, Database, Door, JwtVerifier};
use crate::config::Config;
use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::jobs::ledger::{self, LedgerAge};
use crate::lifecycle::{Lifecycle, Phase, UnexpectedEnd};
use crate::limits::{LOOKS_MISSED_MAX, START_RETRY_PAUSE, UP_CONNECTIONS, UP_END_TIMEOUT};
use crate::metrics::Metrics;
use crate::ops::Health;
use crate::ops::readiness::Stage;
use crate::ops::server::OpsServer;
use crate::streaming::Streaming;
use crate::{connect, ops};

/// What `up` has before it runs.
pub(super) struct Upping<'a> {
    pub(super) options: &'a PgConnectOptions,
    pub(super) config: &'a Config,
    pub(super) ops: OpsServer,
    pub(super) api: ApiServer,
    /// The relay, where there is one.
    pub(super) streaming: Option<Streaming>,
    pub(super) stop: &'a CancellationToken,
}

/// Maintains partitions, runs a sequencer and answers the API until asked to stop, or until the embedded server ends on its own. In one epoch
/// after the other: while the database is not the one to which the numbers belong, nothing is numbered, handed out or dropped. `ready` is
/// called once, when all of this runs or waits for somebody to say how the history goes on.
pub(super) async fn run(
    upping: Upping<'_>,
    server: Option<&mut PostgresServer>,
    ready: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Upping { options, config, ops, api, streaming, stop } = upping;
    let pool = connect::pool(options, config.database.max_connections + UP_CONNECTIONS).await?;
    let clock = Clock::system();
    let metrics = Metrics::new(None, clock.clone(), config.telemetry.refresh_interval * LOOKS_MISSED_MAX)?;
    let mut lifecycle = Lifecycle::new(clock.clone());
    let health = ops::answer(&mut lifecycle, ops, config, &metrics, "up");
    let jwt = JwtVerifier::new(&config.auth, &clock)?;
    let door = Door::new(config, &clock, &health, &metrics, jwt);
    let behind = door.clone();
    lifecycle.start("api_server", Phase::Delivery, |stop| async move {
        api.run(behind, stop).await;
        Ok(())
    });
    ops::look(&mut lifecycle, options, config, &metrics, &health)?;
    let gone = gone(server, &clock);
    tokio::pin!(gone);
    let mut ready = Some(ready);
    let mut parts: Option<Lifecycle> = None;
    let result = loop {
        let begun = tokio::select! {
            begun = begin(&pool, options, config, &clock, &health) => begun,
            () = undecided(&health), if ready.is_some() => {
                if let Err(failure) = ready.take().map_or(Ok(()), |ready| ready()) {
                    break Err(failure);
                }
                continue;
            }
            () = stop.cancelled() => break Ok(()),
            () = &mut gone => break Err(ended_on_its_own()),
            ended = lifecycle.unexpected_end() => break Err(unexpected(ended)),
        };
        let (tail, epoch) = match begun {
            Ok(begun) => begun,
            Err(failure) => break Err(failure),
        };
        let running = parts.insert(start(&pool, config, &clock));
        if let Some(streaming) = &streaming
            && let Err(failure) = streaming.start(running, &pool, config, &clock)
        {
            break Err(failure);
        }
        let delivery = Delivery {
            pool: pool.clone(),
            config,
            clock: &clock,
            metrics: &metrics,
            health: &health,
            door: &door,
        };
        delivery.start(running, tail, epoch);
        health.enter(Stage::Running);
        if let Err(failure) = ready.take().map_or(Ok(()), |ready| ready()) {
            break Err(failure);
        }
        tokio::select! {
            () = health.epoch_ends(epoch) => health.enter(Stage::Undecided),
            () = stop.cancelled() => break Ok(()),
            () = &mut gone => break Err(ended_on_its_own()),
            ended = running.unexpected_end() => {
                // It may have met another history before the watch has.
                tokio::select! {
                    () = health.look_now(config.database.statement_timeout) => {}
                    () = stop.cancelled() => {}
                }
                if health.known_epoch() == Some(epoch) {
                    break Err(unexpected(ended));
                }
                health.enter(Stage::Undecided);
            }
            ended = lifecycle.unexpected_end() => break Err(unexpected(ended)),
        }
        if let Some(parts) = parts.take() {
            parts.stop(UP_END_TIMEOUT).await;
        }
        health.follows(None);
    };
    if result.is_ok() {
        eprintln!("Stopping.");
    }
    health.enter(Stage::Stopping);
    // Dropped, a sequencer loses nothing, and another one takes over when its lease has expired.
    if let Some(parts) = parts {
        parts.stop(UP_END_TIMEOUT).await;
    }
    if let Some(streaming) = &streaming {
        streaming.end(&clock).await;
    }
    lifecycle.stop(UP_END_TIMEOUT).await;
    result
}

/// Waits until it is known which history the database has, and where delivery begins there.
async fn begin(
    pool: &PgPool,
    options: &PgConnectOptions,
    config: &Config,
    clock: &Clock,
    health: &Health,
) -> Result<(Tail, Uuid), Failure> {
    loop {
        let epoch = health.epoch().await;
        let tail = Tail::new(pool.clone(), options.clone(), config.tail(), clock.clone()).await;
        match tail.map_err(Failure::from) {
            // Another epoch has begun meanwhile, and the tail may be in it.
            Ok(_) if health.known_epoch() != Some(epoch) => {}
            Ok(tail) => return Ok((tail, epoch)),
            // It was there a moment ago.
            Err(Failure::Unavailable(_)) => clock.sleep(START_RETRY_PAUSE).await,
            Err(failure) => return Err(failure),
        }
    }
}

/// Returns when it was looked, and it is not known how the history goes on.
async fn undecided(health: &Health) {
    health.first_look().await;
    if health.known_epoch().is_some() {
        std::future::pending::<()>().await;
    }
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
        ledger_age: LedgerAge::of(config),
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
    ledger_age: LedgerAge,
    interval: Duration,
}

impl Maintaining {
    /// Maintains partitions, and forgets keys of requests and rows of the ledger that are too old, every interval until `stop` is cancelled. A run that is dropped in
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
            if let Err(error) = ledger::forget(&self.database, self.ledger_age, &stop).await {
                tracing::error!(error = %error, "events that were handled long ago were not forgotten");
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
