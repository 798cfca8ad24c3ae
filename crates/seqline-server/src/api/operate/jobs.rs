//! The server's own jobs.

use axum::Json;
use riverqueue::JobState;
use serde::{Deserialize, Serialize};
use sqlx::PgTransaction;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, after, checked_reason, checked_text, limit};
use crate::api::body::wrong_param;
use crate::api::{Door, JsonBody, NamedParams, PathParams, Problem};
use crate::limits::JOBS_LIST_MAX;
use crate::operate::Refusal;
use crate::operate::jobs::{Jobs, Row, Wanted};

pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(discard))
}

impl Operator {
    async fn jobs(&self, transaction: &mut PgTransaction<'_>) -> Result<Jobs, Refusal> {
        Jobs::open(transaction, &self.api.pool, &self.api.config.jobs.schema).await
    }
}

/// Which jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobParams {
    /// Only those in this state: `available`, `cancelled`, `completed`, `discarded`, `pending`, `retryable`, `running` or `scheduled`.
    #[param(nullable = false)]
    state: Option<String>,
    /// Only those of this kind.
    #[param(nullable = false)]
    kind: Option<String>,
    /// Only those of this queue.
    #[param(nullable = false)]
    queue: Option<String>,
    /// Where the page before ended: its `next`.
    #[param(nullable = false)]
    after: Option<String>,
    /// How many at most.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Jobs, the newest first.
#[derive(Debug, Serialize, ToSchema)]
struct JobPage {
    /// The newest first.
    jobs: Vec<Row>,
    /// Pass it as `after` to get older ones; missing when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "1041")]
    next: Option<String>,
}

/// The server's own jobs
///
/// The newest first, with the error of each attempt that failed.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    operation_id = "list_jobs",
    tag = "operators",
    security(("token" = [])),
    params(JobParams),
    responses((status = 200, description = "Jobs.", body = JobPage))
)]
async fn list(
    operator: Operator,
    NamedParams(params): NamedParams<JobParams>,
) -> Result<Json<JobPage>, Problem> {
    let state = params.state.as_deref().map(JobState::try_from).transpose();
    let state = state.map_err(|_| {
        let all: Vec<&str> = JobState::ALL.iter().map(|state| state.as_str()).collect();
        wrong_param("state", format!("expected one of {}", all.join(", ")))
    })?;
    let wanted = Wanted {
        state,
        kind: checked_text("kind", params.kind)?,
        queue: checked_text("queue", params.queue)?,
        before: after(params.after.as_deref())?,
        limit: limit(params.limit, JOBS_LIST_MAX)?,
    };
    let found = operator.look(async |work| operator.jobs(work).await?.list(work, wanted).await);
    let (rows, more) = found.await?;
    let next = rows.last().filter(|_| more).map(|job| job.id.to_string());
    Ok(Json(JobPage { jobs: rows.iter().map(Row::of).collect(), next }))
}

/// A job
///
/// With the error of each of its attempts.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    operation_id = "get_job",
    tag = "operators",
    security(("token" = [])),
    params(("id" = i64, Path, description = "Its number.")),
    responses((status = 200, description = "The job.", body = Row))
)]
async fn show(operator: Operator, PathParams(id): PathParams<i64>) -> Result<Json<Row>, Problem> {
    let found = operator.look(async |work| operator.jobs(work).await?.show(work, id).await);
    Ok(Json(Row::of(&found.await?)))
}

/// Why a job is changed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JobChange {
    /// Why, for the audit log: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "the disk has room again")]
    reason: Option<String>,
}

/// Try a job again
///
/// Makes a job that does not run available now; one that has used up its attempts gets another.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/retry",
    operation_id = "retry_job",
    tag = "operators",
    security(("token" = [])),
    params(("id" = i64, Path, description = "Its number.")),
    request_body = JobChange,
    responses((status = 200, description = "The job, as it is now.", body = Row))
)]
async fn retry(
    operator: Operator,
    PathParams(id): PathParams<i64>,
    JsonBody(body): JsonBody<JobChange>,
) -> Result<Json<Row>, Problem> {
    let why = checked_reason(body.reason.as_deref())?;
    let done = operator.act(async |work| operator.jobs(work).await?.retry(work, id, why).await);
    Ok(Json(Row::of(&done.await?)))
}

/// Discard a job
///
/// One that waits. It is kept to be looked at.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/discard",
    operation_id = "discard_job",
    tag = "operators",
    security(("token" = [])),
    params(("id" = i64, Path, description = "Its number.")),
    request_body = JobChange,
    responses((status = 200, description = "The job, as it is now.", body = Row))
)]
async fn discard(
    operator: Operator,
    PathParams(id): PathParams<i64>,
    JsonBody(body): JsonBody<JobChange>,
) -> Result<Json<Row>, Problem> {
    let why = checked_reason(body.reason.as_deref())?;
    let done = operator.act(async |work| operator.jobs(work).await?.discard(work, id, why).await);
    let (job, _) = done.await?;
    Ok(Json(Row::of(&job)))
}
