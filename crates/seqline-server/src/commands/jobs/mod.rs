//! `seqline jobs`: the server's own jobs, while workers run them elsewhere.

mod view;

use riverqueue::{Client, Error, JobListParams, JobRow, JobState, SortDirection};
use seqline::DatabaseError;
use sqlx::PgPool;

use self::view::Row;
use super::configuration;
use crate::cli::{DatabaseArgs, JobsAction, JobsArgs, JobsListArgs};
use crate::failure::Failure;
use crate::{connect, jobs, output, store};

pub(crate) async fn run(database: &DatabaseArgs, args: JobsArgs) -> Result<(), Failure> {
    let schema = configuration(&args.config)?.jobs.schema;
    let pool = connect::pool(&connect::options(database)?, 1).await?;
    let mut connection = pool.acquire().await.map_err(DatabaseError::from)?;
    jobs::schema::check(&mut connection, &schema).await?;
    drop(connection);
    let client = Client::builder(jobs::runtime::database(pool.clone(), &schema)?);
    let client = client.build().map_err(|error| Failure::Unexpected(error.to_string()))?;
    match args.action {
        JobsAction::List(filter) => list(&client, filter, args.json).await,
        JobsAction::Show { id } => show(&client, id, args.json).await,
        JobsAction::Retry { id } => retry(&client, id, args.json).await,
        JobsAction::Discard { id } => discard(&client, &pool, &schema, id, args.json).await,
    }
}

async fn list(client: &Client, filter: JobsListArgs, json: bool) -> Result<(), Failure> {
    let params = JobListParams::default()
        .direction(SortDirection::Descending)
        .limit(filter.limit)
        .states(filter.state)
        .kinds(filter.kind)
        .queues(filter.queue);
    let rows = client.jobs().list(params).await.map_err(|error| failed(error, 0))?.jobs;
    if json {
        return output::json(&rows.iter().map(Row::of).collect::<Vec<_>>());
    }
    if rows.is_empty() {
        eprintln!("seqline: no jobs found");
        return Ok(());
    }
    view::table(&rows)
}

async fn show(client: &Client, id: i64, json: bool) -> Result<(), Failure> {
    let job = client.jobs().get(id).await.map_err(|error| failed(error, id))?;
    if json { output::json(&Row::of(&job)) } else { view::details(&job) }
}

async fn retry(client: &Client, id: i64, json: bool) -> Result<(), Failure> {
    let job = client.jobs().retry(id).await.map_err(|error| failed(error, id))?;
    if job.state == JobState::Running {
        return Err(Failure::Refused(format!(
            "job {id} is running: it is tried again by itself if it fails"
        )));
    }
    let said = format!("job {id} is available now, for attempt {} of {}", job.attempt + 1, job.max_attempts);
    say(&job, said, json)
}

async fn discard(client: &Client, pool: &PgPool, schema: &str, id: i64, json: bool) -> Result<(), Failure> {
    let schema = jobs::schema::schema_name(schema)?;
    let mut connection = pool.acquire().await.map_err(DatabaseError::from)?;
    let before = store::jobs::discard(&mut connection, &schema, id).await.map_err(DatabaseError::from)?;
    drop(connection);
    let job = client.jobs().get(id).await.map_err(|error| failed(error, id))?;
    match before.as_deref() {
        Some("available" | "scheduled" | "retryable" | "pending") => {
            say(&job, format!("job {id} is discarded"), json)
        }
        Some("discarded") => say(&job, format!("job {id} was discarded before"), json),
        Some(state) => {
            Err(Failure::Refused(format!("job {id} is {state}: only one that waits can be discarded")))
        }
        None => Err(unknown(id)),
    }
}

fn say(job: &JobRow, text: String, json: bool) -> Result<(), Failure> {
    if json { output::json(&Row::of(job)) } else { output::line(text) }
}

fn failed(error: Error, id: i64) -> Failure {
    const UNIQUE_VIOLATION: &str = "23505";
    match error {
        Error::NotFound(_) => unknown(id),
        Error::Database(error) => match DatabaseError::from(error) {
            error if error.sqlstate() == Some(UNIQUE_VIOLATION) => Failure::Refused(format!(
                "job {id} is not needed any more: another one of its kind is there for the same interval"
            )),
            error => error.into(),
        },
        error => Failure::Unexpected(error.to_string()),
    }
}

fn unknown(id: i64) -> Failure {
    Failure::Refused(format!("there is no job {id}"))
}
