//! Which kinds of jobs there are, where each runs and how often, and what it does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use riverqueue::{
    BoxError, Error, InsertOpts, IntervalSchedule, Job, JobArgs, JobState, PeriodicJob, PeriodicJobOpts,
    UniqueOpts, WorkContext, WorkOutcome, Workers,
};
use serde_json::Value;
use sqlx::PgPool;
use tracing::Instrument;

use super::{maintenance, trace};
use crate::config::Config;
use crate::limits::JOBS_OFFER_INTERVAL_MAX;

/// The queue of everything that has no other.
pub const DEFAULT_QUEUE: &str = "default";

/// The queue of what keeps the log in order: it waits for locks, and nothing else is to wait for it.
pub const MAINTENANCE_QUEUE: &str = "maintenance";

/// All queues of a worker.
pub const QUEUES: [&str; 2] = [DEFAULT_QUEUE, MAINTENANCE_QUEUE];

/// How jobs of a kind are run.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// One of [`QUEUES`].
    pub queue: &'static str,
    /// How often a job is tried before it is given up.
    pub max_attempts: i32,
    /// For a kind that is due once per interval, over all workers.
    pub interval: Option<Duration>,
    /// Whether it is also due when a worker begins, unless it was done in this interval.
    pub run_on_start: bool,
}

impl JobOptions {
    /// Options with which a job of this kind is inserted. River has options of its own for whoever forgets them.
    #[must_use]
    pub fn insert_opts(&self) -> InsertOpts {
        let opts = InsertOpts::default().with_queue(self.queue).with_max_attempts(self.max_attempts);
        // Whoever leads, and however often that changes: the row of a run, also of one that is done, keeps all others of its
        // interval out.
        match self.interval {
            Some(interval) => {
                // One that was given up keeps the others out too: the next interval has its own.
                let states = JobState::UNIQUE_DEFAULT.iter().copied().chain([JobState::Discarded]);
                opts.with_unique(UniqueOpts::new().with_by_period(interval).with_by_state(states))
            }
            None => opts,
        }
    }
}

/// A kind of jobs.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name in the database.
    pub kind: &'static str,
    /// How its jobs are run.
    pub options: JobOptions,
    /// What arguments of it look like.
    pub sample: Value,
}

/// All kinds that a worker knows.
#[derive(Debug, Default)]
pub struct Registry {
    entries: Vec<Entry>,
    workers: Workers,
    periodic: Vec<PeriodicJob>,
}

impl Registry {
    /// The jobs of the server. This is the one place that knows them.
    ///
    /// # Errors
    ///
    /// [`Error`] when kinds or options do not fit each other.
    pub fn built_in(pool: &PgPool, config: &Config) -> Result<Self, Error> {
        let mut registry = Self::default();
        maintenance::register(&mut registry, pool, config)?;
        Ok(registry)
    }

    /// Adds a kind. `handler` gets the context of the attempt, whose token is cancelled when it has to end, and the arguments.
    ///
    /// A panic of it is an error of the job like any other. What it says goes nowhere: it can hold anything.
    ///
    /// # Errors
    ///
    /// [`Error`] when there is a kind of this name, or an interval of zero.
    pub fn add<A, E, F>(
        &mut self,
        options: JobOptions,
        handler: impl Fn(WorkContext, A) -> F + Send + Sync + 'static,
    ) -> Result<(), Error>
    where
        A: JobArgs + Default,
        E: Into<BoxError>,
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.workers.add_fn(move |context, job: Job<A>| {
            let handler = handler.clone();
            let span = trace::attempt(&job.row);
            async move {
                let work = async move { handler(context, job.args).await };
                let work = AssertUnwindSafe(work.instrument(span.clone()));
                match work.catch_unwind().await {
                    Ok(Ok(())) => Ok(WorkOutcome::Complete),
                    Ok(Err(error)) => {
                        trace::failed(&span, "failed");
                        Err(error.into())
                    }
                    Err(_) => {
                        trace::failed(&span, "panic");
                        Err(BoxError::from("the job panicked"))
                    }
                }
            }
        })?;
        if let Some(interval) = options.interval {
            self.periodic.push(periodic::<A>(interval, &options)?);
        }
        let sample = serde_json::to_value(A::default())?;
        self.entries.push(Entry { kind: A::KIND, options, sample });
        Ok(())
    }

    /// All kinds, in the order in which they were added.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn into_parts(self) -> (Workers, Vec<PeriodicJob>) {
        (self.workers, self.periodic)
    }
}

fn periodic<A: JobArgs + Default>(interval: Duration, options: &JobOptions) -> Result<PeriodicJob, Error> {
    let insert = options.insert_opts();
    Ok(PeriodicJob::conditional_with_options(
        // More often than it is due, since River does not repeat what it could not insert. What is there already costs nothing.
        IntervalSchedule::new((interval / 4).min(JOBS_OFFER_INTERVAL_MAX))?,
        move || Some((A::default(), insert.clone())),
        PeriodicJobOpts::new().with_id(A::KIND).with_run_on_start(options.run_on_start),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in(config: &Config) -> Registry {
        let pool = sqlx::postgres::PgPoolOptions::new().connect_lazy("postgres://example.com/db").unwrap();
        Registry::built_in(&pool, config).unwrap()
    }

    #[tokio::test]
    async fn these_are_the_jobs_of_the_server() {
        let mut config = Config::default();
        config.sync.partition_maintenance_interval = Duration::from_secs(1234);
        let registry = built_in(&config);
        let table: Vec<_> = registry
            .entries()
            .iter()
            .map(|Entry { kind, options, .. }| {
                (*kind, options.queue, options.interval, options.run_on_start, options.max_attempts)
            })
            .collect();
        let interval = Some(Duration::from_secs(1234));
        assert_eq!(table, [("sync.partition_maintenance", "maintenance", interval, true, 8)]);
        assert_eq!(registry.periodic.len(), 1);
        assert_eq!(registry.workers.kinds(), ["sync.partition_maintenance"]);
    }

    #[tokio::test]
    async fn every_kind_runs_in_a_queue_of_a_worker_and_its_arguments_are_ids_and_numbers() {
        let small = |value: &Value| value.is_i64() || value.as_str().is_some_and(|text| text.len() <= 64);
        for Entry { kind, options, sample } in built_in(&Config::default()).entries() {
            assert!(QUEUES.contains(&options.queue), "{kind}");
            let members = sample.as_object().unwrap_or_else(|| panic!("arguments of {kind} are no object"));
            assert!(members.values().all(small), "{kind}: {sample}");
        }
    }
}
