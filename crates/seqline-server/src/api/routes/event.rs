//! A single event.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use seqline::DatabaseError;
use seqline::envelope::{Delivery, Envelope};
use seqline::read;
use uuid::Uuid;

use crate::api::envelope::EventSchema;
use crate::api::{Api, Caller, PathParams, Problem};

/// One event
///
/// By its id, if you may see it. An event that is for others is not found, like one that does not exist, that has expired, or that has no number
/// yet.
#[utoipa::path(
    get,
    path = "/v1/events/{id}",
    operation_id = "get_event",
    tag = "events",
    security(("token" = [])),
    params(("id" = Uuid, Path, description = "The id of the event.")),
    responses((status = 200, description = "The event.", body = EventSchema))
)]
pub(super) async fn show(
    api: Api,
    caller: Caller,
    PathParams(id): PathParams<String>,
) -> Result<Response, Problem> {
    let missing = || Problem::not_found("there is no event with this id that you may see");
    let id = Uuid::try_parse(&id).ok().filter(|_| id.len() == 36).ok_or_else(missing)?;
    let principal = &caller.access.principal;
    let found: Result<_, DatabaseError> =
        api.database.ask(async |connection| read::visible_event(connection, principal, id).await).await;
    let event = found?.ok_or_else(missing)?;
    // Nobody gets an event that a crash could take back.
    api.until_durable(event.seq).await?;
    let envelope = Envelope::new(&event, &Delivery::default()).to_json();
    Ok(([(header::CONTENT_TYPE, "application/json")], envelope).into_response())
}
