//! What can be asked: a file for each resource.

mod append;
mod document;
mod event;
mod log;
mod me;
mod reference;

use axum::Router;
use axum::routing::get;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Door, openapi};

/// All of it, and the document that says so.
pub(super) fn all() -> (Router<Door>, OpenApi) {
    let (router, openapi) = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(append::one))
        .routes(routes!(append::batch))
        .routes(routes!(event::show))
        .routes(routes!(log::show))
        .routes(routes!(me::show))
        .routes(routes!(super::events::list))
        .routes(routes!(super::events::of_resource))
        .routes(routes!(super::stream::follow))
        .routes(routes!(document::show))
        .merge(super::agents::router())
        .merge(super::operate::router())
        .split_for_parts();
    let router = router
        .route("/v1/gateway", get(super::gateway::connect))
        .route("/v1/gateway/schema", get(super::gateway::schema))
        .route("/v1/docs", get(reference::to_folder))
        .route("/v1/docs/", get(reference::index))
        .route("/v1/docs/{file}", get(reference::file));
    (router, openapi::complete(openapi))
}
