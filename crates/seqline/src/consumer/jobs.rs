//! The jobs of a round: collected while its events are handled, and written before its cursor moves.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use sqlx::PgTransaction;

use super::name::ConsumerName;
use crate::event::StoredEvent;
use crate::job::{AnyJobSink, InsertedJobs, Job, JobError, JobOrigin, JobSink, NewJob};
use crate::limits::{EVENT_JOBS_MAX, JOBS_STATEMENT_BYTES_MAX, JOBS_STATEMENT_MAX};

/// The jobs that a handler inserts: see [`Round::jobs`](super::Round::jobs).
///
/// They are written in one statement when the events of the round are handled, so they are committed together with the cursor or not at
/// all, and nobody sees one before. Each carries the number, the id and the correlation id of the event that is being handled.
pub struct RoundJobs<'t> {
    outlet: Option<&'t Outlet>,
    origin: Option<JobOrigin>,
    traceparent: Option<String>,
    jobs: Vec<Job>,
    bytes: usize,
    of_event: usize,
}

/// Where the jobs of a consumer go.
pub(super) struct Outlet {
    sink: Box<dyn AnyJobSink>,
    /// The paused queues that were told, so that each is told once.
    paused: Mutex<Vec<String>>,
}

impl<'t> RoundJobs<'t> {
    pub(super) fn new(outlet: Option<&'t Outlet>) -> Self {
        Self { outlet, origin: None, traceparent: None, jobs: Vec::new(), bytes: 0, of_event: 0 }
    }

    /// Adds a job to those of the round. Nothing is written yet: what the queue has against it fails the round. So rolling back to
    /// a savepoint does not take it back.
    ///
    /// # Errors
    ///
    /// [`JobError::Invalid`] when it breaks a rule, [`JobError::TooMany`] beyond [`EVENT_JOBS_MAX`] for one event, and
    /// [`JobError::NoSink`] when the consumer was declared without [`jobs`](super::Consumer::jobs). Nothing was added then.
    pub fn insert(&mut self, job: NewJob) -> Result<(), JobError> {
        if self.outlet.is_none() {
            return Err(JobError::NoSink);
        }
        if self.of_event >= EVENT_JOBS_MAX {
            return Err(JobError::TooMany);
        }
        let job = job.check()?;
        self.bytes += job.bytes();
        self.jobs.push(match self.origin {
            Some(origin) => job.with_origin(origin, self.traceparent.clone()),
            None => job,
        });
        self.of_event += 1;
        Ok(())
    }

    /// From now on jobs are those of this event, and go on with its trace, if that is recorded.
    pub(super) fn begin_event(&mut self, event: &StoredEvent, traceparent: Option<String>) {
        self.origin = Some(JobOrigin::of(event));
        self.traceparent = traceparent;
        self.of_event = 0;
    }

    /// Whether any wait to be written.
    pub(super) fn is_any(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Whether so many wait that they are to be written before the round goes on.
    pub(super) fn is_full(&self) -> bool {
        self.jobs.len() >= JOBS_STATEMENT_MAX || self.bytes >= JOBS_STATEMENT_BYTES_MAX
    }

    /// Writes those that wait, and returns how many of them were inserted.
    pub(super) async fn write(
        &mut self,
        tx: &mut PgTransaction<'_>,
        consumer: &ConsumerName,
    ) -> Result<usize, JobError> {
        let Some(outlet) = self.outlet else { return Ok(0) };
        let jobs = std::mem::take(&mut self.jobs);
        self.bytes = 0;
        let InsertedJobs { inserted, duplicates, paused_queues } = outlet.sink.insert(tx, &jobs).await?;
        if !duplicates.is_empty() {
            tracing::debug!(
                consumer = consumer.as_str(),
                count = duplicates.len(),
                "unique jobs of an event consumer exist already"
            );
        }
        outlet.tell_paused(consumer, &jobs, paused_queues);
        Ok(inserted)
    }
}

impl Outlet {
    pub(super) fn new(sink: impl JobSink) -> Self {
        Self { sink: Box::new(sink), paused: Mutex::default() }
    }

    /// Says when a queue is found paused, and when it no longer is: the jobs are safe there, and nobody works them.
    fn tell_paused(&self, consumer: &ConsumerName, jobs: &[Job], paused: Vec<String>) {
        let consumer = consumer.as_str();
        let mut told = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let any = !told.is_empty();
        // How it is with a queue that got no job is not known.
        told.retain(|told| paused.contains(told) || jobs.iter().all(|job| job.new_job().queue != *told));
        for queue in paused {
            if !told.contains(&queue) {
                tracing::warn!(consumer, queue, "jobs of an event consumer wait in a paused queue");
                told.push(queue);
            }
        }
        if any && told.is_empty() {
            tracing::info!(consumer, "no queue with jobs of an event consumer is paused any more");
        }
    }
}

impl fmt::Debug for RoundJobs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundJobs").field("len", &self.jobs.len()).finish_non_exhaustive()
    }
}
