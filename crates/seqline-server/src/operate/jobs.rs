//! The server's own jobs, while workers run them.

use riverqueue::{Client, Error, JobListParams, JobRow, JobState, SortDirection};
use seqline::DatabaseError;
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{PgConnection, PgPool, PgTransaction};
use utoipa::ToSchema;

use super::Refusal;
use crate::failure::Failure;
use crate::sqlstate;
use crate::{jobs, store};

/// A job.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct Row {
    /// Its number.
    pub(crate) id: i64,
    /// What it does now.
    state: &'static str,
    /// What it is for.
    kind: String,
    /// Who takes it.
    queue: String,
    /// Ids and numbers that say what it is about.
    #[schema(value_type = Object)]
    args: Box<RawValue>,
    /// How often it was tried.
    attempt: i32,
    /// How often it is tried at most.
    max_attempts: i32,
    /// When it was made.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it is due.
    #[schema(format = DateTime)]
    scheduled_at: String,
    /// When it was tried last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    attempted_at: Option<String>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    finalized_at: Option<String>,
    /// Who has tried it.
    attempted_by: Vec<String>,
    /// With what each failed attempt ended.
    errors: Vec<Failed>,
}

/// An attempt of a job that failed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobFailure)]
struct Failed {
    /// Which one it was, from 1.
    attempt: i32,
    /// When it began.
    #[schema(format = DateTime)]
    at: String,
    /// With what it ended.
    error: String,
}

impl Row {
    pub(crate) fn of(job: &JobRow) -> Self {
        let errors = job.errors.iter().map(|failed| Failed {
            attempt: failed.attempt,
            at: failed.at.to_string(),
            error: failed.error.clone(),
        });
        Self {
            id: job.id,
            state: job.state.as_str(),
            kind: job.kind.clone(),
            queue: job.queue.clone(),
            args: job.encoded_args.clone(),
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            created_at: job.created_at.to_string(),
            scheduled_at: job.scheduled_at.to_string(),
            attempted_at: job.attempted_at.map(|at| at.to_string()),
            finalized_at: job.finalized_at.map(|at| at.to_string()),
            attempted_by: job.attempted_by.clone(),
            errors: errors.collect(),
        }
    }
}

/// Which jobs are listed.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) state: Option<JobState>,
    pub(crate) kind: Option<String>,
    pub(crate) queue: Option<String>,
    /// Only older ones than this.
    pub(crate) before: Option<i64>,
    pub(crate) limit: u32,
}

/// Where the jobs are.
pub(crate) struct Jobs {
    client: Client,
    schema: String,
}

impl Jobs {
    /// Refused when there is no such schema, or one of another version.
    ///
    /// Whatever is asked is asked in a transaction: nothing here takes a connection of the pool.
    pub(crate) async fn open(
        connection: &mut PgConnection,
        pool: &PgPool,
        schema: &str,
    ) -> Result<Self, Refusal> {
        jobs::schema::check(connection, schema).await?;
        let client = Client::builder(jobs::runtime::database(pool.clone(), schema)?).build();
        let client = client.map_err(|error| Failure::Unexpected(error.to_string()))?;
        Ok(Self { client, schema: schema.to_owned() })
    }

    /// The newest first, and whether there are more.
    pub(crate) async fn list(
        &self,
        transaction: &mut PgTransaction<'_>,
        wanted: Wanted,
    ) -> Result<(Vec<JobRow>, bool), Refusal> {
        let params = JobListParams::default()
            .direction(SortDirection::Descending)
            .limit(wanted.limit + 1)
            .states(wanted.state)
            .kinds(wanted.kind)
            .queues(wanted.queue);
        let params = match wanted.before {
            Some(id) => params.after_id(id),
            None => params,
        };
        let found = self.client.jobs().list(params).tx(transaction).await;
        let mut rows = found.map_err(|error| refused(error, 0))?.jobs;
        let more = rows.len() > wanted.limit as usize;
        rows.truncate(wanted.limit as usize);
        Ok((rows, more))
    }

    pub(crate) async fn show(&self, transaction: &mut PgTransaction<'_>, id: i64) -> Result<JobRow, Refusal> {
        self.client.jobs().get(id).tx(transaction).await.map_err(|error| refused(error, id))
    }

    /// Makes a job available that does not run. With its row in the audit log, when the transaction is committed.
    pub(crate) async fn retry(
        &self,
        transaction: &mut PgTransaction<'_>,
        id: i64,
        why: Option<&str>,
    ) -> Result<JobRow, Refusal> {
        let before = self.lock(transaction, id).await?;
        let retried = self.client.jobs().retry(id).tx(&mut *transaction).await;
        let job = retried.map_err(|error| refused(error, id))?;
        if job.state == JobState::Running {
            return Err(Refusal::Conflict(format!(
                "job {id} is running: it is tried again by itself if it fails"
            )));
        }
        self.note(transaction, "job.retry", &before, &job, why).await?;
        Ok(job)
    }

    /// Discards a job that waits, and says whether that is new. With its row in the audit log, when the transaction is committed.
    pub(crate) async fn discard(
        &self,
        transaction: &mut PgTransaction<'_>,
        id: i64,
        why: Option<&str>,
    ) -> Result<(JobRow, bool), Refusal> {
        let before = self.lock(transaction, id).await?;
        let changed = match before.as_str() {
            "available" | "scheduled" | "retryable" | "pending" => true,
            "discarded" => false,
            state => {
                return Err(Refusal::Conflict(format!(
                    "job {id} is {state}: only one that waits can be discarded"
                )));
            }
        };
        if changed {
            let schema = jobs::schema::schema_name(&self.schema)?;
            store::jobs::discard(transaction, &schema, id).await.map_err(DatabaseError::from)?;
        }
        let job = self.client.jobs().get(id).tx(&mut *transaction).await;
        let job = job.map_err(|error| refused(error, id))?;
        if changed {
            self.note(transaction, "job.discard", &before, &job, why).await?;
        }
        Ok((job, changed))
    }

    /// The state of a job, which nobody changes until the end of the transaction.
    async fn lock(&self, transaction: &mut PgTransaction<'_>, id: i64) -> Result<String, Refusal> {
        let schema = jobs::schema::schema_name(&self.schema)?;
        let state = store::jobs::lock(transaction, &schema, id).await.map_err(DatabaseError::from)?;
        state.ok_or_else(|| unknown(id))
    }

    async fn note(
        &self,
        transaction: &mut PgTransaction<'_>,
        action: &str,
        before: &str,
        job: &JobRow,
        why: Option<&str>,
    ) -> Result<(), Refusal> {
        let states = (before, job.state.as_str());
        let noted = store::jobs::note(transaction, action, job.id, states, why).await;
        noted.map_err(|error| Refusal::of(error.into(), ""))
    }
}

fn refused(error: Error, id: i64) -> Refusal {
    match error {
        Error::NotFound(_) => unknown(id),
        Error::Database(error) => match DatabaseError::from(error) {
            error if error.sqlstate() == Some(sqlstate::UNIQUE_VIOLATION) => Refusal::Conflict(format!(
                "job {id} is not needed any more: another one of its kind is there for the same interval"
            )),
            error => error.into(),
        },
        error => Failure::Unexpected(error.to_string()).into(),
    }
}

fn unknown(id: i64) -> Refusal {
    Refusal::Unknown(format!("there is no job {id}"))
}
