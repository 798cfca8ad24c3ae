//! The document that describes all of this.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// As it is sent. It is the same for as long as the program is.
static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| super::all().1.to_pretty_json().unwrap_or_else(|error| unreachable!("{error}")));

/// This document
///
/// Everything that the server answers, as OpenAPI 3.1. No token is needed.
#[utoipa::path(
    get,
    path = "/v1/openapi.json",
    operation_id = "get_openapi",
    tag = "reference",
    responses((status = 200, description = "The document.", body = serde_json::Value, content_type = "application/json"))
)]
pub(super) async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}
