//! Appending events.

use axum::extract::{OriginalUri, Request};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, extract::State};
use seqline::NewEvent;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::api::append::{Appended, BatchSeed, EventBody, EventPlace, KeyHeader, Sender};
use crate::api::body::{self, Said};
use crate::api::{Api, Caller, Code, Door, Problem};

/// Says that an answer is the first one to this request, and that nothing was appended now.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Several events.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "it is read by a seed, which stops at the bound; this describes it")]
pub(super) struct Batch {
    /// At least one, and at most as many as the key `api.append_events_max` says. They follow each other in the log, all of them or none.
    #[schema(min_items = 1)]
    events: Vec<EventBody>,
}

/// Headers of a request that appends, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "they are read as headers; this describes them")]
struct AppendHeaders {
    /// A text of your choice, new for each request. The same request with the same key is answered as the first time, and appends nothing
    /// again.
    #[param(
        rename = "Idempotency-Key",
        nullable = false,
        max_length = 255,
        pattern = "^[!-~]([ -~]*[!-~])?$"
    )]
    idempotency_key: Option<String>,
    /// The W3C trace that the events belong to.
    traceparent: Option<String>,
}

/// What was appended.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AppendAnswer {
    /// The events in the order of the request.
    events: Vec<AppendedEvent>,
    /// The position of the last of them. Where the database numbers events after commit it is not known yet, and not here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "0198c8f2-7a4b-7000-8000-00000000abcd:1042")]
    position: Option<String>,
}

/// An event that was appended.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AppendedEvent {
    /// Its id, by which it can be read.
    id: Uuid,
}

/// Append an event
///
/// It is in the log and durable when this answers. Needs the right `append`.
#[utoipa::path(
    post,
    path = "/v1/events",
    operation_id = "append_event",
    tag = "events",
    security(("token" = [])),
    params(AppendHeaders),
    request_body = EventBody,
    responses(
        (status = 201, description = "The event is in the log.", body = AppendAnswer,
            headers(("Idempotent-Replayed" = String, description = "`true` when it was appended by an earlier request with the same key."))),
        (status = 409, description = "`event_exists`: an event with this id is in the log. `idempotency_key_reused`: the key belongs to another request.", body = ref("#/components/schemas/Problem"), content_type = "application/problem+json"),
    )
)]
pub(super) async fn one(
    api: Api,
    State(door): State<Door>,
    caller: Caller,
    key: KeyHeader,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response, Problem> {
    let asked = AppendRequest::read(&door, &caller, uri, request).await?;
    let event: EventBody = body::from_json(&asked.body)?;
    let event = event.into_event(asked.sender(&caller), EventPlace::Body, 0)?;
    asked.append(&api, &caller, key, vec![event], EventPlace::Body).await
}

/// Append several events
///
/// All of them or none. They are in the log and durable when this answers, and follow each other there. Needs the right `append`.
#[utoipa::path(
    post,
    path = "/v1/events/batch",
    operation_id = "append_events",
    tag = "events",
    security(("token" = [])),
    params(AppendHeaders),
    request_body = Batch,
    responses(
        (status = 201, description = "The events are in the log.", body = AppendAnswer,
            headers(("Idempotent-Replayed" = String, description = "`true` when they were appended by an earlier request with the same key."))),
        (status = 409, description = "`event_exists`: an event with one of these ids is in the log. `idempotency_key_reused`: the key belongs to another request.", body = ref("#/components/schemas/Problem"), content_type = "application/problem+json"),
    )
)]
pub(super) async fn batch(
    api: Api,
    State(door): State<Door>,
    caller: Caller,
    key: KeyHeader,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response, Problem> {
    let asked = AppendRequest::read(&door, &caller, uri, request).await?;
    let most = usize::try_from(api.config.api.append_events_max).unwrap_or(usize::MAX);
    let events = body::from_json_with(BatchSeed { most }, &asked.body)?;
    if events.is_empty() {
        let problem = Problem::new(Code::ValidationFailed, "the request breaks a rule");
        return Err(problem.at("/events", "there is no event"));
    }
    let sender = asked.sender(&caller);
    let events = events.into_iter().enumerate();
    let events = events.map(|(index, event)| event.into_event(sender, EventPlace::Events, index));
    let events = events.collect::<Result<Vec<NewEvent>, Problem>>()?;
    asked.append(&api, &caller, key, events, EventPlace::Events).await
}

/// What was sent, by somebody who may append.
struct AppendRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Said,
}

impl AppendRequest {
    /// Reads it, unless it is known before that it is refused.
    async fn read(door: &Door, caller: &Caller, uri: Uri, request: Request) -> Result<Self, Problem> {
        caller.may_append()?;
        let (parts, body) = request.into_parts();
        body::refuse_other_types(&parts.headers)?;
        let body = body::read(body, door, &caller.access.principal).await?;
        Ok(Self { method: parts.method, uri, headers: parts.headers, body })
    }

    fn sender<'a>(&'a self, caller: &'a Caller) -> Sender<'a> {
        let traceparent = self.headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        Sender { kind: caller.access.kind, principal: &caller.access.principal, traceparent }
    }

    async fn append(
        self,
        api: &Api,
        caller: &Caller,
        key: KeyHeader,
        events: Vec<NewEvent>,
        place: EventPlace,
    ) -> Result<Response, Problem> {
        let idempotency = key.of(&caller.access.principal, &self.method, &self.uri, &self.body);
        let Appended { ids, last_seq, replayed } =
            api.appender.append(events, place, idempotency, self.body.into_room()).await?;
        let answer = AppendAnswer {
            events: ids.into_iter().map(|id| AppendedEvent { id }).collect(),
            position: last_seq.map(|seq| api.position(seq).to_string()),
        };
        let mut response = (StatusCode::CREATED, Json(answer)).into_response();
        if replayed {
            response.headers_mut().insert(REPLAYED, axum::http::HeaderValue::from_static("true"));
        }
        Ok(response)
    }
}
