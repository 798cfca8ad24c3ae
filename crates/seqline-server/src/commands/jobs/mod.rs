//! `seqline jobs`: the server's own jobs, while workers run them elsewhere.

mod view;

use riverqueue::JobRow;
use seqline::DatabaseError;
use sqlx::PgTransaction;

use super::configuration;
use crate::cli::{DatabaseArgs, JobChange, JobsAction, JobsArgs, JobsListArgs};
use crate::failure::Failure;
use crate::operate::jobs::{Jobs, Row, Wanted};
use crate::{connect, output};

pub(crate) async fn run(database: &DatabaseArgs, args: JobsArgs) -> Result<(), Failure> {
    let schema = configuration(&args.config)?.jobs.schema;
    let pool = connect::pool(&connect::options(database)?, 1).await?;
    let mut transaction = seqline::begin(&pool).await?;
    let jobs = Jobs::open(&mut transaction, &pool, &schema).await?;
    match args.action {
        JobsAction::List(filter) => list(&jobs, transaction, filter, args.json).await,
        JobsAction::Show { id } => show(&jobs, transaction, id, args.json).await,
        JobsAction::Retry(change) => retry(&jobs, transaction, &change, args.json).await,
        JobsAction::Discard(change) => discard(&jobs, transaction, &change, args.json).await,
    }
}

async fn list(
    jobs: &Jobs,
    mut transaction: PgTransaction<'_>,
    filter: JobsListArgs,
    json: bool,
) -> Result<(), Failure> {
    let JobsListArgs { state, kind, queue, limit } = filter;
    let (rows, _) = jobs.list(&mut transaction, Wanted { state, kind, queue, before: None, limit }).await?;
    if json {
        return output::json(&rows.iter().map(Row::of).collect::<Vec<_>>());
    }
    if rows.is_empty() {
        eprintln!("seqline: no jobs found");
        return Ok(());
    }
    view::table(&rows)
}

async fn show(jobs: &Jobs, mut transaction: PgTransaction<'_>, id: i64, json: bool) -> Result<(), Failure> {
    let job = jobs.show(&mut transaction, id).await?;
    if json { output::json(&Row::of(&job)) } else { view::details(&job) }
}

async fn retry(
    jobs: &Jobs,
    mut transaction: PgTransaction<'_>,
    change: &JobChange,
    json: bool,
) -> Result<(), Failure> {
    let id = change.id;
    let job = jobs.retry(&mut transaction, id, change.reason.as_deref()).await?;
    transaction.commit().await.map_err(DatabaseError::from)?;
    let said = format!("job {id} is available now, for attempt {} of {}", job.attempt + 1, job.max_attempts);
    say(&job, said, json)
}

async fn discard(
    jobs: &Jobs,
    mut transaction: PgTransaction<'_>,
    change: &JobChange,
    json: bool,
) -> Result<(), Failure> {
    let id = change.id;
    let (job, changed) = jobs.discard(&mut transaction, id, change.reason.as_deref()).await?;
    transaction.commit().await.map_err(DatabaseError::from)?;
    let was = if changed { "is discarded" } else { "was discarded before" };
    say(&job, format!("job {id} {was}"), json)
}

fn say(job: &JobRow, text: String, json: bool) -> Result<(), Failure> {
    if json { output::json(&Row::of(job)) } else { output::line(text) }
}
