//! What can be asked: a file for each resource.

mod document;
mod log;
mod me;

use axum::Router;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Door, openapi};

/// All of it, and the document that says so.
pub(super) fn all() -> (Router<Door>, OpenApi) {
    let (router, openapi) = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(log::show))
        .routes(routes!(me::show))
        .routes(routes!(document::show))
        .split_for_parts();
    (router, openapi::complete(openapi))
}
