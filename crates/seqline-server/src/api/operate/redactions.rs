//! Redaction: what events say is taken out of the log.

use axum::Json;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::{Operator, invalid, mode};
use crate::api::{Door, JsonBody, Problem};
use crate::limits::API_REDACT_EVENTS_MAX;
use crate::operate::redact::{self, Report, What};

pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new().routes(routes!(create))
}

/// What is taken out, and why: of one event, or of all about a resource.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRedaction {
    /// The event: this, or a resource.
    #[schema(nullable = false)]
    event_id: Option<Uuid>,
    /// Kind of the resource, together with its id.
    #[schema(nullable = false, example = "customer")]
    resource_kind: Option<String>,
    /// Id of the resource.
    #[schema(nullable = false, example = "17")]
    resource_id: Option<String>,
    /// Why, for the audit log, in which it stays: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "asked to, ticket 4711")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

impl NewRedaction {
    fn what(&self) -> Result<What, Problem> {
        let checked = |name: &str, text: &str| match text {
            // PostgreSQL has no such texts, so no event does.
            text if text.is_empty() || text.contains('\0') => {
                Err(invalid("a member of the body is not as expected")
                    .at(format!("/{name}"), "is empty, or has a character with the code 0"))
            }
            text => Ok(text.to_owned()),
        };
        match (self.event_id, self.resource_kind.as_deref(), self.resource_id.as_deref()) {
            (Some(id), None, None) => Ok(What::Event(id)),
            (None, Some(kind), Some(id)) => {
                Ok(What::Resource { kind: checked("resource_kind", kind)?, id: checked("resource_id", id)? })
            }
            _ => Err(invalid("say of what: event_id, or resource_kind and resource_id")
                .at("", "needs event_id, or both of resource_kind and resource_id")),
        }
    }
}

/// Take out what events say
///
/// The payload becomes `{}` and the envelope says `redacted`; all else stays. Whoever could see the events is told by an event of type
/// `log.redacted`. A second time nothing is done. Of a resource at most 10000 events at a time: ask again while `remaining` is not 0.
#[utoipa::path(
    post,
    path = "/v1/redactions",
    operation_id = "create_redaction",
    tag = "operators",
    security(("token" = [])),
    request_body = NewRedaction,
    responses(
        (status = 200, description = "What was done, or would be.", body = Report),
        (status = 404, description = "The log has no event of this id.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
async fn create(operator: Operator, JsonBody(body): JsonBody<NewRedaction>) -> Result<Json<Report>, Problem> {
    let what = body.what()?;
    let mode = mode(body.dry_run, body.reason.as_deref())?;
    let redacted = operator
        .act(async |transaction| redact::redact(transaction, &what, Some(API_REDACT_EVENTS_MAX), mode).await);
    Ok(Json(redacted.await?))
}
