//! Where consumers go on, and what they leave out.

use axum::Json;
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::place::LogPlace;
use super::super::{Operator, mode};
use crate::api::{JsonBody, PathParams, Problem};
use crate::operate::consumers::{self, Replay, Rewind, Skip};

/// Where a consumer goes back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RewindRequest)]
pub(super) struct RewindBody {
    /// Its next event.
    #[schema(example = 1017)]
    to: LogPlace,
    /// Why, for the audit log: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "the sums were wrong")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Take a consumer back
///
/// So that an event is its next one. What it has parked or leaves out from there on comes again with the rest, and what it has made of
/// them is still there.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/rewind",
    operation_id = "rewind_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = RewindBody,
    responses((status = 200, description = "What was done, or would be.", body = Rewind))
)]
pub(super) async fn rewind(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(body): JsonBody<RewindBody>,
) -> Result<Json<Rewind>, Problem> {
    let mode = mode(body.dry_run, body.reason.as_deref())?;
    let done = operator.act(async |work| consumers::rewind(work, &name, body.to.0, mode).await);
    Ok(Json(done.await?))
}

/// The event that a consumer leaves out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SkipRequest)]
pub(super) struct SkipBody {
    /// Its number.
    #[schema(example = 1017)]
    seq: i64,
    /// Why, for the audit log: at most 1000 characters. Nothing is done without one.
    #[schema(nullable = false, max_length = 1000, example = "a test order")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Leave an event out
///
/// One that the consumer has not passed, in the log or missing from it.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/skip",
    operation_id = "skip_event",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "Its name.")),
    request_body = SkipBody,
    responses((status = 200, description = "What was done, or would be.", body = Skip))
)]
pub(super) async fn skip(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(body): JsonBody<SkipBody>,
) -> Result<Json<Skip>, Problem> {
    let mode = mode(body.dry_run, body.reason.as_deref())?;
    let done = operator.act(async |work| consumers::skip(work, &name, body.seq, mode).await);
    Ok(Json(done.await?))
}

/// Who gets which piece of the log again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReplayRequest)]
pub(super) struct ReplayBody {
    /// Name of the new consumer: 1 to 63 lowercase letters, digits and underscores, beginning with a letter.
    #[schema(example = "order_totals_again")]
    into: String,
    /// The first event.
    #[schema(example = 1)]
    from: LogPlace,
    /// The last event; a time is for the last one before the first that was appended then or later.
    #[schema(example = 1017)]
    to: LogPlace,
    /// Why, for the audit log: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "the sums were wrong")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Have a piece of the log handled again
///
/// Makes a new consumer that gets it. The one that is named is not touched: the new one has its lanes, and its filter if it is polled.
#[utoipa::path(
    post,
    path = "/v1/consumers/{name}/replay",
    operation_id = "replay_consumer",
    tag = "operators",
    security(("token" = [])),
    params(("name" = String, Path, description = "The consumer after which the new one is made.")),
    request_body = ReplayBody,
    responses((status = 200, description = "What was done, or would be.", body = Replay))
)]
pub(super) async fn replay(
    operator: Operator,
    PathParams(name): PathParams<String>,
    JsonBody(body): JsonBody<ReplayBody>,
) -> Result<Json<Replay>, Problem> {
    let mode = mode(body.dry_run, body.reason.as_deref())?;
    let piece = (body.from.0, body.to.0);
    let done = operator.act(async |work| consumers::replay(work, &name, &body.into, piece, mode).await);
    Ok(Json(done.await?))
}
