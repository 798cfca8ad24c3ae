//! What is around every answer: its id, what a panic is answered with, its figure and its line in the log.

use std::panic::AssertUnwindSafe;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use opentelemetry::KeyValue;
use uuid::Uuid;

use crate::api::state::Entered;
use crate::api::{Door, Problem};
use crate::limits::API_REQUEST_ID_BYTES_MAX;
use crate::metrics::catalogue;

/// The header by which an answer and what the log says of it can be found for each other.
pub(in crate::api) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Around every answer: which epoch it is in, its id, and what the log says of one that failed.
pub(super) async fn answer(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let begun = door.clock.elapsed();
    let (entered, counted): (Entered, _) = door.enter();
    request.extensions_mut().insert(entered);
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    drop(counted);
    // What the panic says is in no answer; where it was is in the log.
    let mut response =
        answered.unwrap_or_else(|_| Problem::internal("panic", &"a request panicked").into_response());
    let status = response.status().as_u16();
    let (route, took) =
        (route.as_ref().map_or("", MatchedPath::as_str), door.clock.elapsed().saturating_sub(begun));
    door.requests.add(1.0, &counted_as(&method, route, status));
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    // What is not available is said once where that is noticed, and not for each request.
    let is_logged =
        response.status().is_server_error() && response.status() != StatusCode::SERVICE_UNAVAILABLE;
    if is_logged {
        tracing::warn!(request_id = id, %method, route, status, took_ms, "request not answered");
    } else {
        tracing::debug!(request_id = id, %method, route, status, took_ms, "request answered");
    }
    // What somebody may see is nobody else's.
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// The route is the one that matched, and the method one of those that are known: neither is what a client makes up.
fn counted_as(method: &Method, route: &str, status: u16) -> [KeyValue; 3] {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::PATCH,
        Method::OPTIONS,
    ];
    let method = known.iter().find(|known| *known == method).map_or("other", Method::as_str);
    let route = if route.is_empty() { "none" } else { route };
    [
        KeyValue::new(catalogue::METHOD, method.to_owned()),
        KeyValue::new(catalogue::ROUTE, route.to_owned()),
        KeyValue::new(catalogue::STATUS, i64::from(status)),
    ]
}

/// The one that the client gave, if it can be shown, or a new one.
fn request_id(request: &Request) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let given = request.headers().get(REQUEST_ID).map(HeaderValue::as_bytes).unwrap_or_default();
    let usable = (1..=API_REQUEST_ID_BYTES_MAX).contains(&given.len()) && given.iter().copied().all(plain);
    match std::str::from_utf8(given) {
        Ok(given) if usable => given.to_owned(),
        _ => Uuid::now_v7().to_string(),
    }
}
