//! Consumers: where they stand, and what somebody does to them.

mod lanes;
mod moves;

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Change, Operator, limit};
use crate::api::{Door, JsonBody, NamedParams, PathParams, Problem};
use crate::limits::CONSUMERS_LIST_MAX;
use crate::operate::consumers::{self, Acknowledged, Pause, Report, Retirement, Row};

pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(retire))
        .routes(routes!(acknowledge))
        .routes(routes!(moves::rewind))
        .routes(routes!(moves::skip))
        .routes(routes!(moves::replay))
        .routes(routes!(lanes::divide))
}

/// Which consumers.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ConsumerParams {
    /// Also those that were retired.
    #[serde(default)]
    #[param(required = false)]
    all: bool,
    /// Where the page before ended: its `next`.
    #[param(nullable = false)]
    after: Option<String>,
    /// How many at most.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Consumers, by name.
#[derive(Debug, Serialize, ToSchema)]
struct ConsumerPage {
    /// By name.
    consumers: Vec<Row>,
    /// Pass it as `after` to get the next ones; missing when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "order_totals")]
    next: Option<String>,
}

/// Consumers
///
/// Where each stands and how it is.
#[utoipa::path(
    get,
    path = "/v1/consumers",
    operation_id = "list_consumers",
    tag = "operators",
    security(("token" = [])),
    params(ConsumerParams),
    responses((status = 200, description = "Consumers.", body = ConsumerPage))
)]
async fn list(
    operator: Operator,
    NamedParams(params): NamedParams<ConsumerParams>,
) -> Result<Json<ConsumerPage>, Problem> {
    let limit = limit(params.limit, CONSUMERS_LIST_MAX)?;
    let mut found = operator.look(async |work| consumers::list(work, params.all).await).await?;
    found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    found.retain(|consumer| params.after.as_deref().is_none_or(|after| consumer.name.as_str() > after));
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next = found.last().filter(|_| more).map(|consumer| consumer.name.clone());
    Ok(Json(ConsumerPage { consumers: Row::all(found, operator.api.clock.now()), next }))
}

/// A consumer
///
/// Everything about it: lanes, errors, losses, what was done to it.
#[utoipa::path(
    get,
    path = "/v1/consumers/{name}",
    operation_id = "get_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The consumer.", body = Report))
)]
async fn show(operator: Operator, PathParams(name): PathParams<String>) -> Result<Json<Report>, Problem> {
    let found = operator.look(async |work| consumers::show(work, &name).await).await?;
    Ok(Json(Report::of(found, operator.api.clock.now())))
}

/// Pause a consumer
///
/// No round of it begins, on all workers and for `seqline.poll`. It waits for a round that is under way.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/pause",
    operation_id = "pause_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = Change,
    responses((status = 200, description = "What was done, or would be.", body = Pause))
)]
async fn pause(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(change): JsonBody<Change>,
) -> Result<Json<Pause>, Problem> {
    let mode = change.mode()?;
    let done = operator.act(async |work| consumers::pause(work, &name, mode).await);
    Ok(Json(done.await?))
}

/// Resume a consumer
///
/// One that was paused or retired goes on where it stands.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/resume",
    operation_id = "resume_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = Change,
    responses((status = 200, description = "What was done, or would be.", body = Pause))
)]
async fn resume(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(change): JsonBody<Change>,
) -> Result<Json<Pause>, Problem> {
    let mode = change.mode()?;
    let done = operator.act(async |work| consumers::resume(work, &name, mode).await);
    Ok(Json(done.await?))
}

/// Retire a consumer
///
/// It is out of use: no round of it begins, and retention does not wait for it. Resuming brings it back.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/retire",
    operation_id = "retire_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = Change,
    responses((status = 200, description = "What was done, or would be.", body = Retirement))
)]
async fn retire(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(change): JsonBody<Change>,
) -> Result<Json<Retirement>, Problem> {
    let mode = change.mode()?;
    let done = operator.act(async |work| consumers::retire(work, &name, mode).await);
    Ok(Json(done.await?))
}

/// Acknowledge what a consumer has lost
///
/// Says that somebody knows what it has lost to retention, so that it is not shown any more.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/acknowledge",
    operation_id = "acknowledge_losses",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = Change,
    responses((status = 200, description = "What was done, or would be.", body = Acknowledged))
)]
async fn acknowledge(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(change): JsonBody<Change>,
) -> Result<Json<Acknowledged>, Problem> {
    let mode = change.mode()?;
    let done = operator.act(async |work| consumers::acknowledge(work, &name, mode).await);
    Ok(Json(done.await?))
}
