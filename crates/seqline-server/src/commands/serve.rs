//! `seqline serve`: the parts of the server, as long as they are wanted.
//!
//! What is wrong at the start is said in a sentence, as by every command. From then on there are logs only, one JSON object
//! per line; losing the database is in them and ends nothing, and neither does a database that is not there yet.

use std::time::Duration;

use opentelemetry::KeyValue;
use seqline::Clock;
use seqline::consumer::{Consumer, ConsumerName, Consumers, EnsureError, StartAt};
use seqline::sequencer::Sequencer;
use seqline::tail::Tail;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use super::asked_to_stop;
use crate::cli::{DatabaseArgs, ServeArgs, ServeRole};
use crate::config::Config;
use crate::failure::Failure;
use crate::fanout::FanoutLag;
use crate::jobs::registry::Registry;
use crate::jobs::runtime::Jobs;
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits::START_RETRY_PAUSE;
use crate::metrics::{Metrics, catalogue};
use crate::ops::readiness::Stage;
use crate::ops::server::OpsServer;
use crate::ops::{self, Health};
use crate::recorder::Recorder;
use crate::{Server, connect, jobs};

pub(crate) async fn run(database: &DatabaseArgs, args: ServeArgs, server: &Server) -> Result<(), Failure> {
    let stop = asked_to_stop();
    let (config, role) = (&server.config, args.role);
    let options = connect::options(database)?;
    let listen = connect::listen_options(args.listen_url.as_deref(), &options)?;
    let serving = Serving {
        role,
        options: &options,
        listen: &listen,
        config,
        metrics: &server.telemetry.metrics,
        clock: &server.clock,
    };
    let ops = OpsServer::bind(config.ops.listen, "ops.listen").await?;
    let address = ops.address();
    let mut lifecycle = Lifecycle::new(server.clock.clone());
    let health = ops::answer(&mut lifecycle, ops, config, serving.metrics, role.as_str());

    // What is refused now is said in a sentence, as by every command, and nothing has been logged yet.
    let first = tokio::select! {
        prepared = serving.prepare() => prepared,
        () = stop.cancelled() => return Ok(()),
    };
    let first = match first {
        Err(Failure::Unavailable(error)) => Err(error),
        prepared => Ok(prepared?),
    };
    ops::look(&mut lifecycle, &options, config, serving.metrics, &health)?;
    tracing::info!(role = role.as_str(), address = %address, "server listening");
    let prepared = match first {
        Ok(parts) => Ok(Some(parts)),
        Err(error) => {
            tracing::warn!(error, "database is away, waiting for it");
            tokio::select! {
                parts = serving.wait() => parts.map(Some),
                () = stop.cancelled() => Ok(None),
                ended = lifecycle.unexpected_end() => Err(ended.logged()),
            }
        }
    };
    if let Ok(Some(parts)) = prepared {
        serving.start(&mut lifecycle, parts, &health);
        health.enter(Stage::Running);
        let consumers = role.works().then_some(Recorder::NAME);
        tracing::info!(role = role.as_str(), consumers, "server started");
        return until(lifecycle, &health, role, &stop, config.shutdown.total_timeout).await;
    }
    end(lifecycle, &health, role, config.shutdown.total_timeout).await;
    prepared.map(drop)
}

/// What all parts are made of.
struct Serving<'a> {
    role: ServeRole,
    options: &'a PgConnectOptions,
    listen: &'a PgConnectOptions,
    config: &'a Config,
    metrics: &'a Metrics,
    clock: &'a Clock,
}

/// What a role runs, ready to be started.
struct Parts {
    pool: PgPool,
    worker: Option<(Sequencer, Jobs, Consumers)>,
    tail: Option<Tail>,
}

