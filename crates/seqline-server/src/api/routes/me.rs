//! Who asks.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::{Caller, Problem};

/// A principal, as the server sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Me {
    /// Its id: events name it by this.
    #[schema(example = "Alex")]
    principal: String,
    /// `user`, `agent` or `app`.
    #[schema(example = "user")]
    kind: &'static str,
    /// What it may do: of `append` and `operate`. Reading needs no right.
    #[schema(example = json!(["append"]))]
    rights: Vec<&'static str>,
}

/// Who you are
///
/// The principal of the token, and what it may do.
#[utoipa::path(
    get,
    path = "/v1/me",
    operation_id = "get_me",
    tag = "principals",
    security(("token" = [])),
    responses((status = 200, description = "The principal of the token.", body = Me))
)]
pub(super) async fn show(caller: Caller) -> Result<Json<Me>, Problem> {
    let access = &caller.access;
    Ok(Json(Me {
        principal: access.principal.clone(),
        kind: access.kind.as_str(),
        rights: access.rights.names(),
    }))
}
