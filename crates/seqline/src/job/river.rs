//! River, a job queue in PostgreSQL: <https://riverqueue.com>.
//!
//! The rows are those that River's own clients write, so any of them works the jobs, and River's UI shows them. All jobs of a
//! call are one statement, whatever their kinds. Before it one takes the lock on the table, so that River's migrations cannot get in
//! between, and another looks at the version of River's schema, since what another version means by a row is not known, and
//! notifies each queue once; PostgreSQL sends that with the commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use sqlx::{PgConnection, PgTransaction};

use super::error::JobError;
use super::new_job::{Job, JobOrigin, UniqueUntil};
use super::sink::{DuplicateJob, InsertedJobs, JobSink, SinkHealth};
use crate::clock::Clock;
use crate::limits::{JOBS_STATEMENT_MAX, RIVER_SCHEMA_BYTES_MAX};
use crate::store::river::{self, Facts, Row, Statements};

/// The versions of River's schema whose rows are known: from the one that made unique jobs what they are, to the newest that
/// tests were run with.
const VERSIONS: std::ops::RangeInclusive<i64> = 6..=8;

/// The member of a job's metadata with its trace.
pub(super) const TRACEPARENT: &str = "traceparent";

/// Inserts jobs into River's tables.
///
/// River is brought up, and its jobs are worked, by a River client of the application. The role that inserts needs USAGE on the
/// schema, SELECT, INSERT and UPDATE on `river_job`, USAGE on its sequence, and SELECT on `river_migration` and `river_queue`.
///
/// A job that is unique and exists already is left out: see [`InsertedJobs::duplicates`].
#[derive(Debug)]
pub struct River {
    schema: String,
    clock: Clock,
    statements: Statements,
    /// Whether the schema was found to be in order, so that what fails from then on is a change.
    verified: AtomicBool,
}

impl River {
    /// River's tables in this schema, which is `public` unless River's client is told otherwise.
    pub fn in_schema(schema: impl Into<String>) -> Self {
        let schema = schema.into();
        let statements = Statements::new(&schema);
        Self { schema, clock: Clock::system(), statements, verified: AtomicBool::new(false) }
    }

    /// With a clock of the caller's, which says in which period a unique job is inserted.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    async fn write(&self, tx: &mut PgTransaction<'_>, jobs: &[Job]) -> Result<InsertedJobs, JobError> {
        let queues: BTreeSet<&str> = jobs.iter().map(|job| job.new_job().queue.as_str()).collect();
        // Those that run later are made available by River's leader, which notifies then.
        let now: BTreeSet<&str> = jobs
            .iter()
            .map(Job::new_job)
            .filter(|job| job.run_at.is_none())
            .map(|job| job.queue.as_str())
            .collect();
        river::lock(tx, &self.statements).await?;
        let announced = river::announce(tx, &self.statements, &self.schema, &queues, &now).await?;
        self.known_version(announced.version)?;

