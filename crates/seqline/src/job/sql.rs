//! Any job queue that a statement can insert into.

use serde::Serialize;
use sqlx::{PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::args::JobArgs;
use super::error::JobError;
use super::new_job::{Job, UniqueUntil};
use super::sink::{InsertedJobs, JobSink, SinkHealth};
use crate::clock::Clock;
use crate::store;

/// Hands jobs to a statement of the application's, all jobs of a call at once.
///
/// The statement has one parameter, `$1` of type `jsonb`: an array of objects in the order in which the jobs were inserted, with the members
/// `kind`, `args`, `queue`, `priority`, `max_attempts`, `tags`, and where they apply `run_at` (RFC 3339), `unique_key` (hexadecimal, equal for
/// jobs that are the same job), `unique_until` (`deleted` or `completed`, see [`UniqueUntil`]) and `seq`, `event_id` and `correlation_id` of the event and the
/// `traceparent` of its span ([`Job::traceparent`]). What it returns is not read. Leaving out a job
/// that exists is up to the statement.
///
/// ```
/// use seqline::job::SqlSink;
///
/// let sink = SqlSink::new("SELECT my_enqueue($1)");
/// # drop(sink);
/// ```
#[derive(Debug)]
pub struct SqlSink {
    statement: String,
    clock: Clock,
}

#[derive(Serialize)]
struct Body<'a> {
    kind: &'a str,
    args: &'a JobArgs,
    queue: &'a str,
    priority: i16,
    max_attempts: i16,
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none", with = "time::serde::rfc3339::option")]
    run_at: Option<OffsetDateTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_until: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
}

impl SqlSink {
    /// This statement is run for the jobs of a call, or of a round. It is the application's, and never made of what came from
    /// elsewhere.
    pub fn new(statement: impl Into<String>) -> Self {
        Self { statement: statement.into(), clock: Clock::system() }
    }

    /// With a clock of the caller's, which says in which period a unique job is inserted.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// PostgreSQL does not mind a parameter that a statement does not use, and the jobs would be lost. In quotes or in a comment it is
    /// none either, which [`health`](JobSink::health) finds out.
    fn check(&self) -> Result<(), JobError> {
        if self.statement.contains("$1") { Ok(()) } else { Err(JobError::Statement) }
    }
}

impl JobSink for SqlSink {
    async fn insert(&self, tx: &mut PgTransaction<'_>, jobs: &[Job]) -> Result<InsertedJobs, JobError> {
        if jobs.is_empty() {
            return Ok(InsertedJobs::default());
        }
        self.check()?;
        let now = self.clock.now();
        let bodies: Vec<Body<'_>> = jobs.iter().map(|job| body(job, now)).collect();
        store::jobs::hand_over(tx, &self.statement, &bodies).await?;
        Ok(InsertedJobs { inserted: jobs.len(), ..InsertedJobs::default() })
    }

    async fn health(&self, connection: &mut PgConnection) -> Result<SinkHealth, JobError> {
        self.check()?;
        match store::jobs::prepare(connection, &self.statement).await? {
            1 => Ok(SinkHealth::default()),
            _ => Err(JobError::Statement),
        }
    }
}

fn body(job: &Job, now: OffsetDateTime) -> Body<'_> {
    let (new, origin) = (job.new_job(), job.origin());
    let hexadecimal = |key: [u8; 32]| key.iter().map(|byte| format!("{byte:02x}")).collect();
    Body {
        kind: &new.kind,
        args: &new.args,
        queue: &new.queue,
        priority: new.priority,
        max_attempts: new.max_attempts,
        tags: &new.tags,
        run_at: new.run_at,
        unique_key: job.unique_key(now).map(hexadecimal),
        unique_until: new.unique.map(|unique| match unique.until {
            UniqueUntil::Deleted => "deleted",
            UniqueUntil::Completed => "completed",
        }),
        seq: origin.map(|origin| origin.seq),
        event_id: origin.map(|origin| origin.event_id),
        correlation_id: origin.and_then(|origin| origin.correlation_id),
        traceparent: job.traceparent(),
    }
}
