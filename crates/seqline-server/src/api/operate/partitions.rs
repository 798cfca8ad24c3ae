//! Partitions of the log.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, PageParams, after, limit};
use crate::api::{Door, NamedParams, Problem};
use crate::limits::PARTITIONS_LIST_MAX;
use crate::operate::partitions::{self, Done, Row};

pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(ensure))
}

/// Partitions, the oldest first.
#[derive(Debug, Serialize, ToSchema)]
struct PartitionPage {
    /// The oldest first.
    partitions: Vec<Row>,
    /// Pass it as `after` to get the next ones; missing when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "1000001")]
    next: Option<String>,
}

/// Partitions of the log
///
/// What each is for, how many events it holds, and which consumers have not passed it.
#[utoipa::path(
    get,
    path = "/v1/partitions",
    operation_id = "list_partitions",
    tag = "operators",
    security(("token" = [])),
    params(PageParams),
    responses((status = 200, description = "The partitions.", body = PartitionPage))
)]
async fn list(
    operator: Operator,
    NamedParams(page): NamedParams<PageParams>,
) -> Result<Json<PartitionPage>, Problem> {
    let (after, limit) = (after(page.after.as_deref())?, limit(page.limit, PARTITIONS_LIST_MAX)?);
    let found = operator.look(async |work| partitions::list(work).await);
    let mut rows: Vec<Row> = found.await?.into_iter().map(|(row, _)| row).collect();
    rows.retain(|row| after.is_none_or(|after| row.lower_bound > after));
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| more).map(|row| row.lower_bound.to_string());
    Ok(Json(PartitionPage { partitions: rows, next }))
}

/// Create missing partitions
///
/// Those that are missing ahead of the head. Servers do this by themselves from time to time; this does it now.
#[utoipa::path(
    post,
    path = "/v1/partitions/ensure",
    operation_id = "ensure_partitions",
    tag = "operators",
    security(("token" = [])),
    responses((status = 200, description = "What was done.", body = Done))
)]
async fn ensure(operator: Operator) -> Result<Json<Done>, Problem> {
    let _place = operator.place().await?;
    let config = &operator.api.config;
    let made = Box::pin(partitions::ensure(operator.api.pool.clone(), config.maintenance()));
    let made = operator.api.clock.timeout(operator.limit(), made).await;
    let report = made.ok_or_else(|| Problem::unavailable("the database does not answer"))??;
    Ok(Json(Done::of(&report)))
}
