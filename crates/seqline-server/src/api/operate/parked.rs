//! Events that consumers have put aside.

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Operator, invalid, limit, mode, other_after};
use crate::api::{Door, JsonBody, NamedParams, PathParams, Problem};
use crate::limits::PARKED_LIST_MAX;
use crate::operate::consumers::name_of;
use crate::operate::parked::{self, Change, Details, Row};

pub(super) fn router() -> OpenApiRouter<Door> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(discard))
}

/// Which parked events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ParkedParams {
    /// Only those of this consumer.
    #[param(nullable = false)]
    consumer: Option<String>,
    /// Where the page before ended: its `next`.
    #[param(nullable = false)]
    after: Option<String>,
    /// How many at most.
    #[param(nullable = false, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Parked events, by consumer and number.
#[derive(Debug, Serialize, ToSchema)]
struct ParkedPage {
    /// By consumer and number.
    events: Vec<Row>,
    /// Pass it as `after` to get the next ones; missing when there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "order_totals:1017")]
    next: Option<String>,
}

/// Parked events
///
/// Events that consumers have put aside, with their errors and what they wait for. Never what they say.
#[utoipa::path(
    get,
    path = "/v1/parked",
    operation_id = "list_parked",
    tag = "operators",
    security(("token" = [])),
    params(ParkedParams),
    responses(
        (status = 200, description = "Parked events.", body = ParkedPage),
        (status = 404, description = "There is no such consumer.", body = crate::api::problem::Document<'_>, content_type = "application/problem+json"),
    )
)]
async fn list(
    operator: Operator,
    NamedParams(params): NamedParams<ParkedParams>,
) -> Result<Json<ParkedPage>, Problem> {
    let after = params.after.as_deref().map(place).transpose()?;
    let limit = limit(params.limit, PARKED_LIST_MAX)?;
    let consumer = params.consumer.as_deref();
    let found = operator.look(async |work| parked::list(work, consumer, after, limit).await).await?;
    let next = found.events.last().filter(|_| found.more);
    let next = next.map(|event| format!("{}:{}", event.consumer, event.seq));
    Ok(Json(ParkedPage { events: found.events.iter().map(Row::of).collect(), next }))
}

/// Where a page ended.
fn place(text: &str) -> Result<(&str, i64), Problem> {
    let (consumer, seq) = text.split_once(':').ok_or_else(other_after)?;
    name_of(consumer).map_err(|_| other_after())?;
    Ok((consumer, seq.parse().map_err(|_| other_after())?))
}

/// A parked event
///
/// What became of it, and the event but for its payload.
#[utoipa::path(
    get,
    path = "/v1/parked/{consumer}/{seq}",
    operation_id = "get_parked",
    tag = "operators",
    security(("token" = [])),
    params(
        ("consumer" = String, Path, description = "Name of the consumer."),
        ("seq" = i64, Path, description = "Number of the event."),
    ),
    responses((status = 200, description = "The parked event.", body = Details))
)]
async fn show(
    operator: Operator,
    PathParams((consumer, seq)): PathParams<(String, i64)>,
) -> Result<Json<Details>, Problem> {
    let found = operator.look(async |work| parked::show(work, &consumer, seq).await);
    let (event, stored) = found.await?;
    Ok(Json(Details::of(&event, stored.as_ref())?))
}

/// Which parked events are tried again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ParkedRetry {
    /// Number of the event; without it all of the consumer.
    #[schema(nullable = false)]
    seq: Option<i64>,
    /// Why, for the audit log: at most 1000 characters.
    #[schema(nullable = false, max_length = 1000, example = "the address was corrected")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Try parked events again
///
/// Those behind them follow in order.
#[utoipa::path(
    post,
    path = "/v1/parked/{consumer}/retry",
    operation_id = "retry_parked",
    tag = "operators",
    security(("token" = [])),
    params(("consumer" = String, Path, description = "Name of the consumer.")),
    request_body = ParkedRetry,
    responses((status = 200, description = "What was done, or would be.", body = Change))
)]
async fn retry(
    operator: Operator,
    PathParams(consumer): PathParams<String>,
    JsonBody(body): JsonBody<ParkedRetry>,
) -> Result<Json<Change>, Problem> {
    let mode = mode(body.dry_run, body.reason.as_deref())?;
    let done = operator.act(async |work| parked::retry(work, &consumer, body.seq, mode).await);
    Ok(Json(done.await?))
}

/// Which parked events are given up.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ParkedDiscard {
    /// Number of the event; this or `all`.
    #[schema(nullable = false)]
    seq: Option<i64>,
    /// All of the consumer.
    #[serde(default)]
    all: bool,
    /// Why, for the audit log: at most 1000 characters. Nothing is done without one.
    #[schema(nullable = false, max_length = 1000, example = "a test order")]
    reason: Option<String>,
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Give parked events up
///
/// The consumer never handles them. Those behind them follow.
#[utoipa::path(
    post,
    path = "/v1/parked/{consumer}/discard",
    operation_id = "discard_parked",
    tag = "operators",
    security(("token" = [])),
    params(("consumer" = String, Path, description = "Name of the consumer.")),
    request_body = ParkedDiscard,
    responses((status = 200, description = "What was done, or would be.", body = Change))
)]
async fn discard(
    operator: Operator,
    PathParams(consumer): PathParams<String>,
    JsonBody(body): JsonBody<ParkedDiscard>,
) -> Result<Json<Change>, Problem> {
    if body.seq.is_some() == body.all {
        return Err(invalid("say which event: seq or all, and not both").at("/seq", "is needed without all"));
    }
    let mode = mode(body.dry_run, body.reason.as_deref())?;
    let done = operator.act(async |work| parked::discard(work, &consumer, body.seq, mode).await);
    Ok(Json(done.await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_goes_on_where_the_one_before_ended_and_nowhere_else() {
        assert_eq!(place("order_totals:1017").unwrap(), ("order_totals", 1017));
        for text in ["", "order_totals", "order_totals:", "order_totals:x", "Order:1", ":1", "a\0:1"] {
            assert!(place(text).is_err(), "{text}");
        }
    }
}