impl Serving<'_> {
    /// The parts, when the database is there. What time does not mend ends it.
    async fn wait(&self) -> Result<Parts, Failure> {
        let mut pause = START_RETRY_PAUSE;
        loop {
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(self.config.database.listen_reconnect_backoff_cap);
            match self.prepare().await {
                Err(Failure::Unavailable(_)) => {}
                Err(failure) => {
                    tracing::error!(error = failure.message(), "server cannot start");
                    return Err(Failure::Logged(failure.exit_code()));
                }
                Ok(parts) => {
                    tracing::info!("database is there");
                    return Ok(parts);
                }
            }
        }
    }

    async fn prepare(&self) -> Result<Parts, Failure> {
        let pool = connect::pool(self.options, self.config.database.max_connections).await?;
        let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
        connect::refuse_older_schema(&mut connection).await?;
        if self.role.works() {
            jobs::schema::check_for_work(&mut connection, &self.config.jobs.schema).await?;
        }
        drop(connection);
        let worker = if self.role.works() {
            let sequencer = Sequencer::new(pool.clone(), self.config.sequencer(), self.clock.clone());
            let jobs = jobs(pool.clone(), self.config)?;
            let consumers = consumers(&pool, self.listen, self.config, self.clock)?;
            consumers.ensure().await?;
            Some((sequencer, jobs, consumers))
        } else {
            None
        };
        let tail = if self.role.delivers() {
            let tail = Tail::new(pool.clone(), self.listen.clone(), self.config.tail(), self.clock.clone());
            Some(tail.await?)
        } else {
            None
        };
        Ok(Parts { pool, worker, tail })
    }

    fn start(&self, lifecycle: &mut Lifecycle, parts: Parts, health: &Health) {
        let metrics = self.metrics;
        let pool = parts.pool;
        metrics.observe(&catalogue::POOL, move || {
            let (all, idle) = (pool.size(), u32::try_from(pool.num_idle()).unwrap_or(u32::MAX));
            let state = |state: &'static str| vec![KeyValue::new(catalogue::POOL_STATE, state)];
            vec![(f64::from(idle), state("idle")), (f64::from(all.saturating_sub(idle)), state("used"))]
        });
        let mut listeners = Vec::new();
        if let Some((sequencer, jobs, consumers)) = parts.worker {
            listeners.push(("consumers", consumers.listening()));
            rounds(metrics, &consumers);
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
        }
        if let Some(tail) = parts.tail {
            listeners.push(("tail", tail.listening()));
            health.follows(tail.head());
            let health = health.clone();
            metrics.observe(&catalogue::TAIL_LAG, move || {
                let seen = health.seen().zip(health.tail_position());
                let lag = seen.map(|(seen, position)| (seen.head - position).max(0));
                #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 the last digits do not matter")]
                lag.map(|lag| (lag as f64, Vec::new())).into_iter().collect()
            });
            let lag = FanoutLag { clock: self.clock.clone(), lag: metrics.seconds(&catalogue::FANOUT_LAG) };
            lifecycle.start("event_tail", Phase::Delivery, |stop| async move {
                tail.run(vec![Box::new(lag)], stop).await.map_err(|error| error.to_string())
            });
        }
        metrics.observe(&catalogue::LISTENER_CONNECTED, move || {
            let value = |up: bool| if up { 1.0 } else { 0.0 };
            let of = |(name, up): &(&'static str, tokio::sync::watch::Receiver<bool>)| {
                (value(*up.borrow()), vec![KeyValue::new(catalogue::LISTENER, *name)])
            };
            listeners.iter().map(of).collect()
        });
    }
}

/// Counts the rounds of all consumers.
fn rounds(metrics: &Metrics, consumers: &Consumers) {
    #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 the last digits do not matter")]
    let number = |count: u64| count as f64;
    let name = |name: &ConsumerName| KeyValue::new(catalogue::CONSUMER, name.as_str().to_owned());
    let tallies = consumers.tallies();
    let events = tallies.clone();
    metrics.observe(&catalogue::CONSUMER_ROUNDS, move || {
        let of_consumer =
            |(consumer, tally): &(ConsumerName, std::sync::Arc<seqline::consumer::RoundTally>)| {
                [
                    ("progressed", tally.progressed()),
                    ("idle", tally.idle()),
                    ("locked", tally.locked()),
                    ("failed", tally.failed()),
                ]
                .map(|(outcome, count)| {
                    (number(count), vec![name(consumer), KeyValue::new(catalogue::OUTCOME, outcome)])
                })
            };
        tallies.iter().flat_map(of_consumer).collect()
    });
    metrics.observe(&catalogue::CONSUMER_EVENTS, move || {
        events.iter().map(|(consumer, tally)| (number(tally.events()), vec![name(consumer)])).collect()
    });
}

/// Lets the parts run until the process is asked to stop or one of them ends on its own, which is a failure of the whole: nobody
/// shall believe that the part still works.
async fn until(
    mut lifecycle: Lifecycle,
    health: &Health,
    role: ServeRole,
    stop: &CancellationToken,
    total_timeout: Duration,
) -> Result<(), Failure> {
    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = lifecycle.unexpected_end() => Err(ended.logged()),
    };
    end(lifecycle, health, role, total_timeout).await;
    result
}

async fn end(lifecycle: Lifecycle, health: &Health, role: ServeRole, total_timeout: Duration) {
    health.enter(Stage::Stopping);
    tracing::info!(role = role.as_str(), "server stopping");
    lifecycle.stop(total_timeout).await;
    tracing::info!(role = role.as_str(), "server stopped");
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

    async fn run(lifecycle: Lifecycle, stop: &CancellationToken) -> Result<(), Failure> {
        let config = Config::default();
        let health = Health::new(Clock::system(), ops::limits(&config));
        until(lifecycle, &health, ServeRole::All, stop, Duration::from_secs(20)).await
    }

    #[tokio::test]
    async fn a_part_that_ends_on_its_own_ends_the_process_with_exit_code_1() {
        for end in [Ok(()), Err("why".to_owned())] {
            let failure = run(parts(Some(end)), &CancellationToken::new()).await;
            assert_eq!(failure.unwrap_err().exit_code(), 1);
        }
    }

    #[tokio::test]
    async fn a_stop_that_was_asked_for_is_a_good_end() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert!(run(parts(None), &stop).await.is_ok());
    }
}
