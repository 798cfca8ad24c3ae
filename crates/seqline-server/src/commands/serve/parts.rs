//! The parts of a server: what they are made of, and starting them.

use seqline::Clock;
use seqline::consumer::{Consumer, ConsumerName, Consumers, EnsureError, StartAt};
use seqline::sequencer::Sequencer;
use seqline::tail::Tail;
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use super::figures::{Figures, Shown};
use crate::api::Door;
use crate::cli::ServeRole;
use crate::config::Config;
use crate::delivery::Delivery;
use crate::failure::Failure;
use crate::jobs::registry::Registry;
use crate::jobs::runtime::Jobs;
use crate::lifecycle::{Lifecycle, Phase};
use crate::limits::{CONNECT_TIMEOUT, START_RETRY_PAUSE};
use crate::metrics::Metrics;
use crate::ops::Health;
use crate::recorder::Recorder;
use crate::streaming::{StreamTallies, Streaming};
use crate::{connect, jobs};

/// What all parts are made of.
pub(super) struct Making<'a> {
    pub(super) role: ServeRole,
    pub(super) options: &'a PgConnectOptions,
    pub(super) listen: &'a PgConnectOptions,
    pub(super) config: &'a Config,
    pub(super) metrics: &'a Metrics,
    pub(super) clock: &'a Clock,
    /// What needs a broker, where there is any.
    pub(super) streaming: Option<&'a Streaming>,
}

/// What a role runs on a database that was found to be in order.
pub(super) struct Parts {
    pool: PgPool,
    worker: Option<(Sequencer, Jobs, Consumers)>,
}

impl Making<'_> {
    /// Looks whether the database is in order, and makes what can be made before it is known which history it has.
    pub(super) async fn prepare(&self) -> Result<Parts, Failure> {
        let limit = CONNECT_TIMEOUT + self.config.database.statement_timeout;
        let late = || Failure::Unavailable(format!("{} does not answer", connect::place(self.options)));
        self.clock.timeout(limit, Box::pin(self.look_and_make())).await.unwrap_or_else(|| Err(late()))
    }

    async fn look_and_make(&self) -> Result<Parts, Failure> {
        let pool = connect::pool(self.options, self.config.database.max_connections).await?;
        let mut connection = pool.acquire().await.map_err(seqline::DatabaseError::from)?;
        connect::refuse_older_schema(&mut connection).await?;
        if !self.role.works() {
            return Ok(Parts { pool, worker: None });
        }
        jobs::schema::check_for_work(&mut connection, &self.config.jobs.schema).await?;
        drop(connection);
        let sequencer = Sequencer::new(pool.clone(), self.config.sequencer(), self.clock.clone());
        let jobs = jobs(pool.clone(), self.config)?;
        let consumers = consumers(&pool, self.listen, self.config, self.clock)?;
        consumers.ensure().await?;
        Ok(Parts { pool, worker: Some((sequencer, jobs, consumers)) })
    }

    /// The same, when the database is there. What time does not mend ends it; unless the process `has_served`: then it remembers what it has
    /// seen of the history, and a database that is being restored is in order again after a while.
    pub(super) async fn prepare_at_last(&self, has_served: bool) -> Result<Parts, Failure> {
        let mut pause = START_RETRY_PAUSE;
        let mut said = None;
        loop {
            match self.prepare().await {
                Err(Failure::Unavailable(_)) => {}
                Err(failure) if has_served => {
                    let reason = failure.message();
                    if said != reason {
                        tracing::error!(error = reason, "server cannot start, trying again");
                        said = reason;
                    }
                }
                Err(failure) => {
                    tracing::error!(error = failure.message(), "server cannot start");
                    return Err(Failure::Logged(failure.exit_code()));
                }
                Ok(parts) => return Ok(parts),
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(self.config.database.listen_reconnect_backoff_cap);
        }
    }

    /// Where live delivery begins; none in a role without it. Only once it is known which history the numbers belong to.
    pub(super) async fn tail(&self, parts: &Parts) -> Result<Option<Tail>, Failure> {
        if !self.role.delivers() {
            return Ok(None);
        }
        let (pool, listen) = (parts.pool.clone(), self.listen.clone());
        Ok(Some(Tail::new(pool, listen, self.config.tail(), self.clock.clone()).await?))
    }

    /// Starts everything.
    pub(super) fn start(
        &self,
        parts: Parts,
        tail: Option<Tail>,
        epoch: Uuid,
        figures: &Figures,
        health: &Health,
        door: &Door,
    ) -> Result<Lifecycle, Failure> {
        let mut lifecycle = Lifecycle::new(self.clock.clone());
        let mut shown = Shown {
            pool: parts.pool.clone(),
            listeners: Vec::new(),
            tallies: Vec::new(),
            api: None,
            streaming: StreamTallies::default(),
        };
        if let Some((sequencer, jobs, consumers)) = parts.worker {
            shown.tallies = consumers.tallies();
            shown.listeners.push(("consumers", consumers.listening()));
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
        if let Some(streaming) = self.streaming {
            shown.streaming = streaming.start(&mut lifecycle, &parts.pool, self.config, self.clock)?;
        }
        match tail {
            Some(tail) => {
                shown.listeners.push(("tail", tail.listening()));
                let (config, clock, metrics) = (self.config, self.clock, self.metrics);
                let delivery = Delivery { pool: parts.pool, config, clock, metrics, health, door };
                shown.api = Some(delivery.start(&mut lifecycle, tail, epoch));
            }
            None => health.follows(None),
        }
        if !self.config.database.listen {
            shown.listeners.clear();
        }
        figures.show(Some(shown));
        Ok(lifecycle)
    }
}

/// The jobs of a worker.
fn jobs(pool: PgPool, config: &Config) -> Result<Jobs, Failure> {
    let registry = Registry::built_in(&pool, config).map_err(unexpected)?;
    Jobs::new(pool, config, registry)
}

fn unexpected(error: impl std::error::Error) -> Failure {
    Failure::Unexpected(error.to_string())
}

/// The consumers of a worker. This is the one place that knows them.
fn consumers(
    pool: &PgPool,
    listen: &PgConnectOptions,
    config: &Config,
    clock: &Clock,
) -> Result<Consumers, Failure> {
    let mut consumers = Consumers::new(pool.clone(), listen.clone(), config.consumers(), clock.clone());
    let name = ConsumerName::new(Recorder::NAME).map_err(unexpected)?;
    let recorder = Consumer::new(name, Recorder).start_at(StartAt::Oldest).filter(config.recorder());
    let recorder = recorder.map_err(unexpected)?;
    consumers.register(recorder).map_err(unexpected)?;
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