        let mut result = InsertedJobs { paused_queues: announced.paused_queues, ..Default::default() };
        let (rows, repeated) = self.rows(jobs);
        let mut written = Vec::with_capacity(rows.len());
        for rows in rows.chunks(JOBS_STATEMENT_MAX) {
            written.extend(river::insert(tx, &self.statements, rows).await?);
        }
        if written.len() != rows.len() {
            return Err(JobError::Incomplete { asked: rows.len(), inserted: written.len() });
        }
        for (row, written) in rows.iter().zip(&written) {
            match written.existed {
                false => result.inserted += 1,
                true => result.duplicates.push(DuplicateJob { index: row.index, existing: written.id }),
            }
        }
        // One statement cannot meet the same row twice, so these were never in it.
        result.duplicates.extend(
            repeated.iter().map(|&(index, first)| DuplicateJob { index, existing: written[first].id }),
        );
        result.duplicates.sort_by_key(|duplicate| duplicate.index);
        Ok(result)
    }

    /// The rows of these jobs, and the jobs whose key another one before has: which, and the row of that one.
    fn rows<'a>(&self, jobs: &'a [Job]) -> (Vec<Row<'a>>, Vec<(usize, usize)>) {
        let at = self.clock.now();
        let (mut rows, mut repeated) = (Vec::with_capacity(jobs.len()), Vec::new());
        let mut first_with = HashMap::new();
        for (index, job) in jobs.iter().enumerate() {
            let key = job.unique_key(at);
            if let Some(key) = key {
                let first = *first_with.entry(key).or_insert(rows.len());
                if first < rows.len() {
                    repeated.push((index, first));
                    continue;
                }
            }
            rows.push(Row {
                index,
                job: job.new_job(),
                metadata: metadata(job),
                unique_key: key.map(Vec::from),
                unique_states: job.new_job().unique.map(|unique| states(unique.until)),
            });
        }
        (rows, repeated)
    }

    fn known_version(&self, version: Option<i64>) -> Result<i64, JobError> {
        let schema = self.schema.clone();
        match version {
            None => Err(JobError::UnversionedRiver { schema }),
            Some(found) if found < *VERSIONS.start() => {
                Err(JobError::OldRiver { schema, oldest: *VERSIONS.start() })
            }
            Some(found) if found > *VERSIONS.end() => {
                Err(JobError::NewRiver { schema, found, newest: *VERSIONS.end() })
            }
            Some(found) => Ok(found),
        }
    }

    /// What can be said without touching a table that may not be there or may not be read, which would fail the transaction.
    fn judge(&self, facts: &Facts) -> Result<(), JobError> {
        let schema = || self.schema.clone();
        if self.schema.len() > RIVER_SCHEMA_BYTES_MAX {
            return Err(JobError::SchemaName { schema: schema() });
        }
        if !facts.has_jobs {
            return Err(JobError::NoRiver { schema: schema(), found_in: facts.found_in.clone() });
        }
        if !facts.has_migrations {
            return Err(JobError::UnversionedRiver { schema: schema() });
        }
        if !facts.has_lines {
            // They came with version 5.
            return Err(JobError::OldRiver { schema: schema(), oldest: *VERSIONS.start() });
        }
        if !facts.may_insert {
            return Err(JobError::Privileges { role: facts.role.clone(), schema: schema() });
        }
        Ok(())
    }
}

impl JobSink for River {
    async fn insert(&self, tx: &mut PgTransaction<'_>, jobs: &[Job]) -> Result<InsertedJobs, JobError> {
        if jobs.is_empty() {
            return Ok(InsertedJobs::default());
        }
        if !self.verified.load(Ordering::Relaxed) {
            self.judge(&river::facts(tx, &self.schema).await?)?;
        }
        let result = self.write(tx, jobs).await;
        // After a failure the next call finds out what is wrong, and can say it.
        self.verified.store(result.is_ok(), Ordering::Relaxed);
        result
    }

    async fn health(&self, connection: &mut PgConnection) -> Result<SinkHealth, JobError> {
        let facts = river::facts(connection, &self.schema).await?;
        self.judge(&facts)?;
        let state = river::state(connection, &self.statements).await?;
        let version = self.known_version(state.version)?;
        Ok(SinkHealth { version: Some(version), paused_queues: state.paused_queues })
    }
}

fn metadata(job: &Job) -> String {
    let metadata = job.origin().map(|origin| metadata_of(origin, job.traceparent()));
    Value::Object(metadata.unwrap_or_default()).to_string()
}

/// What a job says about its event, where River keeps what is not its own. The keys are those by which a job is found:
/// `metadata @> '{"seqline:seq": 17}'`. That of the trace has the name of the header, which is what propagators look for.
pub(super) fn metadata_of(origin: JobOrigin, traceparent: Option<&str>) -> Map<String, Value> {
    let JobOrigin { seq, event_id, correlation_id } = origin;
    let mut metadata = Map::new();
    metadata.insert("seqline:seq".to_owned(), seq.into());
    metadata.insert("seqline:event_id".to_owned(), event_id.to_string().into());
    if let Some(id) = correlation_id {
        metadata.insert("seqline:correlation_id".to_owned(), id.to_string().into());
    }
    if let Some(traceparent) = traceparent {
        metadata.insert(TRACEPARENT.to_owned(), traceparent.into());
    }
    metadata
}

/// The states of a job in which it stands in the way of another, as River's bits.
fn states(until: UniqueUntil) -> i32 {
    const AVAILABLE: i32 = 1;
    const COMPLETED: i32 = 1 << 2;
    const PENDING: i32 = 1 << 4;
    const RETRYABLE: i32 = 1 << 5;
    const RUNNING: i32 = 1 << 6;
    const SCHEDULED: i32 = 1 << 7;
    let unfinished = AVAILABLE | PENDING | RETRYABLE | RUNNING | SCHEDULED;
    match until {
        UniqueUntil::Completed => unfinished,
        UniqueUntil::Deleted => unfinished | COMPLETED,
    }
}
