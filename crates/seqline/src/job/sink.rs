//! Where jobs go.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::{PgConnection, PgTransaction};

use super::error::JobError;
use super::new_job::Job;

/// A job queue whose jobs are rows of this database.
///
/// [`River`](super::River) is one, [`SqlSink`](super::SqlSink) makes one of any statement. A consumer is declared with it, and a
/// handler then calls [`Round::jobs`](crate::consumer::Round::jobs); a program with a transaction of its own calls
/// [`insert`](Self::insert).
///
/// ```no_run
/// use seqline::job::{Job, JobArgs, JobSink, NewJob, River};
///
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let river = River::in_schema("public");
/// let mut tx = seqline::begin(&pool).await?;
/// let job = NewJob::new("invoice.send", JobArgs::new().with("order_id", "a-4711")).check()?;
/// river.insert(&mut tx, &[job]).await?;
/// seqline::commit(tx).await?;
/// # Ok(())
/// # }
/// ```
pub trait JobSink: Send + Sync + 'static {
    /// Inserts all jobs in the transaction, or none: they are there when it is committed, and never were when it is rolled back.
    ///
    /// A round gives it as long as a statement may take, see
    /// [`statement_timeout`](crate::consumer::ConsumerConfig::statement_timeout). Not cancel safe: after a dropped future the
    /// transaction has to be rolled back.
    ///
    /// # Errors
    ///
    /// [`JobError`], whose cases say in which state the transaction is. A sink of your own says what is its own with
    /// [`JobError::Sink`], and what the database said with [`JobError::Database`].
    fn insert(
        &self,
        tx: &mut PgTransaction<'_>,
        jobs: &[Job],
    ) -> impl Future<Output = Result<InsertedJobs, JobError>> + Send;

    /// Whether jobs could be inserted now. It changes nothing.
    ///
    /// # Errors
    ///
    /// [`JobError`], with the sentence that says what to do.
    fn health(
        &self,
        connection: &mut PgConnection,
    ) -> impl Future<Output = Result<SinkHealth, JobError>> + Send;
}

/// For whoever keeps the sink to ask for its health, or gives it to several consumers.
impl<S: JobSink> JobSink for Arc<S> {
    async fn insert(&self, tx: &mut PgTransaction<'_>, jobs: &[Job]) -> Result<InsertedJobs, JobError> {
        S::insert(self, tx, jobs).await
    }

    async fn health(&self, connection: &mut PgConnection) -> Result<SinkHealth, JobError> {
        S::health(self, connection).await
    }
}

/// What became of jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InsertedJobs {
    /// How many were inserted.
    pub inserted: usize,
    /// Those that were left out because they are unique and there is one already, in the queue or earlier in the same call.
    pub duplicates: Vec<DuplicateJob>,
    /// Queues of these jobs that nobody works because they are paused.
    pub paused_queues: Vec<String>,
}

/// A job that was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuplicateJob {
    /// Which one, by its place in the call.
    pub index: usize,
    /// The id of the job that is there instead.
    pub existing: i64,
}

/// What a sink says about its queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SinkHealth {
    /// The version of the queue's schema, where it has one.
    pub version: Option<i64>,
    /// Queues that are paused, at most [`PAUSED_QUEUES_MAX`](crate::limits::PAUSED_QUEUES_MAX).
    pub paused_queues: Vec<String>,
}

/// A sink of any type.
pub(crate) trait AnyJobSink: Send + Sync {
    fn insert<'a>(
        &'a self,
        tx: &'a mut PgTransaction<'_>,
        jobs: &'a [Job],
    ) -> BoxFuture<'a, Result<InsertedJobs, JobError>>;
}

impl<S: JobSink> AnyJobSink for S {
    fn insert<'a>(
        &'a self,
        tx: &'a mut PgTransaction<'_>,
        jobs: &'a [Job],
    ) -> BoxFuture<'a, Result<InsertedJobs, JobError>> {
        Box::pin(JobSink::insert(self, tx, jobs))
    }
}
