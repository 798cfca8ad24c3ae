//! Who did what.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, PageParams, after, limit};
use crate::api::{Door, NamedParams, Problem};
use crate::limits::AUDIT_LIST_MAX;
use crate::operate::audit::{self, Row};

pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new().routes(routes!(list))
}

/// What people did, the newest first.
#[derive(Debug, Serialize, ToSchema)]
struct AuditPage {
    /// The newest first.
    entries: Vec<Row>,
    /// Pass it as `after` to get older ones; missing when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "1041")]
    next: Option<String>,
}

/// Who did what, and why
///
/// Every change that somebody made, by command, in SQL or here, the newest first. `principal` is for whom the login of the database did
/// it: who asked, for what was done here.
#[utoipa::path(
    get,
    path = "/v1/audit",
    operation_id = "list_audit",
    tag = "operators",
    security(("token" = [])),
    params(PageParams),
    responses((status = 200, description = "What people did.", body = AuditPage))
)]
async fn list(
    operator: Operator,
    NamedParams(page): NamedParams<PageParams>,
) -> Result<Json<AuditPage>, Problem> {
    let (before, limit) = (after(page.after.as_deref())?, limit(page.limit, AUDIT_LIST_MAX)?);
    let found = operator.look(async |work| audit::list(work, before, limit).await);
    let (entries, more) = found.await?;
    let next = entries.last().filter(|_| more).map(|entry| entry.id.to_string());
    Ok(Json(AuditPage { entries: entries.into_iter().map(Row::of).collect(), next }))
}
